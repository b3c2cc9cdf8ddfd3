//! `/incidents` and `/actions`: what was found, and what was decided about restarts.

use axum::extract::{Path, Query, State};
use axum::response::Json;
use memtape_proto::api::{
    Action, Actions, AgeBucket, Alternative, Frame, Incident, IncidentState, Incidents, Remedy,
    Restart, Suspect,
};

use crate::http::request::{Answer, Api, IdPath, JobQuery, PathOf, Problem, QueryOf};
use crate::http::route_list::Routes;
use crate::records;
use crate::state::incidents;

/// Incidents or actions in one list, the newest.
const LISTED_MAX: usize = 1000;

pub(crate) fn add(routes: Routes) -> Routes {
    routes
        .get("/incidents", "The newest incidents.", list)
        .get("/incidents/{id}", "One incident.", one)
        .get("/actions", "The newest decisions about restarts.", actions)
}

async fn list(State(api): State<Api>, query: QueryOf<JobQuery>) -> Answer<Incidents> {
    let Query(query) = query?;
    let incidents = api.ask(move |view| {
        let newest = view.incidents.iter().rev();
        let of_job = newest.filter(|known| query.has(&known.record.job));
        of_job.take(LISTED_MAX).map(incident).collect()
    });
    Ok(Json(Incidents { incidents: incidents.await? }))
}

async fn one(State(api): State<Api>, path: PathOf<IdPath>) -> Answer<Incident> {
    let Path(IdPath { id }) = path?;
    let found = api.ask(move |view| {
        let known = view.incidents.get(&id).map(incident);
        known.ok_or_else(|| Problem::unknown("incident", id))
    });
    found.await?.map(Json)
}

async fn actions(State(api): State<Api>) -> Answer<Actions> {
    let actions = api.ask(|view| view.actions.iter().rev().take(LISTED_MAX).map(action).collect());
    Ok(Json(Actions { actions: actions.await? }))
}

/// An incident, of its record and nothing else.
fn incident(known: &incidents::IncidentState) -> Incident {
    let record = known.record.clone();
    let ratio = |ppm: u32| f64::from(ppm) / 1e6;
    Incident {
        state: match record.is_open() {
            true => IncidentState::Open.into(),
            false => IncidentState::Closed.into(),
        },
        explained_ratio: ratio(record.explained_ppm),
        stored: known.is_stored,
        id: record.id,
        job: record.job,
        attempt: record.attempt,
        rank: record.rank,
        device: record.device,
        scope: record.scope.as_str().into(),
        layer: record.layer.as_str().into(),
        class: record.class.as_str().into(),
        sentence: record.sentence,
        culprit: record.culprit.map(frame),
        stack: record.stack.into_iter().map(frame).collect(),
        onset_step: record.onset_step,
        detected_step: record.detected_step,
        last_step: record.last_step,
        bytes_per_step: record.bytes_per_step,
        grown_bytes: record.grown_bytes,
        allocation_steps: record.generations,
        steps_to_oom: record.steps_to_oom,
        steps_to_oom_p10: record.steps_to_oom_p10,
        steps_to_oom_p90: record.steps_to_oom_p90,
        seconds_to_oom: record.seconds_to_oom,
        peers: record.peers,
        ranks: record.ranks,
        evidence: record.evidence,
        against: record.against,
        advice: record.advice,
        confidence: ratio(record.told.confidence_ppm),
        pages: record.told.pages,
        explained_bytes: record.told.explained_bytes,
        unexplained_bytes: record.told.unexplained_bytes,
        remedy: Remedy {
            cause: record.told.remedy.cause,
            is_guess: record.told.remedy.is_guess,
            saves_bytes: record.told.remedy.saves_bytes,
        },
        restart: restart(record.told.restart),
        alternatives: record.told.alternatives.into_iter().map(alternative).collect(),
        age_profile: record.told.course,
        age_buckets: record.told.births.into_iter().map(age_bucket).collect(),
        suspects: record.suspects.into_iter().map(suspect).collect(),
        capture_id: record.capture_id,
        opened_wall_ns: record.opened_wall_ns,
        updated_wall_ns: record.updated_wall_ns,
        closed_wall_ns: record.closed_wall_ns,
        closed_reason: record.closed_why,
    }
}

fn frame(frame: records::Frame) -> Frame {
    Frame { file: frame.file, line: frame.line, function: frame.function }
}

fn suspect(suspect: records::Suspect) -> Suspect {
    Suspect {
        frame: frame(suspect.frame),
        stack: suspect.stack.into_iter().map(frame).collect(),
        stacks: suspect.stacks,
        grown_bytes: suspect.grown_bytes,
        peer_bytes: suspect.peer_bytes,
        blocks: suspect.blocks,
        allocation_steps: suspect.generations,
    }
}

fn restart(restart: records::Restart) -> Restart {
    Restart {
        helps: restart.helps,
        freed_bytes: restart.gives_back_bytes,
        lasts_steps: restart.lasts_steps,
        ends_after_steps: restart.ends_after_steps,
        why: restart.why,
    }
}

fn alternative(other: records::Alternative) -> Alternative {
    Alternative {
        class: other.class.as_str().into(),
        standing: other.standing.as_str().into(),
        evidence: other.evidence,
        against: other.against,
    }
}

fn age_bucket(bucket: records::Bucket) -> AgeBucket {
    AgeBucket {
        first_step: bucket.first_step,
        last_step: bucket.last_step,
        bytes: bucket.bytes,
        blocks: bucket.blocks,
    }
}

fn action(record: &records::ActionRecord) -> Action {
    let record = record.clone();
    Action {
        id: record.id,
        incident_id: record.incident_id,
        job: record.job,
        attempt: record.attempt,
        kind: record.kind.as_str().into(),
        decision: record.decision,
        dry_run: record.dry_run,
        why: record.why,
        wall_ns: record.wall_ns,
        outcome: record.outcome,
    }
}
