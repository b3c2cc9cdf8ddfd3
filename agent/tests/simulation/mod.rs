//! The agent's logic without a node, for tests: no clock, no thread, no file.

mod memory_disk;
mod memory_tapes;
mod simulated_agent;

pub use memory_disk::MemoryDisk;
pub use memory_tapes::{MemoryRank, MemoryTape, MemoryTapes, SMALL};
pub use simulated_agent::{Event, MemoryNode, Now, Output, SimulatedAgent, UploadEnd};
