//! A store without a thread: its writer works when it is called. For simulations and benchmarks.

use std::sync::{Arc, Mutex, PoisonError, mpsc};

use crate::writer::thread::{Job, Writer};

/// A writer that works when it is called.
#[derive(Clone)]
pub(crate) struct Turns(Arc<Mutex<(Writer, mpsc::Receiver<Job>)>>);

impl std::fmt::Debug for Turns {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Turns")
    }
}

impl Turns {
    /// The writer, and where to send it jobs.
    pub(crate) fn of(writer: Writer) -> (Self, mpsc::Sender<Job>) {
        let (jobs, receiver) = mpsc::channel();
        (Self(Arc::new(Mutex::new((writer, receiver)))), jobs)
    }

    /// Does all waiting work in this thread; true if there was any.
    pub(crate) fn turn(&self) -> bool {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (writer, jobs) = &mut *turns;
        writer.turn(jobs)
    }
}
