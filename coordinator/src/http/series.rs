//! `/jobs/{job}/series`: the steps of one device as a few hundred points that show every spike.

use memtape_core::limits::SERIES_POINTS_MAX;

use axum::extract::{Path, Query};
use axum::response::Json;
use memtape_proto::api::{Series, SeriesQuery};

use crate::http::asking::Asking;
use crate::http::rank_routes::JobPath;
use crate::http::request::{Answer, PathOf, Problem, QueryOf, attempt_of};
use crate::http::route_list::Routes;
use crate::records::{SeriesKey, StepRow};
use crate::state::visible::Visible;

/// Points of an answer, unless another number is asked for.
const POINTS: usize = 1000;

/// Memory of the records of a series: some 300,000 steps.
const SERIES_BYTES: u64 = 32 << 20;

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get("/jobs/{job}/series", "The steps of one device of one rank.", series)
}

async fn series(
    asking: Asking,
    path: PathOf<JobPath>,
    query: QueryOf<SeriesQuery>,
) -> Answer<Series> {
    let (Path(JobPath { job }), Query(query)) = (path?, query?);
    asking.room(SERIES_BYTES).await?;
    let wanted = query.clone();
    let key = asking.ask(move |view| key(view, &job, &wanted)).await??;
    let store = asking.api.store.clone();
    let read =
        tokio::task::spawn_blocking(move || store.series(key).map(|rows| thin_out(&rows, &query)));
    read.await.map_err(Problem::broken)?.map_err(Problem::broken).map(Json)
}

fn key(view: &Visible<'_>, job: &str, query: &SeriesQuery) -> Result<SeriesKey, Problem> {
    let attempt = attempt_of(view, job, query.attempt)?;
    let rank =
        attempt.ranks.get(&query.rank).ok_or_else(|| Problem::unknown("rank", query.rank))?;
    let largest = rank.totals.iter().max_by_key(|totals| totals.allocated);
    let device = query.device.or(largest.map(|totals| totals.device)).unwrap_or(0);
    Ok(SeriesKey { serial: attempt.record.serial, rank: query.rank, device })
}

/// Makes one point of neighbouring steps where there are more steps than points: the last step, the
/// lowest minimum, the highest peak and the highest reserve.
fn thin_out(rows: &[StepRow], wanted: &SeriesQuery) -> Series {
    let first = rows.partition_point(|row| row.last_step < wanted.from.unwrap_or(0));
    let rows = rows.get(first..).unwrap_or_default();
    let to = wanted.to.unwrap_or(u64::MAX);
    let rows = rows.get(..rows.partition_point(|row| row.first_step <= to)).unwrap_or_default();
    let points = wanted.points.unwrap_or(POINTS).clamp(1, SERIES_POINTS_MAX);
    let mut series = Series::default();
    for group in rows.chunks(rows.len().div_ceil(points).max(1)) {
        let lowest = |value: fn(&StepRow) -> u64| group.iter().map(value).min().unwrap_or(0);
        let highest = |value: fn(&StepRow) -> u64| group.iter().map(value).max().unwrap_or(0);
        series.steps.push(highest(|row| row.last_step));
        series.step_min_bytes.push(lowest(|row| row.floor_allocated));
        series.peak_bytes.push(highest(|row| row.peak_allocated));
        series.reserved_bytes.push(highest(|row| row.peak_reserved.max(row.end_reserved)));
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
        let wanted = SeriesQuery { from, to, points, ..SeriesQuery::default() };
        let series = thin_out(&rows, &wanted);
        let found = [series.steps.as_slice(), &series.step_min_bytes, &series.peak_bytes];
        assert_eq!(found, expected);
        assert_eq!(series.reserved_bytes.len(), series.steps.len());
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
