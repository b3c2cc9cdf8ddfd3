//! All records of many series of an attempt, as a table of steps has them.
//!
//! A group of series is read at a time: what is not packed yet, then one time bucket after the
//! other, the newest first. In each, the index of the whole group is read at once, and the blocks
//! in the order in which they lie in their files, so that the reads are few and large. In memory
//! are the records of [`BLOCKS_MAX`] blocks, and the step runs of a group. Nothing is read without
//! an index.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::ControlFlow;

use crate::error::{Error, Result};
use crate::records::{SeriesKey, StepRecord};
use crate::steps::index;
use crate::steps::open_series::OpenSeries;
use crate::steps::packer::{OpenSteps, READS_MAX, Reader, Rows, put_in_order, read_blocks};

/// Series of a group.
pub(crate) const GROUP_SERIES: usize = 256;

/// Blocks whose records are in memory at once.
pub(crate) const BLOCKS_MAX: usize = 512;

/// Step runs that are kept of a series; the newest are dropped first. Records come twice where an
/// agent got no answer, or a coordinator crashed: soon after each other.
pub(crate) const RUNS_MAX: usize = 4096;

/// Consumes records of a series; breaks when the consumer is full.
pub(crate) type Take<'a> = dyn FnMut(SeriesKey, &[StepRecord]) -> Result<ControlFlow<()>> + 'a;

/// Hands over the records of these series of one attempt until `take` wants no more: the newest
/// time bucket first, in parts of a series that are in order of steps. A record is left out where
/// those before have its last step; of a series with more than [`RUNS_MAX`] gaps some come twice.
/// `pause` is called after each block, and its error ends the sweep. Returns a lower bound of the
/// number of series that `take` got whole. Blocks.
///
/// # Errors
/// The disk or the index could not be read.
pub(crate) fn sweep(
    (reader, open): (&Reader, &OpenSteps),
    keys: &BTreeSet<SeriesKey>,
    pause: &mut dyn FnMut() -> Result<()>,
    take: &mut Take<'_>,
) -> Result<usize> {
    let keys: Vec<SeriesKey> = keys.iter().copied().collect();
    for (number, group) in keys.chunks(GROUP_SERIES).enumerate() {
        let group = group.iter().copied().collect();
        let mut sweep = Sweep { reader, open, runs: BTreeMap::new(), pause, take };
        if sweep.group(&group)?.is_break() {
            return Ok(number * GROUP_SERIES);
        }
    }
    Ok(keys.len())
}

/// The sweep of a group.
struct Sweep<'a> {
    reader: &'a Reader,
    open: &'a OpenSteps,
    /// Steps that were handed over.
    runs: BTreeMap<SeriesKey, StepRuns>,
    pause: &'a mut dyn FnMut() -> Result<()>,
    take: &'a mut Take<'a>,
}

impl Sweep<'_> {
    fn group(&mut self, keys: &BTreeSet<SeriesKey>) -> Result<ControlFlow<()>> {
        // Before the index, as in `packer::read_each`.
        let open: Vec<_> = keys.iter().map(|key| (*key, self.open.of(*key))).collect();
        for (key, series) in open {
            for rows in series.iter().flat_map(OpenSeries::parts).rev() {
                if self.hand_over(key, rows.to_vec())?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        let Some(SeriesKey { serial, .. }) = keys.first() else {
            return Ok(ControlFlow::Continue(()));
        };
        for stretch in index::stretches(&self.reader.catalogue, *serial)?.into_iter().rev() {
            if self.bucket(keys, stretch)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Hands over the packed records of these series in a time bucket.
    fn bucket(&mut self, keys: &BTreeSet<SeriesKey>, stretch: u32) -> Result<ControlFlow<()>> {
        for _ in 0..READS_MAX {
            let mut blocks = index::among(&self.reader.catalogue, keys, stretch)?;
            blocks.sort_by_key(|of| (of.segment, of.offset));
            let mut is_all = true;
            for blocks in blocks.chunks(BLOCKS_MAX) {
                let (mut rows, mut goes_on) = (Rows::new(), Ok(()));
                let pause = &mut *self.pause;
                is_all &= read_blocks(self.reader, self.open, blocks, &mut |key, block| {
                    rows.entry(key).or_default().extend(block);
                    goes_on = pause();
                    if goes_on.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                })?;
                goes_on?;
                for (key, rows) in rows {
                    if self.hand_over(key, rows)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
            if is_all {
                return Ok(ControlFlow::Continue(()));
            }
        }
        // Its records may have moved each time.
        Err(Error::from(io::Error::from(io::ErrorKind::NotFound)))
    }

    /// Hands over the records of these whose steps were not handed over.
    fn hand_over(&mut self, key: SeriesKey, mut rows: Vec<StepRecord>) -> Result<ControlFlow<()>> {
        put_in_order(&mut rows);
        rows.reverse();
        let runs = self.runs.entry(key).or_default();
        rows.retain(|row| runs.add(row));
        rows.reverse();
        if rows.is_empty() { Ok(ControlFlow::Continue(())) } else { (self.take)(key, &rows) }
    }
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
