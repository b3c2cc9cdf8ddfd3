//! The process that the recorder lives in: who it is, and its fork and exit.
//!
//! A child is told from its parent by a page that the kernel wipes in every child, however the
//! child was made. Where a kernel cannot do that (before 4.14), a fork handler does it for `fork`.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU8};

use memtape_tape::identity::{Identity, boot_id_words, cut};
use memtape_tape::limits::COMMAND_BYTES_MAX;
use memtape_tape::redaction::{Redaction, listed};

use crate::host::libraries::{base_of, global_symbol};

unsafe extern "C" {
    /// glibc: like `atexit`, with the exit status. Not in the libc crate.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Bytes of a page.
const PAGE_BYTES: usize = 4096;

/// A byte and a pointer on a page of their own, both zero in every child.
#[repr(C, align(4096))]
pub(crate) struct OwnPage<T> {
    pub(crate) state: AtomicU8,
    /// Pointer beside the state: the hot path reads one cache line.
    pub(crate) pointer: AtomicPtr<T>,
    rest: [u8; PAGE_BYTES - 16],
}

impl<T> OwnPage<T> {
    /// A page of zeros, as a forked child finds it.
    pub(crate) const fn zero() -> Self {
        let pointer = AtomicPtr::new(std::ptr::null_mut());
        Self { state: AtomicU8::new(0), pointer, rest: [0; PAGE_BYTES - 16] }
    }

    /// Makes forked children find the page zeroed. False where the kernel cannot do that.
    pub(crate) fn wipe_in_children(&'static self) -> bool {
        let start = (&raw const *self).cast_mut().cast();
        // SAFETY: the page is this value's alone, and changes only in children.
        unsafe { libc::madvise(start, PAGE_BYTES, libc::MADV_WIPEONFORK) == 0 }
    }
}

/// Registers functions to call in a forked child and at an orderly exit.
pub(crate) fn watch(in_child: extern "C" fn(), at_exit: extern "C" fn(c_int, *mut c_void)) {
    // SAFETY: both functions belong to this library, which is never unloaded.
    unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
        on_exit(at_exit, std::ptr::null_mut());
    }
}

/// Copies of this library in one process find each other by this name.
#[unsafe(no_mangle)]
pub(crate) static MEMTAPE_RECORDER: u64 = 1;

/// The way in which this library was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadedAs {
    /// A separate library, and the only copy or the first one.
    Preloaded,
    /// A part of the program.
    PartOfProgram,
    /// Another copy of the library precedes this one.
    SecondCopy,
}

impl LoadedAs {
    /// Asks the dynamic linker, which gives the first copy that it loaded, also to the copies
    /// behind it. A program does not export its own.
    pub(crate) fn of_this_library() -> Self {
        let first = global_symbol(c"MEMTAPE_RECORDER");
        if first.is_null() {
            Self::PartOfProgram
        } else if base_of(first) == base_of(boot_id as *const c_void) {
            Self::Preloaded
        } else {
            Self::SecondCopy
        }
    }
}

/// The identity of this process.
pub(crate) fn identity() -> Identity {
    let mut identity = Identity::from_environment(|name| std::env::var(name).ok());
    identity.host = read_text("/proc/sys/kernel/hostname").trim().to_string();
    let names = std::env::var("MEMTAPE_REDACT").unwrap_or_default();
    let command = command(&read_text("/proc/self/cmdline"), &names);
    identity.command = cut(&command, COMMAND_BYTES_MAX).to_string();
    identity
}

/// A command line, as `/proc` has it, without the secrets in it: their values end where their
/// arguments do, which a reader of the tape cannot see any more.
fn command(cmdline: &str, names: &str) -> String {
    let arguments = cmdline.trim_end_matches('\0').split('\0');
    Redaction::with_names(listed(names)).arguments(arguments).trim().to_string()
}

/// Inode of this process's pid namespace; 0 when it is not known.
pub(crate) fn pid_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

/// The kernel's boot id; zeros when it is not known.
pub(crate) fn boot_id() -> [u64; 2] {
    boot_id_words(&read_text("/proc/sys/kernel/random/boot_id"))
}

fn read_text(path: &str) -> String {
    std::fs::read(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_reaches_the_tape() {
        let cmdline = "python\0train.py\0--password\0two words\0--licence=of two words\0-v\0";
        let expected = "python train.py --password [redacted] --licence=[redacted] -v";
        assert_eq!(command(cmdline, "licence, other"), expected);
        assert_eq!(command("", ""), "");
    }
}
