//! The last error of each kind of write, which says whether the store is ready.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

use memtape_disk::clock;

/// Time for which an error counts, unless a write of the same kind succeeds.
const ERROR_LASTS_NS: u64 = 60_000_000_000;

/// What the store writes. Entries of the audit are records.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, strum::Display)]
pub enum Written {
    /// Changes of records, until they are in the journal.
    #[strum(serialize = "records and entries of the audit")]
    Records,
    /// The journal, where it is gone.
    #[strum(serialize = "the journal, which is gone,")]
    Journal,
    /// Step records.
    #[strum(serialize = "step records")]
    Steps,
    /// Snapshots of captures.
    #[strum(serialize = "snapshots of captures")]
    Snapshots,
}

/// The last error of each writer, with its time; none after a success.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastErrors(Arc<Mutex<BTreeMap<Written, (u64, String)>>>);

impl LastErrors {
    /// Notes the result of a write; true if the one before it was different.
    pub(crate) fn note<T, E: Display>(&self, what: Written, result: &Result<T, E>) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(_) => last.remove(&what).is_some(),
            Err(why) => last.insert(what, (clock::now().mono_ns, why.to_string())).is_none(),
        }
    }

    /// The first error that is not over: what fails for good is tried again, and fails again.
    pub(crate) fn first(&self) -> Option<(Written, String)> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ns = clock::now().mono_ns;
        let lasts = |at_ns: u64| now_ns.saturating_sub(at_ns) < ERROR_LASTS_NS;
        let mut errors = last.iter().filter(|(_, (at_ns, _))| lasts(*at_ns));
        errors.next().map(|(what, (_, why))| (*what, why.clone()))
    }
}
