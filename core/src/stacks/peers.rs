//! Which ranks a rank is compared with: those that do the same work, at the same step.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::snapshot::RankSnapshot;

/// Why the state of another rank is not compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAPeer {
    /// Memory moves from step to step.
    #[error("its snapshot shows step {0}")]
    OtherStep(u64),
    /// Ranks of other roles need other memory.
    #[error("its role is {0:?}")]
    OtherRole(String),
}

/// Why the state of a rank is not comparable with that of a rank of this role at this step; `None`
/// where it is.
pub fn not_a_peer(role: &str, step: u64, other: &RankSnapshot) -> Option<NotAPeer> {
    if other.step != step {
        return Some(NotAPeer::OtherStep(other.step));
    }
    let other = &other.identity.role;
    (other != role).then(|| NotAPeer::OtherRole(other.to_string()))
}

/// The ranks with the role of `rank`, by the distance of their numbers to it, the nearest first and
/// of two equal distances the lower number. A rank that is not listed has no peers.
pub fn nearest_peers<R: PartialEq>(rank: u32, roles: &[(u32, R)]) -> Vec<u32> {
    let Some((_, own)) = roles.iter().find(|(of, _)| *of == rank) else { return Vec::new() };
    let peers = roles.iter().filter(|(of, role)| *of != rank && role == own);
    let mut peers: Vec<u32> = peers.map(|(of, _)| *of).collect();
    peers.sort_unstable_by_key(|of| (of.abs_diff(rank), *of));
    peers.dedup();
    peers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_do_the_same_work_at_the_same_step() {
        let mut other = RankSnapshot { step: 9, ..RankSnapshot::default() };
        other.identity.role = "pp0".into();
        assert_eq!(not_a_peer("pp0", 9, &other), None);
        assert_eq!(not_a_peer("pp0", 8, &other), Some(NotAPeer::OtherStep(9)));
        assert_eq!(not_a_peer("pp1", 9, &other), Some(NotAPeer::OtherRole("pp0".into())));
    }

    #[test]
    fn the_nearest_peers_come_first() {
        let roles: Vec<(u32, u32)> = (0..9).map(|rank| (rank, rank / 6)).collect();
        assert_eq!(nearest_peers(3, &roles), [2, 4, 1, 5, 0]);
        assert_eq!(nearest_peers(8, &roles), [7, 6]);
        assert!(nearest_peers(9, &roles).is_empty());
    }
}
