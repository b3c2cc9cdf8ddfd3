//! Asks the kernel whether the process that writes a tape is alive: it holds a POSIX write lock on
//! the file, which names it, and its mapping of the file holds another, which lasts when the
//! program closes descriptors it does not know.
//!
//! The only `unsafe` of this package besides the demo's: the safe wrappers panic in debug builds
//! when the holder is in a pid namespace that cannot be seen from here.

use std::fs::File;
use std::os::fd::AsRawFd;

/// Who holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    /// A live process; its pid here, where it can be told.
    Alive(Option<u32>),
    /// Nobody.
    Gone,
    /// The file system cannot say.
    Unknown,
}

impl Writer {
    /// Whether the process lives, where that can be told.
    pub(crate) fn is_alive(self) -> Option<bool> {
        match self {
            Self::Alive(_) => Some(true),
            Self::Gone => Some(false),
            Self::Unknown => None,
        }
    }
}

/// The byte that the lock of the mapping is on, and the end of the process's own.
const LOCKED_BYTE: libc::off_t = 1 << 62;

/// The writer of an open tape.
pub(crate) fn writer(file: &File) -> Writer {
    match holder(file, 0, LOCKED_BYTE) {
        Writer::Gone => holder(file, LOCKED_BYTE, 1),
        writer => writer,
    }
}

fn holder(file: &File, start: libc::off_t, bytes: libc::off_t) -> Writer {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: bytes,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the kernel writes
    // nothing but the struct, which lives on this stack frame.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    match i32::from(lock.l_type) {
        _ if result == -1 => Writer::Unknown,
        libc::F_WRLCK => Writer::Alive(u32::try_from(lock.l_pid).ok().filter(|&pid| pid > 0)),
        _ => Writer::Gone,
    }
}
