//! Growth of tensors, judged by the blocks that survive.
//!
//! A census ([`crate::census`]) lists the live blocks of each line of code, by the steps in which
//! they were allocated: the line's cohorts. A line keeps memory when it holds cohorts older than
//! any that was freed, and new cohorts follow. Activations have no survivors, optimizer states are
//! one cohort, a cache with eviction loses its old cohorts. A tensor that is replaced by a larger
//! one has no survivors either: there the lowest totals of the line must rise.
//!
//! A rank grows by itself when it keeps several times what its peers keep in the same steps. Growth
//! is reported as a notice, and is certain when it has used up a large part of the memory that was
//! left, or has gone on evenly for long.
//!
//! `state` holds the lines of each device, `judging` takes censuses, `growing` decides which lines
//! grow on which ranks, and `reporting` makes findings of them. Memory that is not in blocks is
//! judged by its level, in [`levels`](super::levels).

mod growing;
mod judging;
mod line;
mod reporting;
mod state;
mod totals;

pub(super) use state::Blocks;
