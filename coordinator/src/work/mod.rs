//! Work that takes its time and runs beside the loop: diagnoses and restarts.

pub(crate) mod diagnosing;
pub(crate) mod tasks;
