//! What could be changed in a job so that it takes less memory, or uses what is free.

use memtape_core::action::Memory;
pub use memtape_core::hints::Hint;
use serde::{Deserialize, Serialize};

/// The hints for a job, by the rank and device that hold most.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

/// What settings did that a start applied.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// The memory of the earlier attempt, with the last of the steps that are compared; null where
    /// nothing is compared.
    pub before: Option<Memory>,
    /// That of the attempt that has the settings, after as many steps.
    pub after: Option<Memory>,
    /// `helped`, `no effect`, `worse` or `unknown`; empty while it is not known.
    pub verdict: String,
    /// What the verdict rests on, or why there is none.
    pub proof: String,
}
