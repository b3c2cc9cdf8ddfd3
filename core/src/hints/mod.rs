//! Hints: remedies that a person applies, so that a job takes less memory or uses what is free.
//!
//! [`Facts`] are what is known of the fullest device of a job. [`suggest`] makes a list of
//! [`Hint`]s of them, those that save most first: settings of the allocator, and the micro-batch.
//! Each names the bytes that it would save, whether that is a bound or an estimate, and what it
//! rests on. Without evidence there is no hint; the sentences in [`Suggestions::missing`] say which
//! evidence would be needed.
//!
//! `capture.rs` has what a capture shows, and `proof.rs` the effect of the settings that a start
//! applied. The settings themselves are in `allocator_settings.rs`.
//!
//! Nothing here changes a job: `memtape run --apply-hints` sets the environment of the next start.

pub(crate) mod capture;
pub mod proof;
#[cfg(test)]
mod tests;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::action::Memory;
pub use crate::allocator_settings::{Config, Merged, Setting, known, merge};
use crate::allocator_settings::{ROUNDING, SIZES_MIN};
use crate::diagnosis::{bytes, plural};
pub use capture::Captured;

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

/// Why nothing that the ranks report is used.
pub const NO_PROOF: &str = "not all ranks of the job are known, or another attempt stands for it: \
                            what its ranks report is not used";

/// What is missing, what hints it would give, and what to do.
const NO_STEPS: &str = "no training step has ended: nothing is known of the micro-batch";
const NO_CAPTURE: &str = "there is no capture of this rank (memtape capture JOB): nothing is known \
                          of inactive split memory";
const NO_SEGMENTS: &str = "the capture does not know the allocator's segments (memtape run \
                           --detail): nothing is known of inactive split memory";
const NO_DEVICE_SIZE: &str = "the size of the device is not known, nor whether it is nearly full";
const NO_OUTSIDE: &str = "the memory of the process outside the allocator is not known, nor \
                          whether a larger micro-batch has room";
const NO_SETTINGS: &str = "the allocator's settings were not recorded: it is not known whether \
                           expandable_segments is on";
const FOREIGN_ALLOCATOR: &str =
    "the job uses another allocator than PyTorch's own: no setting of it is suggested";

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
    /// Its allocator's settings; none where they were not recorded.
    pub config: Option<Config>,
    /// What the newest capture shows of it; none where there is no capture.
    pub capture: Option<Captured>,
    /// Why the newest capture cannot be read; none where it can, and where there is none.
    pub unreadable: Option<String>,
    /// Settings that were applied before and did not help.
    pub tried: Vec<Setting>,
}

/// One thing that a person could change.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Hint {
    /// What it is about: `allocator` or `micro_batch`.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub subject: Subject,
    /// What to change, in a sentence.
    pub change: String,
    /// The setting that `memtape run --apply-hints` sets; empty where the program must be changed.
    pub setting: String,
    /// Bytes that it would save on the rank; 0 where it uses memory that is free.
    pub saves_bytes: u64,
    /// Whether it saves at most so much, or about: `at_most` or `about`.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub bound: Bound,
    /// How the bytes were computed.
    pub computed: String,
    /// What it rests on, in a phrase each.
    pub evidence: Vec<String>,
    /// What else it does.
    pub side_effect: String,
}

/// What a hint is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A setting of the allocator.
    #[default]
    Allocator,
    /// The micro-batch.
    MicroBatch,
}

/// How sure a number of bytes is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// It saves no more.
    #[default]
    AtMost,
    /// An estimate.
    About,
}

/// The hints, and what evidence is missing for more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suggestions {
    /// Those that save most first.
    pub hints: Vec<Hint>,
    /// What is missing, in a sentence each.
    pub missing: Vec<String>,
}

/// Makes hints of what is known. Two hints may be about the same bytes: what they save does not
/// add up.
pub fn suggest(facts: &Facts) -> Suggestions {
    let mut missing = Vec::new();
    let mut hints = Vec::new();
    hints.extend(allocator(facts, &mut missing));
    hints.extend(micro_batch(facts, &mut missing));
    let mut missing: Vec<String> = missing.into_iter().map(ToString::to_string).collect();
    match &facts.unreadable {
        Some(why) => missing.push(format!("{why}: nothing is known of inactive split memory")),
        None if facts.capture.is_none() => missing.push(NO_CAPTURE.to_string()),
        None => {}
    }
    hints.sort_by_key(|hint| Reverse(hint.saves_bytes));
    Suggestions { hints, missing }
}

/// The settings that the next start should have: those of the last start that applied some, less
/// those that did not help, and the one that is suggested now.
pub fn to_apply(applied: &[Setting], tried: &[Setting], hints: &[Hint]) -> Vec<Setting> {
    let suggested = hints.iter().flat_map(|hint| Setting::listed(&hint.setting));
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
    fn pressure(&self) -> Vec<String> {
        let mut evidence = Vec::new();
        if self.ooms > 0 {
            evidence.push(format!("{} for memory failed for good", plural(self.ooms, "request")));
        }
        evidence.extend(self.retried());
        if let Some(percent) = self.peak_percent().filter(|percent| *percent >= FULL_PERCENT) {
            evidence.push(format!("{percent} % of the device was in tensors at the peak"));
        }
        evidence
    }

    /// Evidence that the allocator emptied its cache and tried again.
    fn retried(&self) -> Option<String> {
        let times = || plural(self.retries, "time");
        (self.retries > 0).then(|| format!("cudaMalloc failed, and was tried again: {}", times()))
    }

    fn is_split(&self, bytes: u64) -> bool {
        bytes >= SAVING_BYTES_MIN && bytes.saturating_mul(SPLIT_PARTS) >= self.reserved_bytes
    }

    /// May this setting be suggested? Not one that did not help, or whose key the job has set.
    fn is_open(&self, setting: Setting) -> bool {
        let is_set = self.config.as_ref().is_some_and(|of| of.get(setting.key()).is_some());
        !is_set && !self.tried.contains(&setting)
    }

    /// How what is reserved beyond the peak of tensors is computed.
    fn idle_computed(&self) -> String {
        let (reserved, peak) = (bytes(self.reserved_bytes), bytes(self.peak_bytes));
        format!("{reserved} reserved less {peak} in tensors")
    }

    /// A setting that saves at most what is idle.
    fn of_idle(&self, setting: Setting, evidence: Vec<String>) -> Hint {
        let (saves_bytes, computed) = (self.idle(), self.idle_computed());
        Hint { saves_bytes, computed, evidence, ..of_setting(setting) }
    }

    /// A setting that saves about what is inactive split, and no more than what is idle. It was
    /// counted at one step; whole free segments may go, too.
    fn of_split(&self, setting: Setting, split: u64, which: &str, evidence: Vec<String>) -> Hint {
        let (of_split, idle) = (bytes(split), self.idle_computed());
        Hint {
            saves_bytes: split.min(self.idle()),
            bound: Bound::About,
            computed: format!("{of_split} inactive split{which}; no more than {idle}"),
            evidence,
            ..of_setting(setting)
        }
    }
}

/// The hint of a setting, without what it saves.
fn of_setting(setting: Setting) -> Hint {
    let side_effect = match setting {
        Setting::ExpandableSegments => {
            "sharing CUDA tensors between processes needs a PyTorch that supports it with \
             expandable segments"
        }
        Setting::MaxSplitSizeMb(_) => {
            "larger requests take whole blocks, so some of their memory stays unused, and \
             cudaMalloc is called more often"
        }
        Setting::RoundupPower2Divisions(_) => "requests take more memory than they ask for",
    };
    Hint {
        subject: Subject::Allocator,
        change: format!("set {setting}"),
        setting: setting.to_string(),
        side_effect: side_effect.to_string(),
        ..Hint::default()
    }
}

/// One setting of the allocator at a time, so that the next attempt shows what it did.
fn allocator(facts: &Facts, missing: &mut Vec<&'static str>) -> Option<Hint> {
    if facts.config.as_ref().is_some_and(Config::is_foreign) {
        missing.push(FOREIGN_ALLOCATOR);
        return None;
    }
    let capture = facts.capture.as_ref();
    // What the segments are says more than what was set.
    let is_expandable = capture
        .and_then(|of| of.is_expandable)
        .or_else(|| facts.config.as_ref().map(Config::is_expandable));
    let Some(is_expandable) = is_expandable else {
        missing.push(NO_SETTINGS);
        return None;
    };
    if !facts.is_split(facts.idle()) {
        return None;
    }
    if is_expandable {
        return rounding(facts);
    }
    let split = capture.and_then(|of| of.split_bytes);
    if capture.is_some() && split.is_none() {
        missing.push(NO_SEGMENTS);
    }
    let mut evidence: Vec<String> = split.and(capture).map(of_capture).into_iter().collect();
    evidence.extend(facts.retried());
    let expand = Setting::ExpandableSegments;
    let hint = match (split, facts.retries) {
        (Some(split), _) if facts.is_split(split) => {
            facts.of_split(expand, split, "", evidence.clone())
        }
        // After a failed cudaMalloc the allocator gives its whole free segments back.
        (None, 1..) => facts.of_idle(expand, evidence.clone()),
        _ => return None,
    };
    if facts.is_open(expand) {
        return Some(hint).filter(is_worth_it);
    }
    rounding(facts).or_else(|| splitting(facts, evidence))
}

/// Sizes are rounded where there are many.
fn rounding(facts: &Facts) -> Option<Hint> {
    let capture = facts.capture.as_ref()?;
    let count = capture.large_sizes.filter(|sizes| *sizes >= SIZES_MIN)?;
    let sizes = format!("{} of large requests", plural(count, "different size"));
    let hint = || facts.of_idle(ROUNDING, vec![of_capture(capture), sizes]);
    facts.is_open(ROUNDING).then(hint)
}

/// Large blocks are not split any more: those above the largest size above which at least half of
/// the inactive split memory lies.
fn splitting(facts: &Facts, evidence: Vec<String>) -> Option<Hint> {
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
    let which = format!(" in segments above {mib} MiB");
    let hint = || facts.of_split(setting, split, &which, evidence);
    facts.is_open(setting).then(hint).filter(is_worth_it)
}

fn is_worth_it(hint: &Hint) -> bool {
    hint.saves_bytes >= SAVING_BYTES_MIN
}

/// Half of the micro-batch where memory is short, and a larger one where there is room.
fn micro_batch(facts: &Facts, missing: &mut Vec<&'static str>) -> Option<Hint> {
    let Some(step) = facts.step else {
        missing.push(NO_STEPS);
        return None;
    };
    let mut evidence = facts.pressure();
    if evidence.is_empty() {
        match (facts.device_bytes, facts.beside_bytes) {
            (None, _) => missing.push(NO_DEVICE_SIZE),
            (Some(_), None) => missing.push(NO_OUTSIDE),
            (Some(_), Some(_)) => {}
        }
        return larger(facts, step);
    }
    evidence.push(of_step(step));
    let (peak, least) = (bytes(step.peak_bytes), bytes(step.min_bytes));
    let smaller = Hint {
        subject: Subject::MicroBatch,
        change: "halve the micro-batch, and double the accumulation".to_string(),
        saves_bytes: step.transient() / 2,
        computed: format!("half of the peak of the step, {peak}, less its minimum, {least}"),
        evidence,
        side_effect: "more and smaller kernels for the same batch: a step takes longer".to_string(),
        ..Hint::default()
    };
    Some(smaller).filter(is_worth_it)
}

/// A larger micro-batch has room.
fn larger(facts: &Facts, step: Memory) -> Option<Hint> {
    let (device, reserved) = (facts.device_bytes?, facts.reserved_bytes);
    let (beside, transient) = (facts.beside_bytes?, step.transient());
    let room = device.saturating_sub(reserved).saturating_sub(beside);
    let has_room = room.saturating_mul(100) >= device.saturating_mul(ROOM_PERCENT);
    let times = transient.saturating_add(room).checked_div(transient)?;
    if !has_room || times < 2 || transient < SAVING_BYTES_MIN {
        return None;
    }
    let (device, reserved) = (bytes(device), bytes(reserved));
    let (beside, transient) = (bytes(beside), bytes(transient));
    Some(Hint {
        subject: Subject::MicroBatch,
        change: format!("a micro-batch up to about {times} times as large has room"),
        bound: Bound::About,
        computed: format!(
            "{device} on the device less {reserved} reserved and {beside} outside the allocator; \
             a step needs {transient} beyond its minimum"
        ),
        evidence: vec![of_step(step)],
        side_effect: "uses the memory that is free: a longer sequence can then run out of memory"
            .to_string(),
        ..Hint::default()
    })
}

fn of_capture(capture: &Captured) -> String {
    format!("{} at step {}", capture.capture, capture.step)
}

fn of_step(step: Memory) -> String {
    format!("the record of step {}", step.step)
}
