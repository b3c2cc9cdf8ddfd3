//! The edge between the host and the guest: nothing unwinds across it, and nothing the host can
//! see is different after it.
//!
//! A hook is a call that the host does not know of, in the middle of a call that it does. So
//! `errno` is put back, and a panic in the guest neither goes further nor says a word. Registers
//! and rounding modes are kept by the calling convention; signals are not touched.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::writer::state;

/// Runs the guest's part of a hook. A panic in it, which should be impossible, turns the recorder
/// off for good instead of tearing down the training process.
#[inline]
pub(crate) fn guarded(work: impl FnOnce()) {
    keeping_errno(|| caught(work));
}

/// The same for work that keeps `errno` by itself: the hot path does, on each of its side roads,
/// but for one, which is a panic's.
#[inline(always)]
pub(crate) fn caught(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        keeping_errno(state::disable_after_inner_failure);
    }
}

/// Runs `work`; afterwards `errno` is what it was before.
#[inline]
pub(crate) fn keeping_errno<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: every thread has an `errno` for as long as it runs.
    let place: *mut c_int = unsafe { libc::__errno_location() };
    // SAFETY: the place is this thread's own.
    let before = unsafe { *place };
    let result = work();
    // SAFETY: as above.
    unsafe { *place = before };
    result
}

/// Keeps Rust's words about a panic off the host's standard error. Only where this library has a
/// Rust runtime of its own, that is, where it is preloaded: otherwise the hook is the program's.
pub(crate) fn silence_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::{hot_path, steps};
    use memtape_core::tape::layout::{Disabled, State, header};
    use std::process::Command;

    /// Set in the child: where its tape goes is in `MEMTAPE_DIR`.
    const CHILD: &str = "MEMTAPE_EDGE_CHILD";

    fn panics() {
        guarded(|| std::panic::resume_unwind(Box::new("an inner failure")));
    }

    /// Not a test of its own: what the child runs.
    #[test]
    fn child() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        // Waking up, opening a lane and learning a stack all ask the system for things.
        fail();
        caught(|| hot_path::report(0x7f00_0000_0000, 512, 512, 512, 0));
        assert_eq!(errno(), Some(libc::EBADF), "the hot path keeps it on its side roads");
        assert!(state::recording().is_some(), "awake");
        panics();
        hot_path::report(0x7f00_0000_0200, 512, 1024, 1024, 0);
        guarded(steps::step);
        assert!(state::recording().is_none(), "off for good");
    }

    #[test]
    fn an_inner_failure_turns_the_recorder_off_and_the_tape_says_so() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "panic_boundary::tests::child"])
            .env(CHILD, "1")
            .env("MEMTAPE_DIR", folder.path())
            .output()
            .expect("the child runs");
        assert!(child.status.success(), "the job goes on: {child:?}");
        let tape = std::fs::read_dir(folder.path()).expect("the folder").next().expect("a tape");
        let bytes = std::fs::read(tape.expect("an entry").path()).expect("its bytes");
        let word = |index: usize| {
            u64::from_le_bytes(*bytes.get(index * 8..).and_then(|b| b.first_chunk()).expect("word"))
        };
        assert_eq!(word(header::DISABLED), Disabled::InnerFailure as u64);
        // The orderly exit comes later, and does not take the reason away.
        assert_eq!(word(header::STATE), State::Sealed as u64);
        assert_eq!(word(header::STEP), 0, "nothing was recorded after the failure");
    }

    fn errno() -> Option<i32> {
        std::io::Error::last_os_error().raw_os_error()
    }

    fn fail() {
        // SAFETY: closing no file changes nothing but `errno`.
        unsafe { libc::close(-1) };
    }

    #[test]
    fn errno_is_the_hosts() {
        fail();
        assert_eq!(errno(), Some(libc::EBADF));
        guarded(|| assert!(std::fs::metadata("/nowhere").is_err()));
        assert_eq!(errno(), Some(libc::EBADF));
        panics();
        assert_eq!(errno(), Some(libc::EBADF));
    }
}
