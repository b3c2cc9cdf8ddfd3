//! The newest records of all series of an attempt, as a coordinator reads them back at its start.
//!
//! In each of the newest time buckets, the index of all series is read at once, then the newest
//! block of each series, in the order in which the blocks lie in their files, and so on until each
//! series has enough. So the reads of a start are few and large, and do not grow with the age of
//! the attempt. Only a series that has nothing there is looked for further back, alone.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use crate::error::Result;
use crate::records::{SeriesKey, StepRecord};
use crate::steps::block::ALL_COLUMNS;
use crate::steps::index;
use crate::steps::open_series::OpenSeries;
use crate::steps::packer::OpenSteps;
use crate::steps::read::{READS_MAX, Reader, Rows, put_in_order, read, read_blocks};
use crate::steps::segments::Location;

/// What is read back.
#[derive(Clone, Copy, Debug)]
pub struct NewestRows {
    /// Records of each series, at most.
    pub rows_max: usize,
    /// Newest time buckets in which the attempt has steps. Where a series is empty there, twice as
    /// many are read, and so on.
    pub stretches_max: usize,
}

/// The newest records of these series of one attempt, each in order of steps, none twice. Blocks.
///
/// # Errors
/// The disk could not be read.
pub(crate) fn newest(
    from: (&Reader, &OpenSteps),
    keys: &BTreeSet<SeriesKey>,
    bounds: NewestRows,
) -> Result<Rows> {
    let serial = keys.first().map(|key| key.serial).unwrap_or_default();
    // Without an index each series is found alone, in the files.
    let stretches = index::stretches(&from.0.catalogue, serial).unwrap_or_default();
    let mut rows = Rows::new();
    for _ in 0..READS_MAX {
        rows = keys.iter().map(|key| (*key, Vec::new())).collect();
        if let Ok(true) = read_near(from, &stretches, bounds, &mut rows) {
            break;
        }
        rows.clear();
    }
    for key in keys {
        let of = rows.entry(*key).or_default();
        if of.is_empty() {
            *of = read_alone(from, *key, &stretches, bounds)?;
        }
    }
    Ok(rows)
}

/// Reads the newest time buckets; false where a file was gone meanwhile: its blocks may have moved.
fn read_near(
    (reader, open): (&Reader, &OpenSteps),
    stretches: &[u32],
    bounds: NewestRows,
    rows: &mut Rows,
) -> Result<bool> {
    // Before the index, as in `read::read_each`.
    for (key, of) in rows.iter_mut() {
        of.extend(open.of(*key).iter().flat_map(OpenSeries::parts).flatten());
        cut(of, bounds);
    }
    let mut wanted: BTreeSet<SeriesKey> = rows.keys().copied().collect();
    for stretch in stretches.iter().rev().take(bounds.stretches_max) {
        wanted.retain(|key| rows.get(key).is_some_and(|of| of.len() < bounds.rows_max));
        let mut blocks: BTreeMap<SeriesKey, Vec<Location>> = BTreeMap::new();
        for location in index::among(&reader.catalogue, &wanted, *stretch)? {
            blocks.entry(location.series).or_default().push(location);
        }
        while !blocks.is_empty() {
            let mut next: Vec<Location> = blocks.values_mut().flat_map(take_newest).collect();
            next.sort_by_key(|of| (of.segment, of.offset));
            let is_all = read_blocks(reader, open, (&next, &ALL_COLUMNS), &mut |series, block| {
                let of = rows.entry(series).or_default();
                of.extend(block);
                cut(of, bounds);
                ControlFlow::Continue(())
            })?;
            if !is_all {
                return Ok(false);
            }
            blocks.retain(|key, left| {
                !left.is_empty() && rows.get(key).is_some_and(|of| of.len() < bounds.rows_max)
            });
        }
    }
    Ok(true)
}

/// Takes the newest block of a series; all, where they are in several files, whose order is not
/// that of time.
fn take_newest(blocks: &mut Vec<Location>) -> Vec<Location> {
    let file = |of: Option<&Location>| of.map(|of| of.segment);
    let is_in_one = file(blocks.first()) == file(blocks.last());
    blocks.split_off(if is_in_one { blocks.len().saturating_sub(1) } else { 0 })
}

/// Reads a series without the others, further and further back.
fn read_alone(
    (reader, open): (&Reader, &OpenSteps),
    key: SeriesKey,
    stretches: &[u32],
    bounds: NewestRows,
) -> Result<Vec<StepRecord>> {
    let mut reach = bounds.stretches_max.max(1);
    loop {
        let near = stretches.get(stretches.len().saturating_sub(reach)..).unwrap_or_default();
        let mut rows = read(reader, open, key, Some(near))?;
        if !rows.is_empty() || near.len() == stretches.len() {
            cut(&mut rows, bounds);
            return Ok(rows);
        }
        reach = reach.saturating_mul(2);
    }
}

/// Keeps the newest records, in order.
fn cut(rows: &mut Vec<StepRecord>, bounds: NewestRows) {
    put_in_order(rows);
    rows.drain(..rows.len().saturating_sub(bounds.rows_max));
}
