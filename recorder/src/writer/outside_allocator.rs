//! Memory that other code than PyTorch's caching allocator takes, as the hooks on the CUDA runtime,
//! NCCL and the CPU allocator see it.
//!
//! It goes onto the host lane, or that of CPU tensors, under the lane's own lock. One exception:
//! where the `cudaMallocAsync` backend stands in PyTorch's own allocator's place, its blocks are
//! the device's memory and go onto the device's lane, which that allocator then does not write.

use memtape_core::origin::Origin;
use memtape_core::tape::Words;
use memtape_core::tape::event::Kind;
use memtape_core::tape::layout::{
    CPU_LANE, DEVICES_MAX, HOST_LANE, device as device_words, header, hook,
};
use memtape_core::tape::write::{Grant, Lane, LiveBlock, Totals};

use crate::host::clock;
use crate::writer::state::{Guest, LaneUse, awake, note_hook, recording};

/// Memory of `size` bytes was taken at `pointer`. Wakes the recorder, but for CPU tensors: these
/// say nothing about a process's use of a GPU.
pub(crate) fn taken(origin: Origin, pointer: u64, size: u64, device: u8) {
    let guest = if origin == Origin::CpuTensor { recording() } else { awake(device) };
    let Some(guest) = guest.filter(|_| pointer != 0) else { return };
    let stack = guest.interner.current();
    let lane = guest.lane_for(origin, device);
    let written = guest.with_shared_lane(lane, |lane| {
        // Its end was missed: another thread had the lane for long.
        if let Some(block) = lane.live(pointer) {
            guest.take_back(lane, pointer, block);
        }
        // On a device's own lane a place is a stream and pool.
        let place = if lane_index(lane) < DEVICES_MAX { 0 } else { origin as u16 };
        let grant = Grant { address: pointer, size, requested: size, owner: place, stack };
        let before = lane.live_bytes();
        let held = totals(before.wrapping_add(size));
        lane.of_device(device).alloc(clock::mono_ns(), grant, held);
        if place != 0 {
            // Nothing, where the block found no room.
            let more = lane.live_bytes().wrapping_sub(before);
            guest.words.add_outside(origin, device, more);
        }
    });
    if written.is_none() {
        guest.words.count(header::LOST_HOST_EVENTS);
    }
    note_hook(hook(origin));
}

/// The memory at `pointer` is about to be given back. Never wakes the recorder: there is nothing
/// to forget. What was not seen to be taken is no loss either.
pub(crate) fn returned(origin: Origin, pointer: u64) {
    let Some(guest) = recording().filter(|_| pointer != 0) else { return };
    let first = if origin == Origin::CpuTensor { CPU_LANE } else { HOST_LANE };
    if guest.give_back(first, pointer) {
        return;
    }
    let on_device = origin == Origin::CudaMallocAsync || origin == Origin::CudaMalloc;
    for device in (0..DEVICES_MAX).filter(|_| on_device) {
        if guest.give_back(device, pointer) {
            return;
        }
    }
}

/// A request for `size` bytes failed after `took_ns`: PyTorch's allocator frees its cache and
/// tries again.
pub(crate) fn failed(origin: Origin, size: u64, took_ns: u64, device: u8) {
    let Some(guest) = awake(device) else { return };
    if usize::from(device) < DEVICES_MAX && origin.is_on_device() {
        guest.words.count(Words::device_word(device, device_words::MALLOC_FAILURES));
    }
    let stack = guest.interner.current();
    let place = origin as u16;
    let grant = Grant { address: 0, size, requested: took_ns, owner: place, stack };
    let written = guest.with_shared_lane(HOST_LANE, |lane| {
        let held = totals(lane.live_bytes());
        lane.of_device(device).failure(clock::mono_ns(), Kind::MallocFailed, grant, held);
    });
    if written.is_none() {
        guest.words.count(header::LOST_HOST_EVENTS);
    }
}

/// Memory was taken from the device with `cudaMalloc`, or given back to it (`freed`): for programs
/// that tell the recorder themselves.
pub fn segment(pointer: u64, size: u64, device: u8, freed: bool) {
    if freed {
        returned(Origin::CudaMalloc, pointer);
    } else {
        taken(Origin::CudaMalloc, pointer, size, device);
    }
}

impl Guest {
    fn lane_for(&self, origin: Origin, device: u8) -> usize {
        let index = usize::from(device);
        let in_its_place = origin == Origin::CudaMallocAsync
            && self.async_backend
            && index < DEVICES_MAX
            && matches!(self.lane_use(index), LaneUse::Untried | LaneUse::Shared);
        match origin {
            Origin::CpuTensor => CPU_LANE,
            _ if in_its_place => index,
            _ => HOST_LANE,
        }
    }

    /// True when nothing is left to be done: it was there and is free now, or nobody can tell,
    /// because another thread had the lane for long, which is counted.
    fn give_back(&self, index: usize, pointer: u64) -> bool {
        if self.lane_use(index) != LaneUse::Shared {
            return false;
        }
        let found = self.with_shared_lane(index, |lane| {
            let Some(block) = lane.live(pointer) else { return false };
            self.take_back(lane, pointer, block);
            true
        });
        if found.is_none() {
            self.words.count(header::LOST_HOST_EVENTS);
        }
        found.unwrap_or(true)
    }
}

impl Guest {
    /// A block is no longer live; under the lane's lock. On a device's own lane it was the
    /// allocator's, and is in no sum.
    fn take_back(&self, lane: &Lane<'_>, pointer: u64, block: LiveBlock) {
        let LiveBlock { size, device, owner: place } = block;
        let held = totals(lane.live_bytes().wrapping_sub(size));
        lane.of_device(device).free(clock::mono_ns(), pointer, size, held);
        if lane_index(lane) >= DEVICES_MAX {
            self.words.add_outside(Origin::from_number(place), device, size.wrapping_neg());
        }
    }
}

/// The index a lane was made for.
fn lane_index(lane: &Lane<'_>) -> usize {
    usize::from(lane.device())
}

/// A lane whose allocator reports no totals holds what is live on it.
fn totals(held: u64) -> Totals {
    Totals { allocated: held, reserved: held }
}
