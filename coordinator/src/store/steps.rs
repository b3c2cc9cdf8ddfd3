//! Step records: in memory while they are new, then packed into the catalogue.
//!
//! New records are first appended to a log file, which is not synced: it survives the death of
//! this process, not of the machine. Once a minute all that is open is packed, one value for each
//! series, and the log begins anew. Keys are time first, so that sled appends, and old steps are
//! deleted by range; a series is read by asking each stretch of time for it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::catalogue::{Catalogue, STEPS_PREFIX};
use super::disk::Disk;
use super::frames::{Damage, Frames};
use super::journal::Change;
use super::packing::{ROWS_MAX, pack, unpack};
use crate::model::{SeriesKey, StepRow};

/// Length of a stretch of time in the keys.
const STRETCH_NS: i64 = 300_000_000_000;

/// Bytes of a series in a key.
const SERIES_BYTES: usize = 9;

/// The log is packed away when it is longer than this, whatever the time.
const LOG_BYTES_MAX: u64 = 64 << 20;

/// Records that are not packed yet, for writing and reading.
#[derive(Debug, Default)]
pub(crate) struct OpenSteps {
    rows: Mutex<BTreeMap<SeriesKey, Vec<StepRow>>>,
}

/// The log of records that are not packed yet.
#[derive(Debug)]
pub(crate) struct StepLog {
    frames: Frames,
}

/// Which stretch of time this moment lies in.
pub(crate) fn stretch(wall_ns: i64) -> u32 {
    u32::try_from(wall_ns / STRETCH_NS).unwrap_or(0)
}

impl OpenSteps {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SeriesKey, Vec<StepRow>>> {
        // A panic while it was held leaves whole rows.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StepLog {
    /// Opens the log; what it holds is open again.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn open(
        disk: &dyn Disk,
        name: &str,
        open: &OpenSteps,
    ) -> io::Result<(Self, Damage)> {
        let mut rows = open.lock();
        let (frames, damage) = Frames::open(disk, name, |_, payload| {
            if let Some((key, block)) = payload.split_at_checked(SERIES_BYTES)
                && let (Some(key), Some(more)) = (series_of(key), unpack(block))
            {
                rows.entry(key).or_default().extend(more);
            }
        })?;
        Ok((Self { frames }, damage))
    }

    /// Takes new records. They are open, and readable, even when they could not be logged.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn append(
        &mut self,
        open: &OpenSteps,
        batch: Vec<(SeriesKey, Vec<StepRow>)>,
    ) -> io::Result<()> {
        let payloads: Vec<Vec<u8>> = batch
            .iter()
            .flat_map(|(key, rows)| rows.chunks(ROWS_MAX).map(move |rows| (key, rows)))
            .map(|(key, rows)| [series_bytes(*key).as_slice(), pack(rows).as_slice()].concat())
            .collect();
        let mut all = open.lock();
        for (key, rows) in batch {
            all.entry(key).or_default().extend(rows);
        }
        drop(all);
        self.frames.append(payloads.iter().map(Vec::as_slice))
    }

    /// True when it should be packed before its time.
    pub(crate) fn is_long(&self) -> bool {
        self.frames.len_bytes() > LOG_BYTES_MAX
    }

    /// Packs all that is open into the catalogue and begins the log anew.
    ///
    /// # Errors
    /// One line; what was open then stays open, and in the log.
    pub(crate) fn pack_away(
        &mut self,
        open: &OpenSteps,
        catalogue: &Catalogue,
        wall_ns: i64,
    ) -> Result<(), String> {
        let rows = open.lock().clone();
        let mut changes = Vec::new();
        for (key, rows) in &rows {
            for rows in rows.chunks(ROWS_MAX) {
                let first_step = rows.first().map_or(0, |row| row.first_step);
                let key = block_key(stretch(wall_ns), *key, first_step);
                changes.push(Change { key, value: Some(pack(rows)) });
            }
        }
        catalogue.write(changes.iter())?;
        catalogue.flush()?;
        // Readers that look at both find the same records twice, which they allow for.
        let mut open = open.lock();
        for (key, packed) in rows {
            if let Some(rows) = open.get_mut(&key) {
                rows.drain(..packed.len().min(rows.len()));
                if rows.is_empty() {
                    open.remove(&key);
                }
            }
        }
        self.frames.truncate(0).map_err(|error| error.to_string())
    }
}

/// The records of a series within these stretches of time, in order of steps, none twice.
pub(crate) fn read(
    open: &OpenSteps,
    catalogue: &Catalogue,
    key: SeriesKey,
    stretches: std::ops::RangeInclusive<u32>,
) -> Result<Vec<StepRow>, String> {
    // In this order: a record that is packed away in between is found in either place.
    let newest = open.lock().get(&key).cloned().unwrap_or_default();
    let mut rows = Vec::new();
    for stretch in stretches {
        let mut prefix = block_key(stretch, key, 0);
        prefix.truncate(prefix.len() - 8);
        catalogue.scan(&prefix, |_, block| {
            rows.extend(unpack(block).unwrap_or_default());
            true
        })?;
    }
    rows.extend(newest);
    rows.sort_by_key(|row| (row.last_step, row.first_step));
    rows.dedup_by_key(|row| row.last_step);
    Ok(rows)
}

/// Deletes the steps of an attempt within these stretches of time.
///
/// # Errors
/// One line.
pub(crate) fn forget(
    open: &OpenSteps,
    catalogue: &Catalogue,
    serial: u32,
    stretches: std::ops::RangeInclusive<u32>,
) -> Result<(), String> {
    open.lock().retain(|key, _| key.serial != serial);
    for stretch in stretches {
        let mut prefix = vec![STEPS_PREFIX];
        prefix.extend(stretch.to_be_bytes());
        prefix.extend(serial.to_be_bytes());
        let mut changes = Vec::new();
        catalogue.scan(&prefix, |key, _| {
            changes.push(Change { key: key.to_vec(), value: None });
            true
        })?;
        catalogue.write(changes.iter())?;
    }
    Ok(())
}

/// Deletes all steps from before this moment, a bounded number at a time; false when there are
/// more.
///
/// # Errors
/// One line.
pub(crate) fn expire(catalogue: &Catalogue, before_wall_ns: i64) -> Result<bool, String> {
    let end = [&[STEPS_PREFIX], stretch(before_wall_ns).to_be_bytes().as_slice()].concat();
    let mut changes = Vec::new();
    catalogue.scan_range(&[STEPS_PREFIX], &end, |key| {
        changes.push(Change { key: key.to_vec(), value: None });
        changes.len() < 8 * ROWS_MAX
    })?;
    catalogue.write(changes.iter())?;
    Ok(changes.len() < 8 * ROWS_MAX)
}

fn block_key(stretch: u32, series: SeriesKey, first_step: u64) -> Vec<u8> {
    let mut key = vec![STEPS_PREFIX];
    key.extend(stretch.to_be_bytes());
    key.extend(series_bytes(series));
    key.extend(first_step.to_be_bytes());
    key
}

fn series_bytes(key: SeriesKey) -> [u8; SERIES_BYTES] {
    let mut bytes = [0; SERIES_BYTES];
    bytes[..4].copy_from_slice(&key.serial.to_be_bytes());
    bytes[4..8].copy_from_slice(&key.rank.to_be_bytes());
    bytes[8] = key.device;
    bytes
}

fn series_of(bytes: &[u8]) -> Option<SeriesKey> {
    let (serial, rest) = bytes.split_first_chunk()?;
    let (rank, rest) = rest.split_first_chunk()?;
    let &[device] = rest else { return None };
    Some(SeriesKey { serial: u32::from_be_bytes(*serial), rank: u32::from_be_bytes(*rank), device })
}
