//! The records of one series: those that wait, and the packed ones wherever the index has blocks of
//! it. If the index cannot answer, the files themselves are read.
//!
//! Rows that are packed meanwhile are found in either location, and some twice. Many series at once
//! are read elsewhere (`sweep.rs`, `newest.rs`).

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::catalogue::Catalogue;
use crate::error::Result;
use crate::records::{SeriesKey, StepRecord};
use crate::steps::block::{ALL_COLUMNS, Columns, unpack, unpack_columns};
use crate::steps::index;
use crate::steps::open_series::OpenSeries;
use crate::steps::packer::OpenSteps;
use crate::steps::segments::{self, Entry, Location, Table};
use memtape_disk::files::{Disk, DiskFile};
use memtape_disk::frames;

/// Times that a series is read whose files move meanwhile.
pub(crate) const READS_MAX: usize = 3;

/// A part of a series found while it is read.
#[derive(Debug)]
pub enum Found {
    /// Records.
    Rows(Vec<StepRecord>),
    /// All records found before belong to an attempt that was forgotten.
    Forgotten,
}

/// Sources of a reader.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    pub disk: Arc<dyn Disk>,
    pub catalogue: Catalogue,
    pub table: Table,
}

/// The rows of a series in order of steps, none twice: all, or only rows packed in these time
/// buckets or not packed yet.
pub(crate) fn read(
    reader: &Reader,
    open: &OpenSteps,
    key: SeriesKey,
    stretches: Option<&[u32]>,
) -> Result<Vec<StepRecord>> {
    let mut rows = Vec::new();
    read_each(reader, open, key, stretches, &mut |part| {
        match part {
            Found::Rows(more) => rows.extend(more),
            Found::Forgotten => rows.clear(),
        }
        ControlFlow::Continue(())
    })?;
    put_in_order(&mut rows);
    Ok(rows)
}

/// Records by series.
pub(crate) type Rows = BTreeMap<SeriesKey, Vec<StepRecord>>;

/// Puts records in the order of steps, each step once.
pub(crate) fn put_in_order(rows: &mut Vec<StepRecord>) {
    rows.sort_by_key(|row| (row.last_step, row.first_step));
    rows.dedup_by_key(|row| row.last_step);
}

/// Hands over the records of a series, a block at a time: in no order, and some of them twice,
/// until `take` wants no more. At most one block is in memory, beside the open rows. Blocks.
///
/// # Errors
/// The disk could not be read.
pub(crate) fn read_each(
    reader: &Reader,
    open: &OpenSteps,
    key: SeriesKey,
    stretches: Option<&[u32]>,
    take: &mut dyn FnMut(Found) -> ControlFlow<()>,
) -> Result<()> {
    // In this order: rows that are packed away in between are found in either location.
    let newest = open.of(key);
    for _ in 0..READS_MAX {
        match index::locations(&reader.catalogue, key, stretches) {
            Ok(locations) => {
                let found = &mut |_, rows| take(Found::Rows(rows));
                if read_blocks(reader, open, (&locations, &ALL_COLUMNS), found)? {
                    break;
                }
            }
            Err(why) => {
                if open.without_index.fetch_add(1, Relaxed) == 0 {
                    tracing::warn!(
                        "steps are read without their index until the next start: {why}"
                    );
                }
                read_files(reader, key, stretches, take)?;
                break;
            }
        }
    }
    for rows in newest.iter().flat_map(OpenSeries::parts) {
        if take(Found::Rows(rows.to_vec())).is_break() {
            break;
        }
    }
    Ok(())
}

/// Reads these columns of the blocks of files that are there, until `take` wants no more; false
/// where one is gone: its blocks may have moved.
pub(crate) fn read_blocks(
    reader: &Reader,
    open: &OpenSteps,
    (locations, columns): (&[Location], &Columns),
    take: &mut dyn FnMut(SeriesKey, Vec<StepRecord>) -> ControlFlow<()>,
) -> Result<bool> {
    let (mut file, mut is_all) = (None, true);
    for location in locations {
        if file.as_ref().is_none_or(|(number, _)| *number != location.segment) {
            match reader.disk.open(&segments::name(location.segment)) {
                Ok(opened) => file = Some((location.segment, opened)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    is_all = false;
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let Some((_, file)) = &file else { continue };
        match read_block(&**file, (location.offset, location.length), columns)? {
            Some(block) => {
                if take(location.series, block).is_break() {
                    return Ok(true);
                }
            }
            None => {
                open.damaged_blocks.fetch_add(1, Relaxed);
            }
        }
    }
    Ok(is_all)
}

/// Reads these columns of a block, by offset and length of its record; none where it is damaged.
pub(crate) fn read_block(
    file: &dyn DiskFile,
    (offset, length): (u64, u32),
    columns: &Columns,
) -> io::Result<Option<Vec<StepRecord>>> {
    let payload = frames::read_at(file, offset, length as usize)?;
    Ok(payload.as_deref().and_then(Entry::decode).and_then(|entry| match entry {
        Entry::Block { block, .. } => unpack_columns(block, columns),
        Entry::Forgotten { .. } => None,
    }))
}

fn read_files(
    reader: &Reader,
    key: SeriesKey,
    stretches: Option<&[u32]>,
    take: &mut dyn FnMut(Found) -> ControlFlow<()>,
) -> Result<()> {
    let numbers: Vec<u32> = reader.table.lock().keys().copied().collect();
    let mut goes_on = ControlFlow::Continue(());
    for number in numbers {
        if goes_on.is_break() {
            break;
        }
        let scanned = segments::scan(&*reader.disk, number, 0, |_, _, entry| match entry {
            Some(Entry::Block { stretch, source, block })
                if source.0 == key && stretches.is_none_or(|within| within.contains(&stretch)) =>
            {
                goes_on = take(Found::Rows(unpack(block).unwrap_or_default()));
            }
            Some(Entry::Forgotten { serial }) if serial == key.serial => {
                goes_on = take(Found::Forgotten);
            }
            _ => {}
        });
        match scanned {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}
