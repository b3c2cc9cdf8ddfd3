//! What is examined: something that takes samples and readings, and says when memory grows.

use memtape_core::detector::Sample;
use memtape_core::snapshot::{Frame, RankSnapshot};

use crate::job::Layer;
use crate::scenario::Scenario;
use crate::world::Step;

/// Growth that was said, with steps as the scenario counts them (from 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// Rank that is named.
    pub rank: u32,
    /// Account that grows.
    pub layer: Layer,
    /// More than this one rank is meant.
    pub is_wide: bool,
    /// Step at which it is said to have begun.
    pub onset: u64,
    /// Step that this rests on.
    pub step: u64,
    /// Steps left until memory is out.
    pub forecast: Option<Forecast>,
}

/// Steps until memory is out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// One in ten is sooner; none where only one figure is said.
    pub p10: Option<u64>,
    /// As likely sooner as later.
    pub p50: u64,
    /// One in ten is later.
    pub p90: Option<u64>,
}

/// What is said; the number tells one growth from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Growth was found.
    Opened(u64, Alarm),
    /// The same, with newer figures.
    Updated(u64, Alarm),
    /// It is over.
    Closed(u64),
    /// It was over, and goes on.
    Again(u64, Alarm),
}

/// What a comparison of snapshots says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Somebody is to be woken.
    pub pages: bool,
    /// Name of the class.
    pub class: String,
    /// Nothing explains it yet: another capture is worth it.
    pub is_open: bool,
    /// Line that is blamed.
    pub culprit: Option<Frame>,
    /// Lines that may be it, the likeliest first, with the bytes they grew by.
    pub suspects: Vec<(Frame, u64)>,
}

/// What there is to compare: a capture, and what the coordinator knows beside it.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The rank that is named.
    pub suspect: &'a RankSnapshot,
    /// Others at the same steps.
    pub peers: &'a [&'a RankSnapshot],
    /// What the suspect was like at the earlier step.
    pub before: Option<&'a Step>,
    /// What it was like at the step of the snapshots.
    pub now: &'a Step,
    /// Times that its cache was emptied to find room since the growth began.
    pub retries: u64,
    /// Requests that failed for good by then.
    pub ooms: u64,
    /// How long a step takes.
    pub step_ns: u64,
    /// Highest peak of the suspect between the two steps, and the median of the same over others.
    pub peaks: (u64, u64),
}

/// A detector under examination.
pub trait Judge {
    /// A job begins.
    fn begin(&mut self, scenario: &Scenario);

    /// One step of one rank; `step` counts from 1, the sample as the job counts.
    fn sample(&mut self, now_ns: u64, step: u64, sample: &Sample);

    /// What was read beside the tape when this step of the rank was the newest.
    fn reading(&mut self, _now_ns: u64, _rank: u32, _step: u64, _of: &Step) {}

    /// Time passes.
    fn tick(&mut self, _now_ns: u64) {}

    /// What there is to say next.
    fn said(&mut self) -> Option<Said>;

    /// It wants to see snapshots before it wakes anybody; others wake at once.
    fn wants_snapshots(&self) -> bool {
        false
    }

    /// Compares the suspect's snapshot with those of others.
    fn compare(&mut self, _growth: u64, _case: &Case<'_>) -> Verdict {
        Verdict::default()
    }
}
