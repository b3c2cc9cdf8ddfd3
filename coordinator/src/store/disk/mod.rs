//! Everything that touches the operating system: files, folders, locks and sled.

pub(crate) mod files;
pub(crate) mod frames;
pub(crate) mod real;
pub(crate) mod sled_tree;
pub(crate) mod tree;
