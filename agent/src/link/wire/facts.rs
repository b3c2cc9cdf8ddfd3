//! The facts of one rank in a report.

use memtape_core::snapshot::OutsideUse;
use memtape_core::tape::layout::Clock;
use memtape_core::tape::read::DeviceTotals;
use memtape_core::tape::read::Status;
use memtape_proto::readings::{Cgroup, RankHost, Workers};
use memtape_proto::v1;

use super::RankReport;
use crate::node::process::Memory;

/// Facts of one tape about its rank at one point in time, for a report.
#[derive(Clone, Debug)]
pub(crate) struct RankFacts<'a> {
    /// Identity of the tape.
    pub(crate) tape_id: &'a str,
    /// Status of the tape.
    pub(crate) status: &'a Status,
    /// Unix time of the last step's end.
    pub(crate) step_wall_ns: i64,
    /// Oldest step that can be rewound to.
    pub(crate) oldest_step: u64,
    /// Host facts of the process; none when the process is gone.
    pub(crate) host: Option<HostFacts>,
    /// Memory held by code other than PyTorch's allocator.
    pub(crate) outside: Vec<OutsideUse>,
}

/// Host facts of a rank's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostFacts {
    /// The process itself.
    pub(crate) memory: Option<Memory>,
    /// The processes below it.
    pub(crate) below: Option<Workers>,
    /// Memory cgroup of the process.
    pub(crate) cgroup: Option<Cgroup>,
    /// Why the memory of a living process cannot be read; empty when it can be.
    pub(crate) missing: &'static str,
}

/// A rank's part of a report, without steps and totals.
pub(crate) fn rank_report(facts: RankFacts) -> RankReport {
    RankReport {
        tape_id: facts.tape_id.to_string(),
        step: facts.status.step,
        step_wall_ns: if facts.status.step > 0 { facts.step_wall_ns } else { 0 },
        oldest_step: facts.oldest_step,
        rss_bytes: facts.host.as_ref().and_then(|host| host.memory?.rss),
        lost: facts.status.lost,
        host: facts.host.map(rank_host),
        outside: facts.outside.iter().map(v1::OutsideUse::from).collect(),
        clock: clock(facts.status.clock).into(),
        ..RankReport::default()
    }
}

/// A device's present totals.
pub(crate) fn device_totals(t: &DeviceTotals, process_bytes: Option<u64>) -> v1::DeviceTotals {
    v1::DeviceTotals {
        device: u32::from(t.device),
        allocated: t.allocated,
        reserved: t.reserved,
        peak_allocated: t.peak_allocated,
        blocks: t.blocks,
        allocs: t.allocs,
        frees: t.frees,
        ooms: t.ooms,
        malloc_failures: t.malloc_failures,
        device_bytes: t.device_bytes,
        process_bytes,
        deferred_bytes: t.deferred,
    }
}

/// Device and last step of each step record.
pub(crate) fn steps_of(report: &RankReport) -> impl ExactSizeIterator<Item = (u8, u64)> {
    let device = |device| u8::try_from(device).unwrap_or(u8::MAX);
    report.steps.iter().map(move |step| (device(step.device), step.last_step))
}

/// Adds the step records of another report, unless the clocks of the two reports differ.
pub(crate) fn add_steps_of(report: &mut RankReport, other: RankReport) {
    if report.clock == other.clock {
        report.steps.extend(other.steps);
    }
}

/// Replaces a report by a later one, with the step records of both that count the same.
pub(crate) fn update(report: &mut RankReport, mut later: RankReport) {
    if report.clock == later.clock {
        later.steps.splice(..0, report.steps.drain(..));
    }
    *report = later;
}

fn clock(clock: Clock) -> v1::Clock {
    match clock {
        Clock::Steps => v1::Clock::Steps,
        Clock::Turns => v1::Clock::Turns,
    }
}

fn rank_host(facts: HostFacts) -> RankHost {
    let HostFacts { memory, below, cgroup, missing } = facts;
    let memory = memory.unwrap_or_default();
    RankHost {
        anon_bytes: memory.anon,
        file_bytes: memory.file,
        shmem_bytes: memory.shmem,
        swap_bytes: memory.swap,
        workers: below,
        cgroup,
        missing: missing.to_string(),
    }
}
