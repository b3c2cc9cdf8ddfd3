//! The commands that run the services, and `memtape store` for the store of a stopped coordinator.

pub(crate) mod agent;
pub(crate) mod coordinator;
pub(crate) mod store;
