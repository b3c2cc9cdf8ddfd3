//! PyTorch's memory snapshot: `write` makes one from a rank's state, `read` reads one from a file.
//!
//! A pickle is data: an opcode that could run code ends the reading.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod read;
pub mod write;

pub use read::{Record, fault, opcodes, reader, torch, value};
pub use write::{annotated_snapshot, layout, torch_snapshot, torch_snapshot_in_parts};
