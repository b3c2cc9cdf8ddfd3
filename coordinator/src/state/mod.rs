//! State of the coordinator, in parts that each own their fields: jobs, captures, incidents,
//! actions, and nodes that are kept out. Work outside of a part is an effect (`effects.rs`).
//! Nothing here sends, waits, or reads a clock.

pub(crate) mod actions;
pub(crate) mod captures;
pub(crate) mod comparison;
pub(crate) mod counters;
pub(crate) mod effects;
pub(crate) mod hints;
pub(crate) mod incidents;
pub(crate) mod jobs;
pub(crate) mod messages;
pub(crate) mod restored;
pub(crate) mod view;
pub(crate) mod visible;
