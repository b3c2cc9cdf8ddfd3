//! The journal: every change to a record, synced before it is acknowledged.

pub(crate) mod contents;
pub(crate) mod file;
pub(crate) mod merge;
