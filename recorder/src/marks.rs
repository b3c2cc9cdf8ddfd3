//! Steps, phases and annotations: what divides a job's life into parts.
//!
//! Steps are counted by PyTorch's optimizer hook until the program says one itself; from then on
//! its own word counts alone.

use std::sync::atomic::{AtomicU64, Ordering};

use memtape_core::tape::event::Kind;
use memtape_core::tape::layout::{HOST_LANE, StepSource, header};

use crate::clock;
use crate::guest::{Guest, recording};

/// Training steps that have ended, as this process counts them.
static STEPS: AtomicU64 = AtomicU64::new(0);

/// Training steps that have ended.
pub(crate) fn steps() -> u64 {
    STEPS.load(Ordering::Relaxed)
}

/// A training step ended.
pub fn step() {
    // Counted even before the first GPU memory: every rank must mean the same by a number.
    given(STEPS.fetch_add(1, Ordering::Relaxed) + 1);
}

/// Step `number` ended.
pub(crate) fn step_to(number: u64) {
    STEPS.store(number, Ordering::Relaxed);
    given(number);
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

/// The program enters a phase; an empty name ends it.
pub(crate) fn phase(name: &[u8]) {
    let Some(guest) = recording() else { return };
    let atom = if name.is_empty() { 0 } else { guest.interner.text(name) };
    guest.words.set(header::PHASE, u64::from(atom));
    guest.mark(atom);
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
            true
        });
        if !written {
            self.words.count(header::LOST_HOST_EVENTS);
        }
    }
}
