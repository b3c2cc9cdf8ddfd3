//! The steps of one device of one rank, for a screen.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which steps, and how many points.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct SeriesQuery {
    /// The rank.
    pub rank: u32,
    /// Its device; without one the device that holds most.
    pub device: Option<u8>,
    /// The attempt; without one the newest.
    pub attempt: Option<u32>,
    /// First step.
    pub from: Option<u64>,
    /// Last step.
    pub to: Option<u64>,
    /// Most points of the answer, at most 20,000; without a number 1,000.
    pub points: Option<usize>,
}

/// Columns of equal length. Where there are more steps than points, neighbouring steps are one
/// point: the last step, the lowest minimum, the highest peak and the highest reserve.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct Series {
    /// Numbers of the steps.
    pub steps: Vec<u64>,
    /// Lowest bytes in tensors in the step.
    pub step_min_bytes: Vec<u64>,
    /// Highest bytes in tensors in the step.
    pub peak_bytes: Vec<u64>,
    /// Highest bytes the allocator held in the step.
    pub reserved_bytes: Vec<u64>,
}
