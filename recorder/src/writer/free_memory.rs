//! Memory that a call takes from a device past every hook, as NCCL does around communicators.
//!
//! The device's free bytes before and after the call say how much is gone. Memory that hooks saw
//! taken meanwhile, on any thread, is subtracted: calls of the CUDA runtime, and the growth of
//! PyTorch's allocator, whose expandable segments come from the driver. Both are mostly the same
//! memory, so the larger of the two counts. Windows that overlap share what they see once.
//!
//! The result is an estimate: another process on the device, or memory that the call gives back
//! later on a thread of its own, is not told apart.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use memtape_tape::limits::DEVICES_MAX;

use crate::host::driver;
use crate::writer::state;

/// Windows open now. While there are none, the functions here only read this.
static OPEN: AtomicU32 = AtomicU32::new(0);

/// Bytes that hooks saw taken, less bytes given back, while windows were open.
static SEEN: [AtomicI64; DEVICES_MAX] = [const { AtomicI64::new(0) }; DEVICES_MAX];

/// The current device's memory before a call.
pub(crate) struct FreeMemoryWindow {
    device: u8,
    free: u64,
    seen: i64,
    reserved: u64,
}

impl FreeMemoryWindow {
    /// `None` when the device cannot be asked: no driver, or no context yet.
    pub(crate) fn open() -> Option<Self> {
        let device = driver::current_device();
        OPEN.fetch_add(1, Ordering::AcqRel);
        // Made first: dropping it when the next line returns early counts it out again.
        let mut window = Self { device, free: 0, seen: seen(device), reserved: reserved(device) };
        window.free = driver::free_bytes()?;
        Some(window)
    }

    /// Returns the device, and the bytes that it has lost since and that no hook saw.
    pub(crate) fn close(self) -> (u8, u64) {
        let device = self.device;
        let Some(free) = driver::free_bytes() else { return (device, 0) };
        let gone = signed(self.free) - signed(free);
        let runtime = seen(device) - self.seen;
        let allocator = signed(reserved(device)) - signed(self.reserved);
        let known = if allocator.abs() > runtime.abs() { allocator } else { runtime };
        (device, u64::try_from(gone - known).unwrap_or(0))
    }
}

impl Drop for FreeMemoryWindow {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Memory of a device was recorded as taken.
pub(crate) fn taken(device: u8, bytes: u64) {
    if OPEN.load(Ordering::Acquire) > 0
        && let Some(sum) = SEEN.get(usize::from(device))
    {
        sum.fetch_add(signed(bytes), Ordering::AcqRel);
    }
}

/// Notes that memory of the current device is about to be given back.
pub(crate) fn returned(pointer: u64) {
    if OPEN.load(Ordering::Acquire) > 0
        && let Some(bytes) = driver::allocation_bytes(pointer)
        && let Some(sum) = SEEN.get(usize::from(driver::current_device()))
    {
        sum.fetch_sub(signed(bytes), Ordering::AcqRel);
    }
}

fn seen(device: u8) -> i64 {
    SEEN.get(usize::from(device)).map_or(0, |sum| sum.load(Ordering::Acquire))
}

fn reserved(device: u8) -> u64 {
    state::recording().map_or(0, |recorder| recorder.reserved_bytes(device))
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
