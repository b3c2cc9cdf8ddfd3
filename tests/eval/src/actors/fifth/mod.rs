//! The fifth set of families that was kept apart, and was opened when its total had been read.
//! They were written from threads of people who train, without knowledge of the detector or the
//! diagnosis.

mod faulty;
mod healthy;

pub use faulty::FAULTY;
pub use healthy::HEALTHY;

use crate::job::{GIB, Job, NODE_RANKS};

/// Draws a number of bytes, each order of magnitude alike, of at most this share of the device.
fn bytes_of(job: &mut Job, low: f64, high: f64, share: f64) -> f64 {
    job.rng.log_uniform(low, high).min(job.device_bytes as f64 * share)
}

/// Gives a job that keeps much on the host the hosts for it.
fn roomy_host(job: &mut Job) {
    if job.host_limit > 0 {
        job.host_limit = 512 * GIB;
    }
}

/// The ranks of one node.
fn one_node(job: &mut Job) -> Vec<u32> {
    let first = job.rng.between(0, u64::from(job.ranks.div_ceil(NODE_RANKS))) as u32 * NODE_RANKS;
    (first..job.ranks.min(first + NODE_RANKS)).collect()
}
