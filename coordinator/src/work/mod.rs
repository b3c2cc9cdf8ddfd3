//! Work that takes its time and runs beside the loop: diagnoses, hooks, webhooks.

pub(crate) mod diagnosing;
pub(crate) mod hooks;
pub(crate) mod tasks;
