//! Whether the stacks of this process can be taken: decided once, before the first stack is read.
//!
//! The layout of the interpreter's frames is checked on the first thread that has frames. Until
//! then, and after the interpreter has begun to end, no frames are read. Where the check fails,
//! none are ever read, and the tape says why.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};

use memtape_tape::layout::Stacks;

use crate::stacks::code_objects;
use crate::stacks::interpreter::Interpreter;
use crate::stacks::layout_check::{self, Verdict};
use crate::stacks::python_frames::PythonFrames;
use crate::stacks::python_memory::{Address, Careful};

static FOUND: OnceLock<Interpreter> = OnceLock::new();
/// The interpreter once its layout has passed the check: the hot path reads only this.
static CHECKED: AtomicPtr<Interpreter> = AtomicPtr::new(std::ptr::null_mut());
/// Whether stacks are read, a [`Stacks`].
static MODE: AtomicU8 = AtomicU8::new(Stacks::Unknown as u8);
/// True once the interpreter is about to end.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Whether the calling thread's frames can be read.
pub(crate) enum Availability {
    /// The frames can be read.
    Frames(PythonFrames),
    /// The thread has no frames, and none were there to check the layout; or Python ends.
    NoFrames,
    /// The frames cannot be read; the mode says why.
    Unavailable(Stacks),
}

/// Finds the process's interpreter. Returns the mode, and the version as `major << 8 | minor`.
pub(crate) fn prepare() -> (Stacks, u32) {
    let (found, version) = Interpreter::find();
    let mode = match found {
        Ok(interpreter) => {
            FOUND.get_or_init(|| interpreter);
            Stacks::Python
        }
        Err(why) => why,
    };
    MODE.store(mode as u8, Ordering::Release);
    match availability() {
        Availability::Unavailable(why) => (why, version),
        _ => (mode, version),
    }
}

/// Gives up on stacks for good, because the layout turned out to be wrong.
pub(crate) fn give_up() {
    MODE.store(Stacks::SelfTestFailed as u8, Ordering::Release);
    CHECKED.store(std::ptr::null_mut(), Ordering::Release);
}

/// Reads no frames from now on. The interpreter calls this in its exit handlers, before it frees
/// the states of threads that still run: these threads would find theirs, freed.
pub(crate) fn end() {
    // In this order, and both sequentially consistent: see `check`. The hot path reads the second
    // only.
    IS_ENDING.store(true, Ordering::SeqCst);
    CHECKED.store(std::ptr::null_mut(), Ordering::SeqCst);
}

/// The calling thread's frames, if known to be readable; the hot path calls only this.
#[inline(always)]
pub(crate) fn checked() -> Option<PythonFrames> {
    // SAFETY: null, or what `FOUND` holds, which is never dropped.
    unsafe { CHECKED.load(Ordering::Acquire).as_ref() }.map(PythonFrames::of)
}

/// The calling thread's frames, if they can be read.
pub(crate) fn availability() -> Availability {
    checked().map_or_else(check, Availability::Frames)
}

#[cold]
fn check() -> Availability {
    if IS_ENDING.load(Ordering::SeqCst) {
        return Availability::NoFrames;
    }
    let mode = MODE.load(Ordering::Acquire);
    let Some(interpreter) = FOUND.get().filter(|_| mode == Stacks::Python as u8) else {
        return Availability::Unavailable(Stacks::from_repr(mode.into()).unwrap_or_default());
    };
    match verdict(interpreter) {
        Verdict::Passed => {
            interpreter.find_thread_slot();
            CHECKED.store(std::ptr::from_ref(interpreter).cast_mut(), Ordering::SeqCst);
            if IS_ENDING.load(Ordering::SeqCst) {
                // The store may have come after that of `end`.
                CHECKED.store(std::ptr::null_mut(), Ordering::SeqCst);
                return Availability::NoFrames;
            }
            Availability::Frames(PythonFrames::of(interpreter))
        }
        Verdict::NoFrames | Verdict::NotNow => Availability::NoFrames,
        Verdict::Failed => {
            give_up();
            Availability::Unavailable(Stacks::SelfTestFailed)
        }
    }
}

fn verdict(interpreter: &Interpreter) -> Verdict {
    let thread = interpreter.thread();
    if !thread.is_plausible() {
        return Verdict::NoFrames;
    }
    let Some(careful) = Careful::new() else { return Verdict::NotNow };
    match layout_check::walk(interpreter, thread, &careful) {
        Verdict::Passed if !code_objects::install(Address(interpreter.types.code), &careful) => {
            Verdict::Failed
        }
        verdict => verdict,
    }
}
