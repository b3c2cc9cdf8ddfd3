//! What PyTorch's NCCL flight recorder says, on the tape.

pub mod dump;
pub mod poll_schedule;
pub(crate) mod table;

pub use table::CollectiveWriter;
