//! What a call takes from a device when it goes past every hook: NCCL does, around communicators.
//!
//! The device's free bytes before and after say how much is gone. What the hooks saw go in
//! between, on any thread, is taken off: calls of the CUDA runtime, and the growth of PyTorch's
//! allocator, which in expandable segments comes from the driver. Both are mostly the same memory,
//! so the one that moved more counts. Windows that overlap share what they see once.
//!
//! Another process on the same device, or memory that a call gives back later on a thread of its
//! own, is not told apart: the result is an estimate, and a good one while a job starts.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use memtape_core::tape::layout::{DEVICES_MAX, descriptor, head, header};

use crate::host::driver;
use crate::writer::state;

/// Windows open now. While there are none, nothing here costs more than looking.
static OPEN: AtomicU32 = AtomicU32::new(0);

/// Bytes seen to be taken, less those given back, while windows were open.
static SEEN: [AtomicI64; DEVICES_MAX] = [const { AtomicI64::new(0) }; DEVICES_MAX];

/// A look at the current device before a call.
pub(crate) struct Window {
    device: u8,
    free: u64,
    seen: i64,
    reserved: u64,
}

impl Window {
    /// `None` when the device cannot be asked: no driver, or no context yet.
    pub(crate) fn open() -> Option<Self> {
        let device = driver::current_device();
        OPEN.fetch_add(1, Ordering::AcqRel);
        // Made first, so that leaving early counts it out again.
        let mut window = Self { device, free: 0, seen: seen(device), reserved: reserved(device) };
        window.free = driver::free_bytes()?;
        Some(window)
    }

    /// The device, and the bytes it has lost since to somebody no hook saw.
    pub(crate) fn close(self) -> (u8, u64) {
        let device = self.device;
        let Some(free) = driver::free_bytes() else { return (device, 0) };
        let gone = signed(self.free) - signed(free);
        let runtime = seen(device) - self.seen;
        let allocator = signed(reserved(device)) - signed(self.reserved);
        let known = if allocator.abs() > runtime.abs() { allocator } else { runtime };
        let unseen = u64::try_from(gone - known).unwrap_or(0);
        taken(device, unseen);
        (device, unseen)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A hook saw memory go.
pub(crate) fn taken(device: u8, bytes: u64) {
    if OPEN.load(Ordering::Acquire) > 0
        && let Some(sum) = SEEN.get(usize::from(device))
    {
        sum.fetch_add(signed(bytes), Ordering::AcqRel);
    }
}

/// A hook is about to see memory come back.
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

/// What PyTorch's allocator holds of a device, as it reported last.
fn reserved(device: u8) -> u64 {
    let Some(guest) = state::recording() else { return 0 };
    if usize::from(device) >= DEVICES_MAX {
        return 0;
    }
    let lane = header::DESCRIPTORS + usize::from(device) * descriptor::WORDS;
    if guest.words.get(lane + descriptor::STATE) != 1 {
        return 0;
    }
    let at = guest.words.get(lane + descriptor::HEAD) as usize;
    guest.words.get(at + head::RESERVED_BYTES)
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
