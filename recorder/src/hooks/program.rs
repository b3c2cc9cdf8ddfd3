//! What a program may call itself: steps, phases and remarks.
//!
//! Plain C, so that a Python module reaches them through `ctypes`, and any other program too.
//! Nothing here wakes a recorder that sleeps.

use std::ffi::c_char;

use crate::writer::panic_boundary::guarded;
use crate::writer::steps;

/// A name or remark is cut at so many bytes.
const TEXT_BYTES_MAX: usize = 256;

/// Marks the end of a training step.
#[unsafe(no_mangle)]
pub extern "C" fn memtape_step() {
    guarded(steps::step);
}

/// Marks the end of the training step of this number; the next one without a number follows it.
#[unsafe(no_mangle)]
pub extern "C" fn memtape_step_to(number: u64) {
    guarded(|| steps::step_to(number));
}

/// The program enters a phase (`train`, `eval`); the phase before it ends.
///
/// # Safety
/// There must be `length` bytes at `name`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memtape_phase(name: *const c_char, length: usize) {
    // SAFETY: the caller's promise.
    let name = unsafe { text(name, length) };
    guarded(|| steps::phase(name));
}

/// A remark for whoever reads the tape, `key=value`.
///
/// # Safety
/// There must be `length` bytes at `remark`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memtape_annotate(remark: *const c_char, length: usize) {
    // SAFETY: the caller's promise.
    let remark = unsafe { text(remark, length) };
    guarded(|| steps::annotate(remark));
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
