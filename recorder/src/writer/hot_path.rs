//! What PyTorch's caching allocator tells, under its device mutex: the one hot path.
//!
//! Each block handed out or taken back is reported once ([`report`]). Where the trace tracker is
//! attached it speaks just before the report ([`traced`]) and says what the report does not: the
//! size asked for, the stream, the pool, and whether a free is put off. What it says is kept for
//! the report that follows, so that there is one event for each thing that happens.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use memtape_core::tape::event::Kind;
use memtape_core::tape::layout::hooks;
use memtape_core::tape::write::{Grant, Lane, Totals};

use crate::host::clock;
use crate::writer::state::{Guest, awake, note_hook, recording};

/// The part of PyTorch's `TraceEntry` that is the same in all versions.
pub(crate) struct Traced {
    /// `TraceEntry::Action`.
    pub(crate) action: u8,
    /// Device index.
    pub(crate) device: u8,
    /// Device address; for a failed request the device's free bytes.
    pub(crate) address: u64,
    /// Bytes asked for.
    pub(crate) size: u64,
    /// `cudaStream_t`.
    pub(crate) stream: u64,
    /// Memory pool; [`POOL_UNKNOWN`] where this version of PyTorch does not say.
    pub(crate) pool: (u64, u64),
}

/// What [`Traced::pool`] is before torch 2.8.
pub(crate) const POOL_UNKNOWN: (u64, u64) = (u64::MAX, 0);

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

/// What the tracker said of one device and no report has taken up yet. Under the device's mutex.
#[derive(Default)]
pub(crate) struct Traces {
    /// Block that is being handed out, with the size asked for.
    address: AtomicU64,
    requested: AtomicU64,
    place: AtomicU16,
    /// Block that is being taken back; 0 is none.
    freeing: AtomicU64,
    /// That block, if it is free already.
    freed: AtomicU64,
    /// The device's free bytes when a request failed.
    free_bytes: AtomicU64,
    /// The last place (one more, so that 0 is none yet), and what it stands for.
    last_place: AtomicU32,
    last_stream: AtomicU64,
    last_pool: [AtomicU64; 2],
}

/// A block of `size` bytes was handed out at `pointer` (`size` negative: taken back), after which
/// the allocator holds `reserved` bytes, `allocated` of them in use. What PyTorch reports.
///
/// Between two calls of this, PyTorch's own code has filled the instruction cache: what this costs
/// is the lines of code that it runs through, not what they do. So all that is rare is elsewhere.
#[inline(always)]
pub fn report(pointer: u64, size: i64, allocated: u64, reserved: u64, device: u8) {
    let Some(guest) = awake(device) else { return };
    let totals = Totals { allocated, reserved };
    let Some(lane) = guest.allocator_lane(device) else {
        return report_shared(guest, pointer, size, totals, device);
    };
    if guest.wants_detail {
        return report_detailed(guest, lane, pointer, size, totals, device);
    }
    if size >= 0 {
        let stack = guest.interner.current();
        let grant = Grant { address: pointer, size: size as u64, stack, ..Grant::default() };
        lane.alloc(clock::mono_ns(), grant, totals);
    } else {
        lane.free(clock::mono_ns(), pointer, size.unsigned_abs(), totals);
    }
}

/// The same with what the tracker said before.
#[inline(never)]
fn report_detailed(
    guest: &Guest,
    lane: &Lane<'_>,
    pointer: u64,
    size: i64,
    totals: Totals,
    device: u8,
) {
    if size >= 0 {
        let stack = guest.interner.current();
        let mut grant = Grant { address: pointer, size: size as u64, stack, ..Grant::default() };
        guest.add_detail(&mut grant, device);
        lane.alloc(clock::mono_ns(), grant, totals);
    } else if guest.is_traced() && !guest.is_freed(pointer, device) {
        lane.free_deferred(clock::mono_ns(), pointer, size.unsigned_abs(), totals);
    } else {
        lane.free(clock::mono_ns(), pointer, size.unsigned_abs(), totals);
    }
}

/// The lane is not the allocator's alone: another one was in use before it. Or there is none: the
/// device is one too many.
#[cold]
fn report_shared(guest: &Guest, pointer: u64, size: i64, totals: Totals, device: u8) {
    let stack = if size >= 0 { guest.interner.current() } else { 0 };
    guest.write_shared(device, |lane| {
        let bytes = size.unsigned_abs();
        if size >= 0 {
            let grant = Grant { address: pointer, size: bytes, stack, ..Grant::default() };
            lane.alloc(clock::mono_ns(), grant, totals);
        } else {
            lane.free(clock::mono_ns(), pointer, bytes, totals);
        }
    });
}

/// A request failed for good.
pub(crate) fn out_of_memory(size: u64, allocated: u64, reserved: u64, device: u8) {
    let Some(guest) = awake(device) else { return };
    let stack = guest.interner.current();
    let traces = guest.traces.get(usize::from(device));
    let free_bytes = traces.map_or(0, |traces| traces.free_bytes.swap(0, Relaxed));
    let grant = Grant { size, requested: free_bytes, stack, ..Grant::default() };
    let totals = Totals { allocated, reserved };
    match guest.allocator_lane(device) {
        Some(lane) => lane.failure(clock::mono_ns(), Kind::Oom, grant, totals),
        None => guest.write_shared(device, |lane| {
            lane.failure(clock::mono_ns(), Kind::Oom, grant, totals);
        }),
    }
    note_hook(hooks::OUT_OF_MEMORY);
}

/// What the tracker saw, under the device's mutex.
pub(crate) fn traced(entry: &Traced) {
    let Some(guest) = recording() else { return };
    let Some(traces) = guest.traces.get(usize::from(entry.device)) else { return };
    match entry.action {
        action::ALLOC => {
            traces.requested.store(entry.size, Relaxed);
            traces.place.store(guest.place(traces, entry), Relaxed);
            traces.address.store(entry.address, Relaxed);
        }
        action::FREE_REQUESTED => {
            traces.freed.store(0, Relaxed);
            traces.freeing.store(entry.address, Relaxed);
        }
        action::FREE_COMPLETED if traces.freeing.load(Relaxed) == entry.address => {
            traces.freed.store(entry.address, Relaxed);
        }
        action::OOM => traces.free_bytes.store(entry.address, Relaxed),
        _ => guest.traced_apart(traces, entry),
    }
}

impl Guest {
    /// What the tracker said of the block that is being handed out.
    fn add_detail(&self, grant: &mut Grant, device: u8) {
        let Some(traces) = self.traces.get(usize::from(device)) else { return };
        if traces.address.swap(0, Relaxed) == grant.address {
            grant.requested = traces.requested.load(Relaxed);
            grant.owner = traces.place.load(Relaxed);
        } else {
            self.attach_tracker();
        }
    }

    /// Whether the block that is being taken back is free now, or still in use by other streams.
    /// One that was never seen to be taken back counts as free: the tracker came after it.
    fn is_freed(&self, pointer: u64, device: u8) -> bool {
        let Some(traces) = self.traces.get(usize::from(device)) else { return true };
        let seen = traces.freeing.swap(0, Relaxed) == pointer;
        let freed = traces.freed.swap(0, Relaxed) == pointer;
        freed || !seen
    }

    /// What has no report of its own: segments, snapshots, frees that were put off.
    #[cold]
    fn traced_apart(&self, traces: &Traces, entry: &Traced) {
        let Some(lane) = self.allocator_lane(entry.device) else { return };
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
        let place = self.place(traces, entry);
        let stack = self.interner.current();
        lane.segment(now_ns, kind, Grant { address, size, requested: size, owner: place, stack });
    }

    /// The index of the entry's stream and pool.
    fn place(&self, traces: &Traces, entry: &Traced) -> u16 {
        let known = traces.last_place.load(Relaxed);
        let same = traces.last_stream.load(Relaxed) == entry.stream
            && traces.last_pool[0].load(Relaxed) == entry.pool.0
            && traces.last_pool[1].load(Relaxed) == entry.pool.1;
        if known != 0 && same {
            return (known - 1) as u16;
        }
        let pool = (entry.pool != POOL_UNKNOWN).then_some(entry.pool);
        let place = self.interner.place(entry.stream, pool);
        traces.last_stream.store(entry.stream, Relaxed);
        traces.last_pool[0].store(entry.pool.0, Relaxed);
        traces.last_pool[1].store(entry.pool.1, Relaxed);
        traces.last_place.store(u32::from(place) + 1, Relaxed);
        place
    }
}
