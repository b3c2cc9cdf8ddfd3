//! Reads PyTorch's memory snapshots: streaming, bounded, data only.
//!
//! [`opcodes`] says what is data and what could run code, [`reader`] carries out the former as
//! bytes come in, [`value`] holds what it builds, `fold` makes records of it on the way,
//! [`assemble::TorchReader`] puts them in order, and [`torch`] is what comes out.

pub mod assemble;
pub mod fault;
mod fold;
pub mod intern;
mod notes;
pub mod opcodes;
pub mod reader;
pub mod torch;
pub mod value;
