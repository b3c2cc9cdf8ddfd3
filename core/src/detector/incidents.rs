//! The open findings: one for each cause, updated seldom, closed when the growth is over.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::envelope::{BLOCK_STEPS, WINDOW};
use super::{Finding, Growth, GrowthKey, Layer, Scope};

/// Windows without a new high after which a growth counts as over.
const QUIET_WINDOWS: u64 = 2;

/// One open finding.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) growth: Growth,
    /// Scale at which it was found, and is followed.
    pub(super) scale: usize,
    /// Value of the followed track where the growth began.
    pub(super) onset_value: i64,
    /// Smallest rise that counts.
    pub(super) rise_min: i64,
    /// Highest value so far, and its step.
    best: (u64, i64),
    /// As it was last said.
    said: Growth,
}

#[derive(Debug, Default)]
pub(super) struct Incidents {
    open: BTreeMap<GrowthKey, Open>,
    findings: VecDeque<Finding>,
}

impl Incidents {
    pub(super) fn poll(&mut self) -> Option<Finding> {
        self.findings.pop_front()
    }

    pub(super) fn keys(&self) -> Vec<(GrowthKey, usize)> {
        self.open.iter().map(|(&key, open)| (key, open.scale)).collect()
    }

    /// The open finding about all ranks; `home` tells main devices from others.
    pub(super) fn common(&self, layer: Layer) -> Option<&Open> {
        let is_common =
            |open: &&Open| open.growth.scope == Scope::AllRanks && open.growth.layer == layer;
        self.open.values().find(is_common)
    }

    pub(super) fn of_rank(&self, rank: u32) -> impl Iterator<Item = &Open> {
        self.open.values().filter(move |open| open.growth.rank == rank)
    }

    pub(super) fn get(&self, key: &GrowthKey) -> Option<&Open> {
        self.open.get(key)
    }

    pub(super) fn open(
        &mut self,
        growth: Growth,
        scale: usize,
        onset_value: i64,
        rise_min: i64,
        last: (u64, i64),
    ) {
        let open = Open { growth, scale, onset_value, rise_min, best: last, said: growth };
        self.open.insert(growth.key(), open);
        self.findings.push_back(Finding::Opened(growth));
    }

    /// The followed track has a new point; `change` brings the growth's figures up to date.
    pub(super) fn follow(
        &mut self,
        key: &GrowthKey,
        (step, value): (u64, i64),
        change: impl FnOnce(&mut Growth),
    ) {
        let Some(open) = self.open.get_mut(key) else { return };
        let grown = open.best.1 - open.onset_value;
        if value > open.best.1 + open.rise_min / 4 {
            open.best = (step, value);
        }
        let quiet_steps = QUIET_WINDOWS * WINDOW as u64 * BLOCK_STEPS[open.scale];
        if value < open.best.1 - grown / 2 || step.saturating_sub(open.best.0) > quiet_steps {
            self.close(key, step);
            return;
        }
        open.growth.last_step = open.growth.last_step.max(step);
        open.growth.grown_bytes = u64::try_from(value - open.onset_value).unwrap_or(0);
        change(&mut open.growth);
        let larger = open.growth.grown_bytes > open.said.grown_bytes / 4 * 5;
        let nearer = match (open.growth.steps_to_oom, open.said.steps_to_oom) {
            (Some(now), Some(before)) => now < before / 2,
            (now, before) => now.is_some() && before.is_none(),
        };
        if larger || nearer {
            open.said = open.growth;
            self.findings.push_back(Finding::Updated(open.growth));
        }
    }

    /// The only place where a finding ends.
    pub(super) fn close(&mut self, key: &GrowthKey, at_step: u64) {
        if self.open.remove(key).is_some() {
            self.findings.push_back(Finding::Closed { key: *key, at_step });
        }
    }
}
