//! `/jobs`: every job by its newest attempt.

use axum::response::Json;
use memtape_core::detector::RankState;
use memtape_proto::api::{Job, JobState, Jobs};

use crate::http::asking::Asking;
use crate::http::request::Answer;
use crate::http::route_list::Routes;
use crate::state::jobs::attempt::{Attempt, Rank};
use crate::state::jobs::silence::{Silence, Watch};
use crate::state::visible::Visible;

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get("/jobs", "All jobs, each by its newest attempt.", jobs)
}

async fn jobs(asking: Asking) -> Answer<Jobs> {
    let jobs = asking.ask(|view| view.jobs().map(|attempt| job(view, attempt)).collect());
    Ok(Json(Jobs { jobs: jobs.await? }))
}

fn job(view: &Visible<'_>, attempt: &Attempt) -> Job {
    let record = &attempt.record;
    let of_attempt = || {
        view.incidents().filter(|incident| {
            incident.incident().serial == record.serial && incident.incident().is_open()
        })
    };
    let incidents_open = count(of_attempt().count());
    let grows = of_attempt().any(|known| known.incident().failure().is_none());
    let watch = view.watch(attempt);
    let clock = attempt.clock();
    let of_clock = |rank: &&Rank| rank.clock() == clock;
    let steps = || attempt.ranks.values().filter(of_clock).map(|rank| rank.step);
    let mut nodes: Vec<String> =
        attempt.ranks.values().map(|rank| rank.record.node.clone()).collect();
    nodes.sort();
    nodes.dedup();
    Job {
        job: record.job.clone(),
        attempt: record.attempt,
        attempt_ordinal: record.ordinal,
        attempts: count(view.attempts(&record.job)),
        world_size: record.world_size,
        ranks_alive: count(attempt.ranks_here()),
        ranks: count(attempt.ranks.len()),
        clock: clock.into(),
        step_min: steps().min().unwrap_or(0),
        step_max: steps().max().unwrap_or(0),
        state: state(attempt, &watch, grows).into(),
        started_wall_ns: record.started_wall_ns,
        ended_wall_ns: record.ended_wall_ns,
        incidents_open,
        nodes,
        owner_uid: record.owner.as_ref().map(|owner| owner.uid),
        namespace: record.owner.as_ref().map_or(String::new(), |owner| owner.namespace.clone()),
    }
}

pub(crate) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The most severe state of its ranks. A rank that is not heard of ranks before healthy ones.
fn state(attempt: &Attempt, watch: &Watch<'_>, has_incident: bool) -> JobState {
    if attempt.ranks.values().any(Rank::has_died) {
        return JobState::Failed;
    }
    if attempt.has_ended() {
        return JobState::Ended;
    }
    let states: Vec<RankState> =
        attempt.ranks.keys().map(|rank| attempt.detectors.state(*rank).state).collect();
    let grows = attempt.ranks_here() > 0 && states.contains(&RankState::Growing);
    let silence = attempt.ranks.values().filter_map(|rank| watch.of(rank)).max();
    match silence {
        _ if has_incident || grows => JobState::Leaking,
        Some(Silence::Disconnected) => JobState::Disconnected,
        Some(Silence::Silent) => JobState::Silent,
        Some(Silence::Behind) => JobState::Behind,
        Some(Silence::Stalled) => JobState::Stalled,
        None if states.contains(&RankState::Watching) => JobState::Watching,
        None if states.contains(&RankState::Healthy) => JobState::Healthy,
        None => JobState::Warming,
    }
}
