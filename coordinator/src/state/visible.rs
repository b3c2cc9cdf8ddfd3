//! The state as one caller may see it: without jobs of owners that no role of the caller reaches.
//!
//! Handlers of the API read the state through this alone, so that none of them can forget to ask.
//! `memtape_core::access` decides about visibility.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use memtape_core::access::{Caller, Role};
use memtape_core::incident::{Incident, Tracked};
use memtape_core::policy::Explanation;
use memtape_disk::clock::Now;
use memtape_proto::readings::{Gpu, Host};

use crate::state::captures::CaptureState;
use crate::state::jobs::attempt::{Attempt, Node, Presence, Rank};
use crate::state::jobs::ownership::Proved;
use crate::state::jobs::silence::Watch;
use crate::state::view::View;
use memtape_store::records::{ActionRecord, CaptureRecord};

/// View of one caller.
pub(crate) struct Visible<'a> {
    view: &'a View<'a>,
    caller: &'a Caller,
}

impl<'a> Visible<'a> {
    /// Restricts the state to this caller.
    pub(crate) fn new(view: &'a View<'a>, caller: &'a Caller) -> Self {
        Self { view, caller }
    }

    /// Ranks of this attempt whose deaths are not reported yet.
    pub(crate) fn unsettled_ranks(&self, serial: u32) -> BTreeSet<u32> {
        self.view.incidents.unsettled_ranks(serial)
    }

    pub(crate) fn now(&self) -> Now {
        self.view.now
    }

    /// An incident with the newest figures of its growth.
    pub(crate) fn newest<'i>(&self, incident: &'i Incident) -> Cow<'i, Incident> {
        self.view.newest(incident)
    }

    /// Which ranks of an attempt are silent.
    pub(crate) fn watch(&self, attempt: &Attempt) -> Watch<'_> {
        self.view.watch(attempt)
    }

    /// What the ranks of an attempt grow by.
    pub(crate) fn growth(&self, attempt: &Attempt) -> BTreeMap<u32, i64> {
        self.view.growth(attempt)
    }

    /// All jobs, each by the attempt that stands for it.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = &'a Attempt> {
        let jobs = self.view.jobs;
        jobs.names().filter_map(|id| jobs.chosen(id, |attempt| self.has(attempt)))
    }

    /// The attempts at a job, in order of their start.
    pub(crate) fn attempts_at(&self, job: &str) -> Vec<&'a Attempt> {
        self.view.jobs.attempts_at(job).filter(|attempt| self.has(attempt)).collect()
    }

    /// What a job has proved.
    pub(crate) fn proved(&self, job: &str) -> Proved<'_> {
        self.view.jobs.proved(job)
    }

    /// The attempts of a job that are its own, in order of their start; none where the attempt that
    /// stands for the job has no proved rank.
    pub(crate) fn own(&self, job: &str) -> Vec<&'a Attempt> {
        let Proved { own, current, .. } = self.proved(job);
        let current = current.and_then(|serial| self.attempt_of(serial));
        let is_proved = current.is_some_and(|attempt| attempt.proved().next().is_some());
        let mut attempts = self.attempts_at(job);
        attempts.retain(|attempt| is_proved && own.contains(&attempt.record.serial));
        attempts
    }

    /// The jobs with this id or name, each by the attempt that stands for it.
    pub(crate) fn called(&self, text: &str) -> Vec<&'a Attempt> {
        let jobs = self.view.jobs;
        jobs.called(text).filter_map(|id| jobs.chosen(id, |attempt| self.has(attempt))).collect()
    }

    /// The attempt of a job with this number; without one the attempt that stands for the job.
    pub(crate) fn attempt(&self, job: &str, number: Option<u32>) -> Option<&'a Attempt> {
        let is_it = |of: &Attempt| number.is_none_or(|number| of.record.attempt == number);
        self.view.jobs.chosen(job, |attempt| is_it(attempt) && self.has(attempt))
    }

    /// The attempt with this serial number.
    pub(crate) fn attempt_of(&self, serial: u32) -> Option<&'a Attempt> {
        self.view.jobs.get(serial).filter(|attempt| self.has(attempt))
    }

    /// May the caller ask for captures of an attempt?
    pub(crate) fn may_operate(&self, attempt: &Attempt) -> bool {
        self.caller.has(Role::Operator, Some(&attempt.record.owner))
    }

    /// May the caller act on an incident? Where its attempt is not known any more, only an operator
    /// of all jobs may.
    pub(crate) fn may_act_on(&self, incident: &Incident) -> bool {
        match self.view.jobs.get(incident.serial) {
            Some(attempt) => self.may_operate(attempt),
            None => self.caller.has(Role::Operator, None),
        }
    }

    /// The meant captures, newest first: agents choose the names of their own, and no later time
    /// than the coordinator's.
    pub(crate) fn captures(
        &self,
        is_meant: impl Fn(&CaptureRecord) -> bool,
    ) -> Vec<&'a CaptureState> {
        let is_seen =
            |of: &&CaptureState| self.has_serial(of.record.serial) && is_meant(&of.record);
        let mut all: Vec<_> = self.view.captures.iter().rev().filter(is_seen).collect();
        all.sort_by_key(|known| Reverse(known.record.requested_wall_ns));
        all
    }

    pub(crate) fn capture(&self, id: &str) -> Option<&'a CaptureState> {
        self.view.captures.get(id).filter(|known| self.has_serial(known.record.serial))
    }

    /// All incidents, oldest first.
    pub(crate) fn incidents(&self) -> impl DoubleEndedIterator<Item = &'a Tracked> {
        self.view.incidents.iter().filter(|known| self.has_serial(known.incident().serial))
    }

    /// The open incidents of a visible attempt, oldest first.
    pub(crate) fn open_of(
        &self,
        attempt: &Attempt,
    ) -> impl DoubleEndedIterator<Item = &'a Incident> {
        self.view.incidents.open_of(attempt.record.serial)
    }

    pub(crate) fn incident(&self, id: &str) -> Option<&'a Tracked> {
        self.view.incidents.get(id).filter(|known| self.has_serial(known.incident().serial))
    }

    /// The action that the policy would take about an incident now, and why.
    pub(crate) fn explain(&self, incident: &Incident, proved: &Proved<'_>) -> Explanation {
        self.view.actions.explain(self.view.now, incident, proved)
    }

    /// All actions, oldest first; actions on nodes only for a caller who sees every job.
    pub(crate) fn actions(&self) -> impl DoubleEndedIterator<Item = &'a ActionRecord> {
        self.view.actions.iter().filter(|action| {
            self.caller.has(Role::Viewer, None) || self.incident(&action.incident_id).is_some()
        })
    }

    /// All nodes; for a caller who does not see every job, only nodes on which a visible job ran,
    /// with the GPUs on which one runs, and without the use of the host.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&'a String, &'a Node, Vec<Gpu>, Host)> {
        let sees_all = self.caller.has(Role::Viewer, None);
        let attempts = self.view.jobs.attempts().filter(|of| !sees_all && self.has(of));
        let mut own = BTreeMap::<&str, Vec<&Rank>>::new();
        for rank in attempts.flat_map(|attempt| attempt.ranks.values()) {
            own.entry(&rank.record.node).or_default().push(rank);
        }
        self.view.jobs.nodes().filter_map(move |(name, node)| {
            if sees_all {
                return Some((name, node, node.gpus.clone(), node.host.clone()));
            }
            let ranks = own.get(name.as_str())?;
            let (mut gpus, mut host) = (node.gpus.clone(), node.host.clone());
            let here = || ranks.iter().filter(|rank| rank.presence == Presence::Here);
            gpus.retain(|gpu| here().any(|rank| rank.is_on(gpu)));
            (host.memory_available_bytes, host.cgroup_bytes) = (None, None);
            Some((name, node, gpus, host))
        })
    }

    /// The node of a rank that the caller sees.
    pub(crate) fn node(&self, name: &str) -> Option<&'a Node> {
        self.view.jobs.node(name)
    }

    fn has(&self, attempt: &Attempt) -> bool {
        self.caller.has(Role::Viewer, Some(&attempt.record.owner))
    }

    fn has_serial(&self, serial: u32) -> bool {
        match self.view.jobs.get(serial) {
            Some(attempt) => self.has(attempt),
            // Whose it was is not known any more.
            None => self.caller.has(Role::Viewer, None),
        }
    }
}
