//! Rates of callers: a bucket of permits for each caller, which fills with time.
//!
//! The clock is passed in. A bucket is one number: the time at which it is full again. Full buckets
//! are forgotten when there are too many. This file does not know the counted events.

use alloc::collections::BTreeMap;
use core::time::Duration;

use crate::limits::{NODES_MAX, RANKS_MAX};

/// The buckets of all callers.
#[derive(Clone, Debug)]
pub struct Rates<Caller = u64> {
    /// Time after which one more permit is there.
    refill_ns: u64,
    /// Time after which an empty bucket is full.
    full_ns: u64,
    /// Callers that are remembered.
    callers_max: usize,
    /// Time at which each bucket is full again.
    full_at_ns: BTreeMap<Caller, u64>,
}

/// A node, and an owner or a job on it, by numbers of their names.
pub type Holder = (u64, u64);

/// Rates of nodes, and of each holder on a node: no holder uses up the rate of its node.
#[derive(Clone, Debug)]
pub struct HolderRates {
    nodes: Rates,
    holders: Rates<Holder>,
}

impl<Caller: Ord + Copy> Rates<Caller> {
    /// Makes buckets of `at_once` permits each. One permit comes back every `refill_ns`. At most
    /// `callers_max` callers have a bucket at the same time.
    pub fn new(refill_ns: u64, at_once: u64, callers_max: usize) -> Self {
        let full_ns = refill_ns.saturating_mul(at_once);
        Self { refill_ns, full_ns, callers_max, full_at_ns: BTreeMap::new() }
    }

    /// Takes one permit from a caller's bucket.
    ///
    /// # Errors
    /// The bucket is empty, or there are too many callers: the time to wait.
    pub fn take(&mut self, now_ns: u64, caller: Caller) -> Result<(), Duration> {
        self.check(now_ns, caller)?;
        self.overdraw(now_ns, caller, 1).map_or(Err(Duration::from_secs(1)), |_| Ok(()))
    }

    /// Takes permits from a caller's bucket, also where it has fewer; returns how many are missing
    /// then, or none where there are too many callers.
    pub fn overdraw(&mut self, now_ns: u64, caller: Caller, permits: u64) -> Option<u64> {
        if self.full_at_ns.len() >= self.callers_max && !self.full_at_ns.contains_key(&caller) {
            // A full bucket says nothing.
            self.full_at_ns.retain(|_, full_at_ns| *full_at_ns > now_ns);
            if self.full_at_ns.len() >= self.callers_max {
                return None;
            }
        }
        let full_at_ns = self.after(now_ns, caller, permits);
        self.full_at_ns.insert(caller, full_at_ns);
        let missing_ns = full_at_ns.saturating_sub(now_ns).saturating_sub(self.full_ns);
        Some(missing_ns.div_ceil(self.refill_ns.max(1)))
    }

    /// Is there a permit? Takes none.
    ///
    /// # Errors
    /// The bucket is empty: the time to wait.
    pub fn check(&self, now_ns: u64, caller: Caller) -> Result<(), Duration> {
        let wait_ns = self.after(now_ns, caller, 1) - now_ns;
        match wait_ns.checked_sub(self.full_ns) {
            Some(wait_ns @ 1..) => Err(Duration::from_nanos(wait_ns)),
            _ => Ok(()),
        }
    }

    /// Time at which the bucket is full again if this many permits are taken now.
    fn after(&self, now_ns: u64, caller: Caller, permits: u64) -> u64 {
        let full_at_ns = self.full_at_ns.get(&caller).copied().unwrap_or(0).max(now_ns);
        full_at_ns.saturating_add(self.refill_ns.saturating_mul(permits))
    }
}

impl HolderRates {
    /// Makes buckets of nodes and of holders, each of a time of refill and a number at once.
    pub fn new(node: (u64, u64), holder: (u64, u64)) -> Self {
        Self {
            nodes: Rates::new(node.0, node.1, NODES_MAX),
            holders: Rates::new(holder.0, holder.1, RANKS_MAX),
        }
    }

    /// As [`Rates::check`], of the node and of the holder.
    ///
    /// # Errors
    /// A bucket is empty: the time to wait.
    pub fn check(&self, now_ns: u64, of: Holder) -> Result<(), Duration> {
        self.nodes.check(now_ns, of.0)?;
        self.holders.check(now_ns, of)
    }

    /// As [`Rates::take`]. Takes nothing of one where the other has none.
    ///
    /// # Errors
    /// A bucket is empty, or there are too many holders: the time to wait.
    pub fn take(&mut self, now_ns: u64, of: Holder) -> Result<(), Duration> {
        self.nodes.check(now_ns, of.0)?;
        self.holders.take(now_ns, of)?;
        self.nodes.take(now_ns, of.0)
    }

    /// As [`Rates::overdraw`]; more is missing of the node or of the holder.
    pub fn overdraw(&mut self, now_ns: u64, of: Holder, permits: u64) -> Option<u64> {
        let node = self.nodes.overdraw(now_ns, of.0, permits);
        let holder = self.holders.overdraw(now_ns, of, permits);
        node.zip(holder).map(|(node, holder)| node.max(holder))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_caller_takes_nothing_from_another() {
        let mut rates = Rates::new(1_000, 5, 100);
        let taken = (0..50).filter(|_| rates.take(7, "a").is_ok()).count();
        assert_eq!(taken, 5);
        assert_eq!(rates.take(7, "a"), Err(Duration::from_nanos(1_000)));
        assert!(rates.take(7, "b").is_ok());
        assert!(rates.take(1_007, "a").is_ok() && rates.take(1_007, "a").is_err());
    }

    #[test]
    fn what_was_taken_too_much_is_missing_until_it_is_refilled() {
        let mut rates = Rates::new(10, 5, 1);
        assert_eq!(rates.overdraw(100, "a", 5), Some(0));
        assert_eq!(rates.overdraw(100, "a", 7), Some(7));
        assert_eq!((rates.overdraw(150, "a", 0), rates.overdraw(175, "a", 0)), (Some(2), Some(0)));
        assert_eq!(rates.overdraw(175, "b", 1), None);
    }

    #[test]
    fn many_callers_take_bounded_memory() {
        let mut rates = Rates::new(10, 5, 3);
        for caller in ["a", "b", "c"] {
            assert!(rates.take(0, caller).is_ok());
        }
        assert!(rates.take(0, "d").is_err() && rates.take(0, "a").is_ok());
        // Their buckets are full again.
        assert!(rates.take(20, "d").is_ok());
        assert_eq!(rates.full_at_ns.len(), 1);
    }

    proptest! {
        /// No time window has more permits than its bucket held and refilled.
        #[test]
        fn no_window_holds_more_than_its_rate(steps in prop::collection::vec(0_u64..40, 1..300)) {
            let (refill_ns, at_once) = (10, 4);
            let mut rates = Rates::new(refill_ns, at_once, 10);
            let (mut now_ns, mut taken_ns) = (5, Vec::new());
            for step in steps {
                now_ns += step;
                let may = rates.check(now_ns, "a").is_ok();
                prop_assert_eq!(rates.take(now_ns, "a").is_ok(), may);
                if may {
                    taken_ns.push(now_ns);
                }
            }
            for (first, begin_ns) in taken_ns.iter().enumerate() {
                for (last, end_ns) in taken_ns.iter().enumerate().skip(first) {
                    let count = (last - first + 1) as u64;
                    prop_assert!(count <= at_once + (end_ns - begin_ns) / refill_ns);
                }
            }
        }
    }
}
