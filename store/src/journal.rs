//! A log of numbered changes of keys: the last change of a key counts. The journal of records is
//! one, and the inventory is one.
//!
//! A change is appended and synced. At each start, and when it has grown to a multiple of its live
//! content, the log is written again beside the old one, synced and renamed. The journal's old file
//! stays as its previous generation, against bit rot: it has every record that the new one began
//! with. The records of a new generation have the number of the last change before it, so that
//! a previous generation can be told from an older one.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use memtape_disk::clock;
use memtape_disk::files::{Disk, folder_of, read_all, remove_if_there, replace as replace_file};
use memtape_disk::frames::{self, Damage, Frames};
use memtape_disk::tree::Change;

/// The journal's name.
pub(crate) const JOURNAL: &str = "journal";

/// The journal's previous generation.
pub(crate) const PREVIOUS: &str = "journal.previous";

/// A shorter log is not written again while it is open.
const COMPACT_BYTES_MIN: u64 = 16 << 20;

/// Records of a new generation that are written at once.
const RECORDS_AT_ONCE: usize = 512;

/// The last value of every key.
pub(crate) type Live = BTreeMap<Vec<u8>, Vec<u8>>;

/// Contents of a log.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// The last value of every key that is not deleted.
    pub(crate) live: Live,
    /// Number of the last change.
    pub(crate) sequence: u64,
    /// Records whose checksums are right and that make no sense.
    pub(crate) strange: u64,
    /// Damage found in the file.
    pub(crate) damage: Damage,
    /// Values that the previous generation has, and the damaged one has not.
    pub(crate) recovered: u64,
    /// Keys changed in this log. A changed key that is not live was deleted.
    changed: BTreeSet<Vec<u8>>,
    /// Number of the first change.
    first: Option<u64>,
}

impl Contents {
    pub(crate) fn take(&mut self, payload: &[u8]) {
        let Some((number, change)) = decode(payload) else {
            self.strange += 1;
            return;
        };
        // A record from inside a damaged one would be out of order.
        if number < self.sequence {
            return;
        }
        self.sequence = number;
        self.first.get_or_insert(number);
        self.changed.insert(change.key.clone());
        match change.value {
            Some(value) => self.live.insert(change.key, value),
            None => self.live.remove(&change.key),
        };
    }

    /// Restores damaged records from the previous generation, if `previous` is that generation.
    fn recover(&mut self, previous: Self) {
        // Damage may hide the beginning with the first changes behind it.
        let is_hidden = self.damage.gaps > 0;
        let end = if is_hidden { u64::MAX } else { previous.sequence.saturating_add(1) };
        if self.first.is_some_and(|first| !(previous.sequence..=end).contains(&first)) {
            return;
        }
        self.sequence = self.sequence.max(previous.sequence);
        for (key, value) in previous.live {
            if !self.changed.contains(&key) {
                self.recovered += 1;
                self.live.insert(key, value);
            }
        }
    }
}

/// Reads a log, and changes nothing.
pub(crate) fn read(disk: &dyn Disk, name: &str) -> io::Result<Contents> {
    let mut contents = Contents::default();
    contents.damage = frames::read(disk, name, 0, |_, payload| contents.take(payload))?;
    Ok(contents)
}

/// Reads the journal, with damaged records from its previous generation; none when both are gone.
pub(crate) fn read_both(disk: &dyn Disk) -> io::Result<Option<Contents>> {
    let there = |name| match read(disk, name) {
        Ok(contents) => Ok(Some(contents)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    match (there(JOURNAL)?, there(PREVIOUS)?) {
        (Some(mut contents), Some(previous)) => {
            contents.recover(previous);
            Ok(Some(contents))
        }
        (None, previous) => Ok(previous),
        (contents, None) => Ok(contents),
    }
}

/// The open log.
#[derive(Debug)]
pub(crate) struct Journal {
    disk: Arc<dyn Disk>,
    name: &'static str,
    frames: Frames,
    sequence: u64,
    /// Length and last number when it was synced last.
    synced: (u64, u64),
    /// Length after it was last written again.
    compact_bytes: u64,
    /// True if the file was renamed, and its folder is not synced yet.
    is_name_unsynced: bool,
}

impl Journal {
    /// Writes a new generation of a log; numbers go on behind `sequence`.
    pub(crate) fn begin(
        disk: &Arc<dyn Disk>,
        name: &'static str,
        (sequence, live): (u64, &Live),
        is_damaged: bool,
    ) -> io::Result<Self> {
        let frames = write(&**disk, name, sequence, live)?;
        replace(&**disk, name, is_damaged)?;
        let bytes = frames.len_bytes();
        let mut journal = Self {
            disk: disk.clone(),
            name,
            frames,
            sequence,
            synced: (bytes, sequence),
            compact_bytes: bytes,
            is_name_unsynced: true,
        };
        journal.sync_name()?;
        Ok(journal)
    }

    /// Number of the last change.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Writes changes and returns when they are durable.
    pub(crate) fn append<'a>(
        &mut self,
        changes: impl Iterator<Item = &'a Change>,
    ) -> io::Result<()> {
        self.sync_name()?;
        if let Err(error) = self.note(changes).and_then(|()| self.frames.sync()) {
            // Nothing that a failed sync should have written gets there by a later one. The first
            // error is the one to tell.
            let (end, sequence) = self.synced;
            let _ = self.frames.truncate(end);
            self.sequence = sequence;
            return Err(error);
        }
        self.synced = (self.frames.len_bytes(), self.sequence);
        Ok(())
    }

    /// Writes changes that may be lost with the power.
    pub(crate) fn note<'a>(&mut self, changes: impl Iterator<Item = &'a Change>) -> io::Result<()> {
        let encode =
            |(change, number): (&Change, u64)| encode(&change.key, change.value.as_deref(), number);
        let payloads: Vec<Vec<u8>> = changes.zip(self.sequence + 1..).map(encode).collect();
        self.frames.append(payloads.iter().map(Vec::as_slice))?;
        self.sequence += payloads.len() as u64;
        Ok(())
    }

    /// Forgets everything, which needs no space, and returns when that is durable.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        self.sync_name()?;
        self.frames.truncate(0)?;
        self.frames.sync()?;
        self.synced = (0, self.sequence);
        Ok(())
    }

    /// True when most of it is history.
    pub(crate) fn is_bloated(&self) -> bool {
        self.frames.len_bytes() > COMPACT_BYTES_MIN.max(self.compact_bytes.saturating_mul(3))
    }

    /// Contents of the open file, which may have lost its name.
    ///
    /// # Errors
    /// Also when a change is missing: then it was cut, or is damaged.
    pub(crate) fn contents(&self) -> io::Result<Contents> {
        let mut contents = Contents::default();
        contents.damage = self.frames.read(|_, payload| contents.take(payload))?;
        if contents.sequence != self.sequence || contents.damage.gaps > 0 {
            let (found, last) = (contents.sequence, self.sequence);
            return Err(io::Error::other(format!("it ends at change {found} of {last}")));
        }
        Ok(contents)
    }

    /// Does the file exist, with at least its expected length?
    pub(crate) fn is_there(&self) -> io::Result<bool> {
        match self.disk.open(self.name).and_then(|file| file.len_bytes()) {
            Ok(bytes) => Ok(bytes >= self.frames.len_bytes()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Begins a new generation. Until it has its name, the old one stays the log.
    pub(crate) fn rewrite(&mut self, live: &Live, is_damaged: bool) -> io::Result<()> {
        let frames = write(&*self.disk, self.name, self.sequence, live)?;
        // Where it is gone, the generation before it is no predecessor of the new one.
        replace(&*self.disk, self.name, is_damaged || !self.is_there()?)?;
        self.compact_bytes = frames.len_bytes();
        self.synced = (self.compact_bytes, self.sequence);
        (self.frames, self.is_name_unsynced) = (frames, true);
        self.sync_name()
    }

    /// Syncs the folder of a renamed file: nothing is durable in a file whose name is not.
    fn sync_name(&mut self) -> io::Result<()> {
        if self.is_name_unsynced {
            self.disk.sync_folder(folder_of(self.name))?;
            self.is_name_unsynced = false;
        }
        Ok(())
    }

    /// Length in bytes.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.frames.len_bytes()
    }
}

/// Gives the new generation its name, and the journal's old one the name of the previous
/// generation. A damaged journal is copied first, for recovery by other means, and replaced in one
/// step: the generation before it has less.
fn replace(disk: &dyn Disk, name: &str, is_damaged: bool) -> io::Result<()> {
    if name == JOURNAL && is_damaged {
        let copy = format!("{JOURNAL}.damaged-{}", clock::now().wall_ns);
        let copied = read_all(disk, JOURNAL).and_then(|bytes| replace_file(disk, &copy, &bytes));
        if let Err(error) = copied.or_else(if_there) {
            tracing::warn!("the damaged journal cannot be copied: {error}");
        }
        disk.rename(&aside(name), name)?;
        disk.sync_folder(folder_of(name))?;
        // Keys that were deleted since would come back from it.
        return remove_if_there(disk, PREVIOUS);
    }
    if name == JOURNAL {
        // Where there is none, the previous one is what was read.
        disk.rename(JOURNAL, PREVIOUS).or_else(if_there)?;
    }
    disk.rename(&aside(name), name)
}

/// Ignores the error that a file does not exist.
fn if_there(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Name of a log that is being written again.
fn aside(name: &str) -> String {
    format!("{name}.new")
}

/// Writes a generation beside the present one.
fn write(disk: &dyn Disk, name: &str, sequence: u64, live: &Live) -> io::Result<Frames> {
    let aside = aside(name);
    let written = (|| {
        remove_if_there(disk, &aside)?;
        let (mut frames, _) = Frames::open(disk, &aside, |_, _| {})?;
        let mut payloads: Vec<Vec<u8>> =
            live.iter().map(|(key, value)| encode(key, Some(value), sequence)).collect();
        if live.is_empty() && sequence > 0 {
            // The end of a record that never was has the last number.
            payloads.push(encode(&[], None, sequence));
        }
        for payloads in payloads.chunks(RECORDS_AT_ONCE) {
            frames.append(payloads.iter().map(Vec::as_slice))?;
        }
        frames.sync()?;
        Ok(frames)
    })();
    if written.is_err() {
        // The disk may be full: half a log is in the way.
        let _ = remove_if_there(disk, &aside);
    }
    written
}

fn encode(key: &[u8], value: Option<&[u8]>, number: u64) -> Vec<u8> {
    let mut payload = number.to_le_bytes().to_vec();
    payload.extend_from_slice(&(key.len() as u16).to_le_bytes());
    payload.extend_from_slice(key);
    payload.push(u8::from(value.is_some()));
    payload.extend_from_slice(value.unwrap_or_default());
    payload
}

pub(crate) fn decode(payload: &[u8]) -> Option<(u64, Change)> {
    let (number, rest) = payload.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (key, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    let (is_there, value) = rest.split_first()?;
    let value = (*is_there == 1).then(|| value.to_vec());
    Some((u64::from_le_bytes(*number), Change { key: key.to_vec(), value }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtape_disk::real::RealDisk;
    use memtape_simulated_disk::SimulatedDisk;

    fn disk(folder: &std::path::Path) -> Arc<dyn Disk> {
        Arc::new(RealDisk::new(folder))
    }

    fn open(disk: &Arc<dyn Disk>) -> (Journal, Contents) {
        let contents = read_both(&**disk).unwrap().unwrap_or_default();
        let is_damaged = contents.damage.gaps > 0;
        let journal =
            Journal::begin(disk, JOURNAL, (contents.sequence, &contents.live), is_damaged);
        (journal.unwrap(), contents)
    }

    fn put(key: &str, value: &str) -> Change {
        Change { key: key.into(), value: Some(value.into()) }
    }

    fn live(contents: &Contents) -> Vec<(String, String)> {
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        contents.live.iter().map(|(key, value)| (text(key), text(value))).collect()
    }

    #[test]
    fn the_last_value_of_each_key_counts() {
        let dir = tempfile::tempdir().unwrap();
        let disk = disk(dir.path());
        let (mut journal, _) = open(&disk);
        let gone = Change { key: "b".into(), value: None };
        let changes = [put("a", "1"), put("b", "2"), put("a", "3"), gone, put("c", "")];
        journal.append(changes.iter()).unwrap();
        let expected = vec![("a".into(), "3".into()), ("c".into(), String::new())];
        let before = journal.len_bytes();
        // Written again it says the same, is shorter, and its numbers go on.
        let (mut journal, contents) = open(&disk);
        assert_eq!((journal.sequence(), live(&contents)), (5, expected.clone()));
        assert!(journal.len_bytes() < before);
        journal.append([put("d", "4")].iter()).unwrap();
        journal.rewrite(&journal.contents().unwrap().live, false).unwrap();
        let (journal, contents) = open(&disk);
        assert_eq!((journal.sequence(), live(&contents).len()), (6, 3));
        assert_eq!(live(&contents)[..2], expected[..]);
    }

    #[test]
    fn a_crash_while_a_damaged_journal_is_replaced_loses_nothing() {
        for operations in 0.. {
            let simulated = SimulatedDisk::new(operations);
            let disk = simulated.process();
            open(&disk).0.append([put("a", "1")].iter()).unwrap();
            open(&disk).0.append([put("b", "2")].iter()).unwrap();
            assert!(simulated.flip(JOURNAL, 14, 1));
            let contents = read_both(&*disk).unwrap().unwrap();
            assert_eq!((live(&contents).len(), contents.damage.gaps), (2, 1));
            simulated.crash_after(Some(operations), true);
            let begun = Journal::begin(&disk, JOURNAL, (2, &contents.live), true);
            simulated.crash_after(None, true);
            let survived = read_both(&*simulated.process()).unwrap().unwrap();
            assert_eq!(live(&survived), live(&contents), "a crash at operation {operations}");
            if begun.is_ok() {
                assert!(operations > 5, "{operations}");
                return;
            }
        }
    }

    #[test]
    fn every_torn_tail_keeps_the_earlier_changes() {
        let dir = tempfile::tempdir().unwrap();
        let disk = disk(dir.path());
        let path = dir.path().join(JOURNAL);
        let (mut journal, _) = open(&disk);
        journal.append([put("a", "1")].iter()).unwrap();
        let whole = journal.len_bytes();
        journal.append([put("b", "2")].iter()).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for length in whole..journal.len_bytes() {
            std::fs::write(&path, &bytes[..length as usize]).unwrap();
            let contents = read(&*disk, JOURNAL).unwrap();
            assert_eq!(live(&contents), [("a".to_string(), "1".to_string())]);
            assert_eq!((contents.sequence, contents.damage.cut_bytes), (1, length - whole));
        }
    }

    /// Bytes at which a generation began are restored from the generation before, and later
    /// deletions stay.
    #[test]
    fn the_previous_generation_has_what_rots() {
        let dir = tempfile::tempdir().unwrap();
        let disk = disk(dir.path());
        let path = dir.path().join(JOURNAL);
        let keys = ["a", "b", "c", "d"];
        open(&disk).0.append(keys.map(|key| put(key, "old")).iter()).unwrap();
        let (mut journal, _) = open(&disk);
        let begun = journal.len_bytes() as usize;
        let gone = Change { key: "d".into(), value: None };
        journal.append([put("a", "new"), gone].iter()).unwrap();
        let (whole, bytes) = (live(&read(&*disk, JOURNAL).unwrap()), std::fs::read(&path).unwrap());
        for at in 0..begun {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            std::fs::write(&path, flipped).unwrap();
            let contents = read_both(&*disk).unwrap().unwrap();
            assert_eq!(live(&contents), whole, "byte {at}");
            assert_eq!(contents.damage.gaps, 1);
        }
        // Also where the first changes behind the beginning are damaged.
        let mut flipped = bytes.clone();
        flipped[..begun + 20].fill(0xff);
        std::fs::write(&path, flipped).unwrap();
        let kept = live(&read_both(&*disk).unwrap().unwrap());
        assert_eq!(kept.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
        // After damage there is no older generation that could be taken for the previous one.
        open(&disk);
        assert!(!dir.path().join(PREVIOUS).exists());
        std::fs::write(&path, &bytes).unwrap();
        open(&disk);
        // Where the journal is gone, as after a crash between two renames, or empty.
        std::fs::write(&path, b"").unwrap();
        assert_eq!(live(&read_both(&*disk).unwrap().unwrap()).len(), 3);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(live(&open(&disk).1).len(), 3);
    }
}
