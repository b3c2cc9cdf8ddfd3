//! `errno`, which belongs to the program: a hook runs inside of a call that the program made.

use std::ffi::c_int;

/// Runs `work`, and restores `errno` afterwards.
#[inline]
pub(crate) fn keeping_errno<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: every thread has an `errno` for as long as it runs.
    let errno: *mut c_int = unsafe { libc::__errno_location() };
    // SAFETY: the pointer is this thread's own.
    let before = unsafe { *errno };
    let result = work();
    // SAFETY: as above.
    unsafe { *errno = before };
    result
}
