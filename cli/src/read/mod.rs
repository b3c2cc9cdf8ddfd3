//! What the commands read: tapes, PyTorch's memory snapshots, and captures.
//!
//! [`source`] decides what a name is, [`content`] what is in a file, and reads it; [`snapshots`]
//! condenses what was read for a diagnosis, and [`jobs`] and [`order`] say whose it is.

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
