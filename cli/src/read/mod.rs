//! What the commands read from files: tapes, and PyTorch's memory snapshots.

pub(crate) mod jobs;
pub(crate) mod names;
pub(crate) mod order;
pub(crate) mod snapshots;
pub(crate) mod tape_file;
