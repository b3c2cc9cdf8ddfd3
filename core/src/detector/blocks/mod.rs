//! Growth of tensors, seen in who survives.
//!
//! A census ([`crate::census`]) says of each line of code which of its blocks live, by the steps in
//! which they were allocated: its cohorts. A line keeps memory when cohorts are still there that
//! are older than any that were ever seen to be freed, and new ones follow. Activations have no
//! survivors, optimizer states are one cohort, a cache with eviction loses its old cohorts. A
//! tensor that is replaced by a larger one has no survivors either: there the lowest totals of the
//! line must rise.
//!
//! What one rank keeps is its own growth when it is several times what its peers keep in the same
//! steps: that is sure at once. What all ranks keep is reported as a notice, and is sure when the
//! memory will soon be full, or when it has gone on evenly for long.
//!
//! `state` holds what is known, `judging` takes censuses, `growing` decides which lines grow on
//! which ranks, and `reporting` makes findings of them. Memory that is not in blocks is judged by
//! its level, elsewhere.

mod growing;
mod judging;
mod line;
mod reporting;
mod state;
mod totals;

pub(super) use state::Blocks;
