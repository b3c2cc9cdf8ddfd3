//! `/jobs/{job}/series`: the steps of one device as a few hundred points that show every spike.
//!
//! A long job has millions of steps. They are read a block at a time, and of each block only the
//! points remain ([`Points`]), so the memory of an answer depends on its points alone.

use std::collections::BTreeMap;

use axum::extract::{Path, Query};
use axum::response::Json;
use memtape_core::limits::SERIES_POINTS_MAX;
use memtape_proto::api::{Series, SeriesQuery};

use crate::http::asking::Asking;
use crate::http::rank_routes::JobPath;
use crate::http::request::{Answer, PathOf, Problem, QueryOf, attempt_of};
use crate::http::route_list::Routes;
use crate::state::visible::Visible;
use crate::work::blocking::Client;
use memtape_store::Found;
use memtape_store::records::{SeriesKey, StepRecord};

/// Points of an answer, unless another number is asked for.
const POINTS: usize = 1000;

/// Memory of one point, while it is made and as text.
const POINT_BYTES: u64 = 256;

/// Memory of the records that are read and are no points yet.
const RECORDS_BYTES: u64 = 1 << 20;

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get("/jobs/{job}/series", "The steps of one device of one rank.", series)
}

async fn series(
    asking: Asking,
    path: PathOf<JobPath>,
    query: QueryOf<SeriesQuery>,
) -> Answer<Series> {
    let (Path(JobPath { job }), Query(query)) = (path?, query?);
    let points = query.points.unwrap_or(POINTS).clamp(1, SERIES_POINTS_MAX);
    asking.reserve(points as u64 * POINT_BYTES + RECORDS_BYTES).await?;
    let wanted = query.clone();
    let (key, steps_left_out) = asking.ask(move |view| key(view, &job, &wanted)).await??;
    let store = asking.api.store.clone();
    let read = move |client: &Client| -> memtape_store::Result<Series> {
        let mut made = Points::new(points);
        store.series_each(key, &mut |found| {
            match found {
                Found::Rows(rows) => {
                    rows.iter().filter(|row| is_wanted(row, &query)).for_each(|row| made.add(row));
                }
                Found::Forgotten => made = Points::new(points),
            }
            client.waits()
        })?;
        Ok(Series { steps_left_out, ..made.series() })
    };
    asking.work(read).await?.map_err(Problem::broken).map(Json)
}

/// The series, and the number of the rank's step records that are not kept.
fn key(view: &Visible<'_>, job: &str, query: &SeriesQuery) -> Result<(SeriesKey, u64), Problem> {
    let attempt = attempt_of(view, job, query.attempt)?;
    let rank =
        attempt.ranks.get(&query.rank).ok_or_else(|| Problem::unknown("rank", query.rank))?;
    let largest = rank.totals.iter().max_by_key(|totals| totals.allocated);
    let device = query.device.or(largest.map(|totals| totals.device)).unwrap_or(0);
    let key = SeriesKey { serial: attempt.record.serial, rank: query.rank, device };
    Ok((key, rank.record.steps_left_out))
}

fn is_wanted(row: &StepRecord, query: &SeriesQuery) -> bool {
    row.last_step >= query.from.unwrap_or(0) && row.first_step <= query.to.unwrap_or(u64::MAX)
}

/// Steps as points: all steps with the same quotient by `steps` are one point, and `steps` doubles
/// where there are too many points. The order of the steps makes no difference, nor does a step
/// that comes twice.
#[derive(Debug)]
struct Points {
    max: usize,
    steps: u64,
    points: BTreeMap<u64, Point>,
}

/// Neighbouring steps: the last step, the lowest minimum, the highest peak and the highest reserve.
#[derive(Clone, Copy, Debug)]
struct Point {
    last_step: u64,
    min_bytes: u64,
    peak_bytes: u64,
    reserved_bytes: u64,
}

impl Points {
    fn new(max: usize) -> Self {
        Self { max, steps: 1, points: BTreeMap::new() }
    }

    fn add(&mut self, row: &StepRecord) {
        let point = Point {
            last_step: row.last_step,
            min_bytes: row.floor_allocated,
            peak_bytes: row.peak_allocated,
            reserved_bytes: row.peak_reserved.max(row.end_reserved),
        };
        self.put(point);
        // The last doubling leaves two points at most.
        while self.points.len() > self.max && self.steps < u64::MAX {
            self.steps = self.steps.saturating_mul(2);
            std::mem::take(&mut self.points).into_values().for_each(|point| self.put(point));
        }
    }

    fn put(&mut self, point: Point) {
        let known = self.points.entry(point.last_step / self.steps).or_insert(point);
        known.last_step = known.last_step.max(point.last_step);
        known.min_bytes = known.min_bytes.min(point.min_bytes);
        known.peak_bytes = known.peak_bytes.max(point.peak_bytes);
        known.reserved_bytes = known.reserved_bytes.max(point.reserved_bytes);
    }

    fn series(&self) -> Series {
        let mut series = Series::default();
        for point in self.points.values() {
            series.steps.push(point.last_step);
            series.step_min_bytes.push(point.min_bytes);
            series.peak_bytes.push(point.peak_bytes);
            series.reserved_bytes.push(point.reserved_bytes);
        }
        series
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(step: u64, min_bytes: u64, peak_bytes: u64) -> StepRecord {
        StepRecord {
            first_step: step,
            last_step: step,
            floor_allocated: min_bytes,
            peak_allocated: peak_bytes,
            ..StepRecord::default()
        }
    }

    fn check(range: (Option<u64>, Option<u64>), points: usize, expected: [&[u64]; 3]) {
        let (from, to) = range;
        let wanted = SeriesQuery { from, to, ..SeriesQuery::default() };
        let mut made = Points::new(points);
        for step in 1..=10 {
            let row = row(step, 100 + step % 3, if step == 4 { 900 } else { 200 });
            if is_wanted(&row, &wanted) {
                made.add(&row);
            }
        }
        let series = made.series();
        let found = [series.steps.as_slice(), &series.step_min_bytes, &series.peak_bytes];
        assert_eq!(found, expected);
        assert_eq!(series.reserved_bytes.len(), series.steps.len());
    }

    #[test]
    fn extremes_survive() {
        check((None, None), 3, [&[3, 7, 10], &[100, 100, 100], &[200, 900, 200]]);
        check((Some(9), None), 1000, [&[9, 10], &[100, 101], &[200, 200]]);
        check((Some(3), Some(4)), 1000, [&[3, 4], &[100, 101], &[200, 900]]);
        check((Some(11), None), 1000, [&[], &[], &[]]);
        check((Some(5), Some(2)), 1, [&[], &[], &[]]);
    }

    #[test]
    fn steps_that_an_agent_makes_up_are_points_too() {
        let mut made = Points::new(1);
        for step in [0, u64::MAX, u64::MAX / 2] {
            made.add(&row(step, 1, 2));
        }
        assert_eq!(made.series().steps, [u64::MAX / 2, u64::MAX]);
    }

    proptest! {
        /// Steps that come in another order, and some twice, make the same points; the lowest and
        /// the highest are among them.
        #[test]
        fn the_order_of_steps_does_not_matter(
            rows in prop::collection::vec((0_u64..100_000, 0_u64..1000, 0_u64..1000), 1..300),
            max in 1_usize..40,
        ) {
            let mut made = [Points::new(max), Points::new(max)];
            let rows: Vec<StepRecord> = rows.into_iter().map(|(a, b, c)| row(a, b, c)).collect();
            rows.iter().for_each(|row| made[0].add(row));
            rows.iter().rev().chain(&rows[..rows.len() / 2]).for_each(|row| made[1].add(row));
            let [series, again] = made.map(|made| made.series());
            prop_assert_eq!(&series, &again);
            prop_assert!(series.steps.len() <= max && series.steps.is_sorted());
            let lowest = rows.iter().map(|row| row.floor_allocated).min();
            let highest = rows.iter().map(|row| row.peak_allocated).max();
            prop_assert_eq!(series.step_min_bytes.iter().min().copied(), lowest);
            prop_assert_eq!(series.peak_bytes.iter().max().copied(), highest);
        }
    }
}
