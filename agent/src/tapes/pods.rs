//! The pod that a folder of tapes belongs to.
//!
//! The kubelet makes the folder and names it by the pod's own identity, as the chart's admission
//! policy wants it; the pod sees nothing beside it. What lies in the folder is the pod's, also when
//! its process is gone. This file reads no folder.

use memtape_core::identity::owner::{Namespace, Workload, owned_tape_id, pod_of_folder};

use crate::node::accounts::Account;

/// A pod, by the name of its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pod {
    /// Namespace of the pod.
    pub(crate) namespace: String,
    /// Number of the namespace where quotas are counted: no user has it.
    pub(crate) account: Account,
    /// Name and UID of the pod.
    pub(crate) workload: Workload,
}

impl Pod {
    /// The pod whose folder has this name; none where it is another folder.
    pub(crate) fn of_folder(name: &str) -> Option<Self> {
        let (namespace, pod, pod_uid) = pod_of_folder(name)?;
        let (pod, pod_uid) = (pod.to_string(), pod_uid.to_string());
        let workload = Workload { pod, pod_uid, ..Workload::default() };
        // No two names of one number can be found, and no user id is as large.
        let hash = blake3::hash(namespace.as_bytes());
        let account = hash.as_bytes().first_chunk().map_or(0, |half| Account::from_le_bytes(*half));
        let account = account | 1 << (Account::BITS - 1);
        Some(Self { namespace: namespace.to_string(), account, workload })
    }

    /// Namespace of the pod's processes.
    pub(crate) fn named(&self) -> Namespace {
        Namespace::Named(self.namespace.clone())
    }

    /// Number where quotas count tapes in the folder that no process of the pod was seen to hold.
    pub(crate) fn unproved(&self) -> Account {
        self.account ^ 1 << 32
    }

    /// Number where files of a user in the folder are counted before their processes are known.
    pub(crate) fn account_of(&self, uid: u32) -> Account {
        self.account ^ Account::from(uid) ^ 1 << 33
    }

    /// Id of a user's tape in the folder of the pod among the tapes of all pods of a node.
    pub(crate) fn owned_tape_id(&self, tape_id: &str, uid: u32) -> String {
        owned_tape_id(&format!("{tape_id}-{}-{uid}", self.workload.pod_uid), self.account)
    }

    /// Is the process with this workload one of the pod? Not when its cgroup is of another or of
    /// none.
    pub(crate) fn has(&self, workload: &Workload) -> bool {
        workload.pod_uid == self.workload.pod_uid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_names_its_pod() {
        let of = |name| Pod::of_folder(name).expect("a pod");
        let (one, other) = (of("team-a_train-0_3b0a-11f2"), of("team-b_train-0_77"));
        assert_eq!((one.namespace.as_str(), one.workload.pod.as_str()), ("team-a", "train-0"));
        assert!(one.account > u32::MAX.into() && one.account != other.account);
        let id = one.owned_tape_id("0a1b", 7);
        assert_eq!(id, format!("0a1b-3b0a-11f2-7-{}", one.account));
        assert!(one.has(&one.workload) && !one.has(&other.workload));
        assert!(!one.has(&Workload::default()), "a cgroup of no pod");
        assert_eq!(Pod::of_folder("tapes"), None);
        // The two had one number of 31 bits.
        assert_ne!(of("team-a_x_1").account, of("team-b-e3y7azmv_x_1").account);
    }
}
