//! Whether the process that writes a tape lives.
//!
//! The recorder holds a POSIX write lock on its tape; the kernel drops the lock with the process,
//! however that ends, and names the holder's pid in the *asker's* pid namespace. A program that
//! closes descriptors it does not know loses that lock and lives on: a second lock, of the tape's
//! mapping, names no process but lasts. `death.rs` tells how a process ended.
//!
//! This is the one file with `unsafe` outside of the recorder: the safe wrappers of `fcntl` panic
//! in debug builds when the holder has no pid.

use std::fs::File;
use std::os::fd::AsRawFd;

/// The writer of a tape: the holder of its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// A live process; its pid here, where it is known.
    Alive(Option<u32>),
    /// The process is gone.
    Gone,
    /// The file system cannot say.
    Unknown,
}

impl Writer {
    /// Whether the process lives; none where the file system cannot say.
    pub fn is_alive(self) -> Option<bool> {
        match self {
            Self::Alive(_) => Some(true),
            Self::Gone => Some(false),
            Self::Unknown => None,
        }
    }
}

/// Byte of the mapping's lock, and the end of the process's own lock.
const LOCKED_BYTE: libc::off_t = 1 << 62;

/// Asks the kernel for the writer of an open tape.
pub fn writer(file: &File) -> Writer {
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
        // 0: not in this pid namespace; -1: a lock of an open file, which belongs to no process.
        libc::F_WRLCK => Writer::Alive(u32::try_from(lock.l_pid).ok().filter(|&pid| pid > 0)),
        // A read lock is another program's: the recorder's lock would have kept it out.
        _ => Writer::Gone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_lock_has_no_writer() {
        let file = tempfile::tempfile().expect("file");
        assert_eq!(writer(&file), Writer::Gone);
    }
}
