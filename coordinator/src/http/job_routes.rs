//! `/jobs`: every job by its newest attempt.

use axum::response::Json;
use memtape_core::detector::{GrowthKey, Layer, RankState};
use memtape_core::incident::Tracked;
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
    let growths = of_attempt().map(Tracked::incident).filter(|known| known.failure.is_none());
    let growths: Vec<GrowthKey> = growths.map(|known| known.growth.key()).collect();
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
        state: state(attempt, &watch, &growths).into(),
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

/// The most severe state of its ranks and of the growth and standstills of its open incidents. A
/// rank that is not heard of ranks before healthy ones.
fn state(attempt: &Attempt, watch: &Watch<'_>, open: &[GrowthKey]) -> JobState {
    if attempt.ranks.values().any(Rank::has_died) {
        return JobState::Failed;
    }
    if attempt.has_ended() {
        return JobState::Ended;
    }
    let states: Vec<RankState> =
        attempt.ranks.keys().map(|rank| attempt.detectors.state(*rank).state).collect();
    let is_heard = attempt.ranks.values().any(|rank| watch.is_alive(rank));
    let has_grown = open.iter().any(|growth| growth.layer != Layer::Progress);
    let grows = is_heard && (has_grown || states.contains(&RankState::Growing));
    let silence = attempt.ranks.values().filter_map(|rank| watch.of(rank)).max();
    match silence {
        _ if grows => JobState::Leaking,
        Some(Silence::Disconnected) => JobState::Disconnected,
        Some(Silence::Silent) => JobState::Silent,
        Some(Silence::Behind) => JobState::Behind,
        Some(Silence::Stalled) => JobState::Stalled,
        None if states.contains(&RankState::Watching) => JobState::Watching,
        None if states.contains(&RankState::Healthy) => JobState::Healthy,
        None => JobState::Warming,
    }
}

#[cfg(test)]
mod tests {
    use memtape_core::detector::Scope;
    use memtape_disk::clock::Now;

    use super::*;
    use crate::state::effects::Context;
    use crate::state::jobs::Jobs;
    use crate::state::jobs::attempt::Limits;
    use crate::state::messages::{Hello, RankUp};

    #[test]
    fn a_job_that_stands_still_is_stalled_and_not_leaking() {
        let limits = Limits { ranks_max: 1, ..Limits::default() };
        let (mut jobs, now) = (Jobs::new(limits), Now::default());
        jobs.attach(now, Hello { node: "a".into(), ..Hello::default() });
        let up = RankUp { tape_id: "t".into(), job: "job".into(), ..RankUp::default() };
        jobs.rank_up(&mut Context::new(now), "a", up, None);
        let attempt = jobs.newest("job").unwrap();
        let watch = Watch::new(&jobs, attempt, 0, 1);
        let check = |expected, watch: &Watch<'_>, open: &[(Layer, Scope)]| {
            let key = |&(layer, scope)| GrowthKey { rank: 0, device: 0, layer, scope };
            let open: Vec<GrowthKey> = open.iter().map(key).collect();
            assert_eq!(state(attempt, watch, &open), expected, "{open:?}");
        };
        let (leak, standstill) =
            ((Layer::Allocated, Scope::OneRank), (Layer::Progress, Scope::AllRanks));
        check(JobState::Warming, &watch, &[]);
        check(JobState::Stalled, &Watch::new(&jobs, attempt, 1, 1).of_standstill(), &[standstill]);
        check(JobState::Leaking, &watch, &[standstill, leak]);
        // A rank that is silent has that state.
        check(JobState::Warming, &watch, &[(Layer::Progress, Scope::OneRank)]);
        let unheard = Watch::new(&jobs, attempt, 11_000_000_000, 1);
        check(JobState::Disconnected, &unheard, &[standstill, leak]);
    }
}
