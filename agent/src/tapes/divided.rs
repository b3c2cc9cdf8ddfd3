//! The folders of tapes, divided among the agents of one process: one for each shard of the cluster
//! that has jobs on this node.
//!
//! The agent of the primary shard reads the folders, and hands over the tapes of other shards that
//! it finds. The agents of those shards open them from there. The bound on tapes is one of the
//! node: an agent gives a tape up for one of another agent.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::node::accounts::Account;
use crate::tapes::quota::{self, Held, Room, Standing, TapeKey};
use crate::tapes::source::{Entry, Listing, NotATape, TapeFile, TapeFolders, TapeSource};

/// The folders, and what was found in them for other shards than the primary one.
#[derive(Clone, Debug)]
pub(crate) struct DividedFolders(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    folders: TapeFolders,
    /// The tapes of each other shard.
    found: BTreeMap<u16, Vec<Entry>>,
    /// The tapes that each agent knows.
    held: BTreeMap<u16, Vec<Held>>,
    /// Tapes that each agent has to give up.
    given_up: BTreeMap<u16, Vec<TapeKey>>,
}

/// Number of the primary agent among the agents of a process: no shard has it.
pub(crate) const PRIMARY: u16 = u16::MAX;

/// The tapes that were found for one shard.
#[derive(Debug)]
pub(crate) struct FoundTapes {
    of: DividedFolders,
    shard: u16,
}

impl DividedFolders {
    /// Divides these folders.
    pub(crate) fn new(folders: TapeFolders) -> Self {
        let (found, held, given_up) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self(Arc::new(Mutex::new(Inner { folders, found, held, given_up })))
    }

    /// Takes what the primary agent found for other shards. Returns those shards.
    pub(crate) fn found<'a>(&self, others: impl Iterator<Item = (u16, &'a Entry)>) -> Vec<u16> {
        let mut found = BTreeMap::<u16, Vec<Entry>>::new();
        for (shard, entry) in others {
            found.entry(shard).or_default().push(entry.clone());
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

impl Inner {
    fn hold(&mut self, agent: u16, held: Vec<Held>) -> Vec<TapeKey> {
        self.held.insert(agent, held);
        self.given_up.remove(&agent).unwrap_or_default()
    }

    /// Decides about one more tape of an agent, by the tapes of all agents.
    fn room(
        &mut self,
        agent: u16,
        held: Vec<Held>,
        (account, standing): (Account, Standing),
    ) -> Room {
        self.held.insert(agent, held);
        let of_agent = |(agent, held): (&u16, &Vec<Held>)| -> Vec<(u16, Held)> {
            held.iter().map(|of| (*agent, *of)).collect()
        };
        let all: Vec<(u16, Held)> = self.held.iter().flat_map(of_agent).collect();
        let numbered = (0..).zip(&all).map(|(at, (_, of))| Held { key: TapeKey(at), ..*of });
        let room = quota::room(&numbered.collect::<Vec<_>>(), account, standing);
        let displaced = match room {
            Room::InPlaceOf(TapeKey(at)) => all.get(at as usize),
            Room::Free | Room::None => None,
        };
        match displaced {
            Some((of, tape)) if *of == agent => Room::InPlaceOf(tape.key),
            Some((of, tape)) => {
                self.held.entry(*of).or_default().retain(|held| held.key != tape.key);
                self.given_up.entry(*of).or_default().push(tape.key);
                Room::Free
            }
            None => room,
        }
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

    fn hold(&mut self, held: Vec<Held>) -> Vec<TapeKey> {
        self.lock().hold(PRIMARY, held)
    }

    fn room(&mut self, held: Vec<Held>, account: Account, standing: Standing) -> Room {
        self.lock().room(PRIMARY, held, (account, standing))
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

    fn hold(&mut self, held: Vec<Held>) -> Vec<TapeKey> {
        self.of.lock().hold(self.shard, held)
    }

    fn room(&mut self, held: Vec<Held>, account: Account, standing: Standing) -> Room {
        self.of.lock().room(self.shard, held, (account, standing))
    }
}

#[cfg(test)]
mod tests {
    use memtape_core::limits::TAPES_PER_NODE_MAX;

    use super::*;

    #[test]
    fn the_bound_on_tapes_is_one_of_all_agents() {
        let mut primary = DividedFolders::new(TapeFolders::new(Vec::new(), false));
        let mut other = primary.of_shard(3);
        let of = |account, count: usize| -> Vec<Held> {
            let standing = Standing::Proved;
            (0..count as u64).map(|key| Held { key: TapeKey(key), account, standing }).collect()
        };
        // One user fills the node, in another shard than that of a second user.
        let (full, mut few) = (of(7, TAPES_PER_NODE_MAX), Vec::new());
        assert_eq!(primary.hold(full.clone()), []);
        assert_eq!(other.room(Vec::new(), 7, Standing::Proved), Room::None);
        for count in 1..=3 {
            assert_eq!(other.room(few, 8, Standing::Proved), Room::Free);
            few = of(8, count);
        }
        let newest = TAPES_PER_NODE_MAX as u64;
        assert_eq!(primary.hold(full), [1, 2, 3].map(|back| TapeKey(newest - back)));
        assert_eq!(primary.hold(of(7, 5)), []);
        // The first user's own.
        let full = of(7, TAPES_PER_NODE_MAX);
        let displaced = Room::InPlaceOf(TapeKey(newest - 1));
        assert_eq!(primary.room(full, 9, Standing::Proved), displaced);
    }
}
