//! What the detector's judgements rest on: every value that was chosen, in one place.
//!
//! Sizes of rings and buffers stand beside them; bounds that an operator can meet are in
//! [`crate::limits`].

/// Memory that is this old, in steps, is no work under way. Growth may pause for as long.
pub(super) const SETTLED_STEPS: u64 = 64;

/// One rank's own memory counts at this age, in steps, where its peers freed theirs.
pub(super) const SETTLED_OWN_STEPS: u64 = 24;

/// What is this much older than any memory of its line that was ever freed stays, in percent.
pub(super) const BEYOND_PERCENT: u64 = 150;

/// A cohort that lost this much, in percent, shows how old memory of its line becomes.
pub(super) const LOSS_PERCENT: u64 = 20;

/// Growth has births in at least this many cohorts.
pub(super) const COHORTS_MIN: usize = 3;

/// Survivors of less are not reported, in bytes or else in blocks.
pub(super) const KEPT_BYTES_MIN: u64 = 16 << 20;
pub(super) const KEPT_COUNT_MIN: u64 = 1_024;

/// Totals that rise by less are not reported, in bytes.
pub(super) const SWELLING_BYTES_MIN: u64 = 64 << 20;

/// Lives that became longer this often, one after the other, are reported.
pub(super) const LONGER_MIN: u32 = 3;

/// This many times what its peers keep is a rank's own growth.
pub(super) const OWN_TIMES: u64 = 4;

/// Shared growth is reported after this many steps.
pub(super) const NOTICE_STEPS: u64 = 112;

/// What began this soon after the start may be the job's set-up, in steps.
pub(super) const SETUP_STEPS: u64 = 128;

/// Growth that began with the set-up is reported, and is certain, after this many times as long.
pub(super) const SETUP_TIMES: u64 = 4;

/// Shared growth is certain when it was even for this many steps …
pub(super) const EVEN_STEPS: u64 = 384;

/// … with births in this many cohorts, …
pub(super) const EVEN_COHORTS: usize = 9;

/// … or when the memory is full within this many times what was seen.
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

/// While all ranks grow, a rank grows for a reason of its own if it adds more than one and a half
/// times (3 / 2) as much again.
pub(super) const APART_NUMERATOR: i64 = 3;
pub(super) const APART_DENOMINATOR: i64 = 2;

/// What began with the job outside the allocator may be a pool that fills, for this many steps.
pub(super) const FILLING_STEPS: u64 = 1_024;

/// A peak stands apart when it stays beyond the peers' by a tenth of the device, and fills the
/// device to this percentage. Before, a difference may be the stages of a pipeline.
pub(super) const SPREAD_DIVISOR: u64 = 10;
pub(super) const SPREAD_LEVEL_PERCENT_MIN: u64 = 80;

/// A difference that came after warm-up is no stage: a twenty-fifth of the device, and a tenth of
/// the peak itself, is enough.
pub(super) const SPREAD_NEWS_DIVISOR: u64 = 25;

/// A condition recurs when it holds in this many of the last 64 steps: retries, …
pub(super) const RETRIES_MIN: u32 = 8;

/// … and segments that come and go.
pub(super) const CHURN_MIN: u32 = 40;

/// A rank is silent when nothing came from it for this long, in nanoseconds, while its median peer
/// finished this many steps. Both count from the first step that is heard without it: after a
/// global pause one rank resumes first.
pub(super) const SILENT_NS: u64 = 30_000_000_000;
pub(super) const SILENT_STEPS_MIN: u64 = 8;
