//! Incidents: growth that was found, its cause, and what to do.

use memtape_core::detector::{Layer, Scope};
pub use memtape_core::diagnosis::{Bucket as AgeBucket, Suspect};
use memtape_core::diagnosis::{Class, Standing};
pub use memtape_core::incident::answers::{Answer, Answers};
pub use memtape_core::incident::{Acknowledged, Deed, ThreadRequest};
use memtape_core::paging::Urgency;
pub use memtape_core::snapshot::Frame;
use memtape_core::tape::layout::Clock;
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use super::cluster::MissingShard;
use super::name::Named;

/// Incidents, newest first.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Incidents {
    /// The newest 1,000.
    pub incidents: Vec<Incident>,
    /// Shards of the cluster whose incidents are not in the list.
    pub missing_shards: Vec<MissingShard>,
}

/// One incident.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Incident {
    /// Its id.
    pub id: String,
    /// Name of the job.
    pub job: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// The rank that grows; where several do, one of them.
    pub rank: u32,
    /// The device; of the host's memory and of steps, one that the rank has.
    pub device: u8,
    /// Whether what grows belongs to that device; else it is of the host, or counts steps.
    pub names_device: bool,
    /// Which ranks grow.
    pub scope: Named<Scope>,
    /// What grows.
    pub layer: Named<Layer>,
    /// What kind of fault it is.
    pub class: Named<Class>,
    /// Whether it is over.
    pub state: Named<IncidentState>,
    /// What happened, in one sentence.
    pub sentence: String,
    /// What is asked first, answered in words with the step of each figure.
    pub answers: Answers,
    /// The line to look at: where the memory was allocated, or what the workers ran most often;
    /// null where none is known.
    pub culprit: Option<Frame>,
    /// The stack of that line, innermost first.
    pub stack: Vec<Frame>,
    /// What all numbers of steps here count.
    pub clock: Named<Clock>,
    /// Where the growth began.
    pub onset_step: u64,
    /// Where it was detected.
    pub detected_step: u64,
    /// The last step that was judged.
    pub last_step: u64,
    /// The step in which the level of a growth of one rank rose last, while it pauses for longer
    /// than ever before; null while it grows.
    pub paused_since_step: Option<u64>,
    /// Growth a step in bytes; 0 in a pause, where the layer is not counted in bytes, and for a
    /// failure.
    pub bytes_per_step: u64,
    /// Growth since the onset in bytes; 0 where the layer is not counted in bytes.
    pub grown_bytes: u64,
    /// Tensors a step, where `layer` is `blocks`; else 0, and 0 in a pause.
    pub count_per_step: u64,
    /// What is counted where it is not bytes: tensors since the onset (`blocks`), steps of the last
    /// 64 (`retries`, `churn`), or steps behind the peers (`progress`); else 0.
    pub grown_count: u64,
    /// Share of the growth that the culprit explains, 0 to 1; 0 for a line of workers.
    pub explained_ratio: f64,
    /// Distinct steps in which the culprit's live blocks were allocated.
    pub allocation_steps: u64,
    /// Steps until the device is full, the median of the forecast; null where it is not.
    pub steps_to_oom: Option<u64>,
    /// The early end of the forecast (10 %).
    pub steps_to_oom_p10: Option<u64>,
    /// The late end of the forecast (90 %).
    pub steps_to_oom_p90: Option<u64>,
    /// The median in seconds.
    pub seconds_to_oom: Option<u64>,
    /// Ranks it was compared with.
    pub peers: u32,
    /// Ranks that grow alike.
    pub ranks: u32,
    /// What supports the class, a sentence each.
    pub evidence: Vec<String>,
    /// What contradicts the class, a sentence each.
    pub against: Vec<String>,
    /// What to try first.
    pub advice: String,
    /// How sure the class is, 0 to 1.
    pub confidence: f64,
    /// How urgent it is: a `notice` is shown, a `ticket` is for the next working day, and a `page`
    /// wakes a person.
    pub urgency: Named<Urgency>,
    /// Part of `grown_bytes` that the diagnosis explains; 0 where no bytes grow.
    pub explained_bytes: u64,
    /// Part of `grown_bytes` that it does not explain.
    pub unexplained_bytes: u64,
    /// What the advice is about.
    pub remedy: Remedy,
    /// What a restart would do.
    pub restart: Restart,
    /// The other classes, the likely ones first.
    pub alternatives: Vec<Alternative>,
    /// How the ages of the culprit's live blocks are distributed, in a word.
    pub age_profile: String,
    /// The same in numbers, oldest first.
    pub age_buckets: Vec<AgeBucket>,
    /// Lines that may be the cause, the likely ones first.
    pub suspects: Vec<Suspect>,
    /// The capture the diagnosis rests on; null before there is one.
    pub capture_id: Option<String>,
    /// The step that this capture shows: the evidence, the suspects and the ages are of that step,
    /// all other figures of `last_step`.
    pub capture_step: Option<u64>,
    /// Whether this state of it is on disk.
    pub stored: bool,
    /// When it was opened, in nanoseconds of Unix time.
    pub opened_wall_ns: i64,
    /// When it last changed, in nanoseconds of Unix time.
    pub updated_wall_ns: i64,
    /// When it was closed, in nanoseconds of Unix time; null while it is open.
    pub closed_wall_ns: Option<i64>,
    /// Why it was closed; empty while it is open.
    pub closed_reason: String,
    /// The incident about the growth or the standstill that ended in this failure, or about the
    /// failure that this growth or standstill ended in; null where there is none.
    pub related_id: Option<String>,
    /// The open incident that reports the same cause; this one is a notice as long as it does. Null
    /// where there is none.
    pub reported_in: Option<String>,
    /// What people did about it.
    pub thread: Thread,
}

/// What people did about an incident.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Thread {
    /// Who has acknowledged it; null while it is not acknowledged.
    pub acknowledged: Option<Acknowledged>,
    /// The last silence, also when it is over; null where there is none.
    pub silence: Option<Silence>,
    /// Name of the person or team that it is assigned to; empty where it is not assigned.
    pub assignee: String,
    /// What was done, oldest first: every note, and the newest of all else. Empty in a list of
    /// incidents.
    pub entries: Vec<ThreadEntry>,
    /// Older entries that are left out.
    pub entries_left_out: u32,
    /// Number of notes, also in a list.
    pub notes_total: u32,
    /// Whether the caller may change it: the role operator of the job lets them.
    pub may_change: bool,
}

/// Something that was done about an incident.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ThreadEntry {
    /// Name of the caller; empty where a silence ended by itself.
    pub who: String,
    /// When, in nanoseconds of Unix time.
    pub wall_ns: i64,
    /// What was done.
    pub deed: Named<Deed>,
    /// Text of a note, of one or more lines, or the name that it was assigned to; else empty.
    pub text: String,
    /// End of a silence that began, in nanoseconds of Unix time; null where it ends at a step.
    pub until_wall_ns: Option<i64>,
    /// The step that ends it once it is judged; null where it ends at a time.
    pub until_step: Option<u64>,
}

/// A silence: while it holds, the incident raises no alert.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Silence {
    /// Whether it holds now. It ends early when the incident becomes more urgent, gets another
    /// class, or reports another incident of its cause.
    pub holds: bool,
    /// Its end, in nanoseconds of Unix time; null where it ends at a step.
    pub until_wall_ns: Option<i64>,
    /// The step that ends it once it is judged; null where it ends at a time.
    pub until_step: Option<u64>,
    /// Name of the caller who silenced the incident.
    pub who: String,
    /// When it began, in nanoseconds of Unix time.
    pub since_wall_ns: i64,
}

/// Whether an incident is over.
#[derive(Clone, Copy, Debug, Eq, PartialEq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum IncidentState {
    /// It goes on.
    Open,
    /// It is over.
    Closed,
}

/// What the advice is about.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Remedy {
    /// The cause it removes.
    pub cause: String,
    /// Whether the cause is not proven.
    pub is_guess: bool,
    /// What it would save; null where unknown.
    pub saves_bytes: Option<u64>,
}

/// What a restart from the last checkpoint would do.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Restart {
    /// Whether it helps; null where unknown.
    pub helps: Option<bool>,
    /// What it frees.
    pub freed_bytes: Option<u64>,
    /// Steps until the same memory is in use again.
    pub lasts_steps: Option<u64>,
    /// Steps after which the job would run out of memory again.
    pub ends_after_steps: Option<u64>,
    /// The reason, in a sentence.
    pub why: String,
}

/// Another class that an incident may be.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Alternative {
    /// The class.
    pub class: Named<Class>,
    /// Whether it may be.
    pub standing: Named<Standing>,
    /// What supports it, a sentence each.
    pub evidence: Vec<String>,
    /// What contradicts it, a sentence each.
    pub against: Vec<String>,
}
