//! Owner of a rank, from the kernel's facts about its tape and its process, never from their own
//! claims.
//!
//! The user is the owner of the tape's file. The scheduler's job and the pod are read from the
//! path of the process's cgroup, whose first parts a user cannot choose. A job is a name and its
//! owner ([`job_id`]): equal names of two owners are two jobs. A namespace that is not known equals
//! none, not even another unknown one of another node. Nothing here reads a file.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;

use crate::identity::cut;
use crate::limits::NAME_BYTES_MAX;
use serde::{Deserialize, Serialize};

/// Longest name of a namespace or a pod in Kubernetes.
const POD_NAME_BYTES_MAX: usize = 253;

/// The owner of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(default)]
pub struct Owner {
    /// User id of the tape's file, as the agent sees it.
    pub uid: u32,
    /// The account that the id belongs to, where it is a subordinate one; none where the agent
    /// named none.
    pub account: Option<u32>,
    /// Kubernetes namespace of the process.
    pub namespace: Namespace,
}

/// Kubernetes namespace of a process. As text: empty, `team-a`, or `~`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(from = "String", into = "String")]
pub enum Namespace {
    /// The process is in no pod.
    #[default]
    None,
    /// The namespace of its pod.
    Named(String),
    /// The process may be in a pod of any namespace.
    Unknown,
}

/// Stands for a namespace that is not known; no namespace has this name.
const UNKNOWN: &str = "~";

impl Namespace {
    /// Name of the namespace; empty where there is none or it is not known.
    pub fn name(&self) -> &str {
        match self {
            Self::Named(name) => name,
            Self::None | Self::Unknown => "",
        }
    }
}

impl From<String> for Namespace {
    fn from(text: String) -> Self {
        match text.as_str() {
            "" => Self::None,
            UNKNOWN => Self::Unknown,
            _ => Self::Named(text),
        }
    }
}

impl From<Namespace> for String {
    fn from(namespace: Namespace) -> Self {
        namespace.to_string()
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Unknown => UNKNOWN,
            known => known.name(),
        })
    }
}

/// Scheduler ids of a process. Each part is empty where it is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(default)]
pub struct Workload {
    /// Id of the Slurm job.
    pub slurm_job: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub pod_uid: String,
}

/// Holder of an item, where a coordinator's bounds are shared: the node whose agent announced the
/// item, and the owner whom that agent named.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// The node.
    pub node: String,
    /// The owner.
    pub owner: Owner,
}

impl Holder {
    /// The holder as a key of `memtape_core::sharing::Shares`.
    pub fn key(&self) -> HolderKey<'_> {
        (&self.node, self.owner.key())
    }
}

/// A holder as a key of `memtape_core::sharing::Shares`.
pub type HolderKey<'a> = (&'a str, OwnerKey<'a>);

/// Identity of an owner where rights and budgets are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnerKey<'a> {
    /// User, where the owner has no namespace. Subordinate ids are their user's.
    User(u32),
    /// Kubernetes namespace: the pods in it choose their user ids themselves.
    Namespace(&'a str),
    /// User in a namespace that is not known: no role but one over all jobs reaches it.
    Unknown(u32),
}

impl Owner {
    /// Key of this owner.
    pub fn key(&self) -> OwnerKey<'_> {
        let account = self.account.unwrap_or(self.uid);
        match &self.namespace {
            Namespace::None => OwnerKey::User(account),
            Namespace::Named(namespace) => OwnerKey::Namespace(namespace),
            Namespace::Unknown => OwnerKey::Unknown(account),
        }
    }
}

/// Id of an owner's job: `NAME@UID`, in a pod `NAME@UID.NAMESPACE`, and where the namespace is not
/// known `NAME@UID.~NODE` of the node that announced it.
pub fn job_id(name: &str, owner: &Owner, node: &str) -> String {
    let uid = owner.uid;
    let of_owner = match &owner.namespace {
        Namespace::None => format!("@{uid}"),
        Namespace::Named(namespace) => format!("@{uid}.{namespace}"),
        Namespace::Unknown => format!("@{uid}.{UNKNOWN}{node}"),
    };
    let room = NAME_BYTES_MAX.saturating_sub(of_owner.len());
    format!("{}{of_owner}", cut(name, room))
}

/// The name in the id of a job. The id of a job without a known owner is its name.
pub fn job_name(id: &str) -> &str {
    let Some((name, owner)) = id.rsplit_once('@') else { return id };
    let uid = owner.split_once('.').map_or(owner, |(uid, _)| uid);
    if is_number(uid) { name } else { id }
}

/// Is this text the id of the job, or its name? A name that could be an id is reached by id alone.
pub fn is_called(id: &str, text: &str) -> bool {
    id == text || (job_name(id) == text && job_name(text) == text)
}

/// Of the jobs that have a name the one that is meant: the only one, or the only one that runs.
pub fn meant<T: Copy>(called: &[T], runs: impl Fn(T) -> bool) -> Option<T> {
    let running = || called.iter().copied().filter(|of| runs(*of));
    match called {
        [one] => Some(*one),
        _ => running().next().filter(|_| running().count() == 1),
    }
}

/// Id of a tape among the tapes of all users of a node: a file can be given any content, but not
/// another owner.
pub fn owned_tape_id(tape_id: &str, owner: u128) -> String {
    format!("{tape_id}-{owner}")
}

/// Number of the owner in the node-wide id of a tape, a user id or a namespace's; none where the id
/// names none.
pub fn owner_of_tape(owned: &str) -> Option<u128> {
    owned.rsplit_once('-')?.1.parse().ok()
}

/// What the path of a cgroup says: the Slurm job of `/system.slice/slurmstepd.scope/job_77/…` or
/// `/slurm/uid_1000/job_77/…`, and the UID of the pod of `/kubepods.slice/…-pod0a1b_2c.slice/…` or
/// `/kubepods/burstable/pod0a1b-2c/…`. The path may begin with `..` where the agent is in a cgroup
/// of its own; none where such a path leads to no known root: it may be any cgroup. Only the
/// scheduler's own part of the path counts, from the root on and the outermost match: users make
/// cgroups of any name below their own.
pub fn workload_of_cgroup(path: &str) -> Option<Workload> {
    let mut parts = path.split('/').filter(|part| !part.is_empty()).peekable();
    let mut is_relative = false;
    while parts.next_if_eq(&"..").is_some() {
        is_relative = true;
    }
    let Some(root) = parts.next() else { return Some(Workload::default()) };
    let mut workload = Workload::default();
    let is_slurm = match root {
        "system.slice" => parts.next().is_some_and(|scope| scope.ends_with("slurmstepd.scope")),
        _ => root == "slurm" || root.starts_with("slurm_"),
    };
    let is_kubelet = root.starts_with("kubepods") || root.starts_with("kubelet");
    // Beside the agent's own: a class of pods, or a pod.
    let is_class = ["besteffort", "burstable"].contains(&root);
    if is_slurm {
        // Below it are `uid_N` in version 1, the job, and what belongs to the job.
        let job = parts.take(2).find_map(|part| part.strip_prefix("job_"));
        workload.slurm_job = job.filter(|id| is_number(id)).unwrap_or_default().to_string();
    } else if is_kubelet || (is_relative && (is_class || pod_uid(root).is_some())) {
        workload.pod_uid =
            core::iter::once(root).chain(parts).find_map(pod_uid).unwrap_or_default();
    } else if is_relative && !root.ends_with(".slice") && !root.ends_with(".scope") {
        return None;
    }
    Some(workload)
}

/// Namespace, name and UID of the pod that a folder of tapes belongs to, by its name:
/// `NAMESPACE_NAME_UID`. None of these three holds an underscore.
pub fn pod_of_folder(folder: &str) -> Option<(&str, &str, &str)> {
    let (names, pod_uid) = folder.rsplit_once('_')?;
    let (namespace, name) = names.split_once('_')?;
    let is_name = |text: &str| {
        !text.is_empty()
            && text.len() <= POD_NAME_BYTES_MAX
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
    };
    [namespace, name, pod_uid].into_iter().all(is_name).then_some((namespace, name, pod_uid))
}

fn pod_uid(part: &str) -> Option<String> {
    let part = part.strip_suffix(".slice").unwrap_or(part);
    let part = part.strip_prefix("kubelet-").unwrap_or(part);
    // systemd's slices have `_` for `-`, and the classes of the pods before `pod`.
    let (before, uid) = part
        .split_once("pod")
        .filter(|(before, _)| before.is_empty())
        .or_else(|| part.strip_prefix("kubepods-").and_then(|rest| rest.split_once("pod")))?;
    let is_class = before.is_empty() || before.ends_with('-');
    let is_uid =
        uid.len() >= 8 && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || b"-_".contains(&byte));
    (is_class && is_uid).then(|| uid.replace('_', "-"))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, slurm_job: &str, pod_uid: &str) {
        let expected = Workload {
            slurm_job: slurm_job.to_string(),
            pod_uid: pod_uid.to_string(),
            ..Workload::default()
        };
        assert_eq!(workload_of_cgroup(path), Some(expected), "{path}");
    }

    #[test]
    fn cgroups_name_the_workload() {
        check("/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", "4711", "");
        check("/slurm/uid_1000/job_77/step_batch", "77", "");
        check("/user.slice/user-1000.slice/job_77", "", "");
        check("/system.slice/slurmstepd.scope/job_x/step_0", "", "");
        let uid = "3b0a9c4e-11f2-4b7e-9a55-0123456789ab";
        let slice = format!("pod{}", uid.replace('-', "_"));
        check(&format!("/kubepods.slice/kubepods-{slice}.slice/cri-containerd-9.scope"), "", uid);
        let burstable = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-";
        check(&format!("{burstable}{slice}.slice/crio-7.scope"), "", uid);
        check(&format!("/kubepods/besteffort/pod{uid}/8"), "", uid);
        check(
            &format!("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-{slice}.slice/x"),
            "",
            uid,
        );
        check(&format!("/../../pod{uid}/8"), "", uid);
        // The cgroupfs driver, and an agent in a cgroup of its own.
        check(&format!("/../../../besteffort/pod{uid}/8"), "", uid);
        check("/../../../../user.slice/user-1001.slice/session-3.scope", "", "");
        assert_eq!(workload_of_cgroup("/../8"), None, "beside the agent, in a pod or in none");
        check("/../../system.slice/node1_slurmstepd.scope/job_5/step_0", "5", "");
        check(&format!("/user.slice/pod{uid}"), "", "");
        // Cgroups of a user's own making.
        let own = "/user.slice/user-1000.slice/user@1000.service";
        check(&format!("{own}/slurm/job_77"), "", "");
        check(&format!("{own}/kubepods/pod{uid}"), "", "");
        check(&format!("/..{own}/pod{uid}"), "", "");
        check("/slurm/uid_1000/job_77/step_0/job_99", "77", "");
        check(&format!("/kubepods/pod{uid}/pod00000000-1111"), "", uid);
        check("", "", "");
        check("/kubepods/podx", "", "");
    }

    #[test]
    fn folders_of_tapes_name_the_pod() {
        let pod = Some(("team-a", "train-0", "3b0a9c4e-11f2"));
        assert_eq!(pod_of_folder("team-a_train-0_3b0a9c4e-11f2"), pod);
        for other in ["team-a_3b0a9c4e-11f2", "_train-0_3b0a", "a b_c_3b0a", "a_b_", "a_b_c_d", ""]
        {
            assert_eq!(pod_of_folder(other), None, "{other}");
        }
    }

    fn owner(uid: u32, namespace: &str) -> Owner {
        Owner { uid, namespace: Namespace::from(namespace.to_string()), ..Owner::default() }
    }

    #[test]
    fn owners_differ_by_user_and_namespace() {
        assert_eq!(owner(7, "a").key(), owner(8, "a").key());
        assert_ne!(owner(7, "").key(), owner(8, "").key());
        assert_ne!(owner(7, "").key(), owner(7, "a").key());
        assert_ne!(owner(7, "~").key(), owner(7, "").key());
        assert_eq!(owner(7, "~").namespace, Namespace::Unknown);
        let subordinate = Owner { account: Some(7), ..owner(100_000, "") };
        assert_eq!(subordinate.key(), owner(7, "").key());
    }

    #[test]
    fn a_job_is_its_name_and_its_owner() {
        let check = |name: &str, owner: &Owner, expected: &str| {
            let id = job_id(name, owner, "n1");
            assert_eq!((id.as_str(), job_name(&id)), (expected, name));
            assert!(is_called(&id, &id) && !is_called(&id, "other"));
        };
        check("train", &owner(1001, ""), "train@1001");
        check("train", &owner(0, "team-b"), "train@0.team-b");
        check("train", &owner(0, "~"), "train@0.~n1");
        check("a@2024-11", &owner(7, ""), "a@2024-11@7");
        // No name of one owner stands for the job of another.
        check("train@1001", &owner(7, ""), "train@1001@7");
        assert!(is_called("train@1001", "train") && !is_called("train@1001@7", "train@1001"));
        assert!(is_called("a@2024-11@7", "a@2024-11") && is_called("old", "old"));
        assert_eq!(meant(&[1], |_| false), Some(1));
        assert_eq!(meant(&[1, 2, 3], |of| of == 2), Some(2));
        assert_eq!((meant(&[1, 2], |_| true), meant::<u8>(&[], |_| true)), (None, None));
        let long = job_id(&"é".repeat(200), &owner(1001, ""), "n1");
        assert!(long.len() <= NAME_BYTES_MAX && long.ends_with("é@1001"), "{long}");
    }

    #[test]
    fn a_tape_id_names_its_owner() {
        assert_eq!(owned_tape_id("0a1b", 1001), "0a1b-1001");
        assert_eq!((owner_of_tape("0a1b-1001"), owner_of_tape("0a1b")), (Some(1001), None));
    }
}
