//! The reason that a drained node keeps: the id of the decision, and why it was made.
//!
//! Slurm and Ray keep it with the node. A coordinator that was restarted finds its decision by it.
//! Reasons that others give have no decision.

/// How a reason begins; the id of the decision follows.
const BEGIN: &str = "memtape";

/// The reason for a decision.
pub(crate) fn of_decision(action: &str) -> String {
    format!("{BEGIN} {action}: GPU memory was not given back")
}

/// The id of the decision in a reason; none in one that another gave.
pub(crate) fn decision(reason: &str) -> Option<&str> {
    let (id, _) = reason.strip_prefix(BEGIN)?.trim_start().split_once(':')?;
    Some(id)
}
