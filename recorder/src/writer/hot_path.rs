//! The hot path: reports of PyTorch's caching allocator, under its device mutex.
//!
//! ```text
//! hooks/c10.rs ──▶ report ──▶ stacks/interner.rs  the stack, as a number
//!                        └──▶ Lane::alloc         the event and the live table
//! ```
//!
//! Each block handed out or taken back is reported once ([`report`]). Where the trace tracker is
//! attached, [`traced`] keeps its entry for the report that follows (`trace.rs`). Nothing here
//! waits, allocates or takes the GIL.

use memtape_tape::event::Kind;
use memtape_tape::layout::hooks;
use memtape_tape::write::{Grant, Lane, Totals};

use crate::host::clock;
use crate::writer::state::{Recorder, recording};
use crate::writer::trace::{Traced, Traces};

/// `TraceEntry::Action` (c10/cuda/CUDACachingAllocator.h).
mod action {
    pub(super) const ALLOC: u8 = 0;
    pub(super) const FREE_REQUESTED: u8 = 1;
    pub(super) const FREE_COMPLETED: u8 = 2;
    pub(super) const SEGMENT_ALLOC: u8 = 3;
    pub(super) const SEGMENT_FREE: u8 = 4;
    pub(super) const SEGMENT_MAP: u8 = 5;
    pub(super) const SEGMENT_UNMAP: u8 = 6;
    pub(super) const SNAPSHOT: u8 = 7;
    pub(super) const OOM: u8 = 8;
}

/// A report of PyTorch: a block of `size` bytes was handed out at `address` (`size` negative: taken
/// back), after which the device's allocator holds `totals`.
#[derive(Clone, Copy)]
pub(crate) struct Report {
    pub(crate) address: u64,
    pub(crate) size: i64,
    pub(crate) totals: Totals,
    pub(crate) device: u8,
}

/// Work left to the caller of [`report`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Next {
    /// Nothing.
    Done,
    /// The trace tracker was requested and has no entry for this block: attach it.
    AttachTracker,
}

/// Records a report.
///
/// Between two calls PyTorch's own code has filled the instruction cache: the cost is the number of
/// cache lines of code, not the work in them. So everything rare is in functions of its own.
#[inline(always)]
pub(crate) fn report(recorder: &Recorder, report: Report) -> Next {
    let Report { address, size, totals, device } = report;
    let Some(lane) = recorder.allocator_lane(device) else {
        report_shared(recorder, report);
        return Next::Done;
    };
    if recorder.wants_detail() {
        return report_detailed(recorder, lane, report);
    }
    if size >= 0 {
        let stack = recorder.interner().current();
        let grant = Grant { address, size: size as u64, stack, ..Grant::default() };
        lane.alloc(clock::mono_ns(), grant, totals);
    } else {
        lane.free(clock::mono_ns(), address, size.unsigned_abs(), totals);
    }
    Next::Done
}

/// Records a report, with the tracker's entry for the same event.
#[inline(never)]
fn report_detailed(recorder: &Recorder, lane: &Lane<'_>, report: Report) -> Next {
    let Report { address, size, totals, device } = report;
    let traces = recorder.traces(device);
    let bytes = size.unsigned_abs();
    if size < 0 {
        let is_free = || traces.is_none_or(|traces| traces.take_freed(address));
        if recorder.is_traced() && !is_free() {
            lane.free_deferred(clock::mono_ns(), address, bytes, totals);
        } else {
            lane.free(clock::mono_ns(), address, bytes, totals);
        }
        return Next::Done;
    }
    let stack = recorder.interner().current();
    let mut grant = Grant { address, size: bytes, stack, ..Grant::default() };
    let said = traces.map(|traces| traces.take_handed_out(address));
    if let Some(Some((requested, stream_pool))) = said {
        (grant.requested, grant.owner) = (requested, stream_pool);
    }
    lane.alloc(clock::mono_ns(), grant, totals);
    if said == Some(None) { Next::AttachTracker } else { Next::Done }
}

/// Records a report for a lane that is not the allocator's alone, because another allocator used it
/// first; or for a device without a lane.
#[cold]
fn report_shared(recorder: &Recorder, report: Report) {
    let Report { address, size, totals, device } = report;
    let stack = if size >= 0 { recorder.interner().current() } else { 0 };
    recorder.write_device(device, |lane| {
        let bytes = size.unsigned_abs();
        if size >= 0 {
            let grant = Grant { address, size: bytes, stack, ..Grant::default() };
            lane.alloc(clock::mono_ns(), grant, totals);
        } else {
            lane.free(clock::mono_ns(), address, bytes, totals);
        }
    });
}

/// Records a request for `size` bytes that failed for good.
pub(crate) fn out_of_memory(recorder: &Recorder, size: u64, totals: Totals, device: u8) {
    let stack = recorder.interner().current();
    let free_bytes = recorder.traces(device).map_or(0, Traces::take_free_bytes);
    let grant = Grant { size, requested: free_bytes, stack, ..Grant::default() };
    let write = |lane: &Lane<'_>| lane.failure(clock::mono_ns(), Kind::Oom, grant, totals);
    match recorder.allocator_lane(device) {
        Some(lane) => write(lane),
        None => recorder.write_device(device, |lane| write(lane)),
    }
    recorder.note_hook(hooks::OUT_OF_MEMORY);
}

/// Takes an entry of the tracker, under the device's mutex.
pub(crate) fn traced(entry: &Traced) {
    let Some(recorder) = recording() else { return };
    let Some(traces) = recorder.traces(entry.device) else { return };
    match entry.action {
        action::ALLOC => traces.hand_out(entry, stream_pool(recorder, traces, entry)),
        action::FREE_REQUESTED => traces.take_back(entry.address),
        action::FREE_COMPLETED if traces.set_freed(entry.address) => {}
        action::OOM => traces.set_free_bytes(entry.address),
        _ => traced_apart(recorder, traces, entry),
    }
}

/// Records entries without a report of their own: segments, snapshots, completed pending frees.
#[cold]
fn traced_apart(recorder: &Recorder, traces: &Traces, entry: &Traced) {
    let Some(lane) = recorder.allocator_lane(entry.device) else { return };
    let now_ns = clock::mono_ns();
    let kind = match entry.action {
        action::FREE_COMPLETED => return lane.free_completed(now_ns, entry.address),
        action::SNAPSHOT => return lane.mark(now_ns, Kind::Snapshot, entry.size, 0),
        action::SEGMENT_ALLOC => Kind::SegmentAlloc,
        action::SEGMENT_FREE => Kind::SegmentFree,
        action::SEGMENT_MAP => Kind::SegmentMap,
        action::SEGMENT_UNMAP => Kind::SegmentUnmap,
        _ => return,
    };
    let Traced { address, size, .. } = *entry;
    let owner = stream_pool(recorder, traces, entry);
    let stack = recorder.interner().current();
    lane.segment(now_ns, kind, Grant { address, size, requested: size, owner, stack });
}

/// The index of the entry's stream and pool.
fn stream_pool(recorder: &Recorder, traces: &Traces, entry: &Traced) -> u16 {
    traces.stream_pool(entry, || recorder.interner().stream_pool(entry.stream, entry.pool))
}
