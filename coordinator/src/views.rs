//! What the API shows, as plain values: made in the loop, written as JSON outside of it.

use serde::Serialize;

use crate::captures::CaptureState;
use crate::cluster::{Attempt, Cluster, Node, Presence, Rank};
use crate::incidents::IncidentState;
use crate::model::{CaptureRecord, Frame, IncidentRecord, PartRecord, Suspect};
use crate::wire::{Gpu, Host};
use memtape_core::capture::Outcome;
use memtape_core::detector::RankState;

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

/// All ranks of an attempt.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RanksView {
    job: String,
    attempt: u32,
    ranks: Vec<RankView>,
}

#[derive(Clone, Debug, Serialize)]
struct RankView {
    rank: u32,
    node: String,
    local_rank: u32,
    pid: u32,
    tape_id: String,
    state: &'static str,
    alive: bool,
    step: u64,
    step_wall_ns: i64,
    end: Option<&'static str>,
    end_detail: String,
    devices: Vec<DeviceView>,
    rss_bytes: Option<u64>,
    growth_bytes_per_step: i64,
    lost: u64,
    steps_missed: u64,
    limitations: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
struct DeviceView {
    device: u8,
    uuid: String,
    allocated: u64,
    reserved: u64,
    peak_allocated: u64,
    blocks: u64,
    ooms: u64,
    malloc_failures: u64,
    device_bytes: u64,
    process_bytes: Option<u64>,
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
    incidents: impl Iterator<Item = &'a IncidentState> + Clone,
) -> Vec<JobView> {
    let names = cluster.jobs.iter();
    let newest = names.filter_map(|(job, serials)| Some((serials.len(), cluster.newest(job)?)));
    newest.map(|(attempts, attempt)| job(attempts, attempt, incidents.clone())).collect()
}

fn job<'a>(
    attempts: usize,
    attempt: &Attempt,
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
        state: job_state(attempt, incidents_open),
        started_wall_ns: record.started_wall_ns,
        ended_wall_ns: record.ended_wall_ns,
        incidents_open,
        nodes,
    }
}

/// The worst state of its ranks.
fn job_state(attempt: &Attempt, incidents_open: usize) -> &'static str {
    if attempt.has_ended() {
        return "ended";
    }
    if incidents_open > 0 {
        return "leaking";
    }
    if attempt.ranks_here() == 0 {
        return "unknown";
    }
    let states: Vec<RankState> =
        attempt.ranks.keys().map(|rank| attempt.detector.state(*rank).state).collect();
    if states.contains(&RankState::Growing) {
        "leaking"
    } else if states.contains(&RankState::Watching) {
        "watching"
    } else if states.contains(&RankState::Healthy) {
        "healthy"
    } else {
        "warming"
    }
}

/// The ranks of an attempt.
pub(crate) fn ranks(attempt: &Attempt) -> RanksView {
    let rank_view = |rank: &Rank| {
        let record = &rank.record;
        let view = attempt.detector.state(record.rank);
        let state = match rank.presence {
            Presence::Here => view.state.as_str(),
            Presence::Ended => "ended",
            Presence::Unknown => "unknown",
        };
        RankView {
            rank: record.rank,
            node: record.node.clone(),
            local_rank: record.local_rank,
            pid: record.pid,
            tape_id: record.tape_id.clone(),
            state,
            alive: rank.presence == Presence::Here,
            step: rank.step,
            step_wall_ns: rank.step_wall_ns,
            end: record.end.map(crate::model::End::as_str),
            end_detail: record.end_detail.clone(),
            devices: devices(rank),
            rss_bytes: rank.rss_bytes,
            growth_bytes_per_step: view.growth_bytes_per_step,
            lost: rank.lost,
            steps_missed: rank.steps_missed,
            limitations: record.limitations.clone(),
        }
    };
    RanksView {
        job: attempt.record.job.clone(),
        attempt: attempt.record.attempt,
        ranks: attempt.ranks.values().map(rank_view).collect(),
    }
}

fn devices(rank: &Rank) -> Vec<DeviceView> {
    let device = |totals: &crate::model::Totals| DeviceView {
        device: totals.device,
        uuid: rank.record.device_uuids.get(usize::from(totals.device)).cloned().unwrap_or_default(),
        allocated: totals.allocated,
        reserved: totals.reserved,
        peak_allocated: totals.peak_allocated,
        blocks: totals.blocks,
        ooms: totals.ooms,
        malloc_failures: totals.malloc_failures,
        device_bytes: totals.device_bytes,
        process_bytes: totals.process_bytes,
    };
    rank.totals.iter().map(device).collect()
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
