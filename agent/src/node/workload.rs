//! Scheduler ids of a process: its Slurm job or its pod.
//!
//! The path of the cgroup has the id of the Slurm job or the UID of the pod, in parts that the user
//! of the process cannot choose. A missing id stays empty. Slurm and Kubernetes are never asked.

use std::collections::BTreeSet;
use std::path::Path;

use memtape_core::identity::owner::{Workload, workload_of_cgroup};
use memtape_core::limits::PROCESSES_PER_NODE_MAX;

use super::process::read;

/// Folder of the kubelet.
const KUBELET: &str = "var/lib/kubelet";

/// The kubelet sets it for each process in a pod.
const IN_POD: &str = "KUBERNETES_SERVICE_HOST";

/// True if processes of this node may be in pods.
pub(crate) fn has_pods(root: &Path) -> bool {
    root.join(KUBELET).exists() || std::env::var_os(IN_POD).is_some()
}

/// True if the agent sees processes outside of its own container: the first is in another cgroup.
pub(crate) fn sees_processes(root: &Path) -> bool {
    let of = |process: &str| read(root, process, "cgroup");
    of("1").is_some_and(|first| of("self").as_ref() != Some(&first))
}

/// UIDs of the pods that have processes; none where processes are not seen, or are too many.
pub(crate) fn pods(root: &Path) -> Option<BTreeSet<String>> {
    let entries = std::fs::read_dir(root.join("proc")).ok().filter(|_| sees_processes(root))?;
    let pids = entries.flatten().filter_map(|of| of.file_name().to_str()?.parse().ok());
    let pids: Vec<u32> = pids.take(PROCESSES_PER_NODE_MAX + 1).collect();
    let is_whole = pids.len() <= PROCESSES_PER_NODE_MAX;
    let uids = pids.into_iter().filter_map(|pid| Some(of_process(root, pid)?.pod_uid));
    is_whole.then(|| uids.collect())
}

/// The workload of a process, without a pod's UID where it is in no pod; none where its cgroup
/// cannot be read.
pub(crate) fn of_process(root: &Path, pid: u32) -> Option<Workload> {
    let text = read(root, pid, "cgroup")?;
    // All hierarchies of version 1 name the same job; the first that names one is enough.
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let mut found: Vec<_> = paths.map(workload_of_cgroup).collect();
    let named =
        found.iter().position(|of| of.as_ref().is_some_and(|of| *of != Workload::default()));
    let unread = || found.iter().position(Option::is_none);
    let first = named.or_else(unread).unwrap_or(0);
    (first < found.len()).then(|| found.swap_remove(first))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_names_the_pod() {
        let root = tempfile::tempdir().expect("folder");
        let proc = root.path().join("proc/7");
        std::fs::create_dir_all(&proc).expect("folder");
        let uid = "3b0a9c4e-11f2-4b7e-9a55-0123456789ab";
        std::fs::write(proc.join("cgroup"), format!("0::/kubepods/burstable/pod{uid}/9\n"))
            .expect("file");
        let of = || of_process(root.path(), 7);
        assert_eq!(of().expect("a pod").pod_uid, uid);
        assert_eq!(of_process(root.path(), 8), None);
        let write = |text: &str| std::fs::write(proc.join("cgroup"), text).expect("file");
        write("9:pids:/x\n4:memory:/slurm/uid_1/job_5/step_0\n");
        assert_eq!(of().expect("a job").slurm_job, "5");
        write("9:pids:/x\n0::/user.slice\n");
        assert_eq!(of(), Some(Workload::default()), "certainly no pod");
        write("9:pids:/x\n0::/../y\n");
        assert_eq!(of(), None);
        write("");
        assert_eq!(of(), None);
        // In a container the first process is the agent's own.
        let write = |process: &str, text: &str| {
            let proc = root.path().join("proc").join(process);
            std::fs::create_dir_all(&proc).expect("folder");
            std::fs::write(proc.join("cgroup"), text).expect("file");
            sees_processes(root.path())
        };
        assert!(!write("self", "0::/\n") && !write("1", "0::/\n"));
        assert!(write("1", "0::/../../../../init.scope\n"));
    }

    #[test]
    fn pods_with_processes_are_known_by_bounded_reads() {
        let root = tempfile::tempdir().expect("folder");
        let pod_uid = "3b0a9c4e-11f2";
        let uses = || pods(root.path()).map(|pods| pods.contains(pod_uid));
        let write = |file: &str, text: &str| {
            let file = root.path().join("proc").join(file);
            std::fs::create_dir_all(file.parent().expect("a process")).expect("folder");
            std::fs::write(file, text).expect("file");
            uses()
        };
        assert_eq!(write("self/cgroup", "0::/system.slice/agent\n"), None, "nothing is seen");
        assert_eq!(write("1/cgroup", "0::/init.scope\n"), Some(false));
        let of_pod = format!("0::/kubepods/pod{pod_uid}/8\n");
        assert_eq!(write("7/cgroup", &of_pod), Some(true));
        assert_eq!(write("7/cgroup", &"9:x:/\n".repeat(1 << 20)), Some(false));
        assert_eq!(read(root.path(), 7, "cgroup").map(|text| text.len()), Some(64 << 10));
    }
}
