//! The coordinator: one loop over one closed set of events.
//!
//! Everything that can happen is an [`Event`]; one `match` hands it to the part of the state that
//! it concerns, then [`Coordinator::settle`] asks core's machines what to do next and does it. No
//! event waits for a disk, a network or another process: those run in tasks of their own and come
//! back as events. The clock is read once per event.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use memtape_core::ids::Ids;
use memtape_core::policy::Policy;
use tokio::sync::mpsc;

use crate::clock::Now;
use crate::config::Config;
use crate::event::Event;
use crate::ingest::admission::Share;
use crate::ingest::agents;
use crate::ingest::wire::Outgoing;
use crate::records::ActionRecord;
use crate::state::captures::CaptureState;
use crate::state::incidents::IncidentState;
use crate::state::jobs::{Cluster, Limits, StreamId};
use crate::state::losses::Counters;
use crate::state::restarts::HeldRestart;
use crate::store::{Changes, Store};
use crate::telemetry::export::Telemetry;
use crate::work::hooks::Hooks;
use crate::work::tasks::Works;

/// Actions remembered; the oldest is forgotten.
pub(crate) const ACTIONS_MAX: usize = 4096;

/// The state of the one loop.
pub(crate) struct Coordinator {
    pub(crate) config: Arc<Config>,
    pub(crate) limits: Limits,
    pub(crate) cluster: Cluster,
    /// By stream: which node it belongs to.
    pub(crate) streams: BTreeMap<StreamId, String>,
    pub(crate) streams_begun: StreamId,
    pub(crate) captures: BTreeMap<String, CaptureState>,
    pub(crate) incidents: BTreeMap<String, IncidentState>,
    pub(crate) actions: VecDeque<ActionRecord>,
    pub(crate) policy: Policy,
    pub(crate) hooks: Hooks,
    /// Restarts that wait for a last picture of the job.
    pub(crate) held: Vec<HeldRestart>,
    pub(crate) works: Works,
    pub(crate) ids: Ids,
    pub(crate) store: Store,
    pub(crate) counters: Arc<Counters>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) events: mpsc::Sender<Event>,
    /// Attempts whose machines may have something to say.
    pub(crate) touched: BTreeSet<u32>,
    /// When room was last made.
    pub(crate) tidied_ns: u64,
    /// When step records were last expired.
    pub(crate) expired_ns: u64,
}

/// Time between two looks for steps that are too old.
const EXPIRE_EVERY_NS: u64 = 3_600_000_000_000;

/// Time between two looks for what there is no room for. Bounds may be passed by what comes in
/// between.
const TIDY_EVERY_NS: u64 = 1_000_000_000;

impl Coordinator {
    /// One event, and all that follows from it at once.
    pub(crate) fn handle(&mut self, now: Now, event: Event) {
        match event {
            Event::Attached { hello, outgoing, reply } => {
                // Nobody waits any more if the connection broke meanwhile; `Gone` then follows.
                let _ = reply.send(self.attach(now, hello, outgoing));
            }
            Event::Said { stream, message, share } => self.said(now, stream, message, share),
            Event::Gone { stream } => self.gone(now, stream),
            Event::UploadBegun { capture, tape_id, reply } => {
                self.upload_begun(&capture, &tape_id, reply);
            }
            Event::BodyFailed { capture, tape_id, why } => {
                self.body_failed(&capture, &tape_id, &why);
            }
            Event::BodyStored { capture, tape_id, bytes, hash, reply } => {
                self.body_stored(now, &capture, &tape_id, (bytes, hash), reply);
            }
            Event::Asked(question) => question(self, now),
            Event::Diagnosed { incident, capture, result } => {
                self.diagnosed(now, &incident, &capture, result);
            }
            Event::Acted { action, outcome, is_failure } => {
                self.acted(&action, outcome, is_failure);
            }
            Event::IncidentStored { incident, updated_wall_ns } => {
                self.incident_stored(&incident, updated_wall_ns);
            }
            Event::Tick => self.tick(now),
        }
        self.settle(now);
    }

    /// Asks the machines of the attempts that were touched what to do next, and does it.
    fn settle(&mut self, now: Now) {
        while let Some(serial) = self.touched.pop_first() {
            self.settle_findings(now, serial);
            self.settle_captures(now, serial);
        }
    }

    fn tick(&mut self, now: Now) {
        for (serial, attempt) in &mut self.cluster.attempts {
            if attempt.captures.poll_timeout().is_some_and(|due_ns| due_ns <= now.mono_ns) {
                attempt.captures.handle_timeout(now.mono_ns);
                self.touched.insert(*serial);
            }
        }
        for attempt in self.cluster.attempts.values_mut().filter(|attempt| attempt.roles_due) {
            agents::tell_roles(attempt);
        }
        self.pull_triggers(now);
        self.want_captures(now);
        self.reconsider_restarts(now);
        if now.mono_ns.saturating_sub(self.tidied_ns) >= TIDY_EVERY_NS {
            self.tidied_ns = now.mono_ns;
            self.make_room(now);
        }
        if now.mono_ns.saturating_sub(self.expired_ns) >= EXPIRE_EVERY_NS {
            self.expired_ns = now.mono_ns;
            let age_ns = i64::try_from(self.config.steps_age_max.as_nanos()).unwrap_or(i64::MAX);
            self.store.expire_steps(now.wall_ns.saturating_sub(age_ns));
        }
    }

    /// Forgets what there is no room for.
    fn make_room(&mut self, now: Now) {
        if let Some(serial) = self.cluster.to_forget() {
            self.forget_attempt(now, serial);
        }
        self.make_room_for_captures(now);
        self.make_room_for_incidents();
        let mut changes = Changes::default();
        while self.actions.len() > ACTIONS_MAX {
            if let Some(oldest) = self.actions.pop_front() {
                changes.delete(&oldest);
            }
        }
        self.write(changes);
    }

    /// Forgets an attempt with all that belongs to it.
    pub(crate) fn forget_attempt(&mut self, now: Now, serial: u32) {
        let Some(attempt) = self.cluster.forget(serial) else { return };
        tracing::info!(job = ?attempt.record.job, "an old attempt is forgotten");
        let record = &attempt.record;
        let last_wall_ns = record
            .ended_wall_ns
            .unwrap_or(i64::MAX - 1)
            .max(attempt.ranks.values().map(|rank| rank.step_wall_ns).max().unwrap_or(0));
        let to_wall_ns = last_wall_ns.min(now.wall_ns);
        self.store.forget_steps(serial, record.first_seen_wall_ns, to_wall_ns);
        let mut changes = Changes::default();
        changes.delete(record);
        for rank in attempt.ranks.values() {
            changes.delete(&rank.record);
        }
        self.write(changes);
        let of_attempt = |id: &String, of: u32| (of == serial).then(|| id.clone());
        let captures: Vec<String> = self
            .captures
            .iter()
            .filter_map(|(id, capture)| of_attempt(id, capture.record.serial))
            .collect();
        for id in captures {
            self.forget_capture(&id);
        }
        let incidents: Vec<String> = self
            .incidents
            .iter()
            .filter_map(|(id, incident)| of_attempt(id, incident.record.serial))
            .collect();
        for id in incidents {
            self.forget_incident(&id);
        }
    }

    /// Writes changes for which nobody waits.
    pub(crate) fn write(&self, changes: Changes) {
        if !changes.is_empty() {
            self.store.write(changes, Box::new(|_| {}));
        }
    }

    /// As [`Self::write`]; whoever sent this has its share of memory back when it is written.
    pub(crate) fn write_with(&self, changes: Changes, share: Share) {
        if !changes.is_empty() {
            self.store.write(changes, Box::new(move |_| drop(share)));
        }
    }

    /// Sends a message to the agent of a node; false when there is none, or it is too slow.
    pub(crate) fn send(&mut self, now: Now, node: &str, message: Outgoing) -> bool {
        let Some(known) = self.cluster.nodes.get(node) else { return false };
        let Some((stream, outgoing)) = &known.stream else { return false };
        if outgoing.try_send(message).is_ok() {
            return true;
        }
        let stream = *stream;
        if !outgoing.is_closed() {
            self.counters.lose(crate::state::losses::Loss::SlowAgent);
            tracing::warn!(node = ?node, "an agent does not read: its stream is closed");
        }
        self.gone(now, stream);
        false
    }
}
