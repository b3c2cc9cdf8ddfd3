//! PyTorch's own memory snapshots as states of ranks.
//!
//! [`rank`] converts a file into the form that tapes and captures have; [`steps`] finds the ends of
//! the steps in its trace, and [`origin`] reads what Memtape's exports say of themselves. The
//! diagnosis and the exporters read the converted state only.

pub mod origin;
pub mod rank;
mod stacks;
mod steps;
