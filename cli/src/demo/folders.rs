//! The demo's folders.

use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::statvfs;

use super::DemoArgs;
use super::start::TAPE_BYTES;

/// The demo's folders. All but a given `--data-dir` are deleted when it ends.
#[derive(Debug)]
pub(crate) struct Folders {
    /// Logs, and the store unless `--data-dir` is given.
    temporary: tempfile::TempDir,
    /// Tapes, in shared memory if it has space.
    tapes: tempfile::TempDir,
    /// The store.
    pub(crate) data: PathBuf,
}

impl Folders {
    /// Makes them. Fails when a folder cannot be made.
    pub(crate) fn make(args: &DemoArgs) -> anyhow::Result<Self> {
        let new = |parent: &Path| {
            let folder = tempfile::Builder::new().prefix("memtape-demo-").tempdir_in(parent);
            folder.with_context(|| format!("cannot make a folder in {}", parent.display()))
        };
        let temporary = new(&std::env::temp_dir())?;
        let shared_memory = Path::new("/dev/shm");
        let needed = u64::from(args.ranks).saturating_mul(TAPE_BYTES);
        let has_room = statvfs(shared_memory)
            .is_ok_and(|stat| stat.f_bavail.saturating_mul(stat.f_frsize) > needed);
        let in_memory = if has_room { new(shared_memory).ok() } else { None };
        let tapes = match in_memory {
            Some(folder) => folder,
            None => new(&std::env::temp_dir())?,
        };
        let data = match &args.data_dir {
            Some(folder) => folder.clone(),
            None => temporary.path().join("store"),
        };
        std::fs::create_dir_all(&data)
            .with_context(|| format!("cannot make the folder {}", data.display()))?;
        Ok(Self { temporary, tapes, data })
    }

    /// The folder of logs.
    pub(crate) fn logs(&self) -> PathBuf {
        self.temporary.path().to_path_buf()
    }

    /// The folder of a node's tapes.
    pub(crate) fn tapes(&self, node: u32) -> anyhow::Result<PathBuf> {
        let folder = self.tapes.path().join(format!("node-{node}"));
        std::fs::create_dir_all(&folder).context("cannot make a folder for tapes")?;
        Ok(folder)
    }

    /// The file that modelled ranks share for the progress of their collectives.
    pub(crate) fn collectives(&self) -> PathBuf {
        self.tapes.path().join("collectives")
    }
}
