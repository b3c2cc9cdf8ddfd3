//! Facts for hints from a capture of one rank: the free memory of its allocator by place, and the
//! variety of its request sizes.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};

use crate::diagnosis::evidence::segments;
use crate::snapshot::ledger::Ledger;
use crate::snapshot::{DeviceSnapshot, RankSnapshot, SegmentSource};

/// State of one device of a rank at the end of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// Name of the capture.
    pub capture: String,
    /// Number of the step.
    pub step: u64,
    /// Free bytes of segments that have blocks; none where the segments are not known.
    pub split_bytes: Option<u64>,
    /// Inactive split bytes by the size of the segment, in bytes; empty where they are not known.
    pub split_by_size: BTreeMap<u64, u64>,
    /// True if some segments are expandable; none where their source is not the allocator.
    pub is_expandable: Option<bool>,
    /// Different sizes of large requests in its last events; none without events.
    pub large_sizes: Option<u64>,
}

impl Captured {
    /// Facts of a device in this capture; none where the device is not in it.
    pub fn of(capture: &str, snapshot: &RankSnapshot, device: u8) -> Option<Self> {
        let of_device = snapshot.devices.iter().find(|of| of.device == device)?;
        let split_bytes = Ledger::inactive_split(of_device);
        let is_expandable = of_device.segments.iter().any(|segment| segment.expandable);
        let is_allocators = of_device.segment_source == SegmentSource::Allocator;
        Some(Self {
            capture: capture.to_string(),
            step: snapshot.step,
            split_bytes,
            split_by_size: split_bytes.map(|_| split_by_size(of_device)).unwrap_or_default(),
            is_expandable: is_allocators.then_some(is_expandable),
            large_sizes: segments::requests(of_device).map(|requests| requests.large_sizes),
        })
    }
}

/// Inactive split bytes by the size of the segment.
fn split_by_size(device: &DeviceSnapshot) -> BTreeMap<u64, u64> {
    let mut by_size: BTreeMap<u64, u64> = BTreeMap::new();
    for segment in device.segments.iter().filter(|segment| !segment.expandable) {
        let blocks = segments::blocks_in(segment, &device.blocks);
        if !blocks.is_empty() {
            let (used, _) = segments::gaps(segment, blocks);
            let bytes = by_size.entry(segment.size).or_default();
            *bytes = bytes.saturating_add(segment.size.saturating_sub(used));
        }
    }
    by_size
}
