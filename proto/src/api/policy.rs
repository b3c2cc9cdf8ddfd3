//! What the policy would do about a job.

use serde::{Deserialize, Serialize};

/// What would be done about a job now, and why.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ExplainedPolicy {
    /// Name of the job.
    pub job: String,
    /// Its open incidents; without one nothing is done.
    pub incidents: Vec<ExplainedIncident>,
    /// Open incidents that are not among them, because there are too many.
    pub left_out: u64,
}

/// What would be done about one incident.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ExplainedIncident {
    /// The incident.
    pub incident_id: String,
    /// Its class.
    pub class: String,
    /// Line of the rule in the policy file that decides; none where its defaults do.
    pub rule_line: Option<u32>,
    /// How far the policy may go: `off`, `dry-run` or `act`.
    pub mode: String,
    /// What would be decided now, in a sentence.
    pub decision: String,
    /// The remedies in the order in which they are tried.
    pub remedies: Vec<ExplainedRemedy>,
}

/// A remedy, and what speaks against it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ExplainedRemedy {
    /// `gc`, `empty-cache` or `restart`.
    pub remedy: String,
    /// What speaks against it, in a sentence; empty where nothing does.
    pub objection: String,
}

/// A restart is approved, for an hour.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Approved {
    /// The incident.
    pub incident_id: String,
    /// Whether a restart because of it waits for an approval at all.
    pub is_needed: bool,
}
