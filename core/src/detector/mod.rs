//! The detector: distinguishes growth that will not stop from memory that varies, while a job runs.
//!
//! Tensors are judged by which of their blocks survive (`blocks`), where an agent sends censuses.
//! All other layers are judged by their level (`levels`): from the tape step by step ([`Sample`]),
//! or from outside about once a second ([`Reading`]). Each rank is compared with its peers: the
//! ranks that do the same work at the same steps.
//!
//! The detector reads no stacks and names no code: that is [`crate::diagnosis`].

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

use crate::tape::StepRecord;

pub(crate) use constants::SPREAD_NEWS_DIVISOR;
pub use forecast::Forecast;
pub(crate) use levels::still::block_peak;
pub(crate) use levels::trace::{
    StepTrend, has_idle_risen, trace_points_min, trend_of_floors, trend_of_idle, trend_of_peaks,
};
pub use levels::windows::RATE_STEPS;
pub use machine::{Detector, SETTLE_NS};
pub use series::Layer;

/// A step record of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Global rank.
    pub rank: u32,
    /// Device index in the process.
    pub device: u8,
    /// Size of the device in bytes; 0 when unknown.
    pub device_bytes: u64,
    /// What the device did.
    pub record: StepRecord,
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
    /// The layer: one that is read from outside, none that [`Sample`] holds.
    pub layer: Layer,
    /// Bytes that the layer held.
    pub bytes: u64,
    /// What the layer can hold at most. Not used for memory of a device: its size is the limit.
    pub limit: Limit,
}

/// What memory of the host can hold at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Bytes; 0 when unknown.
    pub bytes: u64,
    /// Number of what has the limit (a cgroup, a node): ranks with equal numbers share the bytes.
    pub of: u64,
}

/// What steps need beyond the floor that is there between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepNeed {
    /// Highest use less the floor at the earlier step, or just before the growth began, in bytes.
    pub before: u64,
    /// The same at the step of the snapshots.
    pub now: u64,
}

crate::tape::names! {
    /// The ranks that grow.
    pub enum Scope in "snake_case" {
        /// One rank, or a few, while their peers do not grow.
        OneRank,
        /// Most ranks of one parallel role; the finding names the steepest.
        Role,
        /// Most ranks; the finding names the steepest.
        AllRanks,
    }
}

/// Identity of a finding: constant while the finding is open.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize, serde::Serialize,
)]
pub struct GrowthKey {
    /// Global rank; the steepest when it was opened, where several grow.
    pub rank: u32,
    /// Device index in that process.
    pub device: u8,
    /// The layer that grows.
    pub layer: Layer,
    /// The ranks that grow.
    pub scope: Scope,
}

impl GrowthKey {
    /// Do both keys name the same finding? The rank of a finding about all ranks is an example:
    /// after a restart of the coordinator, it may be another one.
    pub(crate) fn names(&self, other: &Self) -> bool {
        let is_rank = (self.rank, self.device) == (other.rank, other.device);
        (self.layer, self.scope) == (other.layer, other.scope)
            && (is_rank || self.scope == Scope::AllRanks)
    }
}

/// Growth that the detector found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Growth {
    /// Global rank; the steepest when it was opened, where several grow.
    pub rank: u32,
    /// Device index in that process.
    pub device: u8,
    /// The ranks that grow.
    pub scope: Scope,
    /// Step at which the growth began, dated back along the envelope.
    pub onset_step: u64,
    /// Step at which the growth was found.
    pub detected_step: u64,
    /// Newest step that these figures include.
    pub last_step: u64,
    /// Bytes kept from each step, less the peers' median for [`Scope::OneRank`]; blocks for
    /// [`Layer::Blocks`]; 0 for what does not grow ([`Layer::Spread`], [`Layer::Retries`],
    /// [`Layer::Churn`], [`Layer::Progress`]).
    pub bytes_per_step: u64,
    /// Bytes grown since the onset, less the peers' like `bytes_per_step`: measured at the newest
    /// census or block of steps. For layers that do not grow: bytes beyond the peers, number of the
    /// last 64 steps, or number of missing steps.
    pub grown_bytes: u64,
    /// What the rank holds of the layer at the newest of these figures, in bytes; none where blocks
    /// are counted.
    #[serde(default)]
    pub level_bytes: Option<u64>,
    /// The layer that grows.
    pub layer: Layer,
    /// Steps until nothing is left of the memory in which it grows, by all that grows there; none
    /// when the memory's size is unknown.
    pub steps_to_oom: Option<u64>,
    /// Forecast of those steps, with its uncertainty.
    pub forecast: Option<Forecast>,
    /// Number of other ranks that the rank was compared with.
    pub peers: u32,
    /// Number of ranks that grow alike, this one included.
    pub ranks: u32,
    /// Number of times the growth stopped and began again. A finding that opens with more than 0
    /// continues the one that was closed before.
    pub returns: u32,
    /// Number of those stops at which the growth had given back most of its bytes.
    pub give_backs: u32,
    /// Certain growth, which pages: it has used up a large part of the memory that was left, or has
    /// gone on evenly for long. Else the growth is a notice.
    #[serde(default = "is_sure")]
    pub is_sure: bool,
    /// Step in which the level rose last, while it pauses for twice as long as it ever did; none
    /// while it grows. Known of the newest figures only, and not stored.
    #[serde(skip)]
    pub paused_since_step: Option<u64>,
}

impl Default for Growth {
    /// Certain growth of the tensors of rank 0, without steps and amounts.
    fn default() -> Self {
        Self {
            rank: 0,
            device: 0,
            scope: Scope::OneRank,
            onset_step: 0,
            detected_step: 0,
            last_step: 0,
            bytes_per_step: 0,
            grown_bytes: 0,
            level_bytes: None,
            layer: Layer::Allocated,
            steps_to_oom: None,
            forecast: None,
            peers: 0,
            ranks: 1,
            returns: 0,
            give_backs: 0,
            is_sure: true,
            paused_since_step: None,
        }
    }
}

/// Earlier versions reported growth only when it was certain.
fn is_sure() -> bool {
    true
}

impl Growth {
    /// Returns a finding about a condition of one or more ranks that does not grow, from the first
    /// to the last of these steps. `amount` is what [`Self::grown_bytes`] says of its layer.
    pub(crate) fn still(key: &GrowthKey, steps: (u64, u64), amount: u64, peers: u32) -> Self {
        Self {
            rank: key.rank,
            device: key.device,
            scope: key.scope,
            onset_step: steps.0,
            detected_step: steps.1,
            last_step: steps.1,
            grown_bytes: amount,
            layer: key.layer,
            peers,
            ..Self::default()
        }
    }

    /// These figures, with what has grown since the onset of the same growth as it was `known`:
    /// readings of the host are not stored, so a new coordinator finds the growth again and later.
    /// Levels of two ranks cannot be compared: what another rank has grown since then is added.
    pub fn continuing(self, known: &Self) -> Self {
        let is_later = self.key().names(&known.key()) && self.onset_step > known.onset_step;
        let is_added = is_later
            && self.rank != known.rank
            && self.returns == 0
            && self.onset_step > known.last_step;
        let added = is_added.then(|| known.grown_bytes.saturating_add(self.grown_bytes));
        let levels = self.level_bytes.zip(known.level_bytes).filter(|_| is_later);
        let first_bytes = |level: u64| level.saturating_sub(known.grown_bytes);
        let since_first = levels.map(|(now, level)| now.saturating_sub(first_bytes(level)));
        let grown_bytes = added.or(since_first).unwrap_or(self.grown_bytes);
        Self { onset_step: known.onset_step, grown_bytes, ..self }
    }

    /// The growth at a later step at which the rank holds this many bytes of the layer; none where
    /// the level of these figures is not known.
    pub fn at_level(self, step: u64, level_bytes: u64) -> Option<Self> {
        let first_bytes = self.level_bytes?.saturating_sub(self.grown_bytes);
        let grown_bytes = level_bytes.saturating_sub(first_bytes);
        let last_step = step.max(self.last_step);
        let level_bytes = Some(level_bytes);
        Some(Self { last_step, grown_bytes, level_bytes, ..self.forecast_from(step) })
    }

    /// The growth with its forecast as it is from a later step on.
    fn forecast_from(self, step: u64) -> Self {
        let passed = step.saturating_sub(self.last_step);
        let left = |steps: u64| steps.saturating_sub(passed);
        let forecast = self.forecast.map(|Forecast { p10, p50, p90 }| Forecast {
            p10: left(p10),
            p50: left(p50),
            p90: left(p90),
        });
        Self { steps_to_oom: self.steps_to_oom.map(left), forecast, ..self }
    }

    /// What it grows by in a step now.
    fn present_rate(&self) -> u64 {
        if self.paused_since_step.is_some() { 0 } else { self.bytes_per_step }
    }

    /// The bytes of a step now and those since the onset; none where no bytes grow.
    pub fn bytes(&self) -> Option<(u64, u64)> {
        self.layer.is_bytes().then_some((self.present_rate(), self.grown_bytes))
    }

    /// The count of a step now and that since the onset; none where bytes grow.
    pub fn count(&self) -> Option<(u64, u64)> {
        (!self.layer.is_bytes()).then_some((self.present_rate(), self.grown_bytes))
    }

    /// Is the growth one rank's own: do its peers not grow alike?
    pub fn is_own(&self) -> bool {
        self.scope == Scope::OneRank && self.peers > 0
    }

    /// Does this growth have about the rate and the onset of a `known` one of the same layer?
    fn is_alike(&self, known: &Self) -> bool {
        let [own, other] = [self, known].map(|growth| growth.bytes_per_step);
        let is_rate = own <= other.saturating_mul(2) && other <= own.saturating_mul(2);
        // A recurring condition has no onset: only the last steps are known. Onsets of layers that
        // are read from outside cannot be compared: the queue of each rank fills at its own time.
        is_rate && (!self.layer.is_on_tape() || self.began_with(known))
    }

    /// Did this growth begin at about the same step as a `known` one? Both may then have one cause.
    /// Older onsets are dated less exactly.
    fn began_with(&self, known: &Self) -> bool {
        let age_steps = self.last_step.saturating_sub(self.onset_step);
        known.onset_step.abs_diff(self.onset_step) <= constants::SETTLED_STEPS + age_steps / 4
    }

    /// The identity of this finding.
    pub fn key(&self) -> GrowthKey {
        GrowthKey { rank: self.rank, device: self.device, layer: self.layer, scope: self.scope }
    }
}

/// What the detector reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Growth was found: one incident.
    Opened(Growth),
    /// The same growth, notably larger or nearer to the end.
    Updated(Growth),
    /// The growth stopped, or gave back most of its bytes. It has the figures of its end: the last
    /// step in which it grew, and the most bytes that had grown.
    Closed(Growth),
}

crate::tape::names! {
    /// State of a rank.
    #[derive(Default)]
    pub enum RankState in "snake_case" {
        /// Too early to judge.
        #[default]
        Warming,
        /// Judged, and flat.
        Healthy,
        /// Rises, but not certainly.
        Watching,
        /// A finding is open.
        Growing,
    }
}

/// Present view of a rank: its primary device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankView {
    /// The judgement.
    pub state: RankState,
    /// Newest step seen.
    pub last_step: u64,
}
