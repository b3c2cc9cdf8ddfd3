//! The simulated disk of all tests: a disk in memory that fails as disks do.

#![forbid(unsafe_code)]

mod disk;
mod files;

pub use disk::{Counts, SimulatedDisk};
