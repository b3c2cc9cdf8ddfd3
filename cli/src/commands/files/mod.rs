//! The commands that read or write files: tapes, captures and PyTorch's memory snapshots.

pub(crate) mod analyze;
pub(crate) mod diff;
pub(crate) mod export;
pub(crate) mod tape;
pub(crate) mod tapes;
