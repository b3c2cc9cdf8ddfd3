//! The inventory: which files there must be, and how much of each is durable.
//!
//! Other files detect damage inside themselves, but not that the file, or its end, is gone. The
//! inventory is a log (`journal.rs`) of notes about the others. A note is written after the sync
//! that makes it true, and is not synced itself: a power loss takes back the newest notes, and an
//! older inventory expects less. A file that is to go (a packed log, a file of steps that is too
//! old) is forgotten durably before it is deleted. So no crash leaves an inventory that expects too
//! much.
//!
//! It also has the losses that were found, until `memtape store rebuild` forgets them.
//! `recovery/losses.rs` compares the inventory with the files.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::journal::{self, Journal, Live};
use memtape_disk::files::Disk;
use memtape_disk::tree::Change;

/// The file's name.
pub(crate) const NAME: &str = "inventory";

/// Losses that are kept; further ones are in the log and in the sums alone.
const LOSSES_MAX: usize = 256;

/// Durable extent of a file.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Extent {
    /// Bytes; of the journal the number of the last change.
    pub bytes: u64,
    /// Steps in it.
    pub rows: u64,
}

/// A file that can be lost.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Counted in changes.
    Journal,
    /// A log of new steps.
    Log(u64),
    /// A file of packed steps.
    Steps(u32),
    /// This file.
    Inventory,
}

/// A file that was gone, or shorter than it had been.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Loss {
    /// Which file.
    pub part: Part,
    /// Bytes that were durable; of the journal the number of the last change.
    pub durable: u64,
    /// Bytes that are left; none when the file is gone.
    pub left: Option<u64>,
    /// Steps that were in the file; 0 where that is not known.
    pub rows: u64,
    /// Time at which the loss was found; 0 in a check.
    #[serde(default)]
    pub found_wall_ns: i64,
}

/// Expected files and known losses.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Expected {
    /// Durable extent of each expected file.
    pub files: BTreeMap<Part, Extent>,
    /// Losses that were found.
    pub lost: Lost,
}

/// Lost files and records.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Lost {
    /// Until a person has read them.
    pub losses: Vec<Loss>,
    /// Changes of the journal that were lost, ever: each may have given a number to an attempt.
    pub changes: u64,
}

/// Key of a note in the log, with plain data as JSON, which cannot fail.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Key {
    File(Part),
    Lost,
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

fn note(part: Part, extent: Option<Extent>) -> Change {
    Change { key: json(&Key::File(part)), value: extent.map(|extent| json(&extent)) }
}

impl Expected {
    /// Durable extent of a file.
    pub(crate) fn extent(&self, part: Part) -> Extent {
        self.files.get(&part).copied().unwrap_or_default()
    }

    /// Numbers of a new log, and of a new file of steps, that were never given.
    pub(crate) fn next_numbers(&self) -> (u64, u32) {
        let mut next = (0, 0);
        for part in self.files.keys() {
            match part {
                Part::Log(number) => next.0 = next.0.max(number + 1),
                Part::Steps(number) => next.1 = next.1.max(number + 1),
                Part::Journal | Part::Inventory => {}
            }
        }
        next
    }

    /// Settles a loss: remembers it, and expects the file in its present state from now on.
    pub(crate) fn settle(&mut self, loss: Loss) {
        match (loss.left, self.files.get_mut(&loss.part)) {
            (Some(left), Some(extent)) => extent.bytes = left,
            _ => drop(self.files.remove(&loss.part)),
        }
        if loss.part == Part::Journal {
            self.lost.changes += loss.changes();
        }
        if self.lost.losses.len() < LOSSES_MAX {
            self.lost.losses.push(loss);
        }
    }

    fn live(&self) -> Live {
        let files = self.files.iter();
        let mut live: Live =
            files.map(|(part, extent)| (json(&Key::File(*part)), json(extent))).collect();
        live.insert(json(&Key::Lost), json(&self.lost));
        live
    }
}

/// Reads the file, and changes nothing; none when it is not there.
pub(crate) fn read(disk: &dyn Disk) -> io::Result<Option<Expected>> {
    let live = match journal::read(disk, NAME) {
        Ok(contents) => contents.live,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut expected = Expected::default();
    for (key, value) in live {
        // Damage that a checksum does not find expects less.
        match serde_json::from_slice(&key) {
            Ok(Key::File(part)) => {
                expected.files.extend(serde_json::from_slice(&value).ok().map(|of| (part, of)));
            }
            Ok(Key::Lost) => expected.lost = serde_json::from_slice(&value).unwrap_or_default(),
            Err(_) => {}
        }
    }
    Ok(Some(expected))
}

/// The open inventory, shared by writers that make and remove files.
#[derive(Clone, Debug)]
pub(crate) struct Inventory(Arc<Mutex<Kept>>);

#[derive(Debug)]
struct Kept {
    journal: Journal,
    expected: Expected,
    /// True if a full disk took no change: the whole inventory is written before the next one.
    is_cleared: bool,
}

impl Inventory {
    /// Writes an inventory of all that there is, durably.
    pub(crate) fn begin(disk: &Arc<dyn Disk>, expected: Expected) -> io::Result<Self> {
        let journal = Journal::begin(disk, NAME, (0, &expected.live()), false)?;
        Ok(Self(Arc::new(Mutex::new(Kept { journal, expected, is_cleared: false }))))
    }

    /// The expected files, and the known losses.
    pub(crate) fn expected(&self) -> Expected {
        self.lock().expected.clone()
    }

    /// Notes the durable extent of a file.
    pub(crate) fn durable(&self, part: Part, extent: Extent) {
        let mut kept = self.lock();
        kept.expected.files.insert(part, extent);
        // Without it less is expected.
        let noted = kept.journal.note([note(part, Some(extent))].iter());
        if noted.is_ok() && (kept.is_cleared || kept.journal.is_bloated()) {
            kept.rewrite();
        }
    }

    /// Notes the durable extent of a file of steps, with this number of further steps.
    pub(crate) fn steps(&self, number: u32, bytes: u64, more_rows: u64) {
        let part = Part::Steps(number);
        let rows = self.lock().expected.extent(part).rows + more_rows;
        self.durable(part, Extent { bytes, rows });
    }

    /// These files are about to be removed; returns when that is durable.
    pub(crate) fn forget(&self, is_meant: impl Fn(Part) -> bool) -> io::Result<()> {
        let mut kept = self.lock();
        let gone: Vec<Part> =
            kept.expected.files.keys().copied().filter(|part| is_meant(*part)).collect();
        kept.expected.files.retain(|part, _| !is_meant(*part));
        let gone: Vec<Change> = gone.into_iter().map(|part| note(part, None)).collect();
        kept.write(&gone)
    }

    /// Changes the known losses; returns when the change is durable.
    pub(crate) fn lost<T>(&self, change: impl FnOnce(&mut Expected) -> T) -> io::Result<T> {
        let mut kept = self.lock();
        let before = kept.expected.clone();
        let changed = change(&mut kept.expected);
        let files = before.files.into_keys();
        let after = &kept.expected;
        let mut changes: Vec<Change> =
            files.map(|part| note(part, after.files.get(&part).copied())).collect();
        changes.push(Change { key: json(&Key::Lost), value: Some(json(&after.lost)) });
        kept.write(&changes)?;
        Ok(changed)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // A panic while it was held leaves an inventory that expects less.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn write(&mut self, changes: &[Change]) -> io::Result<()> {
        // The disk may be full, and what is to be removed is what makes room: an inventory that
        // expects nothing needs none.
        if changes.is_empty() || (self.is_cleared && self.rewrite()) {
            return Ok(());
        }
        if self.journal.append(changes.iter()).is_err() && !self.rewrite() {
            self.journal.clear()?;
            self.is_cleared = true;
        }
        Ok(())
    }

    /// Writes the whole inventory again; false when the disk does not take it.
    fn rewrite(&mut self) -> bool {
        let is_written = self.journal.rewrite(&self.expected.live(), false).is_ok();
        self.is_cleared &= !is_written;
        is_written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtape_disk::real::RealDisk;

    #[test]
    fn notes_are_read_back_and_forgotten_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(dir.path()));
        assert_eq!(read(&*disk).unwrap(), None);
        let inventory = Inventory::begin(&disk, Expected::default()).unwrap();
        let extent = |bytes, rows| Extent { bytes, rows };
        inventory.durable(Part::Journal, extent(7, 0));
        for (number, bytes) in [(1, 10), (2, 20), (2, 30)] {
            inventory.durable(Part::Log(number), extent(bytes, bytes / 5));
        }
        inventory.steps(0, 100, 50);
        inventory.steps(0, 200, 50);
        inventory.steps(1, 0, 0);
        let found = read(&*disk).unwrap().unwrap();
        assert_eq!(found, inventory.expected());
        assert_eq!(found.extent(Part::Steps(0)), extent(200, 100));
        assert_eq!(found.next_numbers(), (3, 2));
        inventory.forget(|part| matches!(part, Part::Log(1) | Part::Steps(0))).unwrap();
        let found = read(&*disk).unwrap().unwrap();
        assert_eq!(
            found.files.into_keys().collect::<Vec<_>>(),
            [Part::Journal, Part::Log(2), Part::Steps(1)]
        );
        let loss = |part, durable, left| Loss { part, durable, left, rows: 6, found_wall_ns: 5 };
        let losses = [loss(Part::Journal, 7, Some(4)), loss(Part::Log(2), 30, None)];
        let settled = losses.clone();
        inventory.lost(|expected| settled.into_iter().for_each(|of| expected.settle(of))).unwrap();
        let found = read(&*disk).unwrap().unwrap();
        assert_eq!(found, inventory.expected());
        assert_eq!((found.extent(Part::Journal).bytes, found.files.len()), (4, 2));
        assert_eq!((found.lost.changes, found.lost.losses), (3, losses.to_vec()));
    }
}
