//! How the ranks of a capture stand in their collectives.

pub use memtape_core::capture::collective::Comparison;
use memtape_core::snapshot;
pub use memtape_core::snapshot::CollectiveGroup;
use serde::{Deserialize, Serialize};

/// The process groups of a capture, compared over its ranks.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Collectives {
    /// How the ranks stand.
    #[serde(flatten)]
    pub comparison: Comparison,
    /// What each rank says.
    pub ranks: Vec<RankCollectives>,
}

/// What one rank says. A rank with a reason in `unknown` may have older values.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RankCollectives {
    /// The rank.
    pub rank: u32,
    /// Why its collectives are not known now; null where they are.
    pub unknown: Option<String>,
    /// Since when its source is as it is, in nanoseconds of Unix time.
    pub source_since_ns: Option<i64>,
    /// The last look at its flight recorder, in nanoseconds of Unix time.
    pub look_wall_ns: Option<i64>,
    /// How long that look took.
    pub look_took_ns: u64,
    /// A request that the flight recorder has not answered, in nanoseconds of Unix time.
    pub asked_wall_ns: Option<i64>,
    /// Groups that did not fit on its tape.
    pub groups_lost: u64,
    /// Its groups.
    pub groups: Vec<CollectiveGroup>,
}

impl From<&snapshot::Collectives> for RankCollectives {
    fn from(of: &snapshot::Collectives) -> Self {
        let time = |ns: i64| (ns != 0).then_some(ns);
        Self {
            rank: 0,
            unknown: of.source.why_not().map(str::to_string),
            source_since_ns: time(of.source_since_ns),
            look_wall_ns: time(of.look_wall_ns),
            look_took_ns: of.look_took_ns,
            asked_wall_ns: time(of.asked_wall_ns),
            groups_lost: of.groups_lost,
            groups: of.groups.clone(),
        }
    }
}
