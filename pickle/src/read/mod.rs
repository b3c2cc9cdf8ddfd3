//! Reads PyTorch's memory snapshots: streaming, bounded, data only.
//!
//! [`opcodes`] says what is data and what could run code, [`reader`] carries out the former as
//! bytes come in, [`value`] holds what it builds, `records` makes records of it on the way, `steps`
//! finds the steps of a trace, and [`torch`] makes the state of a rank of it all.

pub mod fault;
pub mod opcodes;
pub mod reader;
mod records;
mod settings;
mod stacks;
mod steps;
pub mod torch;
pub mod value;

pub use value::Record;
