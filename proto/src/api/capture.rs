//! Captures: snapshots of all ranks of a job at the end of one step.

pub use memtape_core::capture::{Outcome, Part};
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use super::cluster::MissingShard;
use super::name::Named;

/// The body of a request for a capture. An empty body is the newest step.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CaptureRequest {
    /// The step at whose end the ranks are shown; without one the newest that all have finished.
    pub step: Option<u64>,
}

/// A capture was requested and is being collected.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RequestedCapture {
    /// Id of the capture.
    pub id: String,
}

/// Captures, newest first.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Captures {
    /// The newest 200.
    pub captures: Vec<Capture>,
    /// Shards of the cluster whose captures are not in the list.
    pub missing_shards: Vec<MissingShard>,
}

/// The manifest of a capture.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Capture {
    /// Its id.
    pub id: String,
    /// Name of the job.
    pub job: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// What caused it, such as `growth` or `manual`.
    pub trigger: String,
    /// The rank that caused it; null where none did.
    pub trigger_rank: Option<u32>,
    /// The step at whose end the ranks are shown.
    pub step: u64,
    /// The earlier step it is compared with; 0 for none.
    pub before_step: u64,
    /// When it was requested, in nanoseconds of Unix time.
    pub requested_wall_ns: i64,
    /// When it was closed; null while it is collected.
    pub closed_wall_ns: Option<i64>,
    /// How far it is.
    pub state: Named<CaptureState>,
    /// Ranks it asks.
    pub ranks: u32,
    /// Ranks whose snapshot is of exactly this step.
    pub aligned: u32,
    /// Which ranks it shows, and at which step, such as `4 of 4 ranks at the end of step 378`.
    pub shown: String,
    /// Of a closed capture, the ranks that are not aligned; empty where the parts were left out.
    pub missing: Vec<Missing>,
    /// One for each rank; empty in a list that has too many of them.
    pub parts: Vec<Part>,
    /// Whether the parts were left out.
    pub parts_left_out: bool,
}

/// How far a capture is.
#[derive(Clone, Copy, Debug, Eq, PartialEq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum CaptureState {
    /// Ranks may still answer.
    Collecting,
    /// Closed with all ranks aligned.
    Complete,
    /// Closed without some ranks.
    Partial,
}

/// A rank that is not aligned.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Missing {
    /// The rank.
    pub rank: u32,
    /// What became of it.
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "memtape_core::tape::schema::words::<Outcome>")
    )]
    pub outcome: Outcome,
    /// More about it.
    pub detail: String,
}
