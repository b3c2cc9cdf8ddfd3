//! When an incident pages: every threshold, and every rule.
//!
//! A page needs two things. Its growth matters ([`matters`]), which a growth of all ranks does only
//! near the end, and which takes that the growth is certain ([`is_near`], or that it went on evenly
//! for long, `detector/constants.rs`). And its diagnosis pages ([`diagnosis_pages`]): a fault that
//! is confirmed, or an end that comes soon. `incident/upkeep.rs` knows the earlier pages.

/// Growth that all ranks share pages when the memory is full within this time, in seconds: the
/// night.
pub const PAGE_WITHIN_SECONDS: u64 = 12 * 3_600;

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

/// Does growth matter enough to page? Certain growth of one rank alone does; certain growth that
/// all share does when the memory is full within this many seconds, or the end is not known.
pub(crate) fn matters(
    (is_sure, is_own): (bool, bool),
    seconds_to_oom: Option<u64>,
    within_seconds: u64,
) -> bool {
    let is_soon = seconds_to_oom.is_none_or(|seconds| seconds <= within_seconds);
    is_sure && (is_own || is_soon)
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
