//! In the place of `cluster/` where the feature `cluster` is off: its commands say so.

use crate::error::{Error, Result};

/// Checks the store of a cluster.
pub mod checking {
    use tokio::runtime::Handle;

    /// Refused in this build.
    pub fn check(_: &str, _: &Handle) -> super::Result<crate::StoreCheck> {
        Err(super::missing())
    }
}

/// Looks at the bucket of a cluster.
pub mod examining {
    use tokio::runtime::Handle;

    /// Refused in this build.
    pub fn examine(_: &str, _: &Handle) -> super::Result<crate::reports::ClusterFacts> {
        Err(super::missing())
    }
}

/// Moves stores into clusters.
pub mod moving {
    use std::path::Path;

    use tokio::runtime::Handle;

    use crate::reports::{MissingSnapshots, StoreMove};

    /// Refused in this build.
    pub fn move_store(
        _: &Path,
        _: &str,
        _: MissingSnapshots,
        _: &Handle,
    ) -> super::Result<StoreMove> {
        Err(super::missing())
    }
}

fn missing() -> Error {
    Error::foreign("clusters need memtape with the feature full")
}
