//! The inventory: which files there must be, and how much of each is durable.
//!
//! Every other file shows by itself that a place in it is damaged. None shows that it is gone, or
//! that its end is. The inventory is a file of notes about the others. A note is written after the
//! sync that makes it true, and is not synced itself: a power loss takes back the newest notes, and
//! an older inventory expects less. What is to be expected no more (a log that is packed, a file of
//! steps that is too old) is forgotten durably before the file goes: the inventory is written again
//! beside the old one, synced and renamed. So no crash leaves an inventory that expects too much.
//!
//! It also has the losses that were found, until `memtape store rebuild` forgets them.
//! Nothing here looks at the other files: `recovery/losses.rs` compares.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use memtape_disk::files::{Disk, remove_if_there};
use memtape_disk::frames::{self, Frames};

/// The file's name.
pub(crate) const NAME: &str = "inventory";

/// While it is written again.
pub(crate) const NAME_ASIDE: &str = "inventory.new";

/// Longer than this it is written again, without what was noted twice.
const BYTES_MAX: u64 = 1 << 20;

/// Losses that are kept; further ones are in the log and in the sums alone.
const LOSSES_MAX: usize = 256;

/// How much of a file is durable.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Extent {
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
    /// What is left of them; none when the file is gone.
    pub left: Option<u64>,
    /// Steps that were in the file; 0 where that is not known.
    pub rows: u64,
    /// When it was found; 0 in a check.
    #[serde(default)]
    pub found_wall_ns: i64,
}

/// What there must be.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Expected {
    /// Number of the last durable change of the journal.
    pub sequence: u64,
    /// Logs of new steps.
    pub logs: BTreeMap<u64, Extent>,
    /// Files of packed steps.
    pub steps: BTreeMap<u32, Extent>,
    /// What was found to be lost.
    pub losses: Vec<Loss>,
    /// Changes of the journal that were lost, ever: each may have given a number to an attempt.
    pub changes_lost: u64,
}

/// One record of the file. Of two about the same, the later one counts.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Note {
    Journal(u64),
    Log(u64, Extent),
    Steps(u32, Extent),
    Loss(Loss),
    ChangesLost(u64),
}

impl Expected {
    fn take(&mut self, note: Note) {
        match note {
            Note::Journal(sequence) => self.sequence = sequence,
            Note::Log(number, extent) => {
                self.logs.insert(number, extent);
            }
            Note::Steps(number, extent) => {
                self.steps.insert(number, extent);
            }
            Note::Loss(loss) => self.losses.push(loss),
            Note::ChangesLost(count) => self.changes_lost = count,
        }
    }

    fn notes(&self) -> Vec<Note> {
        let mut notes = vec![Note::Journal(self.sequence), Note::ChangesLost(self.changes_lost)];
        notes.extend(self.logs.iter().map(|(number, extent)| Note::Log(*number, *extent)));
        notes.extend(self.steps.iter().map(|(number, extent)| Note::Steps(*number, *extent)));
        notes.extend(self.losses.iter().cloned().map(Note::Loss));
        notes
    }

    /// From now on a loss is known: the file is expected as it is, and the loss is remembered.
    pub(crate) fn settle(&mut self, loss: Loss) {
        match loss.part {
            Part::Journal => {
                let kept = loss.left.unwrap_or(0);
                self.changes_lost += loss.durable.saturating_sub(kept);
                self.sequence = kept;
            }
            Part::Log(number) => settle_file(&mut self.logs, number, loss.left),
            Part::Steps(number) => settle_file(&mut self.steps, number, loss.left),
            Part::Inventory => {}
        }
        if self.losses.len() < LOSSES_MAX {
            self.losses.push(loss);
        }
    }
}

/// A file is expected as it is.
fn settle_file<K: Ord>(files: &mut BTreeMap<K, Extent>, number: K, left: Option<u64>) {
    match (left, files.get_mut(&number)) {
        (Some(left), Some(extent)) => extent.bytes = left,
        _ => {
            files.remove(&number);
        }
    }
}

/// Reads the file, and changes nothing; none when it is not there.
pub(crate) fn read(disk: &dyn Disk) -> io::Result<Option<Expected>> {
    let mut expected = Expected::default();
    let read = frames::read(disk, NAME, 0, |_, payload| {
        // Damage that a checksum does not find.
        if let Ok(note) = serde_json::from_slice(payload) {
            expected.take(note);
        }
    });
    match read {
        Ok(_) => Ok(Some(expected)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The open inventory, shared by those who make and remove files.
#[derive(Clone, Debug)]
pub(crate) struct Inventory(Arc<Mutex<Kept>>);

#[derive(Debug)]
struct Kept {
    disk: Arc<dyn Disk>,
    frames: Frames,
    expected: Expected,
    /// It was renamed, and its folder is not synced yet.
    is_name_unsynced: bool,
}

impl Inventory {
    /// Writes an inventory of all that there is, durably.
    pub(crate) fn begin(disk: &Arc<dyn Disk>, expected: Expected) -> io::Result<Self> {
        let frames = write_again(&**disk, &expected)?;
        disk.sync_folder("")?;
        let kept = Kept { disk: disk.clone(), frames, expected, is_name_unsynced: false };
        Ok(Self(Arc::new(Mutex::new(kept))))
    }

    /// What there must be.
    pub(crate) fn expected(&self) -> Expected {
        self.lock().expected.clone()
    }

    /// The losses that are known.
    pub(crate) fn losses(&self) -> Vec<Loss> {
        self.lock().expected.losses.clone()
    }

    /// The journal is durable up to this change.
    pub(crate) fn journal(&self, sequence: u64) {
        self.lock().note(Note::Journal(sequence));
    }

    /// A log of steps is durable up to here.
    pub(crate) fn log(&self, number: u64, extent: Extent) {
        self.lock().note(Note::Log(number, extent));
    }

    /// A file of steps is durable up to here, with this number of steps more than before.
    pub(crate) fn steps(&self, number: u32, bytes: u64, more_rows: u64) {
        let mut kept = self.lock();
        let rows = kept.expected.steps.get(&number).map_or(0, |known| known.rows);
        kept.note(Note::Steps(number, Extent { bytes, rows: rows + more_rows }));
    }

    /// The logs before this one are about to be removed.
    pub(crate) fn forget_logs(&self, before: u64) -> io::Result<()> {
        let mut kept = self.lock();
        if kept.expected.logs.range(..before).next().is_none() {
            return Ok(());
        }
        kept.change(|expected| expected.logs = expected.logs.split_off(&before))
    }

    /// A file of steps is about to be removed.
    pub(crate) fn forget_steps(&self, number: u32) -> io::Result<()> {
        self.lock().change(|expected| {
            expected.steps.remove(&number);
        })
    }

    /// These losses are known from now on.
    pub(crate) fn settle(&self, losses: Vec<Loss>) -> io::Result<()> {
        self.lock().change(|expected| losses.into_iter().for_each(|loss| expected.settle(loss)))
    }

    /// The losses that are known, which are not remembered any longer.
    pub(crate) fn forget_losses(&self) -> io::Result<Vec<Loss>> {
        let mut kept = self.lock();
        let lost = kept.expected.losses.clone();
        kept.change(|expected| expected.losses.clear())?;
        Ok(lost)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // A panic while it was held leaves an inventory that expects less.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn note(&mut self, note: Note) {
        let payload = encode(&note);
        self.expected.take(note);
        // Without it less is expected.
        let noted = self.frames.append([payload.as_slice()]);
        if noted.is_ok() && self.frames.len_bytes() > BYTES_MAX {
            let _ = self.write_again();
        }
    }

    /// Changes what is expected; returns when that is durable.
    fn change(&mut self, change: impl FnOnce(&mut Expected)) -> io::Result<()> {
        change(&mut self.expected);
        let Err(error) = self.write_again() else { return Ok(()) };
        if self.is_name_unsynced {
            return Err(error);
        }
        // The disk may be full, and what is to be removed is what makes room: an inventory that
        // expects nothing needs none.
        self.frames.truncate(0)?;
        self.frames.sync()
    }

    fn write_again(&mut self) -> io::Result<()> {
        self.frames = write_again(&*self.disk, &self.expected)?;
        self.is_name_unsynced = true;
        self.disk.sync_folder("")?;
        self.is_name_unsynced = false;
        Ok(())
    }
}

/// Writes a new file and gives it its name, which is not durable yet.
fn write_again(disk: &dyn Disk, expected: &Expected) -> io::Result<Frames> {
    remove_if_there(disk, NAME_ASIDE)?;
    let (mut frames, _) = Frames::open(disk, NAME_ASIDE, |_, _| {})?;
    let payloads: Vec<Vec<u8>> = expected.notes().iter().map(encode).collect();
    frames.append(payloads.iter().map(Vec::as_slice))?;
    frames.sync()?;
    disk.rename(NAME_ASIDE, NAME)?;
    Ok(frames)
}

fn encode(note: &Note) -> Vec<u8> {
    // Plain data: its JSON cannot fail.
    serde_json::to_vec(note).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtape_disk::real::RealDisk;

    #[test]
    fn notes_come_back_and_what_is_forgotten_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(dir.path()));
        assert_eq!(read(&*disk).unwrap(), None);
        let inventory = Inventory::begin(&disk, Expected::default()).unwrap();
        let extent = |bytes, rows| Extent { bytes, rows };
        inventory.journal(7);
        inventory.log(1, extent(10, 2));
        inventory.log(2, extent(20, 4));
        inventory.log(2, extent(30, 6));
        inventory.steps(0, 100, 50);
        inventory.steps(0, 200, 50);
        inventory.steps(1, 0, 0);
        let found = read(&*disk).unwrap().unwrap();
        assert_eq!(found, inventory.expected());
        assert_eq!(found.steps[&0], extent(200, 100));
        inventory.forget_logs(2).unwrap();
        inventory.forget_steps(0).unwrap();
        let found = read(&*disk).unwrap().unwrap();
        assert_eq!((found.sequence, found.logs.len(), found.steps.len()), (7, 1, 1));
        let loss = |part, durable, left| Loss { part, durable, left, rows: 6, found_wall_ns: 5 };
        let losses = [loss(Part::Journal, 7, Some(4)), loss(Part::Log(2), 30, None)];
        inventory.settle(losses.to_vec()).unwrap();
        let found = read(&*disk).unwrap().unwrap();
        assert_eq!((found.sequence, found.changes_lost, found.logs.len()), (4, 3, 0));
        assert_eq!(found.losses, losses);
    }

    #[test]
    fn it_does_not_grow_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(dir.path()));
        let inventory = Inventory::begin(&disk, Expected::default()).unwrap();
        (0..60_000).for_each(|sequence| inventory.journal(sequence));
        assert!(disk.open(NAME).unwrap().len_bytes().unwrap() <= BYTES_MAX + 100);
        assert_eq!(read(&*disk).unwrap(), Some(inventory.expected()));
    }
}
