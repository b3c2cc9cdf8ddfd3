//! Failures that the states of ranks tell: a request for memory that failed, a process that died.
//!
//! They are reported beside growth, which is often their cause.

use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use super::aligned::Aligned;
use super::candidates::{Candidate, Finder, trend};
use super::history::ProcessState;
use crate::detector::{Layer, Scope};
use crate::diagnosis::evidence::context::{Activity, Fate, TraceGrowth};
use crate::diagnosis::words::{bytes, plural};
use crate::identity::end::End;
use crate::snapshot::failed_request::FailedRequest;

/// Failures that are reported whatever else is found.
pub(super) const FAILURES: [Finder; 2] = [refused, ended];

/// A request that failed.
pub(super) fn refused(all: &[Aligned<'_>]) -> Option<Candidate> {
    let at = all.iter().position(|one| request_of(one).is_some())?;
    let one = all.get(at)?;
    let request = request_of(one)?;
    let mut against = Vec::new();
    if one.past().refused_count > 1 {
        let count = plural(one.past().refused_count, "request");
        against.push(format!("{count} failed; this is the last"));
    }
    if request.device_free.is_none() {
        against.push("it is not known how much the device had free".to_string());
    }
    let rate = trend(one, Layer::Peak).map(|trend| {
        let (rate, steps) = (bytes(trend.bytes_per_step), plural(trend.steps, "step"));
        format!("each of the last {steps} needed about {rate} more than the one before")
    });
    let trace =
        TraceGrowth { against, evidence: rate.into_iter().collect(), ..TraceGrowth::default() };
    let ranks = alloc::vec![one.rank];
    let mut candidate = Candidate::new(all, at, (Layer::Process, Scope::OneRank), ranks, trace);
    candidate.growth.last_step = request.step;
    candidate.context.request_failed = true;
    candidate.context.fates = fates(all);
    candidate.request = Some(request);
    Some(candidate)
}

/// The last request that failed on this device: of its trace, or, where the rank has not gone on
/// since, after the state that is shown.
fn request_of(one: &Aligned<'_>) -> Option<FailedRequest> {
    let later = one.history.rank.failed_request.as_ref();
    let later = later.filter(|request| request.device == one.device.state.device);
    one.past().refused.last().map(|refused| &refused.request).or(later).cloned()
}

/// A process that died. The failed request of a rank tells its death, too.
pub(super) fn ended(all: &[Aligned<'_>]) -> Option<Candidate> {
    let fates = fates(all);
    let died = |one: &Aligned<'_>| {
        let own = fates.iter().find(|fate| fate.rank == one.rank);
        let end = own.and_then(|fate| Some((fate.end?.0, fate.exit_status)));
        let is_death = end.is_some_and(|(end, status)| end.is_death() && !end.was_asked(status));
        let primary = one.history.primary_device().map(|of| of.state.device);
        is_death && primary == Some(one.device.state.device) && request_of(one).is_none()
    };
    let at = all.iter().position(died)?;
    let one = all.get(at)?;
    let ranks = all.iter().filter(|one| died(one)).map(|one| one.rank).collect();
    let mut trace = TraceGrowth::default();
    if one.history.process == ProcessState::Unsealed {
        trace.evidence.push("its tape is not sealed and has no writer".to_string());
    }
    let mut candidate = Candidate::new(all, at, (Layer::Process, Scope::OneRank), ranks, trace);
    candidate.growth.last_step = one.history.rank.step;
    candidate.context.fates = fates;
    Some(candidate)
}

/// What became of the ranks, as far as their sources tell. A tape that is not sealed shows a death
/// only beside a process that lives: copies of the tapes of a running job look the same.
fn fates(all: &[Aligned<'_>]) -> Vec<Fate> {
    let is_live = all.iter().any(|one| one.history.process == ProcessState::Alive);
    let fate = |one: &Aligned<'_>| {
        let (end, exit_status) = match one.history.process {
            ProcessState::Unsealed if is_live => (Some(End::Killed), None),
            ProcessState::Ended(end, status) => (Some(end), status),
            ProcessState::Unknown | ProcessState::Alive | ProcessState::Unsealed => (None, None),
        };
        let (rank, step) = (one.rank, one.history.rank.step);
        // Of the time of the end only that is known: after this state.
        let end = end.map(|end| (end, one.history.rank.wall_ns));
        Fate { rank, end, exit_status, pid: None, step, activity: Activity::default() }
    };
    all.iter().map(fate).collect()
}
