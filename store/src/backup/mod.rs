//! Backups: one file with everything that a store needs to go on, and its hashes.

pub(crate) mod make;
pub(crate) mod manifest;
pub(crate) mod restore;
