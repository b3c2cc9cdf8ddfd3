//! What the families of several sets draw: sizes, hosts, and the ranks of a node.

use crate::job::{GIB, Job, NODE_RANKS};

/// Draws a number of bytes, each order of magnitude alike, of at most this share of the device.
pub(super) fn bytes_of(job: &mut Job, low: f64, high: f64, share: f64) -> f64 {
    job.rng.log_uniform(low, high).min(job.device_bytes as f64 * share)
}

/// Gives a job that keeps much on the host the hosts for it.
pub(super) fn roomy_host(job: &mut Job) {
    if job.host_limit > 0 {
        job.host_limit = 512 * GIB;
    }
}

/// The ranks of one node.
pub(super) fn one_node(job: &mut Job) -> Vec<u32> {
    let first = job.rng.between(0, u64::from(job.ranks.div_ceil(NODE_RANKS))) as u32 * NODE_RANKS;
    (first..job.ranks.min(first + NODE_RANKS)).collect()
}
