//! The segments of a rank of a capture: reads its stored snapshot.
//!
//! What a map of them shows is decided by core ([`memtape_core::segment_map`]).

use memtape_core::segment_map::{MapBounds, SegmentMap};
use memtape_core::snapshot::{DeviceSnapshot, RankSnapshot};
use memtape_core::stacks::AllocationSteps;
use memtape_proto::api::{FailedMemory, Segments};

use crate::work::decoding::{NotRead, Snapshots};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotMapped {
    #[error(transparent)]
    Unreadable(#[from] NotRead),
    /// The rank does not use this device, or uses none.
    #[error("the snapshot has no such device")]
    NoDevice,
}

/// The segments of a device in the snapshot with this hash; without a device, those of the fullest
/// device. The fields about the capture are empty.
///
/// # Errors
/// The snapshot cannot be read, or has no such device.
pub(crate) async fn mapped(
    stored: &Snapshots,
    hash: blake3::Hash,
    device: Option<u8>,
) -> Result<Segments, NotMapped> {
    let bounds = stored.bounds().without_trace();
    let answer = stored.read(hash, bounds, move |snapshot, _| {
        let found = device_of(&snapshot, device)?;
        let map = SegmentMap::of(&snapshot, found, MapBounds::default());
        Some(Segments {
            step: snapshot.step,
            last_step: AllocationSteps::last_of(&snapshot),
            failed: FailedMemory::of(&snapshot),
            devices: snapshot.devices.iter().map(|device| device.device).collect(),
            ..Segments::of(found, &map)
        })
    });
    answer.await?.ok_or(NotMapped::NoDevice)
}

fn device_of(snapshot: &RankSnapshot, wanted: Option<u8>) -> Option<&DeviceSnapshot> {
    match wanted {
        Some(device) => snapshot.devices.iter().find(|of| of.device == device),
        None => snapshot.devices.iter().max_by_key(|of| of.allocated),
    }
}
