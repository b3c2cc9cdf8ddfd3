//! Takes up the work where an earlier process left it.
//!
//! Everything in the store is known again: jobs and ranks (of which nobody knows yet whether they
//! live), incidents, captures, actions. Captures that were cut short go on when their agents are
//! back. The detectors of jobs that were not over look at the newest steps again, so that growth
//! is still seen, and open incidents are found again rather than opened twice.

use std::collections::{BTreeMap, BTreeSet};

use memtape_core::detector::{Finding, GrowthKey};
use memtape_core::ids::Ids;
use memtape_core::policy::Policy;

use crate::clock::Now;
use crate::ingest::agents::sample;
use crate::records::{
    ActionRecord, CaptureRecord, IncidentRecord, PartRecord, RankRecord, SeriesKey, StepRow, Totals,
};
use crate::state::captures::CaptureState;
use crate::state::incidents::IncidentState;
use crate::state::jobs::{Attempt, Cluster, Limits, Presence, Rank};
use crate::store::{Changes, Loaded, Store};

/// Detectors look back this far at most.
const LOOK_BACK_NS: i64 = 6 * 3_600_000_000_000;

/// And at this many records, all series of one attempt together.
const LOOK_BACK_ROWS: usize = 1 << 20;

/// Newest records of each series that the detectors look at.
const LOOK_BACK_ROWS_OF_SERIES: usize = 4096;

/// What became of a restart that waited for a capture when its coordinator died.
const LOST_OUTCOME: &str = "not run: the coordinator was restarted before its capture was closed";

/// What an earlier process left, ready to go on.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    pub(crate) cluster: Cluster,
    pub(crate) captures: BTreeMap<String, CaptureState>,
    pub(crate) incidents: BTreeMap<String, IncidentState>,
    pub(crate) actions: Vec<ActionRecord>,
    pub(crate) ids: Ids,
    /// What the detectors say after looking back: the last word on each growth.
    pub(crate) findings: Vec<(u32, Finding)>,
}

/// Takes up what was loaded. Blocks: it reads steps from the store.
pub(crate) fn restore(now: Now, loaded: Loaded, store: &Store, limits: &Limits) -> Restored {
    let mut restored = Restored::default();
    for record in loaded.attempts {
        restored.cluster.insert(Attempt::new(record, limits));
    }
    for record in loaded.ranks {
        restored.rank(now, record);
    }
    for attempt in restored.cluster.attempts.values_mut() {
        // Nobody is asked for anything before its agent is back.
        let nodes: Vec<String> =
            attempt.ranks.values().map(|rank| rank.record.node.clone()).collect();
        for node in nodes {
            attempt.captures.agent_lost(now.mono_ns, &node);
        }
        if !attempt.has_ended() {
            look_back(now, attempt, store);
            let serial = attempt.record.serial;
            restored.findings.extend(last_words(attempt).into_iter().map(|last| (serial, last)));
        }
    }
    restored.captures(now, loaded.captures, loaded.parts, store);
    restored.incidents(now, loaded.incidents);
    restored.actions = loaded.actions;
    for action in &mut restored.actions {
        restored.ids.seen(&action.id);
        if action.is_held() {
            // What the hook was to be told is gone; the policy decides anew.
            action.outcome = LOST_OUTCOME.to_string();
            let mut changes = Changes::default();
            changes.put(action);
            store.write(changes, Box::new(|_| {}));
        }
    }
    restored
}

/// Tells the policy of the restarts it made.
pub(crate) fn remember_restarts(now: Now, policy: &mut Policy, actions: &[ActionRecord]) {
    // A decision has an action for each hook, but is one restart.
    let mut known = BTreeSet::new();
    let made =
        |action: &&ActionRecord| action.decision != "nothing" && action.outcome != LOST_OUTCOME;
    for action in actions.iter().filter(made) {
        if !known.insert((&action.incident_id, action.wall_ns)) {
            continue;
        }
        // The monotonic clock starts at the wall clock's reading, so the one serves for the other.
        let acted_ns = u64::try_from(action.wall_ns).unwrap_or(0);
        policy.restore(now.mono_ns, &action.job, action.attempt, acted_ns);
    }
}

impl Restored {
    fn rank(&mut self, now: Now, record: RankRecord) {
        let Some(attempt) = self.cluster.attempts.get_mut(&record.serial) else { return };
        let tape_id = record.tape_id.clone();
        attempt.captures.rank_up(now.mono_ns, &record.node, record.rank, &tape_id);
        attempt.captures.rank_progress(now.mono_ns, &tape_id, record.step, 0);
        let presence = if record.end.is_some() { Presence::Ended } else { Presence::Unknown };
        if presence == Presence::Ended {
            attempt.captures.rank_down(now.mono_ns, &tape_id, record.step);
        }
        self.cluster.tapes.insert(tape_id, (record.serial, record.rank));
        let rank = Rank {
            presence,
            step: record.step,
            totals: record.devices.clone(),
            host: record.host.clone(),
            outside: record.outside.clone(),
            record,
            ..Rank::default()
        };
        attempt.ranks.insert(rank.record.rank, rank);
        attempt.roles_due = true;
    }

    fn captures(
        &mut self,
        now: Now,
        records: Vec<CaptureRecord>,
        parts: Vec<PartRecord>,
        store: &Store,
    ) {
        let mut by_capture: BTreeMap<String, Vec<PartRecord>> = BTreeMap::new();
        for part in parts {
            by_capture.entry(part.capture.clone()).or_default().push(part);
        }
        for mut record in records {
            let parts = by_capture.remove(&record.id).unwrap_or_default();
            for part in &parts {
                if let Some(hash) = part.hash() {
                    store.blobs().retain(hash, part.bytes);
                }
            }
            let manifest = record.manifest(&parts, now.mono_ns);
            let attempt = self.cluster.attempts.get_mut(&record.serial);
            let is_resumed = !record.is_closed()
                && attempt.is_some_and(|known| known.captures.resume(now.mono_ns, &manifest));
            if !record.is_closed() && !is_resumed {
                // Its attempt is gone, or has another one in flight: it ends with what it has.
                record.closed_wall_ns = Some(now.wall_ns);
                let mut changes = Changes::default();
                changes.put(&record);
                store.write(changes, Box::new(|_| {}));
            }
            self.ids.seen(&record.id);
            self.captures.insert(record.id.clone(), CaptureState::new(record, parts));
        }
    }

    fn incidents(&mut self, now: Now, records: Vec<IncidentRecord>) {
        for record in records {
            self.ids.seen(&record.id);
            let attempt = self.cluster.attempts.get(&record.serial);
            let rank = attempt.and_then(|attempt| attempt.ranks.get(&record.rank));
            let step = rank.map_or(0, |rank| rank.step).max(record.last_step);
            let mut state = IncidentState::restored(record, now, step);
            // One whose capture was cut short waits for it; one whose capture was closed, but not
            // compared, wants a new one.
            let in_flight = self.captures.values().find(|capture| {
                capture.record.serial == state.record.serial && !capture.record.is_closed()
            });
            if let Some(capture) = in_flight
                && state.wants_ns.is_some()
            {
                state.waits_for = Some(capture.record.id.clone());
                state.wants_ns = None;
            }
            self.incidents.insert(state.record.id.clone(), state);
        }
    }
}

/// Shows the newest steps of an attempt to its detector, in the order in which they ended.
fn look_back(now: Now, attempt: &mut Attempt, store: &Store) {
    let serial = attempt.record.serial;
    let from_wall_ns = attempt.record.first_seen_wall_ns.max(now.wall_ns - LOOK_BACK_NS);
    let rows_of_series = LOOK_BACK_ROWS / attempt.ranks.len().max(1);
    let mut samples = Vec::new();
    for (number, rank) in &mut attempt.ranks {
        let known: Vec<(u8, u64)> =
            rank.record.devices.iter().map(|known| (known.device, known.device_bytes)).collect();
        for (device, device_bytes) in known {
            let key = SeriesKey { serial, rank: *number, device };
            let rows = store.series(key, from_wall_ns, now.wall_ns).unwrap_or_else(|why| {
                tracing::warn!(rank = *number, "the newest steps cannot be read: {why}");
                Vec::new()
            });
            let first = rows.len().saturating_sub(rows_of_series.min(LOOK_BACK_ROWS_OF_SERIES));
            let newest = rows.get(first..).unwrap_or_default();
            if let Some(last) = newest.last() {
                note_newest(rank, device, *last);
            }
            let sample = |row: &StepRow| {
                (row.end_wall_ns, row.last_step, sample(*number, device, row, device_bytes))
            };
            samples.extend(newest.iter().map(sample));
        }
    }
    samples.sort_by_key(|(wall_ns, step, _)| (*wall_ns, *step));
    for (wall_ns, _, sample) in &samples {
        let at_ns = u64::try_from(*wall_ns).unwrap_or(0).min(now.mono_ns);
        attempt.detector.sample(at_ns, sample);
    }
    for (rank, _) in attempt.ranks.iter().filter(|(_, rank)| rank.record.end.is_some()) {
        attempt.detector.rank_ended(*rank);
    }
}

/// The last finding on each growth: what began and ended in the past is no news.
fn last_words(attempt: &mut Attempt) -> Vec<Finding> {
    let mut last: BTreeMap<GrowthKey, Finding> = BTreeMap::new();
    while let Some(finding) = attempt.detector.poll() {
        match finding {
            Finding::Opened(growth) | Finding::Updated(growth) => {
                last.insert(growth.key(), Finding::Opened(growth));
            }
            Finding::Closed { key, .. } => {
                last.insert(key, finding);
            }
        }
    }
    last.into_values().collect()
}

/// Until its agent is back, a rank is shown as it was at its newest step.
fn note_newest(rank: &mut Rank, device: u8, row: StepRow) {
    rank.step = rank.step.max(row.last_step);
    rank.step_wall_ns = rank.step_wall_ns.max(row.end_wall_ns);
    rank.newest.insert(device, row);
    let known = rank.totals.iter_mut().find(|totals| totals.device == device);
    if let Some(totals) = known {
        *totals = Totals {
            allocated: row.end_allocated,
            reserved: row.end_reserved,
            peak_allocated: totals.peak_allocated.max(row.peak_allocated),
            blocks: row.blocks,
            ooms: row.ooms,
            malloc_failures: row.malloc_failures,
            ..*totals
        };
    }
}
