//! How urgent an incident is: every threshold, and every rule.
//!
//! A page and a ticket need two things. The growth is certain ([`is_near`], or it went on evenly
//! for long, `detector/constants.rs`), and its end decides between the two ([`Horizons::urgency`]).
//! And its diagnosis pages ([`diagnosis_pages`]): a fault that is confirmed, or an end that comes
//! soon. `incident/upkeep.rs` knows how urgent an incident was before.
//!
//! Where it is known when the job itself ends ([`seconds_to_job_end`]), that is a horizon too
//! ([`End::of_memory`]): growth that fills the memory after it costs the job nothing.

#[cfg(test)]
mod tests;

use crate::identity::planned_end::PlannedEnd;

crate::tape::names! {
    /// How urgent an incident is, the least urgent first. The alert rules of `deploy/prometheus`
    /// have these names as their `severity`.
    #[derive(Default)]
    pub enum Urgency in "snake_case" {
        /// The incident is shown.
        #[default]
        Notice,
        /// A person should look at the incident on the next working day.
        Ticket,
        /// A person is woken.
        Page,
    }
}

/// The end that the condition of an incident leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The condition does not grow, or the rank has failed: it has no end to wait for.
    Reached,
    /// Memory is full in this many seconds. It is not known whether the job itself ends before.
    InSeconds(u64),
    /// Memory is full in this many seconds, before the job itself ends.
    BeforeJob(u64),
    /// The job itself ends before memory is full.
    AfterJob,
    /// The size of the memory, or the step time, is not known.
    Unknown,
}

impl End {
    /// The end of memory that is full in `likely` seconds and, in one job of ten, within `early`
    /// seconds. The job itself ends in `job` seconds. Where one of these is not known, neither end
    /// comes first. The job counts as the first to end only where it is in nine cases of ten: a
    /// missed page costs more than a needless one.
    pub(crate) fn of_memory((early, likely): (Option<u64>, u64), job: Option<u64>) -> Self {
        match early.zip(job) {
            Some((early, job)) if job < early => Self::AfterJob,
            Some((_, job)) if job > likely => Self::BeforeJob(likely),
            Some(_) | None => Self::InSeconds(likely),
        }
    }
}

/// A job counts as at its end for this time after its scheduler's limit, in nanoseconds: the
/// scheduler takes a while to end it, and clocks differ. A job that runs on has another end.
const ENDS_LATE_NS: i64 = 10 * 60 * 1_000_000_000;

/// What is left to the planned end of a job, where it has not gone on beyond it: nanoseconds until
/// its scheduler's limit, below 0 shortly after it, and steps. `steps` are finished.
pub fn left_of_plan(
    planned: PlannedEnd,
    now_wall_ns: i64,
    steps: impl FnOnce() -> Option<u64>,
) -> (Option<i64>, Option<u64>) {
    let left_ns = planned.ends_at_wall_ns.map(|at| at.saturating_sub(now_wall_ns));
    let left_steps = planned.total_steps.and_then(|total| total.checked_sub(steps()?));
    (left_ns.filter(|left_ns| *left_ns > -ENDS_LATE_NS), left_steps)
}

/// Time until the job itself ends, in seconds: the earlier of the two ends [`left_of_plan`].
pub(crate) fn seconds_to_job_end(
    (left_ns, left_steps): (Option<i64>, Option<u64>),
    step_time_ns: Option<u64>,
) -> Option<u64> {
    let by_time = left_ns.map(|left_ns| left_ns.max(0).unsigned_abs());
    let by_steps = left_steps.zip(step_time_ns).map(|(left, step_ns)| left.saturating_mul(step_ns));
    by_time.into_iter().chain(by_steps).min().map(|left_ns| left_ns / 1_000_000_000)
}

/// How near the end of memory must be for growth that ranks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Horizons {
    /// Growth pages when memory is full within this time, in seconds.
    pub page_seconds: u64,
    /// Growth is a ticket when memory is full within this time, in seconds.
    pub ticket_seconds: u64,
}

impl Default for Horizons {
    /// Growth that ends in the night pages. Growth that ends by this time tomorrow is a ticket: a
    /// working day begins before it ends. So is growth that ends the job before its own end,
    /// however far that is.
    /// Evaluation (tuned families, seeds 700 to 702, at most 8 ranks): 7 tickets, none about
    /// nothing; recall 81.4 % by pages alone, 83.9 % with tickets.
    fn default() -> Self {
        Self { page_seconds: 12 * 3_600, ticket_seconds: 24 * 3_600 }
    }
}

impl Horizons {
    /// Urgency that growth can have, before its diagnosis. Certain growth of one rank alone pages
    /// wherever its end is: the job does not need it. Where the job itself ends before, nothing is
    /// lost, and the growth is a ticket: its fault is in the next run too, which may be longer.
    /// Growth that ranks share may be what the job needs, and is a notice then.
    pub(crate) fn urgency(self, (is_sure, is_own): (bool, bool), end: End) -> Urgency {
        match end {
            _ if !is_sure => Urgency::Notice,
            End::AfterJob if is_own => Urgency::Ticket,
            End::AfterJob => Urgency::Notice,
            _ if is_own => Urgency::Page,
            End::Reached => Urgency::Page,
            End::InSeconds(seconds) | End::BeforeJob(seconds) if seconds <= self.page_seconds => {
                Urgency::Page
            }
            End::InSeconds(seconds) if seconds > self.ticket_seconds => Urgency::Notice,
            End::InSeconds(_) | End::BeforeJob(_) | End::Unknown => Urgency::Ticket,
        }
    }
}

/// A fault pages from this confidence on, in ppm: lines that explain half can just reach it.
/// Ablation: half: 10 false pages; twice: 7 false pages, recall 41.9 %, rank 95.1 %, class 91.8
/// %, line 91.3 %.
pub const PAGE_CONFIDENCE_PPM: u32 = 700_000;

/// Memory ends soon within this time: long enough to save a checkpoint and read the diagnosis.
/// Ablation: half: recall 84.6 %, class 97.0 %; twice: 10 false pages, recall 85.9 %, class 95.5
/// %.
pub const SOON_NS: u64 = 30 * 60 * 1_000_000_000;

/// Limit in steps, where the step time is not known.
/// Ablation: no change at half or twice the value.
pub const SOON_STEPS: u64 = 256;

/// Growth is certain when the remaining memory is at most this many times the growth.
/// Ablation: half: recall 84.2 %, 7 false pages, 3 duplicates; twice: recall 86.3 %, 5 duplicates.
const AHEAD_TIMES: u64 = 2;

/// Has growth of `grown_bytes` used up a large part of the memory that was left before it? False
/// where the size of the memory is unknown.
pub(crate) fn is_near(left: Option<u64>, grown_bytes: u64) -> bool {
    left.is_some_and(|left| left <= grown_bytes.saturating_mul(AHEAD_TIMES))
}

/// Does memory that is exhausted after these steps leave a person no time to act?
pub(crate) fn is_soon(steps: u64, step_time_ns: Option<u64>) -> bool {
    match step_time_ns {
        Some(step_ns) => steps.saturating_mul(step_ns) <= SOON_NS,
        None => steps <= SOON_STEPS,
    }
}

/// Does a diagnosis wake a person? Only of a fault that is confirmed, or when memory ends soon that
/// the job does not simply need. Everything else is a notice.
pub(crate) fn diagnosis_pages(
    (is_fault, confidence_ppm): (bool, u32),
    (ends_soon, is_needed): (bool, bool),
) -> bool {
    (is_fault && confidence_ppm >= PAGE_CONFIDENCE_PPM) || (ends_soon && !is_needed)
}
