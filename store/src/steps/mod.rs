//! Step records: logged when they are new, then packed into files and indexed.

pub mod block;
pub(crate) mod index;
pub(crate) mod log;
pub(crate) mod merge;
pub(crate) mod newest;
pub(crate) mod open_series;
pub(crate) mod packer;
pub(crate) mod read;
pub(crate) mod segments;
pub(crate) mod sweep;
