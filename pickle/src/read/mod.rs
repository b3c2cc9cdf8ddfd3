//! Reads PyTorch's memory snapshots: streaming, bounded, data only.
//!
//! [`opcodes`] separates opcodes for data from opcodes that could run code, [`reader`] carries out
//! the former as bytes come in, [`value`] holds the values, `records` and `stacks` make records of
//! them, `steps` finds the steps of a trace, and [`torch`] makes the state of a rank of it all.

pub mod fault;
mod memo;
pub mod opcodes;
pub mod reader;
mod records;
mod settings;
mod stacks;
mod steps;
pub mod torch;
pub mod value;

pub use value::Record;
