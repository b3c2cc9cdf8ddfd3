//! The index of the packed steps, in the catalogue: the location of each block.
//!
//! An entry follows from the location of its block alone, so the index can be built from the files
//! at any time. Beside the entries stand, for each file, its indexed length and its number of
//! entries. At a start these are checked against the files and the entries themselves: missing
//! entries are added, and if anything else is wrong the index is built again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use memtape_core::sharing::Amounts;

use crate::catalogue::{Catalogue, STEPS_PREFIX};
use crate::error::{Error, Kind, Result};
use crate::records::SeriesKey;
use crate::steps::segments::{self, Entry, Location, SERIES_BYTES, Segment, Segments};
use memtape_disk::tree::Change;

/// Kind, time bucket, series, file, offset.
const KEY_BYTES: usize = 1 + 4 + SERIES_BYTES + 4 + 8;

/// Key prefix of the state of a file's index, before the file's number.
const STATE_PREFIX: &[u8] = b"m-segment-";

/// Entries that are counted at a start, the newest: beyond them damage is found by `store check`.
const COUNTED_MAX: u64 = 2 << 20;

/// Entries deleted at once.
const DELETED_MAX: usize = 4096;

/// Changes made to the index at a start.
#[derive(Debug, Default)]
pub(crate) struct Mended {
    /// Blocks that were in the files and not in the index.
    pub(crate) caught_up: u64,
    /// Why the whole index was built again.
    pub(crate) rebuilt: Option<Error>,
}

/// The entry of the block at a location.
pub(crate) fn entry(location: &Location) -> Change {
    Change { key: key(location), value: Some(location.length.to_le_bytes().to_vec()) }
}

fn key(location: &Location) -> Vec<u8> {
    let mut key = prefix(location.stretch, location.series);
    key.extend(location.segment.to_be_bytes());
    key.extend(location.offset.to_be_bytes());
    key
}

/// Prefix of the keys of a series in a time bucket.
fn prefix(stretch: u32, series: SeriesKey) -> Vec<u8> {
    let mut key = Vec::with_capacity(KEY_BYTES);
    key.push(STEPS_PREFIX);
    key.extend(stretch.to_be_bytes());
    key.extend(segments::series_bytes(series));
    key
}

/// Time buckets in which an attempt has blocks, in order.
pub(crate) fn stretches(catalogue: &Catalogue, serial: u32) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    leap(catalogue, &serial.to_be_bytes(), |stretch, _, _| {
        found.push(stretch);
        false
    })?;
    Ok(found)
}

/// Locations of the blocks of a series: in these time buckets, or in all.
pub(crate) fn locations(
    catalogue: &Catalogue,
    series: SeriesKey,
    stretches: Option<&[u32]>,
) -> Result<Vec<Location>> {
    let mut found = Vec::new();
    match stretches {
        None => leap(catalogue, &segments::series_bytes(series), |_, key, value| {
            found.extend(location(key, value));
            true
        })?,
        Some(stretches) => stretches.iter().try_for_each(|stretch| {
            catalogue.scan(&prefix(*stretch, series), |key, value| {
                found.extend(location(key, value));
                true
            })
        })?,
    }
    Ok(found)
}

/// Locations of the blocks of these series in a time bucket: of each series together, and within a
/// file in the order in which they were packed.
pub(crate) fn among(
    catalogue: &Catalogue,
    keys: &BTreeSet<SeriesKey>,
    stretch: u32,
) -> Result<Vec<Location>> {
    let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return Ok(Vec::new()) };
    // Behind all entries of the last one.
    let end = [prefix(stretch, *last), vec![u8::MAX; KEY_BYTES]].concat();
    let mut found = Vec::new();
    catalogue.scan_range(&prefix(stretch, *first), &end, |key, value| {
        found.extend(location(key, value).filter(|of| keys.contains(&of.series)));
        true
    })?;
    Ok(found)
}

/// Visits the entries of a series prefix, one time bucket after the other, until `visit` returns
/// false. Needs two seeks for each time bucket that has entries, and no clock.
fn leap(
    catalogue: &Catalogue,
    series: &[u8],
    mut visit: impl FnMut(u32, &[u8], &[u8]) -> bool,
) -> Result<()> {
    let mut next = Some(0);
    while let Some(stretch) = next.take() {
        let begin = [from(stretch).as_slice(), series].concat();
        catalogue.scan_range(&begin, &[STEPS_PREFIX + 1], |key, value| {
            let Some(found) = stretch_of(key) else { return true };
            if key.starts_with(&begin) && visit(stretch, key, value) {
                return true;
            }
            next = if found > stretch { Some(found) } else { stretch.checked_add(1) };
            false
        })?;
    }
    Ok(())
}

fn stretch_of(key: &[u8]) -> Option<u32> {
    key.get(1..)?.first_chunk().map(|stretch| u32::from_be_bytes(*stretch))
}

/// Prefix of the keys of a time bucket.
fn from(stretch: u32) -> Vec<u8> {
    [&[STEPS_PREFIX], stretch.to_be_bytes().as_slice()].concat()
}

/// Location in an entry; none for a key that is no entry.
pub(crate) fn location(key: &[u8], value: &[u8]) -> Option<Location> {
    let (_, rest) = key.split_first().filter(|(kind, _)| **kind == STEPS_PREFIX)?;
    let (stretch, rest) = rest.split_first_chunk()?;
    let (series, rest) = rest.split_at_checked(SERIES_BYTES)?;
    let (segment, rest) = rest.split_first_chunk()?;
    Some(Location {
        stretch: u32::from_be_bytes(*stretch),
        series: segments::series_of(series)?,
        segment: u32::from_be_bytes(*segment),
        offset: u64::from_be_bytes(rest.try_into().ok()?),
        length: u32::from_le_bytes(value.try_into().ok()?),
    })
}

/// The state of a file's index, as the change that writes it.
pub(crate) fn state(number: u32, segment: Option<&Segment>) -> Change {
    let key = [STATE_PREFIX, number.to_be_bytes().as_slice()].concat();
    let value = segment.map(|segment| {
        let mut value = segment.bytes.to_le_bytes().to_vec();
        value.extend(segment.first_stretch.to_le_bytes());
        value.extend(segment.last_stretch.to_le_bytes());
        value.extend(segment.blocks.to_le_bytes());
        for (holder, bytes) in segment.held.iter() {
            value.extend(segments::holder_bytes(holder));
            value.extend(bytes.to_le_bytes());
        }
        value
    });
    Change { key, value }
}

fn state_of(key: &[u8], value: &[u8]) -> Option<(u32, Segment)> {
    let number = key.strip_prefix(STATE_PREFIX)?.try_into().ok()?;
    let (bytes, rest) = value.split_first_chunk()?;
    let (first, rest) = rest.split_first_chunk()?;
    let (last, rest) = rest.split_first_chunk()?;
    let (blocks, mut rest) = rest.split_first_chunk()?;
    let mut segment = Segment {
        bytes: u64::from_le_bytes(*bytes),
        first_stretch: u32::from_le_bytes(*first),
        last_stretch: u32::from_le_bytes(*last),
        blocks: u64::from_le_bytes(*blocks),
        held: Amounts::default(),
    };
    while let Some((holder, after)) = rest.split_first_chunk() {
        let (bytes, after) = after.split_first_chunk()?;
        segment.held.add(segments::holder_of(holder), u64::from_le_bytes(*bytes));
        rest = after;
    }
    Some((u32::from_be_bytes(number), segment))
}

/// The states of all files.
pub(crate) fn states(catalogue: &Catalogue) -> Result<BTreeMap<u32, Segment>> {
    let mut states = BTreeMap::new();
    catalogue.scan(STATE_PREFIX, |key, value| {
        states.extend(state_of(key, value));
        true
    })?;
    Ok(states)
}

/// Deletes the entries in these time buckets that `is_meant` chooses; returns their numbers by
/// file. Holds a bounded number of them in memory at a time.
pub(crate) fn delete(
    catalogue: &Catalogue,
    stretches: RangeInclusive<u32>,
    is_meant: impl Fn(Option<Location>) -> bool,
) -> Result<BTreeMap<u32, u64>> {
    let mut deleted = BTreeMap::new();
    let mut next = from(*stretches.start());
    let end = match stretches.end().checked_add(1) {
        Some(end) => from(end),
        None => vec![STEPS_PREFIX + 1],
    };
    loop {
        let mut changes = Vec::new();
        catalogue.scan_range(&next, &end, |key, value| {
            let found = location(key, value);
            if is_meant(found) {
                let segment = found.map_or(u32::MAX, |location| location.segment);
                *deleted.entry(segment).or_default() += 1;
                changes.push(Change { key: key.to_vec(), value: None });
            }
            changes.len() < DELETED_MAX
        })?;
        catalogue.write(changes.iter())?;
        match changes.pop() {
            Some(last) if changes.len() + 1 == DELETED_MAX => next = last.key,
            _ => return Ok(deleted),
        }
    }
}

/// Makes the index fit the files.
pub(crate) fn mend(catalogue: &Catalogue, files: &Segments) -> Result<Mended> {
    let states = states(catalogue)?;
    let ahead = match compare(catalogue, files, &states) {
        Ok(ahead) => ahead,
        Err(why) => {
            let caught_up = rebuild(catalogue, files, &states)?;
            return Ok(Mended { caught_up, rebuilt: Some(why) });
        }
    };
    // They come again when their files are caught up with.
    for number in ahead {
        let bytes = states.get(&number).map_or(0, |known| known.bytes);
        let is_ahead = |location: &Location| location.segment == number && location.offset >= bytes;
        delete(catalogue, 0..=u32::MAX, |location| location.as_ref().is_some_and(is_ahead))?;
    }
    // Files that were being deleted when a process died.
    let lengths: BTreeMap<u32, u64> =
        files.table().lock().iter().map(|(number, known)| (*number, known.bytes)).collect();
    for (number, known) in states.iter().filter(|(number, _)| !lengths.contains_key(number)) {
        delete_segment(catalogue, *number, known)?;
    }
    let mut caught_up = 0;
    for (number, bytes) in lengths {
        let known = states.get(&number).cloned().unwrap_or(Segment::new());
        if known.bytes == bytes {
            files.table().lock().insert(number, known);
        } else {
            caught_up += catch_up(catalogue, files, number, known)?;
        }
    }
    Ok(Mended { caught_up, rebuilt: None })
}

/// Offsets of the blocks of a file that are not forgotten.
pub(crate) fn offsets(
    catalogue: &Catalogue,
    number: u32,
    known: &Segment,
) -> Result<BTreeSet<u64>> {
    let mut offsets = BTreeSet::new();
    let end = from(known.last_stretch.saturating_add(1));
    catalogue.scan_range(&from(known.first_stretch), &end, |key, value| {
        let found = location(key, value).filter(|found| found.segment == number);
        offsets.extend(found.map(|found| found.offset));
        true
    })?;
    Ok(offsets)
}

/// Deletes all entries of a file, and its state.
pub(crate) fn delete_segment(catalogue: &Catalogue, number: u32, known: &Segment) -> Result<()> {
    if catalogue.is_behind() {
        return Ok(());
    }
    if known.first_stretch <= known.last_stretch {
        let is_its = |location: Option<Location>| {
            location.is_some_and(|location| location.segment == number)
        };
        delete(catalogue, known.first_stretch..=known.last_stretch, is_its)?;
    }
    catalogue.write([state(number, None)].iter())
}

/// Deletes all entries of these attempts. The states of the files are brought up to date behind all
/// of it: they tell that it is done.
pub(crate) fn forget(
    catalogue: &Catalogue,
    files: &Segments,
    serials: impl IntoIterator<Item = u32>,
) -> Result<()> {
    if catalogue.is_behind() {
        return Ok(());
    }
    let mut deleted: BTreeMap<u32, u64> = BTreeMap::new();
    for serial in serials {
        let is_its =
            |location: Option<Location>| location.is_some_and(|at| at.series.serial == serial);
        for stretch in stretches(catalogue, serial)? {
            for (number, count) in delete(catalogue, stretch..=stretch, is_its)? {
                *deleted.entry(number).or_default() += count;
            }
        }
    }
    let mut changes = Vec::new();
    let mut table = files.table().lock();
    for (number, count) in deleted {
        if let Some(known) = table.get_mut(&number) {
            known.blocks = known.blocks.saturating_sub(count);
            changes.push(state(number, Some(known)));
        }
    }
    drop(table);
    catalogue.write(changes.iter())
}

/// Compares the index with the files. Returns the files with more entries than their state counts:
/// the newest entries arrived, and the state written after them did not.
fn compare(
    catalogue: &Catalogue,
    files: &Segments,
    states: &BTreeMap<u32, Segment>,
) -> Result<BTreeSet<u32>> {
    let lengths: BTreeMap<u32, u64> =
        files.table().lock().iter().map(|(number, known)| (*number, known.bytes)).collect();
    for (number, known) in states {
        if lengths.get(number).is_some_and(|bytes| *bytes < known.bytes) {
            return Err(unfit(format!("file {number} of the steps became shorter")));
        }
    }
    // The newest files whose entries are few enough to be counted.
    let mut left = COUNTED_MAX;
    let counted: BTreeMap<u32, &Segment> = states
        .iter()
        .rev()
        .take_while(|(_, known)| {
            let is_few = known.blocks <= left;
            left = left.saturating_sub(known.blocks);
            is_few
        })
        .map(|(number, known)| (*number, known))
        .collect();
    let is_all = counted.len() == states.len();
    let first = counted.values().map(|known| known.first_stretch).min().unwrap_or(0);
    let begin = if is_all { vec![STEPS_PREFIX] } else { from(first) };
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    let mut ahead = BTreeSet::new();
    let mut strange = 0;
    catalogue.scan_range(&begin, &[STEPS_PREFIX + 1], |key, value| {
        match location(key, value) {
            Some(location) if is_ahead(&location, states) => {
                ahead.insert(location.segment);
            }
            Some(location) => *counts.entry(location.segment).or_default() += 1,
            None => strange += 1,
        }
        true
    })?;
    if strange > 0 {
        return Err(unfit(format!("{strange} entries of the index make no sense")));
    }
    for (number, known) in &counted {
        let (count, expected) = (counts.get(number).copied().unwrap_or(0), known.blocks);
        if count != expected {
            return Err(unfit(format!(
                "file {number} of the steps has {count} entries in the index, not {expected}"
            )));
        }
    }
    Ok(ahead)
}

/// The index does not fit the files.
fn unfit(why: String) -> Error {
    Error::new(Kind::Damaged, why)
}

fn is_ahead(location: &Location, states: &BTreeMap<u32, Segment>) -> bool {
    location.offset >= states.get(&location.segment).map_or(0, |known| known.bytes)
}

/// Adds the entries of a file after `known` to the index.
fn catch_up(
    catalogue: &Catalogue,
    files: &Segments,
    number: u32,
    mut known: Segment,
) -> Result<u64> {
    let mut locations = Vec::new();
    let mut forgotten = BTreeSet::new();
    segments::scan(&**files.disk(), number, known.bytes, |offset, length, entry| match entry {
        Some(Entry::Block { stretch, source: (series, holder), .. }) => {
            known.cover(stretch, holder, length);
            locations.push(Location { stretch, series, segment: number, offset, length });
        }
        Some(Entry::Forgotten { serial }) => {
            locations.retain(|location: &Location| location.series.serial != serial);
            forgotten.insert(serial);
        }
        None => {}
    })?;
    known.blocks += locations.len() as u64;
    known.bytes = files.table().lock().get(&number).map_or(0, |segment| segment.bytes);
    files.table().lock().insert(number, known);
    forget(catalogue, files, forgotten)?;
    let changes: Vec<Change> = locations.iter().map(entry).collect();
    catalogue.write(changes.iter())?;
    let state = files.table().lock().get(&number).map(|known| state(number, Some(known)));
    catalogue.write(state.iter())?;
    Ok(locations.len() as u64)
}

/// Builds the whole index again.
fn rebuild(
    catalogue: &Catalogue,
    files: &Segments,
    states: &BTreeMap<u32, Segment>,
) -> Result<u64> {
    delete(catalogue, 0..=u32::MAX, |_| true)?;
    let gone: Vec<Change> = states.keys().map(|number| state(*number, None)).collect();
    catalogue.write(gone.iter())?;
    let numbers: Vec<u32> = files.table().lock().keys().copied().collect();
    let mut blocks = 0;
    for number in numbers {
        blocks += catch_up(catalogue, files, number, Segment::new())?;
    }
    Ok(blocks)
}
