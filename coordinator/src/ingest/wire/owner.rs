//! Owner and scheduler ids of a rank, as its agent claims. These texts name jobs and go to
//! schedulers: a text that is no name of a namespace, a pod or a Slurm job is refused.

use memtape_core::identity::owner::{Namespace, Owner, Workload};
use memtape_proto::v1;

use super::BadMessage;

/// Longest name of a namespace or a pod.
const POD_NAME_BYTES_MAX: usize = 253;

/// Longest UID of a pod.
const POD_UID_BYTES_MAX: usize = 64;

/// Most digits of a Slurm job.
const SLURM_JOB_BYTES_MAX: usize = 20;

pub(super) fn owner(raw: &v1::Owner) -> Result<Owner, BadMessage> {
    let namespace = match raw.is_namespace_unknown {
        true => Namespace::Unknown,
        false => plain(&raw.namespace, "a namespace", POD_NAME_BYTES_MAX)?.into(),
    };
    Ok(Owner { uid: raw.uid, account: raw.account, namespace })
}

pub(super) fn workload(raw: &v1::Owner) -> Result<Workload, BadMessage> {
    let slurm_job = plain(&raw.slurm_job, "a Slurm job", SLURM_JOB_BYTES_MAX)?;
    if slurm_job.bytes().any(|byte| !byte.is_ascii_digit()) {
        return Err(BadMessage::Name { what: "a Slurm job", bytes_max: SLURM_JOB_BYTES_MAX });
    }
    Ok(Workload {
        slurm_job,
        pod: plain(&raw.pod, "a pod", POD_NAME_BYTES_MAX)?,
        pod_uid: plain(&raw.pod_uid, "a pod's UID", POD_UID_BYTES_MAX)?,
    })
}

/// Letters, digits, `.` and `-`, which is first in no name; or nothing.
fn plain(text: &str, what: &'static str, bytes_max: usize) -> Result<String, BadMessage> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    if text.len() > bytes_max || text.starts_with('-') || !text.bytes().all(is_plain) {
        return Err(BadMessage::Name { what, bytes_max });
    }
    Ok(text.to_string())
}
