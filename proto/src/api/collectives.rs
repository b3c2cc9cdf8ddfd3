//! How the ranks of a capture stand in their collectives.

use memtape_core::capture::collective::Verdict;
use memtape_core::snapshot;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use super::name::Named;

/// The process groups of a capture, compared over its ranks.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct Collectives {
    /// The findings, a sentence each.
    pub sentences: Vec<String>,
    /// Groups with a finding first.
    pub groups: Vec<Group>,
    /// Ranks whose collectives are not known.
    pub unknown: Vec<Unread>,
    /// Groups of single ranks that could not be identified; they are not compared.
    pub uncompared: u64,
    /// Ranks that wait in a collective of such a group.
    pub waiting_uncompared: Vec<u32>,
    /// What each rank says.
    pub ranks: Vec<RankCollectives>,
}

/// Why the collectives of some ranks are not known.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct Unread {
    /// The reason.
    pub why: String,
    /// The ranks.
    pub ranks: Vec<u32>,
}

/// One process group over all ranks that have it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct Group {
    /// Its name in PyTorch.
    pub name: String,
    /// What it is for.
    pub desc: String,
    /// Number of its ranks; 0 where unknown.
    pub size: u32,
    /// Ranks that are known.
    pub ranks: Vec<u32>,
    /// How it stands.
    pub verdict: Named<Verdict>,
    /// The verdict as a sentence.
    pub sentence: String,
    /// The furthest collective a rank has enqueued.
    pub furthest: u64,
    /// Ranks that wait for its end.
    pub waiting: Vec<u32>,
    /// How long the last of them has waited at least.
    pub waited_ns: u64,
    /// Ranks that have not enqueued it.
    pub behind: Vec<Lag>,
}

/// A rank that has not enqueued the furthest collective.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct Lag {
    /// The rank.
    pub rank: u32,
    /// Its newest collective; null before its first.
    pub enqueued: Option<u64>,
    /// Why it is behind.
    pub why: Named<LagCause>,
    /// For how long; null for a dead rank.
    pub ns: Option<u64>,
}

/// Why a rank has not enqueued a collective.
#[derive(Clone, Copy, Debug, Eq, PartialEq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum LagCause {
    /// It was seen there after a peer had begun the furthest collective.
    Late,
    /// Its process is dead.
    Dead,
    /// Its last look is older than its peers', and it was behind then.
    Silent,
}

/// What one rank says. A rank with a reason in `unknown` may have older values.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
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
    pub groups: Vec<GroupOfRank>,
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
            groups: of.groups.iter().map(GroupOfRank::from).collect(),
        }
    }
}

impl From<&snapshot::CollectiveGroup> for GroupOfRank {
    fn from(of: &snapshot::CollectiveGroup) -> Self {
        Self {
            id: of.id,
            key: format!("{:016x}", of.key),
            name: of.name.clone(),
            desc: of.desc.clone(),
            size: of.size,
            enqueued: of.enqueued,
            started: of.started,
            completed: of.completed,
            since_wall_ns: of.since_wall_ns,
        }
    }
}

/// One process group as one rank sees it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct GroupOfRank {
    /// Its number on the rank.
    pub id: u64,
    /// The same on all ranks of the group: 16 hexadecimal digits.
    pub key: String,
    /// Its name in PyTorch.
    pub name: String,
    /// What it is for.
    pub desc: String,
    /// Number of its ranks; 0 where unknown.
    pub size: u32,
    /// Its newest collective that was enqueued; null before the first.
    pub enqueued: Option<u64>,
    /// The newest that was started on the GPU.
    pub started: Option<u64>,
    /// The newest that was completed.
    pub completed: Option<u64>,
    /// When these numbers last changed, in nanoseconds of Unix time.
    pub since_wall_ns: i64,
}
