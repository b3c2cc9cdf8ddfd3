//! `cargo xtask bench`: what things cost, measured. One module for each thing.

pub(crate) mod analyze;
pub(crate) mod capture;
pub(crate) mod cluster;
pub(crate) mod disturbance;
pub(crate) mod recorder;
pub(crate) mod store;
