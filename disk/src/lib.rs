//! The base of a store: files, folders and locks, logs of checked records, an ordered index, and
//! the machine's clocks.
//!
//! [`files`] has the trait of a disk, [`real`] the disk that is a folder. [`frames`] is a file of
//! checked records. [`tree`] has the trait of an index, `sled_tree.rs` implements it with sled.
//! Nothing here interprets the bytes.

#![forbid(unsafe_code)]

pub mod clock;
pub mod files;
pub mod frames;
pub mod real;
mod sled_tree;
pub mod tree;
