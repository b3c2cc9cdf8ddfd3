//! Desynchronisation: the rank leaves the collectives of a step out, and waits on the host.

use super::Fault;
use crate::demo::allocator::Listener;

/// Takes another branch than its peers.
#[derive(Debug)]
pub(super) struct Desync;

impl<L: Listener> Fault<L> for Desync {
    fn leaves_collectives_out(&self) -> bool {
        true
    }
}
