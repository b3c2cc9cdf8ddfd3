//! A rank for tests: a real tape, written by core's writer, and a real process that holds its lock.
//!
//! The process is `sleep`, mostly: a POSIX lock taken between fork and exec lives on in it. The
//! tape is written from the test's own process, as if the two were one.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::AtomicU64;

use memtape_core::identity::{Identity, boot_id_words};
use memtape_core::snapshot::origin::Origin;
use memtape_core::tape::event::Kind;
use memtape_core::tape::interned::InternedWriter;
use memtape_core::tape::layout::{Layout, Sizes, State, device, header, hooks};
use memtape_core::tape::read::identity_text;
use memtape_core::tape::write::{Grant, Lane, Totals};
use memtape_core::tape::{Birth, Words};
use rustix::time::{ClockId, clock_gettime};

/// Sizes that make a tape of about 1 MiB which holds everything a small test does.
pub(crate) const SMALL: Sizes = Sizes {
    events: 4096,
    table_entries: 1024,
    step_records: 1024,
    segment_entries: 64,
    interned_words: 4096,
};

/// Its command line, as a recorder of an older version wrote it.
pub(crate) const COMMAND: &str = "python train.py --wandb-key=hush0hush --my-licence mute0mute";

/// A rank.
pub(crate) struct Rank {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    pub(crate) tape_id: String,
    words: Words<'static>,
    layout: Layout,
    process: Child,
    step: u64,
    allocated: u64,
    stack: u32,
}

impl Rank {
    /// Starts rank `rank` of `job` with a tape in `dir`.
    pub(crate) fn start(dir: &Path, job: &str, rank: u32, sizes: Sizes) -> Self {
        let mut command = Command::new("sleep");
        command.arg("600");
        Self::start_as(command, dir, job, rank, sizes)
    }

    /// As [`Self::start`], with another process than `sleep`.
    pub(crate) fn start_as(
        command: Command,
        dir: &Path,
        job: &str,
        rank: u32,
        sizes: Sizes,
    ) -> Self {
        let path = dir.join(format!("{job}-{rank}.tape"));
        let making = path.with_extension("making");
        let process = make_and_lock(command, &making);
        let file = OpenOptions::new().read(true).write(true).open(&making).expect("a new tape");
        let layout = Layout::new(sizes);
        file.set_len(layout.file_words as u64 * 8).expect("size");
        let words = Words(map(&file, layout.file_words));
        let identity = Identity {
            job: job.to_string(),
            rank,
            world_size: 2,
            host: "node-1".to_string(),
            command: COMMAND.to_string(),
            role: "pp0".to_string(),
            ..Identity::default()
        };
        let mono_ns = now_ns(ClockId::Monotonic);
        let boot_id = boot_id();
        words.format(
            &layout,
            &Birth {
                boot_id,
                pid: u64::from(process.id()),
                mono_ns,
                wall_ns: now_ns(ClockId::Realtime),
                clock_error_ns: 100,
                identity: identity_text(&identity),
                ..Birth::default()
            },
        );
        words.open_lane(0, &layout);
        words.set(Words::device_word(0, device::TOTAL_BYTES), 80 << 30);
        words.set(Words::device_word(0, device::UUID), 0x0102_0304_0506_0708);
        let entries = InternedWriter(words);
        let frame = entries
            .string(b"/app/train.py")
            .zip(entries.string(b"train_step"))
            .and_then(|(file, function)| entries.frame(file, function, 36))
            .expect("room for a frame");
        let stack = entries.stack(&[frame]).expect("room for a stack");
        // The name comes last: an agent that is already running sees a whole tape.
        std::fs::rename(&making, &path).expect("rename");
        let uid = file.metadata().expect("its owner").uid();
        let tape_id = format!("{:08x}{:08x}{mono_ns:016x}-{uid}", boot_id[0] >> 32, process.id());
        Self { path, file, tape_id, words, layout, process, step: 0, allocated: 0, stack }
    }

    /// Writes a line to the process's standard input.
    pub(crate) fn say(&mut self, line: &str) {
        let input = self.process.stdin.as_mut().expect("a pipe");
        writeln!(input, "{line}").expect("the process reads");
    }

    /// Process id of the process that holds the lock.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Allocates a block on device 0.
    pub(crate) fn alloc(&mut self, address: u64, size: u64) {
        self.allocated += size;
        let now = now_ns(ClockId::Monotonic);
        let grant = Grant { address, size, stack: self.stack, ..Grant::default() };
        self.lane().alloc(now, grant, self.totals());
    }

    /// Pinned host memory was taken.
    pub(crate) fn pin(&mut self, bytes: u64) {
        self.words.set(header::OUTSIDE, 1);
        self.words.set(header::HOOKS, self.words.get(header::HOOKS) | hooks::PINNED);
        self.words.add_outside(Origin::HostPinned, 0, bytes);
    }

    /// Writes a word of the header, whatever that makes of the tape.
    pub(crate) fn scribble(&self, word: usize, value: u64) {
        self.words.set(word, value);
    }

    /// A word of the header.
    pub(crate) fn word(&self, word: usize) -> u64 {
        self.words.get(word)
    }

    /// A request for memory fails for good.
    pub(crate) fn out_of_memory(&mut self, size: u64) {
        let grant = Grant { size, stack: self.stack, ..Grant::default() };
        self.lane().failure(now_ns(ClockId::Monotonic), Kind::Oom, grant, self.totals());
    }

    /// Ends steps, each with one block that stays (at 0x10000 times the step) and one that goes.
    pub(crate) fn train(&mut self, steps: u64) {
        for _ in 0..steps {
            self.alloc((self.step + 1) << 16, 512);
            self.alloc(0x100, 256);
            self.allocated -= 256;
            self.lane().free(now_ns(ClockId::Monotonic), 0x100, 256, self.totals());
            self.step += 1;
            self.words.mark_step(now_ns(ClockId::Monotonic), self.step);
        }
    }

    /// Seals the tape and ends the process.
    pub(crate) fn exit(&mut self) {
        self.words.set(header::STATE, State::Sealed as u64);
        self.kill();
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("kill");
        self.process.wait().expect("wait");
    }

    fn lane(&self) -> Lane<'static> {
        Lane::new(self.words, self.layout.lanes[0], 0)
    }

    fn totals(&self) -> Totals {
        Totals { allocated: self.allocated, reserved: self.allocated.next_multiple_of(2 << 20) }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may be dead already
        let _ = self.process.wait();
    }
}

/// The node's, as a recorder writes it.
fn boot_id() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot id");
    boot_id_words(&text)
}

/// Starts a process that makes a file and holds its lock.
fn make_and_lock(mut command: Command, path: &Path) -> Child {
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path");
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: between fork and exec only two system calls are made, on memory of this closure.
    unsafe {
        command.pre_exec(move || {
            let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
            let descriptor = libc::open(path.as_ptr(), flags, 0o600);
            let locked = libc::fcntl(descriptor, libc::F_SETLK, &raw const lock);
            if locked == -1 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    command.spawn().expect("a process")
}

fn map(file: &File, words: usize) -> &'static [AtomicU64] {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping, page-aligned and as long as said, that is never unmapped.
    unsafe {
        let start = mmap(std::ptr::null_mut(), words * 8, access, MapFlags::SHARED, file, 0);
        std::slice::from_raw_parts(start.expect("mapping").cast::<AtomicU64>(), words)
    }
}

fn now_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).expect("after 1970")
}
