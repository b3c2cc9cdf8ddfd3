//! All records of many series of an attempt, as a table of steps has them.
//!
//! A group of series is read at a time: what is not packed yet, then one time bucket after the
//! other, the newest first. In each, the index of the whole group is read at once, and the blocks
//! in the order in which they lie in their files. So the reads are few and large, and the records
//! of a time bucket of a group are the most in memory. Nothing is read without an index.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use crate::error::Result;
use crate::records::{SeriesKey, StepRecord};
use crate::steps::index;
use crate::steps::packer::{OpenSteps, READS_MAX, Reader, SLICE_SERIES, put_in_order, read_blocks};

/// Series of a group. Those that are packed at once lie beside each other.
const GROUP_SERIES: usize = 2 * SLICE_SERIES;

/// Runs of steps that are remembered of a series, the oldest. Records come twice where an agent got
/// no answer, or a coordinator crashed: soon after each other.
pub(crate) const RUNS_MAX: usize = 4096;

/// Gets records of a series, and says whether it wants more.
pub(crate) type Take<'a> = dyn FnMut(SeriesKey, &[StepRecord]) -> Result<ControlFlow<()>> + 'a;

/// Records by series.
type Rows = BTreeMap<SeriesKey, Vec<StepRecord>>;

/// Hands over the records of these series of one attempt until `take` wants no more: of each series
/// the newest first, in parts that are in order of steps, none twice (but see [`RUNS_MAX`]).
/// `pause` is called after each block, and ends it with its error. Returns the number of series of
/// which all was taken. Blocks.
///
/// # Errors
/// The disk or the index could not be read.
pub(crate) fn sweep(
    (reader, open): (&Reader, &OpenSteps),
    keys: &BTreeSet<SeriesKey>,
    pause: &mut dyn FnMut() -> Result<()>,
    take: &mut Take<'_>,
) -> Result<usize> {
    let Some(SeriesKey { serial, .. }) = keys.first() else { return Ok(0) };
    let all: Vec<SeriesKey> = keys.iter().copied().collect();
    for (number, group) in all.chunks(GROUP_SERIES).enumerate() {
        let group: BTreeSet<SeriesKey> = group.iter().copied().collect();
        // In this order: rows that are packed away in between are found in either location.
        let new = group.iter().map(|key| (*key, open.rows_of(*key))).collect();
        let stretches = index::stretches(&reader.catalogue, *serial)?;
        let mut taken = Taken { seen: BTreeMap::new(), take: &mut *take };
        let mut goes_on = taken.more(new)?;
        for stretch in stretches.into_iter().rev() {
            if goes_on.is_break() {
                return Ok(number * GROUP_SERIES);
            }
            goes_on = taken.more(of_stretch((reader, open), &group, stretch, pause)?)?;
        }
        if goes_on.is_break() {
            return Ok(number * GROUP_SERIES);
        }
    }
    Ok(all.len())
}

/// What was handed over of a group.
struct Taken<'a> {
    seen: BTreeMap<SeriesKey, Seen>,
    take: &'a mut Take<'a>,
}

impl Taken<'_> {
    /// Hands over what was not handed over before.
    fn more(&mut self, found: Rows) -> Result<ControlFlow<()>> {
        for (key, mut rows) in found {
            put_in_order(&mut rows);
            let seen = self.seen.entry(key).or_default();
            rows.retain(|row| seen.is_new(row));
            if !rows.is_empty() && (self.take)(key, &rows)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Steps of a series that were seen: the last step of each run by its first one.
#[derive(Debug, Default)]
pub(crate) struct Seen(pub(crate) BTreeMap<u64, u64>);

impl Seen {
    /// Notes the steps of a record; false where its last step was seen before.
    pub(crate) fn is_new(&mut self, row: &StepRecord) -> bool {
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

/// The packed records of these series in a time bucket, in no order, and some of them twice.
fn of_stretch(
    (reader, open): (&Reader, &OpenSteps),
    keys: &BTreeSet<SeriesKey>,
    stretch: u32,
    pause: &mut dyn FnMut() -> Result<()>,
) -> Result<Rows> {
    let mut rows = Rows::new();
    for _ in 0..READS_MAX {
        let mut blocks = index::among(&reader.catalogue, keys, stretch)?;
        blocks.sort_by_key(|of| (of.segment, of.offset));
        let mut goes_on = Ok(());
        let is_all = read_blocks(reader, open, &blocks, &mut |key, block| {
            rows.entry(key).or_default().extend(block);
            goes_on = pause();
            if goes_on.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        goes_on?;
        if is_all {
            break;
        }
    }
    Ok(rows)
}
