//! Which ranks do the same work, and so should need the same memory.
//!
//! A person may say so (`MEMTAPE_ROLE`). Otherwise process groups tell, where their names do: the
//! members of a data, tensor or context parallel group do the same work on other data or on an
//! equal part, and so does any rank that shares such a group with one of them. The stages of a
//! pipeline stay apart. Names that say nothing (`default_pg`) or something else (experts) tell
//! nothing, and then nothing is guessed: the detector learns roles by the level of memory.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use crate::limits::PEER_GROUPS_MAX;
use crate::snapshot::CollectiveGroup;
use memtape_tape::hash::fnv_1a;

/// Prefix of a dimension of PyTorch's `DeviceMesh` in a group's description.
const MESH: &str = "mesh_";

/// Names of dimensions across which ranks do the same work: the names in torchtitan, Accelerate and
/// PyTorch's own examples, and combinations of them.
const DIMENSIONS: [&str; 19] = [
    "dp",
    "ddp",
    "fsdp",
    "hsdp",
    "data",
    "replicate",
    "shard",
    "dp_shard",
    "dp_replicate",
    "dp_shard_cp",
    "dp_replicate_cp",
    "dp_cp",
    "tp",
    "tensor",
    "cp",
    "sp",
    "context",
    "sequence",
    "dp_tp",
];

/// Names of the same dimensions in Megatron.
const MEGATRON: [&str; 6] = [
    "DATA_PARALLEL_GROUP",
    "DATA_PARALLEL_GROUP_WITH_CP",
    "TENSOR_MODEL_PARALLEL_GROUP",
    "CONTEXT_PARALLEL_GROUP",
    "TENSOR_AND_DATA_PARALLEL_GROUP",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP",
];

/// Do `count` of `all` ranks stand for the whole job? True from three quarters on.
pub fn are_most(count: usize, all: usize) -> bool {
    count.saturating_mul(4) >= all.saturating_mul(3)
}

/// Keys of the rank's process groups whose members do the same work, in order.
pub fn peer_groups(groups: &[CollectiveGroup]) -> Vec<u64> {
    // A group of one has no peers.
    let of_peers = groups.iter().filter(|group| group.size >= 2 && is_of_peers(&group.desc));
    let mut keys: Vec<u64> = of_peers.map(|group| group.key).filter(|&key| key != 0).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.truncate(PEER_GROUPS_MAX);
    keys
}

fn is_of_peers(desc: &str) -> bool {
    let of_mesh = desc.strip_prefix(MESH).is_some_and(|name| DIMENSIONS.contains(&name));
    of_mesh || MEGATRON.contains(&desc)
}

/// Facts about one rank's role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Global rank.
    pub rank: u32,
    /// Role from the environment; empty when it is not set.
    pub role: String,
    /// Keys of its groups of peers.
    pub peer_groups: Vec<u64>,
}

/// Roles of ranks, where known, as numbers that are equal for ranks of the same role. Ranks with a
/// stated role are peers only of ranks with the same stated role.
pub fn roles(known: &[Known]) -> Vec<(u32, u64)> {
    let mut joined = Joined::default();
    for rank in known.iter().filter(|rank| rank.role.is_empty()) {
        for pair in rank.peer_groups.windows(2) {
            joined.join(pair[0], pair[1]);
        }
    }
    let of = |rank: &Known| {
        if !rank.role.is_empty() {
            return Some((rank.rank, fnv_1a(rank.role.bytes())));
        }
        let first = joined.root(*rank.peer_groups.first()?);
        Some((rank.rank, fnv_1a(first.to_le_bytes())))
    };
    known.iter().filter_map(of).collect()
}

/// Groups that have a rank in common, under the least of their keys.
#[derive(Debug, Default)]
struct Joined(BTreeMap<u64, u64>);

impl Joined {
    /// The least key. Each call halves the length of its path, so that no path stays long.
    fn root(&mut self, mut key: u64) -> u64 {
        // Keys only lead to smaller ones.
        while let Some(&next) = self.0.get(&key) {
            let after = self.0.get(&next).copied().unwrap_or(next);
            self.0.insert(key, after);
            key = after;
        }
        key
    }

    fn join(&mut self, first: u64, second: u64) {
        let (first, second) = (self.root(first), self.root(second));
        if first != second {
            self.0.insert(first.max(second), first.min(second));
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;

    #[test]
    fn groups_of_peers_are_recognised_by_their_names() {
        let group = |desc: &str, key, size| CollectiveGroup {
            desc: desc.to_string(),
            key,
            size,
            ..CollectiveGroup::default()
        };
        let groups = [
            group("default_pg", 9, 8),
            group("mesh_tp", 5, 2),
            group("mesh_dp_shard", 3, 4),
            group("mesh_pp", 2, 4),
            group("mesh_ep", 7, 4),
            group("mesh_dp", 0, 4),
            group("mesh_cp", 1, 1),
            group("EXPERT_DATA_PARALLEL_GROUP", 8, 4),
            group("DATA_PARALLEL_GROUP", 4, 4),
            group("undefined", 6, 8),
        ];
        assert_eq!(peer_groups(&groups), [3, 4, 5]);
        let many: Vec<_> = (1..=30).map(|key| group("mesh_dp", key, 2)).collect();
        assert_eq!(peer_groups(&many).len(), PEER_GROUPS_MAX);
    }

    #[test]
    fn a_role_is_given_or_joined() {
        let known = |rank, role: &str, peer_groups: &[u64]| Known {
            rank,
            role: role.to_string(),
            peer_groups: peer_groups.to_vec(),
        };
        // Two stages of two ranks each by tensor and by data; one rank says it itself; one of which
        // nothing is known; one that shares no group with these.
        let ranks = [
            known(0, "", &[10, 20]),
            known(1, "", &[11, 20]),
            known(2, "", &[10, 21]),
            known(3, "", &[21, 11]),
            known(4, "", &[30]),
            known(5, "", &[30]),
            known(6, "embedding", &[30]),
            known(7, "embedding", &[]),
            known(8, "", &[]),
            known(9, "", &[99]),
        ];
        let found: BTreeMap<u32, u64> = roles(&ranks).into_iter().collect();
        let same = |of: &[u32]| of.iter().all(|rank| found[rank] == found[&of[0]]);
        assert!(same(&[0, 1, 2, 3]) && same(&[4, 5]) && same(&[6, 7]), "{found:?}");
        let firsts = [found[&0], found[&4], found[&6], found[&9]];
        assert!(
            vec![(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
                .into_iter()
                .all(|(a, b): (usize, usize)| firsts[a] != firsts[b])
        );
        assert!(!found.contains_key(&8));
    }

    /// Half the ranks of a node join their groups in descending order.
    #[test]
    fn a_chain_of_groups_becomes_short() {
        let (mut joined, length) = (Joined::default(), 14_336);
        (1..=length).rev().for_each(|key| joined.join(key, key - 1));
        (0..length.ilog2() + 1).for_each(|_| assert_eq!(joined.root(length), 0));
        assert_eq!(joined.0[&length], 0, "one lookup");
        assert!(joined.0.iter().all(|(key, next)| next < key));
    }
}
