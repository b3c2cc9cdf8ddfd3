//! Steps, phases, annotations and activities.
//!
//! PyTorch's optimizer hook counts steps until the program marks a step itself; from then on only
//! the program's marks count.
//!
//! An activity is marked in the step in which it begins. One that goes on in the next step is not
//! marked again: a save reports every tensor, and some programs evaluate in each step.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use memtape_tape::event::Kind;
use memtape_tape::interned::STRING_BYTES_MAX;
use memtape_tape::layout::{HOST_LANE, StepSource, header};
use memtape_tape::snapshot::marks::Activity;

use crate::host::clock;
use crate::writer::state::{Recorder, recording};

/// Training steps that have ended, as this process counts them.
static STEPS: AtomicU64 = AtomicU64::new(0);

/// The phase that the program entered before the recorder woke up.
static EARLY_PHASE: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Training steps that have ended.
pub(crate) fn steps() -> u64 {
    STEPS.load(Ordering::Relaxed)
}

/// A training step ended.
pub fn step() {
    // Counted even before the first GPU memory: a number means the same step on every rank.
    given(STEPS.fetch_add(1, Ordering::Relaxed) + 1);
}

/// Step `number` ended. A number that was reached before is no new step.
pub(crate) fn step_to(number: u64) {
    if STEPS.fetch_max(number, Ordering::Relaxed) < number {
        given(number);
    } else if let Some(recorder) = recording() {
        recorder.words().set(header::STEP_SOURCE, StepSource::Given as u64);
    }
}

fn given(step: u64) {
    if let Some(recorder) = recording() {
        recorder.words().set(header::STEP_SOURCE, StepSource::Given as u64);
        recorder.words().mark_step(clock::mono_ns(), step);
    }
}

/// An optimizer has stepped; `optimizer` identifies it. Returns the number of steps that have
/// ended where this call ended one.
pub(crate) fn optimizer_stepped(optimizer: u64) -> Option<u64> {
    let recorder = recording()?;
    if recorder.words().get(header::STEP_SOURCE) == StepSource::Given as u64 {
        return None;
    }
    // Optimizers step under the GIL, so no other thread holds this.
    let mut boundary = recorder.step_boundary().try_lock().ok()?;
    if !boundary.stepped(optimizer) {
        return None;
    }
    let step = STEPS.fetch_add(1, Ordering::Relaxed) + 1;
    recorder.words().mark_step(clock::mono_ns(), step);
    Some(step)
}

/// The program enters a phase; an empty name ends it. A phase that begins before the first GPU
/// memory is kept until the recorder wakes up.
pub(crate) fn phase(name: &[u8]) {
    match recording() {
        Some(recorder) => mark_phase(recorder, name),
        // When two threads name a phase at once, either name is right.
        None => {
            if let Ok(mut early) = EARLY_PHASE.try_lock() {
                early.clear();
                early.extend_from_slice(name.get(..STRING_BYTES_MAX).unwrap_or(name));
            }
        }
    }
}

/// Writes the phase that the program entered before the recorder woke up.
pub(crate) fn woken(recorder: &Recorder) {
    let early = EARLY_PHASE.try_lock().map(|mut early| std::mem::take(&mut *early));
    if let Some(name) = early.ok().filter(|name| !name.is_empty()) {
        mark_phase(recorder, &name);
    }
}

/// The program notes something, as `key=value`.
pub(crate) fn annotate(text: &[u8]) {
    let Some(recorder) = recording() else { return };
    let text = recorder.interner().text(text);
    recorder.words().set(header::ANNOTATION, u64::from(text));
    mark(recorder, text);
}

/// PyTorch saves, loads or evaluates.
pub(crate) fn activity(activity: Activity) {
    /// Step of the newest report of each activity, plus one; 0 is none.
    static LAST: [AtomicU64; Activity::ALL.len()] =
        [const { AtomicU64::new(0) }; Activity::ALL.len()];
    let Some(recorder) = recording() else { return };
    let Some(last) = LAST.get(activity as usize) else { return };
    let now = recorder.words().get(header::STEP).saturating_add(1);
    let last = last.swap(now, Ordering::Relaxed);
    if last == 0 || now > last.saturating_add(1) {
        let text = [Activity::KEY, activity.as_str()].join("=");
        match recorder.interner().text(text.as_bytes()) {
            0 => {} // There is no room for the text; the mark would end a phase.
            text => mark(recorder, text),
        }
    }
}

fn mark_phase(recorder: &Recorder, name: &[u8]) {
    let number = if name.is_empty() { 0 } else { recorder.interner().text(name) };
    recorder.words().set(header::PHASE, u64::from(number));
    mark(recorder, number);
}

fn mark(recorder: &Recorder, text: u32) {
    recorder.write_host(HOST_LANE, |lane| {
        lane.mark(clock::mono_ns(), Kind::Mark, 0, u64::from(text));
    });
}
