//! Work that takes its time and runs beside the loop: diagnoses, restarts and pickles.

pub(crate) mod blocking;
pub(crate) mod collectives;
pub(crate) mod decoding;
pub(crate) mod diagnosing;
pub(crate) mod kept;
pub(crate) mod parts;
pub(crate) mod pickling;
pub(crate) mod segments;
pub(crate) mod tasks;
