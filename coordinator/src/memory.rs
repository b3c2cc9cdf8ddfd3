//! Memory limit of the coordinator without an option: the lowest limit of its cgroup and its
//! parents, or the machine's memory.

use std::path::Path;

/// The limit of a cgroup, by its version.
const LIMITS: [(&str, &str); 2] =
    [("sys/fs/cgroup", "memory.max"), ("sys/fs/cgroup/memory", "memory.limit_in_bytes")];

/// Memory limit of this process in bytes; none where the files below `root` have none.
pub(crate) fn limit_bytes(root: &Path) -> Option<u64> {
    let own = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let own = own.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let has_memory = controllers.is_empty() || controllers.split(',').any(|of| of == "memory");
        has_memory.then(|| Path::new(path.trim_start_matches('/')))
    });
    // In a container the mount is its own cgroup, whatever the path says.
    let folders: Vec<&Path> = own.flat_map(Path::ancestors).chain([Path::new("")]).collect();
    let limits = LIMITS.iter().flat_map(|(mount, file)| {
        folders.iter().map(move |folder| root.join(mount).join(folder).join(file))
    });
    limits.filter_map(|file| number(&file)).chain(machine_bytes(root)).min()
}

/// Memory of the machine.
fn machine_bytes(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// A file of one number; `max` is none.
fn number(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], expected: Option<u64>) {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        assert_eq!(limit_bytes(root.path()), expected, "{files:?}");
    }

    #[test]
    fn the_lowest_limit_counts() {
        let machine = ("proc/meminfo", "MemFree: 1 kB\nMemTotal:       2048 kB\n");
        check(&[], None);
        check(&[machine], Some(2 << 20));
        check(&[machine, ("sys/fs/cgroup/memory.max", "max\n")], Some(2 << 20));
        check(&[machine, ("sys/fs/cgroup/memory.max", "1000\n")], Some(1000));
        check(&[machine, ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000\n")], Some(2000));
        let own = ("proc/self/cgroup", "0::/system.slice/memtape.service\n");
        let service = ("sys/fs/cgroup/system.slice/memtape.service/memory.max", "max\n");
        let slice = ("sys/fs/cgroup/system.slice/memory.max", "3000\n");
        check(&[machine, own, service, slice], Some(3000));
        let own = ("proc/self/cgroup", "3:cpu:/x\n2:memory,x:/a\n");
        check(
            &[machine, own, ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4000")],
            Some(4000),
        );
    }
}
