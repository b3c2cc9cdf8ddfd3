//! What could be changed in a job so that it takes less memory, or uses what is free.

use memtape_core::hints::{self, Bound, Subject, Suggestions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::name::Named;

/// The hints for a job, by the rank and device that hold most.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct Hints {
    /// Name of the job.
    pub job: String,
    /// Number of the attempt that shows it: the newest one with a step, or the newest one.
    pub attempt: u32,
    /// Tells attempts apart that the launcher gave the same number.
    pub attempt_ordinal: u32,
    /// The rank whose allocator holds most; none where no rank has reported any memory.
    pub rank: Option<u32>,
    /// Its device.
    pub device: Option<u8>,
    /// Most bytes that the allocator held there.
    pub reserved_bytes: u64,
    /// Most bytes in tensors there.
    pub peak_bytes: u64,
    /// Size of the device; null where it is not known.
    pub device_bytes: Option<u64>,
    /// The settings of its allocator, as its environment has them; null where they were not
    /// recorded.
    pub allocator_settings: Option<String>,
    /// The hints, those that save most first. Two may be about the same bytes: what they save does
    /// not add up.
    pub hints: Vec<Hint>,
    /// Evidence that is missing, in a sentence each.
    pub missing: Vec<String>,
    /// The settings that `memtape run --apply-hints` sets at the next start; empty for none.
    pub settings: String,
    /// What the settings did that a start applied last; null where none did.
    pub applied: Option<AppliedHints>,
}

/// One hint.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct Hint {
    /// What it is about.
    pub subject: Named<Subject>,
    /// What to change, in a sentence.
    pub change: String,
    /// The setting that `memtape run --apply-hints` sets; empty where the program must be changed.
    pub setting: String,
    /// Bytes that it would save on the rank; 0 where it uses memory that is free.
    pub saves_bytes: u64,
    /// Whether it saves at most, or about, so much.
    pub bound: Named<Bound>,
    /// How the bytes were computed.
    pub computed: String,
    /// What it rests on, in a phrase each.
    pub evidence: Vec<String>,
    /// What else it does.
    pub side_effect: String,
}

/// What settings did that a start applied.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct AppliedHints {
    /// Number of the attempt that has them.
    pub attempt: u32,
    /// Tells attempts apart that the launcher gave the same number.
    pub attempt_ordinal: u32,
    /// The settings.
    pub settings: String,
    /// Those of them that the compared attempt did not have: the verdict is about these.
    pub judged: String,
    /// Number of the attempt that it is compared with; null where there is none.
    pub compared_with: Option<u32>,
    /// Tells that one apart, as above.
    pub compared_with_ordinal: Option<u32>,
    /// Rank that is compared; null where there is none.
    pub rank: Option<u32>,
    /// Its device.
    pub device: Option<u8>,
    /// The steps of the earlier attempt; null where nothing is compared.
    pub before: Option<AttemptMemory>,
    /// As many steps of the attempt that has the settings.
    pub after: Option<AttemptMemory>,
    /// `helped`, `no effect`, `worse` or `unknown`; empty while it is not known.
    pub verdict: String,
    /// What the verdict rests on, or why there is none.
    pub proof: String,
}

/// The first steps of a device of a rank in an attempt.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct AttemptMemory {
    /// The last of these steps.
    pub step: u64,
    /// Its per-step minimum of bytes in tensors.
    pub step_min_bytes: u64,
    /// Highest bytes in tensors.
    pub peak_bytes: u64,
    /// Highest bytes that the allocator held.
    pub reserved_bytes: u64,
    /// Failed `cudaMalloc`s.
    pub retries: u64,
}

impl Hints {
    /// Adds what is suggested.
    pub fn add(&mut self, suggested: &Suggestions) {
        self.hints.extend(suggested.hints.iter().map(Hint::from));
        self.missing.extend(suggested.missing.iter().map(|of| of.text().to_string()));
    }
}

impl From<&hints::Hint> for Hint {
    fn from(hint: &hints::Hint) -> Self {
        Self {
            subject: hint.change.subject().into(),
            change: hint.change.to_string(),
            setting: hint.change.setting().map(|of| of.to_string()).unwrap_or_default(),
            saves_bytes: hint.saves_bytes,
            bound: hint.bound.into(),
            computed: hint.computed.clone(),
            evidence: hint.evidence.iter().map(ToString::to_string).collect(),
            side_effect: hint.change.side_effect().to_string(),
        }
    }
}

impl From<&hints::proof::Window> for AttemptMemory {
    fn from(window: &hints::proof::Window) -> Self {
        Self {
            step: window.memory.step,
            step_min_bytes: window.memory.min_bytes,
            peak_bytes: window.memory.peak_bytes,
            reserved_bytes: window.memory.reserved_bytes,
            retries: window.memory.retries,
        }
    }
}
