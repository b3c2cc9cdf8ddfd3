//! The reason that a drained node keeps: the id of the decision, and why it was made.
//!
//! Slurm keeps it with the node, and so does Ray (`deploy/ray/drain_node.py` writes the same). A
//! coordinator that was restarted finds its decision by it. Reasons that others give have no
//! decision.

use memtape_core::identity::ids::Kind;

/// Prefix of a reason; the id of the decision follows.
const BEGIN: &str = "memtape";

/// The reason for a decision.
pub(crate) fn of_decision(action: &str) -> String {
    format!("{BEGIN} {action}: GPU memory was not given back")
}

/// Id of the decision in a drain reason; none in a reason that Memtape did not write.
pub(crate) fn decision(reason: &str) -> Option<&str> {
    let (id, _) = reason.strip_prefix(BEGIN)?.strip_prefix(' ')?.split_once(':')?;
    (Kind::of_given(id) == Some(Kind::Action)).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_drain_reason_of_memtape_has_a_decision() {
        assert_eq!(decision(&of_decision("act-0000c1s")), Some("act-0000c1s"));
        for of_others in [
            "memtape-admin: replace the fan",
            "memtapeact-0000c1s: GPU memory was not given back",
            "memtape: GPU memory was not given back",
            "memtape cap-0000c1s: GPU memory was not given back",
            "memtape by hand: replace the fan",
            "memtape act-of-memory: replace the fan",
            "memtape act-0000c1: replace the fan",
            "memtape act-0000c1s",
            "replace the fan",
            "",
        ] {
            assert_eq!(decision(of_others), None, "{of_others:?}");
        }
    }
}
