//! Jobs, each by the attempt that stands for it.

use memtape_core::diagnosis::Class;
use memtape_core::tape::layout::Clock;
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use super::cluster::MissingShard;
use super::name::Named;

/// All jobs.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Jobs {
    /// In the order of their names.
    pub jobs: Vec<Job>,
    /// Shards of the cluster whose jobs are not in the list.
    pub missing_shards: Vec<MissingShard>,
}

/// A job by the attempt that stands for it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Job {
    /// Its id: its name, its owner's user id, and in Kubernetes the namespace,
    /// `NAME@UID.NAMESPACE`.
    pub job: String,
    /// Number of the attempt, as the launcher counts.
    pub attempt: u32,
    /// Tells attempts apart that the launcher gave the same number.
    pub attempt_ordinal: u32,
    /// Attempts that are known.
    pub attempts: u32,
    /// Ranks the launcher announced; 0 where it did not.
    pub world_size: u32,
    /// Ranks whose process lives.
    pub ranks_alive: u32,
    /// Ranks that have reported.
    pub ranks: u32,
    /// What the steps of its ranks count; `steps` where some count steps and others turns.
    pub clock: Named<Clock>,
    /// Last finished step of the rank that is furthest behind, of those that count the same.
    pub step_min: u64,
    /// Last finished step of the rank that is furthest ahead.
    pub step_max: u64,
    /// Oldest step at whose end a tape still shows the memory of its rank; 0 where none does.
    pub step_on_tapes: u64,
    /// The most severe state of its ranks and of its open incidents.
    pub state: Named<JobState>,
    /// Class of the most urgent open incident where the state is `incident`; null in another state,
    /// and before a diagnosis.
    pub class: Option<Named<Class>>,
    /// Start of the first rank, in nanoseconds of Unix time.
    pub started_wall_ns: i64,
    /// End of the last rank; null while one runs.
    pub ended_wall_ns: Option<i64>,
    /// When its scheduler ends it, in nanoseconds of Unix time; null where that is not known.
    pub ends_at_wall_ns: Option<i64>,
    /// Number of its last step; null where that is not known.
    pub total_steps: Option<u64>,
    /// Incidents of this attempt that are open.
    pub incidents_open: u32,
    /// Nodes of its ranks.
    pub nodes: Vec<String>,
    /// User id of its owner, as the kernel of its nodes says; null where its agents do not say it.
    pub owner_uid: Option<u32>,
    /// Kubernetes namespace of its owner; empty where there is none, and `~` where it is not known.
    pub namespace: String,
}

impl Job {
    /// Its state in words: of an open incident the class.
    pub fn state_in_words(&self) -> String {
        let class = self.class.as_ref().map(Named::as_str);
        class.unwrap_or(self.state.as_str()).replace('_', " ")
    }
}

/// How a job is doing.
#[derive(Clone, Copy, Debug, Eq, PartialEq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum JobState {
    /// Too few steps are known to judge.
    Warming,
    /// Nothing grows.
    Healthy,
    /// A rise is being watched.
    Watching,
    /// An incident is open that is not about its progress.
    Incident,
    /// A rank has finished no step for long, its peers have.
    Behind,
    /// Ranks have finished no step for long, and none is behind most others.
    Stalled,
    /// An agent reports, but not about one of its ranks.
    Silent,
    /// An agent does not report.
    Disconnected,
    /// All ranks have ended.
    Ended,
    /// A rank has died: by a signal, by the kernel, or with another status than 0.
    Failed,
}

/// One event of `/changes`: what has changed since the event before.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Changes {
    /// True if the events are about all jobs; false if other coordinators own some of them.
    pub is_whole: bool,
    /// True if anything may have changed: of what was before this stream nothing is known.
    pub is_all: bool,
    /// Names of the jobs that came, went or changed: their ranks, incidents or captures.
    pub jobs: Vec<String>,
}
