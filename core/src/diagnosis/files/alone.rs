//! What one of several states of a rank shows by itself, where all together do not.

use alloc::vec::Vec;

use super::Found;
use super::aligned::steps_between;
use super::history::History;
use crate::detector::{Growth, Layer};
use crate::diagnosis::class::Class;

/// The part of the growth that other states must show, too: a half.
const GROWN_PART: u64 = 2;

/// True where the other states of the rank show that what looks kept in the one `at` is not: an
/// earlier one holds about as much, or it does not grow on to the next.
pub(super) fn is_refuted(found: &Found, states: &[&History], at: usize) -> bool {
    if found.growth.layer != Layer::Allocated {
        return false;
    }
    let Growth { grown_bytes, bytes_per_step, device, .. } = found.growth;
    let Some((earlier, rest)) = states.split_at_checked(at) else { return false };
    let Some((state, later)) = rest.split_first() else { return false };
    let own = held(found, state);
    let rises_by = |from: u64, to: u64, bytes: u64| to.saturating_sub(from) >= bytes / GROWN_PART;
    let began = earlier.iter().all(|of| rises_by(held(found, of), own, grown_bytes));
    let goes_on = later.first().is_none_or(|next| {
        let steps = next.device(device).map_or(1, |device| steps_between(state, next, device));
        rises_by(own, held(found, next), bytes_per_step.saturating_mul(steps))
    });
    !(began && goes_on)
}

/// Live bytes under the culprit of a finding on its device; of a finding without one all.
fn held(found: &Found, state: &History) -> u64 {
    let Some(device) = state.device(found.growth.device) else { return 0 };
    let Some(culprit) = &found.diagnosis.culprit else { return device.state.allocated };
    let by_stack = state.held(device).into_iter();
    let through = by_stack.filter(|(stack, _)| stack.contains(&culprit));
    through.fold(0, |sum, (_, held)| sum.saturating_add(held.bytes))
}

/// These findings, without those of one state whose class is found on the device already, and
/// without unknown growth beside something known.
pub(super) fn without_repeats(
    first: Option<&Found>,
    rest: impl Iterator<Item = Found>,
) -> Vec<Found> {
    let mut kept: Vec<Found> = Vec::new();
    for found in rest {
        let repeats = |known: &Found| {
            let (class, device) = (found.diagnosis.class, found.growth.device);
            known.growth.device == device
                && (class == Class::Unknown || known.diagnosis.class == class)
        };
        if found.alone.is_none() || !first.into_iter().chain(&kept).any(repeats) {
            kept.push(found);
        }
    }
    kept
}
