//! Decisions about jobs and nodes.

pub use memtape_core::action::TargetKind;
use serde::{Deserialize, Serialize};

use super::cluster::MissingShard;
use super::name::Named;

/// Decisions, newest first.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Actions {
    /// The newest 1,000.
    pub actions: Vec<Action>,
    /// Shards of the cluster whose actions are not in the list.
    pub missing_shards: Vec<MissingShard>,
}

/// A decision about a job whose memory grows, or about a node whose GPU memory was not given back,
/// and what came of it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Action {
    /// Its id.
    pub id: String,
    /// The incident it is about; empty where it is about a node.
    pub incident_id: String,
    /// Name of the job; empty where it is about a node.
    pub job: String,
    /// The node that is to be kept out; empty where it is about a job.
    pub node: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// How it is carried out.
    pub kind: Named<TargetKind>,
    /// What was decided, such as `restart`, `would restart`, `collect garbage` or `keep node out`.
    pub decision: String,
    /// Whether it only shows what it would do.
    pub dry_run: bool,
    /// The reason, in a sentence.
    pub why: String,
    /// When, in nanoseconds of Unix time.
    pub wall_ns: i64,
    /// What came of it; empty where nothing was to be done.
    pub outcome: String,
    /// What came of the checkpoint before a restart, in a sentence; empty where none was asked for.
    pub checkpoint: String,
    /// Whether it helped, as the job's next attempt shows, or its next steps: `helped`,
    /// `no effect`, `worse` or `unknown`; empty until that is known, and where nothing was asked.
    pub verdict: String,
    /// When that was known, in nanoseconds of Unix time; null before, and of verdicts of older
    /// versions.
    pub verdict_wall_ns: Option<i64>,
    /// What the verdict rests on, in a sentence.
    pub proof: String,
    /// Steps that the next attempt had to make again; none where that is not known.
    pub steps_lost: Option<u64>,
    /// Training that it saved, at most, in seconds: of a restart that helped all until its
    /// checkpoint, of a remedy inside the ranks the time by which the device is full later. None
    /// where that is not known.
    pub saved_seconds: Option<u64>,
}
