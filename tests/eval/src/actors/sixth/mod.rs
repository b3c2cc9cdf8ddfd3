//! Families that are kept apart, the sixth set. They are not used for tuning, and what is reported
//! about one of their jobs is not read. They were written from threads of people who train, without
//! knowledge of the detector or the diagnosis.
//!
//! Work on the detector or the diagnosis uses the total alone. A wrong label is corrected here, and
//! `README.md` records it. When something is tuned after their total was read, they are opened, and
//! others are written.

mod faulty;
mod healthy;

pub use faulty::FAULTY;
pub use healthy::HEALTHY;

use crate::job::{GIB, Job, NODE_RANKS};

/// Page size of hosts.
const PAGE: u64 = 4_096;

/// Rounds a number of bytes down to whole pages.
fn pages(bytes: f64) -> u64 {
    bytes as u64 / PAGE * PAGE
}

/// Draws a number of bytes, each order of magnitude alike, of at most this share of the device.
fn bytes_of(job: &mut Job, low: f64, high: f64, share: f64) -> f64 {
    job.rng.log_uniform(low, high).min(job.device_bytes as f64 * share)
}

/// Makes the model smaller by this number of bytes, down to a tenth of the device.
fn make_room(job: &mut Job, bytes: f64) {
    let lowest = job.device_bytes as f64 * 0.1;
    job.base.target = (job.base.target as f64 - bytes).max(lowest) as u64;
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
