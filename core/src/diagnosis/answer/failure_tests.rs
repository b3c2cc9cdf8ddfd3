//! What is said of ranks that failed.

use super::*;
use crate::detector::{Growth, Layer};
use crate::diagnosis::evidence::context::{Activity, Context, Fate, KnownGrowth, Neighbours};
use crate::snapshot::{Block, DeviceSnapshot, StackUse};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SECOND: i64 = 1_000_000_000;

fn growth(rank: u32) -> Growth {
    Growth {
        rank,
        onset_step: 149,
        detected_step: 149,
        last_step: 149,
        layer: Layer::Process,
        peers: 3,
        ..Growth::default()
    }
}

fn frame(line: u32, function: &str) -> Frame {
    Frame { file: "/app/train.py".into(), line, function: function.into() }
}

/// Rank 2 after step 149: 12 GiB in tensors, of which `keep` holds 8.
fn suspect(request: Option<FailedRequest>) -> RankSnapshot {
    let block =
        |address: u64, size: u64, stack: u32| Block { address, size, stack, ..Block::default() };
    RankSnapshot {
        step: 149,
        devices: vec![DeviceSnapshot {
            allocated: 12 * GIB,
            reserved: 13 * GIB,
            device_bytes: 16 * GIB,
            blocks: vec![block(0, 8 * GIB, 1), block(8 * GIB, 4 * GIB, 2)],
            complete: true,
            ..DeviceSnapshot::default()
        }],
        frames: vec![Frame::default(), frame(7, "keep"), frame(30, "forward")],
        stacks: vec![vec![], vec![1], vec![2]],
        failed_request: request,
        ..RankSnapshot::default()
    }
}

/// A request of 96 MiB in `forward`, with this much in tensors and reserved.
fn request(allocated: u64, reserved: u64) -> FailedRequest {
    FailedRequest {
        step: 149,
        bytes: 96 * MIB,
        stack: 2,
        allocated,
        reserved,
        device_free: Some(50 * MIB),
        uses: vec![StackUse { stack: 1, bytes: 9 * GIB, blocks: 9 }],
        ..FailedRequest::default()
    }
}

fn fate(rank: u32, end: Option<(End, i64)>, step: u64) -> Fate {
    let end = end.map(|(end, seconds)| (end, seconds * SECOND));
    Fate { rank, end, exit_status: None, pid: None, step, activity: Activity::Moving }
}

fn said(suspect: &RankSnapshot, fates: &[Fate], known: Option<KnownGrowth>) -> Diagnosis {
    let context = Context { fates: fates.to_vec(), known_growth: known, ..Context::default() };
    let growth = growth(2);
    Inquiry { growth: &growth, suspect, peers: &[], context: &context, past: None }.diagnose()
}

/// What is said of the others after rank 2 has failed.
fn after(fates: &[Fate]) -> String {
    Aftermath { rank: 2, step: 149, fates }.sentence()
}

#[test]
fn a_killed_rank_is_named_with_what_the_others_did() {
    let killed = Some((End::Killed, 100));
    let alive = [fate(0, None, 150), fate(1, None, 150), fate(2, killed, 149), fate(3, None, 149)];
    let found = said(&suspect(None), &alive, None);
    assert_eq!(
        found.sentence,
        "rank 2 ended without an orderly exit after step 149, with 12 GiB in tensors"
    );
    assert_eq!(after(&alive), "; ranks 0, 1 and 3 live and have finished step 150");
    assert_eq!((found.class, found.pages()), (Class::Died, true));
    assert_eq!(
        found.evidence,
        ["most memory was held by 8 GiB at train.py:7 in keep, 4 GiB at train.py:30 in forward"]
    );
    let earlier = RankSnapshot { step: 140, ..suspect(None) };
    let found = said(&earlier, &alive, None);
    assert!(found.sentence.ends_with(", with 12 GiB in tensors after step 140"), "{found:?}");
}

#[test]
fn what_the_other_ranks_did_is_said() {
    let (killed, later) = (fate(2, Some((End::Killed, 100)), 149), Some((End::Killed, 105)));
    let ended = [fate(0, later, 150), fate(1, later, 150), killed];
    assert_eq!(after(&ended), "; ranks 0 and 1 ended within 5 s after it");
    assert_eq!(after(&[killed, fate(3, None, 900)]), "; rank 3 goes on and has finished step 900");
    let heard = Fate { activity: Activity::Alive, ..fate(3, None, 900) };
    assert_eq!(after(&[killed, heard]), "; rank 3 lives and has finished step 900");
    let does = |rank: u32, activity| Fate { activity, ..fate(rank, None, 150) };
    let (stalled, not_heard) = (Activity::Stalled, Activity::NotHeard);
    assert_eq!(
        after(&[fate(0, later, 150), does(1, stalled), killed, does(3, stalled)]),
        "; rank 0 ended within 5 s after it; ranks 1 and 3 are stalled at step 150"
    );
    let earlier = fate(0, Some((End::Exited, 90)), 20);
    assert_eq!(
        after(&[earlier, killed, does(4, Activity::Behind), does(5, not_heard)]),
        "; rank 0 had ended before; rank 4 is behind at step 150; nothing is heard of rank 5 \
         since step 150"
    );
    // A rank that lives has no aftermath.
    assert_eq!(after(&[fate(2, None, 149), fate(3, None, 900)]), "");
    assert_eq!(after(&[]), "");
}

#[test]
fn a_job_that_was_stopped_as_a_whole_does_not_page() {
    let killed = |rank: u32, seconds: i64| fate(rank, Some((End::Killed, seconds)), 149);
    let both = [killed(0, 100), killed(2, 101)];
    assert!(!said(&suspect(None), &both, None).pages());
    assert_eq!(after(&both), "; its only peer ended at the same time");
    // A launcher ends them one after the other; the first may have ended long before the last.
    let chain = [killed(0, 103), killed(1, 101), killed(2, 99), killed(3, 105)];
    assert!(!said(&suspect(None), &chain, None).pages());
    assert_eq!(after(&chain), "; its 3 peers ended too, all within 6 s");
    let by_signal = chain.map(|of| Fate { exit_status: Some(-9), ..of });
    assert_eq!(after(&by_signal), "; its 3 peers were killed too, all within 6 s");
    let gap = [killed(0, 103), killed(2, 100)];
    assert!(said(&suspect(None), &gap, None).pages());
    // One that was killed for memory of the host was not stopped by a person.
    let oom = fate(2, Some((End::OomKilled, 100)), 149);
    let found = said(&suspect(None), &[killed(0, 100), oom], None);
    assert!(found.pages());
    assert!(found.advice.contains("host"), "{found:?}");
    let failed = Fate { exit_status: Some(1), ..fate(2, Some((End::Failed, 100)), 149) };
    let found = said(&suspect(None), &[killed(0, 104), failed], None);
    assert!(found.sentence.starts_with("rank 2 exited with status 1 after step 149"), "{found:?}");
}

#[test]
fn a_failed_request_says_why_it_did_not_fit() {
    let died = fate(2, Some((End::Failed, 100)), 149);
    let full = suspect(Some(request(15 * GIB, 15 * GIB + 10 * MIB)));
    let found = said(&full, &[died], None);
    assert_eq!(
        found.sentence,
        "rank 2 ran out of memory after step 149: 96 MiB asked for at train.py:30 in forward did \
         not fit, and it exited with an error"
    );
    assert_eq!((found.class, found.pages()), (Class::OutOfMemory, true));
    assert_eq!(found.steps_to_oom, Some(0));
    assert_eq!(found.culprit, Some(frame(30, "forward")));
    assert!(found.evidence[0].starts_with("when it failed, tensors held 15 GiB"), "{found:?}");
    assert!(found.evidence[1].contains("held outside PyTorch's allocator"), "{found:?}");
    assert!(found.evidence[2].contains("9 GiB at train.py:7 in keep"), "{found:?}");
    assert_eq!(found.restart.answer, RestartAnswer::NeededAgain);
    // Enough was free, split into blocks that are too small.
    let split = suspect(Some(request(14 * GIB, 15 * GIB)));
    let found = said(&split, &[died], None);
    let free = "1 GiB of that were free, 50 MiB more on the device, and could not serve 96 MiB";
    assert!(found.evidence[1].starts_with(free), "{found:?}");
    assert!(found.advice.contains("expandable_segments"), "{found:?}");
    // The leak before it is the cause.
    let known = KnownGrowth {
        incident: "inc-1".into(),
        class: Class::Leak,
        culprit: Some(frame(7, "keep")),
        advice: "append(loss.item())".into(),
        growth: Growth {
            layer: Layer::Allocated,
            onset_step: 59,
            last_step: 120,
            grown_bytes: 6 * GIB,
            bytes_per_step: 64 * MIB,
            steps_to_oom: Some(20),
            ..growth(2)
        },
    };
    let found = said(&full, &[died], Some(known));
    let cause = "; a leak at train.py:7 in keep had reached 6 GiB at step 120";
    assert!(found.sentence.ends_with(cause), "{found:?}");
    assert_eq!(found.culprit, Some(frame(7, "keep")));
    assert_eq!(found.restart.gives_back_bytes, Some(6 * GIB));
    assert_eq!((found.restart.lasts_steps, found.restart.ends_after_steps), (Some(96), None));
    let line = "the growth of inc-1 (leak) had reached 6 GiB at step 120".to_string();
    assert!(found.evidence.contains(&line), "{found:?}");
    assert_eq!(found.remedy.saves_bytes, Some(6 * GIB), "as its own incident says");
    let advice = "first mend the growth of inc-1: append(loss.item())";
    assert_eq!(found.advice, advice);
}

#[test]
fn a_request_that_the_rank_survived_is_a_notice() {
    let found = said(&suspect(Some(request(15 * GIB, 15 * GIB))), &[fate(2, None, 149)], None);
    assert_eq!((found.class, found.pages()), (Class::OutOfMemory, false));
    // It went on before the capture: the tape does not show the request any more.
    let growth = growth(2);
    let context = Context { request_failed: true, ..Context::default() };
    let inquiry = Inquiry {
        growth: &growth,
        suspect: &suspect(None),
        peers: &[],
        context: &context,
        past: None,
    };
    let found = inquiry.diagnose();
    assert_eq!((found.class, found.pages()), (Class::OutOfMemory, false));
    assert!(found.sentence.ends_with("failed after step 149, and the rank has gone on"));
    // One of long before its death is not the reason.
    let old = FailedRequest { step: 3, ..request(GIB, GIB) };
    let found = said(&suspect(Some(old)), &[fate(2, Some((End::Killed, 100)), 149)], None);
    assert_eq!(found.class, Class::Died);
}

#[test]
fn nothing_is_needed_to_say_that_a_rank_failed() {
    let found = said(&RankSnapshot::default(), &[], None);
    assert_eq!(found.sentence, "rank 2 ended after step 149");
    assert_eq!(found.against, ["no snapshot of the rank could be had"]);
}

/// What is said of the full device of rank 2, with these neighbours on it.
fn beside(request: FailedRequest, neighbours: Neighbours) -> Diagnosis {
    let died = fate(2, Some((End::Failed, 100)), 149);
    let context = Context { fates: vec![died], neighbours, ..Context::default() };
    let (growth, suspect) = (growth(2), suspect(Some(request)));
    let inquiry =
        Inquiry { growth: &growth, suspect: &suspect, peers: &[], context: &context, past: None };
    inquiry.diagnose()
}

#[test]
fn the_advice_depends_on_who_holds_the_device() {
    let full = || FailedRequest { device_free: Some(0), ..request(GIB, GIB) };
    let near = |ranks: &[u32], ranks_bytes, others_bytes| Neighbours {
        ranks: ranks.to_vec(),
        ranks_bytes,
        others_bytes,
    };
    let found = beside(full(), near(&[1, 3], 840 * MIB, Some(GIB)));
    assert_eq!(found.remedy.cause, Cause::Contexts);
    assert!(found.advice.contains("map_location"), "{found:?}");
    let held = "ranks 1 and 3 of this job hold 840 MiB of 16 GiB on the same device";
    assert!(found.evidence.iter().any(|line| line == held), "{found:?}");
    assert_eq!(found.restart.answer, RestartAnswer::OtherProcesses);
    // Less than was asked for does not help.
    let found = beside(full(), near(&[1], 10 * MIB, Some(GIB)));
    assert_eq!(found.remedy.cause, Cause::Neighbours);
    let found = beside(full(), near(&[1], 10 * MIB, Some(MIB)));
    assert_eq!(found.remedy.cause, Cause::Load);
    let found = beside(request(14 * GIB, 15 * GIB), near(&[], 0, Some(GIB)));
    assert_eq!(found.remedy.cause, Cause::Fragments);
}

#[test]
fn a_request_that_was_caught_is_not_why_a_rank_died() {
    let at = |wall_ns| FailedRequest { wall_ns, ..request(GIB, GIB) };
    let class = |wall_ns| beside(at(wall_ns * SECOND), Neighbours::default()).class;
    assert_eq!(
        (class(30), class(40), class(0)),
        (Class::Died, Class::OutOfMemory, Class::OutOfMemory)
    );
}

#[test]
fn a_signal_is_named_with_what_it_means() {
    let by = |status| {
        let own = Fate { exit_status: Some(status), ..fate(2, Some((End::Killed, 100)), 149) };
        said(&suspect(None), &[own, fate(0, None, 150)], None)
    };
    let crash = by(-11);
    assert!(crash.sentence.starts_with("rank 2 was killed by SIGSEGV after step 149"), "{crash:?}");
    assert!(crash.advice.contains("core dump") && by(-7).advice.contains("/dev/shm"));
    assert!(by(-9).advice.contains("who sent the signal"));
    // A tape that is not sealed shows no signal.
    let found = said(&suspect(None), &[fate(2, Some((End::Killed, 100)), 149)], None);
    assert!(found.advice.contains("what ended the process"), "{found:?}");
    assert!(!found.sentence.contains("signal"), "{found:?}");
}

#[test]
fn a_launcher_that_ends_the_peers_of_a_killed_rank_has_not_stopped_the_job() {
    let of = |rank: u32, millis: i64, status| Fate {
        exit_status: Some(status),
        end: Some((End::Killed, millis * SECOND / 1_000)),
        ..fate(rank, None, 149)
    };
    let answered = [of(0, 1_040, -15), of(1, 1_040, -15), of(2, 1_000, -9)];
    assert!(said(&suspect(None), &answered, None).pages());
    let sentence = after(&answered);
    assert_eq!(sentence, "; its 2 peers were asked to end (SIGTERM) at the same time");
    let asked = [of(0, 1_040, -15), of(1, 31_000, -9), of(2, 1_000, -15)];
    assert!(!said(&suspect(None), &asked, None).pages());
    // Ray kills workers that have finished.
    let finished = [fate(0, Some((End::Exited, 90)), 149), of(2, 100_000, -9)];
    assert!(!said(&suspect(None), &finished, None).pages());
}
