//! Snapshots of ranks as files under their hash, here or in an S3-compatible store.

use std::ffi::OsString;

pub(crate) mod local;
pub(crate) mod reading;
#[cfg_attr(not(feature = "s3"), path = "no_remote.rs")]
pub(crate) mod remote;

/// The variables of this process.
pub(crate) fn environment() -> Vec<(String, String)> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}
