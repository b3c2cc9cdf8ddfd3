//! `/jobs/{job}/area`: an account of many ranks over many steps, as a grid for a screen.
//!
//! The step records of all ranks are read together, the newest time first, and only the grid of
//! their values is kept ([`Grid`]). Readings are asked of the loop, for a few ranks at a time.

mod grid;
#[cfg(test)]
mod tests;

use std::ops::{ControlFlow, RangeInclusive};

use axum::extract::{Path, Query};
use axum::http::StatusCode;
use axum::response::Json;
use memtape_core::account::{Account, Source, Value, Values};
use memtape_core::limits::{
    AREA_CELLS_MAX, AREA_COLUMNS_MAX, AREA_RECORDS_MAX, AREA_ROWS_MAX, AREA_VALUES_MAX,
};
use memtape_proto::api::{Area, AreaQuery};

use crate::http::accounts::{self, RunKey};
use crate::http::asking::Asking;
use crate::http::rank_routes::JobPath;
use crate::http::request::{Answer, PathOf, Problem, QueryOf, attempt_of};
use crate::http::route_list::Routes;
use crate::state::jobs::attempt::{Attempt, Rank};
use crate::state::visible::Visible;
use crate::work::blocking::Client;
use grid::{COLUMNS_MIN, Grid, Shown};
use memtape_store::Store;
use memtape_store::records::{SeriesKey, StepRecord};

/// Rows and columns of an answer, unless other numbers are asked for.
const ROWS: usize = 128;
const COLUMNS: usize = 512;

/// Memory of a rank beside its values: its key, and the ends of the parts of its series.
const RANK_BYTES: usize = 640;

/// Memory of the largest answer, as a value and as text, of the records of a block, and of an
/// index.
const ANSWER_BYTES: usize = 6 << 20;

/// A grid takes at most this part of the memory for answers.
const GRID_PART: u64 = 8;

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get("/jobs/{job}/area", "An account of many ranks over many steps, as a grid.", area)
}

async fn area(asking: Asking, path: PathOf<JobPath>, query: QueryOf<AreaQuery>) -> Answer<Area> {
    let (Path(JobPath { job }), Query(query)) = (path?, query?);
    let (account, steps) = (query.account, accounts::steps(query.from, query.to)?);
    let (name, of) = (job.clone(), query.clone());
    let ranks = asking.ask(move |view| {
        let attempt = attempt_of(view, &name, of.attempt)?;
        ranks_of(attempt, &of).map(Iterator::count)
    });
    let ranks = ranks.await??;
    let values_max = asking.api.quotas.answers.bytes_max / GRID_PART / size_of::<u64>() as u64;
    let shape = Shape::of(&query, ranks, values_max)?;
    let bytes = Grid::bytes(ranks, shape.columns) + ranks * RANK_BYTES + ANSWER_BYTES;
    asking.reserve(bytes as u64).await?;
    let known = asking.ask(move |view| Known::of(view, &job, &query)).await??;
    let mut picture = Picture {
        grid: Grid::new(account, known.ranks.len(), shape.columns),
        steps,
        known_from_step: None,
        work_left: AREA_RECORDS_MAX,
    };
    if account.source() == Source::Readings {
        let add = &mut |rank, of| picture.add(rank, of);
        accounts::read(&asking, &known.run, &known.keys, account, add).await?;
    }
    let store = asking.api.store.clone();
    let make = move |client: &Client| -> memtape_store::Result<Area> {
        if account.source() == Source::StepRecords {
            picture.read(&store, &known.keys, account, client)?;
        }
        Ok(known.area(account, &picture, shape))
    };
    asking.work(make).await?.map_err(Problem::broken).map(Json)
}

/// The ranks that a query names.
///
/// # Errors
/// None of them is known.
fn ranks_of<'a>(
    attempt: &'a Attempt,
    query: &AreaQuery,
) -> Result<impl Iterator<Item = &'a Rank> + use<'a>, Problem> {
    let wanted = accounts::ranks(query.first_rank, query.last_rank)?;
    let (first, last) = (*wanted.start(), *wanted.end());
    let mut ranks = attempt.ranks.range(wanted).map(|(_, rank)| rank).peekable();
    if ranks.peek().is_none() {
        let known = attempt.ranks.keys();
        let (lowest, highest) = (known.clone().next(), known.clone().next_back());
        let (lowest, highest) = (lowest.unwrap_or(&0), highest.unwrap_or(&0));
        return Err(Problem::new(
            StatusCode::NOT_FOUND,
            format!("there is no rank from {first} to {last}: the ranks are {lowest} to {highest}"),
        ));
    }
    Ok(ranks)
}

/// Rows and columns of an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    ranks_per_row: usize,
    columns: usize,
}

impl Shape {
    /// The shape that is asked for, or the next coarser one within the limits.
    ///
    /// # Errors
    /// A screen has more.
    fn of(query: &AreaQuery, ranks: usize, values_max: u64) -> Result<Self, Problem> {
        let rows = asked("rows", query.rows.unwrap_or(ROWS), 1, AREA_ROWS_MAX)?;
        let columns = query.columns.unwrap_or(COLUMNS);
        let columns = asked("columns", columns, COLUMNS_MIN, AREA_COLUMNS_MAX)?;
        let ranks_per_row = ranks.div_ceil(rows).max(1);
        let rows = ranks.div_ceil(ranks_per_row).max(1);
        let values_max = usize::try_from(values_max).unwrap_or(AREA_VALUES_MAX);
        let of_memory = values_max.min(AREA_VALUES_MAX) / ranks.max(1);
        let columns = columns.min(AREA_CELLS_MAX / rows).min(of_memory).max(COLUMNS_MIN);
        Ok(Self { ranks_per_row, columns })
    }
}

/// A number that is asked for; more than there may be counts as those.
fn asked(name: &str, number: usize, least: usize, most: usize) -> Result<usize, Problem> {
    if number < least {
        let line = format!("{name}={number} is too few: ask for {least} to {most}");
        return Err(Problem::bad(&line));
    }
    Ok(number.min(most))
}

/// What the loop knows of the ranks.
struct Known {
    run: RunKey,
    ranks: Vec<u32>,
    /// The series of each that has the account.
    keys: Vec<SeriesKey>,
    steps_left_out: u64,
    why_unknown: String,
}

impl Known {
    fn of(view: &Visible<'_>, job: &str, query: &AreaQuery) -> Result<Self, Problem> {
        let attempt = attempt_of(view, job, query.attempt)?;
        let mut known = Self {
            run: RunKey::of(attempt),
            ranks: Vec::new(),
            keys: Vec::new(),
            steps_left_out: 0,
            why_unknown: String::new(),
        };
        for rank in ranks_of(attempt, query)? {
            let key = accounts::series(attempt, rank, None, Some(query.account));
            known.ranks.push(key.rank);
            known.keys.push(key);
            known.steps_left_out = known.steps_left_out.saturating_add(rank.record.steps_left_out);
            if known.why_unknown.is_empty() {
                known.why_unknown = accounts::why_unknown(view, rank, query.account);
            }
        }
        Ok(known)
    }

    fn area(self, account: Account, picture: &Picture, shape: Shape) -> Area {
        let Shown { base, scale, first_step, steps_per_column, medians, rows } =
            picture.grid.shown(&self.ranks, shape.ranks_per_row);
        Area {
            job: self.run.job,
            attempt: self.run.attempt,
            account: account.into(),
            unit: account.unit().into(),
            source: account.source().into(),
            base,
            scale,
            first_step,
            steps_per_column,
            medians,
            rows,
            known_from_step: picture.known_from_step,
            unknown: picture.known_from_step.is_none().then_some(self.why_unknown),
            is_cut: picture.work_left == 0,
            steps_left_out: self.steps_left_out,
        }
    }
}

/// The grid, while it is made.
struct Picture {
    grid: Grid,
    /// The steps that are wanted.
    steps: RangeInclusive<u64>,
    /// First step that came, wanted or not.
    known_from_step: Option<u64>,
    /// Records, and columns beyond one of each, that may be added yet.
    work_left: u64,
}

impl Picture {
    fn add(&mut self, rank: usize, of: Value) {
        let known = self.known_from_step.unwrap_or(of.first_step);
        self.known_from_step = Some(known.min(of.first_step));
        let first_step = of.first_step.max(*self.steps.start());
        let last_step = of.last_step.min(*self.steps.end());
        if first_step <= last_step {
            let columns = self.grid.add(rank, Value { first_step, last_step, ..of });
            self.work_left = self.work_left.saturating_sub(columns - 1);
        }
    }

    /// Adds the values of an account in the stored steps of these series, as long as a client waits
    /// for them. Blocks.
    ///
    /// # Errors
    /// The store cannot be read.
    fn read(
        &mut self,
        store: &Store,
        keys: &[SeriesKey],
        account: Account,
        client: &Client,
    ) -> memtape_store::Result<()> {
        let mut values = vec![Values::new(account); keys.len()];
        store.newest_first(keys, &account.columns(), &mut |key, records: &[StepRecord]| {
            if let Ok(rank) = keys.binary_search(&key)
                && let Some(values) = values.get_mut(rank)
            {
                values.take(records, &mut |of| self.add(rank, of));
            }
            self.work_left = self.work_left.saturating_sub(records.len() as u64);
            Ok(if self.work_left == 0 { ControlFlow::Break(()) } else { client.waits() })
        })?;
        for (rank, values) in values.iter_mut().enumerate() {
            values.end(&mut |of| self.add(rank, of));
        }
        Ok(())
    }
}
