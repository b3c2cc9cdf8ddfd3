//! Ranks that died, or whose request for memory failed: the incidents that are not about growth.
//!
//! One attempt has one open incident of this kind: about the rank that failed first. The others
//! mostly die because of it, or are ended by the launcher. Their ends are compared when the capture
//! is, and once more when more ranks have ended: a job that is stopped as a whole does not page.
//!
//! Such an incident stays open when its attempt ends, so that it can be seen; it is closed when the
//! rank goes on, when a newer attempt of the job runs, or after [`OPEN_WALL_NS_MAX`]. A program
//! that catches failed requests may have one again and again: its incident is opened again each
//! time, and is captured once.

use alloc::string::String;

use super::failure::{FAILURE_CAPTURE_WAIT_NS, Failure, FailureKind};
use super::machine::{Attempt, Change, Incidents, Now};
use super::record::{ClosedReason, Incident};
use super::tracked::{Need, Tracked, is_open_of};
use crate::capture::Reason;
use crate::detector::Scope;
use crate::diagnosis::KnownGrowth;
use crate::identity::end::{End, TOGETHER_NS};
use crate::limits::FAILURE_AGE_SECONDS_MAX;

/// An incident about a failure is closed after this time, in nanoseconds of Unix time.
const OPEN_WALL_NS_MAX: i64 = 86_400_000_000_000;

/// Time between two comparisons of one capture with the ends that are known, in nanoseconds.
const COMPARE_EVERY_NS: u64 = 5_000_000_000;

/// A rank that was killed pages only after this time, in nanoseconds: until then all ranks of the
/// job may be killed, by a person or a scheduler.
pub(super) const SETTLED_NS: u64 = 10_000_000_000;

/// Steps that a rank has finished after a failed request when it counts as going on.
const WENT_ON_STEPS: u64 = 16;

impl Incidents {
    /// A rank failed. `name` makes the name of a new incident.
    pub fn failed(
        &mut self,
        now: Now,
        attempt: &impl Attempt,
        failure: Failure,
        name: impl FnOnce() -> String,
    ) {
        let serial = attempt.serial();
        let mut known = self.known.values_mut();
        if let Some(tracked) = known.find(|known| is_open_of(known, serial) && is_failure(known)) {
            if tracked.join(now, failure) {
                let id = tracked.incident.id.clone();
                self.store(&id, Change::Updated);
            }
            return;
        }
        // Agents repeat what they have said after each reconnect, and all deaths of an attempt
        // belong to one incident.
        let was_reported = |known: &Tracked| {
            let is_its = is_failure(known) && known.incident.serial == serial;
            // A survived request hides no death that is reported late.
            let is_as_grave = !is_survived(known) || failure.kind == FailureKind::OutOfMemory;
            is_its
                && is_as_grave
                && known.incident.closed.is_some_and(|closed| match closed.reason {
                    ClosedReason::NewAttempt => true,
                    _ => closed.wall_ns >= failure.wall_ns,
                })
        };
        let age_ns = u64::try_from(now.wall_ns.saturating_sub(failure.wall_ns)).unwrap_or(0);
        let is_old = age_ns / 1_000_000_000 > FAILURE_AGE_SECONDS_MAX;
        if is_old || self.known.values().any(was_reported) {
            return;
        }
        let is_again = |known: &Tracked| {
            let incident = &known.incident;
            let went_on = |reason| matches!(reason, ClosedReason::WentOn { .. });
            incident.serial == serial
                && incident.closed.is_some_and(|closed| went_on(closed.reason))
                && incident
                    .failure
                    .is_some_and(|known| known.rank == failure.rank && known.kind == failure.kind)
        };
        if let Some(tracked) = self.known.values_mut().rev().find(|known| is_again(known)) {
            tracked.incident.failure = Some(failure);
            tracked.incident.growth = failure.growth();
            if tracked.incident.diagnosis.is_none() && tracked.need == Need::Nothing {
                let due_ns = now.mono_ns.saturating_add(FAILURE_CAPTURE_WAIT_NS);
                tracked.need = Need::Wanted { due_ns };
            }
            let id = tracked.incident.id.clone();
            self.reopen(now, &id);
            return;
        }
        self.open(now, attempt, &failure.growth(), Some(failure), name);
    }

    /// Handles the end of a rank: its own growth ends and, unless the rank died, its failed
    /// request.
    pub fn rank_ended(&mut self, now: Now, attempt: &impl Attempt, rank: u32, end: End) {
        let serial = attempt.serial();
        let is_its_own = |known: &Tracked| {
            let growth = &known.incident.growth;
            let is_own = growth.rank == rank && growth.scope == Scope::OneRank;
            let is_over = !is_failure(known) || (is_survived(known) && !end.is_death());
            is_open_of(known, serial) && is_own && is_over
        };
        for id in self.ids(is_its_own) {
            self.measure(&id, attempt);
            self.close(now, &id, ClosedReason::RankEnded, true);
        }
        // The incident of a failure is compared again with this end.
        let mut known = self.known.values_mut();
        if let Some(tracked) = known.find(|known| is_open_of(known, serial) && is_failure(known)) {
            tracked.compare_due_ns.get_or_insert(now.mono_ns.saturating_add(COMPARE_EVERY_NS));
        }
    }

    /// Notes the close of a capture that was taken for a failure in this attempt: its incident
    /// needs no other.
    pub(super) fn failure_captured(&mut self, serial: u32, capture: &str, reason: &Reason) {
        if !matches!(reason, Reason::OutOfMemory { .. } | Reason::Death { .. }) {
            return;
        }
        let waits = |known: &Tracked| {
            let is_wanted = matches!(known.need, Need::Wanted { .. });
            // Also one that was closed because the job has been restarted meanwhile.
            known.incident.serial == serial && is_failure(known) && is_wanted
        };
        for id in self.ids(waits) {
            self.compare(&id, capture);
        }
    }

    /// Growth of the incident's rank that is open, with its newest figures, or that was open when
    /// the rank ended; of several the largest.
    pub fn growth_before(&self, failed: &Incident, attempt: &impl Attempt) -> Option<KnownGrowth> {
        let rank = failed.growth.rank;
        let is_its = |known: &&Incident| {
            let growth = &known.growth;
            let is_rank = growth.rank == rank || growth.scope != Scope::OneRank;
            let goes_on = match known.closed.map(|closed| closed.reason) {
                None | Some(ClosedReason::RankEnded | ClosedReason::AttemptEnded) => true,
                Some(_) => false,
            };
            known.serial == failed.serial
                && known.failure.is_none()
                && is_rank
                && goes_on
                && growth.layer.is_on_device()
        };
        let all = self.known.values().map(|known| &known.incident);
        let largest = all.filter(is_its).max_by_key(|known| known.growth.grown_bytes)?;
        let newest = attempt.newest(&largest.growth.key()).filter(|_| largest.is_open());
        let growth = newest.unwrap_or(largest.growth);
        Some(KnownGrowth {
            incident: largest.id.clone(),
            class: largest.class(),
            culprit: largest.diagnosis.as_ref().and_then(|known| known.culprit.clone()),
            grown_bytes: growth.grown_bytes,
            took_steps: growth.last_step.saturating_sub(largest.growth.onset_step),
        })
    }

    /// Compares again where more ranks have ended, and closes incidents of old failures.
    pub(super) fn review_failures(&mut self, now: Now) {
        let is_open = |known: &Tracked| is_failure(known) && known.incident.is_open();
        for id in self.ids(is_open) {
            let Some(tracked) = self.known.get_mut(&id) else { continue };
            // One that was opened again is as old as its newest failure.
            let failed_ns = tracked.incident.failure.map_or(0, |failure| failure.wall_ns);
            let since_ns = failed_ns.max(tracked.incident.opened_wall_ns);
            let age_ns = now.wall_ns.saturating_sub(since_ns);
            let is_due = tracked.compare_due_ns.is_some_and(|due_ns| due_ns <= now.mono_ns);
            let capture = tracked.incident.capture_id.clone();
            if age_ns > OPEN_WALL_NS_MAX {
                self.close(now, &id, ClosedReason::NoNews, true);
            } else if let Some(capture) = capture.filter(|_| is_due) {
                tracked.compare_due_ns = None;
                self.compare(&id, &capture);
            }
        }
    }

    /// A newer attempt of a job runs: closes the failure incidents of these older ones.
    pub fn attempt_begun(&mut self, now: Now, older: &[u32]) {
        let is_older = |known: &Tracked| {
            let incident = &known.incident;
            is_failure(known) && incident.is_open() && older.contains(&incident.serial)
        };
        for id in self.ids(is_older) {
            self.close(now, &id, ClosedReason::NewAttempt, true);
            // The launcher was quicker than the wait for a stop of the whole job.
            let Some(tracked) = self.known.get(&id).filter(|known| known.page_is_due) else {
                continue;
            };
            if let Some(capture) = tracked.incident.capture_id.clone() {
                self.compare(&id, &capture);
            }
        }
    }

    /// Closes the failures of ranks that have gone on: the program freed memory and tried again.
    pub(super) fn close_survived(&mut self, now: Now, attempt: &impl Attempt) {
        let went_on = |known: &Tracked| {
            let growth = &known.incident.growth;
            is_survived(known)
                && is_open_of(known, attempt.serial())
                && attempt.rank(growth.rank).last_step
                    >= growth.last_step.saturating_add(WENT_ON_STEPS)
        };
        for id in self.ids(went_on) {
            let Some(tracked) = self.known.get(&id) else { continue };
            let at_step = attempt.rank(tracked.incident.growth.rank).last_step;
            // What failed is captured also when the rank was quick to go on.
            self.close(now, &id, ClosedReason::WentOn { at_step }, true);
        }
    }
}

impl Tracked {
    /// Adds another failure of the same attempt; true where it changes the subject of the incident.
    /// The earliest failure names the incident. A rank without memory that then died has failed
    /// once. A death counts more than a failed request that another rank has survived.
    fn join(&mut self, now: Now, failure: Failure) -> bool {
        let Some(known) = self.incident.failure else { return false };
        let is_same_rank = failure.rank == known.rank;
        let is_death = matches!(failure.kind, FailureKind::Died(_));
        let is_graver = known.kind == FailureKind::OutOfMemory && is_death;
        let is_repeated = is_same_rank && failure.kind == known.kind;
        let is_earlier = known.wall_ns.saturating_sub(failure.wall_ns) > TOGETHER_NS;
        if is_repeated || !(is_same_rank || is_graver || is_earlier) {
            return false;
        }
        let wall_ns =
            if is_same_rank { failure.wall_ns.min(known.wall_ns) } else { failure.wall_ns };
        self.incident.failure = Some(Failure { wall_ns, ..failure });
        self.incident.growth = failure.growth();
        self.incident.updated_wall_ns = now.wall_ns;
        self.await_settling(now);
        if is_graver && self.need == Need::Nothing {
            // Its own capture shows a later state than that of the request.
            let due_ns = now.mono_ns.saturating_add(FAILURE_CAPTURE_WAIT_NS);
            self.need = Need::Wanted { due_ns };
        }
        self.compare_due_ns.get_or_insert(now.mono_ns.saturating_add(COMPARE_EVERY_NS));
        true
    }

    /// Notes when it will be known whether the whole job was killed, if its rank was.
    pub(super) fn await_settling(&mut self, now: Now) {
        let kind = self.incident.failure.map(|failure| failure.kind);
        if kind == Some(FailureKind::Died(End::Killed)) {
            self.settled_ns = Some(now.mono_ns.saturating_add(SETTLED_NS));
        }
    }

    /// Monotonic time at which it will be known whether the whole job was killed; none when that
    /// has passed, and for other failures.
    pub(super) fn settles_ns(&self, now: Now) -> Option<u64> {
        self.settled_ns.filter(|&due_ns| self.incident.is_open() && now.mono_ns < due_ns)
    }
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
    /// Failure of the rank; none for growth.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }
}
