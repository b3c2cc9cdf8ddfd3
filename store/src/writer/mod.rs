//! The one thread that writes, and the state it shares with the handles.

pub(crate) mod pending;
pub(crate) mod point;
pub(crate) mod shared;
pub(crate) mod thread;
pub(crate) mod turns;
