//! Checks of the machine: the recorder's library, the folder of tapes, the GPUs.

use std::path::{Path, PathBuf};
use std::process::Command;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use rustix::fs::{Access, access, statfs};

use super::Check;
use crate::library;
use crate::output::{error_line, one_line};
use crate::render::units::{bytes, plural};

/// A tape of one rank with one device.
const TAPE_BYTES: u64 = 60 << 20;

/// A tape takes at most one part in this number of the free space.
const TAPE_SHARE: u64 = 4;

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
    let block = u64::try_from(system.f_bsize).unwrap_or(0);
    let free = system.f_bavail.saturating_mul(block);
    let size = system.f_blocks.saturating_mul(block);
    let to_come = if existing == dir { "" } else { " (memtape run makes it)" };
    let found = format!("{shown}{to_come}: {} free of {}", bytes(free), bytes(size));
    let ranks = free / TAPE_SHARE / TAPE_BYTES;
    if ranks == 0 {
        let advice = format!(
            "a rank takes {} and at most a quarter of what is free: enlarge it (docker run \
             --shm-size, an emptyDir of medium Memory), or delete old tapes",
            bytes(TAPE_BYTES)
        );
        return Check::fail(NAME, found, advice);
    }
    if u64::try_from(system.f_type).unwrap_or(0) != TMPFS {
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
    fn a_missing_folder_is_measured_at_its_parent() {
        let temp = tempfile::tempdir().expect("a folder");
        let check = tape_folder(&temp.path().join("a/b"));
        assert!(check.found.contains("memtape run makes it"), "{check:?}");
        assert!(check.found.contains("free of"), "{check:?}");
        let there = tape_folder(temp.path());
        assert!(!there.found.contains("makes it") && there.outcome != Outcome::Fail, "{there:?}");
    }
}
