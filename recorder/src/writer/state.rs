//! The recorder's state: asleep, awake, off; and the lanes it writes.
//!
//! ```text
//! ASLEEP ──first GPU memory──▶ WAKING ──▶ RECORDING ──fork──▶ (child) OFF
//!                                  │           └── inner failure ──▶ OFF, and the tape says why
//!                                  └── no place for a tape ──▶ OFF
//! ```
//!
//! What the hooks saw is written by `reports.rs` (PyTorch's allocator), `outside.rs` (everything
//! else that takes memory) and `marks.rs` (steps, phases). Device lanes are written under PyTorch's
//! device mutex, so one thread at a time; all others have a lock that is tried, not waited for.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use memtape_core::boundary::Boundary;
use memtape_core::tape::layout::{
    CPU_LANE, DEVICES_MAX, Disabled, HOST_LANE, LANES, State, Tracker, header, hooks,
};
use memtape_core::tape::read::identity_text;
use memtape_core::tape::write::Lane;
use memtape_core::tape::{Birth, Words};

use crate::background::collectives;
use crate::background::control;
use crate::background::cupti;
use crate::hooks::tracker;
use crate::host::clock;
use crate::host::process;
use crate::host::process::{OwnPage, Place};
use crate::stacks::interner::Interner;
use crate::stacks::python_frames;
use crate::writer::hot_path::Traces;
use crate::writer::panic_boundary;
use crate::writer::panic_boundary::keeping_errno;
use crate::writer::steps;
use crate::writer::tape_file::TapeFile;

/// Zero: what a child finds in `HERE`.
const ASLEEP: u8 = 0;
const WAKING: u8 = 1;
const RECORDING: u8 = 2;
const OFF: u8 = 3;

/// The state, and the guest while it records.
static HERE: OwnPage<Guest> = OwnPage::zero();
static GUEST: OnceLock<Guest> = OnceLock::new();
/// One of [`Tracker`].
static TRACKER: AtomicU64 = AtomicU64::new(Tracker::NotAsked as u64);
static LOST_WHILE_WAKING: AtomicU64 = AtomicU64::new(0);

/// Everything the recorder has once it is awake.
pub(crate) struct Guest {
    file: TapeFile,
    pub(crate) words: Words<'static>,
    pub(crate) interner: Interner,
    lanes: [LaneSlot; LANES],
    pub(crate) traces: [Traces; DEVICES_MAX],
    pub(crate) boundary: Mutex<Boundary>,
    /// Both clocks when the recorder woke up.
    pub(crate) since: clock::Both,
    /// The program asked for all detail (`MEMTAPE_DETAIL=1`).
    pub(crate) wants_detail: bool,
    /// PyTorch was told to use `cudaMallocAsync` instead of its own allocator.
    pub(crate) async_backend: bool,
    pid: u32,
}

/// A lane and who writes it.
struct LaneSlot {
    /// One of [`LaneUse`].
    used: AtomicU8,
    lane: Lane<'static>,
}

/// Who writes a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum LaneUse {
    /// Nobody yet.
    Untried = 0,
    /// PyTorch's caching allocator, under its device mutex.
    Allocator = 1,
    /// There is no space for it.
    NoSpace = 2,
    /// Several threads, under the lane's own lock.
    Shared = 3,
    /// Nobody yet: it is being opened.
    Opening = 4,
}

impl Guest {
    fn start(device: u8) -> Option<Self> {
        let since = clock::Both::now();
        let before = clock::system_mono_ns();
        let wall_ns = clock::wall_ns();
        let after = clock::system_mono_ns();
        let mono_ns = before.midpoint(after);
        let file = TapeFile::make(device, mono_ns)?;
        let words = Words(file.words);
        let birth = Birth {
            boot_id: process::boot_id(),
            pid: u64::from(std::process::id()),
            pid_namespace: process::pid_namespace(),
            mono_ns,
            wall_ns,
            anchor_error_ns: after - before,
            identity: identity_text(&process::identity()),
        };
        words.mark_step(mono_ns, steps::steps());
        words.format(&file.layout, &birth);
        let (stacks, python) = python_frames::prepare();
        words.set(header::STACKS, stacks as u64);
        words.set(header::PYTHON, u64::from(python));
        words.set(header::OUTSIDE, 1);
        let slot = |index: usize| {
            let at = file.layout.lanes.get(index).copied().unwrap_or_default();
            LaneSlot { used: AtomicU8::new(0), lane: Lane::new(words, at, index as u8) }
        };
        clock::start(since);
        Some(Self {
            words,
            interner: Interner::new(words),
            lanes: std::array::from_fn(slot),
            traces: Default::default(),
            boundary: Mutex::new(Boundary::default()),
            since,
            wants_detail: asks_for("MEMTAPE_DETAIL"),
            async_backend: ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"].iter().any(|name| {
                std::env::var(name).is_ok_and(|settings| settings.contains("cudaMallocAsync"))
            }),
            pid: std::process::id(),
            file,
        })
    }

    /// The lane of a device for its allocator's reports, opened when it is first used. Under that
    /// device's mutex.
    #[inline(always)]
    pub(crate) fn allocator_lane(&self, device: u8) -> Option<&Lane<'static>> {
        let slot = self.lanes.get(usize::from(device)).filter(|_| device < DEVICES_MAX as u8)?;
        let is_open = slot.used.load(Ordering::Acquire) == LaneUse::Allocator as u8
            || self.open(usize::from(device), LaneUse::Allocator) == Some(LaneUse::Allocator);
        is_open.then_some(&slot.lane)
    }

    /// Writes onto a lane under its own lock, opening it if need be. `None` when that cannot be:
    /// there is no such lane, or another thread had the lock for long.
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

    /// The same for a device's lane; what cannot be written is counted.
    pub(crate) fn write_shared(&self, device: u8, write: impl FnOnce(&Lane<'static>)) {
        let index = usize::from(device);
        if index >= DEVICES_MAX || self.with_shared_lane(index, write).is_none() {
            self.words.count(header::LOST_DEVICE_EVENTS);
        }
    }

    /// Who writes a lane now.
    pub(crate) fn lane_use(&self, index: usize) -> LaneUse {
        match self.lanes.get(index).map(|slot| slot.used.load(Ordering::Acquire)) {
            Some(1) => LaneUse::Allocator,
            Some(2) => LaneUse::NoSpace,
            Some(3) => LaneUse::Shared,
            Some(4) => LaneUse::Opening,
            _ => LaneUse::Untried,
        }
    }

    /// Opens a lane for `wanted` unless somebody has it already; who has it now.
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
            let given = self.file.give_lane(self.file.layout.lanes.get(index)?);
            if given {
                if wanted == LaneUse::Allocator {
                    self.words.at(header::HOOKS).fetch_or(hooks::REPORT, Ordering::Relaxed);
                }
                self.words.open_lane(index, &self.file.layout);
            }
            let used = if given { wanted } else { LaneUse::NoSpace };
            slot.used.store(used as u8, Ordering::Release);
        }
        Some(self.lane_use(index))
    }

    /// Attaches PyTorch's trace tracker where the program asked for it and nobody has yet.
    #[cold]
    pub(crate) fn attach_tracker(&self) {
        if self.wants_detail {
            keeping_errno(attach_tracker);
        }
        self.words.set(header::TRACKER, TRACKER.load(Ordering::Relaxed));
    }

    /// First word of the tables of collectives.
    pub(crate) fn collectives(&self) -> usize {
        self.file.layout.collectives
    }

    /// True when the allocator itself tells of everything.
    #[inline]
    pub(crate) fn is_traced(&self) -> bool {
        self.wants_detail && self.words.get(header::TRACKER) == Tracker::Attached as u64
    }
}

/// The recorder, while it records.
#[inline(always)]
pub(crate) fn recording() -> Option<&'static Guest> {
    let guest = HERE.pointer.load(Ordering::Acquire);
    // SAFETY: null, or the guest in `GUEST`, which stays.
    unsafe { guest.as_ref() }
}

/// The recorder, woken up if this is the process's first GPU memory.
#[inline(always)]
pub(crate) fn awake(device: u8) -> Option<&'static Guest> {
    recording().or_else(|| not_awake(device))
}

#[cold]
fn not_awake(device: u8) -> Option<&'static Guest> {
    match HERE.state.load(Ordering::Acquire) {
        ASLEEP => keeping_errno(|| wake(device)),
        WAKING => {
            // Another thread's first allocation, on another device, while the tape is being made.
            LOST_WHILE_WAKING.fetch_add(1, Ordering::Relaxed);
            None
        }
        _ => None,
    }
}

/// PyTorch looks at the devices' properties, which it does between making its allocator and using
/// it: whoever asked for all detail wants the first segment, too.
pub(crate) fn device_looked_at() {
    cupti::subscribe();
    static ASKED: OnceLock<bool> = OnceLock::new();
    let asleep = HERE.state.load(Ordering::Acquire) == ASLEEP;
    if asleep && *ASKED.get_or_init(|| asks_for("MEMTAPE_DETAIL")) {
        attach_tracker();
        if TRACKER.load(Ordering::Relaxed) == Tracker::Attached as u64 {
            let _ = awake(0);
        }
    }
}

/// Attaches the tracker, unless it is or never can be.
fn attach_tracker() {
    let may_come = [Tracker::NotAsked, Tracker::NotReady, Tracker::NoAllocator];
    let state = TRACKER.load(Ordering::Relaxed);
    if may_come.iter().any(|&each| each as u64 == state) {
        TRACKER.store(tracker::attach() as u64, Ordering::Relaxed);
    }
}

/// A panic reached the edge: off, for good.
#[cold]
pub(crate) fn disable_after_inner_failure() {
    HERE.pointer.store(std::ptr::null_mut(), Ordering::Release);
    if HERE.state.swap(OFF, Ordering::AcqRel) == RECORDING
        && let Some(guest) = GUEST.get()
    {
        guest.words.set(header::DISABLED, Disabled::InnerFailure as u64);
        guest.words.set(header::STATE, State::Disabled as u64);
    }
}

/// From now on a child of this process finds the recorder asleep, and not its parent's. False where
/// the kernel cannot do that.
pub(crate) fn forget_in_children() -> bool {
    HERE.wipe_in_children()
}

/// The tape's memory is gone. Called by a signal handler.
pub(crate) fn disable_without_tape() {
    HERE.pointer.store(std::ptr::null_mut(), Ordering::Release);
    HERE.state.store(OFF, Ordering::Release);
}

/// In a forked child: the tape is the parent's.
pub(crate) fn detach() {
    HERE.pointer.store(std::ptr::null_mut(), Ordering::Release);
    HERE.state.store(OFF, Ordering::Release);
}

/// The process exits in an orderly way, whether or not the recorder still records. A forked child
/// exits too, but the tape is not its own.
pub(crate) fn seal(status: i32) {
    if let Some(guest) = GUEST.get().filter(|guest| guest.pid == std::process::id()) {
        collectives::end();
        guest.words.set(header::EXIT_STATUS, u64::from(status as u32) + 1);
        guest.words.set(header::STATE, State::Sealed as u64);
    }
}

/// Says on the tape that a hook has fired.
#[inline]
pub(crate) fn note_hook(bit: u64) {
    if let Some(guest) = recording() {
        let seen = guest.words.get(header::HOOKS);
        if seen & bit == 0 {
            guest.words.at(header::HOOKS).fetch_or(bit, Ordering::Relaxed);
        }
    }
}

/// Says on the tape why a hook is not there.
pub(crate) fn note_refusal(word: usize, reason: u64) {
    if let Some(guest) = recording() {
        guest.words.set(word, reason);
    }
}

/// True when an environment variable switches something on.
pub(crate) fn asks_for(name: &str) -> bool {
    switch(name) == Some(true)
}

/// What an environment variable switches something to; `None` when it is not set.
pub(crate) fn switch(name: &str) -> Option<bool> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    let is = |word| value.eq_ignore_ascii_case(word);
    Some(!["0", "false", "off", "no"].into_iter().any(is))
}

#[cold]
fn wake(device: u8) -> Option<&'static Guest> {
    if HERE.state.compare_exchange(ASLEEP, WAKING, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return None;
    }
    let place = process::place();
    // The recorder in front records everything: two tapes would be two ranks. In a child there is
    // already the guest of its parent.
    let is_taken = place == Place::Second || GUEST.get().is_some();
    let is_off = asks_for("MEMTAPE_DISABLE") || is_taken;
    let guest = if is_off { None } else { Guest::start(device) };
    if place == Place::Preloaded {
        panic_boundary::silence_panics();
    }
    let awake = guest.is_some_and(|guest| GUEST.set(guest).is_ok());
    if awake {
        process::watch(); // before anything is recorded: a fork must never find it missing
    }
    HERE.state.store(if awake { RECORDING } else { OFF }, Ordering::Release);
    if let Some(guest) = GUEST.get().filter(|_| awake) {
        HERE.pointer.store(std::ptr::from_ref(guest).cast_mut(), Ordering::Release);
    }
    let guest = recording()?;
    cupti::report();
    control::start();
    guest.words.add(header::LOST_DEVICE_EVENTS, LOST_WHILE_WAKING.load(Ordering::Relaxed));
    steps::woken();
    guest.attach_tracker();
    Some(guest)
}

const _: () = assert!(HOST_LANE < LANES && CPU_LANE < LANES);
