//! `/jobs/{job}/series`: the steps of one device as a few hundred points that show every spike.

use memtape_core::limits::SERIES_POINTS_MAX;

use axum::extract::{Path, Query, State};
use axum::response::Json;
use memtape_proto::api::{Series, SeriesQuery};

use crate::http::rank_routes::JobPath;
use crate::http::request::{Answer, Api, PathOf, Problem, QueryOf, attempt_of};
use crate::http::route_list::Routes;
use crate::records::{SeriesKey, StepRow};
use crate::state::view::View;

/// Points of an answer, unless another number is asked for.
const POINTS: usize = 1000;

/// How long after the end of an attempt its step records may still come in.
const LATE_STEPS_NS: i64 = 600_000_000_000;

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get("/jobs/{job}/series", "The steps of one device of one rank.", series)
}

async fn series(
    State(api): State<Api>,
    path: PathOf<JobPath>,
    query: QueryOf<SeriesQuery>,
) -> Answer<Series> {
    let (Path(JobPath { job }), Query(query)) = (path?, query?);
    let wanted = query.clone();
    let stored = api.ask(move |view| stored(view, &job, &wanted)).await??;
    let store = api.store.clone();
    let read = tokio::task::spawn_blocking(move || {
        let rows = store.series(stored.key, stored.from_wall_ns, stored.to_wall_ns);
        rows.map(|rows| thin_out(&rows, &query))
    });
    read.await.map_err(Problem::broken)?.map_err(Problem::broken).map(Json)
}

/// Where the store has a series.
struct Stored {
    key: SeriesKey,
    from_wall_ns: i64,
    to_wall_ns: i64,
}

fn stored(view: &View<'_>, job: &str, query: &SeriesQuery) -> Result<Stored, Problem> {
    let attempt = attempt_of(view, job, query.attempt)?;
    let record = &attempt.record;
    let rank =
        attempt.ranks.get(&query.rank).ok_or_else(|| Problem::unknown("rank", query.rank))?;
    let largest = rank.totals.iter().max_by_key(|totals| totals.allocated);
    let device = query.device.or(largest.map(|totals| totals.device)).unwrap_or(0);
    let end_ns = record.ended_wall_ns.map(|ended_ns| ended_ns.saturating_add(LATE_STEPS_NS));
    let now_ns = view.now.wall_ns;
    Ok(Stored {
        key: SeriesKey { serial: record.serial, rank: query.rank, device },
        from_wall_ns: record.first_seen_wall_ns,
        to_wall_ns: end_ns.map_or(now_ns, |end_ns| now_ns.min(end_ns)),
    })
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
