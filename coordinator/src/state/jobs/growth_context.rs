//! Context of a capture for its diagnosis: readings from outside at the capture's two steps,
//! failures since the growth began, and the peaks of the peers.
//!
//! It comes from the memory of this process alone: after a restart of the coordinator less is
//! known.

use memtape_core::detector::{Growth, Layer};
use memtape_core::diagnosis::{Context, Peaks};
use memtape_core::hints::Config;

use crate::state::jobs::attempt::{Attempt, Presence, Rank};
use crate::state::jobs::host_readings::{History, PointInTime};

/// Maximum distance in steps between a capture's last step and its reading: reports of fast jobs
/// are as many steps apart. The reading of the earlier step may be further away, up to this part of
/// the distance between the two steps.
const NEAR_STEPS: u64 = 64;
const NEAR_PART: u64 = 4;

/// Context of a growth at the steps of a capture; a step of 0 is the present, or none.
pub(crate) fn of_growth(
    attempt: &Attempt,
    growth: &Growth,
    (step, before_step): (u64, u64),
) -> Context {
    let Some(rank) = attempt.ranks.get(&growth.rank) else { return Context::default() };
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
    let counted = |count: fn(&PointInTime) -> u64| {
        Some(count(history?.near(u64::MAX, u64::MAX)?).saturating_sub(count(since?)))
    };
    Context {
        before: before.map(|moment| moment.readings).unwrap_or_default(),
        now: now.map(|moment| moment.readings).unwrap_or_default(),
        retries: counted(|moment| moment.retries),
        ooms: counted(|moment| moment.ooms),
        step_time_ns: attempt.detectors.of(growth.rank).step_time_ns(),
        in_peaks: match growth.layer {
            Layer::Peak => Some(true),
            Layer::Allocated => Some(false),
            _ => None,
        },
        peaks: peaks(attempt, rank, growth.device),
        step_need: attempt.detectors.of(growth.rank).step_need(growth, step, before_step),
        // Where nothing is set, the segments may still show what the program has chosen.
        expandable_segments: rank
            .record
            .allocator
            .as_deref()
            .map(|of| Config::parse(of).is_expandable())
            .filter(|is_on| *is_on),
        // The numbers of the missing steps are not known.
        steps_missing: (rank.steps_missed == 0).then_some(0),
        ..Context::default()
    }
}

/// Growth of a layer that is read from outside, by its newest reading: readings are not stored, so
/// after a restart of the coordinator the detector finds the growth again only after some time.
pub(crate) fn by_newest_reading(attempt: &Attempt, growth: &Growth) -> Option<Growth> {
    let rank = attempt.ranks.get(&growth.rank)?;
    let newest = rank.history.get(&growth.device)?.near(u64::MAX, u64::MAX)?;
    let (_, bytes) = newest.levels().into_iter().find(|(layer, _)| *layer == growth.layer)?;
    growth.at_level(newest.step, bytes?)
}

/// The reading nearest to the onset of the growth, before it or shortly after it: later failures
/// are counted, earlier ones are not.
fn since_onset<'a>(history: &'a History, growth: &Growth) -> Option<&'a PointInTime> {
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

#[cfg(test)]
mod tests {
    use memtape_core::diagnosis::Readings;

    use super::*;
    use crate::state::jobs::Jobs;
    use crate::state::jobs::attempt::Limits;
    use crate::state::messages::RankUp;
    use memtape_disk::clock::Now;
    use memtape_store::records::StepRecord;

    /// Four ranks with peaks of 10, 20, 30 and 40 bytes; rank 1 was read every 10 steps from 500 to
    /// 1000, held as many bytes as steps, and failed once every 100 steps.
    fn attempt() -> Attempt {
        let mut jobs = Jobs::new(Limits { ranks_max: 4, ..Limits::default() });
        for rank in 0..4 {
            let (tape_id, job) = (format!("t{rank}"), "job".to_string());
            let up = RankUp { tape_id, job, rank, ..RankUp::default() };
            jobs.announce(Now::default(), "a", up).unwrap();
        }
        let mut attempt = jobs.attempts.remove(&0).unwrap();
        for (number, rank) in &mut attempt.ranks {
            let peak_allocated = (u64::from(*number) + 1) * 10;
            rank.newest.insert(0, StepRecord { peak_allocated, ..StepRecord::default() });
        }
        let rank = attempt.ranks.get_mut(&1).unwrap();
        rank.step = 1000;
        let history = rank.history.entry(0).or_default();
        for step in (500..=1000).step_by(10) {
            let readings = Readings { pinned: Some(step), ..Readings::default() };
            let retries = step / 100;
            history.add(PointInTime { step, readings, retries, ..PointInTime::default() });
        }
        attempt
    }

    fn growth(layer: Layer, onset_step: u64) -> Growth {
        Growth {
            rank: 1,
            onset_step,
            detected_step: 1000,
            last_step: 1000,
            bytes_per_step: 1,
            grown_bytes: 1,
            layer,
            peers: 3,
            ..Growth::default()
        }
    }

    #[test]
    fn readings_match_the_steps_of_the_capture() {
        let attempt = attempt();
        let pinned = |steps, onset| {
            let found = of_growth(&attempt, &growth(Layer::Pinned, onset), steps);
            (found.before.pinned, found.now.pinned, found.retries)
        };
        // The history has every 16th of the earlier readings.
        let (before, now, retries) = pinned((1000, 600), 500);
        assert!(before.is_some_and(|bytes| bytes.abs_diff(600) <= 80), "{before:?}");
        assert_eq!((now, retries), (Some(1000), Some(5)));
        assert_eq!(pinned((0, 600), 500).1, Some(1000), "the present");
        // Nothing to compare with, long before the first reading, and the same moment twice.
        assert_eq!(pinned((1000, 0), 500).0, None);
        assert_eq!(pinned((1000, 10), 500).0, None);
        assert_eq!(pinned((1000, 998), 500).0, None);
        // A capture and an onset of which nothing was read.
        assert_eq!(pinned((100, 50), 500), (None, None, Some(5)));
        assert_eq!(pinned((1000, 600), 10).2, None);
    }

    #[test]
    fn growth_that_was_restored_is_measured_by_its_newest_reading() {
        let attempt = attempt();
        let (grown_bytes, level_bytes) = (100, Some(600));
        let known =
            Growth { last_step: 600, grown_bytes, level_bytes, ..growth(Layer::Pinned, 500) };
        let now = by_newest_reading(&attempt, &known).expect("it was read");
        assert_eq!((now.last_step, now.grown_bytes), (1000, 500));
        assert_eq!(by_newest_reading(&attempt, &growth(Layer::Pinned, 500)), None);
        let of_tensors = Growth { layer: Layer::Allocated, ..known };
        assert_eq!(by_newest_reading(&attempt, &of_tensors), None);
    }

    #[test]
    fn unknown_facts_of_a_rank_stay_unknown() {
        let mut attempt = attempt();
        let stranger = Growth { rank: 9, ..growth(Layer::Host, 500) };
        assert_eq!(of_growth(&attempt, &stranger, (1000, 600)), Context::default());
        let unread = Growth { rank: 2, ..growth(Layer::Peak, 500) };
        let found = of_growth(&attempt, &unread, (1000, 600));
        assert_eq!((found.now, found.retries), (Readings::default(), None));
        assert_eq!(found.peaks, Some(Peaks { own: 30, peers: 20 }));
        assert_eq!((found.in_peaks, found.steps_missing), (Some(true), Some(0)));
        // A rank of another role is no peer, nor is one that has ended.
        attempt.ranks.get_mut(&1).unwrap().role = Some(1);
        attempt.ranks.get_mut(&0).unwrap().presence = Presence::Ended;
        let found = of_growth(&attempt, &unread, (1000, 600));
        assert_eq!(found.peaks, Some(Peaks { own: 30, peers: 40 }));
    }
}
