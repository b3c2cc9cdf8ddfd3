//! Chosen thresholds of the detector: each decides whether something is reported.
//!
//! Beside each stands its ablation: what half and twice the value change on 474 jobs of the tuned
//! families (seeds 700 to 702, at most 8 ranks). With these values 97.0 % of the faults were seen
//! and 85.0 % paged (recall), with 9 false pages, 4 duplicates, 61 notices about nothing (quiet),
//! and a median delay of 133 steps for leaks of 4 MiB a step on one rank. Changes below 0.4 %,
//! 3 notices and 3 steps are left out.
//!
//! Sizes of rings, windows and buffers, and tolerances of estimates, stand beside their code;
//! bounds that an operator can meet are in [`crate::limits`].

/// Memory of this age, in steps, is no longer part of a step's work. Growth may pause for as long.
/// Ablation: half: no change; twice: seen 96.6 %, recall 84.6 %, 6 false pages, 5 duplicates.
pub(super) const SETTLED_STEPS: u64 = 64;

/// Memory of one rank counts at this age, in steps, where the peers freed theirs.
/// Ablation: no change at half or twice the value.
pub(super) const SETTLED_OWN_STEPS: u64 = 24;

/// Memory is kept when its age is this percentage of the oldest age at which its line freed any.
/// Ablation: half: recall 85.5 %, 74 quiet, delay 124; twice: recall 84.6 %.
pub(super) const BEYOND_PERCENT: u64 = 150;

/// A cohort that lost this share, in percent, shows the lifetime of its line's memory.
/// Ablation: half: no change; twice: 10 false pages.
pub(super) const LOSS_PERCENT: u64 = 20;

/// Growth has births in at least this many cohorts.
/// Ablation: half: 10 false pages, 5 duplicates, 72 quiet, delay 123; twice: 5 false pages, 6
/// duplicates, delay 141.
pub(super) const COHORTS_MIN: usize = 3;

/// Fewer survivors are not reported, in bytes or else in blocks; nor totals that rise by less.
/// Ablation: half: recall 84.6 %; twice: no change.
pub(super) const KEPT_BYTES_MIN: u64 = 16 << 20;
/// Ablation: no change at half or twice the value.
pub(super) const KEPT_COUNT_MIN: u64 = 1_024;

/// Lifetimes that became longer this many times are reported.
/// Ablation: half: seen 95.7 %, recall 83.8 %, 79 quiet; twice: seen 96.6 %, recall 84.6 %.
pub(super) const LONGER_MIN: u32 = 3;

/// Garbage that is collected at equal distances is reported after this many collections, …
pub(super) const COLLECTIONS_MIN: u32 = 2;

/// … when it takes this part of the device: less waits for the collector and does no harm.
pub(super) const GARBAGE_DIVISOR: u64 = 10;

/// A rank grows by itself when it keeps this many times what its peers keep.
/// Ablation: half: 10 false pages, 64 quiet; twice: no change.
pub(super) const OWN_TIMES: u64 = 4;

/// Shared growth is reported after this many steps.
/// Ablation: half: 82 quiet; twice: 3 duplicates, 46 quiet, and three more real programs end before
/// they are noticed.
pub(super) const NOTICE_STEPS: u64 = 144;

/// Growth that began this soon after the start, in steps, may be the job's set-up.
/// Ablation: half: 10 false pages, 64 quiet; twice: 58 quiet.
pub(super) const SETUP_STEPS: u64 = 128;

/// Growth that began during set-up must last this many times longer before it is reported, and
/// before it is certain.
/// Ablation: half: 10 false pages, 72 quiet; twice: recall 84.6 %, 3 duplicates, 54 quiet.
pub(super) const SETUP_TIMES: u64 = 4;

/// Growth is certain when it went on evenly for this many steps …
/// Ablation: half: recall 85.9 %, 12 false pages, 57 quiet; twice: recall 82.5 %, 5 duplicates.
pub(super) const EVEN_STEPS: u64 = 384;

/// … with births in this many cohorts; or when the end is near: [`crate::paging::is_near`].
/// Ablation: half: recall 85.5 %, 13 false pages, 57 quiet; twice: recall 82.9 %, 5 duplicates.
pub(super) const EVEN_COHORTS: usize = 9;

/// Growth has stopped when it pauses this many times longer than it ever did.
pub(super) const PAUSE_TIMES: u64 = 3;

/// Growth of blocks is over when none was seen for this many steps.
/// Ablation: half: 64 quiet; twice: no change.
pub(super) const STOPPED_STEPS: u64 = 256;

/// A level climbs when the lowest values of this many parts of a window do, …
pub(super) const PARTS: usize = 8;

/// Fewest steps of a trace that are judged. Independent peaks climb over so few once in 4,000
/// times, over [`PARTS`] once in 400,000; a running job is judged again and again and needs more.
/// No ablation: the evaluation makes no files.
pub(super) const TRACE_POINTS_MIN: usize = 6;

/// … each by at least a fourth of the typical rise, …
/// Ablation: half: 3 duplicates; twice: no change.
pub(super) const EVEN_DIVISOR: i64 = 4;

/// … the later half by at least three fourths of what the earlier half did.
/// Ablation: half: 64 quiet; twice: seen 75.2 %, recall 67.5 %, 2 duplicates, 53 quiet.
pub(super) const GOES_ON_QUARTERS: i64 = 3;

/// Stairs of one kind are a notice when there are this many.
/// Ablation (seeds 700 and 701): without stairs 96.8 % seen of 186 faults, with them 98.9 % of 190.
pub(super) const STAIRS_MIN: usize = 4;

/// Stairs of any kind are a notice when there are this many.
/// Ablation (450 jobs, seeds 700 and 701): with them, and with stairs that are certain near the end
/// of memory, 97.8 % seen, recall 80.3 %, 87.9 % found before memory is out, 66 notices about
/// nothing, precision 94.7 %; without both 97.4 %, 78.1 %, 78.8 %, 62, 94.6 %.
pub(super) const STAIRS_ANY_MIN: usize = 8;

/// While all ranks grow, a rank has a cause of its own when its own growth is more than this many
/// halves of the shared growth.
/// Ablation: half: 6 duplicates; twice: no change.
pub(super) const APART_HALVES: i64 = 3;

/// Growth outside the allocator since the start may be a pool that fills, for this many steps.
/// Ablation: half: 13 false pages, 66 quiet; twice: seen 95.3 %, recall 83.3 %.
pub(super) const FILLING_STEPS: u64 = 1_024;

/// Even growth of the host is certain when memory ends within this many times its age: it has taken
/// a tenth of what was left when it began, and nine tenths of its life remain. Less may be a cache
/// that fills in the first epoch, however soon its rate alone would end memory.
/// Ablation (378 jobs, seeds 700 and 701): 4: recall 76.3 %; 12: recall 80.0 %.
pub(super) const HOST_AHEAD_TIMES: u64 = 9;

/// A peak is reported when it stays beyond the peers' by 1/10 of the device, and fills the device
/// to this percentage. Below, the difference may be the stages of a pipeline.
/// Ablation: no change at half or twice the value.
pub(super) const SPREAD_DIVISOR: u64 = 10;
/// Ablation: no change at half or twice the value.
pub(super) const SPREAD_LEVEL_PERCENT_MIN: u64 = 80;

/// A difference that came after warm-up is no stage: 1/25 of the device, and 1/10 of the peak, is
/// enough.
/// Ablation: half: seen 96.6 %, recall 84.6 %; twice: seen 97.4 %, recall 85.5 %.
pub(crate) const SPREAD_NEWS_DIVISOR: u64 = 25;

/// A condition recurs when it holds in this many of the last 64 steps: retries, …
/// Ablation: no change at half or twice the value.
pub(super) const RETRIES_MIN: u32 = 8;

/// … and segments that come and go.
/// Ablation: half: no change; twice: seen 95.7 %, recall 83.8 %.
pub(super) const CHURN_MIN: u32 = 40;

/// A rank is silent when nothing came from it for this long, in nanoseconds, while its median peer
/// finished this many steps. The time counts from the first check that found it silent: after a
/// global pause one rank resumes first.
/// Ablation: no change at half or twice the value.
pub(super) const SILENT_NS: u64 = 30_000_000_000;
/// Ablation: no change at half or twice the value.
pub(super) const SILENT_STEPS_MIN: u64 = 8;
