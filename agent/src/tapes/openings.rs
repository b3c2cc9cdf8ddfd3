//! Counts the files that one scan opens, for each account.
//!
//! In the folder of a pod each user has a quota, and all users together have one of the namespace:
//! files that an account of the node makes there take nothing from the pod, and a pod that makes
//! files of many users takes nothing from other pods. This file opens nothing.

use std::collections::BTreeMap;

use crate::node::accounts::Account;
use crate::tapes::source::Entry;

/// Files of one user remembered as being no tapes.
pub(crate) const REJECTED_PER_USER_MAX: usize = 1024;

/// Maximum files opened for one user in one scan, and in the first.
const OPENED_MAX: usize = 64;
const OPENED_FIRST_MAX: usize = 2 * REJECTED_PER_USER_MAX;

/// Users whose quotas the namespace of a pod has.
const USERS_PER_NAMESPACE: usize = 4;

/// Remaining work of one scan.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) now_ns: u64,
    /// Files that were opened, by user and by namespace.
    opened: BTreeMap<Account, usize>,
    opened_max: usize,
    /// Rejected files that are known, by user.
    rejected: BTreeMap<Account, usize>,
    /// Files that were named in the log.
    pub(crate) logged: usize,
}

impl Budget {
    /// The budget of a scan; `rejected` has the account of each rejected file that is known.
    pub(crate) fn new(
        now_ns: u64,
        is_first: bool,
        rejected: impl Iterator<Item = Account>,
    ) -> Self {
        let opened_max = if is_first { OPENED_FIRST_MAX } else { OPENED_MAX };
        let (opened, logged) = (BTreeMap::new(), 0);
        let mut new = Self { now_ns, opened, opened_max, rejected: BTreeMap::new(), logged };
        rejected.for_each(|account| _ = new.reject(account));
        new
    }

    /// Takes one opening of the user and of the namespace, while there are some. A file that was
    /// rejected may have become a tape; beyond the bound no further one is tried.
    pub(crate) fn may_open(&mut self, entry: &Entry, is_rejected: bool) -> bool {
        let account = entry.account();
        let rejected = self.rejected.get(&account).copied().unwrap_or(0);
        let of_pod = entry.pod.as_ref();
        let of_pod = of_pod.map(|pod| (pod.account, USERS_PER_NAMESPACE * self.opened_max));
        let quotas = std::iter::once((account, self.opened_max)).chain(of_pod);
        let opened = |of| self.opened.get(&of).copied().unwrap_or(0);
        if quotas.clone().any(|(of, max)| opened(of) >= max)
            || (rejected >= REJECTED_PER_USER_MAX && !is_rejected)
        {
            return false;
        }
        quotas.for_each(|(of, _)| *self.opened.entry(of).or_default() += 1);
        true
    }

    /// Counts a rejected file; true when its user has as many as are remembered.
    pub(crate) fn reject(&mut self, account: Account) -> bool {
        let rejected = self.rejected.entry(account).or_default();
        *rejected += 1;
        *rejected == REJECTED_PER_USER_MAX
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tapes::pods::Pod;
    use crate::tapes::source::FileId;

    #[test]
    fn a_user_takes_no_opening_of_another_in_the_folder_of_a_pod() {
        let pods = ["team-a_x-0_1-a", "team-b_x-0_1-b"].map(Pod::of_folder);
        let pods = pods.map(|pod| Arc::new(pod.expect("a pod")));
        let of = |pod: usize, uid| Entry {
            id: FileId { device: 0, inode: 0 },
            path: std::path::PathBuf::new(),
            uid,
            pod: Some(Arc::clone(&pods[pod])),
        };
        let stranger = std::iter::repeat_n(of(0, 1001).account(), REJECTED_PER_USER_MAX);
        let mut budget = Budget::new(0, false, stranger);
        assert!(!budget.may_open(&of(0, 1001), false) && budget.may_open(&of(0, 1001), true));
        let mut opened =
            |pod, uid| (0..1000).filter(|_| budget.may_open(&of(pod, uid), true)).count();
        assert_eq!((opened(0, 1001), opened(0, 1000)), (OPENED_MAX - 1, OPENED_MAX));
        // One namespace with many users takes nothing from another.
        let many: usize = (0..1000).map(|uid| opened(1, uid)).sum();
        assert_eq!((many, opened(0, 0)), (USERS_PER_NAMESPACE * OPENED_MAX, OPENED_MAX));
    }
}
