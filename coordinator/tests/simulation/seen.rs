//! What a simulation sees of a coordinator's state.

use memtape_core::action::{ActionKind, Outcome, Verdict};
use memtape_core::capture::{Part, Reason};

use memtape_store::records::{ActionRecord, CaptureRecord, IncidentRecord};

/// A capture as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// Its name.
    pub id: String,
    /// The job.
    pub job: String,
    /// Which attempt, as the coordinator numbers them.
    pub serial: u32,
    /// Why it was taken.
    pub reason: Reason,
    /// T.
    pub step: u64,
    /// When it was asked for, Unix time.
    pub requested_wall_ns: i64,
    /// When it was closed; none while it is in flight.
    pub closed_wall_ns: Option<i64>,
    /// All ranks are aligned.
    pub complete: bool,
    /// One for each rank.
    pub parts: Vec<Part>,
}

/// An incident, as far as a simulation looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incident {
    /// Its name.
    pub id: String,
    /// Which attempt, as the coordinator numbers them.
    pub serial: u32,
    /// Global rank.
    pub rank: u32,
    /// Step at which the growth began.
    pub onset_step: u64,
    /// Unix time.
    pub opened_wall_ns: i64,
    /// None while it is open.
    pub closed_wall_ns: Option<i64>,
    /// Growth of one rank or of all.
    pub scope: String,
    /// What a capture has shown.
    pub class: String,
    /// Why it was closed.
    pub closed_why: String,
    /// It is about a rank that failed, and not about growth.
    pub is_failure: bool,
    /// It is about a job that stands still.
    pub is_standstill: bool,
}

/// A decision, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// Its name.
    pub id: String,
    /// The attempt that is acted on, as the coordinator numbers them; none where nothing was asked.
    pub serial: Option<u32>,
    /// What is done.
    pub kind: ActionKind,
    /// What has come of it; [`Outcome::Nothing`] where it is to do nothing.
    pub outcome: Outcome,
    /// It was asked for, and whether it helped is not known yet.
    pub is_observed: bool,
    /// Whether it helped; none until that is known, and where nothing was asked.
    pub verdict: Option<Verdict>,
    /// The decision in words.
    pub why: String,
}

/// A rank as the coordinator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankSeen {
    /// Which attempt, as the coordinator numbers them.
    pub serial: u32,
    /// Global rank.
    pub rank: u32,
    /// Its tape.
    pub tape_id: String,
    /// Newest finished step.
    pub step: u64,
    /// How it ended; none while it is not known to have.
    pub end: Option<String>,
    /// Steps that its tape had overwritten before they were read.
    pub steps_missed: u64,
}

/// A stored step: its first and last number, and what was allocated at its end.
pub type Step = (u64, u64, u64);

/// What a coordinator holds in memory, to compare with its bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Captures, closed or not.
    pub captures: usize,
    /// Incidents, closed or not.
    pub incidents: usize,
    /// Captures in flight.
    pub in_flight: usize,
    /// Most messages waiting for one agent.
    pub outgoing_max: usize,
    /// Changes that wait for a journal that can be written.
    pub waiting: u64,
    /// Changes given up because more waited than can be kept.
    pub given_up: u64,
}

pub(crate) fn capture(record: &CaptureRecord, parts: &[Part]) -> Capture {
    Capture {
        id: record.id.clone(),
        job: record.job.clone(),
        serial: record.serial,
        reason: record.reason.clone(),
        step: record.step,
        requested_wall_ns: record.requested_wall_ns,
        closed_wall_ns: record.closed_wall_ns,
        complete: record.complete,
        parts: parts.to_vec(),
    }
}

pub(crate) fn action(record: &ActionRecord) -> Action {
    Action {
        id: record.id.clone(),
        serial: record.observation.as_ref().map(|observation| observation.serial),
        kind: record.kind,
        outcome: record.outcome.clone(),
        is_observed: record.is_observed(),
        verdict: record.verdict,
        why: record.why.clone(),
    }
}

pub(crate) fn incident(record: &IncidentRecord) -> Incident {
    Incident {
        id: record.id.clone(),
        serial: record.serial,
        rank: record.growth.rank,
        onset_step: record.growth.onset_step,
        opened_wall_ns: record.opened_wall_ns,
        closed_wall_ns: record.closed.map(|closed| closed.wall_ns),
        scope: record.growth.scope.as_str().to_string(),
        class: record.class().as_str().to_string(),
        closed_why: record.closed.map(|closed| closed.reason.to_string()).unwrap_or_default(),
        is_failure: record.failure.is_some(),
        is_standstill: record.growth.is_standstill(),
    }
}
