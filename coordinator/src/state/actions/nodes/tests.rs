//! Decisions to keep a node out: stored records, requests to targets, and recovery after a kill.

use memtape_core::identity::ids::Ids;

use super::*;
use crate::config::Config;
use crate::restart::RestartConfig;
use crate::state::effects::{After, Effect, Work};
use crate::state::restored::Restored;
use memtape_disk::clock::Now;
use memtape_simulated_disk::SimulatedDisk;
use memtape_store::{Loaded, Store};

const GIB: u64 = 1 << 30;
const START_NS: u64 = 100_000 * 1_000_000_000;

fn at(second: u64) -> Now {
    let mono_ns = START_NS + second * 1_000_000_000;
    Now { mono_ns, wall_ns: i64::try_from(mono_ns).unwrap() }
}

fn config(mode: Mode, kubernetes: bool) -> RestartConfig {
    let mut config = RestartConfig { kubernetes, ..RestartConfig::default() };
    config.policy.keep_out = mode;
    config
}

fn keep_out(config: &RestartConfig, second: u64, actions: Vec<Action>) -> Actions {
    let store = Store::open_in_turns(&SimulatedDisk::new(1).process()).unwrap().0;
    Actions::restore(at(second), config, 1_000_000_000, (actions, Ids::default()), &store)
}

fn gpu(used: u64, ranks: u32) -> Gpu {
    let (processes, ranks) = (Some(ranks), Some(ranks));
    Gpu { uuid: "GPU-a".to_string(), used_bytes: used * GIB, processes, ranks, ..Gpu::default() }
}

/// A job that gives nothing back on this node, from this second on; gives all effects.
fn leave_memory(actions: &mut Actions, node: &str, from: u64) -> Vec<Effect> {
    let mut effects = Vec::new();
    let left = std::iter::repeat_n(gpu(41, 0), 100);
    for (second, gpu) in (from..).zip([gpu(1, 0), gpu(70, 8)].into_iter().chain(left)) {
        let mut context = Context::new(at(second));
        actions.gpus_reported(&mut context, node, &[gpu]);
        effects.extend(std::iter::from_fn(|| context.pop()));
    }
    effects
}

/// Ids of decisions stored before an effect begins, and ids of decisions that targets get.
fn asked(effects: Vec<Effect>) -> (Vec<String>, Vec<String>) {
    let (mut stored, mut started) = (Vec::new(), Vec::new());
    for effect in effects {
        match effect {
            Effect::Write(changes, After::TellAction { action }) => {
                assert_eq!(changes.into_inner().len(), 1);
                stored.push(action);
            }
            Effect::Start(Work::Act { order, .. }) => started.push(order.action),
            _ => {}
        }
    }
    (stored, started)
}

/// Ids of the orders that begin when this action is stored.
fn when_stored(actions: &mut Actions, action: &str) -> Vec<String> {
    let mut context = Context::new(at(500));
    let store = Store::open_in_turns(&SimulatedDisk::new(1).process()).unwrap().0;
    let rest = Restored::new(at(0), &Config::default(), Loaded::default(), &store, &Ids::default());
    actions.stored(&mut context, action, &rest.incidents, &rest.jobs);
    asked(std::iter::from_fn(|| context.pop()).collect()).1
}

fn shown(actions: &Actions) -> Vec<String> {
    let line = |it: &Action| format!("{} {}: {}", it.decision(), it.node, it.outcome);
    actions.iter().map(line).collect()
}

#[test]
fn a_node_is_kept_out_when_the_decision_is_stored() {
    let mut out = keep_out(&config(Mode::Act, true), 0, Vec::new());
    let effects = leave_memory(&mut out, "gpu-1", 0);
    let audited = effects.iter().find_map(|effect| match effect {
        Effect::Audit { action, subject, .. } => Some((*action, subject.clone())),
        _ => None,
    });
    let (action, subject) = audited.unwrap();
    assert_eq!(action, "decision");
    assert!(subject.contains("gpu-1: keep node out: 60 s after its last process"), "{subject}");
    let (stored, started) = asked(effects);
    let [id] = &stored[..] else { panic!("{stored:?}") };
    assert!(id.starts_with("act-"), "{id}");
    assert_eq!(started, Vec::<String>::new());
    assert_eq!(shown(&out), ["keep node out gpu-1: running"]);
    assert_eq!(when_stored(&mut out, "act-of-others"), Vec::<String>::new());
    assert_eq!(when_stored(&mut out, id), std::slice::from_ref(id));
    // Once.
    assert_eq!(when_stored(&mut out, id), Vec::<String>::new());
    let said = "tainted node gpu-1".to_string();
    let mut context = Context::new(at(600));
    out.acted(&mut context, id, Outcome::Finished { said });
    assert!(matches!(context.pop(), Some(Effect::Write(..))));
    assert_eq!(shown(&out), ["keep node out gpu-1: tainted node gpu-1"]);
    // Soon after that, nothing more is decided about the node; about another one it is.
    assert_eq!(asked(leave_memory(&mut out, "gpu-1", 700)).0, Vec::<String>::new());
    assert_eq!(asked(leave_memory(&mut out, "gpu-2", 900)).0.len(), 1);
}

#[test]
fn a_dry_run_and_a_missing_target_change_no_node() {
    for (config, expected) in [
        (config(Mode::DryRun, true), "would keep node out gpu-1: not run: dry run"),
        (config(Mode::DryRun, false), "would keep node out gpu-1: not run: dry run"),
        (config(Mode::Act, false), "keep node out gpu-1: no restart target is configured"),
    ] {
        let mut out = keep_out(&config, 0, Vec::new());
        let (stored, started) = asked(leave_memory(&mut out, "gpu-1", 0));
        assert_eq!((stored, started), Default::default());
        assert_eq!(shown(&out), [expected]);
    }
    let mut off = keep_out(&config(Mode::Off, true), 0, Vec::new());
    assert!(leave_memory(&mut off, "gpu-1", 0).is_empty());
    assert_eq!(RestartConfig::default().policy.keep_out, Mode::DryRun);
}

/// The target is not asked again: it reports the state of the node.
#[test]
fn a_killed_coordinator_reads_the_node_and_does_not_ask_again() {
    let config = config(Mode::Act, true);
    let mut out = keep_out(&config, 0, Vec::new());
    let (stored, _) = asked(leave_memory(&mut out, "gpu-1", 0));
    let records: Vec<Action> = out.iter().cloned().collect();
    let mut out = keep_out(&config, 200, records);
    let left = out.take_left();
    let [Work::Resume { kind: ActionKind::KeepOut, order, .. }] = &left[..] else {
        panic!("{left:?}")
    };
    assert_eq!((&order.action, order.node.as_str()), (&stored[0], "gpu-1"));
    let why = "the coordinator was restarted meanwhile: the job or the node shows what came of it";
    assert_eq!(shown(&out), [format!("keep node out gpu-1: {why}")]);
    assert_eq!(when_stored(&mut out, &stored[0]), Vec::<String>::new());
    let said = "tainted node gpu-1".to_string();
    out.resumed(&mut Context::new(at(201)), &stored[0], Some(Outcome::Finished { said }));
    assert_eq!(shown(&out), ["keep node out gpu-1: tainted node gpu-1"]);
    // It remembers that it has decided about the node, although no agent has come yet.
    out.forget_nodes(|_| false);
    assert_eq!(asked(leave_memory(&mut out, "gpu-1", 300)).0, Vec::<String>::new());
    // A further kill leaves nothing.
    let records = out.iter().cloned().collect();
    assert!(keep_out(&config, 400, records).take_left().is_empty());
}
