//! Captures of a played job: when one may be taken, how long it takes, and what it shows.
//!
//! It stands for the coordinator's capture machine and for its stored snapshots. Whether a capture
//! is worth it and what follows from it, the judge decides.

use memtape_core::snapshot::RankSnapshot;

use crate::judge::Case;
use crate::rng::Rng;
use crate::scenario::Scenario;

/// Steps between the two states of a capture.
const BEFORE_STEPS: u64 = 256;
/// Time between two captures that are not requested by hand.
const CAPTURE_INTERVAL_NS: u64 = 60_000_000_000;
/// A capture and its comparison take between these.
const CAPTURE_NS: (u64, u64) = (1_500_000_000, 12_000_000_000);
/// Peers whose snapshots are compared.
const PEERS_MAX: usize = 15;

/// A capture: when it is closed, and the two steps it shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shot {
    due_ns: u64,
    /// The earlier step.
    pub from: u64,
    /// The step it is of.
    pub to: u64,
}

/// Takes captures of one played job.
#[derive(Debug)]
pub struct Camera<'a> {
    scenario: &'a Scenario,
    /// Newest step that each rank has reported.
    reported: Vec<u64>,
    next_ns: u64,
    under_way: Vec<(u64, Shot)>,
    taken: u64,
    rng: Rng,
}

impl<'a> Camera<'a> {
    pub(crate) fn new(scenario: &'a Scenario) -> Self {
        Self {
            scenario,
            reported: vec![0; scenario.ranks as usize],
            next_ns: 0,
            under_way: Vec::new(),
            taken: 0,
            rng: Rng::new(scenario.seed, 0xde5c),
        }
    }

    pub(crate) fn report(&mut self, rank: u32, step: u64) {
        if let Some(reported) = self.reported.get_mut(rank as usize) {
            *reported = step;
        }
    }

    /// Begins a capture at the newest step that all ranks have reported; its number, or the time
    /// to wait in nanoseconds.
    pub fn request(&mut self, now_ns: u64) -> Result<u64, u64> {
        if now_ns < self.next_ns {
            return Err(self.next_ns - now_ns);
        }
        let silent = self.scenario.arrival.silent.map(|(rank, _)| rank as usize);
        let reported = self.reported.iter().enumerate();
        let reported = reported.filter(|&(rank, _)| Some(rank) != silent);
        let to = reported.map(|(_, &step)| step).min().unwrap_or(0);
        let took = self.rng.between(CAPTURE_NS.0, CAPTURE_NS.1);
        let shot = Shot { due_ns: now_ns + took, from: to.saturating_sub(BEFORE_STEPS).max(1), to };
        self.taken += 1;
        self.under_way.push((self.taken, shot));
        self.next_ns = now_ns + CAPTURE_INTERVAL_NS;
        Ok(self.taken)
    }

    /// The captures that have been closed since the last call.
    pub fn closed(&mut self, now_ns: u64) -> Vec<(u64, Shot)> {
        self.under_way.extract_if(.., |(_, shot)| shot.due_ns <= now_ns).collect()
    }

    /// Shows a capture about growth on a rank since a step; nothing when the rank has no snapshot.
    pub fn show<R>(
        &self,
        Shot { from, to, .. }: Shot,
        (rank, onset): (u32, u64),
        compare: impl FnOnce(&Case<'_>) -> R,
    ) -> Option<R> {
        let scenario = self.scenario;
        // Of the first step there is no earlier state.
        let from = if from < to { from } else { 0 };
        let suspect = scenario.snapshot(rank, from, to)?;
        let now = scenario.step(rank, to)?;
        let others: Vec<u32> = (0..scenario.ranks).filter(|&other| other != rank).collect();
        let count = others.len().min(PEERS_MAX);
        let at = |index: usize| others.get(index * others.len() / count.max(1)).copied();
        let peers: Vec<u32> = (0..count).filter_map(at).collect();
        let snapshots: Vec<RankSnapshot> =
            peers.iter().filter_map(|&peer| scenario.snapshot(peer, from, to)).collect();
        let retries = |step: u64| scenario.step(rank, step).map_or(0, |of| u64::from(of.retries));
        let mut peaks: Vec<u64> =
            peers.iter().map(|&peer| peak(scenario, peer, from, to)).collect();
        peaks.sort_unstable();
        let median = peaks.get(peaks.len().saturating_sub(1) / 2).copied().unwrap_or(0);
        Some(compare(&Case {
            suspect: &suspect,
            peers: &snapshots.iter().collect::<Vec<_>>(),
            before: scenario.step(rank, from),
            now,
            retries: retries(to).saturating_sub(retries(onset.min(to))),
            ooms: u64::from(scenario.oom.is_some_and(|oom| oom <= to)),
            step_ns: scenario.step_ns,
            peaks: (peak(scenario, rank, from, to), median),
        }))
    }
}

/// Highest peak of a rank between two steps.
fn peak(scenario: &Scenario, rank: u32, from: u64, to: u64) -> u64 {
    let steps = (from.max(1)..=to).filter_map(|step| scenario.step(rank, step));
    steps.map(|of| of.peak).max().unwrap_or(0)
}
