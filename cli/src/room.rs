//! Room for tapes in a file system.

use std::path::Path;

use rustix::fs::{StatFs, statfs};

use crate::render::units::bytes;

/// A tape takes at most one part in this number of the free space.
const TAPE_SHARE: u64 = 4;

/// The recorder makes no tape that is smaller.
const TAPE_BYTES_MIN: u64 = 1 << 20;

/// A file system is short of room when less than one part in this number is free.
const SHORT_SHARE: u64 = 10;

/// What is free of a file system, in bytes and in files; `of_files` is 0 where files have no limit.
pub(crate) struct Free {
    bytes: u64,
    of_bytes: u64,
    files: u64,
    of_files: u64,
}

impl Free {
    pub(crate) fn of(system: &StatFs) -> Self {
        let block = u64::try_from(system.f_bsize).unwrap_or(0);
        let bytes = [system.f_bavail, system.f_blocks].map(|blocks| blocks.saturating_mul(block));
        Self::new(bytes, [system.f_ffree, system.f_files])
    }

    /// Bytes and files: what is free, and of how many.
    pub(crate) fn new([bytes, of_bytes]: [u64; 2], [files, of_files]: [u64; 2]) -> Self {
        Self { bytes, of_bytes, files, of_files }
    }

    /// A tape of this size is made.
    pub(crate) fn has_room(&self, tape_bytes: u64) -> bool {
        self.bytes / TAPE_SHARE >= tape_bytes && (self.files > 0 || self.of_files == 0)
    }

    /// Soon no tape has room.
    pub(crate) fn is_short(&self) -> bool {
        self.bytes < self.of_bytes / SHORT_SHARE || self.files < self.of_files / SHORT_SHARE
    }
}

impl std::fmt::Display for Free {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} free of {}", bytes(self.bytes), bytes(self.of_bytes))?;
        match self.of_files {
            0 => Ok(()),
            of_files => write!(f, ", {} files of {of_files}", self.files),
        }
    }
}

/// Says that no tape has room in a folder, so that ranks run unrecorded; none where one has.
pub(crate) fn no_room(dir: &Path) -> Option<String> {
    let free = Free::of(&statfs(dir).ok()?);
    let text =
        format!("{} has no room for a tape: {free}; `memtape doctor` advises", dir.display());
    (!free.has_room(TAPE_BYTES_MIN)).then_some(text)
}
