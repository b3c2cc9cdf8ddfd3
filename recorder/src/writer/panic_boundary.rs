//! The boundary between the program and the recorder: no panic crosses it, and `errno` is the same
//! after it.
//!
//! A hook is a call that the program does not know of, inside of a call that it does. Registers and
//! rounding modes are kept by the calling convention; signals are not touched.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::host::errno::keeping_errno;
use crate::writer::state;

/// Runs the recorder's part of a hook. A panic in `work`, which is a bug, turns the recorder off
/// for good instead of ending the training process.
#[inline]
pub(crate) fn guarded(work: impl FnOnce()) {
    keeping_errno(|| caught(work));
}

/// As [`guarded`], for work that keeps `errno` by itself, as rare branches of the hot path do.
#[inline(always)]
pub(crate) fn caught(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        keeping_errno(state::disable_after_inner_failure);
    }
}

/// Keeps Rust's message about a panic off the program's standard error. Only where this library has
/// a Rust runtime of its own, that is, where it is preloaded: otherwise the hook is the program's.
pub(crate) fn silence_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno() -> Option<i32> {
        std::io::Error::last_os_error().raw_os_error()
    }

    #[test]
    fn errno_is_the_programs() {
        assert!(std::fs::read_dir("/dev/null").is_err());
        assert_eq!(errno(), Some(libc::ENOTDIR));
        guarded(|| assert!(std::fs::metadata("/nowhere").is_err()));
        assert_eq!(errno(), Some(libc::ENOTDIR));
        guarded(|| std::panic::resume_unwind(Box::new("an inner failure")));
        assert_eq!(errno(), Some(libc::ENOTDIR));
    }
}
