//! Data of PyTorch's NCCL flight recorder on the tape.

pub mod dump;
pub mod poll_schedule;
pub(crate) mod table;

pub use table::CollectiveWriter;
