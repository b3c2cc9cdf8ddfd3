//! Remedies that the job offers on this process: `MEMTAPE_ACTIONS`, and for checkpoints a function
//! of the program's.

use std::sync::atomic::{AtomicBool, Ordering};

use memtape_tape::layout::header;
use memtape_tape::mailbox::{Offer, Offers};

use crate::writer::state::{Recorder, recording};

/// True if the program has a function for checkpoints.
static HAS_CHECKPOINT: AtomicBool = AtomicBool::new(false);

/// Notes whether the program has a function for checkpoints.
pub(crate) fn set_checkpoint(has_one: bool) {
    HAS_CHECKPOINT.store(has_one, Ordering::SeqCst);
    if let Some(recorder) = recording() {
        write(recorder);
    }
}

/// Writes the offers that were made before the recorder woke up.
pub(crate) fn woken(recorder: &Recorder) {
    write(recorder);
}

fn write(recorder: &Recorder) {
    let has_checkpoint = HAS_CHECKPOINT.load(Ordering::SeqCst);
    let offers = recorder.opted_in();
    let offers = if has_checkpoint { offers } else { offers.without(Offer::Checkpoint) };
    recorder.words().set(header::OFFERED, offers.word());
}

/// Offers in the environment.
pub(crate) fn from_environment() -> Offers {
    std::env::var("MEMTAPE_ACTIONS").map_or_else(|_| Offers::default(), |s| Offers::from_names(&s))
}
