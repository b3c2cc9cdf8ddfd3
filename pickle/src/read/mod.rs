//! Reads PyTorch's memory snapshots: streaming, bounded, data only.
//!
//! [`opcodes`] says what is data and what could run code, [`reader`] carries out the former as
//! bytes come in, [`value`] holds what it builds, `fold` makes records of it on the way,
//! `assemble` puts them in order at the end, and [`torch`] is what comes out.

mod assemble;
pub mod fault;
mod fold;
pub mod intern;
mod notes;
pub mod opcodes;
pub mod reader;
pub mod torch;
pub mod value;
