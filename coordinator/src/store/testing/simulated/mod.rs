//! A disk in memory that fails as disks do.

pub(crate) mod disk;
mod files;
pub(crate) mod rng;
