//! The version of the protocol, and the refusal of another one. Nothing else decides it.

/// The version of the protocol that this code speaks, sent in `Hello` and `Welcome`.
pub const PROTOCOL: u32 = 1;

/// A program that speaks the protocol.
#[derive(Clone, Copy, Debug, Eq, PartialEq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Side {
    /// The agent of a node.
    Agent,
    /// The coordinator of a cluster.
    Coordinator,
}

impl Side {
    fn peer(self) -> Self {
        match self {
            Self::Agent => Self::Coordinator,
            Self::Coordinator => Self::Agent,
        }
    }
}

/// The peer speaks another version of the protocol.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "the {peer} speaks protocol {theirs}, the {} {PROTOCOL}: update the {}",
    .peer.peer(),
    if *.theirs > PROTOCOL { .peer.peer() } else { *.peer }
)]
pub struct OtherProtocol {
    peer: Side,
    theirs: u32,
}

/// Refuses a peer that speaks another version than [`PROTOCOL`].
///
/// # Errors
/// One line that names both versions and the program to update.
pub fn check_protocol(peer: Side, theirs: u32) -> Result<(), OtherProtocol> {
    if theirs == PROTOCOL { Ok(()) } else { Err(OtherProtocol { peer, theirs }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_refused_with_the_side_to_update() {
        let refusal = |peer, theirs| check_protocol(peer, theirs).map_err(|why| why.to_string());
        let refused = |text: &str| Err(text.to_string());
        for peer in [Side::Agent, Side::Coordinator] {
            assert_eq!(refusal(peer, PROTOCOL), Ok(()));
        }
        assert_eq!(
            refusal(Side::Agent, 2),
            refused("the agent speaks protocol 2, the coordinator 1: update the coordinator")
        );
        assert_eq!(
            refusal(Side::Coordinator, 0),
            refused("the coordinator speaks protocol 0, the agent 1: update the coordinator")
        );
    }
}
