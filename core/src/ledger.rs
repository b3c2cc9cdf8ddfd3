//! Where all the bytes of a device are: an exact partition, with a remainder that may be signed.
//!
//! ```text
//! device = free + other processes                                       NVML
//!        + NCCL + other code of this process                            hooks 3 and 4
//!        + cached + inactive split + deferred + rounding + requested    PyTorch's allocator
//!        + rest: the CUDA context, kernels, and whatever no source knows
//! ```
//!
//! A layer whose source is missing is unknown, never zero, and its bytes are in the rest. Where
//! only the sum of layers is known, the sum stands in their place ([`Name::Unused`],
//! [`Name::InUse`]). Sources are read at different instants and can contradict each other: a layer
//! never goes below zero for it, the rest does.

use alloc::vec::Vec;

use crate::snapshot::{DeviceSnapshot, OutsideUse, Segment, SegmentSource};
use crate::tape::layout::Origin;

/// What is known of one device, each as far as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sources<'a> {
    /// Size of the device.
    pub device_bytes: Option<u64>,
    /// Free on it, as NVML says.
    pub free_bytes: Option<u64>,
    /// What this process holds of it, as NVML says.
    pub process_bytes: Option<u64>,
    /// The allocator's state; `None` where PyTorch's caching allocator took nothing.
    pub allocator: Option<&'a DeviceSnapshot>,
    /// What came from elsewhere, on this device.
    pub outside: Option<&'a [OutsideUse]>,
}

/// The partition of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Size of the device, which all layers and the rest add up to.
    pub device_bytes: Option<u64>,
    /// From the outside in.
    pub layers: Vec<Layer>,
    /// What no layer explains; below zero where the sources claim more than there is.
    pub rest_bytes: Option<i128>,
}

/// One layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Which one.
    pub name: Name,
    /// How much it is.
    pub amount: Amount,
}

/// How much a layer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many bytes.
    Known(u64),
    /// Nobody can tell; the bytes are in the rest.
    Unknown,
}

/// The layers, from the outside in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// Free on the device.
    Free,
    /// Held by other processes, and by the driver itself.
    OtherProcesses,
    /// Taken by NCCL, for communicators and by `ncclMemAlloc`.
    Nccl,
    /// Taken from the CUDA runtime, and where that is recorded from the driver, by other code than
    /// the allocator.
    OtherCode,
    /// Segments of the allocator in which no block is in use; `empty_cache()` gives them back.
    Cached,
    /// Free parts of segments in which other blocks are in use.
    InactiveSplit,
    /// The two before together, where segments are not known (and deferred frees, where those are
    /// not known either).
    Unused,
    /// Taken back, but other streams still use it.
    Deferred,
    /// Handed out beyond what was asked for.
    Rounding,
    /// Asked for by tensors.
    Requested,
    /// Handed out, where it is not known how much of it was asked for.
    InUse,
}

impl Name {
    /// Its name in output.
    pub fn text(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::OtherProcesses => "other processes",
            Self::Nccl => "nccl",
            Self::OtherCode => "other code",
            Self::Cached => "cached",
            Self::InactiveSplit => "inactive split",
            Self::Unused => "unused by tensors",
            Self::Deferred => "deferred frees",
            Self::Rounding => "rounding",
            Self::Requested => "requested",
            Self::InUse => "in use by tensors",
        }
    }
}

impl Ledger {
    /// Adds up what is known.
    pub fn of(sources: &Sources<'_>) -> Self {
        let mut layers = Vec::new();
        let mut layer = |name: Name, bytes: Option<u64>| {
            let amount = bytes.map_or(Amount::Unknown, Amount::Known);
            layers.push(Layer { name, amount });
        };
        layer(Name::Free, sources.free_bytes);
        layer(Name::OtherProcesses, other_processes(sources));
        layer(Name::Nccl, taken_by(sources.outside, Origin::Nccl));
        layer(Name::OtherCode, other_code(sources));
        match sources.allocator {
            Some(allocator) => of_allocator(allocator, &mut layer),
            None => ALLOCATORS.into_iter().for_each(|name| layer(name, None)),
        }
        let known: u128 = layers.iter().map(|layer| u128::from(layer.amount.known())).sum();
        let rest = |device: u64| i128::from(device) - i128::try_from(known).unwrap_or(i128::MAX);
        let rest_bytes = sources.device_bytes.map(rest);
        Self { device_bytes: sources.device_bytes, layers, rest_bytes }
    }

    /// How much a layer is; unknown when it is not among them.
    pub fn amount(&self, name: Name) -> Amount {
        let found = self.layers.iter().find(|layer| layer.name == name);
        found.map_or(Amount::Unknown, |layer| layer.amount)
    }
}

impl Amount {
    /// The bytes, 0 where they are not known: they are in the rest then.
    fn known(self) -> u64 {
        match self {
            Self::Known(bytes) => bytes,
            Self::Unknown => 0,
        }
    }
}

/// The layers that only the allocator can know.
const ALLOCATORS: [Name; 5] =
    [Name::Cached, Name::InactiveSplit, Name::Deferred, Name::Rounding, Name::Requested];

fn other_processes(sources: &Sources<'_>) -> Option<u64> {
    let used = sources.device_bytes?.saturating_sub(sources.free_bytes?);
    Some(used.saturating_sub(sources.process_bytes?))
}

/// What came from an origin; `None` when it was never seen, which need not mean that there is none.
fn taken_by(outside: Option<&[OutsideUse]>, origin: Origin) -> Option<u64> {
    let mut uses = outside?.iter().filter(|taken| taken.origin == origin).peekable();
    uses.peek()?;
    Some(uses.fold(0, |sum: u64, taken| sum.saturating_add(taken.bytes)))
}

/// What the runtime and the driver gave, less the allocator's segments. Those of an expandable kind
/// come from the driver, so it must be known which are, unless the driver's calls are recorded.
fn other_code(sources: &Sources<'_>) -> Option<u64> {
    let pools = taken_by(sources.outside, Origin::CudaMallocAsync);
    let plain = taken_by(sources.outside, Origin::CudaMalloc);
    let driver = taken_by(sources.outside, Origin::DriverVmm);
    let others = match (plain, driver, sources.allocator) {
        (None, None, _) => None,
        (Some(plain), None, Some(allocator)) => {
            runtime_segment_bytes(allocator).map(|segments| plain.saturating_sub(segments))
        }
        (plain, driver, allocator) => {
            let given = plain.unwrap_or(0).saturating_add(driver.unwrap_or(0));
            // Without any segment it may be the backend whose blocks come from neither.
            let is_told = allocator.is_none_or(|it| it.segment_source != SegmentSource::None);
            let held = allocator.map_or(Some(0), held);
            held.filter(|_| is_told).map(|held| given.saturating_sub(held))
        }
    };
    match (others, pools) {
        (None, None) => None,
        (others, pools) => Some(others.unwrap_or(0).saturating_add(pools.unwrap_or(0))),
    }
}

/// Bytes of the allocator's segments that came from `cudaMalloc`.
fn runtime_segment_bytes(allocator: &DeviceSnapshot) -> Option<u64> {
    match allocator.segment_source {
        SegmentSource::None => None,
        SegmentSource::Allocator => {
            let plain = allocator.segments.iter().filter(|segment| !segment.expandable);
            Some(plain.fold(0, |sum: u64, segment| sum.saturating_add(segment.size)))
        }
        // All of the allocator's memory, unless part of it is in none of the segments.
        SegmentSource::Runtime => Occupied::of(allocator).and_then(|_| held(allocator)),
    }
}

/// What the allocator holds; of a moment in the past that is not always known.
fn held(allocator: &DeviceSnapshot) -> Option<u64> {
    let is_known = allocator.reserved > 0 || allocator.allocated == 0;
    is_known.then_some(allocator.reserved)
}

/// The allocator's part: what it holds, told apart as far as it can be.
fn of_allocator(allocator: &DeviceSnapshot, layer: &mut impl FnMut(Name, Option<u64>)) {
    let has_trace = allocator.segment_source == SegmentSource::Allocator;
    let sum = |count: &dyn Fn(&crate::snapshot::Block) -> u64| {
        allocator.blocks.iter().fold(0, |sum: u64, block| sum.saturating_add(count(block)))
    };
    let deferred = sum(&|block| if block.pending { block.size } else { 0 });
    let in_use = allocator.allocated.saturating_add(deferred);
    let unused = allocator.reserved.saturating_sub(in_use);
    match Occupied::of(allocator) {
        Some(occupied) => {
            let split = occupied.free_bytes.min(unused);
            layer(Name::Cached, Some(unused - split));
            layer(Name::InactiveSplit, Some(split));
        }
        None => {
            layer(Name::Cached, None);
            layer(Name::InactiveSplit, None);
            layer(Name::Unused, Some(unused));
        }
    }
    layer(Name::Deferred, has_trace.then_some(deferred));

    let is_told = |block: &crate::snapshot::Block| !block.pending && block.requested > 0;
    let requested = sum(&|block| if is_told(block) { block.requested.min(block.size) } else { 0 });
    let told = sum(&|block| if is_told(block) { block.size } else { 0 });
    let any_told = told > 0 || has_trace;
    layer(Name::Rounding, any_told.then_some(told - requested));
    layer(Name::Requested, any_told.then_some(requested));
    let untold = allocator.allocated.saturating_sub(told);
    if untold > 0 {
        layer(Name::InUse, Some(untold));
    }
}

/// The segments in which blocks lie.
struct Occupied {
    /// Their bytes that belong to no block.
    free_bytes: u64,
}

impl Occupied {
    /// `None` where that cannot be told: a block lies in no known segment, or blocks are missing.
    /// Parts of expandable segments are left out: what is free there can be given back alone.
    fn of(allocator: &DeviceSnapshot) -> Option<Self> {
        if allocator.segment_source == SegmentSource::None || !allocator.complete {
            return None;
        }
        let mut free_bytes = 0u64;
        let mut blocks = allocator.blocks.iter().peekable();
        for segment in &allocator.segments {
            let mut used = 0u64;
            let end = segment.address.saturating_add(segment.size);
            // A block may begin in one part of an expandable segment and end in the next.
            while let Some(block) = blocks.next_if(|block| block.address < end) {
                if block.address < segment.address {
                    return None;
                }
                used = used.saturating_add(block.size);
            }
            if used > 0 && !segment.expandable {
                free_bytes = free_bytes.saturating_add(free_part(segment, used));
            }
        }
        blocks.peek().is_none().then_some(Self { free_bytes })
    }
}

fn free_part(segment: &Segment, used: u64) -> u64 {
    segment.size.saturating_sub(used)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;
    use crate::snapshot::Block;

    const MIB: u64 = 1 << 20;

    fn outside(origin: Origin, bytes: u64) -> OutsideUse {
        OutsideUse { origin, device: 0, bytes, count: 1 }
    }

    fn segment(address: u64, size: u64) -> Segment {
        Segment { address, size, ..Segment::default() }
    }

    fn block(address: u64, size: u64, requested: u64) -> Block {
        Block { address, size, requested, ..Block::default() }
    }

    /// Two segments, one of them half in use and one empty; one free is deferred.
    fn allocator(segment_source: SegmentSource) -> DeviceSnapshot {
        let pending = Block { pending: true, ..block(0x2_0040_0000, MIB, 1) };
        DeviceSnapshot {
            allocated: 4 * MIB,
            reserved: 40 * MIB,
            blocks: vec![block(0x2_0000_0000, 4 * MIB, 4 * MIB - 100), pending],
            segments: vec![segment(0x1_0000_0000, 20 * MIB), segment(0x2_0000_0000, 20 * MIB)],
            segment_source,
            complete: true,
            ..DeviceSnapshot::default()
        }
    }

    fn amounts(ledger: &Ledger) -> Vec<(Name, Option<u64>)> {
        let amount = |layer: &Layer| match layer.amount {
            Amount::Known(bytes) => (layer.name, Some(bytes)),
            Amount::Unknown => (layer.name, None),
        };
        ledger.layers.iter().map(amount).collect()
    }

    #[test]
    fn with_every_source_the_rest_is_the_context() {
        let allocator = allocator(SegmentSource::Allocator);
        let outside = [outside(Origin::CudaMalloc, 50 * MIB), outside(Origin::Nccl, 7 * MIB)];
        let ledger = Ledger::of(&Sources {
            device_bytes: Some(1000 * MIB),
            free_bytes: Some(500 * MIB),
            process_bytes: Some(400 * MIB),
            allocator: Some(&allocator),
            outside: Some(&outside),
        });
        let expected = [
            (Name::Free, Some(500 * MIB)),
            (Name::OtherProcesses, Some(100 * MIB)),
            (Name::Nccl, Some(7 * MIB)),
            (Name::OtherCode, Some(10 * MIB)),
            (Name::Cached, Some(20 * MIB)),
            (Name::InactiveSplit, Some(15 * MIB)),
            (Name::Deferred, Some(MIB)),
            (Name::Rounding, Some(100)),
            (Name::Requested, Some(4 * MIB - 100)),
        ];
        assert_eq!(amounts(&ledger), expected);
        assert_eq!(ledger.rest_bytes, Some(i128::from((400 - 40 - 10 - 7) * MIB)));
    }

    #[test]
    fn what_no_source_knows_is_unknown_and_in_the_rest() {
        let mut allocator = allocator(SegmentSource::None);
        allocator.segments.clear();
        allocator.blocks.iter_mut().for_each(|block| block.requested = 0);
        allocator.blocks.truncate(1);
        let ledger = Ledger::of(&Sources {
            device_bytes: Some(1000 * MIB),
            allocator: Some(&allocator),
            outside: Some(&[]),
            ..Sources::default()
        });
        let expected = [
            (Name::Free, None),
            (Name::OtherProcesses, None),
            (Name::Nccl, None),
            (Name::OtherCode, None),
            (Name::Cached, None),
            (Name::InactiveSplit, None),
            (Name::Unused, Some(36 * MIB)),
            (Name::Deferred, None),
            (Name::Rounding, None),
            (Name::Requested, None),
            (Name::InUse, Some(4 * MIB)),
        ];
        assert_eq!(amounts(&ledger), expected);
        assert_eq!(ledger.rest_bytes, Some(i128::from(960 * MIB)));
        let nothing = Ledger::of(&Sources::default());
        assert!(nothing.layers.iter().all(|layer| layer.amount == Amount::Unknown));
        assert_eq!((nothing.device_bytes, nothing.rest_bytes), (None, None));
    }

    #[test]
    fn other_code_is_told_only_where_the_allocators_segments_are() {
        let taken = [outside(Origin::CudaMalloc, 50 * MIB)];
        let other = |allocator: Option<&DeviceSnapshot>| {
            let sources = Sources { allocator, outside: Some(&taken), ..Sources::default() };
            Ledger::of(&sources).amount(Name::OtherCode)
        };
        // No allocator at all (PYTORCH_NO_CUDA_MEMORY_CACHING=1): everything is.
        assert_eq!(other(None), Amount::Known(50 * MIB));
        let by_calls = allocator(SegmentSource::Runtime);
        assert_eq!(other(Some(&by_calls)), Amount::Known(10 * MIB));
        // A block outside of what cudaMalloc gave: expandable segments are in use as well.
        let mut mixed = by_calls.clone();
        mixed.blocks.insert(0, block(0x1000, 512, 0));
        assert_eq!(other(Some(&mixed)), Amount::Unknown);
        let mut expandable = allocator(SegmentSource::Allocator);
        expandable.segments.iter_mut().for_each(|segment| segment.expandable = true);
        assert_eq!(other(Some(&expandable)), Amount::Known(50 * MIB));
    }

    #[test]
    fn where_the_drivers_calls_are_recorded_all_segments_are_taken_off() {
        let taken = [outside(Origin::CudaMalloc, 25 * MIB), outside(Origin::DriverVmm, 30 * MIB)];
        let other = |allocator: Option<&DeviceSnapshot>| {
            let sources = Sources { allocator, outside: Some(&taken), ..Sources::default() };
            Ledger::of(&sources).amount(Name::OtherCode)
        };
        assert_eq!(other(None), Amount::Known(55 * MIB));
        // One of its two segments came from each.
        let mut mixed = allocator(SegmentSource::Allocator);
        mixed.segments[1].expandable = true;
        assert_eq!(other(Some(&mixed)), Amount::Known(15 * MIB));
        mixed.segment_source = SegmentSource::Runtime;
        assert_eq!(other(Some(&mixed)), Amount::Known(15 * MIB));
        mixed.segment_source = SegmentSource::None;
        assert_eq!(other(Some(&mixed)), Amount::Unknown);
    }

    #[test]
    fn the_free_part_of_an_expandable_segment_is_cached() {
        let mut allocator = allocator(SegmentSource::Allocator);
        for segment in &mut allocator.segments {
            segment.expandable = true;
        }
        // This one begins in the first part and ends in the second.
        let first_end = 0x1_0000_0000 + 20 * MIB;
        allocator.segments[1].address = first_end;
        allocator.blocks = vec![block(first_end - MIB, 4 * MIB, 4 * MIB)];
        let sources = Sources { allocator: Some(&allocator), ..Sources::default() };
        let ledger = Ledger::of(&sources);
        assert_eq!(ledger.amount(Name::InactiveSplit), Amount::Known(0));
        assert_eq!(ledger.amount(Name::Cached), Amount::Known(36 * MIB));
    }

    fn any_bytes() -> impl Strategy<Value = u64> {
        prop_oneof![0..1u64 << 40, any::<u64>()]
    }

    fn any_origin() -> impl Strategy<Value = Origin> {
        (0u16..10).prop_map(Origin::from_number)
    }

    fn any_allocator() -> impl Strategy<Value = DeviceSnapshot> {
        let source = prop_oneof![
            Just(SegmentSource::None),
            Just(SegmentSource::Runtime),
            Just(SegmentSource::Allocator)
        ];
        let blocks = proptest::collection::vec(any::<(u32, u32, u32, bool)>(), 0..20);
        let segments = proptest::collection::vec(any::<(u32, u32, bool)>(), 0..8);
        (any_bytes(), any_bytes(), source, blocks, segments, any::<bool>()).prop_map(
            |(allocated, reserved, segment_source, mut blocks, mut segments, complete)| {
                blocks.sort_unstable();
                segments.sort_unstable();
                let blocks = blocks.into_iter().map(|(address, size, requested, pending)| Block {
                    pending,
                    ..block(address.into(), size.into(), requested.into())
                });
                let segments = segments.into_iter().map(|(address, size, expandable)| Segment {
                    expandable,
                    ..segment(address.into(), size.into())
                });
                DeviceSnapshot {
                    allocated,
                    reserved,
                    segment_source,
                    blocks: blocks.collect(),
                    segments: segments.collect(),
                    complete,
                    ..DeviceSnapshot::default()
                }
            },
        )
    }

    proptest! {
        /// Whatever the sources say, even against each other: nothing is lost, nothing is hidden.
        #[test]
        fn it_always_adds_up(
            bytes in proptest::array::uniform3(proptest::option::of(any_bytes())),
            allocator in proptest::option::of(any_allocator()),
            uses in proptest::option::of(
                proptest::collection::vec((any_origin(), any_bytes()), 0..5)
            ),
        ) {
            let [device_bytes, free_bytes, process_bytes] = bytes;
            let uses: Option<Vec<OutsideUse>> = uses.map(|uses| {
                uses.into_iter().map(|(origin, bytes)| outside(origin, bytes)).collect()
            });
            let sources = Sources {
                device_bytes,
                free_bytes,
                process_bytes,
                allocator: allocator.as_ref(),
                outside: uses.as_deref(),
            };
            let ledger = Ledger::of(&sources);
            let known: i128 =
                amounts(&ledger).iter().filter_map(|(_, bytes)| bytes.map(i128::from)).sum();
            let whole = ledger.rest_bytes.map(|rest| known + rest);
            prop_assert_eq!(whole, device_bytes.map(i128::from));
            // What the allocator holds is split, never counted twice.
            if let Some(allocator) = &allocator && allocator.segment_source != SegmentSource::None {
                let inside = |(name, _): &&(Name, Option<u64>)| *name > Name::OtherCode;
                let amounts = amounts(&ledger);
                let held: u128 = amounts
                    .iter()
                    .filter(inside)
                    .filter_map(|(_, bytes)| bytes.map(u128::from))
                    .sum();
                prop_assert!(held >= u128::from(allocator.reserved.min(allocator.allocated)));
            }
        }
    }
}
