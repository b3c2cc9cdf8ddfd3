//! Carries out an agent's requests to this rank, inside the optimizer hook.
//!
//! The word of the mailbox is read here and nowhere else, after a step was counted: no signal, no
//! thread and no allocation has anything to do with it. While there is none, that is one load and
//! two comparisons. A remedy is a call of Python, with the GIL that the hook has, at exactly the
//! step that the word names; a word that comes late does nothing. `tape/src/mailbox.rs` has the
//! format.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use memtape_tape::layout::header;
use memtape_tape::mailbox::{Due, Instruction, Offers, Remedy, ReplyStatus};

use crate::background::python_api::{Api, Object};
use crate::host::clock;
use crate::writer::state::{Recorder, recording};

/// The last word with a reply, or with a remedy under way.
static HANDLED: AtomicU64 = AtomicU64::new(0);

/// An exception of the program's own: an interrupt, or its exit.
#[derive(Debug)]
pub(super) struct Raised;

/// Carries out the remedy that was requested for the end of this step.
///
/// # Errors
/// An exception is set that the caller has to pass on.
///
/// # Safety
/// The calling thread must hold the GIL, and its frames of this library must have nothing to drop:
/// the thread may end inside.
#[inline]
pub(super) unsafe fn after_step(api: &Api, steps: u64) -> Result<(), Raised> {
    let Some(recorder) = recording() else { return Ok(()) };
    let word = recorder.words().get(header::MAILBOX);
    if word == 0 || word == HANDLED.load(Ordering::Relaxed) {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { follow(api, recorder, word, steps) }
}

/// # Safety
/// As of [`after_step`].
#[cold]
unsafe fn follow(api: &Api, recorder: &Recorder, word: u64, steps: u64) -> Result<(), Raised> {
    let Some(instruction) = Instruction::from_word(word) else { return Ok(()) };
    let due = instruction.due(steps);
    if due == Due::NotYet {
        return Ok(());
    }
    // An agent that takes a word back clears it and then reads the number of steps; here the number
    // was written before the word is read. With a fence between on both sides one of them sees the
    // other.
    fence(Ordering::SeqCst);
    if recorder.words().get(header::MAILBOX) != word {
        return Ok(());
    }
    let handled = HANDLED.load(Ordering::Relaxed);
    let claim = HANDLED.compare_exchange(handled, word, Ordering::Relaxed, Ordering::Relaxed);
    if handled == word || claim.is_err() {
        return Ok(());
    }
    let offers = Offers::from_word(recorder.words().get(header::OFFERED));
    if due == Due::Late || !offers.has(instruction.remedy().offer()) {
        let is_late = due == Due::Late;
        let status = if is_late { ReplyStatus::Late } else { ReplyStatus::NotOffered };
        reply(recorder, instruction, status, steps, 0);
        return Ok(());
    }
    let began_ns = clock::mono_ns();
    // SAFETY: the caller's promise.
    let result = unsafe { carry_out(api, instruction.remedy(), steps) };
    let took_ns = clock::mono_ns().saturating_sub(began_ns);
    let is_done = matches!(result, Ok(true));
    let status = if is_done { ReplyStatus::Done } else { ReplyStatus::Failed };
    // The program may have forked meanwhile: what a child does is not the rank's.
    if let Some(recorder) = recording() {
        reply(recorder, instruction, status, steps, took_ns);
    }
    result.map(|_| ())
}

fn reply(
    recorder: &Recorder,
    instruction: Instruction,
    status: ReplyStatus,
    steps: u64,
    took_ns: u64,
) {
    recorder.words().set(header::REPLY_TOOK_NS, took_ns);
    let word = instruction.reply(status, steps).word();
    recorder.words().at(header::REPLY).store(word, Ordering::Release);
}

/// True when it was done; false when it failed.
///
/// # Safety
/// As of [`after_step`].
unsafe fn carry_out(api: &Api, remedy: Remedy, steps: u64) -> Result<bool, Raised> {
    // SAFETY: the GIL is held; every reference that is new is given back.
    unsafe {
        match remedy {
            // `PyGC_Collect` does nothing where the program has switched automatic collection off,
            // as many training programs have.
            Remedy::Gc => call(api, [c"gc", c"collect"], None).map(|result| result.is_some()),
            Remedy::EmptyCache => {
                call(api, [c"torch.cuda", c"empty_cache"], None).map(|result| result.is_some())
            }
            Remedy::Checkpoint => {
                let number = (api.from_number)(steps);
                let result = call(api, [c"memtape", c"_run_checkpoint"], Some(number));
                api.release([number]);
                result.map(|result| result == Some(true))
            }
        }
    }
}

/// Calls a function of a module; `Some` says whether its result is true. None where the module is
/// not imported (this imports nothing: that could deadlock with the program), has no such
/// function, or the function raised an `Exception`.
///
/// # Safety
/// As of [`after_step`].
unsafe fn call(
    api: &Api,
    [module, function]: [&std::ffi::CStr; 2],
    argument: Option<Object>,
) -> Result<Option<bool>, Raised> {
    let null: Object = std::ptr::null_mut();
    // SAFETY: the GIL is held; the module is a borrowed reference, the others are new and given
    // back.
    unsafe {
        let function = api.attribute(api.imported(module), function);
        if function.is_null() {
            return Ok(None);
        }
        let result = match argument {
            Some(argument) => (api.call)(function, argument, null),
            None => (api.call)(function, null),
        };
        api.release([function]);
        if result.is_null() {
            if (api.error_is)(*api.exception) == 0 {
                return Err(Raised);
            }
            (api.clear_error)();
            return Ok(None);
        }
        let is_true = (api.is_true)(result) == 1;
        (api.clear_error)();
        api.release([result]);
        Ok(Some(is_true))
    }
}
