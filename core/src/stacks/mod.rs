//! Live memory of a rank by stack and by line of code, beside that of other states.
//!
//! [`LiveStacks`] adds up the blocks of one state, all of them or those that were allocated in
//! certain steps ([`AllocationSteps`]), at the end of its step, at a peak, or when a request failed
//! ([`HeldAt`]). [`ComparedStacks`] has the state of one rank and, stack by
//! stack, what other states hold: the peers of the rank, or an earlier state of it. [`not_a_peer`]
//! decides which states can be compared. This module does not judge what it adds up.

mod allocation_steps;
mod compared_stacks;
mod held_at;
mod live_stacks;
mod peers;

pub use allocation_steps::AllocationSteps;
pub use compared_stacks::{ComparedStacks, LineRow, StackRow};
pub use held_at::HeldAt;
pub use live_stacks::{LiveStacks, Use};
pub use peers::{NotAPeer, nearest_peers, not_a_peer};
