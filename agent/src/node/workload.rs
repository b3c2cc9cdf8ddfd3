//! Scheduler ids of a process: its Slurm job or its pod.
//!
//! The path of the cgroup has the id of the Slurm job or the UID of the pod, in parts that the user
//! of the process cannot choose. Namespace and name of a pod are read from the names of the folders
//! of logs that the kubelet makes, which the chart mounts. A missing id stays empty. Slurm and
//! Kubernetes themselves are never asked.

use std::path::Path;

use memtape_core::identity::owner::{Namespace, Workload, pod_of_log_folder, workload_of_cgroup};

use super::process::read;

/// Folder in which the kubelet keeps the logs of pods.
const POD_LOGS: &str = "var/log/pods";

/// The kubelet sets it for each process in a pod.
const IN_POD: &str = "KUBERNETES_SERVICE_HOST";

/// Maximum number of log folders that are read: more than a node has pods.
const POD_LOGS_MAX: usize = 4096;

/// The namespace of a process that is gone, or is not seen: on a node without pods there is none.
pub(crate) fn namespace_of_unseen(root: &Path) -> Namespace {
    let has_pods = root.join(POD_LOGS).exists() || std::env::var_os(IN_POD).is_some();
    if has_pods { Namespace::Unknown } else { Namespace::None }
}

/// The workload of a process, and the namespace of its pod.
pub(crate) fn of_process(root: &Path, pid: u32) -> (Workload, Namespace) {
    let text = read(root, pid, "cgroup").unwrap_or_default();
    // All hierarchies of version 1 name the same job; the first that names one is enough.
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let found = paths.map(workload_of_cgroup).find(|of| *of != Workload::default());
    let mut workload = found.unwrap_or_default();
    if workload.pod_uid.is_empty() {
        let is_known = !text.is_empty();
        return (workload, if is_known { Namespace::None } else { namespace_of_unseen(root) });
    }
    let Some((namespace, name)) = pod(root, &workload.pod_uid) else {
        return (workload, Namespace::Unknown);
    };
    workload.pod = name;
    (workload, Namespace::Named(namespace))
}

fn pod(root: &Path, pod_uid: &str) -> Option<(String, String)> {
    if pod_uid.is_empty() {
        return None;
    }
    let folders = std::fs::read_dir(root.join(POD_LOGS)).ok()?.take(POD_LOGS_MAX).flatten();
    folders.into_iter().find_map(|folder| {
        let folder = folder.file_name();
        let (namespace, name) = pod_of_log_folder(folder.to_str()?, pod_uid)?;
        Some((namespace.to_string(), name.to_string()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_and_the_kubelet_name_the_pod() {
        let root = tempfile::tempdir().expect("folder");
        let (proc, logs) = (root.path().join("proc/7"), root.path().join(POD_LOGS));
        std::fs::create_dir_all(&proc).expect("folder");
        let uid = "3b0a9c4e-11f2-4b7e-9a55-0123456789ab";
        std::fs::write(proc.join("cgroup"), format!("0::/kubepods/burstable/pod{uid}/9\n"))
            .expect("file");
        let expected = |pod: &str, namespace: &str| {
            let (pod, pod_uid) = (pod.to_string(), uid.to_string());
            (Workload { pod, pod_uid, ..Workload::default() }, namespace.to_string().into())
        };
        assert_eq!(of_process(root.path(), 7), expected("", "~"));
        std::fs::create_dir_all(logs.join(format!("team-a_train-0_{uid}"))).expect("folder");
        assert_eq!(of_process(root.path(), 7), expected("train-0", "team-a"));
        // It is gone, and may have been in any pod.
        assert_eq!(of_process(root.path(), 8), (Workload::default(), Namespace::Unknown));
        std::fs::write(proc.join("cgroup"), "9:pids:/x\n4:memory:/slurm/uid_1/job_5/step_0\n")
            .expect("file");
        assert_eq!(of_process(root.path(), 7).0.slurm_job, "5");
    }
}
