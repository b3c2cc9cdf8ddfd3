//! Whether memory ends soon, and whether a person should be woken for it.

use super::case::Case;
use super::generations::Course;
use super::{Class, Diagnosis};

/// Memory ends soon when it ends within this time, in nanoseconds: long enough to save a
/// checkpoint and to look at the diagnosis.
pub const SOON_NS: u64 = 30 * 60 * 1_000_000_000;

/// The same in steps, where the length of a step is not known.
pub const SOON_STEPS: u64 = 256;

/// A confirmed fault wakes a person from this confidence on, in parts per million.
pub const PAGE_CONFIDENCE_PPM: u32 = 600_000;

/// Has memory ended already, or does it before anybody can act?
pub(super) fn ends_soon(case: &Case<'_>, class: Class) -> bool {
    if case.around.ooms.is_some_and(|ooms| ooms > 0) {
        return true;
    }
    // What comes to its end by itself has no forecast; and whether these two say anything is open.
    let is_ending = matches!(class, Class::Telemetry | Class::ReferenceCycles);
    let steps = case.growth.steps_to_oom.filter(|_| !is_ending && case.ground.has_rate());
    match (steps, case.around.step_time_ns) {
        (Some(steps), Some(step_ns)) => steps.saturating_mul(step_ns) <= SOON_NS,
        (Some(steps), None) => steps <= SOON_STEPS,
        (None, _) => false,
    }
}

impl Diagnosis {
    /// Should a person be woken? Only for a fault that is confirmed, or when memory ends soon.
    /// Everything else is to be seen, quietly.
    pub fn pages(&self) -> bool {
        let has_ended = matches!(
            self.histogram.course,
            Course::Once | Course::Few | Course::Ended | Course::Filling
        );
        let is_needed = self.class == Class::Pressure && has_ended;
        let is_confirmed = self.class.is_fault() && self.confidence_ppm >= PAGE_CONFIDENCE_PPM;
        is_confirmed || (self.ends_soon && !is_needed)
    }
}
