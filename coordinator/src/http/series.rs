//! `/jobs/{job}/series`: the steps of one rank as a few hundred points that show every spike: of
//! one device, or of one account.
//!
//! A long job has millions of steps. They are read a block at a time, and of each block only the
//! points remain ([`Points`]), so the memory of an answer depends on its points alone.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use axum::extract::{Path, Query};
use axum::response::Json;
use memtape_core::account::{Account, Source, Value, Values};
use memtape_core::limits::SERIES_POINTS_MAX;
use memtape_proto::api::{AccountColumns, Series, SeriesQuery};

use crate::http::accounts;
use crate::http::asking::Asking;
use crate::http::rank_routes::JobPath;
use crate::http::request::{Answer, PathOf, Problem, QueryOf, attempt_of};
use crate::http::route_list::Routes;
use crate::state::visible::Visible;
use crate::work::blocking::Client;
use memtape_store::records::{SeriesKey, StepRecord};
use memtape_store::{Found, Store};

/// Points of an answer, unless another number is asked for.
const POINTS: usize = 1000;

/// Memory of one point, while it is made and as text.
const POINT_BYTES: u64 = 256;

/// Memory of the records that are read and are no points yet.
const RECORDS_BYTES: u64 = 1 << 20;

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get(
        "/jobs/{job}/series",
        "The steps of one rank: of a device, or of an account.",
        series,
    )
}

async fn series(
    asking: Asking,
    path: PathOf<JobPath>,
    query: QueryOf<SeriesQuery>,
) -> Answer<Series> {
    let (Path(JobPath { job }), Query(query)) = (path?, query?);
    let points = query.points.unwrap_or(POINTS).clamp(1, SERIES_POINTS_MAX);
    let steps = accounts::steps(query.from, query.to)?;
    asking.reserve(points as u64 * POINT_BYTES + RECORDS_BYTES).await?;
    let account = query.account;
    let known = asking.ask(move |view| Known::of(view, &job, &query)).await??;
    let store = asking.api.store.clone();
    let read = move |client: &Client| -> memtape_store::Result<Series> {
        let source = Steps { store, key: known.key, client };
        match account {
            None => source.device(Points::new(points, steps)).map(|made| known.device(made)),
            Some(account) if account.source() == Source::StepRecords => source
                .account(account, Points::new(points, steps))
                .map(|made| known.account(account, made)),
            Some(account) => {
                let mut made = Points::new(points, steps);
                known.readings.iter().for_each(|of| made.add_value(*of));
                Ok(known.account(account, made))
            }
        }
    };
    asking.work(read).await?.map_err(Problem::broken).map(Json)
}

/// What the loop knows of the series.
struct Known {
    key: SeriesKey,
    /// Number of the rank's step records that are not kept.
    steps_left_out: u64,
    /// Of an account that is read from outside.
    readings: Vec<Value>,
    why_unknown: String,
    limit_bytes: Option<u64>,
}

impl Known {
    fn of(view: &Visible<'_>, job: &str, query: &SeriesQuery) -> Result<Self, Problem> {
        let attempt = attempt_of(view, job, query.attempt)?;
        let rank =
            attempt.ranks.get(&query.rank).ok_or_else(|| Problem::unknown("rank", query.rank))?;
        let key = accounts::series(attempt, rank, query.device, query.account);
        let of = query.account;
        Ok(Self {
            key,
            steps_left_out: rank.record.steps_left_out,
            readings: of.map(|of| accounts::readings(attempt, key, of)).unwrap_or_default(),
            why_unknown: of.map(|of| accounts::why_unknown(view, rank, of)).unwrap_or_default(),
            limit_bytes: of.and_then(|of| accounts::limit_bytes(view, rank, key.device, of)),
        })
    }

    fn device(self, made: Points<3>) -> Series {
        let column = |of: fn(&[Range; 3]) -> u64| made.column(of);
        Series {
            steps: made.steps(),
            step_min_bytes: column(|[minimum, ..]| minimum.lowest),
            peak_bytes: column(|[_, peak, _]| peak.highest),
            reserved_bytes: column(|[.., reserved]| reserved.highest),
            steps_left_out: self.steps_left_out,
            account: None,
        }
    }

    fn account(self, account: Account, made: Points<1>) -> Series {
        let columns = AccountColumns {
            name: account.into(),
            unit: account.unit().into(),
            source: account.source().into(),
            lowest: made.column(|[values]| values.lowest),
            highest: made.column(|[values]| values.highest),
            known_from_step: made.known_from_step,
            unknown: made.known_from_step.is_none().then_some(self.why_unknown),
            limit_bytes: self.limit_bytes,
        };
        let (steps, steps_left_out) = (made.steps(), self.steps_left_out);
        Series { steps, steps_left_out, account: Some(columns), ..Series::default() }
    }
}

/// The stored steps of a series, as long as a client waits for them.
struct Steps<'a> {
    store: Store,
    key: SeriesKey,
    client: &'a Client,
}

impl Steps<'_> {
    /// The minimum, the peak and the reserve of the device. Blocks.
    fn device(&self, empty: Points<3>) -> memtape_store::Result<Points<3>> {
        let mut made = empty.clone();
        self.store.series_each(self.key, &mut |found| {
            match found {
                Found::Rows(rows) => rows.iter().for_each(|row| made.add_record(row)),
                Found::Forgotten => made = empty.clone(),
            }
            self.client.waits()
        })?;
        Ok(made)
    }

    /// The values of an account. Blocks.
    fn account(&self, account: Account, empty: Points<1>) -> memtape_store::Result<Points<1>> {
        let (mut values, mut made) = (Values::new(account), empty.clone());
        self.store.series_each(self.key, &mut |found| {
            match found {
                Found::Rows(rows) => values.take(&rows, &mut |value| made.add_value(value)),
                Found::Forgotten => (values, made) = (Values::new(account), empty.clone()),
            }
            self.client.waits()
        })?;
        values.end(&mut |value| made.add_value(value));
        Ok(made)
    }
}

/// Steps as points: all steps with the same quotient by `width` are one point, and `width` doubles
/// where there are too many points. The order of the steps makes no difference, nor does a step
/// that comes twice.
#[derive(Clone, Debug)]
struct Points<const COLUMNS: usize> {
    max: usize,
    wanted: RangeInclusive<u64>,
    width: u64,
    points: BTreeMap<u64, Point<COLUMNS>>,
    /// First step that came, wanted or not.
    known_from_step: Option<u64>,
}

/// Neighbouring steps: the last step, and what each column was in all of them.
#[derive(Clone, Copy, Debug)]
struct Point<const COLUMNS: usize> {
    last_step: u64,
    columns: [Range; COLUMNS],
}

#[derive(Clone, Copy, Debug)]
struct Range {
    lowest: u64,
    highest: u64,
}

impl Points<3> {
    fn add_record(&mut self, row: &StepRecord) {
        let of = [Account::Allocated, Account::Peak, Account::Reserved];
        let values = of.map(|account| account.of(row).unwrap_or(0));
        self.add((row.first_step, row.last_step), values);
    }
}

impl Points<1> {
    fn add_value(&mut self, Value { first_step, last_step, value }: Value) {
        self.add((first_step, last_step), [value]);
    }
}

impl<const COLUMNS: usize> Points<COLUMNS> {
    fn new(max: usize, wanted: RangeInclusive<u64>) -> Self {
        Self { max, wanted, width: 1, points: BTreeMap::new(), known_from_step: None }
    }

    fn add(&mut self, (first_step, last_step): (u64, u64), values: [u64; COLUMNS]) {
        let known = self.known_from_step.unwrap_or(first_step);
        self.known_from_step = Some(known.min(first_step));
        if !accounts::is_wanted(&self.wanted, first_step, last_step) {
            return;
        }
        let columns = values.map(|value| Range { lowest: value, highest: value });
        self.put(Point { last_step, columns });
        // The last doubling leaves two points at most.
        while self.points.len() > self.max && self.width < u64::MAX {
            self.width = self.width.saturating_mul(2);
            std::mem::take(&mut self.points).into_values().for_each(|point| self.put(point));
        }
    }

    fn put(&mut self, point: Point<COLUMNS>) {
        let known = self.points.entry(point.last_step / self.width).or_insert(point);
        known.last_step = known.last_step.max(point.last_step);
        for (known, Range { lowest, highest }) in known.columns.iter_mut().zip(point.columns) {
            known.lowest = known.lowest.min(lowest);
            known.highest = known.highest.max(highest);
        }
    }

    fn steps(&self) -> Vec<u64> {
        self.points.values().map(|point| point.last_step).collect()
    }

    fn column(&self, of: impl Fn(&[Range; COLUMNS]) -> u64) -> Vec<u64> {
        self.points.values().map(|point| of(&point.columns)).collect()
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

    fn shown(made: Points<3>) -> Series {
        let key = SeriesKey::default();
        let (readings, why_unknown) = Default::default();
        Known { key, steps_left_out: 0, readings, why_unknown, limit_bytes: None }.device(made)
    }

    fn check(range: (Option<u64>, Option<u64>), points: usize, expected: [&[u64]; 3]) {
        let mut made = Points::new(points, accounts::steps(range.0, range.1).unwrap());
        for step in 1..=10 {
            made.add_record(&row(step, 100 + step % 3, if step == 4 { 900 } else { 200 }));
        }
        let series = shown(made);
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
        let problem = accounts::steps(Some(5), Some(2)).unwrap_err();
        assert_eq!(problem.line, "from=5 comes after to=2: exchange them");
    }

    #[test]
    fn steps_that_an_agent_makes_up_are_points_too() {
        let mut made = Points::new(1, 0..=u64::MAX);
        for step in [0, u64::MAX, u64::MAX / 2] {
            made.add_record(&row(step, 1, 2));
        }
        assert_eq!(made.steps(), [u64::MAX / 2, u64::MAX]);
    }

    proptest! {
        /// Steps that come in another order, and some twice, make the same points; the lowest and
        /// the highest are among them.
        #[test]
        fn the_order_of_steps_does_not_matter(
            rows in prop::collection::vec((0_u64..100_000, 0_u64..1000, 0_u64..1000), 1..300),
            max in 1_usize..40,
        ) {
            let mut made = [Points::new(max, 0..=u64::MAX), Points::new(max, 0..=u64::MAX)];
            let rows: Vec<StepRecord> = rows.into_iter().map(|(a, b, c)| row(a, b, c)).collect();
            rows.iter().for_each(|row| made[0].add_record(row));
            let others = rows.iter().rev().chain(&rows[..rows.len() / 2]);
            others.for_each(|row| made[1].add_record(row));
            let [series, again] = made.map(shown);
            prop_assert_eq!(&series, &again);
            prop_assert!(series.steps.len() <= max && series.steps.is_sorted());
            let lowest = rows.iter().map(|row| row.floor_allocated).min();
            let highest = rows.iter().map(|row| row.peak_allocated).max();
            prop_assert_eq!(series.step_min_bytes.iter().min().copied(), lowest);
            prop_assert_eq!(series.peak_bytes.iter().max().copied(), highest);
        }

        /// Each account of the records, cut to the steps that are asked for: its lowest and its
        /// highest value are there, and nothing that no record has.
        #[test]
        fn no_spike_of_an_account_is_lost(
            rows in
                prop::collection::vec((0_u64..5000, prop::array::uniform6(0_u64..1000)), 1..200),
            range in (0_u64..5000, 0_u64..5000),
            max in 1_usize..40,
        ) {
            let (from, to) = (range.0.min(range.1), range.0.max(range.1));
            let rows: Vec<StepRecord> = rows.into_iter().map(|(step, [a, b, c, d, e, f])| {
                let row = row(step, a, b);
                StepRecord { peak_reserved: c, end_reserved: d, blocks: e, end_allocated: f, ..row }
            }).collect();
            for (account, of) in [
                (Account::Allocated, (|row| row.floor_allocated) as fn(&StepRecord) -> u64),
                (Account::Peak, |row| row.peak_allocated),
                (Account::Reserved, |row| row.peak_reserved.max(row.end_reserved)),
                (Account::Blocks, |row| row.blocks),
            ] {
                let mut made = Points::new(max, from..=to);
                let mut values = Values::new(account);
                values.take(&rows, &mut |value| made.add_value(value));
                values.end(&mut |_| unreachable!("each record has its value"));
                let known_from_step = rows.iter().map(|row| row.first_step).min();
                prop_assert_eq!(made.known_from_step, known_from_step);
                let wanted = rows.iter().filter(|row| (from..=to).contains(&row.last_step));
                let wanted: Vec<u64> = wanted.map(of).collect();
                let [lowest, highest] = [
                    made.column(|[values]| values.lowest),
                    made.column(|[values]| values.highest),
                ];
                prop_assert_eq!(lowest.iter().min(), wanted.iter().min());
                prop_assert_eq!(highest.iter().max(), wanted.iter().max());
                prop_assert!(lowest.len() <= max && lowest.len() == made.steps().len());
            }
        }
    }
}
