//! Packed steps on disk: numbered files of checked records, to which is only appended.
//!
//! A record is a block of one series, or says that an attempt is forgotten: its blocks before that
//! location no longer count, and lie there unused until the file goes. A file is finished when it
//! is large or covers an hour, and deleted as a whole when all in it is too old. Where there is too
//! much, the holder that has most gives way ([`surplus`]): the other blocks of a file move to a new
//! one. A file that is begun gets an even number: the one above it is for the file into which its
//! blocks are merged (`merge.rs`). No forgotten block outlives the record that says so.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memtape_core::sharing::{Amounts, Shares};

use crate::records::{Holder, SeriesKey, Source};
use memtape_disk::clock;
use memtape_disk::files::{Disk, remove_if_there};
use memtape_disk::frames::{self, Damage, Frames, frame_bytes};

/// Folder of the files.
pub(crate) const FOLDER: &str = "steps";

/// A file longer than this is finished with its time bucket: what can be merged is in one file.
const SEGMENT_BYTES: u64 = 32 << 20;

/// A file longer than this is finished at once. It is also what a bound on bytes may be passed by.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 128 << 20;

/// Stretches of time that a file covers at most: an hour of the store's clock.
pub(crate) const SEGMENT_STRETCHES: u32 = 12;

/// Length of a time bucket, in nanoseconds.
pub(crate) const STRETCH_NS: i64 = 300_000_000_000;

/// Bytes of a series in a key.
pub(crate) const SERIES_BYTES: usize = 9;

/// Bytes of a series and its holder.
pub(crate) const SOURCE_BYTES: usize = SERIES_BYTES + 16;

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

/// The newest time bucket of all files: a file that was copied is the last one, and not the newest.
pub(crate) fn newest(files: &BTreeMap<u32, Segment>) -> Option<u32> {
    let written = files.values().filter(|known| known.first_stretch <= known.last_stretch);
    written.map(|known| known.last_stretch).max()
}

/// Files that are older than `age_max` time buckets, the oldest first. A file is as old as its
/// newest block; one without blocks is as old as the next one.
pub(crate) fn old(files: &BTreeMap<u32, Segment>, now: u32, age_max: i64) -> Vec<u32> {
    let mut is_old = false;
    let mut old: Vec<u32> = Vec::new();
    for (number, known) in files.iter().rev() {
        if known.first_stretch <= known.last_stretch {
            is_old = i64::from(now.saturating_sub(known.last_stretch)) > age_max;
        }
        old.extend(is_old.then_some(*number));
    }
    old.reverse();
    old
}

/// The holders whose blocks leave each file, so that all files have `bytes_max`: while there is too
/// much, the holder that has most gives up what it has in its oldest file.
pub(crate) fn surplus(
    files: &BTreeMap<u32, Segment>,
    bytes_max: u64,
) -> BTreeMap<u32, BTreeSet<Holder>> {
    let (mut shares, mut surplus) = (Shares::default(), BTreeMap::<_, BTreeSet<_>>::new());
    let mut parts: BTreeMap<Holder, VecDeque<(u32, u64)>> = BTreeMap::new();
    for (number, known) in files {
        for (holder, bytes) in known.held.iter() {
            shares.add(holder, bytes);
            parts.entry(holder).or_default().push_back((*number, bytes));
        }
    }
    let mut bytes: u64 = files.values().map(|known| known.bytes).sum();
    while bytes > bytes_max {
        let most = shares.most();
        let oldest = most.and_then(|of| Some((of, parts.get_mut(&of)?.pop_front()?)));
        let Some((holder, (number, part))) = oldest else { break };
        shares.take(holder, part);
        bytes = bytes.saturating_sub(part);
        surplus.entry(number).or_default().insert(holder);
    }
    surplus
}

/// Length and time buckets of a file.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Segment {
    pub(crate) bytes: u64,
    /// Time buckets of the blocks in the file; the first is above the last when there are none.
    pub(crate) first_stretch: u32,
    pub(crate) last_stretch: u32,
    /// Blocks in the file that are not forgotten.
    pub(crate) blocks: u64,
    /// Bytes of each holder's blocks, forgotten ones too.
    pub(crate) held: Amounts<Holder>,
}

impl Segment {
    pub(crate) fn new() -> Self {
        Self { first_stretch: u32::MAX, ..Self::default() }
    }

    /// A block of this holder is in the file.
    pub(crate) fn cover(&mut self, stretch: u32, holder: Holder, length: u32) {
        self.first_stretch = self.first_stretch.min(stretch);
        self.last_stretch = self.last_stretch.max(stretch);
        self.held.add(holder, frame_bytes(length as usize));
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
    Block { stretch: u32, source: Source, block: &'a [u8] },
    Forgotten { serial: u32 },
}

impl<'a> Entry<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Block { stretch, source, block } => {
                let mut payload = Vec::with_capacity(1 + 4 + SOURCE_BYTES + block.len());
                payload.push(BLOCK);
                payload.extend(stretch.to_be_bytes());
                payload.extend(source_bytes(*source));
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
                let (source, block) = split_source(rest)?;
                Some(Self::Block { stretch: number, source, block })
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
    /// Number of the next one: even.
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
        let next = next.next_multiple_of(2);
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
        let known = current.and_then(|number| self.table.lock().get(&number).cloned());
        if let Some(known) = known {
            let is_empty = known.first_stretch > known.last_stretch;
            let end = known.first_stretch.saturating_add(SEGMENT_STRETCHES);
            // So does a clock that a crash has set back.
            let is_within = is_empty || (known.first_stretch..end).contains(&now);
            let is_new_stretch = known.last_stretch != now;
            let bytes_max = if is_new_stretch { SEGMENT_BYTES } else { SEGMENT_BYTES_MAX };
            if is_within && known.bytes <= bytes_max {
                return Ok(());
            }
        }
        let number = self.next;
        let (frames, _) = Frames::open(&*self.disk, &name(number), |_, _| {})?;
        self.disk.sync_folder(FOLDER)?;
        self.next += 2;
        self.table.lock().insert(number, Segment::new());
        self.current = Some((number, frames));
        Ok(())
    }

    /// Appends records, not yet durable; returns the locations of the blocks among them, with
    /// their holders.
    pub(crate) fn append(&mut self, entries: &[Entry<'_>]) -> io::Result<Vec<(Location, Holder)>> {
        let Some((number, frames)) = &mut self.current else {
            return Err(io::Error::other("no file of steps is open"));
        };
        let payloads: Vec<Vec<u8>> = entries.iter().map(Entry::encode).collect();
        let offset = frames.len_bytes();
        frames.append(payloads.iter().map(Vec::as_slice))?;
        Ok(blocks(*number, offset, &payloads).collect())
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

    /// A file that is not written to any more, and whose blocks are not merged: not one of these.
    pub(crate) fn finished(&self, besides: &BTreeSet<u32>) -> Option<u32> {
        let current = self.current.as_ref().map(|(number, _)| *number);
        let table = self.table.lock();
        let is_free = |number: u32| number.is_multiple_of(2) && !table.contains_key(&(number + 1));
        let mut numbers = table.keys().copied();
        numbers.find(|&of| is_free(of) && current != Some(of) && !besides.contains(&of))
    }

    /// Copies the records of a file for which `is_kept` is true to a new one, the newest; none
    /// where no record is kept. Not in the middle of a pack.
    pub(crate) fn copy(
        &mut self,
        from: u32,
        mut is_kept: impl FnMut(u64, &Entry<'_>) -> bool,
    ) -> io::Result<Option<NewFile>> {
        // So that only the newest file is ever written to.
        self.current = None;
        let new = copy(&*self.disk, from, self.next + 1, |offset, payload| {
            Entry::decode(payload).is_some_and(|entry| is_kept(offset, &entry))
        })?;
        self.next += 2;
        Ok(new)
    }

    /// Takes up a new file, whose blocks are to be put into the index.
    pub(crate) fn add(&mut self, new: &NewFile) {
        self.table.lock().insert(new.number, new.known.clone());
    }

    /// Removes a file that nothing refers to any more.
    pub(crate) fn remove(&mut self, number: u32) -> io::Result<()> {
        self.current.take_if(|(current, _)| *current == number);
        remove_if_there(&*self.disk, &name(number))?;
        self.table.lock().remove(&number);
        Ok(())
    }
}

/// A file in the making. It gets its name when it is whole and durable.
#[derive(Debug)]
pub(crate) struct NewFile {
    pub(crate) number: u32,
    pub(crate) known: Segment,
    pub(crate) locations: Vec<Location>,
    frames: Frames,
}

impl NewFile {
    pub(crate) fn begin(disk: &dyn Disk, number: u32) -> io::Result<Self> {
        remove_if_there(disk, &aside(number))?;
        let (frames, _) = Frames::open(disk, &aside(number), |_, _| {})?;
        Ok(Self { number, known: Segment::new(), locations: Vec::new(), frames })
    }

    pub(crate) fn append(&mut self, payloads: &[impl AsRef<[u8]>]) -> io::Result<()> {
        let offset = self.frames.len_bytes();
        self.frames.append(payloads.iter().map(AsRef::as_ref))?;
        for (location, holder) in blocks(self.number, offset, payloads) {
            self.known.cover(location.stretch, holder, location.length);
            self.locations.push(location);
        }
        (self.known.bytes, self.known.blocks) =
            (self.frames.len_bytes(), self.locations.len() as u64);
        Ok(())
    }

    /// Makes it durable, under its name; none where it has no record.
    pub(crate) fn finish(self, disk: &dyn Disk) -> io::Result<Option<Self>> {
        if self.known.bytes == 0 {
            self.discard(disk);
            return Ok(None);
        }
        if let Err(why) = self.frames.sync() {
            self.discard(disk);
            return Err(why);
        }
        disk.rename(&aside(self.number), &name(self.number))?;
        disk.sync_folder(FOLDER)?;
        Ok(Some(self))
    }

    /// The disk may be full. What cannot be removed now is removed when the file is begun again.
    pub(crate) fn discard(self, disk: &dyn Disk) {
        let _ = remove_if_there(disk, &aside(self.number));
    }
}

/// Name of a file in the making.
fn aside(number: u32) -> String {
    format!("{}.new", name(number))
}

/// The blocks among these payloads, which are in a file from an offset on.
fn blocks(
    segment: u32,
    mut offset: u64,
    payloads: &[impl AsRef<[u8]>],
) -> impl Iterator<Item = (Location, Holder)> {
    payloads.iter().map(AsRef::as_ref).filter_map(move |payload| {
        let at = offset;
        offset += frame_bytes(payload.len());
        let Entry::Block { stretch, source: (series, holder), .. } = Entry::decode(payload)? else {
            return None;
        };
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        Some((Location { stretch, series, segment, offset: at, length }, holder))
    })
}

/// Makes a file of the whole records of another, which is then kept beside it under another name.
fn without_gaps(disk: &dyn Disk, from: u32, to: u32) -> io::Result<Frames> {
    let new = copy(disk, from, to, |_, _| true)?;
    let from = name(from);
    disk.rename(&from, &format!("{from}.damaged-{}", clock::now().wall_ns))?;
    disk.sync_folder(FOLDER)?;
    new.map_or_else(|| Ok(Frames::open(disk, &name(to), |_, _| {})?.0), |new| Ok(new.frames))
}

/// Makes a durable file of those records of another for which `is_kept` is true, by offset and
/// payload; none where there are none.
fn copy(
    disk: &dyn Disk,
    from: u32,
    to: u32,
    mut is_kept: impl FnMut(u64, &[u8]) -> bool,
) -> io::Result<Option<NewFile>> {
    let mut new = NewFile::begin(disk, to)?;
    let mut written = Ok(());
    let read = frames::read(disk, &name(from), 0, |offset, payload| {
        if written.is_ok() && is_kept(offset, payload) {
            written = new.append(&[payload]);
        }
    });
    match read.and(written) {
        Ok(()) => new.finish(disk),
        Err(why) => {
            new.discard(disk);
            Err(why)
        }
    }
}

pub(crate) fn series_bytes(key: SeriesKey) -> [u8; SERIES_BYTES] {
    let mut bytes = [0; SERIES_BYTES];
    bytes[..4].copy_from_slice(&key.serial.to_be_bytes());
    bytes[4..8].copy_from_slice(&key.rank.to_be_bytes());
    bytes[8] = key.device;
    bytes
}

pub(crate) fn source_bytes((series, holder): Source) -> [u8; SOURCE_BYTES] {
    let mut bytes = [0; SOURCE_BYTES];
    bytes[..SERIES_BYTES].copy_from_slice(&series_bytes(series));
    bytes[SERIES_BYTES..].copy_from_slice(&holder_bytes(holder));
    bytes
}

/// The source at the begin of some bytes, with its holder or without one, and the rest of them.
pub(crate) fn split_source(bytes: &[u8]) -> Option<(Source, &[u8])> {
    let (series, rest) = bytes.split_at_checked(SERIES_BYTES)?;
    let series = series_of(series)?;
    let (holder, rest) = rest.split_first_chunk()?;
    Some(((series, holder_of(holder)), rest))
}

pub(crate) fn holder_bytes((node, owner): Holder) -> [u8; 16] {
    (u128::from(node) << 64 | u128::from(owner)).to_be_bytes()
}

pub(crate) fn holder_of(bytes: &[u8; 16]) -> Holder {
    let holder = u128::from_be_bytes(*bytes);
    ((holder >> 64) as u64, holder as u64)
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
        let check = |stretches: &[(u32, u32)], now: u32, expected: &[u32]| {
            let segment = |&(first_stretch, last_stretch)| Segment {
                first_stretch,
                last_stretch,
                ..Segment::new()
            };
            let files = (0..).zip(stretches.iter().map(segment)).collect();
            assert_eq!(old(&files, now, 8), expected, "{stretches:?}");
        };
        check(&[], 9, &[]);
        check(&[(u32::MAX, 0)], 9, &[]);
        check(&[(100, 111)], 119, &[]);
        check(&[(100, 111), (112, 120)], 120, &[0]);
        check(&[(u32::MAX, 0), (100, 111), (115, 120)], 130, &[0, 1, 2]);
        // One that was copied is newer by its number alone.
        check(&[(211, 212), (100, 111), (u32::MAX, 0)], 220, &[1]);
        check(&[(100, 111)], 90, &[]);
    }

    #[test]
    fn the_holder_that_has_most_gives_way_oldest_first() {
        let file = |held: &[(Holder, u64)]| Segment {
            bytes: held.iter().map(|(_, bytes)| bytes).sum(),
            held: held.iter().copied().collect(),
            ..Segment::new()
        };
        let files = (0..).zip([
            file(&[((1, 1), 50), ((2, 1), 30), ((2, 2), 10)]),
            file(&[((2, 1), 300), ((2, 2), 10)]),
            file(&[((1, 1), 50), ((2, 1), 300)]),
        ]);
        let files: BTreeMap<u32, Segment> = files.collect();
        let check = |bytes_max, expected: &[(u32, Holder)]| {
            let surplus = surplus(&files, bytes_max).into_iter();
            let found: Vec<(u32, Holder)> =
                surplus.flat_map(|(file, of)| of.into_iter().map(move |of| (file, of))).collect();
            assert_eq!(found, expected, "{bytes_max}");
        };
        check(750, &[]);
        check(730, &[(0, (2, 1))]);
        check(700, &[(0, (2, 1)), (1, (2, 1))]);
        check(120, &[(0, (2, 1)), (1, (2, 1)), (2, (2, 1))]);
        check(80, &[(0, (1, 1)), (0, (2, 1)), (1, (2, 1)), (2, (2, 1))]);
        assert_eq!(surplus(&files, 0).len(), 3);
    }

    #[test]
    fn records_are_read_back() {
        let source = (SeriesKey { serial: 7, rank: 1 << 20, device: 3 }, (u64::MAX - 1, 5));
        let entries = [
            Entry::Block { stretch: 9, source, block: b"packed" },
            Entry::Block { stretch: u32::MAX, source, block: b"" },
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
