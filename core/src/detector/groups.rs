//! Peers: the ranks that do the same work, and their medians at each block of steps.
//!
//! Ranks of one parallel role are a group. Known roles are used unchanged. Where no role is known,
//! groups are learnt when warm-up ends: stages of a pipeline hold different amounts, so a wide gap
//! between the levels of two sets of ranks separates them. A single rank is never a learnt group:
//! it would have no peer, and it may be the rank that leaks.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::series::{BLOCKS, Layer, Past, SCALES, TRACKS};

/// Groups that are kept apart; further roles share the last one.
const GROUPS_MAX: usize = 64;

/// A learnt group has at least this many ranks: the median of fewer is not reliable.
const LEARNT_RANKS_MIN: usize = 3;

/// A gap between levels separates groups when it is at least this many bytes …
const GAP_BYTES_MIN: i64 = 256 << 20;

/// … and at least 1/20 of the level below it.
const GAP_DIVISOR: i64 = 20;

/// The medians that a rank is compared with at one block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Medians {
    /// Number of values.
    pub(super) count: u32,
    /// Lower median of all of them.
    pub(super) all: i64,
    /// The two sorted values between which the median of the peers lies.
    low: i64,
    high: i64,
}

impl Medians {
    pub(super) fn of(values: &mut [i64]) -> Self {
        let count = values.len();
        let mut at = |index: usize| match values.get_mut(..count) {
            Some(values) if index < count => *values.select_nth_unstable(index).1,
            _ => 0,
        };
        let others = count.saturating_sub(2) / 2;
        let all = at(count.saturating_sub(1) / 2);
        let (low, high) = (at(others), at((others + 1).min(count.saturating_sub(1))));
        Self { count: u32::try_from(count).unwrap_or(u32::MAX), all, low, high }
    }

    /// Returns the lower median of the peers, and their number: without the member `value`, or of
    /// all values for a rank that is no member.
    pub(super) fn of_peers(&self, value: i64, is_member: bool) -> (i64, u32) {
        match (is_member, self.count) {
            (true, 0 | 1) => (0, 0),
            (true, count) => (if value > self.low { self.low } else { self.high }, count - 1),
            (false, count) => (self.all, count),
        }
    }
}

/// The medians of one block, for each layer.
#[derive(Clone, Debug, Default)]
pub(super) struct Swept {
    /// The block; none before the first.
    block: Option<u64>,
    /// Three quarters of the ranks that take part had finished it.
    pub(super) are_most: bool,
    pub(super) layers: [Option<Medians>; TRACKS],
}

/// Ranks of one role.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) ranks: Vec<u32>,
    /// The newest blocks of each length that were swept, at the index `block % BLOCKS`.
    swept: [Vec<Swept>; SCALES],
    /// Newest block swept of each length.
    newest: [Option<u64>; SCALES],
    /// Past of the median of all ranks, for each layer and length.
    pub(super) past: [[Past; SCALES]; TRACKS],
}

impl Group {
    /// The medians of a block; none when it was not swept, or too long ago.
    pub(super) fn swept(&self, scale: usize, block: u64) -> Option<&Swept> {
        let swept = self.swept[scale].get((block % BLOCKS as u64) as usize)?;
        (swept.block == Some(block)).then_some(swept)
    }

    /// The medians of one layer at a block.
    pub(super) fn medians(&self, layer: usize, scale: usize, block: u64) -> Option<Medians> {
        self.swept(scale, block)?.layers[layer]
    }

    /// The median of all ranks, where most had finished the block.
    pub(super) fn common(&self, layer: usize, scale: usize, block: u64) -> Option<i64> {
        let swept = self.swept(scale, block).filter(|swept| swept.are_most)?;
        swept.layers[layer].map(|medians| medians.all)
    }

    /// Newest block swept of a length.
    pub(super) fn newest(&self, scale: usize) -> Option<u64> {
        self.newest[scale]
    }

    /// Keeps the medians of a block.
    pub(super) fn keep(
        &mut self,
        scale: usize,
        block: u64,
        are_most: bool,
        layers: [Option<Medians>; TRACKS],
    ) {
        let ring = &mut self.swept[scale];
        ring.resize_with(BLOCKS, Swept::default);
        if let Some(slot) = ring.get_mut((block % BLOCKS as u64) as usize) {
            *slot = Swept { block: Some(block), are_most, layers };
        }
        self.newest[scale] = Some(self.newest[scale].map_or(block, |newest| newest.max(block)));
    }
}

/// All groups.
#[derive(Debug)]
pub(super) struct Groups {
    pub(super) list: Vec<Group>,
    of_rank: BTreeMap<u32, u8>,
    given: BTreeMap<u32, u64>,
    /// Roles that were given, in the order of their groups.
    roles: Vec<u64>,
}

impl Default for Groups {
    fn default() -> Self {
        Self {
            list: [Group::default()].into(),
            of_rank: BTreeMap::new(),
            given: BTreeMap::new(),
            roles: Vec::new(),
        }
    }
}

impl Groups {
    /// Adds a rank; until its role is known it is in the first group.
    pub(super) fn add(&mut self, rank: u32) {
        if self.of_rank.contains_key(&rank) {
            return;
        }
        self.of_rank.insert(rank, 0);
        if let Some(group) = self.list.first_mut() {
            group.ranks.push(rank);
        }
        if let Some(&role) = self.given.get(&rank) {
            self.give(rank, role);
        }
    }

    /// Moves a rank to the group of its role.
    pub(super) fn give(&mut self, rank: u32, role: u64) {
        self.given.insert(rank, role);
        let known = self.roles.iter().position(|&known| known == role);
        let group = known.unwrap_or_else(|| {
            if self.roles.len() < GROUPS_MAX {
                self.roles.push(role);
            }
            self.roles.len() - 1
        });
        self.move_to(rank, group);
    }

    /// The group of a rank.
    pub(super) fn of(&self, rank: u32) -> usize {
        self.of_rank.get(&rank).map_or(0, |&group| usize::from(group))
    }

    /// Number of the other ranks in the group of a rank.
    pub(super) fn peers(&self, rank: u32) -> u32 {
        let group = self.list.get(self.of(rank));
        let members = group.map_or(1, |group| group.ranks.len());
        u32::try_from(members).unwrap_or(u32::MAX).saturating_sub(1)
    }

    /// Divides the ranks into groups by their levels, unless roles are known.
    pub(super) fn learn(&mut self, levels: &[(i64, u32)]) {
        if !self.roles.is_empty() {
            return;
        }
        let mut sorted = levels.to_vec();
        sorted.sort_unstable();
        let is_gap = |pair: &[(i64, u32)]| {
            pair[1].0 - pair[0].0 > GAP_BYTES_MIN.max(pair[0].0 / GAP_DIVISOR)
        };
        let mut sets: Vec<&[(i64, u32)]> = Vec::new();
        let mut rest = &sorted[..];
        // A set too small for a group joins the ranks above it; the highest set joins those below.
        while rest.len() >= LEARNT_RANKS_MIN {
            let gaps = rest.windows(2).enumerate().filter(|(_, pair)| is_gap(pair));
            let mut ends = gaps.map(|(index, _)| index + 1);
            let is_fit =
                |end: &usize| *end >= LEARNT_RANKS_MIN && rest.len() - end >= LEARNT_RANKS_MIN;
            let (set, others) = rest.split_at(ends.find(is_fit).unwrap_or(rest.len()));
            sets.push(set);
            rest = others;
        }
        let are_fit = sets.len() > 1 && sets.len() <= GROUPS_MAX;
        for (group, set) in sets.iter().enumerate().filter(|_| are_fit) {
            set.iter().for_each(|&(_, rank)| self.move_to(rank, group));
        }
    }

    /// Notes that the level was higher in warm-up than at its end, by `beyond` bytes: a buffer that
    /// is emptied after each epoch may rise as high again.
    pub(super) fn note_past(&mut self, beyond: i64) {
        let allocated = Layer::Allocated.index().unwrap_or(0);
        for group in self.list.iter_mut().filter(|_| beyond > 0) {
            group.past[allocated].iter_mut().for_each(|past| past.add(beyond));
        }
    }

    fn move_to(&mut self, rank: u32, group: usize) {
        let Some(slot) = self.of_rank.get_mut(&rank) else { return };
        let before = usize::from(core::mem::replace(slot, group as u8));
        if before == group {
            return;
        }
        if let Some(group) = self.list.get_mut(before) {
            group.ranks.retain(|&known| known != rank);
        }
        while self.list.len() <= group {
            self.list.push(Group::default());
        }
        self.list[group].ranks.push(rank);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: i64 = 1 << 30;

    fn learnt(levels: &[i64]) -> Vec<usize> {
        let mut groups = Groups::default();
        let with_ranks: Vec<(i64, u32)> = levels.iter().copied().zip(0..).collect();
        with_ranks.iter().for_each(|&(_, rank)| groups.add(rank));
        groups.learn(&with_ranks);
        let of_rank: Vec<usize> = (0..levels.len() as u32).map(|rank| groups.of(rank)).collect();
        let listed: usize = groups.list.iter().map(|group| group.ranks.len()).sum();
        assert_eq!(listed, levels.len(), "every rank is in one group");
        of_rank
    }

    #[test]
    fn roles_are_learnt_from_levels() {
        let gib = |levels: &[i64]| learnt(&levels.iter().map(|l| l * GIB).collect::<Vec<_>>());
        assert_eq!(gib(&[10, 10, 10, 20, 20, 20]), [0, 0, 0, 1, 1, 1]);
        assert_eq!(gib(&[20, 10, 20, 10, 20, 10, 40, 40, 40]), [1, 0, 1, 0, 1, 0, 2, 2, 2]);
        // No group has one or two ranks.
        assert_eq!(gib(&[10, 10, 10, 20]), [0; 4]);
        assert_eq!(gib(&[10, 10, 20, 20]), [0; 4]);
        assert_eq!(gib(&[10, 10, 10, 20, 20, 20, 60]), [0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(gib(&[]), [0; 0]);
        // Small differences separate no groups.
        assert_eq!(learnt(&[GIB, GIB + 9, GIB + 5, GIB + 99, GIB, GIB + 1]), [0; 6]);
    }

    #[test]
    fn given_roles_are_kept() {
        let mut groups = Groups::default();
        groups.give(1, 77);
        (0..4).for_each(|rank| groups.add(rank));
        groups.give(0, 5);
        groups.give(2, 5);
        groups.give(3, 77);
        assert_eq!([0, 1, 2, 3].map(|rank| groups.of(rank)), [1, 0, 1, 0]);
        groups.learn(&[(0, 0), (GIB, 1), (GIB * 9, 2), (GIB * 90, 3)]);
        assert_eq!([0, 1, 2, 3].map(|rank| groups.of(rank)), [1, 0, 1, 0]);
    }

    proptest! {
        #[test]
        fn the_median_of_the_others(values in proptest::collection::vec(-50..50_i64, 1..30)) {
            let medians = Medians::of(&mut values.clone());
            for (index, &value) in values.iter().enumerate() {
                let mut others = values.clone();
                others.remove(index);
                others.sort_unstable();
                let expected = others.get(others.len().saturating_sub(1) / 2).copied();
                let (median, count) = medians.of_peers(value, true);
                prop_assert_eq!(count as usize, others.len());
                prop_assert_eq!(median, expected.unwrap_or(0));
            }
        }

        #[test]
        fn any_levels_make_whole_groups(levels in proptest::collection::vec(any::<u32>(), 0..99)) {
            let levels: Vec<i64> = levels.into_iter().map(|l| i64::from(l) << 8).collect();
            let groups = learnt(&levels);
            for group in &groups {
                let count = groups.iter().filter(|other| *other == group).count();
                prop_assert!(count >= LEARNT_RANKS_MIN || groups.iter().all(|g| *g == 0));
            }
        }
    }
}
