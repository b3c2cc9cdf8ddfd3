//! The log of new steps: numbered files of plain rows, synced, until they are packed.
//!
//! A new file begins with every packing; the older ones go when all that was in them is packed
//! and durable. A row may thus be in the log and in a block, which readers allow for.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crate::records::{SeriesKey, StepRow};
use crate::store::disk::files::Disk;
use crate::store::disk::frames::{Damage, Frames, PAYLOAD_BYTES_MAX};
use crate::store::steps::block::{put_rows, take_rows};
use crate::store::steps::segments::{SERIES_BYTES, series_bytes, series_of};

/// Folder of the files.
pub(crate) const FOLDER: &str = "rows";

/// Rows of one series in one record, at most: far below the largest record, whatever the rows.
const ROWS_MAX: usize = 1024;

/// A record is finished when it is this long.
const RECORD_BYTES: usize = PAYLOAD_BYTES_MAX / 4;

const ROWS: u8 = b'R';
const FORGOTTEN: u8 = b'F';

/// Rows by series.
pub(crate) type Rows = BTreeMap<SeriesKey, Vec<StepRow>>;

/// The open log.
#[derive(Debug)]
pub(crate) struct RowLog {
    disk: Arc<dyn Disk>,
    frames: Frames,
    number: u64,
}

/// A file's name.
pub(crate) fn name(number: u64) -> String {
    format!("{FOLDER}/{number:012}.log")
}

/// The numbers of all files, in order.
pub(crate) fn list(disk: &dyn Disk) -> io::Result<Vec<u64>> {
    let entries = disk.list(FOLDER)?.into_iter();
    let number = |name: &str| name.strip_suffix(".log")?.parse().ok();
    Ok(entries.filter_map(|entry| number(&entry.name)).collect())
}

/// Shows a record to the rows before it; none when it makes no sense.
pub(crate) fn take(payload: &[u8], into: &mut Rows) -> Option<()> {
    let (kind, mut rest) = payload.split_first()?;
    match *kind {
        ROWS => {
            while !rest.is_empty() {
                let (series, after) = rest.split_at_checked(SERIES_BYTES)?;
                rest = after;
                let rows = take_rows(&mut rest)?;
                into.entry(series_of(series)?).or_default().extend(rows);
            }
        }
        FORGOTTEN => {
            let serial = u32::from_be_bytes(rest.try_into().ok()?);
            into.retain(|key, _| key.serial != serial);
        }
        _ => return None,
    }
    Some(())
}

impl RowLog {
    /// Reads all files, cuts off what is half written, and begins a new one.
    pub(crate) fn open(disk: &Arc<dyn Disk>) -> io::Result<(Self, Rows, Damage)> {
        let (mut rows, mut damage) = (Rows::new(), Damage::default());
        let numbers = list(&**disk)?;
        for number in &numbers {
            let (_, seen) = Frames::open(&**disk, &name(*number), |_, payload| {
                // A record whose checksum is right and that makes no sense is a newer version's.
                let _ = take(payload, &mut rows);
            })?;
            damage.cut_bytes += seen.cut_bytes;
            damage.gaps += seen.gaps;
        }
        let number = numbers.last().map_or(0, |last| last + 1);
        let log = Self { frames: begin(&**disk, number)?, disk: disk.clone(), number };
        Ok((log, rows, damage))
    }

    /// Appends rows, not yet durable.
    pub(crate) fn append(&mut self, batch: &[(SeriesKey, Vec<StepRow>)]) -> io::Result<()> {
        let mut payloads = Vec::new();
        let mut payload = vec![ROWS];
        for (series, rows) in batch {
            for rows in rows.chunks(ROWS_MAX) {
                if payload.len() > RECORD_BYTES {
                    payloads.push(std::mem::replace(&mut payload, vec![ROWS]));
                }
                payload.extend(series_bytes(*series));
                put_rows(&mut payload, rows);
            }
        }
        payloads.push(payload);
        self.frames.append(payloads.iter().map(Vec::as_slice))
    }

    /// Says that the rows of an attempt count no more.
    pub(crate) fn forget(&mut self, serial: u32) -> io::Result<()> {
        let payload = [&[FORGOTTEN], serial.to_be_bytes().as_slice()].concat();
        self.frames.append([payload.as_slice()])
    }

    /// Makes everything durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.frames.sync()
    }

    /// Begins a new file; answers its number. What is in those before it can go when it is packed.
    pub(crate) fn begin_next(&mut self) -> io::Result<u64> {
        if self.frames.len_bytes() > 0 {
            self.frames = begin(&*self.disk, self.number + 1)?;
            self.number += 1;
        }
        Ok(self.number)
    }

    /// Removes all files before this one.
    pub(crate) fn remove_before(&self, number: u64) -> io::Result<()> {
        let old: Vec<u64> = list(&*self.disk)?.into_iter().filter(|old| *old < number).collect();
        for old in &old {
            self.disk.remove(&name(*old))?;
        }
        // Durably: one that came back could say again that an attempt is forgotten, after rows of
        // it that came later, and are in no log, were packed.
        if old.is_empty() { Ok(()) } else { self.disk.sync_folder(FOLDER) }
    }

    /// Length in bytes of the newest file.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.frames.len_bytes()
    }
}

fn begin(disk: &dyn Disk, number: u64) -> io::Result<Frames> {
    let (frames, _) = Frames::open(disk, &name(number), |_, _| {})?;
    disk.sync_folder(FOLDER)?;
    Ok(frames)
}
