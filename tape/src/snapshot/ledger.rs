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

use crate::snapshot::origin::Origin;
use crate::snapshot::{DeviceSnapshot, OutsideUse, Segment, SegmentSource};

/// Facts about one device, each where known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sources<'a> {
    /// Size of the device.
    pub device_bytes: Option<u64>,
    /// Free bytes of the device, by NVML.
    pub free_bytes: Option<u64>,
    /// Bytes that this process holds on the device, by NVML.
    pub process_bytes: Option<u64>,
    /// The allocator's state; `None` where PyTorch's caching allocator took nothing.
    pub allocator: Option<&'a DeviceSnapshot>,
    /// Memory from outside the allocator, on this device.
    pub outside: Option<&'a [OutsideUse]>,
}

/// Facts about one device that are known at any time, without its blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing<'a> {
    /// Size of the device.
    pub device_bytes: Option<u64>,
    /// Free bytes of the device, by NVML.
    pub free_bytes: Option<u64>,
    /// Bytes that this process holds on the device, by NVML.
    pub process_bytes: Option<u64>,
    /// Bytes that the allocator has handed out.
    pub allocated: u64,
    /// Bytes that the allocator holds from the device.
    pub reserved: u64,
    /// Taken back, but in use by other streams.
    pub deferred: Option<u64>,
    /// Memory from outside the allocator, on this device.
    pub outside: Option<&'a [OutsideUse]>,
}

/// The partition of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Size of the device, which all layers and the rest add up to.
    pub device_bytes: Option<u64>,
    /// Layers from the outside in.
    pub layers: Vec<Layer>,
    /// Bytes that no layer explains; below zero where the sources claim more than there is.
    pub rest_bytes: Option<i128>,
}

/// A layer with its amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Name of the layer.
    pub name: Name,
    /// Amount of the layer.
    pub amount: Amount,
}

/// Amount of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// This number of bytes.
    Known(u64),
    /// Not known; the bytes are in the unaccounted part.
    Unknown,
}

/// The layers, from the outside in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Name {
    /// Free on the device.
    Free,
    /// Held by other processes, and by the driver itself.
    #[strum(serialize = "other processes")]
    OtherProcesses,
    /// Taken by NCCL, for communicators and by `ncclMemAlloc`.
    #[strum(serialize = "NCCL")]
    Nccl,
    /// Taken from the CUDA runtime, and where that is recorded from the driver, by other code than
    /// the allocator.
    #[strum(serialize = "other code")]
    OtherCode,
    /// Segments of the allocator in which no block is in use; `empty_cache()` gives them back.
    Cached,
    /// Free parts of segments in which other blocks are in use.
    #[strum(serialize = "inactive split")]
    InactiveSplit,
    /// The two before together, where segments are not known (and pending frees, where those are
    /// not known either).
    #[strum(serialize = "unused by tensors")]
    Unused,
    /// Taken back, but other streams still use it.
    #[strum(serialize = "pending frees")]
    Deferred,
    /// Bytes handed out beyond the requested size.
    Rounding,
    /// Asked for by tensors.
    Requested,
    /// Bytes handed out, where the requested part of them is unknown.
    #[strum(serialize = "in use by tensors")]
    InUse,
}

impl Name {
    /// Name of the layer in output.
    pub fn text(self) -> &'static str {
        self.into()
    }
}

impl Ledger {
    /// Adds up the known layers.
    pub fn of(sources: &Sources<'_>) -> Self {
        Self::add_up(sources.device_bytes, |layer| {
            layer(Name::Free, sources.free_bytes);
            let Sources { device_bytes, free_bytes, process_bytes, .. } = *sources;
            layer(Name::OtherProcesses, other_processes(device_bytes, free_bytes, process_bytes));
            layer(Name::Nccl, taken_by(sources.outside, Origin::Nccl));
            layer(Name::OtherCode, other_code(sources));
            match sources.allocator {
                Some(allocator) => of_allocator(allocator, layer),
                None => ALLOCATORS.into_iter().for_each(|name| layer(name, None)),
            }
        })
    }

    /// The same from totals alone: layers that need all blocks are unknown, and stand in sums.
    /// Other code is known where the driver's calls are recorded, or where PyTorch's allocator
    /// holds nothing: which of its segments `cudaMalloc` gave is in no total.
    pub fn live(standing: &Standing<'_>) -> Self {
        let &Standing { allocated, reserved, deferred, outside, .. } = standing;
        let Standing { device_bytes, free_bytes, process_bytes, .. } = *standing;
        let plain = taken_by(outside, Origin::CudaMalloc);
        let driver = taken_by(outside, Origin::DriverVmm);
        let others = match (plain, driver) {
            (Some(plain), None) => (reserved == 0).then_some(plain),
            (_, None) => None,
            (plain, Some(driver)) => {
                Some(plain.unwrap_or(0).saturating_add(driver).saturating_sub(reserved))
            }
        };
        let unused = reserved.saturating_sub(allocated).saturating_sub(deferred.unwrap_or(0));
        Self::add_up(device_bytes, |layer| {
            layer(Name::Free, free_bytes);
            layer(Name::OtherProcesses, other_processes(device_bytes, free_bytes, process_bytes));
            layer(Name::Nccl, taken_by(outside, Origin::Nccl));
            layer(Name::OtherCode, with_pools(others, outside));
            layer(Name::Cached, None);
            layer(Name::InactiveSplit, None);
            layer(Name::Unused, Some(unused));
            layer(Name::Deferred, deferred);
            layer(Name::Rounding, None);
            layer(Name::Requested, None);
            layer(Name::InUse, Some(allocated));
        })
    }

    fn add_up(
        device_bytes: Option<u64>,
        tell: impl FnOnce(&mut dyn FnMut(Name, Option<u64>)),
    ) -> Self {
        let mut layers = Vec::new();
        tell(&mut |name: Name, bytes: Option<u64>| {
            let amount = bytes.map_or(Amount::Unknown, Amount::Known);
            layers.push(Layer { name, amount });
        });
        let known: u128 =
            layers.iter().filter_map(|layer| layer.amount.bytes()).map(u128::from).sum();
        let rest = |device: u64| i128::from(device) - i128::try_from(known).unwrap_or(i128::MAX);
        Self { device_bytes, layers, rest_bytes: device_bytes.map(rest) }
    }

    /// Free bytes of segments in which other blocks are in use; none where that is not known.
    pub fn inactive_split(allocator: &DeviceSnapshot) -> Option<u64> {
        let sources = Sources { allocator: Some(allocator), ..Sources::default() };
        Self::of(&sources).amount(Name::InactiveSplit).bytes()
    }

    /// Amount of a layer; unknown when the ledger lacks it.
    pub fn amount(&self, name: Name) -> Amount {
        let found = self.layers.iter().find(|layer| layer.name == name);
        found.map_or(Amount::Unknown, |layer| layer.amount)
    }
}

impl Amount {
    /// The bytes; none where they are not known: they are in the rest then.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Known(bytes) => Some(bytes),
            Self::Unknown => None,
        }
    }
}

/// The layers that only the allocator can know.
const ALLOCATORS: [Name; 5] =
    [Name::Cached, Name::InactiveSplit, Name::Deferred, Name::Rounding, Name::Requested];

fn other_processes(device: Option<u64>, free: Option<u64>, process: Option<u64>) -> Option<u64> {
    Some(device?.saturating_sub(free?).saturating_sub(process?))
}

/// Bytes of an origin; `None` when the origin was never seen, which need not mean that it has none.
fn taken_by(outside: Option<&[OutsideUse]>, origin: Origin) -> Option<u64> {
    let mut uses = outside?.iter().filter(|taken| taken.origin == origin).peekable();
    uses.peek()?;
    Some(uses.fold(0, |sum: u64, taken| sum.saturating_add(taken.bytes)))
}

/// Bytes from the runtime and the driver, less the allocator's segments. Expandable segments come
/// from the driver, so they must be known, unless the driver's calls are recorded.
fn other_code(sources: &Sources<'_>) -> Option<u64> {
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
            let is_known = allocator.is_none_or(|it| it.segment_source != SegmentSource::None);
            let held = allocator.map_or(Some(0), held);
            held.filter(|_| is_known).map(|held| given.saturating_sub(held))
        }
    };
    with_pools(others, sources.outside)
}

/// Adds the pools of `cudaMallocAsync`, which the allocator alone uses.
fn with_pools(others: Option<u64>, outside: Option<&[OutsideUse]>) -> Option<u64> {
    match (others, taken_by(outside, Origin::CudaMallocAsync)) {
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

/// Bytes that the allocator holds; `None` where they are unknown for a past time.
fn held(allocator: &DeviceSnapshot) -> Option<u64> {
    let is_known = allocator.reserved > 0 || allocator.allocated == 0;
    is_known.then_some(allocator.reserved)
}

/// The allocator's part: its reserved bytes, split as far as known.
fn of_allocator(allocator: &DeviceSnapshot, layer: &mut dyn FnMut(Name, Option<u64>)) {
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

    let has_request = |block: &crate::snapshot::Block| !block.pending && block.requested > 0;
    let requested =
        sum(&|block| if has_request(block) { block.requested.min(block.size) } else { 0 });
    let with_request = sum(&|block| if has_request(block) { block.size } else { 0 });
    let any_known = with_request > 0 || has_trace;
    layer(Name::Rounding, any_known.then_some(with_request - requested));
    layer(Name::Requested, any_known.then_some(requested));
    let without_request = allocator.allocated.saturating_sub(with_request);
    if without_request > 0 {
        layer(Name::InUse, Some(without_request));
    }
}

/// The segments in which blocks lie.
struct Occupied {
    /// Bytes of these segments that belong to no block.
    free_bytes: u64,
}

impl Occupied {
    /// `None` where unknown: a block lies in no known segment, or blocks are missing. Parts of
    /// expandable segments are left out: free bytes there can be given back alone.
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
#[path = "ledger_tests.rs"]
mod tests;
