//! The thresholds of the diagnosis that a person may want to change.
//!
//! Beside each stands its ablation: what half and twice the value change on 474 jobs of the tuned
//! families (seeds 700 to 702, at most 8 ranks). With these values 85.0 % of the faults paged
//! (recall), with 9 false pages; of what paged 98.9 % named the right rank, 96.5 % the right class
//! and 94.4 % the right line first. Thresholds for files have none: the evaluation makes no files.

/// Steps with births that must live for a line to leak: a buffer has one, a prefetcher three.
/// Ablation: no change at half or twice the value.
pub const GENERATIONS_MIN: u64 = 4;

/// As many are enough where they come at regular distances, as evaluations and checkpoints do.
/// Ablation: half: no change; twice: 8 false pages, rank 97.8 %, line 93.6 %.
pub const OCCASIONS_MIN: u64 = 3;

/// Births in the last steps may be gone in the next ones: gradients, a batch fetched ahead.
/// Ablation: no change at half or twice the value.
pub(crate) const PASSING_STEPS: u64 = 3;

/// Share of the bytes in the later half of the births below which a cache fills, in ppm.
/// Ablation: half: no change; twice: 6 false pages, recall 47.4 %, rank 98.0 %, class 94.6 %,
/// line 81.1 %.
pub(crate) const LATER_HALF_PPM_MIN: u64 = 300_000;

/// Blocks born as many steps before the dated onset still belong to the growth.
/// Ablation: no change at half or twice the value.
pub(crate) const ONSET_SLACK_STEPS: u64 = 16;

/// Share of the growth that known lines must explain for any class of tensors, in ppm.
/// Ablation: no change at half or twice the value.
pub const EXPLAINED_PPM_MIN: u32 = 300_000;

/// Share of the growth from which on it counts as explained, in ppm.
/// Ablation: half: no change; twice: 8 false pages, recall 70.9 %, class 93.4 %.
pub(crate) const CONFIRMED_PPM: u32 = 700_000;

/// Share of the growth with which a line stands out beside the line that called it, in ppm.
/// Ablation: half: line 96.0 %; twice: no change.
pub(crate) const DOMINANT_PPM: i64 = 600_000;

/// Share of the growth that went through a line for it to be the shared one, in ppm.
/// Ablation: half: line 96.0 %; twice: line 97.6 %.
pub(crate) const SHARED_PPM: i64 = 800_000;

/// A rise of the per-step minima below this share of what stays, in percent, is no leak in files.
pub(crate) const MINIMA_PERCENT_MIN: i64 = 40;

/// Growth in files of less than this a step does not matter, unless it holds `HELD_BYTES_MIN`.
pub(crate) const RATE_BYTES_MIN: u64 = 4 << 10;

/// Bytes that matter whatever their rate.
pub(crate) const HELD_BYTES_MIN: u64 = 16 << 20;

/// Inactive split and excess of one rank matter in files from this many bytes on.
pub(crate) const EXCESS_BYTES_MIN: u64 = 1 << 30;

/// Pending frees matter in files from this many bytes on.
pub(crate) const PENDING_BYTES_MIN: u64 = 256 << 20;

/// Suspects that are listed.
pub const SUSPECTS_MAX: usize = 10;

/// Buckets of a histogram: as many as fit into a line of a terminal.
pub const BUCKETS_MAX: usize = 32;
