//! The tape's file: makes it, gives it real pages, maps and locks it.
//!
//! Pages are asked for with `fallocate` before they are touched. On a full tmpfs that is an error
//! to handle; touching a page without it would kill the training process with SIGBUS. Only the
//! front and the lanes in use have pages; the rest of the file is a hole.
//!
//! Two locks say that the process lives. The kernel drops both when it dies, and agents see that
//! across pid namespaces. The first, POSIX's, names the process, but is lost when the program
//! closes any descriptor of the file, and some programs close all descriptors. The second (of the
//! open file, on one byte far behind the end) belongs to the mapping, which no child has, so it
//! lives as long as the process.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use memtape_tape::layout::{HOST_LANE, LaneLayout, Layout, Sizes};

use crate::host::threads::without_file_limit_signal;

/// Folder of tapes without `MEMTAPE_DIR`.
const DIRECTORY_DEFAULT: &str = "/dev/shm/memtape";

/// Fewest events of a tape.
const EVENTS_MIN: usize = 4096;

/// A tape takes at most one part in this number of the free space: NCCL, DataLoader workers and the
/// other ranks of the node live on the same tmpfs, which in a container may have 64 MiB in all.
const SHARE_OF_FREE_SPACE: u64 = 4;

/// The byte that the second lock is on, and the end of the first. No tape reaches that far.
const LOCKED_BYTE: libc::off_t = 1 << 62;

/// Descriptors below are standard streams, even where the program closed its own.
const DESCRIPTOR_MIN: libc::c_int = 3;

/// A tape's file, mapped for as long as the process lives.
pub(crate) struct TapeFile {
    file: File,
    /// Device and inode: the program may close the descriptor, whose number may then be reused.
    id: (u64, u64),
    layout: Layout,
    words: &'static [AtomicU64],
}

impl TapeFile {
    /// Makes a tape with `device`'s lane, with fewer events where space is short. `None` when there
    /// is no space for a tape: the job then runs unrecorded. `off_in_children` sees to it that no
    /// child records; it returns false where that cannot be.
    pub(crate) fn make(device: u8, mono_ns: u64, off_in_children: fn() -> bool) -> Option<Self> {
        let (path, file) = open_file(mono_ns)?;
        let made = without_file_limit_signal(|| Self::fill(&path, file, device, off_in_children));
        if made.is_none() {
            let _ = std::fs::remove_file(path);
        }
        made
    }

    fn fill(path: &Path, file: File, device: u8, off_in_children: fn() -> bool) -> Option<Self> {
        let mut sizes = sizes_from_environment();
        let layout = loop {
            let layout = Layout::new(sizes);
            let is_sized = file.set_len((layout.file_words * 8) as u64).is_ok();
            let lane = layout.lanes.get(usize::from(device)).or(layout.lanes.first())?;
            let host = layout.lanes.get(HOST_LANE)?;
            let words = layout.front_words() + lane.end - lane.head + host.end - host.head;
            let fits = (words * 8) as u64 <= free_bytes(&file) / SHARE_OF_FREE_SPACE;
            if is_sized
                && fits
                && give_pages(&file, 0, layout.front_words())
                && give_lane(&file, lane)
                && give_lane(&file, host)
            {
                break layout;
            }
            file.set_len(0).ok()?;
            let larger = sizes;
            sizes = Sizes {
                events: (sizes.events / 2).max(EVENTS_MIN),
                table_entries: (sizes.table_entries / 2).max(EVENTS_MIN),
                interned_words: (sizes.interned_words / 2).max(1 << 16),
                ..sizes
            };
            if sizes == larger {
                return None;
            }
        };
        let id = identify(&file)?;
        let words = hold(path, id, layout.file_words, off_in_children)?;
        lock(&file, libc::F_SETLK, 0, LOCKED_BYTE)?;
        Some(Self { file, id, layout, words })
    }

    /// Layout of the tape.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The tape.
    pub(crate) fn words(&self) -> &'static [AtomicU64] {
        self.words
    }

    /// Gives a lane its pages; false when there is no space for it.
    pub(crate) fn give_lane(&self, lane: &LaneLayout) -> bool {
        identify(&self.file) == Some(self.id)
            && without_file_limit_signal(|| give_lane(&self.file, lane))
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
        // Jobs of several users share the default folder, like /tmp.
        DirBuilder::new().recursive(true).create(&directory).ok()?;
        // The mode given to `create` would be subject to the umask. A link is not followed.
        let flags = libc::O_NOFOLLOW | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let folder = OpenOptions::new().read(true).custom_flags(flags).open(&directory);
        let _ = folder.and_then(|it| it.set_permissions(Permissions::from_mode(0o1777)));
    }
    let path = Path::new(&directory).join(format!("{}-{mono_ns:x}.tape", std::process::id()));
    let file = open_options().create_new(true).mode(0o600).open(&path).ok()?;
    Some((path, off_the_standard_streams(file)?))
}

fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
    options
}

/// A program that closed its standard output and prints must not print onto the tape.
fn off_the_standard_streams(file: File) -> Option<File> {
    if file.as_raw_fd() >= DESCRIPTOR_MIN {
        return Some(file);
    }
    // SAFETY: the descriptor is open; the new one, where there is one, has no other owner.
    unsafe {
        let higher = libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, DESCRIPTOR_MIN);
        (higher >= DESCRIPTOR_MIN).then(|| File::from_raw_fd(higher))
    }
}

fn identify(file: &File) -> Option<(u64, u64)> {
    file.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

fn give_lane(file: &File, lane: &LaneLayout) -> bool {
    give_pages(file, lane.head, lane.end - lane.head)
}

fn give_pages(file: &File, first_word: usize, words: usize) -> bool {
    let (offset, length) = ((first_word * 8) as libc::off_t, (words * 8) as libc::off_t);
    // SAFETY: the descriptor is open; the call changes only the file.
    unsafe { libc::fallocate(file.as_raw_fd(), 0, offset, length) == 0 }
}

/// Bytes free on the file's file system; 0 when unknown.
fn free_bytes(file: &File) -> u64 {
    // SAFETY: all-zero is a valid statvfs for the call to fill.
    let mut space: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and the struct is the call's own.
    let result = unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut space) };
    if result == 0 { space.f_bavail.saturating_mul(space.f_frsize) } else { 0 }
}

fn lock(file: &File, how: libc::c_int, start: libc::off_t, bytes: libc::off_t) -> Option<()> {
    // SAFETY: all-zero is a valid flock.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = libc::F_WRLCK as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    request.l_start = start;
    request.l_len = bytes;
    // SAFETY: the descriptor is open and the request is valid.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), how, &raw const request) };
    (result == 0).then_some(())
}

/// Maps the tape and takes the second lock. The mapping is of an open file of its own, which is
/// closed here: closing one later would drop the first lock.
fn hold(
    path: &Path,
    id: (u64, u64),
    words: usize,
    off_in_children: fn() -> bool,
) -> Option<&'static [AtomicU64]> {
    let file = open_options().open(path).ok()?;
    (identify(&file)? == id).then_some(())?;
    let words = map(&file, words)?;
    let (start, bytes) = (words.as_ptr().cast_mut().cast(), size_of_val(words));
    // A child that wrote would write onto its parent's tape, and one that has the mapping would
    // keep the second lock when the parent is dead.
    // SAFETY: the mapping is whole; in children, where it is missing, the recorder is off.
    let is_ours_alone =
        off_in_children() && unsafe { libc::madvise(start, bytes, libc::MADV_DONTFORK) == 0 };
    if is_ours_alone {
        // Without the second lock the first one must suffice.
        let _ = lock(&file, libc::F_OFD_SETLK, LOCKED_BYTE, 1);
    }
    Some(words)
}

fn map(file: &File, words: usize) -> Option<&'static [AtomicU64]> {
    // SAFETY: a fresh shared mapping of an open file, which is never unmapped.
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
