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

/// The workload of a process.
pub(crate) fn of_process(root: &Path, pid: u32) -> Workload {
    let text = read(root, pid, "cgroup").unwrap_or_default();
    // All hierarchies of version 1 name the same job; the first that names one is enough.
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let found = paths.map(workload_of_cgroup).find(|of| *of != Workload::default());
    found.unwrap_or_default()
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
        assert_eq!(of_process(root.path(), 7).pod_uid, uid);
        assert_eq!(of_process(root.path(), 8), Default::default());
        std::fs::write(proc.join("cgroup"), "9:pids:/x\n4:memory:/slurm/uid_1/job_5/step_0\n")
            .expect("file");
        assert_eq!(of_process(root.path(), 7).slurm_job, "5");
    }
}
