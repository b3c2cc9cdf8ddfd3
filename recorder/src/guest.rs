//! The recorder's state and its one hot path.
//!
//! ```text
//! ASLEEP ──first GPU memory──▶ WAKING ──▶ RECORDING ──fork──▶ (child) OFF
//!                                  │           └── inner failure ──▶ OFF, and the tape says why
//!                                  └── no place for a tape ──▶ OFF
//! ```
//!
//! Device lanes are written under PyTorch's device mutex, so one thread at a time; the host lane
//! has a lock of its own that is tried, not waited for.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use memtape_core::boundary::Boundary;
use memtape_core::tape::event::Kind;
use memtape_core::tape::lane::{Lane, Totals};
use memtape_core::tape::layout::{
    DEVICES_MAX, Disabled, HOST_LANE, State, StepSource, device, header, hooks,
};
use memtape_core::tape::reader::identity_text;
use memtape_core::tape::rewind::segment_word;
use memtape_core::tape::words::{Birth, Words};

use crate::process::Place;
use crate::stacks::Interner;
use crate::tape_file::TapeFile;
use crate::{clock, control, driver, edge, frames, process};

const ASLEEP: u8 = 0;
const WAKING: u8 = 1;
const RECORDING: u8 = 2;
const OFF: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(ASLEEP);
static GUEST: OnceLock<Guest> = OnceLock::new();
/// Training steps that have ended, as this process counts them.
static STEPS: AtomicU64 = AtomicU64::new(0);
static LOST_WHILE_WAKING: AtomicU64 = AtomicU64::new(0);

/// Everything the recorder has once it is awake.
pub(crate) struct Guest {
    file: TapeFile,
    pub(crate) words: Words<'static>,
    interner: Interner,
    /// 0 not tried, 1 open, 2 no space; one for each lane.
    lanes: [AtomicU8; HOST_LANE + 1],
    boundary: Mutex<Boundary>,
    pid: u32,
}

/// A block of `size` bytes was handed out at `pointer` (`size` negative: taken back), after which
/// the allocator holds `reserved` bytes, `allocated` of them in use. What PyTorch reports.
pub fn report(pointer: u64, size: i64, allocated: u64, reserved: u64, device: u8) {
    let Some(guest) = awake(device) else { return };
    let Some(lane) = guest.device_lane(device) else { return };
    let totals = Totals { allocated, reserved };
    if size >= 0 {
        let stack = guest.interner.current();
        lane.alloc(clock::mono_ns(), pointer, size as u64, stack, totals);
    } else {
        lane.free(clock::mono_ns(), pointer, size.unsigned_abs(), totals);
    }
}

/// Memory was taken from the device, or given back to it (`freed`).
pub fn segment(pointer: u64, size: u64, device: u8, freed: bool) {
    let Some(guest) = awake(device) else { return };
    guest.with_host_lane(|lane, now_ns, stack| {
        let held = lane.live_bytes();
        if freed {
            let Some(word) = lane.live_size(pointer) else { return };
            lane.free(now_ns, pointer, word, totals_of(held.wrapping_sub(word)));
        } else {
            let word = segment_word(size, device);
            lane.alloc(now_ns, pointer, word, stack, totals_of(held.wrapping_add(word)));
        }
    });
}

/// A training step ended.
pub fn step() {
    // Counted even before the first GPU memory: every rank must mean the same by a number.
    let step = STEPS.fetch_add(1, Ordering::Relaxed) + 1;
    if let Some(guest) = recording() {
        guest.words.set(header::STEP_SOURCE, StepSource::Given as u64);
        guest.words.mark_step(clock::mono_ns(), step);
    }
}

/// What the hook on PyTorch's report calls.
#[inline]
pub(crate) fn hooked_report(pointer: u64, size: i64, allocated: u64, reserved: u64, device: u8) {
    report(pointer, size, allocated, reserved, device);
    note_hook(hooks::REPORT);
}

/// What the hook on `cudaMalloc` calls.
pub(crate) fn hooked_segment(pointer: u64, size: u64) {
    segment(pointer, size, driver::current_device(), false);
    note_hook(hooks::SEGMENTS);
}

/// `cudaFree` is about to be called. Never wakes the recorder: there is nothing to forget.
pub(crate) fn segment_freed(pointer: u64) {
    if pointer != 0 && recording().is_some() {
        segment(pointer, 0, 0, true);
    }
}

/// A request failed for good.
pub(crate) fn out_of_memory(size: u64, allocated: u64, reserved: u64, device: u8) {
    let Some(guest) = awake(device) else { return };
    let Some(lane) = guest.device_lane(device) else { return };
    let stack = guest.interner.current();
    let totals = Totals { allocated, reserved };
    lane.failure(clock::mono_ns(), Kind::Oom, size, stack, totals);
    note_hook(hooks::OUT_OF_MEMORY);
}

/// `cudaMalloc` failed: the allocator frees its cache and tries again.
pub(crate) fn malloc_failed(size: u64) {
    let device_index = driver::current_device();
    let Some(guest) = awake(device_index) else { return };
    if usize::from(device_index) < DEVICES_MAX {
        guest.words.count(Words::device_word(device_index, device::MALLOC_FAILURES));
    }
    guest.with_host_lane(|lane, now_ns, stack| {
        let word = segment_word(size, device_index);
        lane.failure(now_ns, Kind::MallocFailed, word, stack, totals_of(lane.live_bytes()));
    });
}

/// An optimizer has stepped; `optimizer` identifies it.
pub(crate) fn optimizer_stepped(optimizer: u64) {
    let Some(guest) = recording() else { return };
    // The program counts its own steps if it ever did.
    if guest.words.get(header::STEP_SOURCE) == StepSource::Given as u64 {
        return;
    }
    // Optimizers step under the GIL: whoever finds this taken lost a race nobody can win.
    let Ok(mut boundary) = guest.boundary.try_lock() else { return };
    if boundary.stepped(optimizer) {
        let step = STEPS.fetch_add(1, Ordering::Relaxed) + 1;
        guest.words.mark_step(clock::mono_ns(), step);
    }
}

/// The recorder, while it records.
#[inline]
pub(crate) fn recording() -> Option<&'static Guest> {
    if STATE.load(Ordering::Acquire) == RECORDING { GUEST.get() } else { None }
}

/// A panic reached the edge: off, for good.
#[cold]
pub(crate) fn disable_after_inner_failure() {
    if STATE.swap(OFF, Ordering::AcqRel) == RECORDING
        && let Some(guest) = GUEST.get()
    {
        guest.words.set(header::DISABLED, Disabled::InnerFailure as u64);
        guest.words.set(header::STATE, State::Disabled as u64);
    }
}

/// In a forked child: the tape is the parent's.
pub(crate) fn detach() {
    STATE.store(OFF, Ordering::Release);
}

/// The process exits in an orderly way, whether or not the recorder still records. A forked child
/// exits too, but the tape is not its own.
pub(crate) fn seal(status: i32) {
    if let Some(guest) = GUEST.get().filter(|guest| guest.pid == std::process::id()) {
        guest.words.set(header::EXIT_STATUS, u64::from(status as u32) + 1);
        guest.words.set(header::STATE, State::Sealed as u64);
    }
}

/// The recorder, woken up if this is the process's first GPU memory.
#[inline]
fn awake(device: u8) -> Option<&'static Guest> {
    match STATE.load(Ordering::Acquire) {
        RECORDING => GUEST.get(),
        ASLEEP => wake(device),
        WAKING => {
            // Another thread's first allocation, on another device, while the tape is being made.
            LOST_WHILE_WAKING.fetch_add(1, Ordering::Relaxed);
            None
        }
        _ => None,
    }
}

#[cold]
fn wake(device: u8) -> Option<&'static Guest> {
    if STATE.compare_exchange(ASLEEP, WAKING, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return None;
    }
    let place = process::place();
    let is_off = std::env::var_os("MEMTAPE_DISABLE").is_some_and(|value| value != "0");
    // The recorder in front records everything; two tapes would be two ranks.
    let guest = if is_off || place == Place::Second { None } else { Guest::start(device) };
    if place == Place::Preloaded {
        edge::silence_panics();
    }
    let awake = guest.is_some_and(|guest| GUEST.set(guest).is_ok());
    if awake {
        process::watch(); // before anything is recorded: a fork must never find it missing
    }
    STATE.store(if awake { RECORDING } else { OFF }, Ordering::Release);
    if awake {
        control::start();
    }
    let guest = recording()?;
    guest.words.add(header::LOST_DEVICE_EVENTS, LOST_WHILE_WAKING.load(Ordering::Relaxed));
    Some(guest)
}

#[inline]
fn note_hook(bit: u64) {
    if let Some(guest) = recording() {
        let seen = guest.words.get(header::HOOKS);
        if seen & bit == 0 {
            guest.words.at(header::HOOKS).fetch_or(bit, Ordering::Relaxed);
        }
    }
}

fn totals_of(held: u64) -> Totals {
    Totals { allocated: held, reserved: held }
}

impl Guest {
    fn start(device: u8) -> Option<Self> {
        let before = clock::mono_ns();
        let wall_ns = clock::wall_ns();
        let after = clock::mono_ns();
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
        words.mark_step(mono_ns, STEPS.load(Ordering::Relaxed));
        words.format(&file.layout, &birth);
        let (stacks, python) = frames::prepare();
        words.set(header::STACKS, stacks as u64);
        words.set(header::PYTHON, u64::from(python));
        let guest = Self {
            words,
            interner: Interner::new(words),
            lanes: Default::default(),
            boundary: Mutex::new(Boundary::default()),
            pid: std::process::id(),
            file,
        };
        Some(guest)
    }

    /// The lane of a device, opened when it is first used. Under that device's mutex.
    #[inline]
    fn device_lane(&self, device: u8) -> Option<Lane<'static>> {
        let index = usize::from(device);
        if index < DEVICES_MAX && self.open(index) {
            let at = *self.file.layout.lanes.get(index)?;
            return Some(Lane::new(self.words, at, device));
        }
        self.words.count(header::LOST_DEVICE_EVENTS);
        None
    }

    fn with_host_lane(&self, write: impl FnOnce(&Lane<'static>, u64, u32)) {
        let Some(&at) = self.file.layout.lanes.get(HOST_LANE) else { return };
        let stack = self.interner.current();
        let lane = Lane::new(self.words, at, HOST_LANE as u8);
        let written =
            self.open(HOST_LANE) && lane.try_lock(|lane| write(lane, clock::mono_ns(), stack));
        if !written {
            self.words.count(header::LOST_HOST_EVENTS);
        }
    }

    #[inline]
    fn open(&self, index: usize) -> bool {
        let Some(state) = self.lanes.get(index) else { return false };
        match state.load(Ordering::Acquire) {
            1 => true,
            0 => self.open_first(index, state),
            _ => false,
        }
    }

    #[cold]
    fn open_first(&self, index: usize, state: &AtomicU8) -> bool {
        let Some(lane) = self.file.layout.lanes.get(index) else { return false };
        let given = self.file.give_lane(lane);
        if given && state.load(Ordering::Acquire) == 0 {
            self.words.open_lane(index, &self.file.layout);
        }
        state.store(if given { 1 } else { 2 }, Ordering::Release);
        given
    }
}
