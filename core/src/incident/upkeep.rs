//! Handles captures, time and limits.

use alloc::boxed::Box;
use alloc::string::String;
use core::cmp::Reverse;

use super::machine::{Change, Effect, Incidents, Now, RETRY_NS, RISES_MAX, TRIES_MAX};
use super::record::{ClosedReason, Incident, NotCompared, bounded};
use super::tracked::{Need, Tracked, ids};
use crate::capture::{Reason, Refusal};
use crate::detector::{Growth, Layer};
use crate::diagnosis::Diagnosis;
use crate::identity::owner::{HolderKey, OwnerKey};
use crate::limits::{INCIDENTS_MAX, INCIDENTS_OPEN_MAX};
use crate::paging::Urgency;
use crate::sharing::Shares;

/// Captures that may be tried without new growth while no diagnosis explains an incident: perhaps
/// the tapes had no earlier step yet to compare with.
const EARLY_TRIES: u32 = 2;

/// A ticket or a page waits for a capture that is put off only while more than this many times the
/// wait is left. Else the known capture is compared again, and decides.
const LEFT_WAITS_MIN: u64 = 2;

/// A restart is considered again after this time, in nanoseconds: the end of memory comes nearer.
const CONSIDER_EVERY_NS: u64 = 30_000_000_000;

impl Incidents {
    /// Time has passed.
    pub fn tick(&mut self, now: Now) {
        let is_wanting = |known: &&Tracked| matches!(known.need, Need::Wanted { .. });
        for id in ids(self.iter().filter(is_wanting)) {
            self.request_capture(now, &id);
        }
        let is_due = |known: &&Tracked| {
            known.incident.is_open()
                && !known.incident.is_unexplained()
                && known
                    .considered_ns
                    .is_none_or(|at_ns| now.mono_ns.saturating_sub(at_ns) >= CONSIDER_EVERY_NS)
        };
        for id in ids(self.iter().filter(is_due)) {
            self.consider_restart(now, id);
        }
        self.close_old_failures(now);
        self.compare_again(now);
        self.make_room();
    }

    /// Requests the capture of an incident that is due. A request that is not answered is repeated.
    pub(super) fn request_capture(&mut self, now: Now, id: &str) {
        let Some(tracked) = self.known.get_mut(id) else { return };
        let Need::Wanted { due_ns } = &mut tracked.need else { return };
        if *due_ns > now.mono_ns {
            return;
        }
        *due_ns = now.mono_ns + RETRY_NS;
        let (serial, growth) = (tracked.incident.serial, &tracked.incident.growth);
        let rank = growth.rank;
        let reason = match (&tracked.incident.failure, growth.layer) {
            (Some(failure), _) => failure.reason(),
            (None, Layer::Workers) => Reason::WorkerGrowth { rank },
            (None, Layer::Spread) => Reason::Imbalance { rank },
            (None, _) if growth.is_standstill() => Reason::Standstill { rank },
            (None, _) => Reason::Growth { rank },
        };
        self.effects.push_back(Effect::RequestCapture { id: id.into(), serial, reason });
    }

    /// A requested capture is under way, or was refused. An answer that comes late is ignored.
    pub fn capture_answered(&mut self, now: Now, id: &str, answer: Result<String, Refusal>) {
        let (reported, horizons) = (self.reported_urgency(id), self.horizons);
        let known = self.known.get_mut(id);
        let is_wanted = |known: &&mut Tracked| matches!(known.need, Need::Wanted { .. });
        let Some(tracked) = known.filter(is_wanted) else { return };
        tracked.need = match answer {
            Ok(capture) => {
                tracked.incident.tries += 1;
                Need::Awaited { capture, again: false }
            }
            Err(Refusal::TooSoon { wait_ns } | Refusal::OverBudget { wait_ns, .. }) => {
                let Incident { seconds_to_oom, diagnosis, .. } = &tracked.incident;
                let wait_seconds = wait_ns.saturating_mul(LEFT_WAITS_MIN) / 1_000_000_000;
                let is_too_late = seconds_to_oom.is_some_and(|left| left <= wait_seconds);
                let rises = tracked.incident.urgency_of_growth(horizons) > reported;
                if is_too_late && rises && diagnosis.is_some() {
                    tracked.compare_due_ns = Some(now.mono_ns);
                }
                Need::Wanted { due_ns: now.mono_ns + wait_ns }
            }
            Err(
                Refusal::NoRanks
                | Refusal::Busy { .. }
                | Refusal::NotReached { .. }
                | Refusal::NotCovered { .. },
            ) => Need::Wanted { due_ns: now.mono_ns + RETRY_NS },
        };
    }

    /// Handles the close of a capture: the incidents that wait for it are diagnosed.
    pub fn capture_closed(&mut self, serial: u32, closed: &str, reason: &Reason) {
        self.failure_captured(serial, closed, reason);
        let waits = |known: &&Tracked| match &known.need {
            Need::Awaited { capture, .. } => capture == closed,
            Need::Nothing | Need::Wanted { .. } => false,
        };
        for id in ids(self.known.of(serial).filter(waits)) {
            self.compare(&id, closed);
        }
    }

    /// Compares the captures of incidents once more where that is due.
    fn compare_again(&mut self, now: Now) {
        let is_due = |known: &&Tracked| {
            let has_due = known.compare_due_ns.is_some_and(|due_ns| due_ns <= now.mono_ns);
            let is_wanted = known.incident.is_open() || known.incident.diagnosis.is_none();
            has_due && is_wanted && !known.is_compared
        };
        for id in ids(self.iter().filter(is_due)) {
            let Some(tracked) = self.known.get_mut(&id) else { continue };
            let Some(capture) = tracked.incident.capture_id.clone() else { continue };
            tracked.compare_due_ns = None;
            self.compare(&id, &capture);
        }
    }

    /// Compares the snapshots of a capture for an incident. One comparison of an incident is under
    /// way at a time; of the comparisons requested meanwhile, the last one follows.
    pub(super) fn compare(&mut self, id: &str, capture: &str) {
        let Some(tracked) = self.known.get_mut(id) else { return };
        if tracked.is_compared {
            tracked.compare_next = Some(capture.into());
            return;
        }
        tracked.is_compared = true;
        let (id, capture) = (id.into(), capture.into());
        self.effects.push_back(Effect::Diagnose { id, capture });
    }

    /// Takes the result of comparing a capture's snapshots, or the failure to compare them.
    pub fn diagnosed(
        &mut self,
        now: Now,
        id: &str,
        capture: &str,
        result: Result<Box<Diagnosis>, NotCompared>,
    ) {
        let cause = result.as_ref().ok().map(|diagnosis| self.urgency(id, diagnosis));
        let (reported, horizons) = (self.reported_urgency(id), self.horizons);
        let Some(tracked) = self.known.get_mut(id) else { return };
        tracked.is_compared = false;
        let next = tracked.compare_next.take();
        if core::mem::take(&mut tracked.is_outdated) {
            return self.compare(id, next.as_deref().unwrap_or(capture));
        }
        // The end of a rank may have come after this comparison began.
        let is_last = tracked.compare_due_ns.is_none() && next.is_none();
        let incident = &mut tracked.incident;
        incident.updated_wall_ns = now.wall_ns;
        let before = incident.urgency;
        let was_reported_in = incident.reported_in.clone();
        if let Some((urgency, reported_in)) = &cause {
            let least = if is_last { Urgency::Notice } else { before };
            incident.urgency =
                if reported_in.is_some() { Urgency::Notice } else { least.max(*urgency) };
            incident.reported_in.clone_from(reported_in);
        }
        let change = learn(incident, capture, result);
        let urgency = incident.urgency;
        let (is_open, is_growth) = (incident.is_open(), incident.failure.is_none());
        let is_unknown = incident.is_unexplained();
        let is_early = is_unknown && incident.tries < EARLY_TRIES;
        // Nothing else asks again for the capture that the rise of an incident waits for.
        let is_unanswered = incident.not_compared.is_some() && !is_unknown;
        let rises = is_unanswered && incident.urgency_of_growth(horizons) > reported;
        let is_due = is_early || (rises && incident.tries < TRIES_MAX + RISES_MAX);
        tracked.need = match core::mem::take(&mut tracked.need) {
            // An earlier capture was compared again.
            Need::Awaited { capture: of, again } if of != capture => {
                Need::Awaited { capture: of, again }
            }
            // A later capture would show other memory than its diagnosis.
            _ if !is_open => Need::Nothing,
            Need::Wanted { due_ns } if is_growth => Need::Wanted { due_ns },
            Need::Awaited { again: true, .. } => Need::Wanted { due_ns: now.mono_ns },
            _ if is_due => Need::Wanted { due_ns: now.mono_ns + RETRY_NS },
            _ => Need::Nothing,
        };
        self.store(id, change);
        if urgency > before {
            self.effects.push_back(Effect::Raised { id: id.into(), urgency });
        }
        if urgency < before {
            self.release(now, id);
        }
        if let Some((urgency, Some(by))) = cause {
            if was_reported_in.as_ref() != Some(&by) {
                self.end_silence(now, &by);
            }
            self.raise(now, &by, urgency);
        }
        if is_open {
            self.consider_restart(now, id.into());
        }
        if let Some(capture) = next {
            self.compare(id, &capture);
        }
    }

    /// Raises the incident that reports the cause of another one which has become more urgent: one
    /// cause is one ticket or page.
    pub(super) fn raise(&mut self, now: Now, id: &str, urgency: Urgency) {
        let Some(Tracked { incident, .. }) = self.known.get_mut(id) else { return };
        let is_reporter = incident.is_open() && incident.reported_in.is_none();
        if is_reporter && incident.urgency < urgency {
            incident.urgency = urgency;
            incident.updated_wall_ns = now.wall_ns;
            self.store(id, Change::Updated);
            self.effects.push_back(Effect::Raised { id: id.into(), urgency });
        }
    }

    /// Urgency of the cause of an incident after a diagnosis, and the open incident that reports
    /// the same cause; the incident itself is a notice then.
    fn urgency(&self, id: &str, diagnosis: &Diagnosis) -> (Urgency, Option<String>) {
        let notice = (Urgency::Notice, None);
        let Some(own) = self.known.get(id) else { return notice };
        let diagnosis = own.incident.kept_over(diagnosis).unwrap_or(diagnosis);
        if !diagnosis.pages() {
            return notice;
        }
        // The urgency does not fall while the diagnosis stands.
        let urgency = own.incident.urgency_of_growth(self.horizons).max(own.incident.urgency);
        if urgency == Urgency::Notice {
            return notice;
        }
        // What is reported itself raises no other: one cause pages once. A cause that is a notice
        // is raised by what comes with it.
        let reports_it = |other: &&Tracked| {
            let Tracked { incident, .. } = other;
            let known = incident.diagnosis.as_ref().filter(|_| incident.id != id);
            known.is_some_and(|known| {
                let may_rise = diagnosis.comes_with(known)
                    && known.pages()
                    && incident.reported_in.is_none()
                    && incident.growth.began_near(&own.incident.growth);
                (other.open_urgency() > Urgency::Notice || may_rise)
                    && other.open_urgency() >= own.open_urgency()
                    && diagnosis.has_cause_of(known)
            })
        };
        // A job that stands still and has paged is ended in the end.
        let related = own.incident.related.as_ref().and_then(|by| self.known.get(by));
        let has_paged = |of: &&Tracked| {
            of.incident.growth.is_standstill() && of.incident.urgency == Urgency::Page
        };
        let stood = related.filter(has_paged);
        let other = stood.or_else(|| self.known.open_of(own.incident.serial).find(reports_it));
        let reported_in = other.map(|other| other.incident.id.clone());
        // A closed incident is a notice, unless it was closed because its attempt ended, or a
        // restart was quicker than its first capture.
        let is_first = own.incident.diagnosis.is_none();
        let was_restarted =
            own.incident.closed.is_some_and(|closed| closed.reason == ClosedReason::NewAttempt);
        let counts = own.incident.lasted() || (was_restarted && is_first);
        (if counts { urgency } else { Urgency::Notice }, reported_in)
    }

    fn consider_restart(&mut self, now: Now, id: String) {
        let known = self.known.get_mut(&id);
        if let Some(tracked) = known.filter(|known| known.incident.objection().is_none()) {
            tracked.considered_ns = Some(now.mono_ns);
            self.effects.push_back(Effect::ConsiderRestart { id });
        }
    }

    /// Postpones the consideration of an incident: it is due again at once.
    pub fn consider_again(&mut self, id: &str) {
        if let Some(tracked) = self.known.get_mut(id) {
            tracked.considered_ns = None;
        }
    }

    /// The store holds an incident in its state at this Unix time of its last update.
    pub fn stored(&mut self, id: &str, updated_wall_ns: i64) {
        if let Some(tracked) = self.known.get_mut(id)
            && tracked.incident.updated_wall_ns == updated_wall_ns
        {
            tracked.is_stored = true;
        }
    }

    /// Admits one more open incident of this holder. At the bound, the newest incident of the
    /// largest holder that gives way to the newcomer is closed.
    pub(super) fn admit(&mut self, now: Now, newcomer: HolderKey<'_>) -> bool {
        if self.known.open() < INCIDENTS_OPEN_MAX {
            return true;
        }
        let open = || self.iter().filter(|known| known.incident.is_open());
        let shares = shares(open());
        let all = INCIDENTS_OPEN_MAX as u64;
        let gives_way = |of: &&Tracked| shares.gives_way_in_use(of.holder(), newcomer, all);
        let newest =
            open().filter(gives_way).max_by_key(|of| (shares.of(of.holder()), &of.incident.id));
        let Some(id) = newest.map(|of| of.incident.id.clone()) else { return false };
        self.effects.push_back(Effect::Lost);
        self.release(now, &id);
        self.forget(&id);
        true
    }

    /// Keeps incidents within their bound: of the holder that has most, the oldest that is closed
    /// is forgotten.
    fn make_room(&mut self) {
        while self.known.len() > INCIDENTS_MAX {
            let shares = shares(self.iter());
            let closed = self.iter().filter(|known| !known.incident.is_open());
            // Names are in order of age.
            let oldest = closed.min_by_key(|of| (Reverse(shares.of(of.holder())), &of.incident.id));
            let Some(id) = oldest.map(|of| of.incident.id.clone()) else { return };
            self.effects.push_back(Effect::Lost);
            self.forget(&id);
        }
    }
}

/// Number of incidents of each holder.
fn shares<'a>(all: impl Iterator<Item = &'a Tracked>) -> Shares<&'a str, OwnerKey<'a>> {
    let mut shares = Shares::default();
    all.for_each(|of| shares.add(of.holder(), 1));
    shares
}

/// Gives an incident the result of comparing a capture. A capture that cannot be compared replaces
/// none that could be, and a new diagnosis none that is kept over it.
fn learn(
    incident: &mut Incident,
    capture: &str,
    result: Result<Box<Diagnosis>, NotCompared>,
) -> Change {
    if result.as_deref().is_ok_and(|new| incident.kept_over(new).is_some()) {
        incident.not_compared = None;
        return Change::Updated;
    }
    if result.is_ok() || incident.diagnosis.is_none() {
        incident.capture_id = Some(capture.into());
    }
    match result {
        Ok(diagnosis) => {
            // The collectives tell better than the steps which rank the others wait for.
            if let Some(seen) = diagnosis.seen.filter(Growth::is_standstill) {
                incident.growth = Growth { is_sure: incident.growth.is_sure, ..seen };
            }
            incident.diagnosis = Some(bounded(diagnosis));
            incident.not_compared = None;
        }
        Err(why) => incident.not_compared = Some(why),
    }
    Change::Diagnosed
}
