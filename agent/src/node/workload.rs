//! Scheduler ids of a process: its Slurm job or its pod.
//!
//! The path of the cgroup has the id of the Slurm job or the UID of the pod, in parts that the user
//! of the process cannot choose. A missing id stays empty. Slurm and Kubernetes are never asked.

use std::path::Path;

use memtape_core::identity::owner::{Workload, workload_of_cgroup};

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
    let of = |process: &str| std::fs::read(root.join("proc").join(process).join("cgroup")).ok();
    of("1").is_some_and(|first| of("self").as_ref() != Some(&first))
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
}
