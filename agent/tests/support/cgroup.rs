//! A memory cgroup of the test's own, where this machine lets it make one.

use std::fs;
use std::path::{Path, PathBuf};

/// Why no cgroup can be made here.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub(crate) struct CgroupError {
    path: PathBuf,
    source: std::io::Error,
}

/// A cgroup; removed when dropped.
pub(crate) struct MemoryCgroup {
    folder: PathBuf,
}

impl MemoryCgroup {
    /// Makes one with a limit.
    /// Fails where this machine does not let the test make one.
    pub(crate) fn make(limit_bytes: u64) -> Result<Self, CgroupError> {
        let one = Path::new("/sys/fs/cgroup/memory");
        let (mount, limit_name) = if one.exists() {
            (one, "memory.limit_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.max")
        };
        let folder = mount.join(format!("memtape-test-{}", std::process::id()));
        let explain = |source| CgroupError { path: folder.clone(), source };
        fs::create_dir(&folder).map_err(explain)?;
        let cgroup = Self { folder: folder.clone() };
        fs::write(folder.join(limit_name), limit_bytes.to_string()).map_err(explain)?;
        Ok(cgroup)
    }

    /// Puts a process into it.
    pub(crate) fn add(&self, pid: u32) {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string()).expect("a living process");
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder); // its last process may not be gone yet
    }
}
