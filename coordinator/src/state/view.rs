//! The state as questions of HTTP handlers and metrics read it: between two events, without
//! changing it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::iter;
use std::sync::Arc;

use memtape_core::incident::{Attempt as _, Incident};

use crate::state::actions::Actions;
use crate::state::captures::Captures;
use crate::state::counters::Counters;
use crate::state::incidents::Incidents;
use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::{Attempt, Presence, Rank};
use crate::state::jobs::growth_context::by_newest_reading;
use crate::state::jobs::silence::Watch;
use memtape_disk::clock::Now;

/// All parts of the state at one time.
pub(crate) struct View<'a> {
    pub(crate) now: Now,
    /// Interval between two reports of an agent, in nanoseconds.
    pub(crate) report_interval_ns: u64,
    pub(crate) jobs: &'a Jobs,
    pub(crate) captures: &'a Captures,
    pub(crate) incidents: &'a Incidents,
    pub(crate) actions: &'a Actions,
    /// Agents with a stream.
    pub(crate) agents: usize,
    pub(crate) counters: &'a Arc<Counters>,
}

impl View<'_> {
    /// Which ranks of an attempt are silent.
    pub(crate) fn watch(&self, attempt: &Attempt) -> Watch<'_> {
        let watch = Watch::new(self.jobs, attempt, self.now.mono_ns, self.report_interval_ns);
        let standstill =
            self.incidents.open_of(attempt.record.serial).find(|of| of.growth.is_standstill());
        let age_ns = |of: &Incident| self.now.wall_ns.saturating_sub(of.opened_wall_ns);
        watch.standing_for(standstill.map(|of| u64::try_from(age_ns(of)).unwrap_or(0)))
    }

    /// What the ranks of an attempt grow by that have not ended, in bytes a step: the newest rate
    /// of the first finding of an open incident that names the rank, the highest of several
    /// incidents; else as the detector sees it. Others that share the growth may grow slower.
    pub(crate) fn growth(&self, attempt: &Attempt) -> BTreeMap<u32, i64> {
        let mut rates = BTreeMap::new();
        for of in self.incidents.open_of(attempt.record.serial) {
            let findings = iter::once(&of.growth).chain(&of.joined).rev();
            let first: BTreeMap<_, _> = findings.map(|known| (known.rank, known)).collect();
            for (rank, known) in first {
                let newest = attempt.detectors.newest(&known.key()).unwrap_or(*known);
                let (rate, _) = newest.bytes().unwrap_or_default();
                // What does not grow by bytes has no rate; what pauses has the rate 0.
                if rate == 0 && newest.paused_since_step.is_none() {
                    continue;
                }
                let most: &mut i64 = rates.entry(rank).or_default();
                *most = i64::try_from(rate).unwrap_or(0).max(*most);
            }
        }
        let of_rank = |rank: &Rank| {
            let number = rank.record.rank;
            let seen = || attempt.detectors.own_rate(number);
            (number, rates.get(&number).copied().unwrap_or_else(seen))
        };
        attempt.ranks.values().filter(|of| of.presence != Presence::Ended).map(of_rank).collect()
    }

    /// An open incident with the newest figures of its growth: the record has those of the last
    /// report. It has no forecast while no rank of its attempt is heard, and no end of the job
    /// while its growth is not measured, as after a restart of the coordinator.
    pub(crate) fn newest<'i>(&self, incident: &'i Incident) -> Cow<'i, Incident> {
        let attempt = self.jobs.get(incident.serial).filter(|_| incident.is_open());
        let key = incident.growth.key();
        let growth = attempt.and_then(|attempt| {
            let newest = attempt.detectors.newest(&key);
            let newest = newest.or_else(|| by_newest_reading(attempt, &incident.growth))?;
            Some((newest, attempt.times(self.now.wall_ns, key.rank)))
        });
        let mut newest = match growth {
            Some((growth, times)) => Cow::Owned(incident.with_newest(&growth, times)),
            None if incident.is_open() => {
                Cow::Owned(Incident { seconds_to_job_end: None, ..incident.clone() })
            }
            None => Cow::Borrowed(incident),
        };
        if attempt.is_some_and(|attempt| attempt.ranks_here() == 0) {
            newest.to_mut().forget_forecast();
        }
        newest
    }
}
