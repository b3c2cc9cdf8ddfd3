//! The journal: every change to what must not be lost, checked and synced before anything else.
//!
//! The journal is a file of numbered changes of keys. The catalogue can be built from it at any
//! time. When it has grown to a multiple of its live content, it is written again beside the old
//! one, synced and renamed.

use std::io;
use std::sync::Arc;

use crate::journal::contents::Contents;
use memtape_disk::files::{Disk, folder_of, read_all, remove_if_there, write_synced};
use memtape_disk::frames::Frames;
use memtape_disk::tree::Change;

/// A shorter journal is not written again.
const COMPACT_BYTES_MIN: u64 = 16 << 20;

/// Changes are numbered; number and key's length come before the key.
const PREFIX_BYTES: usize = 10;

/// The open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    disk: Arc<dyn Disk>,
    name: String,
    frames: Frames,
    sequence: u64,
    /// Length after it was last written again.
    compact_bytes: u64,
    /// It was renamed, and its folder is not synced yet.
    is_name_unsynced: bool,
}

impl Journal {
    /// Opens or makes a journal and reads all of it.
    pub(crate) fn open(disk: &Arc<dyn Disk>, name: &str) -> io::Result<(Self, Contents)> {
        let mut contents = Contents::default();
        let (frames, damage) =
            Frames::open(&**disk, name, |at, payload| contents.take(at, payload))?;
        contents.damage = damage;
        let live_bytes = contents.live.iter().map(|(key, value)| key.len() + value.len() + 22);
        let journal = Self {
            disk: disk.clone(),
            name: name.to_string(),
            frames,
            sequence: contents.sequence,
            compact_bytes: live_bytes.sum::<usize>() as u64,
            is_name_unsynced: false,
        };
        Ok((journal, contents))
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
        let (end, sequence) = (self.frames.len_bytes(), self.sequence);
        let payloads: Vec<Vec<u8>> = changes.zip(sequence + 1..).map(encode).collect();
        let written = self.frames.append(payloads.iter().map(Vec::as_slice));
        if let Err(error) = written.and_then(|()| self.frames.sync()) {
            // The first error is the one to tell.
            let _ = self.frames.truncate(end);
            return Err(error);
        }
        self.sequence = sequence + payloads.len() as u64;
        Ok(())
    }

    /// True when most of it is history.
    pub(crate) fn is_bloated(&self) -> bool {
        self.frames.len_bytes() > COMPACT_BYTES_MIN.max(self.compact_bytes.saturating_mul(3))
    }

    /// Writes the live content again, and drops the rest. The file may have lost its name.
    ///
    /// # Errors
    /// Also when the file does not have the last change: then it was cut.
    pub(crate) fn compact(&mut self) -> io::Result<()> {
        let mut contents = Contents::default();
        self.frames.read(|at, payload| contents.take(at, payload))?;
        if contents.sequence != self.sequence {
            let (found, last) = (contents.sequence, self.sequence);
            return Err(io::Error::other(format!("it ends at change {found} of {last}")));
        }
        self.rewrite(self.sequence, contents.live.into_iter())
    }

    /// Is the file where it should be, and as long as it should be?
    pub(crate) fn is_there(&self) -> io::Result<bool> {
        match self.disk.open(&self.name).and_then(|file| file.len_bytes()) {
            Ok(bytes) => Ok(bytes >= self.frames.len_bytes()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Replaces its contents. Numbers go on behind `sequence`.
    pub(crate) fn rewrite(
        &mut self,
        sequence: u64,
        live: impl Iterator<Item = (Vec<u8>, Vec<u8>)>,
    ) -> io::Result<()> {
        let aside = format!("{}.new", self.name);
        remove_if_there(&*self.disk, &aside)?;
        let (mut frames, _) = Frames::open(&*self.disk, &aside, |_, _| {})?;
        let mut number = sequence;
        for (key, value) in live {
            number += 1;
            let payload = encode((&Change { key, value: Some(value) }, number));
            frames.append([payload.as_slice()])?;
        }
        if number == sequence {
            // Nothing is left: the end of a record that never was has the last number.
            number += 1;
            let payload = encode((&Change { key: Vec::new(), value: None }, number));
            frames.append([payload.as_slice()])?;
        }
        frames.sync()?;
        self.disk.rename(&aside, &self.name)?;
        // From here on the new one is the journal, whether or not its name is durable yet.
        self.compact_bytes = frames.len_bytes();
        (self.frames, self.sequence) = (frames, number);
        self.is_name_unsynced = true;
        self.sync_name()
    }

    /// Copies the file, so that a person can look at it; false when that fails.
    pub(crate) fn keep_aside(&self, wall_ns: i64) -> bool {
        let aside = format!("{}.damaged-{wall_ns}", self.name);
        let kept = read_all(&*self.disk, &self.name)
            .and_then(|contents| write_synced(&*self.disk, &aside, &contents));
        if let Err(error) = &kept {
            tracing::warn!("the damaged journal cannot be copied, and stays as it is: {error}");
        }
        kept.is_ok()
    }

    /// Nothing is durable in a file whose name is not.
    fn sync_name(&mut self) -> io::Result<()> {
        if self.is_name_unsynced {
            self.disk.sync_folder(folder_of(&self.name))?;
            self.is_name_unsynced = false;
        }
        Ok(())
    }

    /// Length in bytes.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.frames.len_bytes()
    }
}

fn encode((change, number): (&Change, u64)) -> Vec<u8> {
    let mut payload = Vec::with_capacity(PREFIX_BYTES + change.key.len() + 1);
    payload.extend_from_slice(&number.to_le_bytes());
    payload.extend_from_slice(&(change.key.len() as u16).to_le_bytes());
    payload.extend_from_slice(&change.key);
    payload.push(u8::from(change.value.is_some()));
    payload.extend_from_slice(change.value.as_deref().unwrap_or_default());
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

    fn open(folder: &std::path::Path) -> (Journal, Contents) {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder));
        Journal::open(&disk, "journal").unwrap()
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
        let (mut journal, _) = open(dir.path());
        let gone = Change { key: "b".into(), value: None };
        let changes = [put("a", "1"), put("b", "2"), put("a", "3"), gone, put("c", "")];
        journal.append(changes.iter()).unwrap();
        let expected = vec![("a".into(), "3".into()), ("c".into(), String::new())];
        let (journal, contents) = open(dir.path());
        assert_eq!((journal.sequence(), live(&contents)), (5, expected.clone()));
        // Written again it says the same, is shorter, and its numbers go on.
        let mut journal = journal;
        let before = journal.len_bytes();
        journal.compact().unwrap();
        assert!(journal.len_bytes() < before);
        journal.append([put("d", "4")].iter()).unwrap();
        let (journal, contents) = open(dir.path());
        assert_eq!(journal.sequence(), 8);
        assert_eq!(live(&contents).len(), 3);
        assert_eq!(live(&contents)[..2], expected[..]);
    }

    #[test]
    fn every_possible_torn_tail_keeps_what_was_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (mut journal, _) = open(dir.path());
        journal.append([put("a", "1")].iter()).unwrap();
        let whole = journal.len_bytes();
        journal.append([put("b", "2")].iter()).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for length in whole..journal.len_bytes() {
            std::fs::write(&path, &bytes[..length as usize]).unwrap();
            let (journal, contents) = open(dir.path());
            assert_eq!(live(&contents), [("a".to_string(), "1".to_string())]);
            assert_eq!((journal.sequence(), contents.damage.cut_bytes), (1, length - whole));
        }
    }
}
