//! The commands that ask a running coordinator.

pub(crate) mod capture;
pub(crate) mod list;
pub(crate) mod show;
