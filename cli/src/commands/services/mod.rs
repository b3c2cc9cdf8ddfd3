//! The programs that go on until they are stopped, and the store of one that was.

pub(crate) mod agent;
pub(crate) mod coordinator;
pub(crate) mod store;
