//! What one of several states of a rank shows by itself, where all together do not.

use alloc::vec::Vec;

use super::Found;
use super::aligned::steps_between;
use super::history::History;
use crate::detector::{Growth, Layer};
use crate::diagnosis::class::Class;
use crate::diagnosis::evidence::past::whole;

/// The part of the growth that other states must show, too: a half.
const GROWN_PART: u64 = 2;

/// True where the other states of the rank show that what grows in the one `at` does not: it does
/// not grow on to the next, or of memory that looks kept an earlier one holds about as much.
pub(super) fn is_refuted(found: &Found, states: &[&History], at: usize) -> bool {
    let Growth { grown_bytes, bytes_per_step, device, layer, .. } = found.growth;
    let Some((earlier, rest)) = states.split_at_checked(at) else { return false };
    let Some((state, later)) = rest.split_first() else { return false };
    let Some(own) = level(found, state) else { return false };
    let rises_by = |from: u64, to: u64, bytes: u64| to.saturating_sub(from) >= bytes / GROWN_PART;
    let began = layer != Layer::Allocated
        || earlier.iter().all(|of| rises_by(level(found, of).unwrap_or(0), own, grown_bytes));
    let next = later.first().and_then(|next| Some((next, level(found, next)?)));
    let goes_on = next.is_none_or(|(next, level)| {
        let steps = next.device(device).map_or(1, |device| steps_between(state, next, device));
        rises_by(own, level, bytes_per_step.saturating_mul(steps))
    });
    !(began && goes_on)
}

/// What a state shows of the layer of a finding; none where the finding is of no level.
fn level(found: &Found, state: &History) -> Option<u64> {
    let device = state.device(found.growth.device);
    match found.growth.layer {
        Layer::Allocated => Some(held(found, state)),
        Layer::Reserved => Some(device?.state.reserved),
        Layer::Peak => whole(&device?.past.peaks).iter().copied().max(),
        _ => None,
    }
}

/// Live bytes under the culprit of a finding on its device; of a finding without one all.
fn held(found: &Found, state: &History) -> u64 {
    let Some(device) = state.device(found.growth.device) else { return 0 };
    let Some(culprit) = &found.diagnosis.culprit else { return device.state.allocated };
    let by_stack = state.held(device).into_iter();
    let through = by_stack.filter(|(stack, _)| stack.contains(&culprit));
    through.fold(0, |sum, (_, held)| sum.saturating_add(held.bytes))
}

/// The findings, without a finding of one state whose class is found at the line of the rank's
/// device already, and without unknown growth beside something known.
pub(super) fn without_repeats(
    first: Option<&Found>,
    rest: impl Iterator<Item = Found>,
) -> Vec<Found> {
    let mut kept: Vec<Found> = Vec::new();
    for found in rest {
        let repeats = |known: &Found| {
            let of = |of: &Found| (of.diagnosis.class, of.diagnosis.culprit.clone());
            known.growth.device == found.growth.device
                && known.ranks.contains(&found.growth.rank)
                && (found.diagnosis.class == Class::Unknown || of(known) == of(&found))
        };
        if found.alone.is_none() || !first.into_iter().chain(&kept).any(repeats) {
            kept.push(found);
        }
    }
    kept
}
