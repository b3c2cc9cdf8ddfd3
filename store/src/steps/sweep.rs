//! All records of many series of an attempt, as a table of steps or a picture of a job has them.
//!
//! What is not packed yet comes first, then one time bucket after the other, the newest first. In
//! each, the index of many series is read at once, and the blocks in the order in which they lie in
//! their files, so that the reads are few and large. In memory are the records of one block.
//! Nothing is read without an index.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::ControlFlow;

use crate::error::{Error, Result};
use crate::records::{SeriesKey, StepRecord};
use crate::steps::block::{ALL_COLUMNS, Columns};
use crate::steps::index;
use crate::steps::open_series::OpenSeries;
use crate::steps::packer::OpenSteps;
use crate::steps::read::{READS_MAX, Reader, put_in_order, read_blocks};

/// Series whose step runs are in memory at once, while each record is wanted once.
pub(crate) const GROUP_SERIES: usize = 256;

/// Series whose index of a time bucket is in memory at once: about 1 MiB.
const INDEXED_SERIES: usize = 4096;

/// Step runs that are kept of a series; the newest are dropped first. Records come twice where an
/// agent got no answer, or a coordinator crashed: soon after each other.
pub(crate) const RUNS_MAX: usize = 4096;

/// Consumes records of a series; breaks when the consumer is full.
pub(crate) type Take<'a> = dyn FnMut(SeriesKey, &[StepRecord]) -> Result<ControlFlow<()>> + 'a;

/// Hands over the records of these series of one attempt until `take` wants no more: the newest
/// time bucket first, in parts of a series that are in order of steps. A record is left out where
/// those before have its last step; of a series with more than [`RUNS_MAX`] gaps some come twice.
/// `pause` is called before each part, and its error ends the sweep. Returns a lower bound of the
/// number of series that `take` got whole. Blocks.
///
/// # Errors
/// The disk or the index could not be read.
pub(crate) fn sweep(
    from: (&Reader, &OpenSteps),
    keys: &BTreeSet<SeriesKey>,
    pause: &mut dyn FnMut() -> Result<()>,
    take: &mut Take<'_>,
) -> Result<usize> {
    let keys: Vec<SeriesKey> = keys.iter().copied().collect();
    for (number, group) in keys.chunks(GROUP_SERIES).enumerate() {
        let mut runs = BTreeMap::<SeriesKey, StepRuns>::new();
        let swept = newest_first(from, group, &ALL_COLUMNS, &mut |key, part| {
            pause()?;
            let mut rows = part.to_vec();
            put_in_order(&mut rows);
            rows.reverse();
            let runs = runs.entry(key).or_default();
            rows.retain(|row| runs.add(row));
            rows.reverse();
            if rows.is_empty() { Ok(ControlFlow::Continue(())) } else { take(key, &rows) }
        });
        if swept?.is_break() {
            return Ok(number * GROUP_SERIES);
        }
    }
    Ok(keys.len())
}

/// Hands over the records of these series of one attempt, which are in order, until `take` wants no
/// more: what is not packed yet, then the newest time bucket of all of them first, each part in the
/// order in which it was reported. Some come twice. Of packed records, numbers in other columns
/// than these are 0. Blocks.
///
/// # Errors
/// The disk or the index could not be read, or those of `take`.
pub(crate) fn newest_first(
    from: (&Reader, &OpenSteps),
    keys: &[SeriesKey],
    columns: &Columns,
    take: &mut Take<'_>,
) -> Result<ControlFlow<()>> {
    let (reader, open) = from;
    let Some(SeriesKey { serial, .. }) = keys.first() else { return Ok(ControlFlow::Continue(())) };
    // Before the index, as in `read::read_each`.
    let newest: Vec<_> = keys.iter().map(|key| (*key, open.of(*key))).collect();
    for (key, series) in newest {
        for rows in series.iter().flat_map(OpenSeries::parts).rev() {
            if take(key, rows)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }
    for stretch in index::stretches(&reader.catalogue, *serial)?.into_iter().rev() {
        for keys in keys.chunks(INDEXED_SERIES) {
            let keys = keys.iter().copied().collect();
            if bucket(from, (&keys, columns), stretch, take)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Hands over the packed records of these series in a time bucket.
fn bucket(
    (reader, open): (&Reader, &OpenSteps),
    (keys, columns): (&BTreeSet<SeriesKey>, &Columns),
    stretch: u32,
    take: &mut Take<'_>,
) -> Result<ControlFlow<()>> {
    for _ in 0..READS_MAX {
        let mut blocks = index::among(&reader.catalogue, keys, stretch)?;
        blocks.sort_by_key(|of| (of.segment, of.offset));
        let mut goes_on = Ok(ControlFlow::Continue(()));
        let is_all = read_blocks(reader, open, (&blocks, columns), &mut |key, rows| {
            goes_on = take(key, &rows);
            *goes_on.as_ref().unwrap_or(&ControlFlow::Break(()))
        })?;
        if is_all || !matches!(goes_on, Ok(ControlFlow::Continue(()))) {
            return goes_on;
        }
    }
    // Its records may have moved each time.
    Err(Error::from(io::Error::from(io::ErrorKind::NotFound)))
}

/// Steps of a series: the last step of each run by its first one.
#[derive(Debug, Default)]
pub(crate) struct StepRuns(pub(crate) BTreeMap<u64, u64>);

impl StepRuns {
    /// Adds the steps of a record; false where its last step is among them.
    pub(crate) fn add(&mut self, row: &StepRecord) -> bool {
        let (mut first, mut last) = (row.first_step.min(row.last_step), row.last_step);
        if let Some((&begin, &end)) = self.0.range(..=last).next_back() {
            if end >= last {
                return false;
            }
            if end.saturating_add(1) >= first {
                first = first.min(begin);
            }
        }
        let touched = first..=last.saturating_add(1);
        last = self.0.extract_if(touched, |_, _| true).fold(last, |last, (_, end)| last.max(end));
        self.0.insert(first, last);
        if self.0.len() > RUNS_MAX {
            self.0.pop_last();
        }
        true
    }
}
