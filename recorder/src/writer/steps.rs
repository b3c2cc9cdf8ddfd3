//! Steps, phases and annotations: what divides a job's life into parts.
//!
//! Steps are counted by PyTorch's optimizer hook until the program says one itself; from then on
//! its own word counts alone.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use memtape_core::tape::event::Kind;
use memtape_core::tape::interned::STRING_BYTES_MAX;
use memtape_core::tape::layout::{HOST_LANE, StepSource, header};

use crate::host::clock;
use crate::writer::state::{Guest, recording};

/// Training steps that have ended, as this process counts them.
static STEPS: AtomicU64 = AtomicU64::new(0);

/// The phase that was named before the recorder woke up.
static EARLY_PHASE: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Training steps that have ended.
pub(crate) fn steps() -> u64 {
    STEPS.load(Ordering::Relaxed)
}

/// A training step ended.
pub fn step() {
    // Counted even before the first GPU memory: every rank must mean the same by a number.
    given(STEPS.fetch_add(1, Ordering::Relaxed) + 1);
}

/// Step `number` ended. A number that was reached before is no new step.
pub(crate) fn step_to(number: u64) {
    if STEPS.fetch_max(number, Ordering::Relaxed) < number {
        given(number);
    } else if let Some(guest) = recording() {
        guest.words.set(header::STEP_SOURCE, StepSource::Given as u64);
    }
}

fn given(step: u64) {
    if let Some(guest) = recording() {
        guest.words.set(header::STEP_SOURCE, StepSource::Given as u64);
        guest.words.mark_step(clock::mono_ns(), step);
    }
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

/// The program enters a phase; an empty name ends it. Training begins before the first GPU memory,
/// so the name is kept until the recorder is awake.
pub(crate) fn phase(name: &[u8]) {
    let Some(guest) = recording() else { return keep_phase(name) };
    let atom = if name.is_empty() { 0 } else { guest.interner.text(name) };
    guest.words.set(header::PHASE, u64::from(atom));
    guest.mark(atom);
}

fn keep_phase(name: &[u8]) {
    // Whoever finds it taken is one of two threads that name a phase at once: either is right.
    if let Ok(mut early) = EARLY_PHASE.try_lock() {
        early.clear();
        early.extend_from_slice(name.get(..STRING_BYTES_MAX).unwrap_or(name));
    }
}

/// Marks what the program said before the recorder woke up.
pub(crate) fn woken() {
    let early = EARLY_PHASE.try_lock().map(|mut early| std::mem::take(&mut *early));
    if let Some(name) = early.ok().filter(|name| !name.is_empty()) {
        phase(&name);
    }
}

/// The program notes something, as `key=value`.
pub(crate) fn annotate(text: &[u8]) {
    let Some(guest) = recording() else { return };
    let atom = guest.interner.text(text);
    guest.words.set(header::ANNOTATION, u64::from(atom));
    guest.mark(atom);
}

impl Guest {
    fn mark(&self, atom: u32) {
        let written = self.with_shared_lane(HOST_LANE, |lane| {
            lane.mark(clock::mono_ns(), Kind::Mark, 0, u64::from(atom));
        });
        if written.is_none() {
            self.words.count(header::LOST_HOST_EVENTS);
        }
    }
}
