//! The steps of one device of one rank, for a screen.

use serde::{Deserialize, Serialize};

/// Columns of equal length. Where there are more steps than points, neighbouring steps are one
/// point: the last step, the lowest minimum, the highest peak and the highest reserve.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// Step records of the rank that are not kept, because its node or owner sent more than are
    /// kept: of their steps every second, fourth, … is there.
    pub steps_left_out: u64,
}
