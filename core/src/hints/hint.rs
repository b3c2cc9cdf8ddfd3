//! A hint: what to change, how many bytes it would save, how that was computed, and what it rests
//! on. All of it is typed; [`Display`] makes the sentences.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Display, Formatter};

use crate::allocator_settings::Setting;
use crate::diagnosis::{bytes, plural};

/// One thing that could be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// What to change.
    pub change: Change,
    /// Bytes that it would save on the rank; 0 where it uses memory that is free.
    pub saves_bytes: u64,
    /// How sure that number is.
    pub bound: Bound,
    /// How it was computed.
    pub computed: Computed,
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

/// How the bytes were computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Computed {
    /// What is inactive split, and no more than what is reserved beyond the peak of tensors.
    Split {
        /// Inactive split in the capture.
        split: u64,
        /// Most bytes that the allocator held.
        reserved: u64,
        /// Most bytes in tensors.
        peak: u64,
    },
    /// The same, of segments above a size.
    SplitAbove {
        /// Inactive split in these segments.
        split: u64,
        /// The size, in MiB.
        mib: u64,
        /// Most bytes that the allocator held.
        reserved: u64,
        /// Most bytes in tensors.
        peak: u64,
    },
    /// What is reserved beyond the peak of tensors.
    Idle {
        /// Most bytes that the allocator held.
        reserved: u64,
        /// Most bytes in tensors.
        peak: u64,
    },
    /// What comes and goes within a step, or half of it.
    Transient {
        /// Peak of the step.
        peak: u64,
        /// Per-step minimum.
        min: u64,
        /// Only half of it.
        is_half: bool,
    },
    /// What would lie on the other ranks.
    Shared {
        /// Bytes that the rank holds.
        held: u64,
        /// Ranks that would share them.
        ranks: u32,
    },
    /// What is free on the device, beside what comes and goes within a step.
    Headroom {
        /// Size of the device.
        device: u64,
        /// Most bytes that the allocator held.
        reserved: u64,
        /// Bytes of the process outside the allocator.
        beside: u64,
        /// What comes and goes within a step.
        transient: u64,
    },
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

impl Bound {
    /// The words before the number.
    pub fn text(self) -> &'static str {
        match self {
            Self::AtMost => "at most",
            Self::About => "about",
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

impl Display for Computed {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let beyond = |formatter: &mut Formatter<'_>, reserved: u64, peak: u64| {
            write!(formatter, "{} reserved less {} in tensors", bytes(reserved), bytes(peak))
        };
        match *self {
            Self::Split { split, reserved, peak } => {
                write!(formatter, "{} inactive split; no more than ", bytes(split))?;
                beyond(formatter, reserved, peak)
            }
            Self::SplitAbove { split, mib, reserved, peak } => {
                write!(
                    formatter,
                    "{} inactive split in segments above {mib} MiB; no more than ",
                    bytes(split)
                )?;
                beyond(formatter, reserved, peak)
            }
            Self::Idle { reserved, peak } => beyond(formatter, reserved, peak),
            Self::Transient { peak, min, is_half } => write!(
                formatter,
                "{}the peak of the step, {}, less its minimum, {}",
                if is_half { "half of " } else { "" },
                bytes(peak),
                bytes(min)
            ),
            Self::Shared { held, ranks } => write!(
                formatter,
                "{} held, of which 1/{ranks} stays on each of {ranks} ranks",
                bytes(held)
            ),
            Self::Headroom { device, reserved, beside, transient } => write!(
                formatter,
                "{} on the device less {} reserved and {} outside the allocator; a step needs {} \
                 beyond its minimum",
                bytes(device),
                bytes(reserved),
                bytes(beside),
                bytes(transient)
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
                write!(formatter, "cudaMalloc failed, and was tried again: {}", times(*count))
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

fn times(count: u64) -> String {
    plural(count, "time")
}
