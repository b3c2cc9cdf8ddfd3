//! Incidents: hands what happens to core's machine and what follows to the loop.
//!
//! Every decision about an incident is core's ([`memtape_core::incident`]). This file stores
//! incidents, logs their changes and assembles the inputs of a comparison.

use std::collections::{BTreeMap, BTreeSet};

use memtape_core::capture::Refusal;
use memtape_core::detector::{Finding, Growth, GrowthKey, RankView};
use memtape_core::diagnosis::{Activity, Diagnosis, Fate};
use memtape_core::identity::ids::{Ids, Kind};
use memtape_core::identity::owner::Holder;
use memtape_core::identity::planned_end::PlannedEnd;
use memtape_core::incident::{
    self, Change, Failure, FailureKind, Incident, NotCompared, ThreadRequest, Tracked,
};
use memtape_core::paging::Horizons;
use memtape_core::policy::Decision;
use memtape_core::tape::layout::Clock;

use crate::state::captures::{CaptureState, Captures};
use crate::state::comparison::Comparison;
use crate::state::counters::{Count, Loss};
use crate::state::effects::{After, Asker, Context, Effect, ThreadNotChanged, ThreadReply, Work};
use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::{Attempt, Presence, Rank};
use crate::state::jobs::growth_context;
use crate::state::jobs::neighbours::neighbours;
use crate::state::jobs::silence::Watch;
use memtape_disk::clock::Now;
use memtape_store::Changes;
use memtape_store::records::{CaptureRecord, End, IncidentRecord};

/// Time between two scans for attempts that stand still, in nanoseconds.
const SCAN_EVERY_NS: u64 = 1_000_000_000;

/// All incidents, by name; names are in order of age.
#[derive(Debug)]
pub(crate) struct Incidents {
    ids: Ids,
    machine: incident::Incidents,
    /// The last decision about a restart for each incident, to record only new ones.
    decided: BTreeMap<String, Decision>,
    /// Monotonic time of the last scan for attempts that stand still.
    scanned_ns: u64,
    /// Scans of all incidents.
    #[cfg(test)]
    pub(crate) scans: std::sync::atomic::AtomicU32,
}

impl incident::Attempt for Attempt {
    fn serial(&self) -> u32 {
        self.record.serial
    }

    fn job(&self) -> &str {
        &self.record.job
    }

    fn number(&self) -> u32 {
        self.record.attempt
    }

    fn holder(&self, rank: u32) -> Holder {
        let (begun_by, _) = self.held_by();
        let node = self.ranks.get(&rank).map_or(begun_by, |rank| &rank.record.node);
        Holder { node: node.to_string(), owner: self.record.owner.clone() }
    }

    fn has_ended(&self) -> bool {
        self.record.ended_wall_ns.is_some()
    }

    fn rank_has_ended(&self, rank: u32) -> bool {
        self.ranks.get(&rank).is_some_and(|rank| rank.presence == Presence::Ended)
    }

    fn clock(&self, rank: u32) -> Clock {
        self.ranks.get(&rank).map_or(Clock::Steps, Rank::clock)
    }

    fn newest(&self, key: &GrowthKey) -> Option<Growth> {
        self.detectors.newest(key)
    }

    fn step_time_ns(&self, rank: u32) -> Option<u64> {
        self.detectors.of(rank).step_time_ns()
    }

    fn planned_end(&self, rank: u32) -> PlannedEnd {
        self.ranks.get(&rank).map_or_else(PlannedEnd::default, |rank| rank.record.planned_end)
    }

    fn rank(&self, rank: u32) -> RankView {
        self.detectors.state(rank)
    }

    fn step(&self, rank: u32) -> u64 {
        self.ranks.get(&rank).map_or(0, |rank| rank.step)
    }

    fn fates(&self) -> Vec<Fate> {
        // The ends alone are asked for.
        self.ranks.values().map(|rank| rank.fate(Activity::Moving)).collect()
    }

    fn here_since_ns(&self, rank: u32) -> Option<u64> {
        let rank = self.ranks.get(&rank)?;
        (rank.presence == Presence::Here).then_some(rank.here_since_ns)
    }
}

impl Incidents {
    /// Takes up the incidents that an earlier process left.
    pub(crate) fn restore(
        now: Now,
        horizons: Horizons,
        (records, mut ids): (Vec<IncidentRecord>, Ids),
        jobs: &Jobs,
        captures: &Captures,
    ) -> Self {
        let mut machine = incident::Incidents::new(horizons);
        for record in records {
            ids.seen(&record.id);
            let attempt = jobs.get(record.serial);
            let step = attempt.map_or(0, |of| incident::Attempt::step(of, record.growth.rank));
            // One whose capture was cut short waits for it.
            let is_under_way = |capture: &&CaptureState| {
                capture.record.serial == record.serial && !capture.record.is_closed()
            };
            let under_way = captures.iter().find(is_under_way);
            let under_way = under_way.map(|capture| capture.record.id.clone());
            let holder = attempt.map(|of| incident::Attempt::holder(of, record.growth.rank));
            machine.restore(now, record, holder.unwrap_or_default(), step, under_way);
        }
        Self::new(ids, machine)
    }

    fn new(ids: Ids, machine: incident::Incidents) -> Self {
        Self {
            ids,
            machine,
            decided: BTreeMap::new(),
            scanned_ns: 0,
            #[cfg(test)]
            scans: Default::default(),
        }
    }

    pub(crate) fn get(&self, id: &str) -> Option<&Tracked> {
        self.machine.get(id)
    }

    /// All incidents, in order of age.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Tracked> + Clone {
        #[cfg(test)]
        self.scans.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.machine.iter()
    }

    pub(crate) fn count(&self) -> usize {
        self.machine.len()
    }

    /// The open incidents of an attempt, oldest first.
    pub(crate) fn open_of(&self, serial: u32) -> impl DoubleEndedIterator<Item = &Incident> {
        self.machine.open_of(serial).map(Tracked::incident)
    }

    /// Has the attempt no incident that is open, or was until nothing was heard of it any more?
    pub(crate) fn is_healthy(&self, serial: u32) -> bool {
        !self.machine.of(serial).any(|of| of.incident().lasted())
    }

    /// Ranks of this attempt whose deaths are not reported yet.
    pub(crate) fn unsettled_ranks(&self, serial: u32) -> BTreeSet<u32> {
        self.machine.unsettled_ranks(serial).collect()
    }

    /// The captures that open incidents need.
    pub(crate) fn captures_in_use(&self) -> BTreeSet<String> {
        self.machine.iter().flat_map(Tracked::captures).map(ToString::to_string).collect()
    }

    /// Handles a finding of an attempt's detector.
    pub(crate) fn found(
        &mut self,
        context: &mut Context,
        serial: u32,
        finding: Finding,
        jobs: &Jobs,
    ) {
        let Some(attempt) = jobs.get(serial) else { return };
        let ids = &mut self.ids;
        self.machine
            .found(context.now, attempt, finding, || ids.next(context.now.wall_ns, Kind::Incident));
        self.carry_out(context, None);
    }

    /// Reviews an attempt after all its findings were handed over.
    pub(crate) fn review(&mut self, context: &mut Context, serial: u32, jobs: &Jobs) {
        let Some(attempt) = jobs.get(serial) else { return };
        let ids = &mut self.ids;
        self.machine.review(context.now, attempt, || ids.next(context.now.wall_ns, Kind::Incident));
        self.carry_out(context, None);
    }

    /// A job has one attempt more. A late agent may have announced an old one.
    pub(crate) fn attempt_begun(&mut self, context: &mut Context, job: &str, jobs: &Jobs) {
        let Some(current) = jobs.current(job).map(|attempt| attempt.record.serial) else { return };
        let older = jobs.serials(job).iter().copied().take_while(|serial| *serial != current);
        let own = jobs.own(job);
        let replaced = older.filter(|older| jobs.is_replaced(&own, *older, current));
        self.machine.attempt_begun(context.now, &replaced.collect::<Vec<_>>());
        self.carry_out(context, None);
    }

    /// Reviews attempts: ranks of a newer one may have come, and ranks of an older one gone.
    fn review_attempts(&mut self, context: &mut Context, jobs: &Jobs) {
        let open = self.iter().map(Tracked::incident).filter(|incident| incident.is_open());
        let failed = open.filter(|incident| incident.failure.is_some());
        let failed: BTreeSet<String> = failed.map(|incident| incident.job.clone()).collect();
        failed.iter().for_each(|job| self.attempt_begun(context, job, jobs));
    }

    /// A rank died, or could not get memory.
    pub(crate) fn failed(
        &mut self,
        context: &mut Context,
        serial: u32,
        failure: Failure,
        jobs: &Jobs,
    ) {
        let Some(attempt) = jobs.get(serial) else { return };
        let ids = &mut self.ids;
        self.machine.failed(context.now, attempt, failure, || {
            ids.next(context.now.wall_ns, Kind::Incident)
        });
        self.carry_out(context, None);
    }

    /// Handles the end of a rank's process.
    pub(crate) fn rank_ended(
        &mut self,
        context: &mut Context,
        serial: u32,
        rank: u32,
        end: End,
        jobs: &Jobs,
    ) {
        let Some(attempt) = jobs.get(serial) else { return };
        self.machine.rank_ended(context.now, attempt, rank, end);
        self.carry_out(context, None);
    }

    /// Handles the end of an attempt.
    pub(crate) fn attempt_ended(&mut self, context: &mut Context, serial: u32, jobs: &Jobs) {
        let Some(attempt) = jobs.get(serial) else { return };
        self.machine.attempt_ended(context.now, attempt);
        self.carry_out(context, None);
    }

    /// An attempt that had ended goes on.
    pub(crate) fn attempt_resumed(&mut self, context: &mut Context, serial: u32, jobs: &Jobs) {
        let Some(attempt) = jobs.get(serial) else { return };
        self.machine.attempt_goes_on(context.now, attempt);
        self.carry_out(context, None);
    }

    /// Time has passed; agents report each `interval_ns`.
    pub(crate) fn tick(
        &mut self,
        context: &mut Context,
        captures: &Captures,
        jobs: &Jobs,
        interval_ns: u64,
    ) {
        self.review_attempts(context, jobs);
        self.settle(context.now, jobs);
        self.scan_progress(context.now, jobs, interval_ns);
        self.machine.tick(context.now);
        self.carry_out(context, Some((captures, jobs)));
    }

    /// Reports deaths of which it is known by now what became of the other ranks.
    fn settle(&mut self, now: Now, jobs: &Jobs) {
        for attempt in self.machine.unsettled().into_iter().filter_map(|serial| jobs.get(serial)) {
            let ids = &mut self.ids;
            self.machine.settle(now, attempt, || ids.next(now.wall_ns, Kind::Incident));
        }
    }

    /// Scans the attempts for standstills, for the ends of known ones, and for those that are not
    /// heard any more.
    fn scan_progress(&mut self, now: Now, jobs: &Jobs, interval_ns: u64) {
        if now.mono_ns.saturating_sub(self.scanned_ns) < SCAN_EVERY_NS {
            return;
        }
        self.scanned_ns = now.mono_ns;
        let heard_ns = |of: &Attempt| of.ranks.values().map(|rank| rank.reported_ns).max();
        let quiet_ns = |of| now.mono_ns.saturating_sub(heard_ns(of).unwrap_or(0));
        let running = |serial| jobs.get(serial).filter(|of| !of.has_ended());
        self.machine.scan_heard(now, |serial| running(serial).map(|of| (of, quiet_ns(of))));
        let standing: BTreeSet<u32> = self.machine.standing().collect();
        for attempt in jobs.attempts().filter(|attempt| !attempt.has_ended()) {
            let is_open = standing.contains(&attempt.record.serial);
            if is_open || attempt.record.pauses.is_pause(now.mono_ns) {
                let ranks = Watch::new(jobs, attempt, now.mono_ns, interval_ns).ranks(attempt);
                let ids = &mut self.ids;
                let name = || ids.next(now.wall_ns, Kind::Incident);
                self.machine.scan_progress(now, attempt, &ranks, name);
            }
        }
    }

    /// The answer to a request for a capture.
    pub(crate) fn capture_answered(&mut self, now: Now, id: &str, answer: Result<String, Refusal>) {
        if let Err(refusal) = &answer {
            tracing::debug!(incident = %id, "no capture yet: {refusal}");
        }
        self.machine.capture_answered(now, id, answer);
    }

    /// Handles the close of a capture: the incidents that wait for it are diagnosed.
    pub(crate) fn capture_closed(
        &mut self,
        context: &mut Context,
        closed: &CaptureState,
        captures: &Captures,
        jobs: &Jobs,
    ) {
        let CaptureRecord { serial, id, reason, .. } = &closed.record;
        self.machine.capture_closed(*serial, id, reason);
        self.carry_out(context, Some((captures, jobs)));
    }

    /// Takes the result of comparing a capture's snapshots.
    pub(crate) fn diagnosed(
        &mut self,
        context: &mut Context,
        id: &str,
        capture: &str,
        result: Result<Box<Diagnosis>, NotCompared>,
        captures: &Captures,
        jobs: &Jobs,
    ) {
        if let Err(why) = &result {
            tracing::warn!(incident = %id, "capture {capture} could not be compared: {why}");
        }
        self.machine.diagnosed(context.now, id, capture, result);
        self.carry_out(context, Some((captures, jobs)));
    }

    /// Carries out a request of a person about an incident. It is answered when it is stored.
    pub(crate) fn change_thread(
        &mut self,
        context: &mut Context,
        (id, who): (&str, &str),
        request: &ThreadRequest,
        reply: ThreadReply,
    ) {
        let changed = self.machine.change_thread(context.now, id, who, request);
        self.carry_out(context, None);
        let answer = Box::new(move |written: memtape_store::Result<()>| {
            // The client may have gone.
            let _ = reply.send(match changed {
                Ok(()) => written.map_err(ThreadNotChanged::NotStored),
                Err(why) => Err(why.into()),
            });
        });
        // Behind the incident's own record.
        context.push(Effect::TryWrite(Changes::default(), answer));
    }

    /// Notes a decision about a restart; true when it is to be recorded.
    pub(crate) fn is_news(&mut self, id: &str, decision: &Decision) -> bool {
        let earlier = self.decided.insert(id.to_string(), decision.clone());
        earlier.is_none_or(|earlier| !decision.repeats(&earlier))
    }

    /// Postpones the consideration of an incident, which is not possible yet.
    pub(crate) fn consider_again(&mut self, id: &str) {
        self.machine.consider_again(id);
    }

    /// The state of an incident at `updated_wall_ns` is stored.
    pub(crate) fn stored(&mut self, id: &str, updated_wall_ns: i64) {
        self.machine.stored(id, updated_wall_ns);
    }

    /// Deletes the incidents of an attempt.
    pub(crate) fn forget_attempt(&mut self, context: &mut Context, serial: u32) {
        self.machine.forget_attempt(serial);
        self.carry_out(context, None);
    }

    /// Hands the machine's effects to the loop. Captures are compared where they are given.
    fn carry_out(&mut self, context: &mut Context, known: Option<(&Captures, &Jobs)>) {
        while let Some(effect) = self.machine.poll() {
            match effect {
                incident::Effect::Store { id, change } => self.store(context, &id, change),
                incident::Effect::Forget { incident } => {
                    self.decided.remove(&incident.id);
                    let mut changes = Changes::default();
                    changes.delete(&*incident);
                    context.write(changes);
                }
                incident::Effect::RequestCapture { id, serial, reason } => {
                    let asker = Asker::Incident(id);
                    context.push(Effect::RequestCapture { serial, reason, step: None, asker });
                }
                incident::Effect::Diagnose { id, capture } => {
                    match known.and_then(|known| self.comparison(&id, &capture, known)) {
                        Some(comparison) => {
                            context.push(Effect::Start(Work::Compare(Box::new(comparison))));
                        }
                        None => {
                            let why = "the capture is no longer stored".to_string();
                            let result = Err(NotCompared::Failed { why });
                            self.machine.diagnosed(context.now, &id, &capture, result);
                        }
                    }
                }
                incident::Effect::ConsiderRestart { id } => {
                    context.push(Effect::ConsiderRestart { incident: id });
                }
                incident::Effect::Raised { id, urgency } => {
                    tracing::warn!(incident = %id, "{}", urgency.as_str());
                }
                incident::Effect::Lost => context.lose(Loss::Forgotten),
            }
        }
    }

    /// Stores an incident as it is; the loop gets a report when it is written.
    fn store(&self, context: &mut Context, id: &str, change: Change) {
        let Some(incident) = self.machine.get(id).map(Tracked::incident) else { return };
        let job = &incident.job;
        match change {
            Change::Opened => {
                context.count(Count::Incidents);
                tracing::warn!(incident = %id, ?job, "{}", incident.sentence());
            }
            Change::Diagnosed => {
                let class = incident.class().as_str();
                tracing::warn!(incident = %id, ?job, class, "{}", incident.sentence());
            }
            Change::Reopened => tracing::info!(incident = %id, ?job, "incident is open again"),
            Change::Closed => {
                let why = incident.closed.map(|closed| closed.reason.to_string());
                let why = why.unwrap_or_default();
                tracing::info!(incident = %id, ?job, "incident is closed: {why}");
            }
            Change::Updated => {}
        }
        let changes = Changes::of(incident);
        let (incident, updated_wall_ns) = (id.to_string(), incident.updated_wall_ns);
        context.write_then(changes, After::TellStored { incident, updated_wall_ns });
    }

    fn comparison(
        &self,
        id: &str,
        capture: &str,
        (captures, jobs): (&Captures, &Jobs),
    ) -> Option<Comparison> {
        let incident = self.machine.get(id)?.incident();
        let closed = captures.get(capture)?;
        let growth = incident.growth;
        let steps = (closed.record.step, closed.record.before_step);
        let attempt = jobs.get(incident.serial);
        let context = match (attempt, &incident.failure) {
            (Some(attempt), None) if growth.is_standstill() => memtape_core::diagnosis::Context {
                fates: incident::Attempt::fates(attempt),
                ..Default::default()
            },
            (Some(attempt), None) => growth_context::of_growth(attempt, &growth, steps),
            (Some(attempt), Some(failure)) => memtape_core::diagnosis::Context {
                request_failed: failure.kind == FailureKind::OutOfMemory,
                fates: incident::Attempt::fates(attempt),
                known_growth: self.machine.growth_before(incident, attempt),
                neighbours: neighbours(attempt, failure),
                ..Default::default()
            },
            (None, _) => Default::default(),
        };
        Some(Comparison {
            incident: id.to_string(),
            capture: capture.to_string(),
            snapshots: closed.snapshots_to_compare(growth.rank),
            parts: if growth.is_standstill() { closed.parts.clone() } else { Vec::new() },
            growth,
            context,
        })
    }
}

#[cfg(test)]
mod tests;
