//! The memory of the host and of the agent's cgroup, from `/proc` and `/sys`.
//!
//! A source that cannot be read is an absent value, never a zero. `root` is `/` except in tests.

use std::path::{Path, PathBuf};

use memtape_proto::readings;

use crate::node::cgroup::{self, Cgroup};
use crate::node::process;

/// Reads the host.
#[derive(Debug)]
pub(crate) struct Host {
    root: PathBuf,
    cgroup: Option<Cgroup>,
}

impl Host {
    /// A host whose `/proc` and `/sys` lie below `root`.
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf(), cgroup: Cgroup::of_self(root) }
    }

    /// The folder that `/proc` and `/sys` lie in.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Reads memory and cgroup.
    pub(crate) fn memory(&self) -> readings::Host {
        let text = std::fs::read_to_string(self.root.join("proc/meminfo")).unwrap_or_default();
        let (memory_total_bytes, memory_available_bytes) = parse_meminfo(&text);
        let cgroup = self.cgroup.as_ref().map(Cgroup::memory).unwrap_or_default();
        readings::Host {
            memory_total_bytes,
            memory_available_bytes,
            cgroup_bytes: cgroup.bytes,
            cgroup_limit_bytes: cgroup.limit_bytes,
            nvml_missing: String::new(),
        }
    }

    /// Processes killed on this host for want of memory since boot, in any cgroup.
    pub(crate) fn oom_kills(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.root.join("proc/vmstat")).ok()?;
        cgroup::parse_oom_kills(&text)
    }
}

/// Total and available memory of a `/proc/meminfo`, in bytes.
fn parse_meminfo(text: &str) -> (Option<u64>, Option<u64>) {
    let value = |name: &str| {
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| *key == name)
            .and_then(|(_, value)| process::parse_kib(value))
    };
    (value("MemTotal"), value("MemAvailable"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_files() {
        for (text, expected) in [
            ("", (None, None)),
            (
                "MemTotal:       16 kB\nMemFree: 1 kB\nMemAvailable: 8 kB\n",
                (Some(16384), Some(8192)),
            ),
            ("MemTotal: 16 kB\n", (Some(16384), None)),
            ("MemTotal: many kB\nMemAvailable: 8 pages\n", (None, None)),
        ] {
            assert_eq!(parse_meminfo(text), expected, "{text:?}");
        }
    }

    #[test]
    fn this_host_can_be_read() {
        let memory = Host::new(Path::new("/")).memory();
        assert!(memory.memory_total_bytes > memory.memory_available_bytes);
        assert!(memory.memory_available_bytes.is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn an_empty_root_gives_nothing() {
        let folder = tempfile::tempdir().expect("folder");
        let host = Host::new(folder.path());
        assert_eq!((host.memory(), host.oom_kills()), (readings::Host::default(), None));
    }
}
