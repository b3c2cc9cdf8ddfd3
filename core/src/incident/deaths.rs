//! Ranks that died, or whose request for memory failed: the incidents that are not about growth.
//!
//! One attempt has one open incident of this kind: about the rank that failed first. The others
//! mostly die because of it, or are ended by the launcher. So a death is held for a while, and
//! compared with the other ends: a job that was stopped as a whole is no incident.
//!
//! Such an incident stays open when its attempt ends, so that it can be seen; it is closed when the
//! rank goes on, when a newer attempt of the job runs, or after [`OPEN_WALL_NS_MAX`]. A program
//! that catches failed requests may have one again and again: its incident is opened again each
//! time, and is captured once.

use alloc::string::String;
use alloc::vec::Vec;

use super::attempt::Attempt;
use super::failure::{FAILURE_CAPTURE_WAIT_NS, Failure, FailureKind};
use super::machine::{Change, Incidents, Now};
use super::record::{ClosedReason, Incident};
use super::tracked::{Need, Tracked, ids};
use crate::capture::Reason;
use crate::detector::{Growth, Scope};
use crate::diagnosis::{Aftermath, KnownGrowth};
use crate::identity::end::End;
use crate::limits::FAILURE_AGE_SECONDS_MAX;

/// An incident about a failure is closed after this time, in nanoseconds of Unix time.
const OPEN_WALL_NS_MAX: i64 = 86_400_000_000_000;

/// Time between two comparisons of one capture with the ends that are known, in nanoseconds.
pub(super) const COMPARE_EVERY_NS: u64 = 5_000_000_000;

/// A death is reported after this time, in nanoseconds: until then all ranks of the job may end, by
/// a person or a scheduler.
pub(super) const SETTLED_NS: u64 = 10_000_000_000;

/// The death of a rank that was asked to end is reported after this time, in nanoseconds, while
/// others live: Slurm, Kubernetes and torchrun kill what has not ended 30 s after they asked.
pub(super) const ASKED_NS: u64 = 45_000_000_000;

/// Steps that a rank has finished after a failed request when it counts as going on.
const WENT_ON_STEPS: u64 = 16;

/// A death that is not reported yet: the whole job may be ending.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    /// The deaths, one of each rank, in the order in which they were heard of.
    failures: Vec<Failure>,
    /// Monotonic time at which the first of them was heard.
    since_ns: u64,
    /// The capture of the death, when it is closed.
    capture: Option<String>,
}

impl Incidents {
    /// A rank failed. `name` makes the name of a new incident. Of a death it is known only
    /// [`SETTLED_NS`] later whether the whole job was ended: [`Self::settle`] reports it then.
    pub fn failed(
        &mut self,
        now: Now,
        attempt: &impl Attempt,
        failure: Failure,
        name: impl FnOnce() -> String,
    ) {
        let serial = attempt.serial();
        if self.was_reported(now, serial, &failure) {
            return;
        }
        if failure.kind == FailureKind::OutOfMemory {
            return self.report(now, attempt, failure, None, name);
        }
        // A rank that dies of a failed request was not stopped.
        let is_known = self
            .open_failure(serial)
            .is_some_and(|known| !is_survived(known) || known.incident.growth.rank == failure.rank);
        if failure.is_oom_kill() || is_known {
            let mut held = self.held.remove(&serial).unwrap_or_default();
            held.failures.retain(|held| held.rank != failure.rank);
            // A kill for memory is named before a rank that was asked to end.
            let first = held.first(attempt).filter(|first| {
                let is_before = first.came_before(&failure, is_one_clock(attempt, first, &failure));
                is_before && !(failure.is_oom_kill() && first.was_asked())
            });
            return self.report(now, attempt, first.unwrap_or(failure), held.capture, name);
        }
        let new = || Held { since_ns: now.mono_ns, ..Held::default() };
        self.held.entry(serial).or_insert_with(new).add(failure);
    }

    /// Links the open failure of an attempt with the growth or the standstill that it ended, both
    /// ways.
    fn relate(&mut self, attempt: &impl Attempt) {
        let serial = attempt.serial();
        let Some(failed) = self.open_failure(serial) else { return };
        let growth = self.growth_before(failed.incident(), attempt).map(|growth| growth.incident);
        // What stands still is ended by NCCL's watchdog, or by a person.
        let stood = self.known.of(serial).rev().find(|of| of.incident.growth.is_standstill());
        let stood = stood.filter(|known| known.incident.lasted());
        let before = growth.or(stood.map(|known| known.incident.id.clone()));
        let (failed, Some(growth)) = (failed.incident.id.clone(), before) else { return };
        for (of, other) in [(&failed, &growth), (&growth, &failed)] {
            if let Some(tracked) = self.known.get_mut(of) {
                tracked.incident.related = Some(other.clone());
            }
            self.store(of, Change::Updated);
        }
    }

    /// Attempts with a death that is not reported yet.
    pub fn unsettled(&self) -> Vec<u32> {
        self.held.keys().copied().collect()
    }

    /// Ranks of an attempt whose deaths are not reported yet.
    pub fn unsettled_ranks(&self, serial: u32) -> impl Iterator<Item = u32> {
        self.held.get(&serial).into_iter().flat_map(|held| held.failures.iter().map(|of| of.rank))
    }

    /// Reports the death of an attempt when it is known what became of the other ranks. A job that
    /// was ended as a whole, and ranks that were ended because others did not start, open no
    /// incident.
    pub fn settle(&mut self, now: Now, attempt: &impl Attempt, name: impl FnOnce() -> String) {
        let serial = attempt.serial();
        let Some(held) = self.held.get(&serial) else { return };
        let Some(failure) = held.first(attempt) else { return };
        let waited_ns = now.mono_ns.saturating_sub(held.since_ns);
        if waited_ns < SETTLED_NS {
            return;
        }
        let fates = attempt.fates();
        let Failure { rank, step, ranks, .. } = failure;
        // Who kills a job of one rank is not known.
        let was_stopped = (fates.len() > 1 || failure.was_asked())
            && Aftermath { rank, step, fates: &fates }.was_stopped();
        let has_living = fates.iter().any(|fate| fate.end.is_none());
        if failure.was_asked() && has_living && waited_ns < ASKED_NS {
            return;
        }
        let are_missing = u32::try_from(fates.len()).is_ok_and(|known| known < ranks);
        let may_be_ended = failure.was_asked() || (failure.may_be_sigkill() && are_missing);
        let did_not_start = step == 0 && may_be_ended;
        let capture = self.held.remove(&serial).and_then(|held| held.capture);
        if !(was_stopped || did_not_start) {
            self.report(now, attempt, failure, capture, name);
        }
    }

    /// Agents repeat what they have said after each reconnect, and all deaths of an attempt belong
    /// to one incident; or the failure is long past.
    fn was_reported(&self, now: Now, serial: u32, failure: &Failure) -> bool {
        let is_its = |known: &Tracked| {
            // A survived request hides no death that is reported late.
            let is_as_grave = !is_survived(known) || failure.kind == FailureKind::OutOfMemory;
            is_failure(known)
                && is_as_grave
                && known.incident.closed.is_some_and(|closed| match closed.reason {
                    ClosedReason::NewAttempt => true,
                    _ => closed.wall_ns >= failure.wall_ns,
                })
        };
        let age_ns = u64::try_from(now.wall_ns.saturating_sub(failure.wall_ns)).unwrap_or(0);
        let is_old = age_ns / 1_000_000_000 > FAILURE_AGE_SECONDS_MAX;
        self.open_failure(serial).is_none() && (is_old || self.known.of(serial).any(is_its))
    }

    /// The open incident about the failure of an attempt.
    fn open_failure(&self, serial: u32) -> Option<&Tracked> {
        self.known.open_of(serial).find(|known| is_failure(known))
    }

    /// Opens the incident of a failure, or adds it to the one that is known.
    fn report(
        &mut self,
        now: Now,
        attempt: &impl Attempt,
        failure: Failure,
        capture: Option<String>,
        name: impl FnOnce() -> String,
    ) {
        let serial = attempt.serial();
        if let Some(tracked) = self.known.find_open(serial, is_failure) {
            if tracked.join(now, attempt, failure) {
                let id = tracked.incident.id.clone();
                self.store(&id, Change::Updated);
            }
            return;
        }
        let is_again = |known: &&Tracked| {
            let incident = &known.incident;
            let went_on = |reason| matches!(reason, ClosedReason::WentOn { .. });
            incident.closed.is_some_and(|closed| went_on(closed.reason))
                && incident
                    .failure
                    .is_some_and(|known| known.rank == failure.rank && known.kind == failure.kind)
        };
        let again = self.known.of(serial).rev().find(is_again);
        if let Some(id) = again.map(|known| known.incident.id.clone())
            && let Some(tracked) = self.known.get_mut(&id)
        {
            tracked.incident.failure = Some(failure);
            tracked.incident.growth = failure.growth();
            if tracked.incident.diagnosis.is_none() && tracked.need == Need::Nothing {
                let due_ns = now.mono_ns.saturating_add(FAILURE_CAPTURE_WAIT_NS);
                tracked.need = Need::Wanted { due_ns };
            }
            self.reopen(now, &id);
            return;
        }
        self.open(now, attempt, &failure.growth(), Some(failure), name);
        self.relate(attempt);
        if let Some(capture) = capture {
            self.failure_captured(serial, &capture, &failure.reason());
        }
    }

    /// Handles the end of a rank: its own growth ends, also where it has joined the incident of
    /// another rank, and, unless the rank died, its failed request.
    pub fn rank_ended(&mut self, now: Now, attempt: &impl Attempt, rank: u32, end: End) {
        let serial = attempt.serial();
        let is_its_own = |known: &&Tracked| {
            let growth = &known.incident.growth;
            let is_own = growth.rank == rank && growth.scope == Scope::OneRank;
            let is_over = !is_failure(known) || (is_survived(known) && !end.is_death());
            is_own && is_over
        };
        let is_its = |growth: &Growth| growth.rank == rank && growth.scope == Scope::OneRank;
        self.leave(now, serial, is_its);
        let mut own = ids(self.known.open_of(serial).filter(is_its_own));
        // A failure that its rank survived is closed before the growth passes its urgency on.
        own.sort_by_key(|id| self.get(id).is_none_or(|known| !is_failure(known)));
        for id in own {
            self.measure(now, &id, attempt, None);
            if !self.goes_on(now, attempt, &id) {
                self.close(now, &id, ClosedReason::RankEnded, true);
            }
        }
        if let Some(held) = self.held.get_mut(&serial).filter(|_| !end.is_death()) {
            held.failures.retain(|failure| failure.rank != rank);
            if held.failures.is_empty() {
                self.held.remove(&serial);
            }
        }
        // The incident of a failure is compared again with this end.
        if let Some(tracked) = self.known.find_open(serial, is_failure) {
            tracked.compare_due_ns.get_or_insert(now.mono_ns.saturating_add(COMPARE_EVERY_NS));
        }
    }

    /// Notes the close of a capture that was taken for a failure in this attempt: its incident
    /// needs no other.
    pub(super) fn failure_captured(&mut self, serial: u32, capture: &str, reason: &Reason) {
        if !matches!(reason, Reason::OutOfMemory { .. } | Reason::Death { .. }) {
            return;
        }
        if let Some(held) = self.held.get_mut(&serial) {
            held.capture = Some(capture.into());
        }
        // Also one that was closed because the job has been restarted meanwhile.
        let waits =
            |known: &&Tracked| is_failure(known) && matches!(known.need, Need::Wanted { .. });
        for id in ids(self.known.of(serial).filter(waits)) {
            self.compare(&id, capture);
        }
    }

    /// Growth of the incident's rank that is open, with its newest figures, or that was open when
    /// the rank ended; of several the largest.
    pub fn growth_before(&self, failed: &Incident, attempt: &impl Attempt) -> Option<KnownGrowth> {
        let all = self.known.of(failed.serial).map(Tracked::incident);
        let grown = all.filter(|of| of.failure.is_none()).filter_map(|known| {
            let growth = known.growth_of(failed.growth.rank, attempt)?;
            growth.layer.is_on_device().then_some((known, growth))
        });
        let (known, growth) = grown.max_by_key(|(_, growth)| growth.grown_bytes)?;
        let diagnosis = known.diagnosis.as_ref();
        Some(KnownGrowth {
            incident: known.id.clone(),
            class: known.class(),
            culprit: diagnosis.and_then(|known| known.culprit.clone()),
            advice: diagnosis.map(|known| known.advice.clone()).unwrap_or_default(),
            growth,
        })
    }

    /// Has a rank of this attempt died, as an open incident says, or one that may open soon?
    pub(super) fn has_death(&self, serial: u32) -> bool {
        self.held.contains_key(&serial)
            || self.open_failure(serial).is_some_and(|known| !is_survived(known))
    }

    /// Closes the failures that are long past.
    pub(super) fn close_old_failures(&mut self, now: Now) {
        let is_open = |known: &&Tracked| is_failure(known) && known.incident.is_open();
        for id in ids(self.iter().filter(is_open)) {
            let Some(tracked) = self.known.get(&id) else { continue };
            // One that was opened again is as old as its newest failure.
            let failed_ns = tracked.incident.failure.map_or(0, |failure| failure.wall_ns);
            let since_ns = failed_ns.max(tracked.incident.opened_wall_ns);
            if now.wall_ns.saturating_sub(since_ns) > OPEN_WALL_NS_MAX {
                self.close(now, &id, ClosedReason::NoNews, true);
            }
        }
    }

    /// A newer attempt of a job runs: closes the failure incidents of these older ones.
    pub fn attempt_begun(&mut self, now: Now, older: &[u32]) {
        let open = older.iter().flat_map(|serial| self.known.open_of(*serial));
        for id in ids(open.filter(|known| is_failure(known))) {
            self.close(now, &id, ClosedReason::NewAttempt, true);
        }
    }

    /// Closes the failures of ranks that have gone on: the program freed memory and tried again.
    pub(super) fn close_survived(&mut self, now: Now, attempt: &impl Attempt) {
        let went_on = |known: &&Tracked| {
            let growth = &known.incident.growth;
            is_survived(known)
                && attempt.rank(growth.rank).last_step
                    >= growth.last_step.saturating_add(WENT_ON_STEPS)
        };
        for id in ids(self.known.open_of(attempt.serial()).filter(went_on)) {
            let Some(tracked) = self.known.get(&id) else { continue };
            let at_step = attempt.rank(tracked.incident.growth.rank).last_step;
            // What failed is captured also when the rank was quick to go on.
            self.close(now, &id, ClosedReason::WentOn { at_step }, true);
        }
    }
}

impl Held {
    /// Adds a death, or what more is known of a rank's death.
    fn add(&mut self, failure: Failure) {
        match self.failures.iter_mut().find(|known| known.rank == failure.rank) {
            Some(known) if failure.says_more_than(known) => {
                *known = Failure { wall_ns: failure.wall_ns.min(known.wall_ns), ..failure };
            }
            Some(_) => {}
            None => self.failures.push(failure),
        }
    }

    /// The first of the deaths.
    fn first(&self, attempt: &impl Attempt) -> Option<Failure> {
        let earlier = |first: Failure, other: Failure| {
            let is_first = other.came_before(&first, is_one_clock(attempt, &first, &other));
            if is_first { other } else { first }
        };
        self.failures.iter().copied().reduce(earlier)
    }
}

impl Tracked {
    /// Another failure of the same attempt; true where it changes what the incident is about. The
    /// first one names it, a rank that could not get memory and then died has failed once, and a
    /// death counts more than a request that another rank has survived.
    fn join(&mut self, now: Now, attempt: &impl Attempt, failure: Failure) -> bool {
        let Some(known) = self.incident.failure else { return false };
        let is_same_rank = failure.rank == known.rank;
        let is_death = matches!(failure.kind, FailureKind::Died(_));
        let is_graver = known.kind == FailureKind::OutOfMemory && is_death;
        let is_repeated = is_same_rank && !failure.says_more_than(&known);
        let is_earlier = failure.came_before(&known, is_one_clock(attempt, &known, &failure));
        if is_repeated || !(is_same_rank || is_graver || is_earlier) {
            return false;
        }
        let wall_ns =
            if is_same_rank { failure.wall_ns.min(known.wall_ns) } else { failure.wall_ns };
        self.incident.failure = Some(Failure { wall_ns, ..failure });
        self.incident.growth = failure.growth();
        self.incident.updated_wall_ns = now.wall_ns;
        if is_graver && self.need == Need::Nothing {
            // Its own capture shows a later state than that of the request.
            let due_ns = now.mono_ns.saturating_add(FAILURE_CAPTURE_WAIT_NS);
            self.need = Need::Wanted { due_ns };
        }
        let compare_due_ns = now.mono_ns.saturating_add(COMPARE_EVERY_NS);
        self.compare_due_ns.get_or_insert(compare_due_ns);
        true
    }
}

/// Does one clock tell when these two failed?
fn is_one_clock(attempt: &impl Attempt, one: &Failure, other: &Failure) -> bool {
    attempt.holder(one.rank).node == attempt.holder(other.rank).node
}

/// Is the incident about a failed request of a rank that lives?
fn is_survived(known: &Tracked) -> bool {
    known.incident.failure.is_some_and(|failure| failure.kind == FailureKind::OutOfMemory)
}

/// Is the incident about a failure, and not about growth?
fn is_failure(known: &Tracked) -> bool {
    known.incident.failure.is_some()
}

impl Incident {
    /// Growth of a rank that this incident reports, in its newest figures: it goes on, or went on
    /// until the rank or its attempt ended.
    fn growth_of(&self, rank: u32, attempt: &impl Attempt) -> Option<Growth> {
        if !self.lasted() {
            return None;
        }
        let is_its = |growth: &&Growth| growth.rank == rank || growth.scope != Scope::OneRank;
        let known = core::iter::once(&self.growth).chain(&self.joined).find(is_its);
        // The detector closes no finding because its rank has ended.
        let former = || {
            let mut keys = self.former.iter().filter(|key| key.rank == rank);
            keys.find_map(|key| attempt.newest(key))
        };
        match known {
            Some(known) if self.is_open() => {
                let newest = attempt.newest(&known.key());
                Some(newest.map_or(*known, |newest| newest.continuing(known)))
            }
            Some(known) => Some(*known),
            None => former(),
        }
    }
}
