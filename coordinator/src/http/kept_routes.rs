//! `/captures/{id}/kept`: what was allocated in a range of steps and is alive at the end of the
//! step of a capture, or all that was alive at a peak or a failed request, of one rank beside its
//! peers.
//!
//! Snapshots are read and compared in `work/kept.rs`; this file chooses them.

use axum::extract::{Path, Query};
use axum::http::StatusCode;
use axum::response::Json;
use memtape_core::incident::{Incident, Tracked};
use memtape_core::limits::{PEERS_COMPARED_MAX, STACKS_COMPARED_BYTES_MAX};
use memtape_core::stacks::{AllocationSteps, HeldAt, nearest_peers};
use memtape_proto::api::{Kept, KeptQuery};

use crate::http::asking::Asking;
use crate::http::capture_routes::{hash_of, unreadable};
use crate::http::request::{Answer, IdPath, PathOf, Problem, QueryOf};
use crate::http::route_list::Routes;
use crate::state::jobs::attempt::Attempt;
use crate::state::visible::Visible;
use crate::work::kept::{self, NotKept, Wanted};

/// Memory of an answer: its table of stacks, the answer as a value, and as JSON.
const KEPT_BYTES: u64 = 3 * STACKS_COMPARED_BYTES_MAX;

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get(
        "/captures/{id}/kept",
        "The live memory of one rank that was allocated in a range of steps, beside its peers.",
        kept,
    )
}

async fn kept(asking: Asking, path: PathOf<IdPath>, query: QueryOf<KeptQuery>) -> Answer<Kept> {
    let (Path(IdPath { id }), Query(query)) = (path?, query?);
    let steps = steps_of(&query)?;
    let (capture, asked) = (id.clone(), query.clone());
    let found = asking.ask(move |view| wanted(view, &id, &asked, steps)).await?;
    let (known, wanted) = found?;
    let beside = query.baseline.iter().map(|of| format!(", beside {of}")).collect::<String>();
    let what = format!("{capture}, rank {}{beside}", query.rank);
    asking.audit_read("read kept memory", what).await?;
    asking.reserve(KEPT_BYTES).await?;
    let compared = kept::compare(&asking.api.snapshots, wanted).await.map_err(|why| match why {
        NotKept::Unreadable(why) => unreadable(&why),
        NotKept::Later { last_step } => later(&known, query.to.unwrap_or(last_step), last_step),
        NotKept::NotShown { at } => not_shown(&known, at),
    })?;
    let Kept { capture, job, attempt, clock, baseline, peers_left_out, .. } = known;
    let KeptQuery { rank, from, to, .. } = query;
    let from = from.map(|from| from.max(1));
    let known = Kept { capture, job, attempt, rank, clock, from, to, baseline, ..compared };
    Ok(Json(Kept { peers_left_out, ..known }))
}

/// The steps of a query.
///
/// # Errors
/// The first step is after the last one, or the steps are of another time than the step's end.
fn steps_of(query: &KeptQuery) -> Result<AllocationSteps, Problem> {
    let is_of_end = query.at.is_none_or(|at| at == HeldAt::StepEnd);
    if !is_of_end && query.from.or(query.to).is_some() {
        let line = "from and to choose memory at the end of the step: leave out at, or from and to";
        return Err(Problem::new(StatusCode::BAD_REQUEST, line));
    }
    let (from, to) = (query.from.unwrap_or(1).max(1), query.to.unwrap_or(u64::MAX));
    AllocationSteps::of(from..=to).ok_or_else(|| {
        let line = format!("from={from} is after to={to}: give a first step and a later one");
        Problem::new(StatusCode::BAD_REQUEST, line)
    })
}

/// The problem that a capture does not show the end of this step.
fn later(of: &Kept, to: u64, last_step: u64) -> Problem {
    let (id, job) = (&of.capture, &of.job);
    let line = format!(
        "to={to} is later than step {last_step}, the last that {id} shows of rank {}: give an \
         earlier step, or ask for a capture of step {to} (POST /api/v1/jobs/{job}/captures)",
        of.rank
    );
    Problem::new(StatusCode::BAD_REQUEST, line)
}

/// The time that explains the newest incident of the rank that uses the capture.
fn explaining(view: &Visible<'_>, id: &str, query: &KeptQuery) -> HeldAt {
    let is_whole = query.from.or(query.to).is_none();
    let uses_it = |of: &&Incident| of.capture_id.as_deref() == Some(id);
    let mut of_capture = view.incidents().rev().map(Tracked::incident).filter(uses_it);
    let explained = of_capture.find(|of| of.growth.rank == query.rank).filter(|_| is_whole);
    explained.map_or(HeldAt::StepEnd, |of| HeldAt::of(of.class()))
}

/// The problem that a capture does not show this time of a rank, or of the rank in its baseline.
fn not_shown(of: &Kept, at: HeldAt) -> Problem {
    let why = match at {
        HeldAt::Peak => "has no events of steps",
        HeldAt::FailedRequest => "shows no failed request",
        HeldAt::StepEnd => "shows no memory",
    };
    let beside = of.baseline.iter().map(|baseline| format!(", or {baseline},")).collect::<String>();
    let (id, rank) = (&of.capture, of.rank);
    let line = format!("{id}{beside} {why} of rank {rank}: at=step_end shows the end of its step");
    Problem::new(StatusCode::NOT_FOUND, line)
}

/// What the loop knows of a rank in a capture, and the snapshots to compare: its own, and that of
/// the baseline or else those of the nearest ranks with its role.
///
/// # Errors
/// There is no such capture or rank, or nothing of the rank is stored.
fn wanted(
    view: &Visible<'_>,
    id: &str,
    query: &KeptQuery,
    steps: AllocationSteps,
) -> Result<(Kept, Wanted), Problem> {
    let (rank, hash) = (query.rank, hash_of(view, id, query.rank)?);
    let baseline = query.baseline.as_deref().map(|of| hash_of(view, of, rank)).transpose()?;
    let state = view.capture(id).ok_or_else(|| Problem::unknown("capture", id))?;
    let attempt = view.attempt_of(state.record.serial);
    let role = |rank: u32| attempt.and_then(|attempt| attempt.ranks.get(&rank)?.role);
    let roles: Vec<_> = state.parts.iter().map(|part| (part.rank, role(part.rank))).collect();
    let mut nearest = match baseline {
        Some(_) => Vec::new(),
        None => nearest_peers(rank, &roles),
    };
    let peers_left_out = nearest.len().saturating_sub(PEERS_COMPARED_MAX);
    nearest.truncate(PEERS_COMPARED_MAX);
    let peer = |rank: u32| (rank, hash_of(view, id, rank).map_err(|problem| problem.line));
    let known = Kept {
        capture: id.to_string(),
        job: state.record.job.clone(),
        attempt: state.record.attempt,
        rank,
        clock: attempt.map(Attempt::clock).unwrap_or_default().into(),
        baseline: query.baseline.clone(),
        peers_left_out: u32::try_from(peers_left_out).unwrap_or(u32::MAX),
        ..Kept::default()
    };
    let (at, or_step_end) = match query.at {
        Some(at) => (at, false),
        None => (explaining(view, id, query), true),
    };
    let peers = nearest.into_iter().map(peer).collect();
    Ok((known, Wanted { hash, at, or_step_end, steps, baseline, peers }))
}
