//! The state of a rank at an earlier step, from the present and the events since.

pub(crate) mod allowance;
pub(crate) mod error;
mod failed_request;
pub(crate) mod lane_state;
pub(crate) mod outside_stacks;
pub(crate) mod point_in_time;
pub(crate) mod snapshots;
pub(crate) mod stack_index;
pub(crate) mod undo;

pub use error::RewindError;
pub use point_in_time::PointInTime;
