//! Whose a rank is: what the kernel says of its tape and its process, never what these say of
//! themselves.
//!
//! The user is the owner of the tape's file. The scheduler's job and the pod are read from the
//! path of the process's cgroup, which a user cannot choose. A name of a job belongs to the owner
//! who used it first; another owner who uses it gets a job of their own ([`shared_name`]). Nothing
//! here reads a file.

use alloc::format;
use alloc::string::{String, ToString};

use crate::identity::cut;
use crate::limits::NAME_BYTES_MAX;

/// Longest name of a namespace or a pod in Kubernetes.
const POD_NAME_BYTES_MAX: usize = 253;

/// The owner of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct Owner {
    /// User id of the tape's file, as the agent sees it.
    pub uid: u32,
    /// Kubernetes namespace of the process; empty where there is none or it is not known.
    pub namespace: String,
}

/// What a scheduler knows a process as. Each part is empty where it is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct Workload {
    /// Id of the Slurm job.
    pub slurm_job: String,
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub pod_uid: String,
}

impl Owner {
    /// True where nothing tells the two apart. A namespace that is not known tells nothing: that
    /// of a process that is gone cannot be read.
    pub fn is_same(&self, other: &Self) -> bool {
        let is_unknown = self.namespace.is_empty() || other.namespace.is_empty();
        self.uid == other.uid && (is_unknown || self.namespace == other.namespace)
    }
}

/// The name of an owner's job where its own name belongs to another owner.
pub fn shared_name(job: &str, owner: &Owner) -> String {
    let of_owner = suffix(owner);
    let room = NAME_BYTES_MAX.saturating_sub(of_owner.len());
    format!("{}{of_owner}", cut(job, room))
}

/// May an owner's job have this name, if no other owner has it? A name that ends as
/// [`shared_name`] makes it is the owner's whom it names.
pub fn may_be_named(job: &str, owner: &Owner) -> bool {
    let ending = job.rsplit_once('@').map(|(_, ending)| ending);
    let names_an_owner =
        ending.is_some_and(|ending| ending.starts_with(|c: char| c.is_ascii_digit()));
    !names_an_owner || job.ends_with(&suffix(owner))
}

fn suffix(owner: &Owner) -> String {
    match owner.namespace.as_str() {
        "" => format!("@{}", owner.uid),
        namespace => format!("@{}.{namespace}", owner.uid),
    }
}

/// The id of a tape among those of all users of a node: a file can be given any content, but not
/// another owner.
pub fn owned_tape_id(tape_id: &str, uid: u32) -> String {
    format!("{tape_id}-{uid}")
}

/// The id that the tape itself has, without its owner; none where it names another owner or none.
pub fn own_tape_id(owned: &str, uid: u32) -> Option<&str> {
    owned.strip_suffix(format!("-{uid}").as_str())
}

/// What the path of a cgroup says: the Slurm job of `…/job_77/step_0/…`, and the UID of the pod of
/// `…/kubepods-burstable-pod0a1b_2c.slice/…` or `…/kubepods/burstable/pod0a1b-2c/…`.
pub fn workload_of_cgroup(path: &str) -> Workload {
    let mut found = Workload::default();
    let mut below_slurm = false;
    for part in path.split('/') {
        below_slurm |= part.starts_with("slurm");
        if let Some(id) = part.strip_prefix("job_").filter(|id| below_slurm && is_number(id)) {
            found.slurm_job = id.to_string();
        }
        if let Some(uid) = pod_uid(part).filter(|_| path.contains("kubepods")) {
            found.pod_uid = uid;
        }
    }
    found
}

/// Namespace and name of the pod with this UID, from the name of its folder of logs:
/// `NAMESPACE_NAME_UID`. None of these three holds an underscore.
pub fn pod_of_log_folder<'a>(folder: &'a str, pod_uid: &str) -> Option<(&'a str, &'a str)> {
    let (namespace, name) = folder.strip_suffix(pod_uid)?.strip_suffix('_')?.split_once('_')?;
    let is_name = |text: &str| {
        !text.is_empty()
            && text.len() <= POD_NAME_BYTES_MAX
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
    };
    (!pod_uid.is_empty() && is_name(namespace) && is_name(name)).then_some((namespace, name))
}

fn pod_uid(part: &str) -> Option<String> {
    let part = part.strip_suffix(".slice").unwrap_or(part);
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
        assert_eq!(workload_of_cgroup(path), expected, "{path}");
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
        check(&format!("/user.slice/pod{uid}"), "", "");
        check("", "", "");
        check("/kubepods/podx", "", "");
    }

    #[test]
    fn folders_of_logs_name_the_pod() {
        let uid = "3b0a9c4e-11f2";
        assert_eq!(
            pod_of_log_folder("team-a_train-0_3b0a9c4e-11f2", uid),
            Some(("team-a", "train-0"))
        );
        for other in ["team-a_train-0_other", "_train-0_3b0a9c4e-11f2", "a b_c_3b0a9c4e-11f2", ""] {
            assert_eq!(pod_of_log_folder(other, uid), None, "{other}");
        }
        assert_eq!(pod_of_log_folder("a_b_", ""), None);
    }

    #[test]
    fn owners_differ_by_user_and_namespace() {
        let owner = |uid, namespace: &str| Owner { uid, namespace: namespace.to_string() };
        assert!(owner(7, "").is_same(&owner(7, "a")) && owner(7, "a").is_same(&owner(7, "a")));
        assert!(!owner(7, "a").is_same(&owner(7, "b")) && !owner(7, "").is_same(&owner(8, "")));
        assert_eq!(shared_name("train", &owner(1001, "")), "train@1001");
        assert_eq!(shared_name("train", &owner(0, "team-b")), "train@0.team-b");
        assert!(may_be_named("train", &owner(7, "")) && may_be_named("a@b", &owner(7, "")));
        assert!(may_be_named("train@7", &owner(7, "")) && !may_be_named("train@8", &owner(7, "")));
        assert!(!may_be_named("train@77", &owner(7, "")) && !may_be_named("x@7.b", &owner(7, "")));
        let long = shared_name(&"é".repeat(200), &owner(1001, ""));
        assert!(long.len() <= NAME_BYTES_MAX && long.ends_with("é@1001"), "{long}");
    }

    #[test]
    fn a_tape_id_names_its_owner() {
        assert_eq!(owned_tape_id("0a1b", 1001), "0a1b-1001");
        assert_eq!(own_tape_id("0a1b-1001", 1001), Some("0a1b"));
        assert_eq!((own_tape_id("0a1b", 1001), own_tape_id("0a1b-1001", 1)), (None, None));
    }
}
