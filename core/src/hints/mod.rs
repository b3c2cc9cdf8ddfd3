//! Allocation hints: what could be changed in a job so that it takes less memory, or uses what is
//! free.
//!
//! [`Facts`] are what is known of the fullest device of a job. [`suggest`] makes a list of
//! [`Hint`]s of them, those that save most first. Each names the bytes that it would save, whether
//! that is a bound or an estimate, and what it rests on. Without evidence there is no hint:
//! [`Missing`] says which evidence would be needed.
//!
//! | file | holds |
//! |---|---|
//! | `capture.rs` | what a capture shows |
//! | `hint.rs` | a hint, and its sentences |
//! | `proof.rs` | the effect of the settings that a start applied |
//!
//! The settings of PyTorch's allocator are in `allocator_settings.rs`.
//!
//! Nothing here changes a job: `memtape run --apply-hints` sets the environment of the next start.

pub(crate) mod capture;
mod hint;
pub mod proof;
#[cfg(test)]
mod tests;

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::action::Memory;
pub use crate::allocator_settings::{Config, Merged, Setting, merge};
use crate::allocator_settings::{ROUNDING, SIZES_MIN};
use crate::diagnosis::bytes;
pub use capture::{Captured, Composition};
pub use hint::{Bound, Change, Evidence, Hint, Subject};

/// Fewer bytes are not worth a hint.
const SAVING_BYTES_MIN: u64 = 64 << 20;

/// Free memory of the allocator matters from this part of what it holds on.
const SPLIT_PARTS: u64 = 10;

/// A device is nearly full when tensors take this part of it, in percent.
const FULL_PERCENT: u64 = 85;

/// A device has room for more from this part of it on, in percent.
const ROOM_PERCENT: u64 = 25;

/// Values of `max_split_size_mb` that are tried, in MiB.
const SPLIT_SIZES_MIB: [u64; 6] = [32, 64, 128, 256, 512, 1024];

/// What is known of the device of a rank that is fullest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Its newest step.
    pub step: Option<Memory>,
    /// Most bytes in tensors since the process began.
    pub peak_bytes: u64,
    /// Most bytes that the allocator held.
    pub reserved_bytes: u64,
    /// Failed `cudaMalloc`s, after which the allocator tried again.
    pub retries: u64,
    /// Requests that failed for good.
    pub ooms: u64,
    /// Size of the device; none where it is not known.
    pub device_bytes: Option<u64>,
    /// Bytes that the process holds on the device outside the allocator; none where that is not
    /// known.
    pub beside_bytes: Option<u64>,
    /// Ranks that do the same work, itself included.
    pub peers: u32,
    /// Its allocator's settings; none where they were not recorded.
    pub config: Option<Config>,
    /// What the newest capture shows of it; none where there is no capture.
    pub capture: Option<Captured>,
    /// There is a capture, which cannot be read.
    pub is_capture_unreadable: bool,
    /// Settings that were applied before and did not help.
    pub tried: Vec<Setting>,
}

/// Evidence that is missing, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// No training step has ended.
    Steps,
    /// There is no capture of the rank.
    Capture,
    /// The capture does not know the allocator's segments.
    Segments,
    /// The capture has no events.
    Events,
    /// The size of the device is not known.
    DeviceSize,
    /// What the process holds on the device outside the allocator is not known.
    OutsideAllocator,
    /// The settings of the allocator were not recorded.
    Settings,
    /// Another allocator than PyTorch's own is in use.
    Allocator,
}

impl Missing {
    /// What is missing, what hints it would give, and what to do.
    pub fn text(self) -> &'static str {
        match self {
            Self::Steps => {
                "no training step has ended: nothing is known of the micro-batch and of activations"
            }
            Self::Capture => {
                "there is no capture of this rank (memtape capture JOB): nothing is known of \
                 sharding, of checkpointing and of inactive split memory"
            }
            Self::Segments => {
                "the capture does not know the allocator's segments (memtape run --detail): \
                 nothing is known of inactive split memory"
            }
            Self::Events => {
                "the capture has no events: it is not known whether activations are checkpointed \
                 already"
            }
            Self::DeviceSize => {
                "the size of the device is not known, nor whether it is nearly full"
            }
            Self::OutsideAllocator => {
                "the memory of the process outside the allocator is not known, nor whether a \
                 larger micro-batch has room"
            }
            Self::Settings => {
                "the allocator's settings were not recorded: it is not known whether \
                 expandable_segments is on"
            }
            Self::Allocator => {
                "the job uses another allocator than PyTorch's own: no setting of it is suggested"
            }
        }
    }
}

/// The hints, and what evidence is missing for more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suggestions {
    /// Those that save most first.
    pub hints: Vec<Hint>,
    /// What is missing.
    pub missing: Vec<Missing>,
}

/// Makes hints of what is known. Two hints may be about the same bytes: what they save does not
/// add up.
pub fn suggest(facts: &Facts) -> Suggestions {
    let mut missing = Vec::new();
    let mut hints = Vec::new();
    hints.extend(allocator(facts, &mut missing));
    hints.extend(load(facts, &mut missing));
    hints.extend(sharding(facts));
    hints.retain(|hint| {
        let is_larger = matches!(hint.change, Change::LargerMicroBatch { .. });
        is_larger || hint.saves_bytes >= SAVING_BYTES_MIN
    });
    if facts.capture.is_none() && !facts.is_capture_unreadable {
        missing.push(Missing::Capture);
    }
    hints.sort_by_key(|hint| Reverse(hint.saves_bytes));
    Suggestions { hints, missing }
}

/// The settings that the next start should have: those of the last start that applied some, less
/// those that did not help, and the one that is suggested now.
pub fn to_apply(applied: &[Setting], tried: &[Setting], hints: &[Hint]) -> Vec<Setting> {
    let suggested = hints.iter().filter_map(|hint| hint.change.setting());
    let mut settings: Vec<Setting> = Vec::new();
    for setting in applied.iter().copied().chain(suggested) {
        let has_key = settings.iter().any(|of| of.key() == setting.key());
        if !has_key && !tried.contains(&setting) {
            settings.push(setting);
        }
    }
    settings
}

impl Facts {
    /// What the allocator holds beyond the peak of tensors: no setting of it saves more.
    fn idle(&self) -> u64 {
        self.reserved_bytes.saturating_sub(self.peak_bytes)
    }

    /// Percent of the device that tensors took at the peak. What the allocator holds beyond is no
    /// need of the job.
    fn peak_percent(&self) -> Option<u64> {
        self.peak_bytes.saturating_mul(100).checked_div(self.device_bytes?)
    }

    /// Evidence that memory is short; empty where it is not.
    fn pressure(&self) -> Vec<Evidence> {
        let mut evidence = Vec::new();
        if self.ooms > 0 {
            evidence.push(Evidence::OutOfMemory { count: self.ooms });
        }
        if self.retries > 0 {
            evidence.push(Evidence::Retries { count: self.retries });
        }
        if let Some(percent) = self.peak_percent().filter(|percent| *percent >= FULL_PERCENT) {
            evidence.push(Evidence::Full { percent });
        }
        evidence
    }

    fn is_split(&self, bytes: u64) -> bool {
        bytes >= SAVING_BYTES_MIN && bytes.saturating_mul(SPLIT_PARTS) >= self.reserved_bytes
    }

    /// May this setting be suggested? Not one that did not help, or whose key the job has set.
    fn is_open(&self, setting: Setting) -> bool {
        let is_set = self.config.as_ref().is_some_and(|of| of.get(setting.key()).is_some());
        !is_set && !self.tried.contains(&setting)
    }
}

/// One setting of the allocator at a time, so that the next attempt shows what it did.
fn allocator(facts: &Facts, missing: &mut Vec<Missing>) -> Option<Hint> {
    if facts.config.as_ref().is_some_and(Config::is_foreign) {
        missing.push(Missing::Allocator);
        return None;
    }
    let capture = facts.capture.as_ref();
    // What the segments are says more than what was set.
    let is_expandable = capture
        .and_then(|of| of.is_expandable)
        .or_else(|| facts.config.as_ref().map(Config::is_expandable));
    let Some(is_expandable) = is_expandable else {
        missing.push(Missing::Settings);
        return None;
    };
    if !facts.is_split(facts.idle()) {
        return None;
    }
    if is_expandable {
        return rounding(facts);
    }
    let mut evidence = Vec::new();
    let split = capture.and_then(|of| of.split_bytes);
    if capture.is_some() && split.is_none() {
        missing.push(Missing::Segments);
    }
    let saving = match (split, facts.retries) {
        (Some(split), _) if facts.is_split(split) => {
            evidence.extend(capture.map(of_capture));
            facts.of_split(split, "")
        }
        // After a failed cudaMalloc the allocator gives its whole free segments back.
        (None, 1..) => facts.of_idle(),
        _ => return None,
    };
    if facts.retries > 0 {
        evidence.push(Evidence::Retries { count: facts.retries });
    }
    let expand = Setting::ExpandableSegments;
    if facts.is_open(expand) {
        return Some(saving.by(Change::Allocator(expand), evidence));
    }
    rounding(facts).or_else(|| splitting(facts, evidence))
}

/// Sizes are rounded where there are many.
fn rounding(facts: &Facts) -> Option<Hint> {
    let capture = facts.capture.as_ref()?;
    let count = capture.large_sizes.filter(|sizes| *sizes >= SIZES_MIN)?;
    let evidence = [of_capture(capture), Evidence::Sizes { count }];
    let hint = || facts.of_idle().by(Change::Allocator(ROUNDING), evidence.into());
    facts.is_open(ROUNDING).then(hint)
}

/// Large blocks are not split any more: those above the largest size above which at least half of
/// the inactive split memory lies.
fn splitting(facts: &Facts, evidence: Vec<Evidence>) -> Option<Hint> {
    let capture = facts.capture.as_ref()?;
    let all = capture.split_bytes?;
    let above = |mib: u64| {
        let larger = capture.split_by_size.range((mib << 20) + 1..);
        larger.fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes))
    };
    let sizes = SPLIT_SIZES_MIB.iter().rev().copied().map(|mib| (mib, above(mib)));
    let mut fitting = sizes.filter(|(_, split)| split.saturating_mul(2) >= all);
    let (mib, split) = fitting.next()?;
    let setting = Setting::MaxSplitSizeMb(mib);
    let saving = facts.of_split(split, &format!(" in segments above {mib} MiB"));
    facts.is_open(setting).then(|| saving.by(Change::Allocator(setting), evidence))
}

/// The micro-batch, and checkpointing of activations.
fn load(facts: &Facts, missing: &mut Vec<Missing>) -> Vec<Hint> {
    let Some(step) = facts.step else {
        missing.push(Missing::Steps);
        return Vec::new();
    };
    let mut evidence = facts.pressure();
    if evidence.is_empty() {
        match (facts.device_bytes, facts.beside_bytes) {
            (None, _) => missing.push(Missing::DeviceSize),
            (Some(_), None) => missing.push(Missing::OutsideAllocator),
            (Some(_), Some(_)) => {}
        }
        return larger(facts, step).into_iter().collect();
    }
    evidence.push(Evidence::Step { step: step.step });
    let mut hints = vec![of_step(step, true).by(Change::SmallerMicroBatch, evidence.clone())];
    if let Some(capture) = &facts.capture {
        match capture.is_checkpointed {
            Some(true) => {}
            Some(false) => {
                evidence.push(of_capture(capture));
                hints.push(of_step(step, false).by(Change::Checkpointing, evidence));
            }
            None => missing.push(Missing::Events),
        }
    }
    hints
}

/// A larger micro-batch has room.
fn larger(facts: &Facts, step: Memory) -> Option<Hint> {
    let (device, reserved) = (facts.device_bytes?, facts.reserved_bytes);
    let (beside, transient) = (facts.beside_bytes?, step.transient());
    let room = device.saturating_sub(reserved).saturating_sub(beside);
    let has_room = room.saturating_mul(100) >= device.saturating_mul(ROOM_PERCENT);
    let times = transient.saturating_add(room).checked_div(transient)?;
    let saving = Saving {
        bytes: 0,
        bound: Bound::About,
        computed: format!(
            "{} on the device less {} reserved and {} outside the allocator; a step needs {} \
             beyond its minimum",
            bytes(device),
            bytes(reserved),
            bytes(beside),
            bytes(transient)
        ),
    };
    let evidence = vec![Evidence::Step { step: step.step }];
    (has_room && times >= 2 && transient >= SAVING_BYTES_MIN)
        .then(|| saving.by(Change::LargerMicroBatch { times }, evidence))
}

/// Optimizer state, or all that is kept, is divided over the ranks that hold the same.
fn sharding(facts: &Facts) -> Vec<Hint> {
    let mut evidence = facts.pressure();
    let (Some(capture), 2.., false) = (&facts.capture, facts.peers, evidence.is_empty()) else {
        return Vec::new();
    };
    let Composition { parameters, optimizer_state, gradients, .. } = capture.composition;
    // A state that is smaller than the parameters may be a part of one already.
    if capture.is_sharded || optimizer_state == 0 || optimizer_state < parameters {
        return Vec::new();
    }
    evidence.push(of_capture(capture));
    let ranks = facts.peers;
    let shared = |change, held: u64| {
        let saving = Saving {
            bytes: held.saturating_sub(held.div_ceil(u64::from(ranks))),
            bound: Bound::About,
            computed: format!(
                "{} held, of which 1/{ranks} stays on each of {ranks} ranks",
                bytes(held)
            ),
        };
        saving.by(change, evidence.clone())
    };
    let mut hints = vec![shared(Change::ShardOptimizer { ranks }, optimizer_state)];
    if parameters > 0 {
        let held = parameters.saturating_add(gradients).saturating_add(optimizer_state);
        hints.push(shared(Change::ShardParameters { ranks }, held));
    }
    hints
}

fn of_capture(capture: &Captured) -> Evidence {
    Evidence::Capture { capture: capture.capture.clone(), step: capture.step }
}

/// What a change would save, how sure that is, and how it was computed.
struct Saving {
    bytes: u64,
    bound: Bound,
    computed: String,
}

impl Saving {
    fn by(self, change: Change, evidence: Vec<Evidence>) -> Hint {
        let Self { bytes: saves_bytes, bound, computed } = self;
        Hint { change, saves_bytes, bound, computed, evidence }
    }
}

impl Facts {
    /// What is reserved beyond the peak of tensors.
    fn of_idle(&self) -> Saving {
        let (reserved, peak) = (bytes(self.reserved_bytes), bytes(self.peak_bytes));
        let computed = format!("{reserved} reserved less {peak} in tensors");
        Saving { bytes: self.idle(), bound: Bound::AtMost, computed }
    }

    /// What is inactive split, and no more than what is idle. It was counted at one step; whole
    /// free segments may go, too.
    fn of_split(&self, split: u64, which: &str) -> Saving {
        let idle = self.of_idle();
        let computed =
            format!("{} inactive split{which}; no more than {}", bytes(split), idle.computed);
        Saving { bytes: split.min(idle.bytes), bound: Bound::About, computed }
    }
}

/// What comes and goes within a step, or half of it.
fn of_step(step: Memory, is_half: bool) -> Saving {
    let transient = step.transient();
    let computed = format!(
        "{}the peak of the step, {}, less its minimum, {}",
        if is_half { "half of " } else { "" },
        bytes(step.peak_bytes),
        bytes(step.min_bytes)
    );
    let saved = if is_half { transient / 2 } else { transient };
    Saving { bytes: saved, bound: Bound::AtMost, computed }
}
