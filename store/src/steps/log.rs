//! The log of new steps: numbered files of plain rows, synced, until they are packed.
//!
//! A new file begins with every packing; the older ones go when all that was in them is packed
//! and durable. A row may thus be in the log and in a block, which readers allow for.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crate::inventory::Extent;
use crate::records::{Source, StepRecord};
use crate::steps::block::{put_rows, take_rows};
use crate::steps::segments::{source_bytes, split_source};
use memtape_disk::files::{Disk, remove_if_there};
use memtape_disk::frames::{Damage, Frames, PAYLOAD_BYTES_MAX};

/// Folder of the files.
pub(crate) const FOLDER: &str = "rows";

/// Maximum rows of one series in one record: far below the largest record for any rows.
const ROWS_MAX: usize = 1024;

/// A record is finished when it is this long.
const RECORD_BYTES: usize = PAYLOAD_BYTES_MAX / 16;

const ROWS: u8 = b'R';
const FORGOTTEN: u8 = b'F';

/// Rows by series and holder.
pub(crate) type Rows = BTreeMap<Source, Vec<StepRecord>>;

/// Contents of a log's files when it was opened.
#[derive(Debug, Default)]
pub(crate) struct OpenedLog {
    pub(crate) rows: Rows,
    pub(crate) damage: Damage,
    /// All files, the new one included.
    pub(crate) extents: BTreeMap<u64, Extent>,
}

/// The open log.
#[derive(Debug)]
pub(crate) struct RowLog {
    disk: Arc<dyn Disk>,
    frames: Frames,
    number: u64,
    /// Steps in the newest file.
    rows: u64,
}

/// A file's name.
pub(crate) fn name(number: u64) -> String {
    format!("{FOLDER}/{number:012}.log")
}

/// The numbers of all files, in order, with their lengths.
pub(crate) fn list(disk: &dyn Disk) -> io::Result<BTreeMap<u64, u64>> {
    let entries = disk.list(FOLDER)?.into_iter();
    let number = |name: &str| name.strip_suffix(".log")?.parse().ok();
    Ok(entries.filter_map(|entry| Some((number(&entry.name)?, entry.bytes))).collect())
}

/// Shows a record to the rows before it; none when it makes no sense.
pub(crate) fn take(payload: &[u8], into: &mut Rows) -> Option<()> {
    let (kind, mut rest) = payload.split_first()?;
    match *kind {
        ROWS => {
            while !rest.is_empty() {
                let (source, after) = split_source(rest)?;
                rest = after;
                let rows = take_rows(&mut rest)?;
                into.entry(source).or_default().extend(rows);
            }
        }
        FORGOTTEN => {
            let serial = u32::from_be_bytes(rest.try_into().ok()?);
            into.retain(|(key, _), _| key.serial != serial);
        }
        _ => return None,
    }
    Some(())
}

impl RowLog {
    /// Reads all files, cuts off half-written records, and begins a new file, with this number or a
    /// greater one. The files are durable then.
    pub(crate) fn open(disk: &Arc<dyn Disk>, number_min: u64) -> io::Result<(Self, OpenedLog)> {
        let mut opened = OpenedLog::default();
        let numbers = list(&**disk)?;
        for number in numbers.keys() {
            let count = |rows: &Rows| rows.values().map(|rows| rows.len() as u64).sum::<u64>();
            let before = count(&opened.rows);
            let rows = &mut opened.rows;
            let (frames, seen) = Frames::open(&**disk, &name(*number), |_, payload| {
                // A record whose checksum is right and that cannot be read is left out.
                let _ = take(payload, rows);
            })?;
            let rows = count(&opened.rows).saturating_sub(before);
            opened.extents.insert(*number, Extent { bytes: frames.len_bytes(), rows });
            opened.damage.cut_bytes += seen.cut_bytes;
            opened.damage.gaps += seen.gaps;
        }
        let number = numbers.last_key_value().map_or(0, |(last, _)| last + 1).max(number_min);
        opened.extents.insert(number, Extent::default());
        let log = Self { frames: begin(&**disk, number)?, disk: disk.clone(), number, rows: 0 };
        Ok((log, opened))
    }

    /// The newest file, and its extent.
    pub(crate) fn newest(&self) -> (u64, Extent) {
        (self.number, Extent { bytes: self.frames.len_bytes(), rows: self.rows })
    }

    /// Appends rows, not yet durable.
    pub(crate) fn append(&mut self, batch: &[(Source, Vec<StepRecord>)]) -> io::Result<()> {
        let mut payloads = Vec::new();
        let mut payload = vec![ROWS];
        for (source, rows) in batch {
            for rows in rows.chunks(ROWS_MAX) {
                if payload.len() > RECORD_BYTES {
                    payloads.push(std::mem::replace(&mut payload, vec![ROWS]));
                }
                payload.extend(source_bytes(*source));
                put_rows(&mut payload, rows);
            }
        }
        payloads.push(payload);
        self.frames.append(payloads.iter().map(Vec::as_slice))?;
        self.rows += batch.iter().map(|(_, rows)| rows.len() as u64).sum::<u64>();
        Ok(())
    }

    /// Marks that the rows of an attempt no longer count.
    pub(crate) fn forget(&mut self, serial: u32) -> io::Result<()> {
        let payload = [&[FORGOTTEN], serial.to_be_bytes().as_slice()].concat();
        self.frames.append([payload.as_slice()])
    }

    /// Makes everything durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.frames.sync()
    }

    /// Begins a new file; returns its number. Earlier files can go once their rows are packed.
    pub(crate) fn begin_next(&mut self) -> io::Result<u64> {
        if self.frames.len_bytes() > 0 {
            self.begin_again()?;
        }
        Ok(self.number)
    }

    /// Begins a new file in any case: the newest one is gone.
    pub(crate) fn begin_again(&mut self) -> io::Result<()> {
        self.disk.make_folder(FOLDER)?;
        self.frames = begin(&*self.disk, self.number + 1)?;
        (self.number, self.rows) = (self.number + 1, 0);
        Ok(())
    }

    /// Removes all files before this one.
    pub(crate) fn remove_before(&self, number: u64) -> io::Result<()> {
        let mut old = list(&*self.disk)?;
        old.split_off(&number);
        for old in old.keys() {
            remove_if_there(&*self.disk, &name(*old))?;
        }
        // Durably: one that came back could say again that an attempt is forgotten, after rows of
        // it that came later, and are in no log, were packed.
        if old.is_empty() { Ok(()) } else { self.disk.sync_folder(FOLDER) }
    }
}

fn begin(disk: &dyn Disk, number: u64) -> io::Result<Frames> {
    let (frames, _) = Frames::open(disk, &name(number), |_, _| {})?;
    disk.sync_folder(FOLDER)?;
    Ok(frames)
}
