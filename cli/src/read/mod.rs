//! Sources of the commands: tapes, PyTorch's memory snapshots, and captures.
//!
//! [`source`] resolves a name, [`content`] detects the format of a file and reads it; [`snapshots`]
//! condenses the content for a diagnosis, [`jobs`] and [`order`] find its job and rank.

pub(crate) mod captures;
pub(crate) mod content;
pub(crate) mod folders;
pub(crate) mod jobs;
pub(crate) mod names;
pub(crate) mod one_rank;
pub(crate) mod order;
pub(crate) mod pickle_file;
pub(crate) mod snapshots;
pub(crate) mod source;
pub(crate) mod tape_file;
