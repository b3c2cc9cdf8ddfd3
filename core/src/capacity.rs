//! Number of ranks that a coordinator can remember in its memory limit.
//!
//! Messages, uploads, comparisons and answers have bounds of their own. The remaining memory is for
//! ranks, at a measured cost a rank with a margin.

use crate::limits::{
    BESIDE_RANKS_BYTES_MAX, CENSUSES_PER_RANK_BYTES_MAX, RANK_BYTES_MAX, RANKS_MAX,
};

/// Ranks that are remembered within this memory; at least one.
pub fn ranks_within(memory_bytes: u64) -> usize {
    // A small coordinator shares its memory equally.
    let beside = BESIDE_RANKS_BYTES_MAX.min(memory_bytes / 2);
    let ranks = (memory_bytes - beside) / RANK_BYTES_MAX;
    usize::try_from(ranks).unwrap_or(RANKS_MAX).clamp(1, RANKS_MAX)
}

/// Memory for the censuses of all running ranks in bytes, where `ranks_max` ranks are remembered.
pub fn censuses_bytes(ranks_max: usize) -> u64 {
    (ranks_max as u64).saturating_mul(CENSUSES_PER_RANK_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_follow_from_the_memory() {
        let check = |memory_bytes, ranks| assert_eq!(ranks_within(memory_bytes), ranks);
        check(0, 1);
        check(1 << 30, 10_922);
        // The chart's limit.
        check(4 << 30, 43_690);
        check(14 << 30, RANKS_MAX);
        check(u64::MAX, RANKS_MAX);
    }
}
