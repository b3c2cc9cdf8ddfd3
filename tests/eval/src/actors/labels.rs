//! What a fault's label says, and what several families say alike: accounts, ranks, pieces.

use super::faults::Plan;
use crate::code::Site;
use crate::job::{Expect, Fault, Job, Layer, MIB};

/// The accounts in which tensors that stay show.
pub(super) const TENSORS: [Layer; 4] =
    [Layer::Allocated, Layer::Blocks, Layer::Reserved, Layer::Peak];

/// What comes in large pieces is a fault when this many of them have come.
const PIECES_MIN: u64 = 3;

/// Labels the job.
pub(super) fn label(
    job: &mut Job,
    class: &'static str,
    ranks: Vec<u32>,
    plan: &Plan,
    layers: &[Layer],
    sites: &[Site],
) {
    job.fault = Some(Fault {
        class,
        ranks,
        onset: plan.onset,
        layers: layers.to_vec(),
        sites: sites.to_vec(),
        expect: Expect::Page,
        rate: plan.rate,
        rise_min: RISE_MIN,
        begins_with_rise: false,
    });
}

/// Allows a fault to be found without a page.
pub(super) fn notice(job: &mut Job, rise_min: u64) {
    if let Some(fault) = &mut job.fault {
        (fault.expect, fault.rise_min) = (Expect::Notice, rise_min);
    }
}

/// A fault that has gained less than this is not there yet.
pub(super) const RISE_MIN: u64 = 128 * MIB;

/// The label only holds when memory has risen by this number of pieces.
pub(super) fn in_pieces(job: &mut Job, bytes: u64) {
    if let Some(fault) = &mut job.fault {
        fault.rise_min = fault.rise_min.max(PIECES_MIN * bytes);
    }
}

/// One rank in this share of the jobs, or all of them.
pub(super) fn one_or_all(job: &mut Job, share: f64) -> Vec<u32> {
    if job.rng.chance(share) { vec![job.one()] } else { job.all() }
}
