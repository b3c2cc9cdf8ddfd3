//! What a journal holds, and which of its changes are lost.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::journal::file::decode;
use memtape_disk::files::Disk;
use memtape_disk::frames::{self, Damage};

/// What a journal holds.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// The last value of every key that is not deleted.
    pub(crate) live: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Keys whose last change deleted them.
    pub(crate) dead: BTreeSet<Vec<u8>>,
    /// Number of the last change.
    pub(crate) sequence: u64,
    /// Records whose checksums are right and that make no sense.
    pub(crate) strange: u64,
    /// What was wrong with the file.
    pub(crate) damage: Damage,
    /// For each damaged place that swallowed changes, the number of the last of them, in order.
    lost: Vec<u64>,
    /// Number of the last change of every key that was changed behind the first of those places.
    numbers: BTreeMap<Vec<u8>, u64>,
    /// End of the record before, and whether something lay between it and this one.
    end: u64,
    is_gap: bool,
}

/// Reads a journal, and changes nothing.
pub(crate) fn read(disk: &dyn Disk, name: &str) -> io::Result<Contents> {
    let mut contents = Contents::default();
    contents.damage = frames::read(disk, name, 0, |at, payload| contents.take(at, payload))?;
    Ok(contents)
}

impl Contents {
    pub(crate) fn take(&mut self, offset: u64, payload: &[u8]) {
        self.is_gap |= offset != self.end;
        self.end = offset + frames::frame_bytes(payload.len());
        let Some((number, change)) = decode(payload) else {
            self.strange += 1;
            return;
        };
        // A record from inside a damaged one would be out of order.
        if number <= self.sequence {
            return;
        }
        // Numbers have no holes, and a journal that was written again may begin with any.
        if std::mem::take(&mut self.is_gap) && number > self.sequence + 1 {
            self.lost.push(number - 1);
        }
        self.sequence = number;
        if !self.lost.is_empty() {
            self.numbers.insert(change.key.clone(), number);
        }
        match change.value {
            Some(value) => {
                self.dead.remove(&change.key);
                self.live.insert(change.key, value);
            }
            None => {
                self.live.remove(&change.key);
                self.dead.insert(change.key);
            }
        }
    }

    /// The last lost change that a catalogue knows where this change was the last to arrive; 0 when
    /// there is none. A catalogue that is further than the journal knows everything that is lost.
    pub(crate) fn lost_until(&self, arrived: u64) -> u64 {
        if arrived > self.sequence {
            return arrived;
        }
        self.lost.iter().rev().copied().find(|lost| *lost <= arrived).unwrap_or(0)
    }

    /// True when changes are lost that a catalogue does not have, where this change was the last to
    /// arrive there.
    pub(crate) fn is_lost_behind(&self, arrived: u64) -> bool {
        self.lost.last().is_some_and(|lost| *lost > arrived)
    }

    /// True when the last change of a key, as far as it can be read, came before this change.
    pub(crate) fn is_before(&self, key: &[u8], number: u64) -> bool {
        self.numbers.get(key).copied().unwrap_or(0) < number
    }
}
