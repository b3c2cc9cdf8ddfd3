//! A log in segments: entries with rising numbers, each with a checksum, dropped from the front.
//!
//! An entry is `length, crc32c, number, items, payload`, the numbers little-endian. A segment is
//! never written again after a failed write or a restart: whatever follows its last whole entry
//! was never acknowledged, is not read, and goes with the file.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use super::disk::Disk;

/// Bytes before an entry's payload.
const HEAD_BYTES: usize = 20;

/// Largest payload, in bytes: what is longer was not written by this code.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 4 << 20;

/// Largest file taken for a segment, in bytes: one is held in memory.
const FILE_BYTES_MAX: usize = 64 << 20;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its number; rising, over all logs of a spool.
    pub(crate) number: u64,
    /// Things in it, for counting.
    pub(crate) items: u32,
    /// What it says.
    pub(crate) payload: Vec<u8>,
}

impl Entry {
    /// Bytes that it takes on the disk.
    pub(crate) fn encoded_bytes(&self) -> u64 {
        (HEAD_BYTES + self.payload.len()) as u64
    }
}

/// The entries of one kind.
#[derive(Debug)]
pub(crate) struct Log {
    kind: &'static str,
    segment_bytes_max: u64,
    segments: VecDeque<Segment>,
    /// The entries of one segment, by its name.
    read: Option<(u64, Vec<Entry>)>,
    /// A number, and the number of the first entry after it.
    next: Option<(u64, u64)>,
    /// Items in segments that were whole once and cannot be read any more.
    lost: u64,
}

/// A file of entries.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Number of its first entry, and so its name.
    first: u64,
    last: u64,
    items: u64,
    bytes: u64,
    /// More may be added.
    is_open: bool,
    is_synced: bool,
}

/// The bytes of an entry.
pub(crate) fn encode(number: u64, items: u32, payload: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(HEAD_BYTES + payload.len());
    sealed.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    sealed.extend_from_slice(&[0; 4]);
    sealed.extend_from_slice(&number.to_le_bytes());
    sealed.extend_from_slice(&items.to_le_bytes());
    sealed.extend_from_slice(payload);
    let checksum = crc32c::crc32c(&sealed[8..]);
    sealed[4..8].copy_from_slice(&checksum.to_le_bytes());
    sealed
}

/// The whole entries at the beginning of some bytes, and how long they are together.
pub(crate) fn decode(bytes: &[u8]) -> (Vec<Entry>, usize) {
    let mut entries = Vec::new();
    let mut at = 0;
    while let Some((entry, length)) = decode_one(bytes.get(at..).unwrap_or_default()) {
        entries.push(entry);
        at += length;
    }
    (entries, at)
}

fn decode_one(bytes: &[u8]) -> Option<(Entry, usize)> {
    let four = |range: Range<usize>| Some(u32::from_le_bytes(bytes.get(range)?.try_into().ok()?));
    let length = usize::try_from(four(0..4)?).ok().filter(|&n| n <= PAYLOAD_BYTES_MAX)?;
    let checksum = four(4..8)?;
    let number = u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?);
    let items = four(16..20)?;
    let whole = bytes.get(8..HEAD_BYTES + length)?;
    let payload = bytes.get(HEAD_BYTES..HEAD_BYTES + length)?.to_vec();
    (crc32c::crc32c(whole) == checksum)
        .then_some((Entry { number, items, payload }, HEAD_BYTES + length))
}

impl Log {
    /// An empty log.
    pub(crate) fn new(kind: &'static str, segment_bytes_max: u64) -> Self {
        let segments = VecDeque::new();
        Self { kind, segment_bytes_max, segments, read: None, next: None, lost: 0 }
    }

    /// A segment that the disk has, with its entries; none, and deleted, when it has no whole one.
    /// Fails with the errors of the disk.
    pub(crate) fn read_segment(
        disk: &mut dyn Disk,
        kind: &str,
        (first, bytes): (u64, u64),
    ) -> io::Result<Option<(Segment, Vec<Entry>)>> {
        let name = name_of(kind, first);
        let (entries, good) = decode(&disk.read(&name, 0, FILE_BYTES_MAX)?);
        if (good as u64) < bytes {
            let cut = bytes - good as u64;
            tracing::warn!("the last {cut} bytes of {name} in the spool are no whole entry");
        }
        let Some(last) = entries.last().map(|entry| entry.number) else {
            disk.remove(&name)?;
            return Ok(None);
        };
        let items = entries.iter().map(|entry| u64::from(entry.items)).sum();
        let segment = Segment { first, last, items, bytes, is_open: false, is_synced: false };
        Ok(Some((segment, entries)))
    }

    /// Adds a segment that is newer than those before it.
    pub(crate) fn add_segment(&mut self, segment: Segment) {
        self.segments.push_back(segment);
    }

    /// The number of [`Self::after`]; the segment that it is in is read once.
    pub(crate) fn next_number(&mut self, disk: &mut dyn Disk, number: u64) -> Option<u64> {
        if let Some((from, next)) = self.next
            && (from..next).contains(&number)
        {
            return Some(next);
        }
        let next = self.after(disk, number)?.number;
        self.next = Some((number, next));
        Some(next)
    }

    /// Holds no segment in memory until one is read again.
    pub(crate) fn forget_read(&mut self) {
        self.read = None;
    }

    /// Bytes on the disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Number of the newest entry; 0 without any.
    pub(crate) fn last(&self) -> u64 {
        self.segments.iter().map(|segment| segment.last).max().unwrap_or(0)
    }

    /// Adds an entry.
    /// Fails with the errors of the disk; the entry is then not there.
    pub(crate) fn append(&mut self, disk: &mut dyn Disk, entry: &Entry) -> io::Result<()> {
        let bytes = encode(entry.number, entry.items, &entry.payload);
        let most = self.segment_bytes_max;
        let is_open = self.segments.back().is_some_and(|segment| {
            segment.is_open && segment.bytes.saturating_add(bytes.len() as u64) <= most
        });
        let first =
            self.segments.back().filter(|_| is_open).map_or(entry.number, |segment| segment.first);
        let name = self.name(first);
        if let Err(error) = disk.append(&name, &bytes) {
            // A part of it may be there: nothing is to be written behind that.
            match self.segments.back_mut().filter(|_| is_open) {
                Some(segment) => segment.is_open = false,
                None => {
                    let _ = disk.remove(&name); // it may not have been made
                }
            }
            return Err(error);
        }
        if self.read.as_ref().is_some_and(|(read, _)| *read == first) {
            self.read = None;
        }
        match self.segments.back_mut().filter(|_| is_open) {
            Some(segment) => {
                segment.last = entry.number;
                segment.items += u64::from(entry.items);
                segment.bytes += bytes.len() as u64;
                segment.is_synced = false;
            }
            None => self.segments.push_back(Segment {
                first,
                last: entry.number,
                items: u64::from(entry.items),
                bytes: bytes.len() as u64,
                is_open: true,
                is_synced: false,
            }),
        }
        Ok(())
    }

    /// Returns when everything added would survive a loss of power.
    /// Fails with the errors of the disk; what was added may then be lost with the power.
    pub(crate) fn sync(&mut self, disk: &mut dyn Disk) -> io::Result<()> {
        for index in 0..self.segments.len() {
            let segment = &self.segments[index];
            if segment.is_synced {
                continue;
            }
            let synced = disk.sync(&self.name(segment.first));
            let segment = &mut self.segments[index];
            // A disk that failed once to sync may forget what it could not write: not tried again.
            (segment.is_synced, segment.is_open) = (true, segment.is_open && synced.is_ok());
            synced?;
        }
        Ok(())
    }

    /// The first entry with a larger number than this.
    pub(crate) fn after(&mut self, disk: &mut dyn Disk, number: u64) -> Option<&Entry> {
        while let Some(first) =
            self.segments.iter().find(|segment| segment.last > number).map(|found| found.first)
        {
            if self.read.as_ref().is_none_or(|(read, _)| *read != first) {
                let bytes = disk.read(&self.name(first), 0, FILE_BYTES_MAX).unwrap_or_default();
                self.read = Some((first, decode(&bytes).0));
            }
            let entries = self.read.as_ref().map_or(&[][..], |(_, entries)| entries);
            let index = entries.partition_point(|entry| entry.number <= number);
            if index < entries.len() {
                return self.read.as_ref().and_then(|(_, entries)| entries.get(index));
            }
            // It was whole once: the disk has damaged it, or cannot be read.
            tracing::warn!("a part of {} in the spool cannot be read", self.name(first));
            let lost = self.segments.iter().filter(|segment| segment.first == first);
            self.lost += lost.map(|segment| segment.items).sum::<u64>();
            self.segments.retain(|segment| segment.first != first);
            self.next = None;
        }
        None
    }

    /// Deletes the oldest segment; answers the items in it with larger numbers than `delivered`.
    pub(crate) fn drop_oldest(&mut self, disk: &mut dyn Disk, delivered: u64) -> Option<u64> {
        let segment = self.segments.front()?;
        let name = self.name(segment.first);
        let bytes = disk.read(&name, 0, FILE_BYTES_MAX).unwrap_or_default();
        let undelivered = decode(&bytes).0.into_iter().filter(|entry| entry.number > delivered);
        let items = undelivered.map(|entry| u64::from(entry.items)).sum();
        self.remove_front(disk);
        Some(items)
    }

    /// Items that could not be read, since this was asked last.
    pub(crate) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// Deletes the segments of which all is delivered.
    pub(crate) fn forget(&mut self, disk: &mut dyn Disk, delivered: u64) {
        while self.segments.front().is_some_and(|segment| segment.last <= delivered) {
            self.remove_front(disk);
        }
    }

    fn remove_front(&mut self, disk: &mut dyn Disk) {
        self.next = None;
        let Some(segment) = self.segments.pop_front() else { return };
        let name = self.name(segment.first);
        if let Err(error) = disk.remove(&name) {
            // It is read again after a restart, which does no harm.
            tracing::warn!("{name} in the spool cannot be deleted: {error}");
        }
        if self.read.as_ref().is_some_and(|(first, _)| *first == segment.first) {
            self.read = None;
        }
    }

    fn name(&self, first: u64) -> String {
        name_of(self.kind, first)
    }
}

/// The files that the disk has of a kind, oldest first: the number of the first entry of each, and
/// its length in bytes.
/// Fails with the errors of the disk.
pub(crate) fn files(disk: &mut dyn Disk, kind: &str) -> io::Result<Vec<(u64, u64)>> {
    let files = disk.list()?.into_iter().filter_map(|(name, bytes)| {
        let (of, first) = kind_and_number(&name)?;
        (of == kind).then_some((first, bytes))
    });
    let mut files: Vec<(u64, u64)> = files.collect();
    files.sort_unstable();
    Ok(files)
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
