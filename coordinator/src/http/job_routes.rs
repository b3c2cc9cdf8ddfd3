//! `/jobs`: every job by the attempt that stands for it.

use axum::response::Json;
use memtape_core::detector::{Layer, RankState};
use memtape_core::diagnosis::Class;
use memtape_core::identity::planned_end::PlannedEnd;
use memtape_core::incident::Incident;
use memtape_proto::api::{Job, JobState, Jobs};

use crate::http::asking::Asking;
use crate::http::request::Answer;
use crate::http::route_list::Routes;
use crate::state::jobs::attempt::{Attempt, Rank};
use crate::state::jobs::silence::{Silence, Watch};
use crate::state::visible::Visible;

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get("/jobs", "All jobs, each by the attempt that stands for it.", jobs)
}

pub(super) async fn jobs(asking: Asking) -> Answer<Jobs> {
    let jobs = asking.ask(|view| view.jobs().map(|attempt| job(view, attempt)).collect());
    Ok(Json(Jobs { jobs: jobs.await?, ..Jobs::default() }))
}

fn job(view: &Visible<'_>, attempt: &Attempt) -> Job {
    let record = &attempt.record;
    let incidents_open = count(view.open_of(attempt).count());
    // Of equals the oldest.
    let worst = view.open_of(attempt).rev().max_by_key(|of| of.urgency);
    let state = state(attempt, &view.watch(attempt), worst.map(|of| of.growth.layer));
    let class = worst.map(Incident::class).filter(|class| *class != Class::Unknown);
    let class = class.filter(|_| state == JobState::Incident);
    let clock = attempt.clock();
    let of_clock = |rank: &&Rank| rank.clock() == clock;
    let steps = || attempt.ranks.values().filter(of_clock).map(|rank| rank.step);
    let mut nodes: Vec<String> =
        attempt.ranks.values().map(|rank| rank.record.node.clone()).collect();
    nodes.sort();
    nodes.dedup();
    let mut plans = attempt.ranks.values().map(|rank| rank.record.planned_end);
    let planned = plans.find(|plan| *plan != PlannedEnd::default()).unwrap_or_default();
    Job {
        job: record.job.clone(),
        attempt: record.attempt,
        attempt_ordinal: record.ordinal,
        attempts: count(view.attempts_at(&record.job).len()),
        world_size: record.world_size,
        ranks_alive: count(attempt.ranks_here()),
        ranks: count(attempt.ranks.len()),
        clock: clock.into(),
        step_min: steps().min().unwrap_or(0),
        step_max: steps().max().unwrap_or(0),
        step_on_tapes: attempt.captures.oldest_step(),
        state: state.into(),
        class: class.map(Into::into),
        started_wall_ns: record.started_wall_ns,
        ended_wall_ns: record.ended_wall_ns,
        ends_at_wall_ns: planned.ends_at_wall_ns,
        total_steps: planned.total_steps,
        incidents_open,
        nodes,
        owner_uid: Some(record.owner.uid),
        namespace: record.owner.namespace.to_string(),
    }
}

pub(crate) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The most severe state of its ranks and of its most urgent open incident. Incidents about
/// progress have the state of their ranks.
fn state(attempt: &Attempt, watch: &Watch<'_>, worst: Option<Layer>) -> JobState {
    if attempt.ranks.values().any(Rank::has_died) {
        return JobState::Failed;
    }
    if attempt.has_ended() {
        return JobState::Ended;
    }
    let is_heard = attempt.ranks.values().any(|rank| watch.is_alive(rank));
    let silence = attempt.ranks.values().filter_map(|rank| watch.of(rank)).max();
    let has = |wanted: &[RankState]| {
        attempt.ranks.keys().any(|rank| wanted.contains(&attempt.detectors.state(*rank).state))
    };
    match silence {
        _ if is_heard && worst.is_some_and(|layer| layer != Layer::Progress) => JobState::Incident,
        Some(Silence::Disconnected) => JobState::Disconnected,
        Some(Silence::Silent) => JobState::Silent,
        Some(Silence::Behind) => JobState::Behind,
        Some(Silence::Stalled) => JobState::Stalled,
        None if has(&[RankState::Watching, RankState::Growing]) => JobState::Watching,
        None if has(&[RankState::Healthy]) => JobState::Healthy,
        None => JobState::Warming,
    }
}

#[cfg(test)]
mod tests {
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
        let attempt = jobs.current("job@0").unwrap();
        let watch = Watch::new(&jobs, attempt, 0, 1);
        let check = |expected, watch: &Watch<'_>, worst: Option<Layer>| {
            assert_eq!(state(attempt, watch, worst), expected, "{worst:?}");
        };
        let (leak, standstill) = (Some(Layer::Allocated), Some(Layer::Progress));
        check(JobState::Warming, &watch, None);
        check(JobState::Incident, &watch, leak);
        // What is about progress has the state of its ranks.
        check(JobState::Warming, &watch, standstill);
        let known = Watch::new(&jobs, attempt, 1, 1).standing_for(Some(2));
        check(JobState::Stalled, &known, standstill);
        let unheard = Watch::new(&jobs, attempt, 11_000_000_000, 1);
        check(JobState::Disconnected, &unheard, leak);
    }
}
