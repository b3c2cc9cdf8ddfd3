//! The agent's logic without a node, for tests: no clock, no thread, no file.

mod memory_tapes;
mod simulated_agent;

pub use memory_tapes::{MemoryRank, MemoryTape, MemoryTapes, SMALL};
pub use simulated_agent::{Event, MemoryNode, Now, Output, SimulatedAgent, UploadEnd};

/// A whole entry of the spool, as it lies on a disk.
pub fn spool_entry(number: u64, items: u32, payload: &[u8]) -> Vec<u8> {
    let entry = crate::spool::Entry { number, items, payload: payload.to_vec() };
    memtape_disk::frames::encode(&entry.encode())
}
