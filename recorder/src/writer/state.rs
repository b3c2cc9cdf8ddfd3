//! The recorder's state: asleep, waking, recording or off; and the lanes of its tape.
//!
//! ```text
//! ASLEEP ──first GPU memory──▶ WAKING ──▶ RECORDING ──fork──▶ (child) OFF
//!                                  │           └── inner failure ──▶ OFF, and the tape says why
//!                                  └── no space for a tape ──▶ OFF
//! ```
//!
//! Nothing else in the recorder keeps state of the tape. What wakes it is in `hooks/wake.rs`.
//! Device lanes are written under PyTorch's device mutex, so by one thread at a time; every other
//! lane has a lock that is tried a bounded number of times.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock};

use memtape_tape::layout::{
    CPU_LANE, Disabled, HOST_LANE, LANES, State, Tracker, descriptor, head, header, hooks,
};
use memtape_tape::limits::DEVICES_MAX;
use memtape_tape::mailbox::Offers;
use memtape_tape::read::identity_text;
use memtape_tape::step_boundary::StepBoundary;
use memtape_tape::write::Lane;
use memtape_tape::{Birth, Words};

use crate::host::errno::keeping_errno;
use crate::host::process::{self, OwnPage};
use crate::host::{bus_error, clock, environment};
use crate::stacks::availability;
use crate::stacks::interner::Interner;
use crate::writer::offers;
use crate::writer::tape_file::TapeFile;
use crate::writer::trace::Traces;

/// Zero: the value of `HERE` in a forked child.
const ASLEEP: u8 = 0;
const WAKING: u8 = 1;
const RECORDING: u8 = 2;
const OFF: u8 = 3;

/// The state, and the recorder while it records.
static HERE: OwnPage<Recorder> = OwnPage::zero();
static RECORDER: OnceLock<Recorder> = OnceLock::new();

/// Everything the recorder has once it is awake.
pub(crate) struct Recorder {
    file: TapeFile,
    words: Words<'static>,
    interner: Interner,
    lanes: [LaneSlot; LANES],
    traces: [Traces; DEVICES_MAX],
    step_boundary: Mutex<StepBoundary>,
    /// Both clocks when the recorder woke up.
    since: clock::Both,
    /// The program asked for all detail (`MEMTAPE_DETAIL=1`).
    wants_detail: bool,
    /// The remedies that the job opts in to (`MEMTAPE_ACTIONS`).
    opted_in: Offers,
    /// PyTorch is configured to use `cudaMallocAsync` instead of its own allocator.
    async_backend: bool,
    pid: u32,
}

/// A lane and its writer.
struct LaneSlot {
    /// Writer of the lane, a [`LaneUse`].
    used: AtomicU8,
    lane: Lane<'static>,
}

/// Writer of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum LaneUse {
    /// No writer yet.
    Untried = 0,
    /// PyTorch's caching allocator, under its device mutex.
    Allocator = 1,
    /// No space for the lane on the tape.
    NoSpace = 2,
    /// Several threads, under the lane's own lock.
    Shared = 3,
    /// A thread is opening the lane.
    Opening = 4,
}

impl Recorder {
    fn start(device: u8, steps: u64) -> Option<Self> {
        let since = clock::Both::now();
        let before = clock::system_mono_ns();
        let wall_ns = clock::wall_ns();
        let after = clock::system_mono_ns();
        let mono_ns = before.midpoint(after);
        let file = TapeFile::make(device, mono_ns, || HERE.wipe_in_children())?;
        bus_error::watch(file.words(), disable);
        let words = Words(file.words());
        let birth = Birth {
            boot_id: process::boot_id(),
            pid: u64::from(std::process::id()),
            pid_namespace: process::pid_namespace(),
            mono_ns,
            wall_ns,
            clock_error_ns: after - before,
            identity: identity_text(&process::identity()),
        };
        words.mark_step(mono_ns, steps);
        words.format(file.layout(), &birth);
        let (stacks, python) = availability::prepare();
        words.set(header::STACKS, stacks as u64);
        words.set(header::PYTHON, u64::from(python));
        words.set(header::OUTSIDE, 1);
        let slot = |index: usize| {
            let at = file.layout().lanes.get(index).copied().unwrap_or_default();
            LaneSlot { used: AtomicU8::new(0), lane: Lane::new(words, at, index as u8) }
        };
        clock::start(since);
        Some(Self {
            words,
            interner: Interner::new(words),
            lanes: std::array::from_fn(slot),
            traces: Default::default(),
            step_boundary: Mutex::new(StepBoundary::default()),
            since,
            wants_detail: wants_detail(),
            opted_in: offers::from_environment(),
            async_backend: ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"].iter().any(|name| {
                std::env::var(name).is_ok_and(|settings| settings.contains("cudaMallocAsync"))
            }),
            pid: std::process::id(),
            file,
        })
    }

    /// The tape.
    #[inline(always)]
    pub(crate) fn words(&self) -> Words<'static> {
        self.words
    }

    /// Stacks and strings, as numbers on the tape.
    #[inline(always)]
    pub(crate) fn interner(&self) -> &Interner {
        &self.interner
    }

    /// The newest trace entries of a device.
    #[inline(always)]
    pub(crate) fn traces(&self, device: u8) -> Option<&Traces> {
        self.traces.get(usize::from(device))
    }

    /// Which optimizer call ends a step.
    pub(crate) fn step_boundary(&self) -> &Mutex<StepBoundary> {
        &self.step_boundary
    }

    /// Both clocks when the recorder woke up.
    pub(crate) fn since(&self) -> clock::Both {
        self.since
    }

    /// True when the program asked for all detail.
    #[inline(always)]
    pub(crate) fn wants_detail(&self) -> bool {
        self.wants_detail
    }

    /// The remedies that the job opts in to.
    pub(crate) fn opted_in(&self) -> Offers {
        self.opted_in
    }

    /// True when PyTorch's trace tracker is attached.
    #[inline]
    pub(crate) fn is_traced(&self) -> bool {
        self.wants_detail && self.words.get(header::TRACKER) == Tracker::Attached as u64
    }

    /// True when PyTorch is configured to use `cudaMallocAsync` instead of its own allocator.
    pub(crate) fn has_async_backend(&self) -> bool {
        self.async_backend
    }

    /// First word of the tables of collectives.
    pub(crate) fn collectives(&self) -> usize {
        self.file.layout().collectives
    }

    /// The lane of a device for its allocator's reports, opened at its first use. Under that
    /// device's mutex.
    #[inline(always)]
    pub(crate) fn allocator_lane(&self, device: u8) -> Option<&Lane<'static>> {
        let slot = self.lanes.get(usize::from(device)).filter(|_| device < DEVICES_MAX as u8)?;
        let is_open = slot.used.load(Ordering::Acquire) == LaneUse::Allocator as u8
            || self.open(usize::from(device), LaneUse::Allocator) == Some(LaneUse::Allocator);
        is_open.then_some(&slot.lane)
    }

    /// Writes onto a lane under the lane's lock, opening it if need be. `None` when there is no
    /// such lane, or when another thread held the lock for too long.
    pub(crate) fn with_shared_lane<R>(
        &self,
        index: usize,
        write: impl FnOnce(&Lane<'static>) -> R,
    ) -> Option<R> {
        let slot = self.lanes.get(index)?;
        if self.open(index, LaneUse::Shared) != Some(LaneUse::Shared) {
            return None;
        }
        let mut result = None;
        slot.lane.try_lock(|lane| result = Some(write(lane)));
        result
    }

    /// Writes onto a device's lane under the lane's lock; counts an event that cannot be written.
    pub(crate) fn write_device(&self, device: u8, write: impl FnOnce(&Lane<'static>)) {
        let index = usize::from(device);
        if index >= DEVICES_MAX || self.with_shared_lane(index, write).is_none() {
            self.words.count(header::LOST_DEVICE_EVENTS);
        }
    }

    /// Writes onto the host lane or that of CPU tensors under the lane's lock; counts an event that
    /// cannot be written.
    pub(crate) fn write_host<R>(
        &self,
        index: usize,
        write: impl FnOnce(&Lane<'static>) -> R,
    ) -> Option<R> {
        let result = self.with_shared_lane(index, write);
        if result.is_none() {
            self.words.count(header::LOST_HOST_EVENTS);
        }
        result
    }

    /// Present writer of a lane.
    pub(crate) fn lane_use(&self, index: usize) -> LaneUse {
        match self.lanes.get(index).map(|slot| slot.used.load(Ordering::Acquire)) {
            Some(1) => LaneUse::Allocator,
            Some(2) => LaneUse::NoSpace,
            Some(3) => LaneUse::Shared,
            Some(4) => LaneUse::Opening,
            _ => LaneUse::Untried,
        }
    }

    /// True when a device has a lane on the tape.
    pub(crate) fn has_lane(&self, device: u8) -> bool {
        usize::from(device) < DEVICES_MAX && self.descriptor(device, descriptor::STATE) == 1
    }

    /// Bytes that PyTorch's allocator holds of a device, as it reported last.
    pub(crate) fn reserved_bytes(&self, device: u8) -> u64 {
        if !self.has_lane(device) {
            return 0;
        }
        let at = self.descriptor(device, descriptor::HEAD) as usize;
        self.words.get(at + head::RESERVED_BYTES)
    }

    fn descriptor(&self, device: u8, word: usize) -> u64 {
        self.words.get(header::DESCRIPTORS + usize::from(device) * descriptor::WORDS + word)
    }

    /// Opens a lane for `wanted` unless it has a writer; who writes it then.
    #[cold]
    fn open(&self, index: usize, wanted: LaneUse) -> Option<LaneUse> {
        keeping_errno(|| self.try_to_open(index, wanted))
    }

    fn try_to_open(&self, index: usize, wanted: LaneUse) -> Option<LaneUse> {
        let slot = self.lanes.get(index)?;
        let (untried, opening) = (LaneUse::Untried as u8, LaneUse::Opening as u8);
        let won = slot.used.load(Ordering::Acquire) == untried
            && slot
                .used
                .compare_exchange(untried, opening, Ordering::AcqRel, Ordering::Acquire)
                .is_ok();
        if won {
            let has_pages = self.file.give_lane(self.file.layout().lanes.get(index)?);
            if has_pages {
                if wanted == LaneUse::Allocator {
                    self.words.at(header::HOOKS).fetch_or(hooks::REPORT, Ordering::Relaxed);
                }
                self.words.open_lane(index, self.file.layout());
            }
            let used = if has_pages { wanted } else { LaneUse::NoSpace };
            slot.used.store(used as u8, Ordering::Release);
        }
        Some(self.lane_use(index))
    }

    /// Says on the tape that a hook has fired.
    #[inline]
    pub(crate) fn note_hook(&self, bit: u64) {
        let seen = self.words.get(header::HOOKS);
        if seen & bit == 0 {
            self.words.at(header::HOOKS).fetch_or(bit, Ordering::Relaxed);
        }
    }
}

/// True when the program asked for all detail.
pub(crate) fn wants_detail() -> bool {
    environment::is_on("MEMTAPE_DETAIL")
}

/// The recorder, while it records.
#[inline(always)]
pub(crate) fn recording() -> Option<&'static Recorder> {
    let recorder = HERE.pointer.load(Ordering::Acquire);
    // SAFETY: null, or the recorder in `RECORDER`, which is never dropped.
    unsafe { recorder.as_ref() }
}

/// True until the process first takes GPU memory.
pub(crate) fn is_asleep() -> bool {
    HERE.state.load(Ordering::Acquire) == ASLEEP
}

/// True while another thread makes the tape.
pub(crate) fn is_waking() -> bool {
    HERE.state.load(Ordering::Acquire) == WAKING
}

/// Arguments for the start of a recording.
pub(crate) struct Waking {
    /// The device whose memory was taken.
    pub(crate) device: u8,
    /// Training steps that have ended.
    pub(crate) steps: u64,
    /// False when this process is not to be recorded.
    pub(crate) is_wanted: bool,
    /// Sees to it that a fork and the exit are noticed; called before anything is recorded.
    pub(crate) watch: fn(),
}

/// Makes the tape and begins to record, once in a process. `None` when the process stays
/// unrecorded, or another thread wakes the recorder.
pub(crate) fn wake(waking: Waking) -> Option<&'static Recorder> {
    if HERE.state.compare_exchange(ASLEEP, WAKING, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return None;
    }
    // In a child there may be its parent's recorder.
    let is_wanted = waking.is_wanted && RECORDER.get().is_none();
    let recorder = if is_wanted { Recorder::start(waking.device, waking.steps) } else { None };
    let is_awake = recorder.is_some_and(|recorder| RECORDER.set(recorder).is_ok());
    if is_awake {
        (waking.watch)();
    }
    HERE.state.store(if is_awake { RECORDING } else { OFF }, Ordering::Release);
    if let Some(recorder) = RECORDER.get().filter(|_| is_awake) {
        HERE.pointer.store(std::ptr::from_ref(recorder).cast_mut(), Ordering::Release);
    }
    recording()
}

/// Turns the recorder off without a note on the tape: its memory is gone, or this is a forked child
/// and the tape is the parent's. Does only what a signal handler may.
pub(crate) fn disable() {
    HERE.pointer.store(std::ptr::null_mut(), Ordering::Release);
    HERE.state.store(OFF, Ordering::Release);
}

/// Turns the recorder off after a panic in it, and notes that on the tape.
#[cold]
pub(crate) fn disable_after_inner_failure() {
    HERE.pointer.store(std::ptr::null_mut(), Ordering::Release);
    if HERE.state.swap(OFF, Ordering::AcqRel) == RECORDING
        && let Some(recorder) = RECORDER.get()
    {
        recorder.words.set(header::DISABLED, Disabled::InnerFailure as u64);
        recorder.words.set(header::STATE, State::Disabled as u64);
    }
}

/// True when this process made a tape, whether or not it still records. False in a forked child.
pub(crate) fn owns_tape() -> bool {
    RECORDER.get().is_some_and(|recorder| recorder.pid == std::process::id())
}

/// Writes the exit status onto this process's tape.
pub(crate) fn seal(status: c_int) {
    if let Some(recorder) = RECORDER.get().filter(|_| owns_tape()) {
        recorder.words.set(header::EXIT_STATUS, u64::from(status as u32) + 1);
        recorder.words.set(header::STATE, State::Sealed as u64);
    }
}

const _: () = assert!(HOST_LANE < LANES && CPU_LANE < LANES);
