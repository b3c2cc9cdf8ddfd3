//! The state as questions of HTTP handlers and metrics read it: between two events, without
//! changing it.

use std::borrow::Cow;
use std::sync::Arc;

use memtape_core::incident::Incident;

use crate::state::actions::Actions;
use crate::state::captures::Captures;
use crate::state::counters::Counters;
use crate::state::incidents::Incidents;
use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::Attempt;
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
        Watch::new(self.jobs, attempt, self.now.mono_ns, self.report_interval_ns)
    }

    /// An open incident with the newest figures of its growth: the record has those of the last
    /// report.
    pub(crate) fn newest<'i>(&self, incident: &'i Incident) -> Cow<'i, Incident> {
        let attempt = self.jobs.get(incident.serial).filter(|_| incident.is_open());
        let key = incident.growth.key();
        let growth = attempt.and_then(|attempt| {
            let step_time_ns = attempt.detectors.of(key.rank).step_time_ns();
            let newest = attempt.detectors.newest(&key);
            let newest = newest.or_else(|| by_newest_reading(attempt, &incident.growth))?;
            Some((newest, step_time_ns))
        });
        match growth {
            Some((growth, step_ns)) => Cow::Owned(incident.with_newest(&growth, step_ns)),
            None => Cow::Borrowed(incident),
        }
    }
}
