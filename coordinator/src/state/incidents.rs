//! Incidents: growth that was found, from the first alarm to its end.
//!
//! The detector opens one, a capture is asked for, its states are compared, and the incident
//! learns the culprit. Until then it says only what is known. When nothing explains the growth it
//! says that, and another capture is tried while the growth goes on. A coordinator that was
//! restarted finds the same growth again: that is the same incident, not a new one.

use std::collections::{BTreeMap, BTreeSet};

use memtape_core::capture::{Reason, Refusal};
use memtape_core::detector::{Finding, Growth, GrowthKey, Layer, RankState};
use memtape_core::diagnosis::{Class, Diagnosis, first_sentence};
use memtape_core::identity::cut;
use memtape_core::ids::Ids;
use memtape_core::policy::Decision;
use memtape_core::snapshot;

use crate::clock::Now;
use crate::records::{Alternative, Bucket, Frame, IncidentRecord, Remedy, Restart, Suspect, Told};
use crate::state::captures::comparison::Comparison;
use crate::state::captures::{CaptureState, Captures};
use crate::state::counters::{Count, Loss};
use crate::state::effects::{After, Asker, Effect, Effects, Work};
use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::{Attempt, Presence, Rank};
use crate::state::jobs::circumstances;
use crate::store::Changes;

/// Incidents remembered; the oldest closed one is forgotten.
const INCIDENTS_MAX: usize = 4096;

/// Incidents open at once; growth beyond is counted. So many causes are one cause.
const INCIDENTS_OPEN_MAX: usize = 1024;

/// Captures asked for one incident while none explains it, or while it wakes nobody and grows.
/// When it returns they are counted anew.
const TRIES_MAX: u32 = 12;

/// Time between two tries that were refused for a reason that passes.
const RETRY_NS: u64 = 2_000_000_000;

/// Steps after a restart of the coordinator within which the detector must find an open incident's
/// growth again; without it, the growth is over.
const CONFIRM_STEPS: u64 = 4096;

/// Why an incident is closed with its attempt.
pub(crate) const ATTEMPT_OVER: &str = "the attempt is over";

/// How the reason begins for which an incident is closed when its growth is over.
const GROWTH_ENDED: &str = "the growth ended";

/// Frames of a stack that are kept, the innermost.
const STACK_FRAMES_MAX: usize = 48;

/// Bytes of a file name or a sentence that are kept.
const TEXT_BYTES_MAX: usize = 1024;

/// All incidents, by name; names are in order of age.
#[derive(Debug)]
pub(crate) struct Incidents {
    ids: Ids,
    incidents: BTreeMap<String, IncidentState>,
}

/// An incident and what is going on about it. Only [`Incidents`] changes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct IncidentState {
    pub(crate) record: IncidentRecord,
    /// The record as it is, is in the store.
    pub(crate) is_stored: bool,
    /// The capture that will be compared when it is closed.
    pub(crate) waits_for: Option<String>,
    /// When to ask for a capture; none when none is wanted.
    pub(crate) wants_ns: Option<u64>,
    pub(crate) tries: u32,
    /// Open since before a restart, and not found again yet: closed behind this step.
    pub(crate) confirm_by_step: Option<u64>,
    /// When a restart was last considered, and that decision.
    pub(crate) considered_ns: Option<u64>,
    pub(crate) decided: Option<Decision>,
}

impl IncidentState {
    /// One that an earlier process left.
    fn restored(record: IncidentRecord, now: Now, step: u64) -> Self {
        let is_open = record.is_open();
        let is_explained = record.class != Class::Unknown.as_str();
        Self {
            is_stored: true,
            wants_ns: (is_open && !is_explained).then_some(now.mono_ns + RETRY_NS),
            confirm_by_step: is_open.then_some(step + CONFIRM_STEPS),
            record,
            ..Self::default()
        }
    }

    fn reopen(&mut self) {
        self.record.closed_wall_ns = None;
        self.record.closed_why.clear();
    }

    pub(crate) fn class(&self) -> Class {
        Class::from_name(&self.record.class)
    }
}

impl Incidents {
    /// Takes up the incidents that an earlier process left.
    pub(crate) fn restore(
        now: Now,
        records: Vec<IncidentRecord>,
        jobs: &Jobs,
        captures: &Captures,
    ) -> Self {
        let (mut ids, mut incidents) = (Ids::default(), BTreeMap::new());
        for record in records {
            ids.seen(&record.id);
            let attempt = jobs.get(record.serial);
            let rank = attempt.and_then(|attempt| attempt.ranks.get(&record.rank));
            let step = rank.map_or(0, |rank| rank.step).max(record.last_step);
            let mut state = IncidentState::restored(record, now, step);
            // One whose capture was cut short waits for it; one whose capture was closed, but not
            // compared, wants a new one.
            let in_flight = captures.iter().find(|capture| {
                capture.record.serial == state.record.serial && !capture.record.is_closed()
            });
            if let Some(capture) = in_flight
                && state.wants_ns.is_some()
            {
                state.waits_for = Some(capture.record.id.clone());
                state.wants_ns = None;
            }
            incidents.insert(state.record.id.clone(), state);
        }
        Self { ids, incidents }
    }

    pub(crate) fn get(&self, id: &str) -> Option<&IncidentState> {
        self.incidents.get(id)
    }

    /// All incidents, in order of age.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &IncidentState> {
        self.incidents.values()
    }

    pub(crate) fn count(&self) -> usize {
        self.incidents.len()
    }

    fn open(&self) -> impl Iterator<Item = &IncidentState> {
        self.incidents.values().filter(|incident| incident.record.is_open())
    }

    /// The names of those that are open and fit.
    fn open_where(&self, is_it: impl Fn(&IncidentState) -> bool) -> Vec<String> {
        let found = self.open().filter(|incident| is_it(incident));
        found.map(|incident| incident.record.id.clone()).collect()
    }

    /// The captures that open incidents need.
    pub(crate) fn captures_in_use(&self) -> BTreeSet<String> {
        let of = |incident: &IncidentState| {
            [incident.record.capture_id.clone(), incident.waits_for.clone()]
        };
        self.open().flat_map(of).flatten().collect()
    }

    /// One finding of the detector of an attempt.
    pub(crate) fn found(
        &mut self,
        now: Now,
        serial: u32,
        finding: Finding,
        jobs: &Jobs,
        effects: &mut Effects,
    ) {
        let Some(attempt) = jobs.get(serial) else { return };
        let step_time_ns = attempt.detector.step_time_ns();
        match finding {
            Finding::Opened(growth) => self.opened(now, attempt, &growth, effects),
            Finding::Updated(growth) => {
                if let Some(id) = self.open_about(serial, &growth.key()) {
                    self.grew(now, &id, &growth, step_time_ns, effects);
                }
            }
            Finding::Closed { key, at_step } => {
                if let Some(id) = self.open_about(serial, &key) {
                    let why = format!("{GROWTH_ENDED} at step {at_step}");
                    self.close(now, &id, &why, jobs, effects);
                }
            }
        }
    }

    fn open_about(&self, serial: u32, key: &GrowthKey) -> Option<String> {
        let found = self.open().find(|incident| incident.record.is_about(serial, key));
        found.map(|incident| incident.record.id.clone())
    }

    /// The open incident about all ranks for which this one stood. It turns out to be about this
    /// rank alone: the same cause, seen more clearly.
    fn narrowed(&mut self, serial: u32, key: &GrowthKey) -> Option<String> {
        let (id, state) = self.open_with(serial, |known| key.narrows(&known.key()))?;
        state.record.scope = key.scope.as_str().to_string();
        Some(id)
    }

    /// The open incident that this growth goes on with.
    fn explained(&mut self, serial: u32, growth: &Growth) -> Option<String> {
        let goes_on = |known: &Growth| growth.goes_on_with(&known.key(), known.bytes_per_step);
        let (id, state) = self.open_with(serial, goes_on)?;
        (state.record.rank, state.record.device) = (growth.rank, growth.device);
        state.record.layer = growth.layer.as_str().to_string();
        state.record.scope = growth.scope.as_str().to_string();
        Some(id)
    }

    /// The first open incident of a job about such a growth.
    fn open_with(
        &mut self,
        serial: u32,
        is_it: impl Fn(&Growth) -> bool,
    ) -> Option<(String, &mut IncidentState)> {
        let is_meant = |record: &IncidentRecord| {
            record.serial == serial && record.is_open() && is_it(&record.growth())
        };
        let found = self.incidents.iter_mut().find(|(_, state)| is_meant(&state.record))?;
        Some((found.0.clone(), found.1))
    }

    /// The closed incident that this growth goes on with. One that was closed with its attempt: a
    /// node that comes late brings ranks of it, so it is not over, or is told again to its end.
    /// And one that had given back what it had grown by, and grows again.
    fn reopened(&mut self, serial: u32, growth: &Growth) -> Option<String> {
        let key = growth.key();
        let goes_on = |record: &IncidentRecord| {
            record.closed_why == ATTEMPT_OVER
                || (growth.returns > 0 && record.closed_why.starts_with(GROWTH_ENDED))
        };
        // Names are in order of age: the newest.
        let (id, state) = self
            .incidents
            .iter_mut()
            .rev()
            .find(|(_, state)| state.record.is_about(serial, &key) && goes_on(&state.record))?;
        state.reopen();
        Some(id.clone())
    }

    fn opened(&mut self, now: Now, attempt: &Attempt, growth: &Growth, effects: &mut Effects) {
        let (serial, key) = (attempt.record.serial, growth.key());
        let step_time_ns = attempt.detector.step_time_ns();
        let known = self.open_about(serial, &key);
        if let Some(id) = known.or_else(|| self.narrowed(serial, &key)) {
            // Found again after a restart. What was known of its begin stays.
            self.grew(now, &id, growth, step_time_ns, effects);
            return;
        }
        // After a restart of everything, agents send again what the tapes of an attempt hold that
        // is over: what grew there was found while it ran, or is nobody's business any more.
        if attempt.has_ended() {
            return;
        }
        if let Some(id) = self.reopened(serial, growth) {
            if let Some(state) = self.incidents.get_mut(&id).filter(|_| growth.returns > 0) {
                // That it comes back says more than the first picture did.
                (state.wants_ns, state.tries) = (Some(now.mono_ns), 0);
            }
            self.grew(now, &id, growth, step_time_ns, effects);
            return;
        }
        if let Some(id) = self.explained(serial, growth) {
            self.grew(now, &id, growth, step_time_ns, effects);
            return;
        }
        // A rank whose agent is away is silent for that reason, which its state tells.
        let is_here = |rank: &Rank| rank.presence == Presence::Here;
        if growth.layer == Layer::Progress && !attempt.ranks.get(&growth.rank).is_some_and(is_here)
        {
            return;
        }
        if self.open().count() >= INCIDENTS_OPEN_MAX {
            effects.lose(Loss::Forgotten);
            return;
        }
        let id = self.ids.next(now.wall_ns, "inc");
        let mut record = IncidentRecord {
            id: id.clone(),
            serial,
            job: attempt.record.job.clone(),
            attempt: attempt.record.attempt,
            rank: growth.rank,
            device: growth.device,
            scope: growth.scope.as_str().to_string(),
            layer: growth.layer.as_str().to_string(),
            class: Class::Unknown.as_str().to_string(),
            sentence: first_sentence(growth),
            onset_step: growth.onset_step,
            detected_step: growth.detected_step,
            opened_wall_ns: now.wall_ns,
            ..IncidentRecord::default()
        };
        measure(&mut record, growth, step_time_ns, now);
        tracing::warn!(incident = %id, job = ?record.job, "{}", record.sentence);
        effects.count(Count::Incidents);
        let wants_ns = Some(now.mono_ns);
        let state = IncidentState { record, wants_ns, ..IncidentState::default() };
        self.incidents.insert(id.clone(), state);
        self.store(&id, effects);
        self.request_captures(now, effects);
    }

    fn grew(
        &mut self,
        now: Now,
        id: &str,
        growth: &Growth,
        step_time_ns: Option<u64>,
        effects: &mut Effects,
    ) {
        let Some(state) = self.incidents.get_mut(id) else { return };
        state.confirm_by_step = None;
        measure(&mut state.record, growth, step_time_ns, now);
        // What is unknown, or wakes nobody, is looked at again when it has grown.
        let is_quiet = !state.record.told.pages && state.record.told.told_in.is_empty();
        if state.class() == Class::Unknown || is_quiet {
            if state.record.capture_id.is_none() {
                state.record.sentence = first_sentence(growth);
            }
            let is_busy = state.waits_for.is_some() || state.wants_ns.is_some();
            if !is_busy && state.tries < TRIES_MAX {
                state.wants_ns = Some(now.mono_ns);
            }
        }
        state.considered_ns = None;
        self.store(id, effects);
    }

    /// Incidents of before a restart that the detector did not find again are over.
    pub(crate) fn close_unconfirmed(
        &mut self,
        now: Now,
        serial: u32,
        jobs: &Jobs,
        effects: &mut Effects,
    ) {
        let Some(attempt) = jobs.get(serial) else { return };
        let is_over = |incident: &IncidentState| {
            let rank = incident.record.rank;
            let view = attempt.detector.state(rank);
            incident.record.serial == serial
                && view.state == RankState::Healthy
                && incident.confirm_by_step.is_some_and(|step| view.last_step > step)
        };
        for id in self.open_where(is_over) {
            self.close(now, &id, "the growth was not found again after a restart", jobs, effects);
        }
    }

    /// The only place where an incident ends.
    fn close(&mut self, now: Now, id: &str, why: &str, jobs: &Jobs, effects: &mut Effects) {
        let Some(state) = self.incidents.get_mut(id) else { return };
        state.record.closed_wall_ns = Some(now.wall_ns);
        state.record.updated_wall_ns = now.wall_ns;
        state.record.closed_why = why.to_string();
        if !jobs.get(state.record.serial).is_some_and(Attempt::has_ended) {
            // A capture would show a time without the growth.
            state.wants_ns = None;
        }
        tracing::info!(incident = %id, job = ?state.record.job, "incident is closed: {why}");
        self.store(id, effects);
        self.untold(now, id);
    }

    /// An incident that woke somebody is over: others that were quiet because of it, and go on,
    /// speak for themselves.
    fn untold(&mut self, now: Now, id: &str) {
        let is_of =
            |state: &&mut IncidentState| state.record.is_open() && state.record.told.told_in == id;
        for state in self.incidents.values_mut().filter(is_of) {
            state.record.told.told_in.clear();
            (state.wants_ns, state.tries) = (Some(now.mono_ns), 0);
        }
    }

    /// An attempt has ended: so has its growth.
    pub(crate) fn attempt_ended(
        &mut self,
        now: Now,
        serial: u32,
        jobs: &Jobs,
        effects: &mut Effects,
    ) {
        for id in self.open_where(|incident| incident.record.serial == serial) {
            self.close(now, &id, ATTEMPT_OVER, jobs, effects);
        }
    }

    /// An attempt that counted as over goes on: what was closed with it is open again, and closes
    /// when its growth is not found again.
    pub(crate) fn attempt_resumed(&mut self, serial: u32, jobs: &Jobs, effects: &mut Effects) {
        let Some(attempt) = jobs.get(serial) else { return };
        let is_of = |incident: &&mut IncidentState| {
            incident.record.serial == serial && incident.record.closed_why == ATTEMPT_OVER
        };
        let mut reopened = Vec::new();
        for state in self.incidents.values_mut().filter(is_of) {
            state.reopen();
            let step = attempt.detector.state(state.record.rank).last_step;
            state.confirm_by_step = Some(step + CONFIRM_STEPS);
            reopened.push(state.record.id.clone());
        }
        for id in reopened {
            tracing::info!(incident = %id, "incident is open again: its attempt goes on");
            self.store(&id, effects);
        }
    }

    /// Asks for the captures that incidents want.
    pub(crate) fn request_captures(&mut self, now: Now, effects: &mut Effects) {
        for (id, incident) in &mut self.incidents {
            if incident.wants_ns.take_if(|due_ns| *due_ns <= now.mono_ns).is_some() {
                let (serial, rank) = (incident.record.serial, incident.record.rank);
                let (reason, asker) = (Reason::Growth { rank }, Asker::Incident(id.clone()));
                effects.push(Effect::RequestCapture { serial, reason, step: None, asker });
            }
        }
    }

    /// The answer to a request for a capture.
    pub(crate) fn capture_answered(&mut self, now: Now, id: &str, answer: Result<String, Refusal>) {
        let Some(state) = self.incidents.get_mut(id) else { return };
        match answer {
            Ok(capture) => {
                state.tries += 1;
                state.waits_for = Some(capture);
            }
            Err(Refusal::TooSoon { wait_ns } | Refusal::OverBudget { wait_ns, .. }) => {
                state.wants_ns = Some(now.mono_ns + wait_ns);
            }
            Err(refusal) => {
                tracing::debug!(incident = %id, "no capture yet: {refusal}");
                state.wants_ns = Some(now.mono_ns + RETRY_NS);
            }
        }
    }

    /// A capture is closed: the incidents that wait for it are diagnosed.
    pub(crate) fn capture_closed(
        &self,
        serial: u32,
        closed: &CaptureState,
        jobs: &Jobs,
        effects: &mut Effects,
    ) {
        let capture = &closed.record.id;
        let waits = |incident: &&IncidentState| {
            incident.record.serial == serial && incident.waits_for.as_ref() == Some(capture)
        };
        for incident in self.incidents.values().filter(waits) {
            let growth = incident.record.growth();
            let steps = (closed.record.step, closed.record.before_step);
            let circumstances = jobs.get(serial).map_or_else(Default::default, |attempt| {
                circumstances::around(attempt, &growth, steps)
            });
            effects.push(Effect::Start(Work::Compare(Box::new(Comparison {
                incident: incident.record.id.clone(),
                capture: capture.clone(),
                bodies: closed.bodies_to_compare(incident.record.rank),
                growth,
                circumstances,
            }))));
        }
    }

    /// The states of a capture were compared.
    pub(crate) fn diagnosed(
        &mut self,
        now: Now,
        id: &str,
        capture: &str,
        result: Result<Box<Diagnosis>, String>,
        effects: &mut Effects,
    ) {
        let told_in = result.as_ref().ok().and_then(|diagnosis| self.told_in(id, diagnosis));
        let Some(state) = self.incidents.get_mut(id) else { return };
        state.waits_for = None;
        let record = &mut state.record;
        record.updated_wall_ns = now.wall_ns;
        record.capture_id = Some(capture.to_string());
        match result {
            Ok(diagnosis) => {
                tell(record, *diagnosis);
                if let Some(other) = told_in {
                    record.evidence.push(format!("the same cause was told in {other}"));
                    (record.told.pages, record.told.told_in) = (false, other);
                }
                // What is over wakes nobody any more, unless it was the job that ended.
                record.told.pages &= record.is_open() || record.closed_why == ATTEMPT_OVER;
            }
            Err(why) => {
                let line = format!("capture {capture} could not be compared: {why}");
                tracing::warn!(incident = %id, "{line}");
                record.against = vec![line];
            }
        }
        let (job, class) = (&record.job, &record.class);
        tracing::warn!(incident = %id, job = ?job, class = %class, "{}", record.sentence);
        let is_unknown = record.class == Class::Unknown.as_str();
        if is_unknown && record.is_open() && state.tries < 2 {
            // Perhaps the tapes had no earlier step yet to compare with.
            state.wants_ns = Some(now.mono_ns + RETRY_NS);
        }
        state.considered_ns = None;
        self.store(id, effects);
        effects.push(Effect::ConsiderRestart { incident: id.to_string() });
    }

    /// The open incident of the same job that woke somebody for the same cause.
    fn told_in(&self, id: &str, diagnosis: &Diagnosis) -> Option<String> {
        let serial = self.incidents.get(id)?.record.serial;
        let is_same = |(other, state): &(&String, &IncidentState)| {
            let record = &state.record;
            let culprit = record.culprit.as_ref().map(|frame| (frame.file.as_str(), frame.line));
            other.as_str() != id
                && record.serial == serial
                && record.is_open()
                && record.told.pages
                && diagnosis.is_told_by(Class::from_name(&record.class), culprit)
        };
        diagnosis.pages().then(|| self.incidents.iter().find(is_same))?.map(|(id, _)| id.clone())
    }

    /// Stores an incident as it is; the loop is told when it is written.
    fn store(&mut self, id: &str, effects: &mut Effects) {
        let Some(state) = self.incidents.get_mut(id) else { return };
        state.is_stored = false;
        let mut changes = Changes::default();
        changes.put(&state.record);
        let updated_wall_ns = state.record.updated_wall_ns;
        effects
            .write_then(changes, After::TellStored { incident: id.to_string(), updated_wall_ns });
    }

    /// The incidents whose restart is to be considered again: those that are open and explained,
    /// and were not considered since this time.
    pub(crate) fn to_consider(&self, before_ns: u64) -> Vec<String> {
        self.open_where(|incident| {
            let considered_ns = incident.considered_ns;
            incident.class() != Class::Unknown
                && considered_ns.is_none_or(|at_ns| at_ns <= before_ns)
        })
    }

    /// A restart was considered for an incident; true unless the decision repeats the last one.
    pub(crate) fn considered(&mut self, now: Now, id: &str, decision: &Decision) -> bool {
        let Some(state) = self.incidents.get_mut(id) else { return false };
        state.considered_ns = Some(now.mono_ns);
        if state.decided.as_ref().is_some_and(|earlier| decision.repeats(earlier)) {
            return false;
        }
        state.decided = Some(decision.clone());
        true
    }

    /// An incident, as it was at this moment, is stored.
    pub(crate) fn stored(&mut self, id: &str, updated_wall_ns: i64) {
        if let Some(state) = self.incidents.get_mut(id)
            && state.record.updated_wall_ns == updated_wall_ns
        {
            state.is_stored = true;
        }
    }

    /// Deletes the oldest closed incident when there are too many.
    pub(crate) fn make_room(&mut self, effects: &mut Effects) {
        if self.incidents.len() <= INCIDENTS_MAX {
            return;
        }
        let oldest = self.incidents.values().find(|incident| !incident.record.is_open());
        if let Some(id) = oldest.map(|incident| incident.record.id.clone()) {
            effects.lose(Loss::Forgotten);
            self.forget(&id, effects);
        }
    }

    /// Deletes the incidents of an attempt.
    pub(crate) fn forget_attempt(&mut self, serial: u32, effects: &mut Effects) {
        let of_attempt = self.incidents.values().filter(|known| known.record.serial == serial);
        let ids: Vec<String> = of_attempt.map(|known| known.record.id.clone()).collect();
        ids.iter().for_each(|id| self.forget(id, effects));
    }

    fn forget(&mut self, id: &str, effects: &mut Effects) {
        let Some(state) = self.incidents.remove(id) else { return };
        let mut changes = Changes::default();
        changes.delete(&state.record);
        effects.write(changes);
    }
}

/// Brings an incident's figures up to date.
fn measure(record: &mut IncidentRecord, growth: &Growth, step_time_ns: Option<u64>, now: Now) {
    record.last_step = growth.last_step;
    record.bytes_per_step = growth.bytes_per_step;
    record.grown_bytes = growth.grown_bytes;
    record.peers = growth.peers;
    record.ranks = growth.ranks;
    record.returns = record.returns.max(growth.returns);
    record.give_backs = record.give_backs.max(growth.give_backs);
    record.steps_to_oom = growth.steps_to_oom;
    record.steps_to_oom_p10 = growth.forecast.map(|forecast| forecast.p10);
    record.steps_to_oom_p90 = growth.forecast.map(|forecast| forecast.p90);
    record.seconds_to_oom = growth
        .steps_to_oom
        .zip(step_time_ns)
        .map(|(steps, step_ns)| steps.saturating_mul(step_ns) / 1_000_000_000);
    record.updated_wall_ns = now.wall_ns;
}

/// Writes a diagnosis into an incident. The rate and the growth stay those of the detector.
fn tell(record: &mut IncidentRecord, diagnosis: Diagnosis) {
    record.told = told(&diagnosis);
    record.class = diagnosis.class.as_str().to_string();
    record.sentence = cut(&diagnosis.sentence, TEXT_BYTES_MAX).to_string();
    record.culprit = diagnosis.culprit.as_ref().map(frame);
    record.stack = stack(&diagnosis.stack);
    record.explained_ppm = diagnosis.explained_ppm;
    record.generations = diagnosis.generations;
    record.evidence = lines(diagnosis.evidence);
    record.against = lines(diagnosis.against);
    record.advice = cut(&diagnosis.advice, TEXT_BYTES_MAX).to_string();
    let suspects = diagnosis.suspects.iter().map(|suspect| Suspect {
        frame: frame(&suspect.frame),
        stack: stack(&suspect.stack),
        stacks: suspect.stacks,
        grown_bytes: suspect.grown_bytes,
        peer_bytes: suspect.peer_bytes,
        blocks: suspect.blocks,
        generations: suspect.generations,
    });
    record.suspects = suspects.collect();
}

/// What it says beside class, culprit and evidence.
fn told(diagnosis: &Diagnosis) -> Told {
    let (remedy, restart) = (&diagnosis.remedy, &diagnosis.restart);
    let others = diagnosis.alternatives.iter().skip(1);
    let births = diagnosis.histogram.buckets.iter();
    Told {
        confidence_ppm: diagnosis.confidence_ppm,
        pages: diagnosis.pages(),
        told_in: String::new(),
        explained_bytes: diagnosis.explained_bytes,
        unexplained_bytes: diagnosis.unexplained_bytes,
        remedy: Remedy {
            cause: remedy.cause.as_str().to_string(),
            is_guess: remedy.is_guess,
            saves_bytes: remedy.saves_bytes,
        },
        restart: Restart {
            helps: restart.answer.helps(),
            answer: restart.answer,
            gives_back_bytes: restart.gives_back_bytes,
            lasts_steps: restart.lasts_steps,
            ends_after_steps: restart.ends_after_steps,
            why: restart.to_string(),
        },
        alternatives: others
            .map(|other| Alternative {
                class: other.class.as_str().to_string(),
                standing: other.standing.as_str().to_string(),
                evidence: lines(other.evidence.clone()),
                against: lines(other.against.clone()),
            })
            .collect(),
        course: diagnosis.histogram.course.as_str().to_string(),
        births: births
            .map(|bucket| Bucket {
                first_step: bucket.first_step,
                last_step: bucket.last_step,
                bytes: bucket.bytes,
                blocks: bucket.blocks,
            })
            .collect(),
    }
}

fn frame(frame: &snapshot::Frame) -> Frame {
    let mut kept = Frame::from(frame);
    kept.file = cut(&kept.file, TEXT_BYTES_MAX).to_string();
    kept
}

fn stack(frames: &[snapshot::Frame]) -> Vec<Frame> {
    frames.iter().take(STACK_FRAMES_MAX).map(frame).collect()
}

fn lines(lines: Vec<String>) -> Vec<String> {
    lines.into_iter().map(|line| cut(&line, TEXT_BYTES_MAX).to_string()).collect()
}
