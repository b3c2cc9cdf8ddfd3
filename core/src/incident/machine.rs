//! The machine: findings, captures and diagnoses in, effects out.
//!
//! This file handles findings; `upkeep.rs` handles captures, time and limits.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use super::attempt::Attempt;
use super::deaths::{COMPARE_EVERY_NS, Held};
use super::failure::{FAILURE_CAPTURE_WAIT_NS, Failure};
use super::record::{Closed, ClosedReason, Incident};
use super::thread::Thread;
use super::tracked::{Known, Need, Tracked, ids};
use crate::capture::Reason;
use crate::detector::{Finding, Growth, GrowthKey, Layer, RankState, Scope};
use crate::identity::owner::Holder;
use crate::limits::FAILURE_AGE_SECONDS_MAX;
use crate::paging::{Horizons, Urgency};

/// Captures for one incident at most, while its class is unknown or it is a notice. The count
/// starts again when the growth returns.
pub const TRIES_MAX: u32 = 12;

/// Captures beyond [`TRIES_MAX`] of an incident whose growth has become more urgent: one for a
/// ticket and one for a page.
pub(super) const RISES_MAX: u32 = 2;

/// Time between two requests that were refused for a reason that passes, in nanoseconds.
pub(super) const RETRY_NS: u64 = 2_000_000_000;

/// Steps after a restart of the coordinator within which the detector must find the growth of an
/// open incident again; without it, the growth is over.
pub(super) const CONFIRM_STEPS: u64 = 4096;

/// The agent of a rank must have been connected for this long, in nanoseconds, before the rank
/// counts as silent: an agent that reconnects first reports the steps since its last connection.
pub(super) const BACK_NS: u64 = 10_000_000_000;

/// The time on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Monotonic time, in nanoseconds.
    pub mono_ns: u64,
    /// Unix time, in nanoseconds.
    pub wall_ns: i64,
}

/// Change of an incident that is to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The incident was opened.
    Opened,
    /// The figures changed.
    Updated,
    /// The incident was diagnosed, or could not be.
    Diagnosed,
    /// The incident is open again.
    Reopened,
    /// The incident was closed.
    Closed,
}

/// An effect that the shell carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Store the incident as it is, then call [`Incidents::stored`].
    Store {
        /// Name of the incident.
        id: String,
        /// The change to store.
        change: Change,
    },
    /// Delete the incident from the store.
    Forget {
        /// The incident in its new state.
        incident: Box<Incident>,
    },
    /// Request a capture, then call [`Incidents::capture_answered`].
    RequestCapture {
        /// Name of the incident.
        id: String,
        /// Attempt.
        serial: u32,
        /// Reason of the capture: growth of a rank, or of its workers.
        reason: Reason,
    },
    /// Compare the snapshots of a capture, then call [`Incidents::diagnosed`]; also when they
    /// cannot be compared.
    Diagnose {
        /// Name of the incident.
        id: String,
        /// Name of the capture.
        capture: String,
    },
    /// Ask the restart policy.
    ConsiderRestart {
        /// Name of the incident.
        id: String,
    },
    /// The incident is more urgent than before.
    Raised {
        /// Name of the incident.
        id: String,
        /// Ticket or page.
        urgency: Urgency,
    },
    /// Count an incident beyond the bound.
    Lost,
}

/// The incidents of all attempts.
#[derive(Debug, Default)]
pub struct Incidents {
    pub(super) horizons: Horizons,
    pub(super) known: Known,
    /// Findings about silent ranks whose agents are away, or not back for long.
    silent: BTreeMap<(u32, GrowthKey), Growth>,
    /// Deaths that are not reported yet, by attempt.
    pub(super) held: BTreeMap<u32, Held>,
    pub(super) effects: VecDeque<Effect>,
}

impl Incidents {
    /// No incidents.
    pub fn new(horizons: Horizons) -> Self {
        Self { horizons, ..Self::default() }
    }

    /// Takes the next effect.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// All incidents, by age.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Tracked> + Clone {
        self.known.iter()
    }

    /// The open incidents of an attempt, by age.
    pub fn open_of(&self, serial: u32) -> impl DoubleEndedIterator<Item = &Tracked> {
        self.known.open_of(serial)
    }

    /// The incidents of an attempt, open or closed.
    pub fn of(&self, serial: u32) -> impl DoubleEndedIterator<Item = &Tracked> {
        self.known.of(serial)
    }

    /// Number of remembered incidents.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// True when none is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The incident with this id.
    pub fn get(&self, id: &str) -> Option<&Tracked> {
        self.known.get(id)
    }

    /// Takes a finding of the detector of an attempt. `name` makes the name of a new incident.
    pub fn found(
        &mut self,
        now: Now,
        attempt: &impl Attempt,
        finding: Finding,
        name: impl FnOnce() -> String,
    ) {
        let serial = attempt.serial();
        match finding {
            Finding::Opened(growth) => self.opened(now, attempt, &growth, name),
            Finding::Updated(growth) => {
                if let Some(held) = self.silent.get_mut(&(serial, growth.key())) {
                    *held = growth;
                } else if let Some(id) = self.open_about(serial, &growth.key()) {
                    self.grew(now, attempt, &id, &growth);
                } else {
                    self.rejoined(now, serial, &growth);
                }
            }
            Finding::Closed(growth) => {
                let key = growth.key();
                self.silent.remove(&(serial, key));
                if !self.leave(now, serial, |of| of.key().names(&key))
                    && let Some(id) = self.open_about(serial, &key)
                    && !self.goes_on(now, attempt, &id)
                {
                    self.measure(now, &id, attempt, Some(growth));
                    // Of an attempt that has ended nothing shows that its growth ended before.
                    let reason = match attempt.has_ended() {
                        true => ClosedReason::AttemptEnded,
                        false => ClosedReason::GrowthEnded { at_step: growth.last_step },
                    };
                    self.close(now, &id, reason, attempt.has_ended());
                }
            }
        }
    }

    /// Reviews an attempt after its findings: closes the incidents that were not confirmed after a
    /// restart of the coordinator, and opens incidents of silent ranks whose agents are back.
    pub fn review(&mut self, now: Now, attempt: &impl Attempt, mut name: impl FnMut() -> String) {
        let is_late = |tracked: &&Tracked| {
            let view = attempt.rank(tracked.incident.growth.rank);
            let is_found = !tracked.unconfirmed.contains(&tracked.incident.growth.key());
            (is_found || view.state == RankState::Healthy)
                && !tracked.unconfirmed.is_empty()
                && view.last_step > tracked.confirm_by_step
        };
        for id in ids(self.known.open_of(attempt.serial()).filter(is_late)) {
            let Some(tracked) = self.known.get_mut(&id) else { continue };
            let over = core::mem::take(&mut tracked.unconfirmed);
            let is_over = over.contains(&tracked.incident.growth.key());
            self.leave(now, attempt.serial(), |growth| over.contains(&growth.key()));
            if is_over && !self.goes_on(now, attempt, &id) {
                self.close(now, &id, ClosedReason::NotFoundAgain, attempt.has_ended());
            }
        }
        self.close_survived(now, attempt);
        self.review_ends(now, attempt);
        let is_due = |(serial, key): &(u32, GrowthKey)| {
            *serial == attempt.serial() && is_back(now, attempt, key.rank)
        };
        let due: Vec<_> = self.silent.keys().filter(|key| is_due(key)).copied().collect();
        for key in due {
            if let Some(growth) = self.silent.remove(&key) {
                self.opened(now, attempt, &growth, &mut name);
            }
        }
    }

    /// Updates the incidents whose end has come so near that they are more urgent: the detector
    /// reports growth that goes on as forecast seldom.
    fn review_ends(&mut self, now: Now, attempt: &impl Attempt) {
        let nearer = |Tracked { incident, .. }: &Tracked| {
            let growth = attempt.newest(&incident.growth.key())?;
            let times = attempt.times(now.wall_ns, growth.rank);
            let rises = incident.rises_with(&growth, times, self.horizons);
            rises.then(|| (incident.id.clone(), growth))
        };
        let open = self.known.open_of(attempt.serial());
        let nearer: Vec<(String, Growth)> = open.filter_map(nearer).collect();
        for (id, growth) in nearer {
            self.grew(now, attempt, &id, &growth);
        }
    }

    /// Handles the end of an attempt, which ends its growth.
    pub fn attempt_ended(&mut self, now: Now, attempt: &impl Attempt) {
        self.end_growth(now, attempt, ClosedReason::AttemptEnded);
    }

    /// Ends the growth of attempts of which no rank has been heard for as long as a death makes an
    /// incident, and goes on with it once one is heard again. `find` answers an attempt that has
    /// not ended, and the time since a rank of it was heard, in nanoseconds.
    pub fn scan_heard<'a, A: Attempt + 'a>(
        &mut self,
        now: Now,
        find: impl Fn(u32) -> Option<(&'a A, u64)>,
    ) {
        let growth = self.iter().map(Tracked::incident).filter(|of| of.failure.is_none());
        let was_lost = |of: &Incident| match of.closed.map(|closed| closed.reason) {
            None => Some((of.serial, false)),
            Some(reason) => (reason == ClosedReason::NotHeard).then_some((of.serial, true)),
        };
        let known: BTreeSet<(u32, bool)> = growth.filter_map(was_lost).collect();
        for (serial, was_lost) in known {
            let Some((attempt, quiet_ns)) = find(serial) else { continue };
            match (quiet_ns / 1_000_000_000 >= FAILURE_AGE_SECONDS_MAX, was_lost) {
                (true, false) => self.end_growth(now, attempt, ClosedReason::NotHeard),
                (false, true) => self.attempt_goes_on(now, attempt),
                (true, true) | (false, false) => {}
            }
        }
    }

    fn end_growth(&mut self, now: Now, attempt: &impl Attempt, reason: ClosedReason) {
        let serial = attempt.serial();
        self.silent.retain(|(of, _), _| *of != serial);
        // A failure is looked at after its job is dead.
        let is_growth = |known: &&Tracked| known.incident.failure.is_none();
        for id in ids(self.known.open_of(serial).filter(is_growth)) {
            self.measure(now, &id, attempt, None);
            self.close(now, &id, reason, reason == ClosedReason::AttemptEnded);
        }
    }

    /// An attempt that counted as ended goes on: reopens the incidents that were closed with it.
    /// Each is closed later unless its growth is found again.
    pub fn attempt_goes_on(&mut self, now: Now, attempt: &impl Attempt) {
        let was_over = |known: &&Tracked| {
            let Some(Closed { reason, .. }) = known.incident.closed else { return false };
            matches!(reason, ClosedReason::AttemptEnded | ClosedReason::NotHeard)
        };
        for id in ids(self.known.of(attempt.serial()).filter(was_over)) {
            let Some(tracked) = self.known.get_mut(&id) else { continue };
            tracked.confirm_after(attempt.step(tracked.incident.growth.rank));
            self.reopen(now, &id);
        }
    }

    fn opened(
        &mut self,
        now: Now,
        attempt: &impl Attempt,
        growth: &Growth,
        name: impl FnOnce() -> String,
    ) {
        let (serial, key) = (attempt.serial(), growth.key());
        if self.rejoined(now, serial, growth) {
            return;
        }
        let known = self.open_about(serial, &key);
        if let Some(id) = known.or_else(|| self.narrowed(serial, &key)) {
            // Found again after a restart of the coordinator, or seen more clearly.
            self.grew(now, attempt, &id, growth);
            return;
        }
        if growth.returns > 0 && self.returned(now, attempt, growth) {
            return;
        }
        // After a restart of everything, agents send again what the tapes of an ended attempt, or
        // rank, hold. Its growth was found while it ran, or is not reported any more.
        let is_of_one = growth.scope == Scope::OneRank;
        if attempt.has_ended() || (is_of_one && attempt.rank_has_ended(growth.rank)) {
            return;
        }
        if let Some(id) = self.reopened(now, serial, growth) {
            self.grew(now, attempt, &id, growth);
            return;
        }
        if let Some(id) = self.continued(now, serial, growth) {
            self.grew(now, attempt, &id, growth);
            return;
        }
        if self.joined(now, attempt, growth) {
            return;
        }
        if growth.layer == Layer::Progress && !is_back(now, attempt, growth.rank) {
            // A rank whose agent is away is silent for that reason; its state shows it.
            self.silent.insert((serial, key), *growth);
            return;
        }
        self.open(now, attempt, growth, None, name);
    }

    /// Opens an incident, within the bound of open incidents.
    pub(super) fn open(
        &mut self,
        now: Now,
        attempt: &impl Attempt,
        growth: &Growth,
        failure: Option<Failure>,
        name: impl FnOnce() -> String,
    ) {
        let holder = attempt.holder(growth.rank);
        if !self.admit(now, holder.key()) {
            self.effects.push_back(Effect::Lost);
            return;
        }
        let id = name();
        let mut incident = Incident {
            id: id.clone(),
            serial: attempt.serial(),
            job: attempt.job().into(),
            attempt: attempt.number(),
            growth: *growth,
            clock: attempt.clock(growth.rank),
            failure,
            seconds_to_oom: None,
            seconds_to_job_end: None,
            diagnosis: None,
            urgency: Urgency::Notice,
            reported_in: None,
            thread: Thread::default(),
            capture_id: None,
            tries: 0,
            not_compared: None,
            former: Vec::new(),
            joined: Vec::new(),
            related: None,
            opened_wall_ns: now.wall_ns,
            updated_wall_ns: now.wall_ns,
            closed: None,
        };
        incident.measure(growth, attempt.times(now.wall_ns, growth.rank));
        let mut tracked = Tracked::new(incident, holder);
        let wait_ns = if failure.is_some() { FAILURE_CAPTURE_WAIT_NS } else { 0 };
        tracked.need = Need::Wanted { due_ns: now.mono_ns.saturating_add(wait_ns) };
        self.known.insert(tracked);
        self.store(&id, Change::Opened);
        self.request_capture(now, &id);
    }

    pub(super) fn grew(&mut self, now: Now, attempt: &impl Attempt, id: &str, growth: &Growth) {
        let reported = self.reported_urgency(id);
        let Some(tracked) = self.known.get_mut(id) else { return };
        let is_found_again = tracked.confirm(&tracked.incident.growth.key());
        let known = tracked.incident.growth;
        let known_urgency = tracked.incident.urgency_of_growth(self.horizons);
        tracked.considered_ns = None;
        tracked.incident.measure(growth, attempt.times(now.wall_ns, growth.rank));
        let urgency = tracked.incident.urgency_of_growth(self.horizons);
        tracked.incident.updated_wall_ns = now.wall_ns;
        // A notice is captured once, and again when its growth is more urgent than what is
        // reported; certain growth whose class is unknown, or that is a notice, also when it has
        // grown. Growth that a new coordinator finds again does not count.
        let has_grown = tracked.incident.growth.grown_bytes > known.grown_bytes || !known.is_sure;
        let is_news = urgency > known_urgency || (has_grown && !is_found_again);
        let is_unknown = tracked.incident.is_unexplained();
        let is_low = is_unknown || reported == Urgency::Notice;
        let tries_max = match urgency > reported && !is_unknown {
            _ if !is_news => 0,
            true => TRIES_MAX + RISES_MAX,
            false if is_low && growth.is_sure => TRIES_MAX,
            false => 0,
        };
        if tracked.need == Need::Nothing && tracked.incident.tries < tries_max {
            tracked.need = Need::Wanted { due_ns: now.mono_ns };
        }
        self.store(id, Change::Updated);
    }

    /// Brings the growth of an incident that ends up to date: the detector reports it seldom, and
    /// there is no later report. `ended` are its figures where the detector has closed it.
    pub(super) fn measure(
        &mut self,
        now: Now,
        id: &str,
        attempt: &impl Attempt,
        ended: Option<Growth>,
    ) {
        let Some(Tracked { incident, .. }) = self.known.get_mut(id) else { return };
        let key = incident.growth.key();
        if let Some(growth) = ended.or_else(|| attempt.newest(&key)) {
            incident.measure(&growth, attempt.times(now.wall_ns, key.rank));
        }
    }

    /// The only place where an incident ends.
    pub(super) fn close(&mut self, now: Now, id: &str, reason: ClosedReason, has_ended: bool) {
        let closed = Some(Closed { wall_ns: now.wall_ns, reason });
        let Some(tracked) = self.known.set_closed(id, closed) else { return };
        tracked.incident.updated_wall_ns = now.wall_ns;
        if !has_ended {
            // A capture would show a time without the growth.
            match &mut tracked.need {
                Need::Awaited { again, .. } => *again = false,
                need => *need = Need::Nothing,
            }
        }
        let Incident { urgency, related, growth, .. } = &tracked.incident;
        let passes_on = matches!(reason, ClosedReason::RankEnded | ClosedReason::AttemptEnded);
        let failed = related.clone().filter(|_| passes_on && !growth.is_standstill());
        let urgency = *urgency;
        self.store(id, Change::Closed);
        self.release(now, id);
        // The failure that growth ended in is as urgent, unless its rank was asked to end.
        let is_failure = |failed: &&String| {
            let known = self.known.get(failed).filter(|known| known.incident.is_open());
            let failure = known.and_then(|known| known.incident.failure);
            failure.is_some_and(|failure| !failure.was_asked())
        };
        if let Some(failed) = failed.as_ref().filter(is_failure) {
            self.raise(now, failed, urgency);
        }
    }

    /// Releases open incidents that a closed one suppressed: they are diagnosed again.
    pub(super) fn release(&mut self, now: Now, id: &str) {
        let Some(serial) = self.get(id).map(|known| known.incident.serial) else { return };
        let is_suppressed = |other: &&Tracked| other.incident.reported_in.as_deref() == Some(id);
        for other in ids(self.known.open_of(serial).filter(is_suppressed)) {
            let Some(other) = self.known.get_mut(&other) else { continue };
            other.incident.reported_in = None;
            other.want_again(now);
        }
    }

    pub(super) fn reopen(&mut self, now: Now, id: &str) {
        let reported = self.reported_urgency(id);
        let Some(tracked) = self.known.set_closed(id, None) else { return };
        tracked.incident.reported_in.take_if(|_| reported == Urgency::Notice);
        tracked.incident.updated_wall_ns = now.wall_ns;
        self.store(id, Change::Reopened);
    }

    /// The urgency of an incident, or of the open one that reports its cause.
    pub(super) fn reported_urgency(&self, id: &str) -> Urgency {
        let Some(Tracked { incident, .. }) = self.known.get(id) else { return Urgency::Notice };
        let by = incident.reported_in.as_ref().and_then(|by| self.known.get(by));
        by.map_or(incident.urgency, Tracked::open_urgency)
    }

    fn open_about(&self, serial: u32, key: &GrowthKey) -> Option<String> {
        let mut open = self.known.open_of(serial).map(Tracked::incident);
        open.find(|of| of.is_about(key)).map(|of| of.id.clone())
    }

    /// Narrows the open incident about many ranks that names this rank as its example to the rank
    /// alone: the cause is the same.
    fn narrowed(&mut self, serial: u32, key: &GrowthKey) -> Option<String> {
        let narrows = |known: &Tracked| key.narrows(&known.incident.growth.key());
        let tracked = self.known.find_open(serial, narrows)?;
        tracked.incident.growth.scope = key.scope;
        Some(tracked.incident.id.clone())
    }

    /// The open incident that this growth goes on with.
    pub(super) fn continued(&mut self, now: Now, serial: u32, growth: &Growth) -> Option<String> {
        let goes_on = |known: &Tracked| {
            let known = &known.incident.growth;
            growth.goes_on_with(&known.key(), known.bytes_per_step)
        };
        let tracked = self.known.find_open(serial, goes_on)?;
        tracked.turn_to(now, growth.key());
        Some(tracked.incident.id.clone())
    }

    /// Reopens the newest closed incident that this growth goes on with: one that was closed with
    /// its attempt, when a late node reports ranks of that attempt; or one whose growth had ended
    /// and returns.
    fn reopened(&mut self, now: Now, serial: u32, growth: &Growth) -> Option<String> {
        let key = growth.key();
        let goes_on = |known: &&Tracked| {
            let incident = &known.incident;
            let is_about = incident.is_about(&key);
            let was_about = incident.was_about(&key);
            incident.closed.is_some_and(|closed| match closed.reason {
                ClosedReason::AttemptEnded | ClosedReason::NotHeard => is_about,
                ClosedReason::GrowthEnded { .. } => growth.returns > 0 && (is_about || was_about),
                ClosedReason::NotFoundAgain
                | ClosedReason::RankEnded
                | ClosedReason::WentOn { .. }
                | ClosedReason::NewAttempt
                | ClosedReason::NoNews => false,
            })
        };
        let id = self.known.of(serial).rev().find(goes_on)?.incident.id.clone();
        let tracked = self.known.get_mut(&id)?;
        if !tracked.incident.is_about(&key) {
            tracked.turn_to(now, key);
        }
        if tracked.incident.urgency == Urgency::Notice {
            // What was sure may return as a notice.
            tracked.incident.growth.is_sure &= growth.is_sure;
        }
        let is_collected = growth.give_backs > 0 && tracked.incident.growth.give_backs == 0;
        if growth.returns > 0 && (growth.is_sure || is_collected) {
            // The return is new evidence, and that it was collected is more.
            tracked.want_again(now);
        }
        self.reopen(now, &id);
        Some(id)
    }

    pub(super) fn store(&mut self, id: &str, change: Change) {
        if let Some(tracked) = self.known.get_mut(id) {
            tracked.is_stored = false;
            tracked.incident.end_outgrown_silence();
            self.effects.push_back(Effect::Store { id: id.into(), change });
        }
    }

    /// Takes up an incident that an earlier process stored. `step` is the newest step of its rank;
    /// `under_way` a capture of its attempt that was cut short and goes on.
    pub fn restore(
        &mut self,
        now: Now,
        incident: Incident,
        holder: Holder,
        step: u64,
        under_way: Option<String>,
    ) {
        let is_open = incident.is_open();
        let is_unknown = incident.is_unexplained();
        let is_failure = incident.failure.is_some();
        // Its end may have come after its comparison. Of a rank that is known to have died of its
        // request nothing more can be learnt.
        let knows_end = incident.diagnosis.as_ref().is_none_or(|known| known.ends_soon);
        let may_learn_end = is_open && is_failure && !knows_end;
        let mut tracked = Tracked {
            is_stored: true,
            compare_due_ns: may_learn_end.then_some(now.mono_ns.saturating_add(COMPARE_EVERY_NS)),
            need: match under_way {
                _ if !(is_open && is_unknown) => Need::Nothing,
                Some(capture) => Need::Awaited { capture, again: false },
                None => Need::Wanted { due_ns: now.mono_ns + RETRY_NS },
            },
            ..Tracked::new(incident, holder)
        };
        // What failed is not found again.
        if is_open && !is_failure {
            tracked.confirm_after(step);
        }
        self.known.insert(tracked);
    }

    pub(super) fn forget(&mut self, id: &str) {
        if let Some(Tracked { incident, .. }) = self.known.remove(id) {
            self.effects.push_back(Effect::Forget { incident: Box::new(incident) });
        }
    }

    /// Forgets all that belongs to an attempt.
    pub fn forget_attempt(&mut self, serial: u32) {
        self.silent.retain(|(of, _), _| *of != serial);
        self.held.remove(&serial);
        for id in ids(self.known.of(serial)) {
            self.forget(&id);
        }
    }
}

/// True when the rank's agent is connected, and had the time to report missed steps.
fn is_back(now: Now, attempt: &impl Attempt, rank: u32) -> bool {
    let since_ns = attempt.here_since_ns(rank);
    since_ns.is_some_and(|since_ns| now.mono_ns.saturating_sub(since_ns) >= BACK_NS)
}
