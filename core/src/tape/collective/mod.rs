//! What PyTorch's NCCL flight recorder says, on the tape.

pub(crate) mod table;

pub use table::CollectiveWriter;
