//! The classes that do not live in PyTorch's allocator: other memory of the device, memory of the
//! host, a rank out of step, a gap in what was recorded.

use alloc::format;
use alloc::string::String;

use super::super::case::Case;
use super::super::circumstances::Readings;
use super::super::ground::Ground;
use super::super::words::{bytes, count};
use super::hearing::Hearing;
use crate::snapshot::origin::Origin;

const NOTHING: String = String::new();

/// A growth of which so much was not recorded cannot be told: one part of this many.
const MISSING_DIVISOR: u64 = 4;

pub(in crate::diagnosis) fn non_torch(case: &Case<'_>) -> Hearing {
    let is_outside = case.ground.is_outside();
    let (before, now) = (&case.around.before, &case.around.now);
    let (was, is, name) = match case.ground {
        Ground::Other => (before.other, now.other, "memory of other processes on the device"),
        _ => (before.non_torch, now.non_torch, "memory of the process beside PyTorch's"),
    };
    let is_off = case.ground.is_on_host() || case.ground == Ground::Progress;
    let inside = if is_off { NOTHING } else { inside_said(case) };
    let mut heard = Hearing::default().must(Some(is_outside), NOTHING, inside).helps(
        was.zip(is).filter(|_| is_outside).map(|_| true),
        grew(name, was, is),
        NOTHING,
    );
    if !is_outside {
        return heard;
    }
    heard = with_lines(heard, case);
    for of in case.outside.iter().filter(|of| of.origin.is_on_device() && of.bytes > 0) {
        // The allocator takes its own segments with `cudaMalloc` or from the driver.
        if !matches!(of.origin, Origin::CudaMalloc | Origin::DriverVmm) {
            let pieces = match of.count {
                1 => "one piece".into(),
                pieces => format!("{} pieces", count(pieces)),
            };
            let said = format!("{} holds {} in {pieces}", of.origin.name(), bytes(of.bytes));
            heard = heard.helps(Some(true), said, NOTHING);
        }
    }
    let contexts = case.around.now.contexts.filter(|&contexts| contexts > 1);
    heard.helps(
        contexts.map(|_| true),
        contexts.map_or(NOTHING, |contexts| {
            format!("{contexts} processes of the job have a context on this device")
        }),
        NOTHING,
    )
}

/// Who took it, and what nobody did.
fn with_lines(mut heard: Hearing, case: &Case<'_>) -> Hearing {
    let Some(outside) = &case.elsewhere else { return heard };
    for said in outside.evidence(case) {
        heard = heard.helps(Some(true), said, NOTHING);
    }
    for said in outside.against() {
        heard = heard.helps(Some(false), NOTHING, said);
    }
    heard
}

fn inside_said(case: &Case<'_>) -> String {
    let (before, now) = (&case.around.before, &case.around.now);
    match Readings::grown(before.non_torch, now.non_torch) {
        Some(grown) => {
            format!("memory of the process beside PyTorch's grew by {} only", bytes(grown))
        }
        None => NOTHING,
    }
}

pub(in crate::diagnosis) fn host(case: &Case<'_>) -> Hearing {
    let is_host = case.ground.is_on_host();
    let (before, now) = (&case.around.before, &case.around.now);
    let mut heard = Hearing::default().must(Some(is_host), NOTHING, NOTHING);
    if !is_host {
        return heard;
    }
    heard = with_lines(heard, case);
    let parts = [
        ("anonymous memory of the process", before.rss_anon, now.rss_anon),
        ("shared memory", before.shared, now.shared),
        ("pinned memory", before.pinned, now.pinned),
        ("memory of the workers", before.workers, now.workers),
    ];
    for (name, was, is) in parts {
        let grown = Readings::grown(was, is).filter(|&grown| grown > 0);
        heard = heard.helps(grown.map(|_| true), grew(name, was, is), NOTHING);
    }
    let workers = before.worker_count.zip(now.worker_count);
    let said = workers.map_or(NOTHING, |(was, is)| match is.cmp(&was) {
        core::cmp::Ordering::Equal => format!("{is} workers ran the whole time"),
        _ => format!("there were {was} workers and now there are {is}"),
    });
    let limit = now.host_limit.filter(|_| is_host);
    heard.helps(workers.map(|_| true), said, NOTHING).helps(
        limit.map(|_| true),
        limit.map_or(NOTHING, |limit| format!("the cgroup allows {}", bytes(limit))),
        NOTHING,
    )
}

fn grew(name: &str, was: Option<u64>, is: Option<u64>) -> String {
    was.zip(is)
        .map_or(NOTHING, |(was, is)| format!("{name} went from {} to {}", bytes(was), bytes(is)))
}

pub(in crate::diagnosis) fn desynchronised(case: &Case<'_>, leaks: bool) -> Hearing {
    let group = case.desynchronised();
    let known = (group.is_some() || case.knows_collectives()).then_some(group.is_some());
    Hearing::default()
        .must(
            known,
            group.map_or(NOTHING, |group| group.sentence()),
            "its collectives are in step with those of its peers".into(),
        )
        .must_not(
            (leaks && group.is_some()).then_some(true),
            "blocks of all ages stay up to the step of the snapshot, which a rank that waits does \
             not do"
                .into(),
            NOTHING,
        )
}

pub(in crate::diagnosis) fn telemetry(case: &Case<'_>) -> Hearing {
    if case.ground == Ground::Progress {
        let (last, peers) = (case.growth.onset_step, case.growth.last_step);
        let said = format!(
            "its last step is {}, its peers have finished step {}",
            count(last),
            count(peers),
        );
        return Hearing::default().must(Some(true), said, NOTHING);
    }
    let held = case.account.held_bytes;
    let missing = case.allocated.saturating_sub(held);
    let is_short = case.account.incomplete
        && case.ground.is_in_blocks()
        && missing > 0
        && missing.saturating_mul(MISSING_DIVISOR) >= case.growth.grown_bytes;
    let steps = case.around.steps_missing.filter(|&steps| steps > 0);
    let span = case.growth.last_step.saturating_sub(case.growth.onset_step);
    let has_gap = steps.is_some_and(|steps| steps.saturating_mul(MISSING_DIVISOR) >= span);
    let blocks = format!(
        "the allocator counts {} in tensors, the blocks that were recorded hold {}",
        bytes(case.allocated),
        bytes(held),
    );
    Hearing::default()
        .must(Some(is_short || has_gap), NOTHING, NOTHING)
        .helps(is_short.then_some(true), blocks, NOTHING)
        .helps(
            steps.map(|_| has_gap),
            steps.map_or(NOTHING, |steps| {
                format!("{} of {} steps were not recorded", count(steps), count(span))
            }),
            NOTHING,
        )
}
