//! A cluster of agents in a few lines, and invariants under any network fault.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use crate::capture::*;

const SECOND: u64 = 1_000_000_000;

fn id(name: &str) -> CaptureId {
    CaptureId(name.to_string())
}

fn tape(rank: u32) -> String {
    format!("tape-{rank}")
}

/// `ranks` ranks on nodes of two, all at `step`, covered from step 1 on.
fn job(ranks: u32, step: u64) -> Captures {
    let mut captures = Captures::new("job", 0, Limits::default());
    for rank in 0..ranks {
        captures.rank_up((rank, &tape(rank)), &format!("node-{}", rank / 2));
        captures.rank_progress((rank, &tape(rank)), step, 1);
    }
    captures
}

fn answer(
    capture: &str,
    tape_id: impl Into<String>,
    outcome: Outcome,
    step: u64,
    bytes: u64,
) -> Part {
    let (capture, tape_id) = (capture.to_string(), tape_id.into());
    Part { capture, tape_id, outcome, step, bytes, wall_ns: 5, wall_error_ns: 1, ..Part::default() }
}

fn aligned(captures: &mut Captures, now_ns: u64, name: &str, rank: u32, step: u64) {
    captures.answer(now_ns, answer(name, tape(rank), Outcome::Aligned, step, 10));
    captures.snapshot_stored(now_ns, &id(name), &tape(rank), 10, [rank as u8; 32]);
}

fn drain(captures: &mut Captures) -> Vec<Action> {
    core::iter::from_fn(|| captures.poll()).collect()
}

fn only_manifest(captures: &mut Captures) -> Manifest {
    let closed: Vec<Manifest> = drain(captures)
        .into_iter()
        .filter_map(|action| match action {
            Action::Close(manifest) => Some(manifest),
            Action::Ask { .. } => None,
        })
        .collect();
    assert_eq!(closed.len(), 1);
    closed.into_iter().next().unwrap_or_else(|| unreachable!())
}

#[test]
fn all_ranks_at_one_step() {
    let mut captures = job(4, 700);
    captures.rank_progress((3, &tape(3)), 701, 1);
    let reason = Reason::WorkerGrowth { rank: 2 };
    assert_eq!(captures.request(1, id("cap-1"), reason.clone(), None), Ok(id("cap-1")));
    let asks = drain(&mut captures);
    assert_eq!(
        asks[0],
        Action::Ask {
            node: "node-0".into(),
            capture: id("cap-1"),
            tapes: [tape(0), tape(1)].to_vec(),
            step: 700,
            before: 444,
            deadline_ns: 30 * SECOND,
            sample_workers: None,
        }
    );
    let [_, Action::Ask { sample_workers, .. }] = &asks[..] else { panic!("two, not {asks:?}") };
    assert_eq!(*sample_workers, Some(tape(2)), "the workers of rank 2 grow");
    for rank in 0..4 {
        aligned(&mut captures, 2 * SECOND, "cap-1", rank, 700);
    }
    let manifest = only_manifest(&mut captures);
    assert!(manifest.complete);
    assert_eq!((manifest.aligned(), manifest.missing().count(), manifest.step), (4, 0, 700));
    assert_eq!((manifest.closed_ns, manifest.reason), (2 * SECOND, reason));
    assert_eq!(captures.poll_timeout(), None);
}

#[test]
fn the_deadline_closes_a_capture_with_the_missing_ranks() {
    let mut captures = job(4, 700);
    captures.request(0, id("cap-1"), Reason::Manual, None).expect("there are ranks");
    aligned(&mut captures, 1, "cap-1", 0, 700);
    // The snapshot comes first, its answer second.
    captures.snapshot_stored(1, &id("cap-1"), &tape(1), 10, [1; 32]);
    captures.answer(1, answer("cap-1", tape(1), Outcome::Late, 720, 10));
    // A snapshot is promised and does not come.
    captures.answer(1, answer("cap-1", tape(2), Outcome::Aligned, 700, 10));
    // One came, and the disk was full.
    captures.snapshot_failed(&id("cap-1"), &tape(3), "No space left on device");
    captures.handle_timeout(30 * SECOND - 1);
    assert!(captures.in_flight().is_some());
    captures.handle_timeout(captures.poll_timeout().expect("one is in flight"));
    let manifest = only_manifest(&mut captures);
    assert!(!manifest.complete);
    let outcomes: Vec<Outcome> = manifest.parts.iter().map(|part| part.outcome).collect();
    use Outcome::{Aligned, Late, Unreachable};
    assert_eq!(outcomes, [Aligned, Late, Unreachable, Unreachable]);
    assert_eq!(manifest.parts[2].detail, "its snapshot did not arrive in time");
    let full = "its snapshot came and could not be stored: No space left on device";
    assert_eq!(manifest.parts[3].detail, full);
    // What comes afterwards is dropped.
    assert!(!captures.accepts_snapshot(&id("cap-1"), &tape(2)));
    let dropped = captures.dropped();
    aligned(&mut captures, 31 * SECOND, "cap-1", 2, 700);
    assert_eq!((captures.dropped(), captures.poll()), (dropped + 2, None));
}

#[test]
fn requests_are_joined_spaced_and_checked() {
    let mut captures = Captures::new("job", 0, Limits::default());
    let growth = || Reason::Growth { rank: 0 };
    assert_eq!(captures.request(0, id("a"), growth(), None), Err(Refusal::NoRanks));
    let mut captures = job(2, 700);
    assert_eq!(captures.request(0, id("a"), growth(), None), Ok(id("a")));
    assert_eq!(captures.request(1, id("b"), Reason::Manual, None), Ok(id("a")));
    assert_eq!(captures.request(1, id("b"), Reason::Manual, Some(700)), Ok(id("a")));
    let busy = Refusal::Busy { id: id("a"), step: 700 };
    assert_eq!(captures.request(1, id("b"), Reason::Manual, Some(600)), Err(busy));
    captures.close(2);
    let wait_ns = 50 * SECOND;
    let soon = captures.request(10 * SECOND, id("b"), growth(), None);
    assert_eq!(soon, Err(Refusal::TooSoon { wait_ns }));
    let not_reached = Refusal::NotReached { step: 900, newest: 700 };
    assert_eq!(captures.request(10, id("b"), Reason::Manual, Some(900)), Err(not_reached));
    assert_eq!(captures.request(10, id("b"), Reason::Manual, Some(600)), Ok(id("b")));
    captures.close(11);
    assert_eq!(captures.request(61 * SECOND, id("c"), growth(), None), Ok(id("c")));
}

#[test]
fn a_death_gets_its_own_capture() {
    let mut captures = job(2, 700);
    let (full, oom) = (Reason::Reserved { rank: 1 }, Reason::OutOfMemory { rank: 1 });
    assert_eq!(captures.request(0, id("a"), full, None), Ok(id("a")));
    let refused = captures.request(1, id("b"), oom.clone(), None);
    assert!(matches!(refused, Err(Refusal::TooSoon { .. })), "{refused:?}");
    captures.close(2);
    assert_eq!(captures.request(3, id("b"), oom, None), Ok(id("b")));
    // A death after it is shown by it.
    assert_eq!(captures.request(4, id("c"), Reason::Death { rank: 0 }, None), Ok(id("b")));
}

#[test]
fn a_rank_alone_takes_nothing_of_the_others() {
    let mut captures = job(4, 700);
    let (evil, oom) = (Reason::Death { rank: 3 }, Reason::Death { rank: 0 });
    assert_eq!(captures.request_alone(0, id("a"), evil.clone(), 3), Ok(id("a")));
    let Some(Action::Ask { node, tapes, .. }) = captures.poll() else { panic!() };
    assert_eq!((node.as_str(), tapes, captures.poll()), ("node-1", vec![tape(3)], None));
    let other = captures.request_alone(1, id("b"), oom.clone(), 0);
    assert!(matches!(other, Err(Refusal::TooSoon { .. })), "{other:?}");
    // It gives way, has taken none of the time, and is no answer to the others.
    let growth = Reason::Growth { rank: 0 };
    assert_eq!(captures.request(2, id("c"), growth, None), Ok(id("c")));
    assert_eq!(captures.in_flight().map(|all| all.parts.len()), Some(4));
    let Some(Action::Close(manifest)) = captures.poll() else { panic!() };
    assert_eq!((manifest.id, manifest.parts.len()), (id("a"), 1));
    assert_eq!(captures.request_alone(3, id("d"), Reason::Growth { rank: 3 }, 3), Ok(id("c")));
}

#[test]
fn a_routine_capture_keeps_no_other_waiting() {
    let mut captures = job(2, 700);
    assert_eq!(captures.request(0, id("a"), Reason::Baseline, None), Ok(id("a")));
    captures.close(1);
    let growth = Reason::Growth { rank: 0 };
    assert_eq!(captures.request(SECOND, id("b"), growth, None), Ok(id("b")));
    captures.close(SECOND + 1);
    let soon = captures.request(2 * SECOND, id("c"), Reason::Baseline, None);
    assert_eq!(soon, Err(Refusal::TooSoon { wait_ns: 59 * SECOND }));
}

#[test]
fn an_agent_that_comes_back_is_asked_again() {
    let mut captures = job(4, 700);
    captures.agent_lost(0, "node-1");
    captures.request(0, id("a"), Reason::Manual, None).expect("there are ranks");
    assert_eq!(drain(&mut captures).len(), 1);
    captures.agent_back(5 * SECOND, "node-1");
    let asks = drain(&mut captures);
    let [Action::Ask { node, tapes, deadline_ns, .. }] = &asks[..] else {
        panic!("one question, not {asks:?}")
    };
    assert_eq!((node.as_str(), tapes.len(), *deadline_ns), ("node-1", 2, 25 * SECOND));
}

#[test]
fn a_stored_snapshot_counts_when_its_agent_was_gone_before_it_could_answer() {
    let stored = |captures: &mut Captures, promised: Option<[u8; 32]>| {
        captures.request(0, id("a"), Reason::Manual, None).expect("there are ranks");
        captures.snapshot_stored(1, &id("a"), "tape", 10, [7; 32]);
        captures.agent_lost(2, "node");
        captures.agent_back(3, "node");
        let answer = answer("a", "tape", Outcome::Aligned, 700, 10);
        captures.answer(4, Part { hash: promised, ..answer });
        drain(captures).into_iter().any(|action| matches!(action, Action::Close(_)))
    };
    let one = || {
        let mut captures = Captures::new("job", 0, Limits::default());
        captures.rank_up((0, "tape"), "node");
        captures.rank_progress((0, "tape"), 700, 1);
        captures
    };
    assert!(stored(&mut one(), Some([7; 32])));
    // The agent was restarted and has another snapshot: that one is wanted.
    let mut captures = one();
    assert!(!stored(&mut captures, Some([8; 32])));
    assert!(captures.accepts_snapshot(&id("a"), "tape"));
    captures.snapshot_stored(5, &id("a"), "tape", 10, [9; 32]);
    captures.snapshot_stored(6, &id("a"), "tape", 10, [8; 32]);
    assert_eq!(only_manifest(&mut captures).parts[0].hash, Some([8; 32]));
    // It is restarted again before that snapshot came, and has a third one.
    let mut captures = one();
    assert!(!stored(&mut captures, Some([8; 32])));
    let answer = answer("a", "tape", Outcome::Aligned, 700, 10);
    captures.answer(5, Part { hash: Some([9; 32]), ..answer });
    captures.snapshot_stored(6, &id("a"), "tape", 10, [8; 32]);
    assert!(captures.in_flight().is_some());
    captures.snapshot_stored(6, &id("a"), "tape", 10, [9; 32]);
    assert_eq!(only_manifest(&mut captures).parts[0].hash, Some([9; 32]));
}

#[test]
fn a_dead_tape_is_asked_but_does_not_replace_a_living_one() {
    let mut captures = job(2, 700);
    captures.rank_down((1, &tape(1)), 700);
    captures.rank_up((1, "tape-1-again"), "node-0");
    captures.rank_progress((1, "tape-1-again"), 695, 1);
    // The agent reconnects and repeats what it knows, in any order.
    captures.rank_up((1, "tape-1-again"), "node-0");
    captures.rank_up((1, &tape(1)), "node-0");
    captures.request(4, id("a"), Reason::Manual, None).expect("there are ranks");
    let manifest = captures.in_flight().expect("just asked");
    let tapes: Vec<&str> = manifest.parts.iter().map(|part| part.tape_id.as_str()).collect();
    assert_eq!((tapes, manifest.step), (["tape-0", "tape-1-again"].to_vec(), 695));
}

#[test]
fn a_capture_survives_its_coordinator() {
    let mut captures = job(4, 700);
    captures.request(0, id("a"), Reason::Manual, None).expect("there are ranks");
    aligned(&mut captures, 1, "a", 0, 700);
    let saved = captures.in_flight().expect("one is in flight");
    let mut captures = Captures::new("job", 0, Limits::default());
    assert!(captures.resume(7, &saved) && !captures.resume(7, &saved));
    let asked: usize = drain(&mut captures)
        .iter()
        .map(|action| match action {
            Action::Ask { tapes, .. } => tapes.len(),
            Action::Close(_) => 0,
        })
        .sum();
    assert_eq!(asked, 3);
    for rank in 1..4 {
        aligned(&mut captures, 8, "a", rank, 700);
    }
    assert!(only_manifest(&mut captures).complete);
}

#[test]
fn the_silent_are_asked_again_and_the_promising_are_not() {
    let mut captures = job(4, 700);
    captures.request(0, id("a"), Reason::Manual, None).expect("there are ranks");
    assert_eq!(drain(&mut captures).len(), 2);
    captures.answer(1, answer("a", tape(0), Outcome::Aligned, 700, 10));
    assert_eq!(captures.poll_timeout(), Some(10 * SECOND));
    captures.handle_timeout(10 * SECOND);
    let asked: Vec<(String, Vec<String>, u64)> = drain(&mut captures)
        .into_iter()
        .filter_map(|action| match action {
            Action::Ask { node, tapes, deadline_ns, .. } => Some((node, tapes, deadline_ns)),
            Action::Close(_) => None,
        })
        .collect();
    let expected = [
        ("node-0".to_string(), [tape(1)].to_vec(), 20 * SECOND),
        ("node-1".to_string(), [tape(2), tape(3)].to_vec(), 20 * SECOND),
    ];
    assert_eq!(asked, expected);
    // The promised snapshot still counts.
    captures.snapshot_stored(11 * SECOND, &id("a"), &tape(0), 10, [0; 32]);
    captures.handle_timeout(30 * SECOND);
    assert_eq!(only_manifest(&mut captures).aligned(), 1);
}

#[test]
fn a_shell_that_dies_again_and_again_does_not_keep_a_capture_open() {
    let mut captures = job(2, 700);
    captures.request(100 * SECOND, id("a"), Reason::Manual, None).expect("there are ranks");
    let saved = captures.in_flight().expect("one is in flight");
    let check = |back_s: u64, expected_s: Option<u64>| {
        let mut captures = Captures::new("job", 0, Limits::default());
        assert!(captures.resume(back_s * SECOND, &saved));
        let flight = captures.in_flight();
        assert_eq!(flight.is_some(), expected_s.is_some(), "back at {back_s} s");
        let Some(expected_s) = expected_s else {
            assert!(!only_manifest(&mut captures).complete);
            return;
        };
        captures.handle_timeout(expected_s * SECOND - 1);
        assert!(captures.in_flight().is_some(), "back at {back_s} s: closed too early");
        captures.handle_timeout(expected_s * SECOND);
        let manifest = only_manifest(&mut captures);
        assert_eq!(manifest.requested_ns, 100 * SECOND);
    };
    check(101, Some(130));
    check(120, Some(135));
    check(140, Some(155));
    check(150, Some(160));
    check(160, None);
    check(9_000, None);
}

#[test]
fn captures_of_an_earlier_shell_count() {
    let mut captures = job(2, 700);
    let growth = || Reason::Growth { rank: 0 };
    captures.request(100 * SECOND, id("a"), growth(), None).expect("there are ranks");
    (0..2).for_each(|rank| aligned(&mut captures, 101 * SECOND, "a", rank, 700));
    let closed = only_manifest(&mut captures);
    let mut again = job(2, 700);
    again.closed_before(&closed);
    let soon = again.request(110 * SECOND, id("b"), growth(), None);
    assert_eq!(soon, Err(Refusal::TooSoon { wait_ns: 50 * SECOND }));
    again.request(160 * SECOND, id("b"), growth(), None).expect("a minute has passed");
    let limits = Limits { bytes_max: 20, interval_ns_min: 0, ..Limits::default() };
    let mut again = Captures::new("job", 0, limits);
    again.rank_up((0, "tape"), "node");
    // One of a rank alone keeps no capture of the job waiting.
    again.closed_before(&Manifest { is_alone: true, ..closed.clone() });
    again.request(101 * SECOND, id("b"), growth(), None).expect("nothing is spent");
    again.closed_before(&Manifest { parts: closed.parts[..1].to_vec(), ..closed.clone() });
    again.closed_before(&closed);
    again.close(101 * SECOND);
    let over = again.request(101 * SECOND, id("c"), growth(), None);
    assert!(matches!(over, Err(Refusal::OverBudget { spent_bytes: 30, .. })), "{over:?}");
}

#[test]
fn bytes_are_a_budget() {
    let limits = Limits { bytes_max: 100, interval_ns_min: 0, ..Limits::default() };
    let mut captures = Captures::new("job", 0, limits);
    captures.rank_up((0, "tape"), "node");
    captures.rank_progress((0, "tape"), 700, 1);
    let growth = || Reason::Growth { rank: 0 };
    let death = || Reason::Death { rank: 0 };
    let take = |captures: &mut Captures, now_ns, name: &str, reason, bytes| {
        captures.request(now_ns, id(name), reason, None)?;
        captures.answer(now_ns, answer(name, "tape", Outcome::Aligned, 700, bytes));
        captures.snapshot_stored(now_ns, &id(name), "tape", bytes, [0; 32]);
        assert!(only_manifest(captures).complete);
        Ok(())
    };
    let over = |spent_bytes, wait_s: u64| {
        Err(Refusal::OverBudget { spent_bytes, wait_ns: wait_s * SECOND + 1 })
    };
    assert_eq!(take(&mut captures, 0, "a", growth(), 99), Ok(()));
    assert_eq!(take(&mut captures, 0, "b", growth(), 60), Ok(()));
    assert_eq!(take(&mut captures, 0, "c", growth(), 60), over(159, 60 * 36));
    assert_eq!(take(&mut captures, 0, "d", death(), 60), Ok(()));
    assert_eq!(take(&mut captures, 0, "e", death(), 60), over(219, 20 * 36));
    assert_eq!(take(&mut captures, 0, "f", Reason::Manual, 1), Ok(()));
    // A hundred bytes leak away in an hour.
    assert_eq!(take(&mut captures, 3600 * SECOND, "g", growth(), 1), over(120, 21 * 36));
    assert_eq!(take(&mut captures, (3600 + 21 * 36) * SECOND, "h", growth(), 1), Ok(()));
}

/// An event of the cluster.
#[derive(Clone, Debug)]
enum Happening {
    Request(Option<u64>),
    Progress(u32, u64),
    Down(u32),
    Up(u32, u8),
    Lost(u32),
    Back(u32),
    Answer(u32, u8, u64, bool),
    Snapshot(u32, bool),
    Wait(u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    let rank = || 0..6_u32;
    prop_oneof![
        2 => proptest::option::of(0..1_000_u64).prop_map(Happening::Request),
        2 => (rank(), 0..1_000_u64).prop_map(|(rank, step)| Happening::Progress(rank, step)),
        1 => rank().prop_map(Happening::Down),
        1 => (rank(), 0..3_u8).prop_map(|(rank, life)| Happening::Up(rank, life)),
        1 => (0..3_u32).prop_map(Happening::Lost),
        1 => (0..3_u32).prop_map(Happening::Back),
        6 => (rank(), 0..5_u8, 0..3_u64, any::<bool>())
            .prop_map(|(rank, kind, off, stale)| Happening::Answer(rank, kind, off, stale)),
        6 => (rank(), any::<bool>()).prop_map(|(rank, stale)| Happening::Snapshot(rank, stale)),
        2 => (0..20 * SECOND).prop_map(Happening::Wait),
    ]
}

/// Plays the happenings and returns every manifest with the time at which it had to be there.
fn play(happenings: &[Happening]) -> Result<(), TestCaseError> {
    let mut captures = job(6, 500);
    let (mut now_ns, mut accepted, mut closed) = (0, Vec::new(), Vec::new());
    for (number, happening) in happenings.iter().enumerate() {
        let current = accepted.last().cloned().unwrap_or_else(|| id("none"));
        let step = captures.in_flight().map_or(0, |manifest| manifest.step);
        match happening.clone() {
            Happening::Request(step) => {
                let fresh = id(&format!("cap-{number}"));
                let result = captures.request(now_ns, fresh.clone(), Reason::Manual, step);
                if result == Ok(fresh.clone()) {
                    accepted.push(fresh);
                }
            }
            Happening::Progress(rank, step) => {
                captures.rank_progress((rank, &tape(rank)), step, step / 2);
            }
            Happening::Down(rank) => captures.rank_down((rank, &tape(rank)), 0),
            Happening::Up(rank, life) => {
                captures.rank_up((rank, &format!("tape-{rank}-{life}")), "node-0");
            }
            Happening::Lost(node) => captures.agent_lost(now_ns, &format!("node-{node}")),
            Happening::Back(node) => captures.agent_back(now_ns, &format!("node-{node}")),
            Happening::Answer(rank, kind, off, stale) => {
                let outcomes = [Outcome::Aligned, Outcome::Aligned, Outcome::Late];
                let outcome = *outcomes.get(kind as usize).unwrap_or(&Outcome::Behind);
                let named = if stale { "cap-stale" } else { &current.0 };
                let bytes = u64::from(kind) * 100;
                captures.answer(now_ns, answer(named, tape(rank), outcome, step + off, bytes));
            }
            Happening::Snapshot(rank, stale) => {
                let named = if stale { id("cap-stale") } else { current };
                captures.snapshot_stored(now_ns, &named, &tape(rank), 100, [rank as u8; 32]);
            }
            Happening::Wait(wait_ns) => {
                now_ns += wait_ns;
                captures.handle_timeout(now_ns);
            }
        }
        let limit_ns = Limits::default().deadline_ns;
        for action in drain(&mut captures) {
            match action {
                Action::Close(manifest) => closed.push((now_ns, manifest)),
                Action::Ask { deadline_ns, .. } => prop_assert!(deadline_ns <= limit_ns),
            }
        }
        prop_assert!(accepted.len() - closed.len() <= 1, "one in flight at most");
        prop_assert_eq!(captures.poll_timeout().is_some(), accepted.len() > closed.len());
    }
    while let Some(due_ns) = captures.poll_timeout() {
        prop_assert!(due_ns > now_ns || happenings.is_empty(), "time moves on");
        now_ns = due_ns;
        captures.handle_timeout(now_ns);
        let manifests = drain(&mut captures).into_iter().filter_map(|action| match action {
            Action::Close(manifest) => Some((now_ns, manifest)),
            Action::Ask { .. } => None,
        });
        closed.extend(manifests);
    }
    let names: Vec<CaptureId> = closed.iter().map(|(_, manifest)| manifest.id.clone()).collect();
    prop_assert_eq!(names, accepted, "one manifest for each accepted request, in order");
    for (_, manifest) in &closed {
        for part in manifest.parts.iter().filter(|part| part.outcome == Outcome::Aligned) {
            prop_assert_eq!(part.step, manifest.step);
            prop_assert!(part.hash.is_some(), "aligned means stored");
        }
        prop_assert_eq!(manifest.complete, manifest.missing().count() == 0);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_events_ends_in_one_manifest(
        happenings in proptest::collection::vec(happening(), 1..120),
    ) {
        play(&happenings)?;
    }
}
