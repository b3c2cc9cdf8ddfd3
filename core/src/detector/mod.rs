//! Tells growth that will not stop from memory that merely moves, while the job runs.
//!
//! Every layer is judged by its level: what lies on the tape step by step ([`Sample`]), and what is
//! read from outside about once a second ([`Reading`]). The lowest level of each step, of blocks of
//! steps of several lengths, is compared with that of the peers: ranks that do the same work at the
//! same steps. With [`Gates::blocks`] tensors are judged by which of their blocks survive
//! (`blocks`).
//!
//! It does not read stacks and does not name code: that is [`crate::diagnosis`].

mod blocks;
mod constants;
mod findings;
mod forecast;
mod groups;
mod levels;
mod machine;
mod series;
mod step_time;
#[cfg(test)]
mod tests;

pub use forecast::Forecast;
pub use machine::{Detector, SETTLE_NS};
pub use series::Layer;

/// What the detector may use and how sure it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Steps that are never judged, from the start of the attempt.
    pub warmup_steps_min: u64,
    /// Warm-up ends when the typical rank made no new high for this many steps.
    pub quiet_steps: u64,
    /// Warm-up ends here at the latest, or a job that leaks from its first step would never be
    /// judged.
    pub warmup_steps_max: u64,
    /// Growth of less than this is never reported, in bytes.
    pub growth_bytes_min: u64,
    /// Nor is growth below this share of the rank's own level, in parts per million.
    pub growth_ppm_min: u64,
    /// The same for the reserved layer, whose segments come in larger pieces, in bytes.
    pub reserved_bytes_min: u64,
    /// The same for the reserved layer, in parts per million.
    pub reserved_ppm_min: u64,
    /// Series (rank and device) beyond this many are counted and not judged.
    pub series_max: usize,
    /// The rules in force: all, except where the worth of one is measured.
    pub rules: Rules,
}

/// Rules that can be left out, one by one, to see what each contributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Blocks that survive are growth.
    pub survivors: bool,
    /// Lines whose lowest totals rise are growth.
    pub swelling: bool,
    /// Lives that lengthen are reported.
    pub lifetimes: bool,
    /// A rank is compared with its peers.
    pub peers: bool,
    /// Peers are ranks of equal role.
    pub roles: bool,
    /// A level must climb beyond what it did before.
    pub past: bool,
    /// Growth that another growth explains is not reported again.
    pub one_cause: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            survivors: true,
            swelling: true,
            lifetimes: true,
            peers: true,
            roles: true,
            past: true,
            one_cause: true,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            warmup_steps_min: 20,
            quiet_steps: 16,
            warmup_steps_max: 256,
            growth_bytes_min: 4 << 20,
            growth_ppm_min: 1_000,
            reserved_bytes_min: 64 << 20,
            reserved_ppm_min: 20_000,
            series_max: 65_536,
            rules: Rules::default(),
        }
    }
}

/// One or more finished steps of one device of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Global rank.
    pub rank: u32,
    /// Device index in the process.
    pub device: u8,
    /// First step of the span.
    pub first_step: u64,
    /// Last step of the span; steps without events share one sample.
    pub last_step: u64,
    /// Lowest allocated bytes during the span.
    pub floor_allocated: u64,
    /// Highest allocated bytes during the span.
    pub peak_allocated: u64,
    /// Allocated bytes at the end of the span.
    pub end_allocated: u64,
    /// Lowest reserved bytes during the span.
    pub floor_reserved: u64,
    /// Highest reserved bytes during the span.
    pub peak_reserved: u64,
    /// Reserved bytes at the end of the span.
    pub end_reserved: u64,
    /// Failed `cudaMalloc` calls since the start.
    pub malloc_failures: u64,
    /// Size of the device in bytes; 0 when unknown.
    pub device_bytes: u64,
    /// Live blocks at the end of the span.
    pub blocks: u64,
}

/// What a layer that is not on the tape held while a step was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Global rank.
    pub rank: u32,
    /// Device index in the process; 0 for memory of the host.
    pub device: u8,
    /// The step.
    pub step: u64,
    /// Which layer: one that is read, not one of those that [`Sample`] holds.
    pub layer: Layer,
    /// How much it held.
    pub bytes: u64,
    /// How much it can hold at most (a cgroup's limit); 0 when unknown. For memory of a device
    /// its size is taken.
    pub limit_bytes: u64,
}

/// Who grows.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    strum::IntoStaticStr,
    strum::EnumString,
    strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Scope {
    /// One rank, or few, and their peers do not.
    OneRank,
    /// Most ranks of one parallel role; the finding names the steepest.
    Role,
    /// Most ranks; the finding names the steepest.
    AllRanks,
}

impl Scope {
    /// The name a user meets.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// What stays the same over the life of one finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct GrowthKey {
    /// Global rank; the steepest when it was opened, where several grow.
    pub rank: u32,
    /// Device index in that process.
    pub device: u8,
    /// Which account grows.
    pub layer: Layer,
    /// Who grows.
    pub scope: Scope,
}

/// Growth that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Growth {
    /// Global rank; the steepest when it was opened, where several grow.
    pub rank: u32,
    /// Device index in that process.
    pub device: u8,
    /// Who grows.
    pub scope: Scope,
    /// Step at which the growth began, dated back along the envelope.
    pub onset_step: u64,
    /// Step at which it was sure.
    pub detected_step: u64,
    /// Newest step that this value rests on.
    pub last_step: u64,
    /// Bytes kept from each step, less the peers' median for [`Scope::OneRank`]; blocks for
    /// [`Layer::Blocks`]; 0 for what does not grow ([`Layer::Spread`], [`Layer::Retries`],
    /// [`Layer::Churn`], [`Layer::Progress`]).
    pub bytes_per_step: u64,
    /// Bytes grown since the onset, on the same terms; for what does not grow the bytes beyond
    /// the peers, the number of the last 64 steps, or of steps that are missing.
    pub grown_bytes: u64,
    /// Which account grows.
    pub layer: Layer,
    /// Steps until the memory is full at this rate; none when its size is unknown.
    pub steps_to_oom: Option<u64>,
    /// The same with how sure it is.
    pub forecast: Option<Forecast>,
    /// Number of other ranks it was compared with.
    pub peers: u32,
    /// Ranks that grow alike, this one included.
    pub ranks: u32,
    /// How often it was over, and grew again. A finding that is opened with some is the one that
    /// was closed before.
    pub returns: u32,
    /// After how many of those it had given back most of what it had grown by.
    pub give_backs: u32,
    /// It matters by itself: a rank grows unlike its peers, the end is near, or it has gone on for
    /// long. Else it is only to be seen.
    #[cfg_attr(feature = "serde", serde(default = "is_sure"))]
    pub is_sure: bool,
}

/// Earlier versions reported growth only when it was certain.
#[cfg(feature = "serde")]
fn is_sure() -> bool {
    true
}

impl Growth {
    /// Is it one rank's own: have its peers nothing like it?
    pub fn is_own(&self) -> bool {
        self.scope == Scope::OneRank && self.peers > 0
    }

    /// What stays the same over the life of this finding.
    pub fn key(&self) -> GrowthKey {
        GrowthKey { rank: self.rank, device: self.device, layer: self.layer, scope: self.scope }
    }
}

/// What the detector has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Growth was found: one incident.
    Opened(Growth),
    /// The same growth, notably larger or nearer to the end.
    Updated(Growth),
    /// It stopped, or gave back most of what it had taken.
    Closed {
        /// Which one.
        key: GrowthKey,
        /// Step at which it counts as over.
        at_step: u64,
    },
}

/// What is known of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum RankState {
    /// Too early to judge.
    #[default]
    Warming,
    /// Judged, and flat.
    Healthy,
    /// Rises, not surely.
    Watching,
    /// A finding is open.
    Growing,
}

impl RankState {
    /// The name a user meets.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A rank as the detector sees it now: its worst device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankView {
    /// The judgement.
    pub state: RankState,
    /// Rise of the floor over the last window, in bytes a step; negative when it falls.
    pub growth_bytes_per_step: i64,
    /// Newest step seen.
    pub last_step: u64,
}
