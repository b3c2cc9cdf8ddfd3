//! Shares the resources of a node between owners: turns and amounts.
//!
//! Work that is done one piece after the other (censuses, rewinds, records of a report) goes by
//! [`Turns`]: the owner whose last turn is longest ago is next. A resource that fills (tapes, the
//! spool, memory of censuses) goes by [`Amounts`]: the owner who has most gives something up. So an
//! owner with a large demand does not reduce the equal part of another. A coordinator shares by
//! node first and then by owner ([`Shares`]): an agent proves its node, and says itself whose its
//! ranks are. Nothing here knows the resource; the caller states owners and amounts.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// Maximum owners whose last turn is remembered. The owner with the oldest turn is forgotten first,
/// and counts as an owner without a turn.
const OWNERS_MAX: usize = 4096;

/// Turns by owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turns<Owner> {
    /// The number of each owner's last turn; numbers begin with 1.
    last: BTreeMap<Owner, u64>,
    given: u64,
}

/// The amount of each owner. Owners with 0 are not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amounts<Owner> {
    of: BTreeMap<Owner, u64>,
    /// Of all owners: thousands of nodes are asked about thousands of times a second.
    sum: u128,
}

/// Amounts of each node, and of each owner on each node. A holder is a node with an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares<Node, Owner> {
    nodes: Amounts<Node>,
    owners: Amounts<(Node, Owner)>,
}

/// Marks the items to keep within `count_max`: an equal part per node, then per owner.
pub fn equal_parts<Node: Ord + Copy, Owner: Ord + Copy>(
    holders: &[(Node, Owner)],
    count_max: usize,
) -> Vec<bool> {
    let mut order: Vec<usize> = (0..holders.len()).collect();
    take_turns(&mut order, |&index| holders[index]);
    take_turns(&mut order, |&index| holders[index].0);
    let mut is_kept = vec![false; holders.len()];
    order.iter().take(count_max).for_each(|index| is_kept[*index] = true);
    is_kept
}

/// Sorts so that the first thing of each owner comes first, then the second of each, and so on.
fn take_turns<T, Owner: Ord>(all: &mut [T], owner: impl Fn(&T) -> Owner) {
    let mut turns = BTreeMap::<Owner, u64>::new();
    all.sort_by_cached_key(|one| {
        let turn = turns.entry(owner(one)).or_default();
        *turn += 1;
        *turn
    });
}

impl<Owner> Default for Turns<Owner> {
    fn default() -> Self {
        Self { last: BTreeMap::new(), given: 0 }
    }
}

impl<Owner: Ord + Copy> Turns<Owner> {
    /// The number of an owner's last turn; 0 without any. The owner with the lowest is next.
    pub fn last(&self, owner: Owner) -> u64 {
        self.last.get(&owner).copied().unwrap_or(0)
    }

    /// Gives this owner a turn.
    pub fn give(&mut self, owner: Owner) {
        self.given = self.given.saturating_add(1);
        self.last.insert(owner, self.given);
        if self.last.len() > OWNERS_MAX {
            let oldest = self.last.iter().min_by_key(|(_, turn)| **turn);
            let oldest = oldest.map(|(owner, _)| *owner);
            oldest.map(|owner| self.last.remove(&owner));
        }
    }
}

impl<Owner> Default for Amounts<Owner> {
    fn default() -> Self {
        Self { of: BTreeMap::new(), sum: 0 }
    }
}

impl<Owner: Ord + Copy> Amounts<Owner> {
    /// Amount of an owner.
    pub fn of(&self, owner: Owner) -> u64 {
        self.of.get(&owner).copied().unwrap_or(0)
    }

    /// An owner has this much more.
    pub fn add(&mut self, owner: Owner, amount: u64) {
        self.set(owner, self.of(owner).saturating_add(amount));
    }

    /// An owner has this much less.
    pub fn take(&mut self, owner: Owner, amount: u64) {
        self.set(owner, self.of(owner).saturating_sub(amount));
    }

    fn set(&mut self, owner: Owner, amount: u64) {
        let before = match amount {
            0 => self.of.remove(&owner),
            _ => self.of.insert(owner, amount),
        };
        self.sum = self.sum + u128::from(amount) - u128::from(before.unwrap_or(0));
    }

    /// Sum over all owners.
    pub fn sum(&self) -> u64 {
        u64::try_from(self.sum).unwrap_or(u64::MAX)
    }

    /// Number of owners beside this one.
    fn others(&self, owner: Owner) -> u64 {
        (self.of.len() - usize::from(self.of.contains_key(&owner))) as u64
    }

    /// Each owner with its amount.
    pub fn iter(&self) -> impl Iterator<Item = (Owner, u64)> {
        self.of.iter().map(|(owner, of)| (*owner, *of))
    }

    /// The owner who has most, with the amount; of several the one with the highest name.
    pub fn most(&self) -> Option<(Owner, u64)> {
        self.of.iter().max_by_key(|(_, of)| **of).map(|(owner, of)| (*owner, *of))
    }

    /// The part of `all` that an owner may have: what the others leave, and an equal part at least.
    pub fn part(&self, owner: Owner, all: u64) -> u64 {
        let left = all.saturating_sub(self.sum().saturating_sub(self.of(owner)));
        left.max(all / self.others(owner).saturating_add(1))
    }

    /// May an owner have this much more of `all`? An owner who is alone may have all of it; beside
    /// others, no more than an equal part.
    pub fn admits(&self, owner: Owner, amount: u64, all: u64) -> bool {
        let others = self.others(owner);
        others == 0 || self.of(owner).saturating_add(amount) <= all / others.saturating_add(1)
    }
}

impl<Owner: Ord + Copy> FromIterator<(Owner, u64)> for Amounts<Owner> {
    fn from_iter<All: IntoIterator<Item = (Owner, u64)>>(all: All) -> Self {
        let mut amounts = Self::default();
        all.into_iter().for_each(|(owner, amount)| amounts.add(owner, amount));
        amounts
    }
}

impl<Node, Owner> Default for Shares<Node, Owner> {
    fn default() -> Self {
        Self { nodes: Amounts::default(), owners: Amounts::default() }
    }
}

impl<Node: Ord + Copy, Owner: Ord + Copy> Shares<Node, Owner> {
    /// A holder has this much more.
    pub fn add(&mut self, holder: (Node, Owner), amount: u64) {
        self.nodes.add(holder.0, amount);
        self.owners.add(holder, amount);
    }

    /// A holder has this much less.
    pub fn take(&mut self, holder: (Node, Owner), amount: u64) {
        self.nodes.take(holder.0, amount);
        self.owners.take(holder, amount);
    }

    /// The holder who gives way first: on the node that has most, the owner who has most.
    pub fn most(&self) -> Option<(Node, Owner)> {
        let (node, _) = self.nodes.most()?;
        let on_node = self.owners.iter().filter(|((of, _), _)| *of == node);
        on_node.max_by_key(|(_, of)| *of).map(|(holder, _)| holder)
    }

    /// Replaces the amounts of nodes; the amounts of owners stay.
    pub fn with_nodes(self, nodes: Amounts<Node>) -> Self {
        Self { nodes, ..self }
    }

    /// Amounts of a holder's node, and of its owner on that node. The greatest gives way first.
    pub fn of(&self, holder: (Node, Owner)) -> (u64, u64) {
        (self.nodes.of(holder.0), self.owners.of(holder))
    }

    /// May a holder have this much more of `all`? Where no item can be given up, as much must stay
    /// free as its node and its owner have: one that is alone has a third at most.
    pub fn admits(&self, holder: (Node, Owner), amount: u64, all: u64) -> bool {
        let ((node, owner), free) = (self.of(holder), all.saturating_sub(self.nodes.sum()));
        node.saturating_add(owner).saturating_add(amount) <= free
    }

    /// Can an item of `holder` that is over be forgotten for `newcomer`? Not where the newcomer has
    /// more.
    pub fn gives_way(&self, holder: (Node, Owner), newcomer: (Node, Owner)) -> bool {
        let ((node, owner), own) = (self.of(holder), self.of(newcomer));
        if holder.0 == newcomer.0 { owner >= own.1 } else { node >= own.0 }
    }

    /// Can an item in use of `holder` be given up for `newcomer`, with a bound of `all` items? Only
    /// where the newcomer has less, also afterwards, and, between nodes, where the newcomer's node
    /// has less than an equal part.
    pub fn gives_way_in_use(
        &self,
        holder: (Node, Owner),
        newcomer: (Node, Owner),
        all: u64,
    ) -> bool {
        let ((node, owner), own) = (self.of(holder), self.of(newcomer));
        if holder.0 == newcomer.0 {
            return owner > own.1.saturating_add(1);
        }
        node > own.0.saturating_add(1) && self.nodes.admits(newcomer.0, 1, all)
    }

    /// Does a holder have more than all others together: its node, or, on the only node, its owner?
    pub fn has_more_than_half(&self, holder: (Node, Owner)) -> bool {
        let (node, owner) = self.of(holder);
        match self.nodes.of.len() {
            0 | 1 => self.owners.of.len() > 1 && owner > self.owners.sum() / 2,
            _ => node > self.nodes.sum() / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_equal_part_is_all_for_one_alone() {
        let mut amounts: Amounts<u32> = [(1, 60), (2, 10), (1, 5)].into_iter().collect();
        assert_eq!((amounts.of(1), amounts.sum(), amounts.most()), (65, 75, Some((1, 65))));
        // Of 100, each of two may have 50, and a third a third.
        assert!(!amounts.admits(1, 1, 100) && amounts.admits(2, 40, 100));
        assert!(amounts.admits(3, 33, 100) && !amounts.admits(3, 34, 100));
        amounts.take(2, 10);
        assert!(amounts.admits(1, 1000, 100), "who is alone has all");
    }

    #[test]
    fn of_too_many_things_each_holder_keeps_an_equal_part() {
        let flood = [("evil", 1)].repeat(9).into_iter().chain([("evil", 2)]);
        let holders: Vec<_> = flood.chain([("a", 1), ("b", 1), ("a", 2)]).collect();
        let kept = |count_max| {
            let is_kept = equal_parts(&holders, count_max);
            let kept = holders.iter().zip(is_kept).filter(|(_, is_kept)| *is_kept);
            kept.map(|(holder, _)| *holder).collect::<Vec<_>>()
        };
        assert_eq!(kept(3), [("evil", 1), ("a", 1), ("b", 1)]);
        assert_eq!(kept(5), [("evil", 1), ("evil", 2), ("a", 1), ("b", 1), ("a", 2)]);
        assert_eq!(kept(6)[..2], [("evil", 1); 2]);
        assert_eq!(kept(13), holders);
    }

    #[test]
    fn turns_are_bounded() {
        let mut turns = Turns::default();
        (0..2 * OWNERS_MAX as u64).for_each(|owner| turns.give(owner));
        assert_eq!(turns.last.len(), OWNERS_MAX);
        assert!(turns.last(0) == 0 && turns.last(2 * OWNERS_MAX as u64 - 1) > 0);
    }

    #[test]
    fn a_node_has_no_more_for_having_many_owners() {
        let mut shares = Shares::default();
        (0..60_u32).for_each(|owner| shares.add(("thief", owner), 1));
        (0..40_u32).for_each(|owner| shares.add(("honest", owner % 2), 1));
        let (thief, honest) = (("thief", 7), ("honest", 1));
        assert_eq!((shares.of(thief), shares.of(honest)), ((60, 1), (40, 20)));
        assert!(shares.gives_way(thief, honest) && !shares.gives_way(honest, thief));
        assert!(shares.gives_way_in_use(thief, honest, 100), "40 is less than half");
        assert!(!shares.gives_way_in_use(honest, thief, 100));
        assert!(shares.gives_way_in_use(honest, ("new", 0), 100), "a third is 33");
        assert!(shares.gives_way_in_use(honest, ("honest", 9), 100), "on one node by owner");
        assert!(!shares.gives_way_in_use(thief, ("thief", 8), 100));
        assert!(shares.has_more_than_half(thief) && !shares.has_more_than_half(honest));
        let mut alone = Shares::default();
        alone.add(("node", 1), 100);
        assert!(!alone.has_more_than_half(("node", 1)), "an owner without others");
        alone.add(("node", 2), 1);
        assert!(alone.has_more_than_half(("node", 1)) && !alone.has_more_than_half(("node", 2)));
        assert!(!alone.admits(("node", 1), 1, 302) && alone.admits(("node", 1), 1, 303));
        assert!(alone.admits(("node", 2), 100, 303) && alone.admits(("other", 1), 202, 303));
        assert!(!alone.admits(("other", 1), 203, 303));
    }

    proptest! {
        /// The sum is that of all owners, also where amounts are beyond what a number holds.
        #[test]
        fn the_sum_of_amounts_is_kept(
            changes in prop::collection::vec((0_u32..4, any::<bool>(), any::<u64>()), 1..40),
        ) {
            let mut amounts = Amounts::default();
            for (owner, is_more, amount) in changes {
                match is_more {
                    true => amounts.add(owner, amount),
                    false => amounts.take(owner, amount),
                }
                let sum = amounts.iter().fold(0, |sum: u64, (_, of)| sum.saturating_add(of));
                prop_assert_eq!(amounts.sum(), sum);
                prop_assert!(amounts.iter().all(|(_, of)| of > 0));
                for owner in 0..4 {
                    let others = amounts.iter().filter(|(of, _)| *of != owner).count();
                    prop_assert_eq!(amounts.others(owner), others as u64);
                }
            }
        }

        /// An owner with something to do is next after at most one turn of each other owner,
        /// however much these want.
        #[test]
        fn an_owner_waits_for_one_turn_of_each_other_at_most(
            mut waiting in prop::collection::vec(0_u32..6, 1..80),
            before in prop::collection::vec(0_u32..6, 0..20),
        ) {
            let mut turns = Turns::default();
            before.into_iter().for_each(|owner| turns.give(owner));
            let mut waited: BTreeMap<u32, usize> = BTreeMap::new();
            while !waiting.is_empty() {
                let next = (0..waiting.len()).min_by_key(|at| turns.last(waiting[*at]));
                let owner = waiting.remove(next.expect("one waits"));
                turns.give(owner);
                waited.remove(&owner);
                let others = waiting.iter().copied().filter(|of| *of != owner);
                for other in others.collect::<BTreeSet<u32>>() {
                    let turns = waited.entry(other).or_default();
                    *turns += 1;
                    prop_assert!(*turns <= 5, "owner {} waits for {} turns", other, turns);
                }
            }
        }
    }
}
