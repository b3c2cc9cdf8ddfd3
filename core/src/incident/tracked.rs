//! An incident with its work in progress: the capture that it needs, the comparison, the due times.
//!
//! The machine decides what happens; this file holds the state of each incident and answers
//! questions about it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use super::machine::{CONFIRM_STEPS, Now};
use super::record::{Closed, Incident};
use crate::detector::{Growth, GrowthKey};
use crate::identity::owner::{Holder, HolderKey};
use crate::paging::Urgency;

/// Former keys that are remembered of an incident.
const FORMER_MAX: usize = 16;

/// Which capture an incident needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Need {
    /// None.
    #[default]
    Nothing,
    /// A capture is to be requested at this monotonic time.
    Wanted { due_ns: u64 },
    /// This capture is under way; `again` requests another after it.
    Awaited { capture: String, again: bool },
}

/// An incident and its work in progress.
#[derive(Clone, Debug)]
pub struct Tracked {
    pub(super) incident: Incident,
    pub(super) holder: Holder,
    pub(super) is_stored: bool,
    pub(super) need: Need,
    /// Findings that are over after `confirm_by_step` unless they are found again. They were open
    /// when the coordinator was restarted, or when the attempt was taken for ended.
    pub(super) unconfirmed: Vec<GrowthKey>,
    pub(super) confirm_by_step: u64,
    /// Time of the last consideration of a restart.
    pub(super) considered_ns: Option<u64>,
    /// Time of the next comparison of its capture, because more ranks have ended, the incident has
    /// turned to another finding, or the next capture comes too late.
    pub(super) compare_due_ns: Option<u64>,
    /// A comparison is under way.
    pub(super) is_compared: bool,
    /// That comparison is of an account that the incident was about before.
    pub(super) is_outdated: bool,
    /// The capture to compare after that.
    pub(super) compare_next: Option<String>,
}

impl Tracked {
    pub(super) fn new(incident: Incident, holder: Holder) -> Self {
        Self {
            incident,
            holder,
            is_stored: false,
            need: Need::Nothing,
            unconfirmed: Vec::new(),
            confirm_by_step: 0,
            considered_ns: None,
            compare_due_ns: None,
            is_compared: false,
            is_outdated: false,
            compare_next: None,
        }
    }

    /// The holder of its attempt, where bounds are shared.
    pub fn holder(&self) -> HolderKey<'_> {
        self.holder.key()
    }

    /// The incident.
    pub fn incident(&self) -> &Incident {
        &self.incident
    }

    /// True when the store holds it as it is.
    pub fn is_stored(&self) -> bool {
        self.is_stored
    }

    /// The captures that an open incident needs: its evidence, and the capture it waits for.
    pub fn captures(&self) -> impl Iterator<Item = &str> {
        let awaited = match &self.need {
            Need::Awaited { capture, .. } => Some(capture),
            Need::Nothing | Need::Wanted { .. } => None,
        };
        let needed = self.incident.capture_id.iter().chain(awaited);
        needed.filter(|_| self.incident.is_open()).map(String::as_str)
    }

    /// Urgency of an open incident; [`Urgency::Notice`] once it is closed.
    pub(super) fn open_urgency(&self) -> Urgency {
        if self.incident.is_open() { self.incident.urgency } else { Urgency::Notice }
    }

    /// Makes the incident about a finding with this key, and remembers the key it had. A diagnosis
    /// of another account does not hold for it: the capture that is there is compared again, and a
    /// new one is taken where that is not stored any more.
    pub(super) fn turn_to(&mut self, now: Now, key: GrowthKey) {
        let known = self.incident.growth.key();
        if known != key {
            self.remember(known);
        }
        if known.layer != key.layer && !key.layer.takes_over(known.layer) {
            self.incident.tries = 0;
            self.is_outdated = self.is_compared;
            let is_known = self.incident.diagnosis.take().is_some();
            if is_known && !self.is_compared {
                self.compare_due_ns = Some(now.mono_ns);
            }
        }
        let growth = &mut self.incident.growth;
        (growth.rank, growth.device) = (key.rank, key.device);
        (growth.layer, growth.scope) = (key.layer, key.scope);
        if known != key {
            // It was that of another rank or layer.
            growth.level_bytes = None;
        }
    }

    /// Remembers the key of a finding that the incident was about.
    pub(super) fn remember(&mut self, key: GrowthKey) {
        let former = &mut self.incident.former;
        if former.len() < FORMER_MAX && !former.contains(&key) {
            former.push(key);
        }
    }

    /// Doubts all findings of the incident until each is found again, within [`CONFIRM_STEPS`] of
    /// the newest step that is known: this one of its rank, or that of its growth.
    pub(super) fn confirm_after(&mut self, step: u64) {
        let Incident { growth, joined, .. } = &self.incident;
        self.unconfirmed = core::iter::once(growth).chain(joined).map(Growth::key).collect();
        self.confirm_by_step = step.max(growth.last_step) + CONFIRM_STEPS;
    }

    /// A finding of the incident was found again. True where that was in doubt.
    pub(super) fn confirm(&mut self, key: &GrowthKey) -> bool {
        let known = self.unconfirmed.len();
        self.unconfirmed.retain(|unconfirmed| !unconfirmed.names(key));
        self.unconfirmed.len() < known
    }

    /// Wants a capture now, or after the one that is under way, and resets the number of tries.
    pub(super) fn want_again(&mut self, now: Now) {
        self.incident.tries = 0;
        match &mut self.need {
            Need::Awaited { again, .. } => *again = true,
            need => *need = Need::Wanted { due_ns: now.mono_ns },
        }
    }
}

/// All incidents, in the order of their names, which is that of their age. An event of an attempt
/// visits only the incidents of that attempt.
#[derive(Debug, Default)]
pub(super) struct Known {
    all: BTreeMap<String, Tracked>,
    /// The name of each incident, after the number of its attempt.
    by_attempt: BTreeSet<(u64, String)>,
    open: usize,
    #[cfg(test)]
    pub(super) visits: tests::Visits,
}

impl Known {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Number of open incidents.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    pub(super) fn get(&self, id: &str) -> Option<&Tracked> {
        self.all.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut Tracked> {
        self.all.get_mut(id)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Tracked> + Clone {
        let all = self.all.values();
        #[cfg(test)]
        let all = all.inspect(|_| self.visits.add());
        all
    }

    /// The incidents of an attempt.
    pub(super) fn of(&self, serial: u32) -> impl DoubleEndedIterator<Item = &Tracked> {
        let [first, end] = [0, 1].map(|more| (u64::from(serial) + more, String::new()));
        let its = self.by_attempt.range(first..end).filter_map(|(_, id)| self.all.get(id));
        #[cfg(test)]
        let its = its.inspect(|_| self.visits.add());
        its
    }

    /// The open incidents of an attempt.
    pub(super) fn open_of(&self, serial: u32) -> impl DoubleEndedIterator<Item = &Tracked> {
        self.of(serial).filter(|known| known.incident.is_open())
    }

    /// The oldest such open incident of an attempt.
    pub(super) fn find_open(
        &mut self,
        serial: u32,
        is_it: impl Fn(&Tracked) -> bool,
    ) -> Option<&mut Tracked> {
        let id = self.open_of(serial).find(|known| is_it(known))?.incident.id.clone();
        self.all.get_mut(&id)
    }

    pub(super) fn insert(&mut self, tracked: Tracked) {
        let id = tracked.incident.id.clone();
        self.remove(&id);
        self.open += usize::from(tracked.incident.is_open());
        self.by_attempt.insert((tracked.incident.serial.into(), id.clone()));
        self.all.insert(id, tracked);
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<Tracked> {
        let removed = self.all.remove(id)?;
        self.open -= usize::from(removed.incident.is_open());
        self.by_attempt.remove(&(removed.incident.serial.into(), id.into()));
        Some(removed)
    }

    /// Closes an incident, or opens it again: the only place where this changes.
    pub(super) fn set_closed(&mut self, id: &str, closed: Option<Closed>) -> Option<&mut Tracked> {
        let tracked = self.all.get_mut(id)?;
        self.open -= usize::from(tracked.incident.is_open());
        tracked.incident.closed = closed;
        self.open += usize::from(tracked.incident.is_open());
        Some(tracked)
    }
}

/// Names of these incidents.
pub(super) fn ids<'a>(these: impl Iterator<Item = &'a Tracked>) -> Vec<String> {
    these.map(|known| known.incident.id.clone()).collect()
}

#[cfg(test)]
mod tests;
