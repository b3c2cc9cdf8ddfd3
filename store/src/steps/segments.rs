//! Packed steps on disk: numbered files of checked records, to which is only appended.
//!
//! A record is a block of one series, or says that an attempt is forgotten: its blocks before that
//! location no longer count, and lie there unused until the file goes. A file is finished when it
//! is large or covers an hour, and deleted as a whole when all in it is too old, or too much: the
//! oldest first, so that no forgotten block outlives the record that says so.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::records::SeriesKey;
use memtape_disk::clock;
use memtape_disk::files::{Disk, remove_if_there};
use memtape_disk::frames::{self, Damage, Frames, frame_bytes};

/// Folder of the files.
pub(crate) const FOLDER: &str = "steps";

/// A file longer than this is finished. It is also what a bound on bytes may be passed by.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 64 << 20;

/// Stretches of time that a file covers at most: an hour of the store's clock.
pub(crate) const SEGMENT_STRETCHES: u32 = 12;

/// Length of a time bucket, in nanoseconds.
pub(crate) const STRETCH_NS: i64 = 300_000_000_000;

/// Bytes of a series in a key.
pub(crate) const SERIES_BYTES: usize = 9;

const BLOCK: u8 = b'B';
const FORGOTTEN: u8 = b'F';

/// The time bucket of a time on the store's clock.
pub fn stretch(store_ns: i64) -> u32 {
    u32::try_from(store_ns / STRETCH_NS).unwrap_or(0)
}

/// Begin of a time bucket, in nanoseconds of the store's clock.
pub(crate) fn begin_ns(stretch: u32) -> i64 {
    i64::from(stretch) * STRETCH_NS
}

/// The newest time bucket of the last written file.
pub(crate) fn newest(files: &BTreeMap<u32, Segment>) -> Option<u32> {
    let mut written = files.values().rev();
    let last = written.find(|known| known.first_stretch <= known.last_stretch)?;
    Some(last.last_stretch)
}

/// The age of the oldest file that has blocks, in time buckets of the store's clock. A file is as
/// old as its newest block.
pub(crate) fn age(files: &BTreeMap<u32, Segment>, now: u32) -> i64 {
    let oldest = files.values().find(|known| known.first_stretch <= known.last_stretch);
    oldest.map_or(0, |known| i64::from(now.saturating_sub(known.last_stretch)))
}

/// Length and time buckets of a file.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Segment {
    pub(crate) bytes: u64,
    /// Time buckets of the blocks in the file; the first is above the last when there are none.
    pub(crate) first_stretch: u32,
    pub(crate) last_stretch: u32,
    /// Blocks in the file that are not forgotten.
    pub(crate) blocks: u64,
}

impl Segment {
    pub(crate) fn new() -> Self {
        Self { first_stretch: u32::MAX, ..Self::default() }
    }

    pub(crate) fn cover(&mut self, stretch: u32) {
        self.first_stretch = self.first_stretch.min(stretch);
        self.last_stretch = self.last_stretch.max(stretch);
    }
}

/// Location of a block, with its series and time bucket.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Location {
    pub(crate) stretch: u32,
    pub(crate) series: SeriesKey,
    pub(crate) segment: u32,
    pub(crate) offset: u64,
    /// Length of the whole payload, in bytes.
    pub(crate) length: u32,
}

/// A record of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Entry<'a> {
    Block { stretch: u32, series: SeriesKey, block: &'a [u8] },
    Forgotten { serial: u32 },
}

impl<'a> Entry<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Block { stretch, series, block } => {
                let mut payload = Vec::with_capacity(1 + 4 + SERIES_BYTES + block.len());
                payload.push(BLOCK);
                payload.extend(stretch.to_be_bytes());
                payload.extend(series_bytes(*series));
                payload.extend_from_slice(block);
                payload
            }
            Self::Forgotten { serial } => [&[FORGOTTEN], serial.to_be_bytes().as_slice()].concat(),
        }
    }

    /// Decodes an entry; none when it makes no sense, though its checksum is right.
    pub(crate) fn decode(payload: &'a [u8]) -> Option<Self> {
        let (kind, rest) = payload.split_first()?;
        let (number, rest) = rest.split_first_chunk()?;
        let number = u32::from_be_bytes(*number);
        match *kind {
            BLOCK => {
                let (series, block) = rest.split_at_checked(SERIES_BYTES)?;
                Some(Self::Block { stretch: number, series: series_of(series)?, block })
            }
            FORGOTTEN if rest.is_empty() => Some(Self::Forgotten { serial: number }),
            _ => None,
        }
    }
}

/// All files, as the writer has them.
#[derive(Debug)]
pub(crate) struct Segments {
    disk: Arc<dyn Disk>,
    table: Table,
    /// The file being appended to.
    current: Option<(u32, Frames)>,
    /// Number of the next one.
    next: u32,
}

/// State of all files, shared with readers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table(Arc<Mutex<BTreeMap<u32, Segment>>>);

impl Table {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Segment>> {
        // A panic while it was held leaves whole numbers.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().values().map(|segment| segment.bytes).sum()
    }
}

/// A file's name.
pub(crate) fn name(number: u32) -> String {
    format!("{FOLDER}/{number:08}.seg")
}

/// The numbers of all files, in order, with their lengths.
pub(crate) fn list(disk: &dyn Disk) -> io::Result<BTreeMap<u32, u64>> {
    let entries = disk.list(FOLDER)?.into_iter();
    let number = |name: &str| name.strip_suffix(".seg")?.parse::<u32>().ok();
    Ok(entries.filter_map(|entry| Some((number(&entry.name)?, entry.bytes))).collect())
}

/// Shows the records of a file that begin at `from` or behind it, in order.
pub(crate) fn scan(
    disk: &dyn Disk,
    number: u32,
    from: u64,
    mut visit: impl FnMut(u64, u32, Option<Entry<'_>>),
) -> io::Result<Damage> {
    frames::read(disk, &name(number), from, |offset, payload| {
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        visit(offset, length, Entry::decode(payload));
    })
}

impl Segments {
    /// Opens the newest file, cuts off its half-written record, and notes the lengths of all files.
    /// When it has gaps, as a power cut in the middle of a packing can leave them, the next one is
    /// made of its whole records. A new file gets this number or a greater one.
    pub(crate) fn open(disk: &Arc<dyn Disk>, number_min: u32) -> io::Result<(Self, Damage)> {
        let mut found = list(&**disk)?;
        let mut damage = Damage::default();
        let mut current = None;
        if let Some((&last, _)) = found.last_key_value() {
            let (mut frames, seen) = Frames::open(&**disk, &name(last), |_, _| {})?;
            let mut number = last;
            if seen.gaps > 0 {
                found.remove(&last);
                number += 1;
                frames = without_gaps(&**disk, last, number)?;
            }
            found.insert(number, frames.len_bytes());
            (current, damage) = (Some((number, frames)), seen);
        }
        let next = found.last_key_value().map_or(0, |(last, _)| last + 1).max(number_min);
        let segment = |bytes| Segment { bytes, ..Segment::new() };
        let table = found.into_iter().map(|(number, bytes)| (number, segment(bytes))).collect();
        let table = Table(Arc::new(Mutex::new(table)));
        Ok((Self { disk: disk.clone(), table, current, next }, damage))
    }

    pub(crate) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// Finishes the file, and begins another, when it is time to. Not in the middle of a pack.
    pub(crate) fn roll(&mut self, now: u32) -> io::Result<()> {
        let current = self.current.as_ref().map(|(number, _)| *number);
        let known = current.and_then(|number| self.table.lock().get(&number).copied());
        if let Some(known) = known {
            let is_empty = known.first_stretch > known.last_stretch;
            let end = known.first_stretch.saturating_add(SEGMENT_STRETCHES);
            // So does a clock that a crash has set back.
            let is_within = is_empty || (known.first_stretch..end).contains(&now);
            if is_within && known.bytes <= SEGMENT_BYTES_MAX {
                return Ok(());
            }
        }
        let number = self.next;
        let (frames, _) = Frames::open(&*self.disk, &name(number), |_, _| {})?;
        self.disk.sync_folder(FOLDER)?;
        self.next += 1;
        self.table.lock().insert(number, Segment::new());
        self.current = Some((number, frames));
        Ok(())
    }

    /// Appends records, not yet durable, and returns the locations of the blocks among them.
    pub(crate) fn append(&mut self, entries: &[Entry<'_>]) -> io::Result<Vec<Location>> {
        let Some((number, frames)) = &mut self.current else {
            return Err(io::Error::other("no file of steps is open"));
        };
        let payloads: Vec<Vec<u8>> = entries.iter().map(Entry::encode).collect();
        let mut offset = frames.len_bytes();
        frames.append(payloads.iter().map(Vec::as_slice))?;
        let mut locations = Vec::new();
        for (entry, payload) in entries.iter().zip(&payloads) {
            if let Entry::Block { stretch, series, .. } = *entry {
                let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
                locations.push(Location { stretch, series, segment: *number, offset, length });
            }
            offset += frame_bytes(payload.len());
        }
        Ok(locations)
    }

    /// Makes everything durable.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if let Some((number, frames)) = &self.current {
            frames.sync()?;
            if let Some(known) = self.table.lock().get_mut(number) {
                known.bytes = frames.len_bytes();
            }
        }
        Ok(())
    }

    /// Removes the bytes appended since the last successful sync.
    pub(crate) fn take_back(&mut self) {
        if let Some((number, frames)) = &mut self.current {
            let end = self.table.lock().get(number).map_or(0, |known| known.bytes);
            // What cannot be cut now is cut before anything else is written.
            let _ = frames.truncate(end);
        }
    }

    /// Begins another file, because the file being appended to is gone or cut.
    pub(crate) fn give_up_current(&mut self) -> io::Result<()> {
        self.current = None;
        self.disk.make_folder(FOLDER)
    }

    /// Number of the file being appended to, and its durable length in bytes.
    pub(crate) fn current(&self) -> Option<(u32, u64)> {
        let (number, _) = self.current.as_ref()?;
        Some((*number, self.table.lock().get(number)?.bytes))
    }

    /// The oldest file, and whether it is the file being appended to.
    pub(crate) fn oldest(&self) -> Option<(u32, Segment, bool)> {
        let table = self.table.lock();
        let (number, segment) = table.first_key_value()?;
        let is_current = self.current.as_ref().is_some_and(|(current, _)| current == number);
        Some((*number, *segment, is_current))
    }

    /// Removes a file that nothing refers to any more.
    pub(crate) fn remove(&mut self, number: u32) -> io::Result<()> {
        self.current.take_if(|(current, _)| *current == number);
        remove_if_there(&*self.disk, &name(number))?;
        self.table.lock().remove(&number);
        Ok(())
    }
}

/// Makes a file of the whole records of another, which is then kept beside it under another name.
fn without_gaps(disk: &dyn Disk, from: u32, to: u32) -> io::Result<Frames> {
    let (from, to) = (name(from), name(to));
    let aside = format!("{to}.new");
    remove_if_there(disk, &aside)?;
    let (mut frames, _) = Frames::open(disk, &aside, |_, _| {})?;
    let mut written = Ok(());
    frames::read(disk, &from, 0, |_, payload| {
        if written.is_ok() {
            written = frames.append([payload]);
        }
    })?;
    written?;
    frames.sync()?;
    disk.rename(&aside, &to)?;
    disk.sync_folder(FOLDER)?;
    disk.rename(&from, &format!("{from}.damaged-{}", clock::now().wall_ns))?;
    disk.sync_folder(FOLDER)?;
    Ok(frames)
}

pub(crate) fn series_bytes(key: SeriesKey) -> [u8; SERIES_BYTES] {
    let mut bytes = [0; SERIES_BYTES];
    bytes[..4].copy_from_slice(&key.serial.to_be_bytes());
    bytes[4..8].copy_from_slice(&key.rank.to_be_bytes());
    bytes[8] = key.device;
    bytes
}

pub(crate) fn series_of(bytes: &[u8]) -> Option<SeriesKey> {
    let (serial, rest) = bytes.split_first_chunk()?;
    let (rank, rest) = rest.split_first_chunk()?;
    let &[device] = rest else { return None };
    Some(SeriesKey { serial: u32::from_be_bytes(*serial), rank: u32::from_be_bytes(*rank), device })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_as_old_as_its_newest_block() {
        let check = |stretches: &[(u32, u32)], now: u32, expected: i64| {
            let segment = |&(first_stretch, last_stretch)| Segment {
                first_stretch,
                last_stretch,
                ..Segment::new()
            };
            let files = (0..).zip(stretches.iter().map(segment)).collect();
            assert_eq!(age(&files, now), expected, "{stretches:?}");
        };
        check(&[], 9, 0);
        check(&[(u32::MAX, 0)], 9, 0);
        check(&[(100, 111)], 120, 9);
        check(&[(100, 111), (112, 120)], 120, 9);
        check(&[(u32::MAX, 0), (100, 111), (115, 120)], 130, 19);
        check(&[(100, 111), (211, 212)], 300, 189);
        check(&[(100, 111)], 90, 0);
    }

    #[test]
    fn records_are_read_back() {
        let series = SeriesKey { serial: 7, rank: 1 << 20, device: 3 };
        let entries = [
            Entry::Block { stretch: 9, series, block: b"packed" },
            Entry::Block { stretch: u32::MAX, series, block: b"" },
            Entry::Forgotten { serial: 5 },
        ];
        for entry in entries {
            let payload = entry.encode();
            assert_eq!(Entry::decode(&payload), Some(entry));
            assert_eq!(Entry::decode(&payload[..4]), None);
        }
        assert_eq!(Entry::decode(b"F\0\0\0\x01x"), None);
        assert_eq!(Entry::decode(b"X\0\0\0\x01"), None);
    }
}
