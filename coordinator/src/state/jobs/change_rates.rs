//! How often a node, and each owner on it, may change what is remembered: ranks that begin, change
//! or end. A change is a write to the store.

use std::time::Duration;

use memtape_core::identity::owner::Owner;
use memtape_core::limits::{
    NODE_CHANGES_AT_ONCE_MAX, NODE_CHANGES_PER_MINUTE_MAX, NODES_MAX, OWNER_CHANGES_AT_ONCE_MAX,
    OWNER_CHANGES_PER_MINUTE_MAX, RANKS_MAX,
};
use memtape_core::rates::Rates;

const MINUTE_NS: u64 = 60_000_000_000;

/// The rates of all nodes and owners.
#[derive(Debug)]
pub(super) struct ChangeRates {
    of_nodes: Rates,
    /// No owner uses up what the others on a node need.
    of_owners: Rates,
}

impl Default for ChangeRates {
    fn default() -> Self {
        let rates = |a_minute: u64, at_once, callers_max| {
            Rates::new(MINUTE_NS / a_minute, at_once, callers_max)
        };
        Self {
            of_nodes: rates(NODE_CHANGES_PER_MINUTE_MAX, NODE_CHANGES_AT_ONCE_MAX, NODES_MAX),
            of_owners: rates(OWNER_CHANGES_PER_MINUTE_MAX, OWNER_CHANGES_AT_ONCE_MAX, RANKS_MAX),
        }
    }
}

impl ChangeRates {
    /// May a node change one thing more about ranks of this owner? Takes nothing.
    ///
    /// # Errors
    /// It did too much: the time to wait.
    pub(super) fn check(
        &self,
        now_ns: u64,
        node: &str,
        owner: Option<&Owner>,
    ) -> Result<(), Duration> {
        self.of_nodes.check(now_ns, node)?;
        self.of_owners.check(now_ns, holder(node, owner).as_str())
    }

    /// A node changes one thing about ranks of this owner.
    ///
    /// # Errors
    /// It did too much: the time to wait.
    pub(super) fn take(
        &mut self,
        now_ns: u64,
        node: &str,
        owner: Option<&Owner>,
    ) -> Result<(), Duration> {
        self.of_nodes.check(now_ns, node)?;
        self.of_owners.take(now_ns, holder(node, owner).as_str())?;
        self.of_nodes.take(now_ns, node)
    }
}

fn holder(node: &str, owner: Option<&Owner>) -> String {
    format!("{node} {:?}", owner.map(Owner::key))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user changes ranks as often as they may, by subordinate ids too: another one's are taken.
    #[test]
    fn changes_of_one_user_use_up_none_of_another() {
        let mut rates = ChangeRates::default();
        let owner = |uid, account| Owner { uid, account, ..Owner::default() };
        let mut taken = 0;
        for number in 0..2 * NODE_CHANGES_AT_ONCE_MAX as u32 {
            let of = owner(100_000 + number % 9, Some(2001));
            taken += u64::from(rates.take(7, "n", Some(&of)).is_ok());
        }
        assert_eq!(taken, OWNER_CHANGES_AT_ONCE_MAX);
        assert!(rates.check(7, "n", Some(&owner(2001, None))).is_err());
        let victim = owner(2002, Some(2002));
        assert!(rates.take(7, "n", Some(&victim)).is_ok());
        assert!(rates.take(7, "other", Some(&owner(2001, None))).is_ok(), "another node's");
    }
}
