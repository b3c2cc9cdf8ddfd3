//! Memory that other code than PyTorch's caching allocator takes, as the hooks on the CUDA runtime,
//! the driver, NCCL and the CPU allocator see it.
//!
//! It goes onto the host lane, or that of CPU tensors, under the lane's own lock. One exception:
//! where the `cudaMallocAsync` backend replaces PyTorch's own allocator, its blocks go onto the
//! device's lane, which that allocator then does not write.
//!
//! A hook's function may call another hook's: only the outermost call is recorded ([`Outermost`]).

use std::cell::Cell;

use memtape_tape::Words;
use memtape_tape::event::Kind;
use memtape_tape::layout::{CPU_LANE, HOST_LANE, device as device_words, hook};
use memtape_tape::limits::DEVICES_MAX;
use memtape_tape::snapshot::origin::Origin;
use memtape_tape::write::{Grant, Lane, LiveBlock, Totals};

use crate::host::clock;
use crate::writer::free_memory;
use crate::writer::state::{LaneUse, Recorder, recording};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Marks that this thread is inside a recorded function; nested calls are not recorded.
pub(crate) struct Outermost(());

impl Outermost {
    /// `None` when the thread is inside already.
    pub(crate) fn enter() -> Option<Self> {
        // Made only where it is given: dropping it would say that the thread has left.
        (!INSIDE.replace(true)).then(|| Self(()))
    }
}

impl Drop for Outermost {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Records that memory of `size` bytes was taken at `pointer`.
pub(crate) fn taken(recorder: &Recorder, origin: Origin, pointer: u64, size: u64, device: u8) {
    if origin.is_on_device() {
        free_memory::taken(device, size);
    }
    if pointer == 0 {
        return;
    }
    let stack = recorder.interner().current();
    let lane = lane_for(recorder, origin, device);
    recorder.write_host(lane, |lane| {
        // Its end was missed, because another thread held the lane for too long.
        if let Some(block) = lane.live(pointer) {
            take_back(recorder, lane, pointer, block);
        }
        // On a device's own lane this is a stream and pool, which are not known.
        let owner = if is_device_lane(lane) { 0 } else { origin as u16 };
        let grant = Grant { address: pointer, size, requested: size, owner, stack };
        let before = lane.live_bytes();
        let held = totals(before.wrapping_add(size));
        lane.of_device(device).alloc(clock::mono_ns(), grant, held);
        if owner != 0 {
            // Nothing, where the block found no room in the live table.
            let more = lane.live_bytes().wrapping_sub(before);
            recorder.words().add_outside(origin, device, more);
        }
    });
    recorder.note_hook(hook(origin));
}

/// Records that the memory at `pointer` is about to be given back. Memory that was not seen to be
/// taken is ignored.
pub(crate) fn returned(origin: Origin, pointer: u64) {
    let Some(recorder) = recording().filter(|_| pointer != 0) else { return };
    let first = if origin == Origin::CpuTensor { CPU_LANE } else { HOST_LANE };
    let may_be_on_device = origin == Origin::CudaMallocAsync || origin == Origin::CudaMalloc;
    let devices = if may_be_on_device { 0..DEVICES_MAX } else { 0..0 };
    std::iter::once(first).chain(devices).any(|lane| return_from(recorder, lane, pointer));
}

/// Records that a request for `size` bytes failed after `took_ns`: PyTorch's allocator frees its
/// cache and tries again.
pub(crate) fn failed(recorder: &Recorder, origin: Origin, size: u64, took_ns: u64, device: u8) {
    if usize::from(device) < DEVICES_MAX && origin.is_on_device() {
        recorder.words().count(Words::device_word(device, device_words::MALLOC_FAILURES));
    }
    let stack = recorder.interner().current();
    let owner = origin as u16;
    let grant = Grant { address: 0, size, requested: took_ns, owner, stack };
    recorder.write_host(HOST_LANE, |lane| {
        let held = totals(lane.live_bytes());
        lane.of_device(device).failure(clock::mono_ns(), Kind::MallocFailed, grant, held);
    });
}

fn lane_for(recorder: &Recorder, origin: Origin, device: u8) -> usize {
    let index = usize::from(device);
    let replaces_allocator = origin == Origin::CudaMallocAsync
        && recorder.has_async_backend()
        && index < DEVICES_MAX
        && matches!(recorder.lane_use(index), LaneUse::Untried | LaneUse::Shared);
    match origin {
        Origin::CpuTensor => CPU_LANE,
        _ if replaces_allocator => index,
        _ => HOST_LANE,
    }
}

/// False when the memory is not on this lane. True when it was and is free now, and also when
/// another thread held the lane for too long, which is counted.
fn return_from(recorder: &Recorder, lane: usize, pointer: u64) -> bool {
    if recorder.lane_use(lane) != LaneUse::Shared {
        return false;
    }
    let found = recorder.write_host(lane, |lane| {
        let Some(block) = lane.live(pointer) else { return false };
        take_back(recorder, lane, pointer, block);
        true
    });
    found.unwrap_or(true)
}

/// Handles a freed block, under the lane's lock. Blocks on a device's own lane are not summed up.
fn take_back(recorder: &Recorder, lane: &Lane<'_>, pointer: u64, block: LiveBlock) {
    let LiveBlock { size, device, owner } = block;
    let held = totals(lane.live_bytes().wrapping_sub(size));
    lane.of_device(device).free(clock::mono_ns(), pointer, size, held);
    if !is_device_lane(lane) {
        let origin = Origin::from_number(owner);
        recorder.words().add_outside(origin, device, size.wrapping_neg());
    }
}

fn is_device_lane(lane: &Lane<'_>) -> bool {
    usize::from(lane.device()) < DEVICES_MAX
}

/// Totals of a lane whose allocator reports none: its live bytes.
fn totals(held: u64) -> Totals {
    Totals { allocated: held, reserved: held }
}
