//! Snapshots of ranks as files under their hash, here or in an S3-compatible store.

pub(crate) mod local;
pub(crate) mod reading;
#[cfg_attr(not(feature = "s3"), path = "no_remote.rs")]
pub(crate) mod remote;
