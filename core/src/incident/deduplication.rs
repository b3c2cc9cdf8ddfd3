//! Decides which finding continues which: one cause is one incident, although later findings name
//! its rank and its account better.
//!
//! The incident machine asks this when a finding is opened while other incidents are open. A
//! finding that returns after it was closed says so itself ([`Growth::returns`]).

use crate::detector::{Growth, GrowthKey, Scope};

/// A finding about one rank continues as a finding about many ranks when its rate is at most this
/// multiple of their rate.
const FIRST_TIMES_MAX: u64 = 2;

impl GrowthKey {
    /// Is this finding about the one rank that `wide`, about many ranks, names as its example?
    pub fn narrows(&self, wide: &Self) -> bool {
        self.scope == Scope::OneRank
            && wide.scope != Scope::OneRank
            && (self.rank, self.device, self.layer) == (wide.rank, wide.device, wide.layer)
    }
}

impl Growth {
    /// Does this continue the finding `known`, which grew by `known_bytes_per_step`? True when it
    /// was about one rank and is now about many, or was about the number of blocks and is now about
    /// their bytes.
    pub fn goes_on_with(&self, known: &GrowthKey, known_bytes_per_step: u64) -> bool {
        let is_wide = |scope: Scope| scope != Scope::OneRank;
        let was_first = !is_wide(known.scope)
            && is_wide(self.scope)
            && known.layer == self.layer
            && known_bytes_per_step <= self.bytes_per_step.saturating_mul(FIRST_TIMES_MAX);
        let are_many = is_wide(known.scope) && is_wide(self.scope);
        let is_there = are_many || (known.rank, known.device) == (self.rank, self.device);
        was_first || (is_there && self.layer.takes_over(known.layer))
    }
}

#[cfg(test)]
mod tests {
    use super::Scope::{AllRanks, OneRank, Role};
    use super::*;
    use crate::detector::Layer::{self, Allocated, Blocks, Host};

    fn key(rank: u32, layer: Layer, scope: Scope) -> GrowthKey {
        GrowthKey { rank, device: 0, layer, scope }
    }

    fn growth(key: GrowthKey, bytes_per_step: u64) -> Growth {
        let GrowthKey { rank, device, layer, scope } = key;
        Growth {
            rank,
            device,
            scope,
            layer,
            bytes_per_step,
            onset_step: 0,
            detected_step: 0,
            last_step: 0,
            grown_bytes: 0,
            steps_to_oom: None,
            forecast: None,
            peers: 0,
            ranks: 1,
            returns: 0,
            give_backs: 0,
            is_sure: true,
        }
    }

    #[test]
    fn a_repeated_cause_is_recognized() {
        let check = |expected: bool, new: GrowthKey, known: GrowthKey, rate: u64| {
            assert_eq!(growth(new, 100).goes_on_with(&known, rate), expected, "{new:?} {known:?}");
        };
        check(true, key(5, Allocated, AllRanks), key(2, Allocated, OneRank), 200);
        check(false, key(5, Allocated, AllRanks), key(2, Allocated, OneRank), 201);
        check(false, key(5, Allocated, AllRanks), key(2, Host, OneRank), 9);
        check(true, key(2, Allocated, OneRank), key(2, Blocks, OneRank), 9);
        check(false, key(3, Allocated, OneRank), key(2, Blocks, OneRank), 9);
        check(true, key(3, Allocated, Role), key(2, Blocks, AllRanks), 9);
        check(false, key(2, Blocks, OneRank), key(2, Allocated, OneRank), 9);
        assert!(key(2, Host, OneRank).narrows(&key(2, Host, AllRanks)));
        assert!(!key(3, Host, OneRank).narrows(&key(2, Host, AllRanks)));
        assert!(!key(2, Host, Role).narrows(&key(2, Host, AllRanks)));
    }
}
