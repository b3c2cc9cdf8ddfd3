//! Chosen thresholds of the detector: each decides whether something is reported.
//!
//! Sizes of rings, windows and buffers, and tolerances of estimates, stand beside their code;
//! bounds that an operator can meet are in [`crate::limits`].

/// Memory of this age, in steps, is no longer part of a step's work. Growth may pause for as long.
pub(super) const SETTLED_STEPS: u64 = 64;

/// Memory of one rank counts at this age, in steps, where the peers freed theirs.
pub(super) const SETTLED_OWN_STEPS: u64 = 24;

/// Memory is kept when its age is this percentage of the oldest age at which its line freed any.
pub(super) const BEYOND_PERCENT: u64 = 150;

/// A cohort that lost this share, in percent, shows the lifetime of its line's memory.
pub(super) const LOSS_PERCENT: u64 = 20;

/// Growth has births in at least this many cohorts.
pub(super) const COHORTS_MIN: usize = 3;

/// Fewer survivors are not reported, in bytes or else in blocks; nor totals that rise by less.
pub(super) const KEPT_BYTES_MIN: u64 = 16 << 20;
pub(super) const KEPT_COUNT_MIN: u64 = 1_024;

/// Lifetimes that became longer this many times are reported.
pub(super) const LONGER_MIN: u32 = 3;

/// A rank grows by itself when it keeps this many times what its peers keep.
pub(super) const OWN_TIMES: u64 = 4;

/// Shared growth is reported after this many steps.
pub(super) const NOTICE_STEPS: u64 = 144;

/// Growth that began this soon after the start, in steps, may be the job's set-up.
pub(super) const SETUP_STEPS: u64 = 128;

/// Growth that began with the set-up is reported, and is certain, after this many times as long.
pub(super) const SETUP_TIMES: u64 = 4;

/// Shared growth is certain when it went on evenly for this many steps …
pub(super) const EVEN_STEPS: u64 = 384;

/// … with births in this many cohorts, …
pub(super) const EVEN_COHORTS: usize = 9;

/// … or when the memory that is left is at most this many times what has grown.
pub(super) const AHEAD_TIMES: u64 = 2;

/// Growth of blocks is over when none was seen for this many steps.
pub(super) const STOPPED_STEPS: u64 = 256;

/// A level climbs when the lowest values of this many parts of a window do …
pub(super) const PARTS: usize = 8;

/// … each by at least a fourth of the typical rise, …
pub(super) const EVEN_DIVISOR: i64 = 4;

/// … and at most three times as much, …
pub(super) const EVEN_TIMES: i64 = 3;

/// … the later half by at least three fourths of what the earlier half did.
pub(super) const GOES_ON_QUARTERS: i64 = 3;

/// While all ranks grow, a rank has a cause of its own when its own growth is more than 3/2 of the
/// shared growth.
pub(super) const APART_NUMERATOR: i64 = 3;
pub(super) const APART_DENOMINATOR: i64 = 2;

/// Growth outside the allocator since the start may be a pool that fills, for this many steps.
pub(super) const FILLING_STEPS: u64 = 1_024;

/// A peak is reported when it stays beyond the peers' by 1/10 of the device, and fills the device
/// to this percentage. Below, the difference may be the stages of a pipeline.
pub(super) const SPREAD_DIVISOR: u64 = 10;
pub(super) const SPREAD_LEVEL_PERCENT_MIN: u64 = 80;

/// A difference that came after warm-up is no stage: 1/25 of the device, and 1/10 of the peak, is
/// enough.
pub(super) const SPREAD_NEWS_DIVISOR: u64 = 25;

/// A condition recurs when it holds in this many of the last 64 steps: retries, …
pub(super) const RETRIES_MIN: u32 = 8;

/// … and segments that come and go.
pub(super) const CHURN_MIN: u32 = 40;

/// A rank is silent when nothing came from it for this long, in nanoseconds, while its median peer
/// finished this many steps. The time counts from the first check that found it silent: after a
/// global pause one rank resumes first.
pub(super) const SILENT_NS: u64 = 30_000_000_000;
pub(super) const SILENT_STEPS_MIN: u64 = 8;
