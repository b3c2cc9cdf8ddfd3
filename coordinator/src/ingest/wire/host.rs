//! What a report says of a rank's host side, within its bounds.

use memtape_core::identity::cut;
use memtape_core::limits::{ALLOCATOR_SETTINGS_BYTES_MAX, ROLE_BYTES_MAX};
use memtape_core::snapshot::origin::Origin;
use memtape_proto::api::{Cgroup, RankHost, Workers};
use memtape_proto::v1;

use super::{BadMessage, NUMBER_MAX, device, number, short};
use crate::records::Outside;

/// Origins of one rank in one report, on all of its devices.
const OUTSIDE_MAX: usize = 256;

/// A role, as far as it can be shown.
pub(super) fn role(text: &str) -> String {
    let role = cut(text.trim(), ROLE_BYTES_MAX);
    if role.chars().any(char::is_control) { String::new() } else { role.to_string() }
}

/// Settings of the allocator, as far as they can be shown.
pub(super) fn settings(text: &str) -> String {
    let settings = cut(text.trim(), ALLOCATOR_SETTINGS_BYTES_MAX);
    if settings.chars().any(char::is_control) { String::new() } else { settings.to_string() }
}

/// What a rank takes of its host. Numbers beyond any real one would make every sum of them
/// useless. They come from the kernel, so they are cut, and do not end the stream.
pub(super) fn rank_host(host: &v1::RankHost) -> RankHost {
    let bounded = |bytes: Option<u64>| bytes.map(|bytes| bytes.min(NUMBER_MAX));
    let workers = host.workers.map(|workers| Workers {
        count: workers.count,
        anon_bytes: workers.anon_bytes.min(NUMBER_MAX),
        shmem_bytes: workers.shmem_bytes.min(NUMBER_MAX),
        anon_parts_bytes: bounded(workers.anon_parts_bytes),
        left_out: workers.left_out,
    });
    let cgroup = host.cgroup.map(|cgroup| Cgroup {
        bytes: bounded(cgroup.bytes),
        limit_bytes: bounded(cgroup.limit_bytes),
        highs: bounded(cgroup.highs),
        ooms: bounded(cgroup.ooms),
        oom_kills: bounded(cgroup.oom_kills),
    });
    RankHost {
        anon_bytes: bounded(host.anon_bytes),
        file_bytes: bounded(host.file_bytes),
        shmem_bytes: bounded(host.shmem_bytes),
        swap_bytes: bounded(host.swap_bytes),
        workers,
        cgroup,
        missing: short(&host.missing),
    }
}

/// What other code than PyTorch's allocator holds. Origins of a later version are left out.
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
