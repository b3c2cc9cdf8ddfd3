//! What is known beside the states of a capture, for its diagnosis: what was read from outside at the
//! capture's two steps, what failed since the growth began, and how high the peers reach.
//!
//! It comes from the memory of this process alone: after a restart of the coordinator less is
//! known, and what is not known stays so.

use memtape_core::detector::{Growth, Layer};
use memtape_core::diagnosis::{Circumstances, Peaks};

use crate::cluster::{Attempt, Presence, Rank};
use crate::ledger::{History, Moment};

/// Steps of the end of a capture that count as the moment itself: reports of fast jobs are as many
/// steps apart. A reading that is further away is taken for another one where that is more than
/// this part of the way between the capture's two steps.
const NEAR_STEPS: u64 = 64;
const NEAR_PART: u64 = 4;

/// What is known of a growth at the steps of a capture; a step of 0 is the present, or none.
pub(crate) fn around(
    attempt: &Attempt,
    growth: &Growth,
    (step, before_step): (u64, u64),
) -> Circumstances {
    let Some(rank) = attempt.ranks.get(&growth.rank) else { return Circumstances::default() };
    let step = if step == 0 { rank.step } else { step };
    let history = rank.history.get(&growth.device);
    let now = history.and_then(|history| history.near(step, NEAR_STEPS));
    let between = step.saturating_sub(before_step);
    let near_steps = (between / NEAR_PART).min(NEAR_STEPS * NEAR_PART);
    let before = history
        .filter(|_| before_step > 0)
        .and_then(|history| history.near(before_step, near_steps))
        .filter(|before| now.is_some_and(|now| before.step < now.step));
    let since = history.and_then(|history| since_onset(history, growth));
    let counted = |count: fn(&Moment) -> u64| {
        Some(count(history?.near(u64::MAX, u64::MAX)?).saturating_sub(count(since?)))
    };
    Circumstances {
        before: before.map(|moment| moment.readings).unwrap_or_default(),
        now: now.map(|moment| moment.readings).unwrap_or_default(),
        retries: counted(|moment| moment.retries),
        ooms: counted(|moment| moment.ooms),
        step_time_ns: attempt.detector.step_time_ns(),
        in_peaks: match growth.layer {
            Layer::Peak => Some(true),
            Layer::Allocated => Some(false),
            _ => None,
        },
        peaks: peaks(attempt, rank, growth.device),
        // Which steps they were nobody knows.
        steps_missing: (rank.steps_missed == 0).then_some(0),
        ..Circumstances::default()
    }
}

/// The last moment before the growth began, or one that is not long after it: what failed before
/// it is then not counted, and the rest is.
fn since_onset<'a>(history: &'a History, growth: &Growth) -> Option<&'a Moment> {
    let lasted = growth.last_step.saturating_sub(growth.onset_step);
    history.near(growth.onset_step, (lasted / NEAR_PART).max(NEAR_STEPS))
}

/// Highest use within their last steps, of a rank and as the median of the others.
fn peaks(attempt: &Attempt, rank: &Rank, device: u8) -> Option<Peaks> {
    let own = rank.newest.get(&device)?.peak_allocated;
    let highest = |peer: &Rank| peer.newest.values().map(|row| row.peak_allocated).max();
    let is_peer = |peer: &&Rank| {
        peer.record.rank != rank.record.rank
            && peer.presence == Presence::Here
            && peer.role == rank.role
    };
    let mut peers: Vec<u64> = attempt.ranks.values().filter(is_peer).filter_map(highest).collect();
    peers.sort_unstable();
    Some(Peaks { own, peers: *peers.get(peers.len().checked_sub(1)? / 2)? })
}
