//! The index against a search of all incidents, and a count of visits.

use core::cell::Cell;

use super::*;

/// Number of incidents that searches have visited.
#[derive(Debug, Default)]
pub(in crate::incident) struct Visits(Cell<usize>);

impl Visits {
    pub(super) fn add(&self) {
        self.0.set(self.0.get() + 1);
    }

    /// The visits since the last call.
    pub(in crate::incident) fn take(&self) -> usize {
        self.0.take()
    }
}

impl Known {
    /// Compares the index with a search of all incidents.
    pub(in crate::incident) fn check(&self) {
        let key = |known: &Tracked| (known.incident.serial.into(), known.incident.id.clone());
        assert_eq!(self.by_attempt, self.iter().map(key).collect());
        let open = self.iter().filter(|known| known.incident.is_open());
        assert_eq!(self.open, open.count());
        for serial in 0..3 {
            let its = self.iter().filter(|known| known.incident.serial == serial);
            assert_eq!(ids(self.of(serial)), ids(its));
        }
    }
}
