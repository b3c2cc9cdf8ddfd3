//! The rows: what ranks of a training job report, a step a second each. Most numbers hardly
//! change; times and counts jitter as they do, and floors grow a little on some ranks.

use memtape_store::block;

/// The numbers of one row: first and last step, wall time, bytes and counts.
pub(crate) type Row = [u64; block::COLUMNS];

/// Ranks, and so series.
pub(crate) const RANKS: u32 = 512;

/// Steps of each rank in a group of writes.
pub(crate) const GROUP_STEPS: u64 = 20;

/// Time of a step.
pub(crate) const STEP_NS: i64 = 1_000_000_000;

/// When the first step begins.
const BEGIN_NS: i64 = 1_780_000_000 * STEP_NS;

/// When a step ends, but for jitter.
pub(crate) fn wall_ns(step: u64) -> i64 {
    BEGIN_NS + step as i64 * STEP_NS
}

/// The rows of all ranks from this step on.
pub(crate) fn group(first: u64) -> Vec<(u32, Vec<Row>)> {
    group_of(RANKS, first)
}

/// The rows of this number of ranks from this step on.
pub(crate) fn group_of(ranks: u32, first: u64) -> Vec<(u32, Vec<Row>)> {
    let rows = |rank| (first..first + GROUP_STEPS).map(|step| row(rank, step)).collect();
    (0..ranks).map(|rank| (rank, rows(rank))).collect()
}

fn row(rank: u32, step: u64) -> Row {
    let noise = noise(u64::from(rank) << 40 | step);
    let blocks_of_512 = |bits: u32| (noise >> bits & 0xff) * 512;
    let leaked = if rank.is_multiple_of(64) { step * 4096 } else { 0 };
    let floor = (20 << 30) + u64::from(rank) * (1 << 20) + leaked;
    let jitter_ns = (noise & 0xf_ffff) as i64;
    [
        step,
        step,
        (wall_ns(step) + jitter_ns) as u64,
        floor,
        floor + (30 << 30) + blocks_of_512(8),
        floor + blocks_of_512(16) / 8,
        64 << 30,
        64 << 30,
        64 << 30,
        4321 + (noise >> 24 & 3),
        step * 5000 + (noise >> 26 & 31),
        step * 5000,
        0,
        0,
    ]
}

/// Any number, always the same (SplitMix64's last step).
fn noise(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
