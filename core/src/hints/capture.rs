//! What a capture of one rank shows of it that hints rest on: what its memory is for, where the
//! free memory of its allocator is, and how different its requests were.
//!
//! What memory is for is known by its stack ([`Kind`]). A capture is taken where a step has ended,
//! so activations are not in it; how much comes and goes within a step, its step record says.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::diagnosis::evidence::segments;
use crate::diagnosis::files::Kind;
use crate::snapshot::ledger::{Amount, Ledger, Name, Sources};
use crate::snapshot::{DeviceSnapshot, Frame, RankSnapshot, SegmentSource};

/// Folders of libraries that shard parameters or optimizer state over ranks.
const SHARDING: [&str; 9] = [
    "torch/distributed/fsdp/",
    "torch/distributed/_composable/fsdp/",
    "torch/distributed/tensor/",
    "torch/distributed/_tensor/",
    "torch/distributed/optim/zero_redundancy_optimizer",
    "deepspeed/runtime/zero",
    "fairscale/optim/oss",
    "fairscale/nn/data_parallel/fully_sharded",
    "megatron/core/optimizer/distrib_optimizer",
];

/// Files of libraries that compute activations again in the backward pass.
const CHECKPOINTING: [&str; 4] = [
    "torch/utils/checkpoint.py",
    "checkpoint/checkpoint_wrapper",
    "deepspeed/runtime/activation_checkpointing",
    "megatron/core/tensor_parallel/random.py",
];

/// What one device of a rank held when a step had ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// Name of the capture.
    pub capture: String,
    /// Its step.
    pub step: u64,
    /// Free bytes of segments that have blocks; none where the segments are not known.
    pub split_bytes: Option<u64>,
    /// The same by the size of the segment, in bytes; empty where they are not known.
    pub split_by_size: BTreeMap<u64, u64>,
    /// Some segments are expandable; none where the segments are not known to be the allocator's.
    pub is_expandable: Option<bool>,
    /// Different sizes of large requests in its last events; none without events.
    pub large_sizes: Option<u64>,
    /// What its memory is for.
    pub composition: Composition,
    /// A stack shows a library that shards.
    pub is_sharded: bool,
    /// A stack shows a library that checkpoints activations; none without events.
    pub is_checkpointed: Option<bool>,
}

/// Live bytes by what they are for, as far as stacks tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Composition {
    /// Parameters, and what a module makes once.
    pub parameters: u64,
    /// State of optimizers.
    pub optimizer_state: u64,
    /// Made in a backward pass: gradients.
    pub gradients: u64,
    /// All other memory in tensors.
    pub other: u64,
}

impl Captured {
    /// What this capture shows of a device; none where the device is not in it.
    pub fn of(capture: &str, snapshot: &RankSnapshot, device: u8) -> Option<Self> {
        let of_device = snapshot.devices.iter().find(|of| of.device == device)?;
        let split_bytes = split_bytes(of_device);
        let has_events = !of_device.trace.is_empty();
        let shows = |parts: &[&str]| {
            let is_there = |frame: &Frame| parts.iter().any(|part| frame.file.contains(part));
            snapshot.frames.iter().any(is_there)
        };
        let is_expandable = of_device.segments.iter().any(|segment| segment.expandable);
        let is_allocators = of_device.segment_source == SegmentSource::Allocator;
        Some(Self {
            capture: capture.to_string(),
            step: snapshot.step,
            split_bytes,
            split_by_size: split_bytes.map(|_| split_by_size(of_device)).unwrap_or_default(),
            is_expandable: is_allocators.then_some(is_expandable),
            large_sizes: segments::requests(of_device).map(|requests| requests.large_sizes),
            composition: Composition::of(snapshot, of_device),
            is_sharded: shows(&SHARDING),
            is_checkpointed: has_events.then(|| shows(&CHECKPOINTING)),
        })
    }
}

impl Composition {
    /// The memory of a device by what it is for.
    fn of(snapshot: &RankSnapshot, device: &DeviceSnapshot) -> Self {
        let mut by_stack: BTreeMap<u32, u64> = BTreeMap::new();
        for block in device.blocks.iter().filter(|block| !block.pending) {
            let bytes = by_stack.entry(block.stack).or_default();
            *bytes = bytes.saturating_add(block.size);
        }
        let mut composition = Self::default();
        for (stack, bytes) in by_stack {
            let frames: Vec<&Frame> = snapshot.frames_of(stack).collect();
            let part = match Kind::of(&frames) {
                Kind::Module => &mut composition.parameters,
                Kind::OptimizerState => &mut composition.optimizer_state,
                Kind::Backward => &mut composition.gradients,
                Kind::Other | Kind::Nameless => &mut composition.other,
            };
            *part = part.saturating_add(bytes);
        }
        composition
    }
}

/// Free bytes of segments that have blocks, as the ledger counts them.
fn split_bytes(device: &DeviceSnapshot) -> Option<u64> {
    let sources = Sources { allocator: Some(device), ..Sources::default() };
    match Ledger::of(&sources).amount(Name::InactiveSplit) {
        Amount::Known(bytes) => Some(bytes),
        Amount::Unknown => None,
    }
}

/// The same by the size of the segment.
fn split_by_size(device: &DeviceSnapshot) -> BTreeMap<u64, u64> {
    let mut by_size: BTreeMap<u64, u64> = BTreeMap::new();
    let mut blocks = device.blocks.iter().peekable();
    for segment in device.segments.iter().filter(|segment| !segment.expandable) {
        let end = segment.address.saturating_add(segment.size);
        while blocks.next_if(|block| block.address < segment.address).is_some() {}
        let mut used = 0_u64;
        while let Some(block) = blocks.next_if(|block| block.address < end) {
            used = used.saturating_add(block.size);
        }
        if used > 0 {
            let bytes = by_size.entry(segment.size).or_default();
            *bytes = bytes.saturating_add(segment.size.saturating_sub(used));
        }
    }
    by_size
}
