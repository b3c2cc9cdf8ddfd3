//! Entries with rising numbers, in files of checked records, dropped from the front.
//!
//! Each user has files of their own, so that the entries of one user are dropped without those of
//! another. Numbers rise over all files, and entries are read in their order. The positions of
//! entries are kept in memory. A file of an earlier process is not written again.

use std::io;
use std::sync::Arc;

use memtape_core::sharing::Amounts;
use memtape_disk::files::Disk;
use memtape_disk::frames::{self, Frames, frame_bytes};

use crate::node::accounts::Account;

/// Bytes of number and items before an entry's payload.
const HEAD_BYTES: usize = 12;

/// An entry with its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Number of the entry; rising over all logs of a spool.
    pub(crate) number: u64,
    /// Number of items in the entry.
    pub(crate) items: u32,
    /// The encoded message.
    pub(crate) payload: Vec<u8>,
}

impl Entry {
    /// Bytes of the entry on the disk.
    pub(crate) fn disk_bytes(&self) -> u64 {
        frame_bytes(HEAD_BYTES + self.payload.len())
    }

    /// The content of its record.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (number, items) = (self.number.to_le_bytes(), self.items.to_le_bytes());
        [&number, items.as_slice(), &self.payload].concat()
    }

    /// The entry in a record; none when it makes no sense.
    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        let (number, rest) = record.split_first_chunk()?;
        let (items, payload) = rest.split_first_chunk()?;
        Some(Self {
            number: u64::from_le_bytes(*number),
            items: u32::from_le_bytes(*items),
            payload: payload.to_vec(),
        })
    }
}

/// The entries of one kind.
#[derive(Debug)]
pub(crate) struct Logs {
    disk: Arc<dyn Disk>,
    kind: &'static str,
    segment_bytes_max: u64,
    /// Segments in the order of their first entries.
    segments: Vec<Segment>,
    /// Items that could not be read.
    lost: u64,
}

/// A file of entries.
#[derive(Debug)]
struct Segment {
    /// Number of its first entry, and so its name.
    first: u64,
    /// The user of the segment's entries.
    user: Account,
    bytes: u64,
    entries: Vec<Location>,
    /// More may be added.
    file: Option<Frames>,
    is_synced: bool,
}

/// Location of an entry.
#[derive(Clone, Copy, Debug)]
struct Location {
    number: u64,
    items: u32,
    offset: u64,
    /// Length of the whole record's content, in bytes.
    length: usize,
}

impl Logs {
    /// Opens the files of one kind. `visit` gets each entry, and returns its user; a file belongs
    /// to the user of its first entry. A file without a whole entry is deleted.
    /// Fails with the errors of the disk.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        kind: &'static str,
        segment_bytes_max: u64,
        mut visit: impl FnMut(&Entry) -> Option<Account>,
    ) -> io::Result<Self> {
        let (disk, segments) = (disk.clone(), Vec::new());
        let mut logs = Self { disk, kind, segment_bytes_max, segments, lost: 0 };
        let files = logs.disk.list("")?.into_iter().filter_map(|file| {
            let (of, first) = kind_and_number(&file.name)?;
            (of == kind).then_some((first, file.bytes))
        });
        let mut files: Vec<(u64, u64)> = files.collect();
        files.sort_unstable();
        for (first, bytes) in files {
            let (mut entries, mut user): (Vec<Location>, _) = (Vec::new(), None);
            let name = name_of(kind, first);
            let damage = frames::read(&*logs.disk, &name, 0, |offset, record| {
                let Some(entry) = Entry::decode(record) else { return };
                let Entry { number, items, .. } = entry;
                // A record from inside a damaged one would be out of order.
                if entries.last().is_none_or(|last| last.number < number) {
                    user = user.or(visit(&entry));
                    entries.push(Location { number, items, offset, length: record.len() });
                }
            })?;
            if damage != frames::Damage::default() {
                tracing::warn!("{name} in the spool is damaged: {damage:?}");
            }
            if entries.is_empty() {
                logs.disk.remove(&name)?;
                continue;
            }
            let user = user.unwrap_or(0);
            let segment = Segment { first, user, bytes, entries, file: None, is_synced: false };
            logs.segments.push(segment);
        }
        Ok(logs)
    }

    /// Bytes on the disk, by user.
    pub(crate) fn amounts(&self) -> Amounts<Account> {
        self.segments.iter().map(|segment| (segment.user, segment.bytes)).collect()
    }

    /// Number of the newest entry; 0 without any.
    pub(crate) fn last(&self) -> u64 {
        self.segments.iter().map(Segment::last).max().unwrap_or(0)
    }

    /// Adds an entry about a user's tapes.
    /// Fails with the errors of the disk; the entry is then not there.
    pub(crate) fn append(&mut self, user: Account, entry: &Entry) -> io::Result<()> {
        let fits = entry.disk_bytes();
        let of_user = |segment: &Segment| segment.user == user && segment.file.is_some();
        let open = self.segments.iter().rposition(of_user);
        let index = match open {
            Some(index) if self.segments[index].bytes + fits <= self.segment_bytes_max => index,
            full => {
                if let Some(index) = full {
                    self.segments[index].file = None;
                }
                self.begin(user, entry.number)?
            }
        };
        let Segment { file: Some(file), entries, .. } = &mut self.segments[index] else {
            return Ok(());
        };
        let (record, offset) = (entry.encode(), file.len_bytes());
        if let Err(error) = file.append([record.as_slice()]) {
            if entries.is_empty() {
                self.remove(index);
            }
            return Err(error);
        }
        let segment = &mut self.segments[index];
        let Entry { number, items, .. } = *entry;
        segment.entries.push(Location { number, items, offset, length: record.len() });
        (segment.bytes, segment.is_synced) = (offset + fits, false);
        Ok(())
    }

    fn begin(&mut self, user: Account, first: u64) -> io::Result<usize> {
        let (file, _) = Frames::open(&*self.disk, &name_of(self.kind, first), |_, _| {})?;
        let (file, entries) = (Some(file), Vec::new());
        let segment = Segment { first, user, bytes: 0, entries, file, is_synced: false };
        self.segments.push(segment);
        Ok(self.segments.len() - 1)
    }

    /// Returns when everything added would survive a loss of power.
    /// Fails with the errors of the disk; what was added may then be lost with the power.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        let mut synced = Ok(());
        let mut any = false;
        for segment in self.segments.iter_mut().filter(|segment| !segment.is_synced) {
            let name = name_of(self.kind, segment.first);
            let result = self.disk.open(&name).and_then(|file| file.sync());
            // A disk that failed once to sync may forget what it could not write: not tried again.
            segment.is_synced = true;
            if result.is_err() {
                segment.file = None;
            }
            synced = synced.and(result);
            any = true;
        }
        if any { synced.and(self.disk.sync_folder("")) } else { Ok(()) }
    }

    /// Number of the first entry with a larger number than this.
    pub(crate) fn next_number(&self, number: u64) -> Option<u64> {
        Some(self.locate(number)?.0)
    }

    fn locate(&self, number: u64) -> Option<(u64, usize, usize)> {
        let firsts = self.segments.iter().enumerate().filter_map(|(index, segment)| {
            let at = segment.entries.partition_point(|entry| entry.number <= number);
            Some((segment.entries.get(at)?.number, index, at))
        });
        firsts.min()
    }

    /// Reads the first entry with a larger number than this. One that cannot be read is lost, and
    /// `None`.
    pub(crate) fn read_next(&mut self, number: u64) -> Option<Entry> {
        let (_, index, at) = self.locate(number)?;
        let segment = &mut self.segments[index];
        let Location { items, offset, length, .. } = segment.entries[at];
        let name = name_of(self.kind, segment.first);
        let read = self.disk.open(&name);
        let read = read.and_then(|file| frames::read_at(&*file, offset, length));
        let entry = read.ok().flatten().and_then(|record| Entry::decode(&record));
        if entry.is_none() {
            // It was whole once: the disk has damaged it, or cannot be read.
            tracing::warn!("a part of {name} in the spool cannot be read");
            self.lost += u64::from(items);
            segment.entries.remove(at);
            if segment.entries.is_empty() {
                self.remove(index);
            }
        }
        entry
    }

    /// Deletes a user's oldest file; answers the items in it with larger numbers than `delivered`.
    pub(crate) fn drop_oldest(&mut self, user: Account, delivered: u64) -> Option<u64> {
        let index = self.segments.iter().position(|segment| segment.user == user)?;
        let entries = self.segments[index].entries.iter();
        let undelivered = entries.filter(|entry| entry.number > delivered);
        let items = undelivered.map(|entry| u64::from(entry.items)).sum();
        self.remove(index);
        Some(items)
    }

    /// Items that could not be read, since this was asked last.
    pub(crate) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// Deletes the files whose entries are all delivered.
    pub(crate) fn forget(&mut self, delivered: u64) {
        while let Some(index) = self.segments.iter().position(|segment| segment.last() <= delivered)
        {
            self.remove(index);
        }
    }

    fn remove(&mut self, index: usize) {
        let name = name_of(self.kind, self.segments.remove(index).first);
        if let Err(error) = self.disk.remove(&name) {
            // It is read again after a restart, which does no harm.
            tracing::warn!("{name} in the spool cannot be deleted: {error}");
        }
    }
}

impl Segment {
    /// Number of its newest entry.
    fn last(&self) -> u64 {
        self.entries.last().map_or(self.first, |entry| entry.number)
    }
}

/// Name of a file of a kind that begins with this entry.
pub(crate) fn name_of(kind: &str, number: u64) -> String {
    format!("{kind}-{number:016x}")
}

/// The kind of a file and the number of its first entry, from its name.
pub(crate) fn kind_and_number(name: &str) -> Option<(&str, u64)> {
    let (kind, number) = name.split_once('-')?;
    Some((kind, u64::from_str_radix(number, 16).ok()?))
}
