//! Growths that are mistakes, in tensors.

use memtape_core::detector::Layer::{Allocated, Blocks};
use memtape_core::detector::Scope;
use memtape_core::diagnosis::{Cause, Class};
use memtape_core::snapshot::TraceKind;

use super::maker::*;
use super::{Scenario, scenario};

const KEEP: [&str; 2] = ["/app/train.py:36:train_step", MAIN];

/// The activations of a forward pass: for each layer four lines of the model, below one line.
fn forward(rank: &mut Rank, layers: u32, size: u64, births: impl Iterator<Item = u64> + Clone) {
    let gelu = "/x/site-packages/torch/nn/functional.py:9:gelu";
    for layer in 0..layers {
        for (line, inner) in [(12, LINEAR), (13, gelu), (14, LINEAR), (15, gelu)] {
            let own = format!("/app/model.py:{line}:Block.forward");
            let of = format!("/app/model.py:{}:Model.forward", 100 + layer);
            let call = "/app/train.py:50:train_step";
            let stack = [inner, &own, CALL, WRAPPED, &of, CALL, call, MAIN];
            rank.add(&stack, size / 2, births.clone());
        }
    }
}

pub(crate) fn all() -> Vec<Scenario> {
    let mut all = kept();
    all.extend(kept_by_libraries());
    all.extend(kept_by_parts_of_torch());
    all.extend(graphs());
    all.extend(rhythms());
    all.extend(occasions());
    all.extend(little_is_known());
    all.extend(nothing_is_known());
    all
}

fn kept() -> Vec<Scenario> {
    let leak = |line: &str, cause: Cause| (Class::Leak, Some(line.to_string()), cause);
    let one = |size: u64| growth(Allocated, size);
    vec![
        scenario(
            "tensors in a list",
            leak("train.py:36", Cause::Kept),
            true,
            Asked::new(one(3 * MIB / 2), |rank| {
                rank.add(&KEEP, 3 * MIB / 2, ONSET..STEP);
            }),
        ),
        scenario(
            "losses in a list, seen by their number",
            leak("train.py:29", Cause::RetainedLoss),
            true,
            Asked::new(growth(Blocks, 1), |rank| {
                let loss = "/x/site-packages/torch/nn/functional.py:3504:cross_entropy";
                rank.add(&[loss, "/app/train.py:29:compute_loss", KEEP[0], MAIN], 512, ONSET..STEP);
            }),
        ),
        scenario(
            "losses in a list, seen by their bytes",
            leak("train.py:29", Cause::RetainedLoss),
            true,
            Asked::new(one(64 * 512), |rank| {
                let loss = "/x/site-packages/torch/nn/functional.py:3504:cross_entropy";
                let births = (ONSET..STEP).flat_map(|step| [step; 64]);
                rank.add(&[loss, "/app/train.py:29:compute_loss", KEEP[0], MAIN], 512, births);
            }),
        ),
        scenario(
            "what a hook stores",
            leak("probe.py:8", Cause::Hook),
            true,
            Asked::new(one(2 * MIB), |rank| {
                let stack = [
                    "/app/probe.py:8:Probe.remember",
                    CALL,
                    WRAPPED,
                    "/app/train.py:50:train_step",
                    MAIN,
                ];
                rank.add(&stack, 2 * MIB, ONSET..STEP);
            }),
        ),
        scenario(
            "a cache without bound",
            leak("rope_cache.py:14", Cause::Cache),
            true,
            Asked::new(one(MIB), |rank| {
                rank.add(&["/app/rope_cache.py:14:RopeCache.get", LINEAR, MAIN], MIB, ONSET..STEP);
            }),
        ),
    ]
}

fn kept_by_libraries() -> Vec<Scenario> {
    let leak = |line: &str, cause: Cause| (Class::Leak, Some(line.to_string()), cause);
    let one = |size: u64| growth(Allocated, size);
    vec![
        scenario(
            "a cache inside a library",
            leak("train.py:20", Cause::Kept),
            true,
            Asked::on_all(one(MIB), |rank| {
                let own = "/app/train.py:20:main";
                rank.add(
                    &["/x/site-packages/torch/nn/modules/linear.py:90:__init__", own],
                    GIB,
                    [0; 4],
                );
                rank.add(
                    &[
                        "/x/site-packages/lib/store.py:77:update",
                        "/x/site-packages/lib/trainer.py:5:run",
                        own,
                    ],
                    MIB,
                    ONSET..STEP,
                );
            }),
        ),
        scenario(
            "no line of the user's",
            leak("store.py:77", Cause::Kept),
            true,
            Asked::new(one(MIB), |rank| {
                rank.add(
                    &[
                        "/x/site-packages/torch/_tensor.py:9:clone",
                        "/x/site-packages/lib/store.py:77:update",
                    ],
                    MIB,
                    ONSET..STEP,
                );
            }),
        ),
        scenario(
            "gradients that are stored",
            leak("train.py:34", Cause::Gradients),
            true,
            Asked::new(one(4 * MIB), |rank| {
                rank.add(
                    &["::CosBackward0", "/app/train.py:34:train_step", MAIN],
                    4 * MIB,
                    ONSET..STEP,
                );
            }),
        ),
    ]
}

fn kept_by_parts_of_torch() -> Vec<Scenario> {
    let leak = |line: &str, cause: Cause| (Class::Leak, Some(line.to_string()), cause);
    let one = |size: u64| growth(Allocated, size);
    vec![
        scenario(
            "new optimizers",
            leak("train.py:60", Cause::OptimizerState),
            true,
            Asked::new(one(8 * MIB), |rank| {
                rank.add(&[ADAM, "/app/train.py:60:new_phase", MAIN], 8 * MIB, ONSET..STEP);
            }),
        ),
        scenario(
            "a leak on the line of the weights",
            leak("train.py:80", Cause::Kept),
            true,
            Asked::new(one(MIB), |rank| {
                rank.add(
                    &["/x/site-packages/torch/_tensor.py:9:clone", MAIN],
                    MIB,
                    [0; 500].into_iter().chain(ONSET..STEP),
                );
            }),
        ),
        scenario(
            "state_dicts that are not dropped",
            leak("save.py:9", Cause::Checkpoint),
            true,
            Asked::new(one(2 * MIB), |rank| {
                let stack = [
                    "/x/site-packages/torch/nn/modules/module.py:2200:state_dict",
                    "/app/save.py:9:save",
                    MAIN,
                ];
                rank.add(&stack, 100 * MIB, (ONSET..STEP).step_by(50));
            }),
        ),
    ]
}

fn graphs() -> Vec<Scenario> {
    let expected = || (Class::Leak, Some("train.py:50".to_string()), Cause::RetainedGraph);
    vec![
        scenario(
            "a graph is kept",
            expected(),
            true,
            Asked::new(growth(Allocated, 24 * MIB), |rank| {
                forward(rank, 12, MIB, ONSET..STEP);
            }),
        ),
        scenario(
            "a graph is kept by the only rank",
            expected(),
            true,
            Asked::new(growth(Allocated, 24 * MIB), |rank| {
                forward(rank, 12, MIB, ONSET..STEP);
            })
            .but(|asked| {
                asked.peers.clear();
                asked.growth.peers = 0;
            }),
        ),
        scenario(
            "a graph is kept on all ranks",
            expected(),
            true,
            Asked::on_all(growth(Allocated, 24 * MIB), |rank| {
                forward(rank, 12, MIB, ONSET..STEP);
            }),
        ),
        scenario(
            "two graphs, one step in ten",
            expected(),
            true,
            Asked::new(growth(Allocated, 12 * MIB / 5), |rank| {
                forward(rank, 12, MIB, (ONSET..STEP).step_by(10));
            }),
        ),
    ]
}

/// Blocks that go together at a collection, as far as the events show it.
fn cycles_of_the_trace() -> Asked {
    Asked::new(growth(Allocated, 3 * MIB), |rank| {
        rank.add(&["/app/agent.py:31:Agent.act", MAIN], 3 * MIB, 342..STEP);
        for step in 300..342 {
            rank.event(TraceKind::Alloc, step, 3 * MIB, step);
        }
        for address in 300..342 {
            rank.event(TraceKind::Free, address, 3 * MIB, 342);
        }
    })
    .but(|asked| asked.growth.onset_step = 298)
}

fn rhythms() -> Vec<Scenario> {
    let leak = |line: &str| (Class::Leak, Some(line.to_string()), Cause::Kept);
    vec![
        scenario(
            "a leak that outlasts a collection",
            leak("train.py:36"),
            true,
            Asked::new(growth(Allocated, 3 * MIB), |rank| {
                rank.add(&KEEP, 3 * MIB, ONSET..STEP);
                for address in 300..342 {
                    rank.event(TraceKind::Alloc, address, 1 << 10, address);
                }
                for address in 300..342 {
                    rank.event(TraceKind::Free, address, 1 << 10, 342);
                }
            }),
        ),
        scenario(
            "cycles that only the trace shows",
            (Class::ReferenceCycles, Some("agent.py:31".into()), Cause::Cycles),
            false,
            cycles_of_the_trace(),
        ),
        scenario(
            "cycles that were collected since the earlier state",
            (Class::ReferenceCycles, Some("agent.py:31".into()), Cause::Cycles),
            false,
            Asked::new(growth(Allocated, 3 * MIB), |rank| {
                rank.add(&["/app/agent.py:31:Agent.act", MAIN], 3 * MIB, 350..STEP);
                rank.was(600 * MIB, 200);
            })
            .but(|asked| (asked.growth.onset_step, asked.growth.give_backs) = (352, 2)),
        ),
    ]
}

fn occasions() -> Vec<Scenario> {
    let leak = |line: &str| (Class::Leak, Some(line.to_string()), Cause::Kept);
    let cycles = cycles_of_the_trace().but(|asked| {
        asked.growth.give_backs = 3;
        (asked.growth.onset_step, asked.growth.grown_bytes) = (342, 34 * 3 * MIB);
    });
    vec![
        scenario(
            "a leak in every evaluation",
            leak("eval.py:5"),
            false,
            Asked::new(growth(Allocated, MIB), |rank| {
                rank.add(&["/app/eval.py:5:evaluate", MAIN], 100 * MIB, [150, 250, 350]);
            }),
        ),
        scenario(
            "a leak in every tenth step",
            leak("train.py:36"),
            true,
            Asked::new(growth(Allocated, MIB), |rank| {
                rank.add(&KEEP, 10 * MIB, (ONSET..STEP).step_by(10));
            }),
        ),
        scenario(
            "bursts of a leak",
            leak("train.py:36"),
            true,
            Asked::new(growth(Allocated, MIB), |rank| {
                let births = [123, 124, 125, 190, 191, 240, 241, 242, 243, 301, 302, 360, 361, 362];
                rank.add(&KEEP, 18 * MIB, births);
            }),
        ),
        scenario(
            "a leak on all ranks",
            leak("train.py:36"),
            true,
            Asked::on_all(growth(Allocated, 4 * MIB), |rank| {
                rank.add(&KEEP, 4 * MIB, ONSET..STEP);
            }),
        ),
        scenario(
            "a leak on one of two ranks",
            leak("train.py:36"),
            true,
            Asked::new(growth(Allocated, 4 * MIB), |rank| {
                rank.add(&KEEP, 4 * MIB, ONSET..STEP);
            })
            .but(|asked| {
                asked.peers.truncate(1);
                asked.growth.peers = 1;
            }),
        ),
        scenario(
            "reference cycles",
            (Class::ReferenceCycles, Some("agent.py:31".into()), Cause::Cycles),
            false,
            cycles,
        ),
    ]
}

/// A leak that is easy to tell.
fn made() -> Asked {
    Asked::new(growth(Allocated, 4 * MIB), |rank| {
        rank.add(&KEEP, 4 * MIB, ONSET..STEP);
    })
}

fn little_is_known() -> Vec<Scenario> {
    let leak = || (Class::Leak, Some("train.py:36".to_string()), Cause::Kept);
    vec![
        scenario(
            "no earlier state",
            leak(),
            true,
            made().but(|asked| {
                let all = asked.peers.iter_mut().chain([&mut asked.suspect]);
                all.for_each(|snapshot| {
                    snapshot.before_step = 0;
                    snapshot.devices[0].before.clear();
                });
            }),
        ),
        scenario(
            "peers at other steps",
            leak(),
            true,
            made().but(|asked| {
                asked.peers.iter_mut().for_each(|peer| peer.step += 1);
            }),
        ),
        scenario(
            "a table that was full",
            leak(),
            true,
            made().but(|asked| {
                asked.suspect.devices[0].complete = false;
            }),
        ),
    ]
}

fn nothing_is_known() -> Vec<Scenario> {
    vec![
        scenario(
            "stacks are not recorded",
            (Class::Unknown, None, Cause::Unknown),
            false,
            Asked::new(growth(Allocated, 4 * MIB), |rank| {
                rank.add(&[], 4 * MIB, ONSET..STEP);
            }),
        ),
        scenario(
            "memory ends, and it is not known why",
            (Class::Unknown, None, Cause::Unknown),
            true,
            Asked::new(growth(Allocated, 4 * MIB), |rank| {
                rank.add(&[], 4 * MIB, ONSET..STEP);
            })
            .but(|asked| asked.growth.steps_to_oom = Some(40)),
        ),
        scenario(
            "most blocks found no room",
            (Class::Telemetry, None, Cause::Recording),
            false,
            Asked::new(growth(Allocated, 4 * MIB), |rank| {
                rank.add(&KEEP, 4 * KIB, ONSET..STEP);
                rank.device.allocated += GIB;
                rank.device.complete = false;
            }),
        ),
        scenario(
            "a capture from before the growth",
            (Class::Unknown, None, Cause::Unknown),
            false,
            made().but(|asked| {
                asked.growth.scope = Scope::OneRank;
                asked.growth.onset_step = STEP - 2;
                asked.growth.last_step = STEP + 30;
            }),
        ),
    ]
}
