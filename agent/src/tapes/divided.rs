//! The folders of tapes, divided among the agents of one process: one for each shard of the cluster
//! that has jobs on this node.
//!
//! The agent of the primary shard reads the folders, and hands over the tapes of other shards that
//! it finds. The agents of those shards open them from there.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::tapes::source::{Entry, Listing, NotATape, TapeFile, TapeFolders, TapeSource};

/// The folders, and what was found in them for other shards than the primary one.
#[derive(Clone, Debug)]
pub(crate) struct DividedFolders(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    folders: TapeFolders,
    /// The tapes of each other shard.
    found: BTreeMap<u16, Vec<Entry>>,
}

/// The tapes that were found for one shard.
#[derive(Debug)]
pub(crate) struct FoundTapes {
    of: DividedFolders,
    shard: u16,
}

impl DividedFolders {
    /// Divides these folders.
    pub(crate) fn new(folders: TapeFolders) -> Self {
        Self(Arc::new(Mutex::new(Inner { folders, found: BTreeMap::new() })))
    }

    /// Takes what the primary agent found for other shards. Returns those shards.
    pub(crate) fn found<'a>(&self, others: impl Iterator<Item = &'a (u16, Entry)>) -> Vec<u16> {
        let mut found = BTreeMap::<u16, Vec<Entry>>::new();
        for (shard, entry) in others {
            found.entry(*shard).or_default().push(entry.clone());
        }
        let shards = found.keys().copied().collect();
        self.lock().found = found;
        shards
    }

    /// The tapes for the agent of another shard than the primary one.
    pub(crate) fn of_shard(&self, shard: u16) -> FoundTapes {
        FoundTapes { of: self.clone(), shard }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while it was held leaves whole values.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For the agent of the primary shard.
impl TapeSource for DividedFolders {
    fn list(&mut self) -> Listing {
        self.lock().folders.list()
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn TapeFile>, NotATape> {
        self.lock().folders.open(path)
    }
}

impl TapeSource for FoundTapes {
    fn list(&mut self) -> Listing {
        let entries = self.of.lock().found.get(&self.shard).cloned().unwrap_or_default();
        Listing { entries, is_whole: true }
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn TapeFile>, NotATape> {
        self.of.lock().folders.open(path)
    }
}
