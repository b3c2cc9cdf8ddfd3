//! A store without a thread: its writer works when it is called.

use std::sync::{Arc, Mutex, PoisonError, mpsc};

use crate::store::disk::files::Disk;
use crate::store::error::Result;
use crate::store::handle::{Store, open_parts};
use crate::store::encoding::Loaded;
use crate::store::recovery::opening::Recovery;
#[cfg(any(test, feature = "simulation"))]
use crate::store::testing::simulated::disk::SimulatedDisk;
use crate::store::writer::thread::{Job, Writer};

/// A writer that works when it is called.
#[derive(Clone)]
pub(crate) struct Turns(Arc<Mutex<(Writer, mpsc::Receiver<Job>)>>);

impl std::fmt::Debug for Turns {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Turns")
    }
}

impl Store {
    /// Opens or makes a store on a simulated disk. It has no thread: its holder calls
    /// [`Self::turn`].
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn open_simulated(disk: &SimulatedDisk) -> Result<(Self, Loaded, Recovery)> {
        Self::open_in_turns(&disk.process())
    }

    /// Opens or makes a store without a thread.
    pub(crate) fn open_in_turns(disk: &Arc<dyn Disk>) -> Result<(Self, Loaded, Recovery)> {
        let (writer, loaded, recovery) = open_parts(disk)?;
        let shared = writer.shared().clone();
        let (jobs, receiver) = mpsc::channel();
        let turns = Turns(Arc::new(Mutex::new((writer, receiver))));
        Ok((Self { jobs, shared, turns: Some(turns) }, loaded, recovery))
    }

    /// Does all that waits, in this thread, and calls every `done`; says whether anything did.
    /// Only for a store without a thread, and not from a `done`.
    pub(crate) fn turn(&self) -> bool {
        let Some(Turns(turns)) = &self.turns else { return false };
        let mut turns = turns.lock().unwrap_or_else(PoisonError::into_inner);
        let (writer, jobs) = &mut *turns;
        writer.turn(jobs)
    }
}
