//! [`Jobs`] as an earlier process left them in the store.
//!
//! Whether a rank lives is unknown until its agent is back. The detectors of attempts that are not
//! over see the newest steps again: growth is found again, and its open incident goes on.

use std::collections::{BTreeMap, BTreeSet};

use memtape_core::detector::{Finding, GrowthKey, Sample};
use memtape_core::tape::layout::Clock;

use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::{Attempt, Limits, Presence, Rank};
use memtape_disk::clock::Now;
use memtape_store::records::{AttemptRecord, RankRecord, SeriesKey, StepRecord};
use memtape_store::{NewestRows, Store};

/// Time buckets of 5 minutes that detectors read back, counting only buckets in which the attempt
/// has steps. A job is shown as at its newest step, however long the coordinator was stopped. Where
/// a series is empty, twice as many buckets are read, and so on.
const LOOK_BACK_STRETCHES: usize = 72;

/// And at this many records, all series of one attempt together.
const LOOK_BACK_ROWS: usize = 1 << 20;

/// Newest records of each series that the detectors read.
const LOOK_BACK_ROWS_OF_SERIES: usize = 4096;

impl Jobs {
    /// Takes up attempts and ranks; also the last finding of each detector on each growth. Blocks:
    /// it reads steps from the store.
    pub(crate) fn restore(
        now: Now,
        limits: Limits,
        attempts: Vec<AttemptRecord>,
        ranks: Vec<RankRecord>,
        store: &Store,
    ) -> (Self, Vec<(u32, Finding)>) {
        let mut jobs = Self::new(limits);
        for record in attempts {
            let attempt = Attempt::new(record, &jobs.limits);
            jobs.insert(attempt);
        }
        for record in ranks {
            jobs.restore_rank(now, record);
        }
        let mut findings = Vec::new();
        for (serial, attempt) in &mut jobs.attempts {
            // No agent is asked for anything before it is back.
            for rank in attempt.ranks.values() {
                attempt.captures.agent_lost(now.mono_ns, &rank.record.node);
            }
            if !attempt.has_ended() {
                look_back(now, attempt, store);
                findings.extend(last_findings(attempt).into_iter().map(|last| (*serial, last)));
            }
        }
        // Captures that were cut short may be over by now.
        jobs.touched.extend(jobs.attempts.keys());
        (jobs, findings)
    }

    fn restore_rank(&mut self, now: Now, mut record: RankRecord) {
        let Some(attempt) = self.attempts.get_mut(&record.serial) else { return };
        let tape_id = record.tape_id.clone();
        let tape = (record.rank, tape_id.as_str());
        attempt.captures.rank_up(tape, &record.node);
        attempt.captures.rank_clock(tape, record.clock);
        attempt.captures.rank_progress(tape, record.step, 0);
        if record.clock == Clock::Turns {
            attempt.detectors.begin_turns(record.rank);
        }
        let presence = if record.end.is_some() { Presence::Ended } else { Presence::Unknown };
        if presence == Presence::Ended {
            attempt.captures.rank_down(tape, record.step);
        }
        self.tapes.insert(tape_id, (record.serial, record.rank));
        let devices: BTreeSet<u8> = record.devices.iter().map(|of| of.device).collect();
        let rank = Rank {
            presence,
            devices,
            reported_ns: now.mono_ns,
            step: record.step,
            totals: record.devices.clone(),
            host: record.host.clone(),
            outside: record.outside.clone(),
            censuses: std::mem::take(&mut record.censuses).into_iter().collect(),
            record,
            ..Rank::default()
        };
        self.holdings.add(&rank);
        attempt.insert(rank);
    }
}

/// Shows the newest steps of an attempt to its detector, in the order in which they ended.
fn look_back(now: Now, attempt: &mut Attempt, store: &Store) {
    let mut rows = newest_rows(attempt, store).unwrap_or_else(|why| {
        tracing::warn!("the newest steps cannot be read: {why}");
        BTreeMap::new()
    });
    let serial = attempt.record.serial;
    let mut samples = Vec::new();
    for (number, rank) in &mut attempt.ranks {
        if rank.record.is_counted {
            attempt.detectors.of_mut(*number).expect_census(*number);
        }
        let known: Vec<(u8, u64)> =
            rank.record.devices.iter().map(|known| (known.device, known.device_bytes)).collect();
        for (device, device_bytes) in known {
            let key = SeriesKey { serial, rank: *number, device };
            let newest = rows.remove(&key).unwrap_or_default();
            if let Some(last) = newest.last() {
                note_newest(rank, device, *last);
            }
            let sample = |record: &StepRecord| Sample {
                rank: *number,
                device,
                device_bytes,
                record: *record,
            };
            samples.extend(newest.iter().map(sample));
        }
    }
    samples.sort_by_key(|Sample { record, .. }| (record.end_wall_ns, record.last_step));
    for sample in &samples {
        let at_ns = u64::try_from(sample.record.end_wall_ns).unwrap_or(0).min(now.mono_ns);
        attempt.detectors.of_mut(sample.rank).sample(at_ns, sample);
    }
    for (rank, _) in attempt.ranks.iter().filter(|(_, rank)| rank.record.end.is_some()) {
        attempt.detectors.rank_ended(*rank);
    }
}

/// The newest records of all series of an attempt.
fn newest_rows(
    attempt: &Attempt,
    store: &Store,
) -> memtape_store::Result<BTreeMap<SeriesKey, Vec<StepRecord>>> {
    let serial = attempt.record.serial;
    let series = attempt.ranks.iter().flat_map(|(rank, of)| {
        let key = |device| SeriesKey { serial, rank: *rank, device };
        of.record.devices.iter().map(move |known| key(known.device))
    });
    let series: BTreeSet<SeriesKey> = series.collect();
    let rows_max = (LOOK_BACK_ROWS / attempt.ranks.len().max(1)).min(LOOK_BACK_ROWS_OF_SERIES);
    store.newest(&series, NewestRows { rows_max, stretches_max: LOOK_BACK_STRETCHES })
}

/// The last finding on each growth: growth that began and ended before is not reported again.
fn last_findings(attempt: &mut Attempt) -> Vec<Finding> {
    let mut last: BTreeMap<GrowthKey, Finding> = BTreeMap::new();
    while let Some(finding) = attempt.detectors.poll() {
        match finding {
            Finding::Opened(growth) | Finding::Updated(growth) => {
                last.insert(growth.key(), Finding::Opened(growth));
            }
            Finding::Closed(growth) => {
                last.insert(growth.key(), finding);
            }
        }
    }
    last.into_values().collect()
}

/// Shows a rank in the state of its newest step until its agent is back. The totals of a rank that
/// has ended are in its record.
fn note_newest(rank: &mut Rank, device: u8, row: StepRecord) {
    rank.step = rank.step.max(row.last_step);
    rank.step_wall_ns = rank.step_wall_ns.max(row.end_wall_ns);
    rank.newest.insert(device, row);
    if row.last_step > rank.record.step {
        rank.show_step(device, &row);
    }
}
