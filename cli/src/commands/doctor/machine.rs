//! Checks of the machine: the recorder's library, the folder of tapes, the GPUs.

use std::path::{Path, PathBuf};
use std::process::Command;

use memtape_core::identity::owner::pod_of_folder;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use rustix::fs::{Access, access, statfs};

use super::Check;
use crate::library;
use crate::output::{error_line, one_line};
use crate::render::units::{bytes, plural};
use crate::room::Free;

/// A tape of one rank with one device.
const TAPE_BYTES: u64 = 60 << 20;

/// The magic number of tmpfs in `statfs`.
const TMPFS: u64 = 0x0102_1994;

/// Looks for the library and preloads it into another program. Its path, if that works.
pub(super) fn recorder(checks: &mut Vec<Check>) -> Option<PathBuf> {
    let library = match library::find() {
        Ok(library) => library,
        Err(error) => {
            let advice = "without it nothing is recorded; the wheel brings it";
            checks.push(Check::fail("recorder", error_line(&error), advice));
            return None;
        }
    };
    let shown = library.display();
    // `cat` names what the dynamic linker has loaded into it.
    let maps = Command::new("cat").arg("/proc/self/maps").env("LD_PRELOAD", &library).output();
    let (is_loaded, said) = match maps {
        Ok(maps) => {
            let is_loaded = String::from_utf8_lossy(&maps.stdout).contains("libmemtape");
            (is_loaded, one_line(&String::from_utf8_lossy(&maps.stderr)))
        }
        Err(error) => (false, error.to_string()),
    };
    if is_loaded {
        checks.push(Check::ok("recorder", format!("{shown} loads")));
        return Some(library);
    }
    let advice = "use the wheel (glibc 2.17 and newer), or build it on this machine";
    checks.push(Check::fail("recorder", format!("{shown} does not load: {said}"), advice));
    None
}

/// Checks that no other pod can reach the tapes in a folder: in a pod, and on a node of Kubernetes.
/// `mounts` is `/proc/self/mountinfo`.
pub(super) fn pod_folder(dir: &Path, is_pod: bool, mounts: &str) -> Option<Check> {
    const NAME: &str = "pod's folder";
    let advice = "mount it as deploy/helm/examples/training-pod.yaml does, with subPathExpr";
    let shown = dir.display();
    let name = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
    let is_of_pod = |path: &Path| name(path).is_some_and(|it| pod_of_folder(&it).is_some());
    if is_pod {
        // `36 35 98:0 ROOT POINT rw …`: what is mounted where. The longest point counts.
        let fields = mounts.lines().map(|line| line.split(' ').skip(3));
        let mounts = fields.filter_map(|mut of| Some((Path::new(of.next()?), of.next()?)));
        let above = mounts.filter(|(_, point)| dir.starts_with(point));
        let root = above.max_by_key(|(_, point)| point.len()).map(|(root, _)| root)?;
        let found = format!("{shown} is {} of a file system of the node", root.display());
        return Some(match is_of_pod(root) {
            true => Check::ok(NAME, format!("{found}: this pod's own")),
            false => Check::warn(NAME, format!("{found}, which other pods can have too"), advice),
        });
    }
    let entries: Vec<_> = dir.read_dir().ok()?.flatten().map(|entry| entry.path()).collect();
    let is_used = entries.iter().any(|path| path.is_dir() && is_of_pod(path));
    let is_tape = |path: &&PathBuf| path.extension().is_some_and(|it| it == "tape");
    let beside = entries.iter().filter(is_tape).count() as u64;
    let found = format!("{shown} has {} beside the folders of pods", plural(beside, "tape"));
    (is_used && beside > 0).then(|| Check::warn(NAME, found, advice))
}

/// Checks the folder in which `memtape run` would have tapes written.
pub(super) fn tape_folder(dir: &Path) -> Check {
    const NAME: &str = "tape folder";
    let shown = dir.display();
    // `memtape run` makes the folder.
    let existing = dir.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
    if access(existing, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        return Check::fail(
            NAME,
            format!("{} is not writable by this user", existing.display()),
            "choose another with --dir or MEMTAPE_DIR, or change its rights to 1777",
        );
    }
    let Ok(system) = statfs(existing) else {
        return Check::warn(NAME, format!("{shown}: its size is not known"), "choose another");
    };
    let is_tmpfs = u64::try_from(system.f_type).unwrap_or(0) == TMPFS;
    let to_come = if existing == dir { "" } else { " (memtape run makes it)" };
    room(&format!("{shown}{to_come}"), &Free::of(&system), is_tmpfs)
}

fn room(folder: &str, free: &Free, is_tmpfs: bool) -> Check {
    const NAME: &str = "tape folder";
    let found = format!("{folder}: {free}");
    if !free.has_room(TAPE_BYTES) {
        let advice = format!(
            "a rank takes {} and at most a quarter of what is free: enlarge it (docker run \
             --shm-size, an emptyDir of medium Memory), or delete files",
            bytes(TAPE_BYTES)
        );
        return Check::fail(NAME, found, advice);
    }
    if free.is_short() {
        let advice = "when it is full, ranks run unrecorded: delete files, or give tapes a tmpfs \
                      of their own (deploy/README.md)";
        return Check::warn(NAME, found, advice);
    }
    if !is_tmpfs {
        let advice = "it is on a disk, whose writes would slow the training: use /dev/shm";
        return Check::warn(NAME, found, advice);
    }
    Check::ok(NAME, found)
}

/// The GPUs that NVML shows.
pub(super) fn gpus() -> Check {
    const NAME: &str = "gpu";
    let advice = "on a machine with GPUs, install NVIDIA's driver, or give the container the GPU \
                  and the utility capability (NVIDIA_DRIVER_CAPABILITIES=compute,utility)";
    let nvml = match Nvml::init() {
        Ok(nvml) => nvml,
        Err(NvmlError::LibloadingError(_)) => {
            return Check::warn(NAME, "no NVIDIA driver is found here", advice);
        }
        Err(error) => {
            let found = format!("NVIDIA's driver does not answer: {error}");
            return Check::warn(NAME, found, advice);
        }
    };
    match nvml.device_count() {
        Ok(0) => Check::warn(NAME, "NVIDIA's driver shows no GPU", advice),
        Ok(count) => {
            let driver = nvml.sys_driver_version().unwrap_or_else(|_| "unknown".to_string());
            let gpus = plural(u64::from(count), "GPU");
            Check::ok(NAME, format!("{gpus}, driver {driver}"))
        }
        Err(error) => Check::warn(NAME, format!("NVIDIA's driver counts no GPUs: {error}"), advice),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn a_tape_folder_that_pods_share_is_named() {
        let check = |root: &str, outcome| {
            let mounts = format!("1 0 0:1 / / rw\n2 1 0:5 {root} /tapes rw - tmpfs\nbad");
            let check = pod_folder(Path::new("/tapes"), true, &mounts).expect("a check");
            assert_eq!(check.outcome, outcome, "{check:?}");
        };
        check("/memtape/team-a_train-0_3b0a9c4e", Outcome::Ok);
        check("/memtape", Outcome::Warn);
        check("/", Outcome::Warn);
        let temp = tempfile::tempdir().expect("a folder");
        let node = || pod_folder(temp.path(), false, "");
        std::fs::write(temp.path().join("a.tape"), "").expect("a file");
        assert_eq!(node(), None, "a node without pods");
        std::fs::create_dir(temp.path().join("team-a_train-0_3b0a9c4e")).expect("a folder");
        assert!(node().is_some_and(|check| check.found.contains("1 tape beside")));
    }

    #[test]
    fn a_folder_short_of_bytes_or_files_is_named() {
        let check = |bytes, files, of_files, outcome, words: &str| {
            let check = room("/t", &Free::new([bytes, 64 << 30], [files, of_files]), true);
            assert_eq!(check.outcome, outcome, "{check:?}");
            assert!(check.found.ends_with(words), "{check:?}");
        };
        check(60 << 30, 0, 0, Outcome::Ok, "free of 64 GiB");
        check(60 << 30, 900, 3_000, Outcome::Ok, "900 files of 3000");
        check(60 << 30, 299, 3_000, Outcome::Warn, "299 files of 3000");
        check(60 << 30, 0, 3_000, Outcome::Fail, "0 files of 3000");
        check(6 << 30, 900, 3_000, Outcome::Warn, "");
        check(200 << 20, 900, 3_000, Outcome::Fail, "");
    }

    #[test]
    fn a_missing_folder_is_measured_at_its_parent() {
        let temp = tempfile::tempdir().expect("a folder");
        let check = tape_folder(&temp.path().join("a/b"));
        assert!(check.found.contains("memtape run makes it"), "{check:?}");
        assert!(check.found.contains("free of"), "{check:?}");
        let there = tape_folder(temp.path());
        assert!(!there.found.contains("makes it") && there.outcome != Outcome::Fail, "{there:?}");
    }
}
