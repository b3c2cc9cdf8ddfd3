//! The file a tape lies in: made, given real pages, mapped and locked.
//!
//! Pages are asked for with `fallocate` before they are touched: on a full tmpfs that is an error
//! to handle, where touching a page that cannot be had would kill the training process with
//! SIGBUS. Only the front and the lanes in use have pages; the rest of the file is a hole.
//! The lock (POSIX, on the whole file) is never released: the kernel does that when the process
//! dies, and that is how agents learn of it, across pid namespaces.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use memtape_core::tape::layout::{HOST_LANE, LaneLayout, Layout, Sizes};

/// Where tapes go unless `MEMTAPE_DIR` says otherwise.
pub(crate) const DIRECTORY_DEFAULT: &str = "/dev/shm/memtape";

/// Fewer events than this are not worth a tape.
const EVENTS_MIN: usize = 4096;

/// A tape takes at most this part of what is free: NCCL, DataLoader workers and the other ranks of
/// the node live on the same tmpfs, which in a container may have 64 MiB in all.
const SHARE_OF_FREE_SPACE: u64 = 4;

/// A tape's file, mapped for as long as the process lives.
pub(crate) struct TapeFile {
    file: File,
    pub(crate) layout: Layout,
    pub(crate) words: &'static [AtomicU64],
}

impl TapeFile {
    /// Makes a tape with room for `device`'s lane, with fewer events where space is short.
    /// `None` when there is no place for one: the job then runs unrecorded.
    pub(crate) fn make(device: u8, mono_ns: u64) -> Option<Self> {
        let (path, file) = open_file(mono_ns)?;
        let made = Self::fill(file, device);
        if made.is_none() {
            let _ = std::fs::remove_file(path);
        }
        made
    }

    fn fill(file: File, device: u8) -> Option<Self> {
        let mut sizes = sizes_from_environment();
        let layout = loop {
            let layout = Layout::new(sizes);
            file.set_len((layout.file_words * 8) as u64).ok()?;
            let lane = layout.lanes.get(usize::from(device)).or(layout.lanes.first())?;
            let host = layout.lanes.get(HOST_LANE)?;
            let words = layout.front_words() + lane.end - lane.head + host.end - host.head;
            let fits = (words * 8) as u64 <= free_bytes(&file) / SHARE_OF_FREE_SPACE;
            if fits
                && give_pages(&file, 0, layout.front_words())
                && give_lane(&file, lane)
                && give_lane(&file, host)
            {
                break layout;
            }
            file.set_len(0).ok()?;
            if sizes.events <= EVENTS_MIN {
                return None;
            }
            sizes = Sizes {
                events: sizes.events / 2,
                table_entries: (sizes.table_entries / 2).max(EVENTS_MIN),
                atom_words: (sizes.atom_words / 2).max(1 << 16),
                ..sizes
            };
        };
        lock(&file)?;
        let words = map(&file, layout.file_words)?;
        Some(Self { file, layout, words })
    }

    /// Gives a lane its pages; false when there is no space for it.
    pub(crate) fn give_lane(&self, lane: &LaneLayout) -> bool {
        give_lane(&self.file, lane)
    }
}

fn sizes_from_environment() -> Sizes {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.trim().parse::<usize>().ok());
    let default = Sizes::default();
    Sizes {
        events: number("MEMTAPE_EVENTS").unwrap_or(default.events).max(EVENTS_MIN),
        table_entries: number("MEMTAPE_BLOCKS")
            .map_or(default.table_entries, |blocks| blocks.saturating_mul(2)),
        ..default
    }
}

fn open_file(mono_ns: u64) -> Option<(PathBuf, File)> {
    let directory = std::env::var_os("MEMTAPE_DIR")
        .filter(|value| !value.is_empty())
        .map_or_else(|| PathBuf::from(DIRECTORY_DEFAULT), PathBuf::from);
    if !directory.is_dir() {
        // Jobs of several users share the default folder, as they share /tmp.
        DirBuilder::new().recursive(true).create(&directory).ok()?;
        // Not with the making, which the umask would have a say in.
        let _ = std::fs::set_permissions(&directory, Permissions::from_mode(0o1777));
    }
    let path = Path::new(&directory).join(format!("{}-{mono_ns:x}.tape", std::process::id()));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(&path)
        .ok()?;
    Some((path, file))
}

fn give_lane(file: &File, lane: &LaneLayout) -> bool {
    give_pages(file, lane.head, lane.end - lane.head)
}

fn give_pages(file: &File, first_word: usize, words: usize) -> bool {
    let (offset, length) = ((first_word * 8) as libc::off_t, (words * 8) as libc::off_t);
    // SAFETY: the descriptor is open; the call changes only the file.
    unsafe { libc::fallocate(file.as_raw_fd(), 0, offset, length) == 0 }
}

/// Bytes free on the file's file system; 0 when it does not say.
fn free_bytes(file: &File) -> u64 {
    // SAFETY: all-zero is a valid statvfs for the call to fill.
    let mut space: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and the struct is the call's own.
    let result = unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut space) };
    if result == 0 { space.f_bavail.saturating_mul(space.f_frsize) } else { 0 }
}

fn lock(file: &File) -> Option<()> {
    // SAFETY: all-zero is a valid flock; length 0 means the whole file.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = libc::F_WRLCK as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the descriptor is open and the request is valid.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const request) };
    (result == 0).then_some(())
}

fn map(file: &File, words: usize) -> Option<&'static [AtomicU64]> {
    // SAFETY: a fresh shared mapping of an open file; nobody unmaps it.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            words * 8,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping is page-aligned, as long as said, lives for ever, and is only ever
    // reached through atomics.
    Some(unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>(), words) })
}
