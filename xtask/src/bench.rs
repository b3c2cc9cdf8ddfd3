//! `cargo xtask bench`: what things cost, measured. One module for each thing.

pub(crate) mod recorder;
