//! Snapshots of ranks as files under their hash, here or in an S3-compatible store.

pub(crate) mod local;
pub(crate) mod reading;
pub(crate) mod remote;
