//! What a cluster in a bucket says about itself, and whether a program may open it.
//!
//! Coordinators whose versions differ by one minor version work together, so that those of a
//! cluster are updated one after the other. The newest version that owned the cluster is noted in
//! it; a program that is further away is refused before it writes anything.

use alloc::string::String;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::placement::SHARDS_MAX;

/// Format of a cluster's objects that this program reads and writes.
pub const FORMAT: u32 = 1;

/// What a cluster says about itself. Of another format, only the format counts.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Identity {
    /// Format of the cluster's objects.
    pub format: u32,
    /// Newest version of Memtape that owned the cluster.
    #[serde(default)]
    pub version: String,
    /// Tells clusters apart.
    #[serde(default)]
    pub id: String,
    /// Number of shards that the jobs are divided among.
    #[serde(default)]
    pub shards: u16,
    /// Id of the store that is being moved into the cluster. Until that ends, no coordinator works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<String>,
}

/// A version of Memtape without its patch, which changes nothing that is stored.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Version {
    /// Versions of which this differs do not work together.
    pub major: u32,
    /// Versions of which this differs by one work together.
    pub minor: u32,
}

impl Version {
    /// Reads `MAJOR.MINOR.PATCH`; none where that makes no sense.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.splitn(3, '.');
        let mut next = || numbers.next()?.parse().ok();
        Some(Self { major: next()?, minor: next()? })
    }

    fn works_with(self, other: Self) -> bool {
        self.major == other.major && self.minor.abs_diff(other.minor) <= 1
    }
}

impl fmt::Display for Version {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}.{}", self.major, self.minor)
    }
}

/// Why a cluster cannot be opened. The sentence follows the name of the cluster.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// Another format.
    #[error("has format {0}, and this memtape knows format {FORMAT}: use the memtape that made it")]
    Format(u32),
    /// A version that makes no sense.
    #[error("names {0:?} as its version of memtape, which makes no sense: put its object back")]
    Unreadable(String),
    /// A version that is too far away.
    #[error(
        "was used by memtape {theirs}, and this is {ours}: only versions that are one minor \
         version apart work together; use one that is nearer, and update step by step"
    )]
    Version {
        /// Version of this program.
        ours: Version,
        /// Newest version that owned the cluster.
        theirs: Version,
    },
    /// A number of shards that this program does not know.
    #[error(
        "has {0} shards, and this memtape knows 1 to {SHARDS_MAX}: use the memtape that made it"
    )]
    Shards(u16),
}

/// May a program of this version open the cluster?
///
/// # Errors
/// It may not.
pub fn may_open(ours: Version, cluster: &Identity) -> Result<(), Refusal> {
    if cluster.format != FORMAT {
        return Err(Refusal::Format(cluster.format));
    }
    let unreadable = || Refusal::Unreadable(cluster.version.clone());
    let theirs = Version::parse(&cluster.version).ok_or_else(unreadable)?;
    if !ours.works_with(theirs) {
        return Err(Refusal::Version { ours, theirs });
    }
    let is_known = (1..=SHARDS_MAX).contains(&cluster.shards);
    if is_known { Ok(()) } else { Err(Refusal::Shards(cluster.shards)) }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use super::*;

    const OURS: Version = Version { major: 1, minor: 4 };

    fn judged(format: u32, version: &str, shards: u16) -> Result<(), Refusal> {
        let (version, id, moving) = (version.to_string(), String::new(), None);
        may_open(OURS, &Identity { format, version, id, shards, moving })
    }

    #[test]
    fn versions_one_minor_version_apart_open_a_cluster_and_others_are_refused() {
        for version in ["1.3.9", "1.4.0", "1.4.2-beta", "1.5.0"] {
            assert_eq!(judged(FORMAT, version, 1), Ok(()), "{version}");
        }
        for version in ["1.2.9", "1.6.0", "0.4.0", "2.4.0", "0.0.1"] {
            let refused = judged(FORMAT, version, 1);
            assert!(matches!(refused, Err(Refusal::Version { .. })), "{version}");
        }
        for version in ["", "1", "x.4.0", "1.x", "-1.4.0"] {
            let refused = Refusal::Unreadable(version.to_string());
            assert_eq!(judged(FORMAT, version, 1), Err(refused));
        }
        let late = judged(FORMAT, "1.7.3", 1).unwrap_err().to_string();
        assert!(late.starts_with("was used by memtape 1.7, and this is 1.4"), "{late}");
    }

    #[test]
    fn another_format_is_refused_before_anything_else_is_read() {
        assert_eq!(judged(FORMAT + 1, "", 0), Err(Refusal::Format(2)));
        assert_eq!(judged(FORMAT, "1.4.0", SHARDS_MAX), Ok(()));
        for unknown in [0, SHARDS_MAX + 1] {
            assert_eq!(judged(FORMAT, "1.4.0", unknown), Err(Refusal::Shards(unknown)));
        }
    }
}
