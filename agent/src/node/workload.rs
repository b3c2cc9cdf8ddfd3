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

/// True if a process is in the pod, or has its folder mounted; none where processes are not seen.
pub(crate) fn uses_folder(root: &Path, folder: &str, pod_uid: &str) -> Option<bool> {
    let entries = std::fs::read_dir(root.join("proc")).ok().filter(|_| sees_processes(root))?;
    let mut pids = entries.flatten().filter_map(|of| of.file_name().to_str()?.parse().ok());
    Some(pids.any(|pid| {
        of_process(root, pid).is_some_and(|of| of.pod_uid == pod_uid)
            || read(root, pid, "mountinfo").is_some_and(|text| text.contains(folder))
    }))
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
    fn a_folder_is_used_by_a_process_of_its_pod_or_with_its_mount() {
        let root = tempfile::tempdir().expect("folder");
        let (folder, pod_uid) = ("team-a_x-0_3b0a9c4e-11f2", "3b0a9c4e-11f2");
        let uses = || uses_folder(root.path(), folder, pod_uid);
        let write = |file: &str, text: &str| {
            let file = root.path().join("proc").join(file);
            std::fs::create_dir_all(file.parent().expect("a process")).expect("folder");
            std::fs::write(file, text).expect("file");
            uses()
        };
        assert_eq!(write("self/cgroup", "0::/system.slice/agent\n"), None, "nothing is seen");
        assert_eq!(write("1/cgroup", "0::/init.scope\n"), Some(false));
        let mount = format!("30 20 0:26 /memtape/{folder} /dev/shm rw - tmpfs shm rw\n");
        assert_eq!(write("7/mountinfo", &mount), Some(true));
        assert_eq!(write("7/mountinfo", "30 20 0:26 / /dev/shm rw - tmpfs shm rw\n"), Some(false));
        assert_eq!(write("7/cgroup", &format!("0::/kubepods/pod{pod_uid}/8\n")), Some(true));
    }
}
