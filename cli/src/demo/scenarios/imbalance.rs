//! Imbalance: the sequences of one rank are longer than those of its peers.

use super::Fault;
use crate::demo::allocator::Listener;

/// Length of this rank's sequences, in percent of the usual one.
const LENGTH_PERCENT: u64 = 190;

/// Gets the longest documents.
#[derive(Debug)]
pub(super) struct Imbalance;

impl<L: Listener> Fault<L> for Imbalance {
    fn length(&self, length: u64) -> u64 {
        length * LENGTH_PERCENT / 100
    }
}
