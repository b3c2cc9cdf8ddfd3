//! Verdicts about actions, with their figures; the sentences are made by [`Display`].

use core::fmt::{self, Display, Formatter};

use crate::detector::Layer;
use crate::diagnosis::{bytes, duration, plural};
use serde::{Deserialize, Serialize};

/// Memory of one device of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Memory {
    /// Number of the step.
    pub step: u64,
    /// Lowest bytes in tensors in the step.
    #[serde(rename = "step_min_bytes")]
    pub min_bytes: u64,
    /// Highest bytes in tensors in the step.
    pub peak_bytes: u64,
    /// Highest bytes the allocator held in the step.
    pub reserved_bytes: u64,
    /// Failed `cudaMalloc` calls in the attempt until then.
    pub retries: u64,
}

/// Whether an action helped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumDiscriminants, Deserialize, Serialize)]
#[strum_discriminants(name(VerdictKind), derive(strum::VariantArray))]
#[strum_discriminants(doc = "Whether an action helped, without what that rests on.")]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The job goes on with less memory.
    Helped(Why),
    /// The memory is as it was, or nothing was done.
    NoEffect(Why),
    /// The job is worse off than before.
    Worse(Why),
    /// The job goes on; whether with less memory is not known.
    Unknown(Why),
}

/// Which figure of the memory shows whether an action helped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// The per-step minimum of bytes in tensors.
    Minimum,
    /// The peak of bytes in tensors.
    Peak,
    /// The bytes that the allocator holds.
    Reserved,
    /// None that is kept by step: memory of the host, of other processes and outside the allocator.
    #[default]
    None,
}

impl Measure {
    /// The figure that growth of a layer shows in.
    pub fn of(layer: Layer) -> Self {
        match layer {
            Layer::Allocated | Layer::Blocks => Self::Minimum,
            Layer::Peak | Layer::Spread => Self::Peak,
            Layer::Reserved | Layer::Deferred | Layer::Retries | Layer::Churn => Self::Reserved,
            Layer::NonTorch
            | Layer::Other
            | Layer::Host
            | Layer::Pinned
            | Layer::Shared
            | Layer::Workers
            | Layer::Progress
            | Layer::Process => Self::None,
        }
    }
}

impl Memory {
    /// Bytes that come and go within the step.
    pub(crate) fn transient(&self) -> u64 {
        self.peak_bytes.saturating_sub(self.min_bytes)
    }

    /// The figure, in bytes.
    pub(super) fn figure(&self, measure: Measure) -> Option<u64> {
        match measure {
            Measure::Minimum => Some(self.min_bytes),
            Measure::Peak => Some(self.peak_bytes),
            Measure::Reserved => Some(self.reserved_bytes),
            Measure::None => None,
        }
    }
}

/// What a verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The rank's memory before and after, at least 20 steps into
    /// the next attempt.
    Measured {
        /// Before the action.
        before: Memory,
        /// In the next attempt.
        after: Memory,
        /// From the action to the first step of the next attempt, in nanoseconds.
        away_ns: u64,
    },
    /// The rank's memory before a remedy inside the ranks, and at least 20 steps after it.
    Inside {
        /// Before.
        before: Memory,
        /// After.
        after: Memory,
    },
    /// The attempt made enough steps after it, and the memory is not kept by step.
    NotMeasuredInside {
        /// Steps that it made.
        steps: u64,
    },
    /// The attempt died after some steps.
    DiedInside {
        /// Steps that it made.
        steps: u64,
    },
    /// The attempt ended, or stood still, after some steps.
    Gone {
        /// Steps that it made.
        steps: u64,
    },
    /// The next attempt made enough steps, and the memory is not kept by step.
    NotMeasured {
        /// Steps that it made.
        steps: u64,
    },
    /// The next attempt ended well.
    Finished,
    /// The attempt runs on; no other began in this time, in nanoseconds.
    NotRestarted {
        /// The time.
        waited_ns: u64,
    },
    /// The attempt is over, and no other began in this time, in nanoseconds.
    NotBack {
        /// The time.
        waited_ns: u64,
    },
    /// The next attempt made too few steps in this time, in nanoseconds.
    Stuck {
        /// Steps that it made.
        steps: u64,
        /// The time.
        waited_ns: u64,
    },
    /// The next attempt died after some steps.
    Died {
        /// Steps that it made.
        steps: u64,
    },
    /// The next attempt could not get memory after some steps.
    OutOfMemory {
        /// Steps that it made.
        steps: u64,
    },
}

impl Verdict {
    /// The name a user meets.
    pub fn as_str(&self) -> &'static str {
        VerdictKind::from(self).as_str()
    }

    /// What it rests on.
    pub fn why(&self) -> &Why {
        match self {
            Self::Helped(why) | Self::NoEffect(why) | Self::Worse(why) | Self::Unknown(why) => why,
        }
    }
}

impl VerdictKind {
    /// The name a user meets.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Helped => "helped",
            Self::NoEffect => "no effect",
            Self::Worse => "worse",
            Self::Unknown => "unknown",
        }
    }
}

impl Display for Verdict {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.as_str(), self.why())
    }
}

impl Display for Why {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Measured { before, after, away_ns } => {
                write_figures(formatter, before, after, " of the next attempt")?;
                write!(formatter, "; its first step came after {}", duration(*away_ns))
            }
            Self::Inside { before, after } => write_figures(formatter, before, after, ""),
            Self::NotMeasuredInside { steps } => write!(
                formatter,
                "the attempt made {} after it; this kind of memory is not compared",
                plural(*steps, "step")
            ),
            Self::DiedInside { steps } => {
                write!(formatter, "the attempt died after {}", plural(*steps, "step"))
            }
            Self::Gone { steps } => {
                write!(formatter, "the attempt made {} after it", plural(*steps, "step"))
            }
            Self::NotMeasured { steps } => write!(
                formatter,
                "the next attempt made {}; this kind of memory is not compared",
                plural(*steps, "step")
            ),
            Self::Finished => formatter.write_str("the next attempt finished"),
            Self::NotRestarted { waited_ns } => {
                write!(formatter, "the attempt runs on after {}", duration(*waited_ns))
            }
            Self::NotBack { waited_ns } => {
                write!(formatter, "no attempt began within {}", duration(*waited_ns))
            }
            Self::Stuck { steps, waited_ns } => write!(
                formatter,
                "the next attempt made {} within {}",
                plural(*steps, "step"),
                duration(*waited_ns)
            ),
            Self::Died { steps } => {
                write!(formatter, "the next attempt died after {}", plural(*steps, "step"))
            }
            Self::OutOfMemory { steps } => write!(
                formatter,
                "the next attempt ran out of memory after {}",
                plural(*steps, "step")
            ),
        }
    }
}

/// The figures before and after; the step after is that of `whose`.
fn write_figures(
    formatter: &mut Formatter<'_>,
    before: &Memory,
    after: &Memory,
    whose: &str,
) -> fmt::Result {
    write!(
        formatter,
        "per-step minimum {} at step {}, {} at step {}{whose}; peak {}, then {}; reserved {}, \
         then {}",
        bytes(before.min_bytes),
        before.step,
        bytes(after.min_bytes),
        after.step,
        bytes(before.peak_bytes),
        bytes(after.peak_bytes),
        bytes(before.reserved_bytes),
        bytes(after.reserved_bytes)
    )?;
    match (before.retries, after.retries) {
        (0, 0) => Ok(()),
        (before, after) => write!(formatter, "; retries {before}, then {after}"),
    }
}
