//! Whether memory ends soon, and whether a person should be woken for it.

use super::diagnosis::Diagnosis;
use crate::diagnosis::class::Class;
use crate::diagnosis::evidence::case::Case;
use crate::diagnosis::judges::facts::Outlook;
use crate::paging;

/// Has memory ended already, or does it before a person can act?
pub(crate) fn ends_soon(case: &Case<'_>, class: Class) -> bool {
    if case.context.ooms.is_some_and(|ooms| ooms > 0) {
        return true;
    }
    // Growth of a passing class has no urgent forecast.
    let outlook = class.judge().outlook;
    let is_ending = outlook == Outlook::Passing;
    let Some(steps) = case.growth.steps_to_oom.filter(|_| !is_ending && case.layer.has_rate())
    else {
        return false;
    };
    // A job that fills its device is near its end all the time. Where nothing is wrong with it, it
    // must be likely that it does not come to rest before.
    let is_benign = outlook == Outlook::Load;
    let steps = match case.growth.forecast {
        Some(likely) if is_benign => likely.p90,
        None if is_benign => steps.saturating_mul(2),
        _ => steps,
    };
    paging::is_soon(steps, case.context.step_time_ns)
}

impl Diagnosis {
    /// Should a person be woken?
    pub fn pages(&self) -> bool {
        let is_needed = self.class.is_needed() && self.histogram.course.comes_to_rest();
        let fault = (self.class.is_fault(), self.confidence_ppm);
        paging::diagnosis_pages(fault, (self.ends_soon, is_needed))
    }

    /// Does another growth of the same job have the same cause? It has where it was diagnosed alike
    /// at the same line on other ranks, and where one comes with the other.
    pub fn has_cause_of(&self, other: &Self) -> bool {
        let lines = self.culprit.as_ref().zip(other.culprit.as_ref());
        let is_same_line =
            lines.is_some_and(|(own, other)| (&own.file, own.line) == (&other.file, other.line));
        (is_same_line && self.class == other.class)
            || self.comes_with(other)
            || other.comes_with(self)
    }

    /// Is this growth an effect of the other one? A library's memory, on the device or the host,
    /// grows with the graphs that are captured or compiled.
    pub fn comes_with(&self, other: &Self) -> bool {
        other.class == Class::CompilePools && self.class.is_outside() && self.culprit.is_none()
    }
}
