//! Host facts of a rank in a report, within their bounds.

use memtape_core::hints::known;
use memtape_core::identity::cut;
use memtape_core::limits::{ALLOCATOR_SETTINGS_BYTES_MAX, ROLE_BYTES_MAX};
use memtape_core::snapshot::origin::Origin;
use memtape_proto::readings::{Cgroup, RankHost, Workers};
use memtape_proto::v1;

use super::{BadMessage, NUMBER_MAX, device, number, short};
use memtape_store::records::Outside;

/// Origins of one rank in one report, on all of its devices.
const OUTSIDE_MAX: usize = 256;

/// A role that can be shown; empty for a text with control characters.
pub(super) fn role(text: &str) -> String {
    let role = cut(text.trim(), ROLE_BYTES_MAX);
    if role.chars().any(char::is_control) { String::new() } else { role.to_string() }
}

/// Settings of the allocator that are known, and how many are left out.
pub(super) fn settings(text: &str) -> (String, u64) {
    known(cut(text, ALLOCATOR_SETTINGS_BYTES_MAX))
}

/// Host memory of a rank. Numbers beyond any real one would make every sum useless. They come from
/// the kernel, so they are clamped, and do not end the stream.
pub(super) fn rank_host(mut host: RankHost) -> RankHost {
    let RankHost { anon_bytes, file_bytes, shmem_bytes, swap_bytes, workers, cgroup, missing } =
        &mut host;
    bound([anon_bytes, file_bytes, shmem_bytes, swap_bytes]);
    if let Some(Workers { anon_bytes, shmem_bytes, anon_parts_bytes, .. }) = workers {
        (*anon_bytes, *shmem_bytes) =
            ((*anon_bytes).min(NUMBER_MAX), (*shmem_bytes).min(NUMBER_MAX));
        bound([anon_parts_bytes]);
    }
    if let Some(Cgroup { bytes, limit_bytes, highs, ooms, oom_kills, inode: _ }) = cgroup {
        bound([bytes, limit_bytes, highs, ooms, oom_kills]);
    }
    *missing = short(missing);
    host
}

/// Cuts numbers that the kernel reports to the largest real one.
pub(super) fn bound<const N: usize>(numbers: [&mut Option<u64>; N]) {
    for number in numbers.into_iter().flatten() {
        *number = (*number).min(NUMBER_MAX);
    }
}

/// Memory held by code other than PyTorch's allocator. Origins of a later version are left out.
///
/// # Errors
/// One line on the bound that was broken.
pub(super) fn outside(uses: &[v1::OutsideUse]) -> Result<Vec<Outside>, BadMessage> {
    if uses.len() > OUTSIDE_MAX {
        return Err(BadMessage::Origins(uses.len()));
    }
    let one = |of: &v1::OutsideUse| {
        let origin = u16::try_from(of.origin).map_or(Origin::Unknown, Origin::from_number);
        let device = if origin.is_on_device() { device(of.device)? } else { 0 };
        Ok(Outside { origin: origin as u8, device, bytes: number(of.bytes)? })
    };
    let mut found = uses.iter().map(one).collect::<Result<Vec<_>, BadMessage>>()?;
    found.retain(|of| of.origin != Origin::Unknown as u8);
    Ok(found)
}
