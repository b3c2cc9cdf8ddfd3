//! The tapes of other shards that the primary agent found, each with its shard.
//!
//! The agents of those shards open them. A new file can have the name and the number of one that is
//! gone, so each file is opened again from time to time. There are no more of them than tapes on a
//! node: the user who has most gives one up, and a further one of that user is refused like a tape
//! that has no room.

use std::collections::{BTreeMap, BTreeSet};

use memtape_core::limits::TAPES_PER_NODE_MAX;
use memtape_core::sharing::Amounts;

use crate::node::accounts::Account;
use crate::tapes::source::{Entry, FileId, NotATape};

/// Scans that list a file between two times that it is opened.
const SCANS_BETWEEN_OPENINGS: u32 = 60;

/// Tapes of other shards.
#[derive(Debug, Default)]
pub(crate) struct Others {
    known: BTreeMap<FileId, Other>,
    /// Tapes that were listed since the last whole listing.
    seen: BTreeSet<FileId>,
}

#[derive(Debug)]
struct Other {
    shard: u16,
    entry: Entry,
    scans: u32,
}

impl Others {
    /// The tapes, each with its shard.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &Entry)> {
        self.known.values().map(|other| (other.shard, &other.entry))
    }

    /// Notes that a file was listed. True when it is known as a tape of another shard, and need not
    /// be opened now.
    pub(crate) fn has(&mut self, entry: &Entry) -> bool {
        let known = self.known.get_mut(&entry.id).filter(|known| known.entry == *entry);
        let Some(known) = known else { return false };
        self.seen.insert(entry.id);
        known.scans = known.scans.wrapping_add(1);
        !known.scans.is_multiple_of(SCANS_BETWEEN_OPENINGS)
    }

    /// Adds a tape of another shard.
    /// Fails when there is no room for one more of its user.
    pub(crate) fn add(&mut self, shard: u16, entry: &Entry) -> Result<(), NotATape> {
        if self.known.len() >= TAPES_PER_NODE_MAX {
            let accounts = self.known.values().map(|other| (other.entry.account(), 1));
            let counts: Amounts<Account> = accounts.collect();
            let own = counts.of(entry.account());
            let most = counts.most().filter(|(_, count)| *count > own + 1);
            let (most, _) = most.ok_or(NotATape::NoRoom(entry.uid))?;
            let displaced = self.known.iter().rfind(|(_, other)| other.entry.account() == most);
            let displaced = displaced.map(|(id, _)| *id);
            displaced.map(|id| self.known.remove(&id));
        }
        self.known.insert(entry.id, Other { shard, entry: entry.clone(), scans: 0 });
        self.seen.insert(entry.id);
        Ok(())
    }

    /// Forgets a file, which is opened again.
    pub(crate) fn forget(&mut self, id: FileId) {
        self.known.remove(&id);
    }

    /// Forgets the files that were not listed since the last whole listing, and begins another.
    pub(crate) fn end_listing(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        self.known.retain(|id, _| seen.contains(id));
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn entry(inode: u64, path: &str, uid: u32) -> Entry {
        Entry { id: FileId { device: 1, inode }, path: PathBuf::from(path), uid, pod: None }
    }

    #[test]
    fn another_file_of_the_same_number_is_opened() {
        let mut others = Others::default();
        let known = entry(5, "a.tape", 7);
        assert!(others.add(3, &known).is_ok() && others.has(&known));
        assert!(!others.has(&entry(5, "b.tape", 7)) && !others.has(&entry(5, "a.tape", 8)));
        // The same name can be another file, too.
        let opened = (0..2 * SCANS_BETWEEN_OPENINGS).filter(|_| !others.has(&known)).count();
        assert_eq!(opened, 2);
        assert_eq!(others.iter().collect::<Vec<_>>(), [(3, &known)]);
        others.end_listing();
        others.end_listing();
        assert_eq!(others.iter().count(), 0, "it was not listed any more");
    }

    #[test]
    fn the_user_with_most_tapes_of_other_shards_gives_one_up() {
        let mut others = Others::default();
        let of = |number: usize, uid| entry(number as u64, "a.tape", uid);
        let count = |others: &Others, uid| others.iter().filter(|(_, of)| of.uid == uid).count();
        for number in 0..TAPES_PER_NODE_MAX {
            assert!(others.add(1, &of(number, 7)).is_ok());
        }
        let refused = others.add(1, &of(9000, 7));
        assert!(matches!(refused, Err(NotATape::NoRoom(7))), "{refused:?}");
        for number in 0..TAPES_PER_NODE_MAX {
            let _ = others.add(1, &of(2000 + number, 8));
        }
        assert_eq!((count(&others, 7), count(&others, 8)), (512, 512));
    }
}
