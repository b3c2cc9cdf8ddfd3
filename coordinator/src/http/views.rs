//! What the API shows, as plain values: made in the loop, written as JSON outside of it.

use serde::Serialize;

use crate::records::{
    Alternative, Bucket, CaptureRecord, Frame, IncidentRecord, PartRecord, Remedy, Restart, Suspect,
};
use crate::state::captures::CaptureState;
use crate::state::incidents::IncidentState;
use crate::state::jobs::{Attempt, Cluster, Node};
use crate::state::messages::{Gpu, Host};
use crate::state::silence::{Silence, Watch};
use memtape_core::capture::Outcome;
use memtape_core::detector::RankState;

pub(crate) mod ranks;

pub(crate) use ranks::{RanksView, ranks};

/// A job by its newest attempt.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct JobView {
    job: String,
    attempt: u32,
    attempt_ordinal: u32,
    attempts: usize,
    world_size: u32,
    ranks_alive: usize,
    ranks: usize,
    step_min: u64,
    step_max: u64,
    state: &'static str,
    started_wall_ns: i64,
    ended_wall_ns: Option<i64>,
    incidents_open: usize,
    nodes: Vec<String>,
}

/// A capture's manifest.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CaptureView {
    id: String,
    job: String,
    attempt: u32,
    reason: String,
    reason_rank: Option<u32>,
    step: u64,
    before_step: u64,
    requested_wall_ns: i64,
    closed_wall_ns: Option<i64>,
    state: &'static str,
    ranks: usize,
    aligned: usize,
    missing: Vec<MissingView>,
    parts: Vec<PartView>,
    /// True when the list left the parts out, because there are too many.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    parts_left_out: bool,
}

#[derive(Clone, Debug, Serialize)]
struct MissingView {
    rank: u32,
    outcome: String,
    detail: String,
}

#[derive(Clone, Debug, Serialize)]
struct PartView {
    rank: u32,
    node: String,
    tape_id: String,
    outcome: String,
    step: u64,
    wall_ns: i64,
    wall_error_ns: u64,
    dead: bool,
    before_step: u64,
    bytes: u64,
    hash: Option<String>,
    detail: String,
}

/// An incident.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct IncidentView {
    id: String,
    job: String,
    attempt: u32,
    rank: u32,
    device: u8,
    scope: String,
    layer: String,
    class: String,
    state: &'static str,
    sentence: String,
    culprit: Option<Frame>,
    stack: Vec<Frame>,
    onset_step: u64,
    detected_step: u64,
    last_step: u64,
    bytes_per_step: u64,
    grown_bytes: u64,
    explained: f64,
    generations: u64,
    steps_to_oom: Option<u64>,
    steps_to_oom_p10: Option<u64>,
    steps_to_oom_p90: Option<u64>,
    seconds_to_oom: Option<u64>,
    peers: u32,
    ranks: u32,
    evidence: Vec<String>,
    against: Vec<String>,
    advice: String,
    confidence: f64,
    pages: bool,
    explained_bytes: u64,
    unexplained_bytes: u64,
    remedy: Remedy,
    restart: Restart,
    alternatives: Vec<Alternative>,
    course: String,
    births: Vec<Bucket>,
    suspects: Vec<Suspect>,
    capture_id: Option<String>,
    stored: bool,
    opened_wall_ns: i64,
    updated_wall_ns: i64,
    closed_wall_ns: Option<i64>,
    closed_why: String,
}

/// A node.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NodeView {
    node: String,
    connected: bool,
    version: String,
    last_report_wall_ns: i64,
    gpus: Vec<Gpu>,
    host: Host,
    nvml_missing: String,
}

/// All jobs.
pub(crate) fn jobs<'a>(
    cluster: &Cluster,
    (now_ns, interval_ns): (u64, u64),
    incidents: impl Iterator<Item = &'a IncidentState> + Clone,
) -> Vec<JobView> {
    let names = cluster.jobs.iter();
    let newest = names.filter_map(|(job, serials)| Some((serials.len(), cluster.newest(job)?)));
    let view = |(attempts, attempt)| {
        let watch = Watch::new(cluster, attempt, now_ns, interval_ns);
        job(attempts, attempt, &watch, incidents.clone())
    };
    newest.map(view).collect()
}

fn job<'a>(
    attempts: usize,
    attempt: &Attempt,
    watch: &Watch<'_>,
    incidents: impl Iterator<Item = &'a IncidentState>,
) -> JobView {
    let record = &attempt.record;
    let is_open = |incident: &&IncidentState| {
        incident.record.serial == record.serial && incident.record.is_open()
    };
    let incidents_open = incidents.filter(is_open).count();
    let steps = || attempt.ranks.values().map(|rank| rank.step);
    let mut nodes: Vec<String> =
        attempt.ranks.values().map(|rank| rank.record.node.clone()).collect();
    nodes.sort();
    nodes.dedup();
    JobView {
        job: record.job.clone(),
        attempt: record.attempt,
        attempt_ordinal: record.ordinal,
        attempts,
        world_size: record.world_size,
        ranks_alive: attempt.ranks_here(),
        ranks: attempt.ranks.len(),
        step_min: steps().min().unwrap_or(0),
        step_max: steps().max().unwrap_or(0),
        state: job_state(attempt, watch, incidents_open),
        started_wall_ns: record.started_wall_ns,
        ended_wall_ns: record.ended_wall_ns,
        incidents_open,
        nodes,
    }
}

/// The worst state of its ranks. One of which nothing new is known comes before those that are
/// well: nobody knows whether all is.
fn job_state(attempt: &Attempt, watch: &Watch<'_>, incidents_open: usize) -> &'static str {
    if attempt.has_ended() {
        return "ended";
    }
    if incidents_open > 0 {
        return "leaking";
    }
    let states: Vec<RankState> =
        attempt.ranks.keys().map(|rank| attempt.detector.state(*rank).state).collect();
    if attempt.ranks_here() > 0 && states.contains(&RankState::Growing) {
        return "leaking";
    }
    let silences: Vec<Silence> = attempt.ranks.values().filter_map(|rank| watch.of(rank)).collect();
    if let Some(worst) = silences.into_iter().max() {
        return worst.as_str();
    }
    if states.contains(&RankState::Watching) {
        "watching"
    } else if states.contains(&RankState::Healthy) {
        "healthy"
    } else {
        "warming"
    }
}

/// A capture; with its parts or without.
pub(crate) fn capture(state: &CaptureState, with_parts: bool) -> CaptureView {
    let CaptureRecord { id, job, attempt, reason, reason_rank, step, before_step, .. } =
        state.record.clone();
    let is_closed = state.record.is_closed();
    let missing = state.parts.iter().filter(|part| is_closed && !part.is_aligned());
    let parts = state.parts.iter().filter(|_| with_parts);
    CaptureView {
        id,
        job,
        attempt,
        reason,
        reason_rank,
        step,
        before_step,
        requested_wall_ns: state.record.requested_wall_ns,
        closed_wall_ns: state.record.closed_wall_ns,
        state: match (is_closed, state.record.complete) {
            (false, _) => "collecting",
            (true, true) => "complete",
            (true, false) => "partial",
        },
        ranks: state.parts.len(),
        aligned: state.aligned(),
        missing: missing
            .map(|part| MissingView {
                rank: part.rank,
                outcome: part.outcome.clone(),
                detail: part.detail.clone(),
            })
            .collect(),
        parts: parts.map(|one| part(one, is_closed)).collect(),
        parts_left_out: !with_parts,
    }
}

/// Of a capture that is not closed, what has not come is awaited, and not missing.
const AWAITED: &str = "awaited";

fn part(part: &PartRecord, is_closed: bool) -> PartView {
    let is_awaited = !is_closed && part.outcome == Outcome::Unreachable.as_str();
    PartView {
        rank: part.rank,
        node: part.node.clone(),
        tape_id: part.tape_id.clone(),
        outcome: if is_awaited { AWAITED.to_string() } else { part.outcome.clone() },
        step: part.step,
        wall_ns: part.wall_ns,
        wall_error_ns: part.wall_error_ns,
        dead: part.dead,
        before_step: part.before_step,
        bytes: part.bytes,
        hash: part.hash.clone(),
        detail: part.detail.clone(),
    }
}

/// An incident.
pub(crate) fn incident(state: &IncidentState) -> IncidentView {
    let record: IncidentRecord = state.record.clone();
    IncidentView {
        state: if record.is_open() { "open" } else { "closed" },
        explained: f64::from(record.explained_ppm) / 1e6,
        stored: state.is_stored,
        id: record.id,
        job: record.job,
        attempt: record.attempt,
        rank: record.rank,
        device: record.device,
        scope: record.scope,
        layer: record.layer,
        class: record.class,
        sentence: record.sentence,
        culprit: record.culprit,
        stack: record.stack,
        onset_step: record.onset_step,
        detected_step: record.detected_step,
        last_step: record.last_step,
        bytes_per_step: record.bytes_per_step,
        grown_bytes: record.grown_bytes,
        generations: record.generations,
        steps_to_oom: record.steps_to_oom,
        steps_to_oom_p10: record.steps_to_oom_p10,
        steps_to_oom_p90: record.steps_to_oom_p90,
        seconds_to_oom: record.seconds_to_oom,
        peers: record.peers,
        ranks: record.ranks,
        evidence: record.evidence,
        against: record.against,
        advice: record.advice,
        confidence: f64::from(record.told.confidence_ppm) / 1e6,
        pages: record.told.pages,
        explained_bytes: record.told.explained_bytes,
        unexplained_bytes: record.told.unexplained_bytes,
        remedy: record.told.remedy,
        restart: record.told.restart,
        alternatives: record.told.alternatives,
        course: record.told.course,
        births: record.told.births,
        suspects: record.suspects,
        capture_id: record.capture_id,
        opened_wall_ns: record.opened_wall_ns,
        updated_wall_ns: record.updated_wall_ns,
        closed_wall_ns: record.closed_wall_ns,
        closed_why: record.closed_why,
    }
}

/// A node.
pub(crate) fn node(name: &str, node: &Node) -> NodeView {
    NodeView {
        node: name.to_string(),
        connected: node.stream.is_some(),
        version: node.version.clone(),
        last_report_wall_ns: node.last_report_wall_ns,
        gpus: node.gpus.clone(),
        host: node.host.clone(),
        nvml_missing: node.host.nvml_missing.clone(),
    }
}
