//! PyTorch's memory snapshot: `write` makes one from a rank's state, `read` reads one from a file.

pub mod read;
pub mod write;

pub use read::{assemble, fault, opcodes, reader, torch, value};
pub use write::{torch_snapshot, torch_snapshot_in_parts};
