//! Functions for a program to call: steps, phases and annotations.
//!
//! Plain C, so that a Python module reaches it through `ctypes`, and any other program too. These
//! functions do not wake the recorder. The functions without C names are for programs
//! in Rust that report their own memory, as the demo does.

use std::ffi::c_char;

use memtape_tape::Words;
use memtape_tape::layout;
use memtape_tape::limits::DEVICES_MAX;
use memtape_tape::snapshot::origin::Origin;
use memtape_tape::write::Totals;

use crate::hooks::wake;
use crate::writer::hot_path::{self, Next, Report};
use crate::writer::panic_boundary::guarded;
use crate::writer::{offers, outside_allocator, steps};

/// Longest name or annotation, in bytes; the rest is cut off.
const TEXT_BYTES_MAX: usize = 256;

/// Marks the end of a training step.
#[unsafe(no_mangle)]
extern "C" fn memtape_step() {
    guarded(steps::step);
}

/// Marks the end of the training step of this number; the next one without a number follows it.
#[unsafe(no_mangle)]
extern "C" fn memtape_step_to(number: u64) {
    guarded(|| steps::step_to(number));
}

/// The program enters a phase (`train`, `eval`); the phase before it ends.
///
/// # Safety
/// There must be `length` bytes at `name`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memtape_phase(name: *const c_char, length: usize) {
    // SAFETY: the caller's promise.
    let name = unsafe { text(name, length) };
    guarded(|| steps::phase(name));
}

/// Writes a note `key=value` for readers of the tape.
///
/// # Safety
/// There must be `length` bytes at `note`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memtape_annotate(note: *const c_char, length: usize) {
    // SAFETY: the caller's promise.
    let note = unsafe { text(note, length) };
    guarded(|| steps::annotate(note));
}

/// The program has a function for checkpoints (`memtape.on_checkpoint`), or none any more.
#[unsafe(no_mangle)]
extern "C" fn memtape_offer_checkpoint(is_offered: u64) {
    guarded(|| offers::set_checkpoint(is_offered != 0));
}

/// # Safety
/// There must be `length` bytes at `start`, for as long as they are used.
unsafe fn text<'a>(start: *const c_char, length: usize) -> &'a [u8] {
    if start.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start.cast(), length.min(TEXT_BYTES_MAX)) }
}

/// A block of `size` bytes was handed out at `address` (`size` negative: taken back), after which
/// the allocator holds `reserved` bytes, `allocated` of them in use. What PyTorch reports.
#[inline(always)]
pub fn report(address: u64, size: i64, allocated: u64, reserved: u64, device: u8) {
    let Some(recorder) = wake::awake(device) else { return };
    let totals = Totals { allocated, reserved };
    let next = hot_path::report(recorder, Report { address, size, totals, device });
    if next == Next::AttachTracker {
        wake::attach_tracker(recorder);
    }
}

/// Sets the size of a device. The driver tells it for real devices.
pub fn device_bytes(bytes: u64, device: u8) {
    let Some(recorder) = wake::awake(device) else { return };
    if usize::from(device) < DEVICES_MAX {
        recorder.words().set(Words::device_word(device, layout::device::TOTAL_BYTES), bytes);
    }
}

/// A request for `size` bytes failed for good; the allocator holds `reserved` bytes, `allocated` of
/// them in use.
pub fn out_of_memory(size: u64, allocated: u64, reserved: u64, device: u8) {
    let Some(recorder) = wake::awake(device) else { return };
    hot_path::out_of_memory(recorder, size, Totals { allocated, reserved }, device);
}

/// Memory was taken from the device with `cudaMalloc`, or given back to it (`freed`).
pub fn segment(address: u64, size: u64, device: u8, freed: bool) {
    if freed {
        outside_allocator::returned(Origin::CudaMalloc, address);
    } else {
        wake::memory_taken(Origin::CudaMalloc, address, size, device);
    }
}
