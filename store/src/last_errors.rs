//! The kinds of writes that fail, which say whether the store is ready.
//!
//! The log has one line when a kind begins to fail, and one when it works again.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Kind, Result};
use memtape_disk::clock;

/// Time for which an error counts, unless a write of the same kind succeeds.
const ERROR_LASTS_NS: u64 = 60_000_000_000;

/// Characters of a line about an error: a store of snapshots may say anything.
const LINE_CHARS_MAX: usize = 200;

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
    /// Whatever makes nothing durable: the index, deletions, the journal without its history.
    #[strum(serialize = "upkeep of the store")]
    Upkeep,
}

/// Errors of a kind since its last success, and the last of them.
#[derive(Clone, Debug)]
struct Failing {
    line: String,
    count: u64,
    last_ns: u64,
}

/// The kinds of writes that fail. A success removes its kind.
#[derive(Clone, Debug)]
pub(crate) struct LastErrors(Arc<Path>, Arc<Mutex<BTreeMap<Written, Failing>>>);

impl LastErrors {
    /// Of a store in this folder.
    pub(crate) fn new(folder: &Path) -> Self {
        Self(folder.into(), Arc::default())
    }

    /// Notes the result of a write; true if its kind begins to fail.
    pub(crate) fn note<T>(&self, what: Written, result: &Result<T>) -> bool {
        let mut failing = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        let last_ns = clock::now().mono_ns;
        let before = failing.remove(&what);
        let Err(error) = result else {
            if let Some(Failing { count, .. }) = before {
                tracing::info!("{what} can be written again, after {count} failures");
            }
            return false;
        };
        let count = before.filter(|of| of.lasts(last_ns)).map_or(0, |of| of.count) + 1;
        let line = format!("{what} cannot be written: {error}");
        let line: String = line.chars().take(LINE_CHARS_MAX).collect();
        if count == 1 {
            let remedy = if error.kind == Kind::Full { "make room" } else { "look" };
            tracing::error!("{line}; {remedy} in {}", self.0.display());
        }
        failing.insert(what, Failing { line, count, last_ns });
        count == 1
    }

    /// The kinds that fail still, and why: what fails for good is tried again, and fails again.
    pub(crate) fn failing(&self) -> Vec<(Written, String)> {
        let failing = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ns = clock::now().mono_ns;
        let still = failing.iter().filter(|(_, of)| of.lasts(now_ns));
        still.map(|(what, of)| (*what, of.line.clone())).collect()
    }
}

impl Failing {
    fn lasts(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.last_ns) < ERROR_LASTS_NS
    }
}
