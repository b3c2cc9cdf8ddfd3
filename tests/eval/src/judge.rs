//! What is examined: something that takes samples and readings, and says when memory grows.

use memtape_core::census::Census;
use memtape_core::detector::Sample;
use memtape_core::paging::Urgency;
use memtape_core::snapshot::{Frame, RankSnapshot};

use crate::camera::Camera;
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
    /// The 10th percentile; none when the judge gives one figure only.
    pub p10: Option<u64>,
    /// The median.
    pub p50: u64,
    /// The 90th percentile.
    pub p90: Option<u64>,
}

/// What is said of an incident.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Growth was found.
    Opened(Alarm),
    /// The same, with newer figures.
    Updated(Alarm),
    /// It is over.
    Closed,
    /// It was over, and goes on.
    Reopened,
    /// A capture was compared.
    Compared(Verdict),
    /// It has become a ticket, or pages.
    Raised(Urgency),
}

/// What a comparison of snapshots says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Name of the class.
    pub class: String,
    /// Line that is blamed.
    pub culprit: Option<Frame>,
    /// Lines that may be it, the likeliest first, with the bytes they grew by.
    pub suspects: Vec<(Frame, u64)>,
    /// The two steps that were compared.
    pub steps: (u64, u64),
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

    /// What a rank's tape holds at the end of a step, as its agent counts it.
    fn census(&mut self, _now_ns: u64, _rank: u32, _census: Census) {}

    /// Time passes: captures may be requested and compared.
    fn tick(&mut self, _now_ns: u64, _camera: &mut Camera<'_>) {}

    /// What there is to say next, and the number of the incident it is about.
    fn said(&mut self) -> Option<(u64, Said)>;

    /// It compares snapshots before it pages; others page at once.
    fn wants_snapshots(&self) -> bool {
        false
    }
}
