//! A hint: what to change, how many bytes it would save, how that was computed, and what it rests
//! on.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Display, Formatter};

use crate::allocator_settings::Setting;
use crate::diagnosis::plural;

/// One thing that could be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// What to change.
    pub change: Change,
    /// Bytes that it would save on the rank; 0 where it uses memory that is free.
    pub saves_bytes: u64,
    /// How sure that number is.
    pub bound: Bound,
    /// How it was computed, in a sentence.
    pub computed: String,
    /// What was observed.
    pub evidence: Vec<Evidence>,
}

/// What to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A setting of the allocator, in the environment.
    Allocator(Setting),
    /// Half of the micro-batch, and twice the steps of accumulation.
    SmallerMicroBatch,
    /// A larger micro-batch.
    LargerMicroBatch {
        /// How many times, at most.
        times: u64,
    },
    /// Activations are computed again in the backward pass.
    Checkpointing,
    /// The optimizer state is divided over ranks.
    ShardOptimizer {
        /// Number of the ranks.
        ranks: u32,
    },
    /// Parameters, gradients and optimizer state are divided over ranks.
    ShardParameters {
        /// Number of the ranks.
        ranks: u32,
    },
}

/// What a hint is about.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr, strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub enum Subject {
    /// A setting of the allocator.
    Allocator,
    /// The micro-batch.
    MicroBatch,
    /// Activation checkpointing.
    Checkpointing,
    /// Sharding.
    Sharding,
}

/// How sure a number of bytes is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr, strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub enum Bound {
    /// It saves no more.
    AtMost,
    /// An estimate.
    About,
}

/// Something that was observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// A capture.
    Capture {
        /// Its name.
        capture: String,
        /// Its step.
        step: u64,
    },
    /// The record of a step.
    Step {
        /// Its number.
        step: u64,
    },
    /// Failed `cudaMalloc`s, after which the allocator emptied its cache and tried again.
    Retries {
        /// How many.
        count: u64,
    },
    /// Requests that failed for good.
    OutOfMemory {
        /// How many.
        count: u64,
    },
    /// Tensors took nearly all of the device at the peak.
    Full {
        /// In percent.
        percent: u64,
    },
    /// Different sizes of large requests.
    Sizes {
        /// How many.
        count: u64,
    },
}

impl Change {
    /// What it is about.
    pub fn subject(self) -> Subject {
        match self {
            Self::Allocator(_) => Subject::Allocator,
            Self::SmallerMicroBatch | Self::LargerMicroBatch { .. } => Subject::MicroBatch,
            Self::Checkpointing => Subject::Checkpointing,
            Self::ShardOptimizer { .. } | Self::ShardParameters { .. } => Subject::Sharding,
        }
    }

    /// The setting that `memtape run --apply-hints` sets; none where the program must be changed.
    pub fn setting(self) -> Option<Setting> {
        match self {
            Self::Allocator(setting) => Some(setting),
            Self::SmallerMicroBatch
            | Self::LargerMicroBatch { .. }
            | Self::Checkpointing
            | Self::ShardOptimizer { .. }
            | Self::ShardParameters { .. } => None,
        }
    }

    /// What else it does, in one line.
    pub fn side_effect(self) -> &'static str {
        match self {
            Self::Allocator(Setting::ExpandableSegments) => {
                "sharing CUDA tensors between processes needs a PyTorch that supports it with \
                 expandable segments"
            }
            Self::Allocator(Setting::MaxSplitSizeMb(_)) => {
                "larger requests take whole blocks, so some of their memory stays unused, and \
                 cudaMalloc is called more often"
            }
            Self::Allocator(Setting::RoundupPower2Divisions(_)) => {
                "requests take more memory than they ask for"
            }
            Self::SmallerMicroBatch => {
                "more and smaller kernels for the same batch: a step takes longer"
            }
            Self::LargerMicroBatch { .. } => {
                "uses the memory that is free: a longer sequence can then run out of memory"
            }
            Self::Checkpointing => "activations are computed twice: a step takes longer",
            Self::ShardOptimizer { .. } => {
                "parameters are exchanged after each step; it holds only for ranks that have the \
                 same parameters"
            }
            Self::ShardParameters { .. } => {
                "parameters are gathered in each pass, and the layer at work is whole; it holds \
                 only for ranks that have the same parameters"
            }
        }
    }
}

impl Display for Change {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocator(setting) => write!(formatter, "set {setting}"),
            Self::SmallerMicroBatch => {
                formatter.write_str("halve the micro-batch, and double the accumulation")
            }
            Self::LargerMicroBatch { times } => {
                write!(formatter, "a micro-batch up to about {times} times as large has room")
            }
            Self::Checkpointing => formatter.write_str("checkpoint activations"),
            Self::ShardOptimizer { ranks } => write!(
                formatter,
                "shard the optimizer state over {ranks} ranks (ZeroRedundancyOptimizer, ZeRO 1)"
            ),
            Self::ShardParameters { ranks } => write!(
                formatter,
                "shard parameters, gradients and optimizer state over {ranks} ranks (FSDP, ZeRO 3)"
            ),
        }
    }
}

impl Display for Evidence {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capture { capture, step } => write!(formatter, "{capture} at step {step}"),
            Self::Step { step } => write!(formatter, "the record of step {step}"),
            Self::Retries { count } => {
                let times = plural(*count, "time");
                write!(formatter, "cudaMalloc failed, and was tried again: {times}")
            }
            Self::OutOfMemory { count } => {
                write!(formatter, "{} for memory failed for good", plural(*count, "request"))
            }
            Self::Full { percent } => {
                write!(formatter, "{percent} % of the device was in tensors at the peak")
            }
            Self::Sizes { count } => {
                write!(formatter, "{} of large requests", plural(*count, "different size"))
            }
        }
    }
}
