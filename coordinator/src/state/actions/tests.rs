//! The knowledge of a restarted coordinator about earlier restarts.

use memtape_core::action::{Verdict, Why};
use memtape_core::diagnosis::{Class, RestartAnswer};
use memtape_core::identity::owner::Owner;
use memtape_core::policy::rule::Rule;
use memtape_core::policy::{Facts, Reach, Settings};
use memtape_core::tape::mailbox::Offers;

use super::*;
use crate::state::jobs::ownership::tests::owned;
use crate::state::jobs::tests::limits;
use crate::state::messages::{Hello, Report};
use memtape_simulated_disk::SimulatedDisk;

const SECOND_NS: i64 = 1_000_000_000;
const NOW: Now = Now { mono_ns: 100_000 * 1_000_000_000, wall_ns: 100_000 * SECOND_NS };

fn record(id: usize, job: &str, wall_s: i64, outcome: Outcome) -> Action {
    Action {
        id: format!("act-{id:07}"),
        incident_id: format!("inc-{job}"),
        job: job.to_string(),
        owner: Some(Owner { uid: 1000, ..Owner::default() }),
        dry_run: outcome == Outcome::DryRun,
        wall_ns: wall_s * SECOND_NS,
        outcome,
        ..Action::default()
    }
}

fn restored(records: Vec<Action>) -> Actions {
    restored_with(None, records)
}

fn restored_with(command: Option<String>, records: Vec<Action>) -> Actions {
    let store = Store::open_in_turns(&SimulatedDisk::new(1).process()).unwrap().0;
    let rest = Rule { mode: Mode::Act, ..Rule::default() };
    let policy = Settings { rest, ..Settings::default() };
    let config = RestartConfig { policy, command, ..RestartConfig::default() };
    Actions::restore(NOW, &config, 1_000_000_000, (records, Ids::default()), &store)
}

/// The policy's decision about a job of this user now.
fn decided(actions: &Actions, job: &str, uid: u32) -> String {
    let owner = Owner { uid, ..Owner::default() };
    let facts = Facts {
        job,
        owner: Some(&owner),
        node: "",
        is_proved: true,
        is_current: true,
        attempt: 7,
        serial: 7,
        incident: "inc-1",
        class: Class::Leak,
        restart: RestartAnswer::GivesBack,
        oom_in_ns: None,
        job_ends_first: false,
        urgent: true,
        objection: None,
        ended: false,
        observed: None,
        offers: Offers::default(),
        reach: Reach::Unknown,
        is_approved: false,
    };
    actions.policy.decide(NOW.mono_ns, &facts, &actions.actions).to_string()
}

fn refused() -> Outcome {
    Outcome::Refused { why: "no quota".to_string() }
}

#[test]
fn budgets_outlive_the_coordinator() {
    let made = || Outcome::Finished { said: "done".to_string() };
    let waiting = Outcome::Waiting { capture: "cap-1".to_string() };
    let mut actions = restored(vec![
        record(1, "refused", 99_990, refused()),
        record(2, "dry", 99_990, Outcome::DryRun),
        record(3, "waiting", 99_990, waiting.clone()),
        record(4, "unknown", 99_990, Outcome::Running),
        // Two targets are one restart; one of them made it.
        record(5, "two", 99_990, refused()),
        record(6, "two", 99_990, made()),
        record(7, "a", 99_990, made()),
    ]);
    let outcomes: Vec<String> = actions.iter().map(|known| known.outcome.to_string()).collect();
    assert_eq!(outcomes[2..4], [waiting.to_string(), Outcome::Interrupted.to_string()]);
    let check_of = |actions: &Actions, job: &str, uid, expected: &str| {
        let why = decided(actions, job, uid);
        assert!(why.starts_with(expected), "{job}: {why}");
    };
    let check = |job: &str, uid, expected: &str| check_of(&actions, job, uid, expected);
    check("refused", 1000, "did nothing: the restart target refused 1 time");
    check("unknown", 1000, "did nothing: it is too early to restart again");
    check("two", 1000, "did nothing: it is too early to restart again");
    check("waiting", 1000, "did nothing: it is too early to restart again");
    // Four restarts were made or are under way; a dry run spends nothing.
    check("dry", 1000, "restart");
    let fifth = Action { at_ns: NOW.mono_ns, ..record(8, "dry", 100_000, Outcome::Running) };
    actions.actions.push(fifth);
    let spent = "did nothing: the budget of the owner is spent: 5 restarts";
    check_of(&actions, "other", 1000, spent);
    check_of(&actions, "other", 1001, "restart");
}

/// The coordinator may be killed again, or replaced, while a target finishes what was left.
#[test]
fn what_was_left_half_done_is_finished_after_any_number_of_kills() {
    let of = |id: usize, target, outcome| Action { target, ..record(id, "job", 99_990, outcome) };
    let judged = Some(Verdict::Unknown(Why::NotMeasuredInside { steps: 20 }));
    let records = vec![
        of(1, TargetKind::Command, Outcome::Running),
        of(2, TargetKind::Command, Outcome::Interrupted),
        Action { verdict: judged, ..of(3, TargetKind::Command, Outcome::Interrupted) },
        of(4, TargetKind::Ranks, Outcome::Interrupted),
        of(5, TargetKind::Command, refused()),
    ];
    let mut actions = restored_with(Some("true".to_string()), records);
    let ids = actions.take_left().into_iter().map(|work| match work {
        Work::Resume { order, .. } => order.action,
        other => panic!("{other:?}"),
    });
    assert!(ids.eq(["act-0000001", "act-0000002"]));
}

/// An agent proves its node alone: what it makes up leaves the owner's jobs elsewhere a half.
#[test]
fn made_up_jobs_of_one_node_leave_an_owner_its_budget() {
    let made = Outcome::Finished { said: "done".to_string() };
    let of = |id: usize, node: &str| {
        let node = node.to_string();
        Action { node, ..record(id, &format!("job-{id}"), 99_990, made.clone()) }
    };
    let mut records: Vec<Action> = (0..5).map(|id| of(id, "stolen")).collect();
    records.extend([of(5, "a"), of(6, "b")]);
    let actions = restored(records.clone());
    assert!(decided(&actions, "honest", 1000).starts_with("restart"));
    records.push(of(7, "b"));
    let spent = "did nothing: the budget of the owner is spent: 5 restarts";
    let why = decided(&restored(records), "honest", 1000);
    assert!(why.starts_with(spent), "{why}");
}

/// Decisions about jobs that one agent made up are its own in the audit, and hide none of another.
#[test]
fn a_decision_to_do_nothing_is_an_entry_of_its_agent() {
    let (mut actions, mut context) = (restored(Vec::new()), Context::new(NOW));
    for node in [&["stolen"; 100][..], &["honest"]].concat() {
        let action = Action { node: node.into(), ..record(1, "job", 99_990, Outcome::Nothing) };
        actions.audit(&mut context, &action, &Decision::Nothing(Objection::Off));
    }
    let nodes = std::iter::from_fn(|| context.pop()).filter_map(|effect| match effect {
        Effect::Audit { action, node, .. } => Some((action, node?)),
        _ => None,
    });
    let nodes: Vec<_> = nodes.collect();
    assert_eq!(nodes.len(), memtape_core::limits::DECLINED_AUDITED_MAX + 1);
    assert_eq!(nodes.last(), Some(&("decision: nothing", "honest".to_string())));
}

#[test]
fn a_flood_of_decisions_forgets_no_restart() {
    let made = Outcome::Finished { said: "done".to_string() };
    let mut records = vec![record(0, "long ago", 1, made.clone()), record(1, "job", 99_000, made)];
    let nothing = |id| record(id, &format!("noise-{id}"), 99_500, Outcome::Nothing);
    records.extend((2..2 + ACTIONS_MAX).map(nothing));
    let mut actions = restored(records);
    let mut context = Context::new(NOW);
    actions.make_room(&mut context);
    let kept: Vec<&str> = actions.iter().take(2).map(|known| known.job.as_str()).collect();
    assert_eq!((actions.iter().count(), kept), (ACTIONS_MAX, vec!["job", "noise-3"]));
    // The decisions about another owner are older, and stay.
    let other = Owner { uid: 7, ..Owner::default() };
    let of_other = |id| Action { owner: Some(other.clone()), ..record(id, "quiet", 2, refused()) };
    let records = (0..9).map(of_other).chain((9..9 + ACTIONS_MAX).map(nothing));
    let mut actions = restored(records.collect());
    actions.make_room(&mut Context::new(NOW));
    assert_eq!(actions.iter().filter(|known| known.job == "quiet").count(), 9);
}

/// An agent announces a rank that has ended before it reports the end.
#[test]
fn an_action_goes_on_once_agents_have_reported_the_ends_that_they_knew() {
    let (left, mut jobs, now) = (taking_up::Left::default(), Jobs::new(limits()), Now::default());
    jobs.announce(now, "a", owned("t", "job", 0, 1)).unwrap();
    // The agent opens one stream after another.
    for _ in 0..2 {
        jobs.attach(now, Hello { node: "a".to_string(), ..Hello::default() });
        let is_back = [(); 3].map(|()| {
            jobs.report(&mut Context::new(now), "a", Report::default(), None);
            left.are_agents_back(now, &jobs, 0)
        });
        assert_eq!(is_back, [false, true, true]);
    }
}
