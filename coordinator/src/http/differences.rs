//! `/jobs/{job}/differences`: what sets chosen ranks of a job apart from its other ranks, or a run
//! from another one.
//!
//! The step records of each run are read once, and of each rank only one figure for each account
//! is kept. What counts as a difference is core's decision ([`memtape_core::differences`]).

use std::array;
use std::collections::BTreeMap;
use std::ops::{ControlFlow, RangeInclusive};

use axum::extract::{Path, Query};
use axum::http::StatusCode;
use axum::response::Json;
use memtape_core::account::{Account, Overall, Source, Value, Values};
use memtape_core::census::Census;
use memtape_core::differences::{Groups, Kind, Member, differences};
use memtape_core::hints::Config;
use memtape_core::limits::{AREA_RECORDS_MAX, DIFFERENCES_RANKS_MAX};
use memtape_proto::api::{Differences, DifferencesQuery, Group};

use crate::http::accounts::{self, RunKey};
use crate::http::asking::Asking;
use crate::http::job_routes::count;
use crate::http::rank_routes::JobPath;
use crate::http::request::{Answer, PathOf, Problem, QueryOf, attempt_of};
use crate::http::route_list::Routes;
use crate::state::jobs::attempt::{Attempt, Rank};
use crate::state::visible::Visible;
use crate::work::blocking::Client;
use memtape_store::Store;
use memtape_store::records::{SeriesKey, StepRecord};

/// Memory of a rank beside its censuses: its facts, its figures, and what joins the parts of its
/// series.
const RANK_BYTES: u64 = 4 << 10;

/// Memory of the answer, of the records of a block, and of an index.
const ANSWER_BYTES: u64 = 2 << 20;

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get(
        "/jobs/{job}/differences",
        "What sets chosen ranks apart from the other ranks, or a run from another one.",
        answer,
    )
}

async fn answer(
    asking: Asking,
    path: PathOf<JobPath>,
    query: QueryOf<DifferencesQuery>,
) -> Answer<Differences> {
    let (Path(JobPath { job }), Query(query)) = (path?, query?);
    let wanted = Wanted::of(job, query)?;
    let of = wanted.clone();
    let bytes = asking.ask(move |view| of.bytes(view)).await??;
    asking.reserve(bytes).await?;
    let of = wanted.clone();
    let mut runs = asking.ask(move |view| of.runs(view)).await??;
    for run in &mut runs {
        run.add_readings(&asking).await?;
    }
    let store = asking.api.store.clone();
    let compare = move |client: &Client| -> memtape_store::Result<Differences> {
        for run in &mut runs {
            run.add_records(&store, client)?;
        }
        Ok(wanted.compared(runs))
    };
    asking.work(compare).await?.map_err(Problem::broken).map(Json)
}

/// What a query asks for.
#[derive(Clone, Debug)]
struct Wanted {
    job: String,
    attempt: Option<u32>,
    /// The other run; none where the other ranks are the baseline.
    baseline: Option<(String, Option<u32>)>,
    ranks: RangeInclusive<u32>,
    steps: RangeInclusive<u64>,
}

impl Wanted {
    /// # Errors
    /// A range ends before it begins.
    fn of(job: String, query: DifferencesQuery) -> Result<Self, Problem> {
        let DifferencesQuery { attempt, from, to, baseline_job, baseline_attempt, .. } = query;
        let other = baseline_job.or_else(|| baseline_attempt.map(|_| job.clone()));
        Ok(Self {
            job,
            attempt,
            baseline: other.map(|job| (job, baseline_attempt)),
            ranks: accounts::ranks(query.first_rank, query.last_rank)?,
            steps: accounts::steps(from, to)?,
        })
    }

    /// The attempts to read: the one of the chosen ranks first.
    ///
    /// # Errors
    /// One of them is not known.
    fn attempts<'a>(&self, view: &Visible<'a>) -> Result<Vec<&'a Attempt>, Problem> {
        let mut attempts = vec![attempt_of(view, &self.job, self.attempt)?];
        if let Some((job, attempt)) = &self.baseline {
            attempts.push(attempt_of(view, job, *attempt)?);
        }
        Ok(attempts)
    }

    /// The ranks of an attempt that are read: with another run the chosen ones, else all.
    fn read<'a>(&self, attempt: &'a Attempt) -> impl Iterator<Item = &'a Rank> + Clone + use<'a> {
        let ranks = if self.baseline.is_some() { self.ranks.clone() } else { 0..=u32::MAX };
        attempt.ranks.range(ranks).map(|(_, rank)| rank)
    }

    /// Memory of the answer and of what it is made of.
    fn bytes(&self, view: &Visible<'_>) -> Result<u64, Problem> {
        let of_rank = |rank: &Rank| {
            let censuses = rank.censuses.values().map(Census::bytes).sum::<usize>() as u64;
            RANK_BYTES + 2 * censuses
        };
        let attempts = self.attempts(view)?;
        let ranks = attempts.iter().flat_map(|attempt| self.read(attempt));
        let count = ranks.clone().count();
        if count > DIFFERENCES_RANKS_MAX {
            let line = format!(
                "{count} ranks are too many to compare: at most {DIFFERENCES_RANKS_MAX}, such as a \
                 part of each run with first_rank and last_rank"
            );
            return Err(Problem::bad(&line));
        }
        Ok(ANSWER_BYTES + ranks.map(of_rank).sum::<u64>())
    }

    /// # Errors
    /// A run is not known, or a group has no rank.
    fn runs(&self, view: &Visible<'_>) -> Result<Vec<Run>, Problem> {
        let attempts = self.attempts(view)?;
        let runs = attempts.into_iter().map(|attempt| {
            let ranks = self.read(attempt);
            Run::of(attempt, ranks, self.steps.clone())
        });
        let runs: Vec<Run> = runs.collect();
        let (first, last) = (self.ranks.start(), self.ranks.end());
        for run in &runs {
            if !run.members.iter().any(|member| self.ranks.contains(&member.rank)) {
                let line = format!(
                    "attempt {} of {} has no rank from {first} to {last}",
                    run.key.attempt, run.key.job
                );
                return Err(Problem::new(StatusCode::NOT_FOUND, line));
            }
        }
        if let [run, other] = runs.as_slice()
            && run.key == other.key
        {
            let line = format!(
                "the two runs are the same: attempt {} of {}",
                run.key.attempt, run.key.job
            );
            return Err(Problem::bad(&line));
        }
        if let ([run], None) = (runs.as_slice(), &self.baseline)
            && run.members.iter().all(|member| self.ranks.contains(&member.rank))
        {
            return Err(Problem::bad(
                "all ranks are chosen, so there is nothing to compare them with: choose some of \
                 them with first_rank and last_rank, or another run with baseline_attempt or \
                 baseline_job",
            ));
        }
        Ok(runs)
    }

    fn compared(&self, runs: Vec<Run>) -> Differences {
        let mut runs = runs.into_iter().map(Run::known);
        let Some((group, members)) = runs.next() else { return Differences::default() };
        let (chosen, baseline) = match runs.next() {
            Some(other) => ((group, members), other),
            None => {
                let is_chosen = |member: &Member| self.ranks.contains(&member.rank);
                let (chosen, others): (Vec<_>, Vec<_>) = members.into_iter().partition(is_chosen);
                ((group.clone(), chosen), (group, others))
            }
        };
        let groups = if self.baseline.is_some() { Groups::Runs } else { Groups::Ranks };
        let found = differences(groups, &chosen.1, &baseline.1);
        let group = |(group, members): (Group, Vec<Member>)| {
            let counted = members.iter().flat_map(|of| &of.censuses).map(|census| census.step);
            Group {
                ranks: count(members.len()),
                counted_ranks: count(members.iter().filter(|of| !of.censuses.is_empty()).count()),
                counted_first_step: counted.clone().min(),
                counted_last_step: counted.max(),
                ..group
            }
        };
        Differences {
            chosen: group(chosen),
            baseline: group(baseline),
            differences: found.listed.into_iter().map(Into::into).collect(),
            lines_left_out: found.lines_left_out,
            traits_left_out: found.traits_left_out,
        }
    }
}

/// An attempt, and the facts of the ranks to compare.
struct Run {
    key: RunKey,
    members: Vec<Member>,
    /// The series of each rank: for accounts of devices, and for accounts of the host.
    device_keys: Vec<SeriesKey>,
    host_keys: Vec<SeriesKey>,
    /// The steps that are wanted.
    steps: RangeInclusive<u64>,
    /// Of each account a figure for each rank.
    figures: BTreeMap<Account, Vec<Overall>>,
    compared_steps: Option<(u64, u64)>,
    is_cut: bool,
}

impl Run {
    fn of<'a>(
        attempt: &Attempt,
        ranks: impl Iterator<Item = &'a Rank>,
        steps: RangeInclusive<u64>,
    ) -> Self {
        let mut run = Self {
            key: RunKey::of(attempt),
            members: Vec::new(),
            device_keys: Vec::new(),
            host_keys: Vec::new(),
            steps,
            figures: BTreeMap::new(),
            compared_steps: None,
            is_cut: false,
        };
        for rank in ranks {
            run.members.push(member(rank));
            let key = |account| accounts::series(attempt, rank, None, Some(account));
            run.device_keys.push(key(Account::Allocated));
            run.host_keys.push(key(Account::Host));
        }
        run
    }

    fn add(&mut self, account: Account, rank: usize, of: Value) {
        let first_step = of.first_step.max(*self.steps.start());
        let last_step = of.last_step.min(*self.steps.end());
        let ranks = self.members.len();
        let figures = self.figures.entry(account);
        let figures = figures.or_insert_with(|| vec![Overall::default(); ranks]);
        if let Some(figure) = figures.get_mut(rank).filter(|_| first_step <= last_step) {
            figure.add(Value { first_step, last_step, ..of });
            // Readings are of a moment in a step, records of whole steps.
            if account == Account::Allocated {
                let (first, last) = self.compared_steps.unwrap_or((first_step, last_step));
                self.compared_steps = Some((first.min(first_step), last.max(last_step)));
            }
        }
    }

    /// Adds the accounts that the detector keeps.
    async fn add_readings(&mut self, asking: &Asking) -> Result<(), Problem> {
        for account in Account::all().filter(|account| account.source() == Source::Readings) {
            let keys = if account.is_host() { &self.host_keys } else { &self.device_keys };
            let mut found = Vec::new();
            accounts::read(asking, &self.key, keys, account, &mut |rank, of| {
                found.push((rank, of));
            })
            .await?;
            found.into_iter().for_each(|(rank, of)| self.add(account, rank, of));
        }
        Ok(())
    }

    /// Adds the accounts that are in step records, as long as a client waits for them. Blocks.
    ///
    /// # Errors
    /// The store cannot be read.
    fn add_records(&mut self, store: &Store, client: &Client) -> memtape_store::Result<()> {
        let accounts: Vec<Account> =
            Account::all().filter(|account| account.source() == Source::StepRecords).collect();
        let columns = accounts.iter().map(|account| account.columns());
        let columns = columns.reduce(|one, other| array::from_fn(|at| one[at] || other[at]));
        let new = |account| (account, vec![Values::new(account); self.device_keys.len()]);
        let mut values: Vec<(Account, Vec<Values>)> = accounts.into_iter().map(new).collect();
        let keys = self.device_keys.clone();
        let mut records_left = AREA_RECORDS_MAX;
        store.newest_first(
            &keys,
            &columns.unwrap_or_default(),
            &mut |key, records: &[StepRecord]| {
                if let Ok(rank) = keys.binary_search(&key) {
                    for (account, values) in &mut values {
                        if let Some(values) = values.get_mut(rank) {
                            values.take(records, &mut |of| self.add(*account, rank, of));
                        }
                    }
                }
                records_left = records_left.saturating_sub(records.len() as u64);
                Ok(if records_left == 0 { ControlFlow::Break(()) } else { client.waits() })
            },
        )?;
        self.is_cut = records_left == 0;
        for (account, values) in values {
            for (rank, mut values) in values.into_iter().enumerate() {
                values.end(&mut |of| self.add(account, rank, of));
            }
        }
        Ok(())
    }

    /// The run as a group, and its ranks with their figures.
    fn known(mut self) -> (Group, Vec<Member>) {
        for (account, figures) in &self.figures {
            for (member, figure) in self.members.iter_mut().zip(figures) {
                member.values.extend(figure.value(*account).map(|value| (*account, value)));
            }
        }
        let group = Group {
            job: self.key.job,
            attempt: self.key.attempt,
            first_step: self.compared_steps.map(|(first, _)| first),
            last_step: self.compared_steps.map(|(_, last)| last),
            is_cut: self.is_cut,
            ..Group::default()
        };
        (group, self.members)
    }
}

/// The facts of a rank, without its figures.
fn member(rank: &Rank) -> Member {
    let record = &rank.record;
    let allocator = record.allocator.as_deref().unwrap_or_default();
    // Hints are set in the environment, too.
    let settings = Config::parse(allocator).settings().into_iter();
    let mut traits: Vec<_> = settings.map(|setting| (Kind::Setting, setting)).collect();
    traits.push((Kind::Node, record.node.clone()));
    traits.push((Kind::LocalRank, record.local_rank.to_string()));
    if !record.role.is_empty() {
        traits.push((Kind::Role, record.role.clone()));
    }
    let device_bytes = rank.totals.iter().map(|totals| totals.device_bytes).max();
    if let Some(bytes) = device_bytes.filter(|&bytes| bytes > 0) {
        traits.push((Kind::DeviceSize, bytes.to_string()));
    }
    Member {
        rank: record.rank,
        values: BTreeMap::new(),
        traits,
        censuses: rank.censuses.values().cloned().collect(),
    }
}
