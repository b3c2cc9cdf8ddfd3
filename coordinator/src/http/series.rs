//! A series of steps for a screen: a few hundred points that still show every spike.

use serde::{Deserialize, Serialize};

use crate::records::StepRow;

/// Points of an answer, unless something else is asked for.
const POINTS: usize = 1000;

/// Points of an answer, at most.
const POINTS_MAX: usize = 20_000;

/// What is asked for.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Wanted {
    pub(crate) rank: u32,
    pub(crate) device: Option<u8>,
    pub(crate) attempt: Option<u32>,
    /// First and last step.
    from: Option<u64>,
    to: Option<u64>,
    points: Option<usize>,
}

/// Columns of equal length.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub(crate) struct Series {
    steps: Vec<u64>,
    floor_allocated: Vec<u64>,
    peak_allocated: Vec<u64>,
    reserved: Vec<u64>,
}

/// Puts neighbouring steps together where there are more than points: the last step, the lowest
/// floor, the highest peak and the highest reserve of each group.
pub(crate) fn thin_out(rows: &[StepRow], wanted: &Wanted) -> Series {
    let first = rows.partition_point(|row| row.last_step < wanted.from.unwrap_or(0));
    let rows = rows.get(first..).unwrap_or_default();
    let to = wanted.to.unwrap_or(u64::MAX);
    let rows = rows.get(..rows.partition_point(|row| row.first_step <= to)).unwrap_or_default();
    let points = wanted.points.unwrap_or(POINTS).clamp(1, POINTS_MAX);
    let mut series = Series::default();
    for group in rows.chunks(rows.len().div_ceil(points).max(1)) {
        let lowest = |value: fn(&StepRow) -> u64| group.iter().map(value).min().unwrap_or(0);
        let highest = |value: fn(&StepRow) -> u64| group.iter().map(value).max().unwrap_or(0);
        series.steps.push(highest(|row| row.last_step));
        series.floor_allocated.push(lowest(|row| row.floor_allocated));
        series.peak_allocated.push(highest(|row| row.peak_allocated));
        series.reserved.push(highest(|row| row.peak_reserved.max(row.end_reserved)));
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(range: (Option<u64>, Option<u64>), points: Option<usize>, expected: [&[u64]; 3]) {
        let rows: Vec<StepRow> = (1..=10)
            .map(|step| StepRow {
                first_step: step,
                last_step: step,
                floor_allocated: 100 + step % 3,
                peak_allocated: if step == 4 { 900 } else { 200 },
                ..StepRow::default()
            })
            .collect();
        let (from, to) = range;
        let wanted = Wanted { rank: 0, device: None, attempt: None, from, to, points };
        let series = thin_out(&rows, &wanted);
        let found = [series.steps.as_slice(), &series.floor_allocated, &series.peak_allocated];
        assert_eq!(found, expected);
        assert_eq!(series.reserved.len(), series.steps.len());
    }

    #[test]
    fn extremes_survive() {
        check((None, None), Some(3), [&[4, 8, 10], &[100, 100, 100], &[900, 200, 200]]);
        check((Some(9), None), None, [&[9, 10], &[100, 101], &[200, 200]]);
        check((Some(3), Some(4)), None, [&[3, 4], &[100, 101], &[200, 900]]);
        check((Some(11), None), None, [&[], &[], &[]]);
        check((Some(5), Some(2)), Some(0), [&[], &[], &[]]);
    }
}
