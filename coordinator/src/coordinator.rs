//! The coordinator: one loop over one closed set of events.
//!
//! Everything that can happen is an [`Event`]. One `match` hands it to the part of the state that
//! it concerns. A part changes only itself and asks for other work with effects, which are carried
//! out here. No event waits for a disk, a network or another process: those run in tasks of their
//! own and come back as events. The clock is read once per event.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use memtape_core::capture::Reason;
use memtape_core::identity::owner::HolderKey;
use memtape_core::incident::Attempt as _;
use memtape_core::placement::Proof;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::access::audit::{self, Audit};
use crate::config::Config;
use crate::ingest::event::Event;
use crate::ingest::streams::{StreamId, Streams, ToAgent, Unsent};
use crate::ingest::wire::{self, Outgoing};
use crate::state::actions::Actions;
use crate::state::captures::{CaptureState, Captures};
use crate::state::counters::{Counters, Loss};
use crate::state::effects::{
    After, Asker, Batch, CaptureRefused, CaptureReply, Context, Effect, Share, Work, WorkDone,
};
use crate::state::incidents::Incidents;
use crate::state::jobs::Jobs;
use crate::state::jobs::agents::AgentRefused;
use crate::state::messages::{Hello, Incoming};
use crate::state::restored::Restored;
use crate::state::view::View;
use crate::telemetry::export::Telemetry;
use memtape_disk::clock::{self, Now};
use memtape_store::Done;
use memtape_store::{Changes, Store};

/// Queue of work from the loop. Bounded by its sources: a comparison for each open incident, a
/// target for each restart that the policy allows.
pub(crate) type Works = mpsc::UnboundedSender<Work>;

/// The coordinator's state, and the handles by which the loop carries out effects.
pub(crate) struct Coordinator {
    jobs: Jobs,
    captures: Captures,
    incidents: Incidents,
    actions: Actions,
    streams: Streams,
    context: Context,
    config: Arc<Config>,
    shared: Shared,
    works: Works,
    /// Time of the last deletion of old data for space.
    tidied_ns: u64,
}

/// Handles that the loop shares with the servers and worker tasks.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) counters: Arc<Counters>,
    pub(crate) audit: Audit,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) events: mpsc::Sender<Event>,
}

/// Interval of deleting what exceeds a bound. Data that arrives in between may exceed bounds
/// for that long.
const TIDY_EVERY_NS: u64 = 1_000_000_000;

/// Time after which an agent resends records that did not fit.
const NO_ROOM_WAIT: Duration = Duration::from_secs(5);

/// After this time an agent whose tapes are not known connects again.
const COME_AGAIN_WAIT: Duration = Duration::from_secs(1);

impl Coordinator {
    /// Restores a coordinator from the store of an earlier one.
    pub(crate) fn new(
        now: Now,
        config: Arc<Config>,
        restored: Restored,
        shared: Shared,
        works: Works,
    ) -> Self {
        let Restored { jobs, captures, incidents, actions, findings } = restored;
        let mut coordinator = Self {
            jobs,
            captures,
            incidents,
            actions,
            streams: Streams::default(),
            context: Context::new(now),
            config,
            shared,
            works,
            tidied_ns: 0,
        };
        for (serial, finding) in findings {
            let Self { incidents, jobs, context, .. } = &mut coordinator;
            incidents.found(context, serial, finding, jobs);
            coordinator.carry_out();
        }
        // A death may have been written down and its incident not.
        for (serial, failure) in coordinator.jobs.deaths() {
            coordinator.context.push(Effect::RankFailed { serial, failure });
        }
        for work in coordinator.actions.take_left() {
            coordinator.context.push(Effect::Start(work));
        }
        // So may a newer attempt, and the end of that incident not.
        let jobs: Vec<String> = coordinator.jobs.names().cloned().collect();
        for job in jobs {
            coordinator.context.push(Effect::AttemptBegun { job });
        }
        coordinator.carry_out();
        // The capture of a death that is not reported yet may have been closed before.
        let Self { jobs, captures, incidents, context, .. } = &mut coordinator;
        let of_death = |known: &&CaptureState| {
            known.record.is_closed() && matches!(known.record.reason, Reason::Death { .. })
        };
        for closed in captures.iter().filter(of_death) {
            incidents.capture_closed(context, closed, captures, jobs);
        }
        coordinator.carry_out();
        coordinator
    }

    /// Handles one event, and all effects that follow from it at once.
    pub(crate) fn handle(&mut self, now: Now, event: Event) {
        self.context.now = now;
        let Self { jobs, captures, incidents, actions, context, .. } = self;
        match event {
            Event::Attached { hello, from, outgoing, end, reply } => {
                // The receiver is gone if the coordinator stops.
                let _ = reply.send(self.attach(hello, from, outgoing, end));
            }
            Event::Said { stream, message, share, turn: _turn } => {
                self.said(stream, *message, share)
            }
            Event::Gone { stream, turn: _turn } => self.gone(stream),
            Event::Unsent(unsent) => self.unsent(unsent),
            Event::UploadBegun { capture, tape_id, nodes, reply, turn: _turn } => {
                captures.upload_begun(context, (&capture, &tape_id), &nodes, jobs, reply);
            }
            Event::SnapshotFailed { capture, tape_id, why } => {
                captures.snapshot_failed(&capture, &tape_id, &why, jobs);
            }
            Event::SnapshotStored { snapshot, reply } => {
                captures.snapshot_stored(context, &snapshot, jobs, reply);
            }
            Event::Asked(question) => question(&self.view()),
            Event::CaptureWanted { job, step, reply } => self.capture_wanted(&job, step, reply),
            Event::Worked(WorkDone::Compared { incident, capture, result }) => {
                incidents.diagnosed(context, &incident, &capture, result, captures, jobs);
            }
            Event::Worked(WorkDone::Acted { action, outcome }) => {
                actions.acted(context, &action, outcome);
            }
            Event::Worked(WorkDone::Resumed { action, outcome }) => {
                actions.resumed(context, &action, outcome);
            }
            Event::IncidentStored { incident, updated_wall_ns } => {
                incidents.stored(&incident, updated_wall_ns);
            }
            Event::ActionStored { action } => actions.stored(context, &action, incidents, jobs),
            Event::Approved { incident } => actions.approve(context.now, &incident),
            Event::ThreadChanged { id, who, request, reply } => {
                incidents.change_thread(context, (&id, &who), &request, reply);
            }
            Event::Tick => self.tick(),
        }
        self.settle();
    }

    /// A view of the state for requests.
    pub(crate) fn view(&self) -> View<'_> {
        View {
            now: self.context.now,
            report_interval_ns: self.config.interval_ns(),
            jobs: &self.jobs,
            captures: &self.captures,
            incidents: &self.incidents,
            actions: &self.actions,
            agents: self.streams.count(),
            counters: &self.shared.counters,
        }
    }

    /// Tells all agents that the coordinator stops, and when to come back.
    pub(crate) fn goodbye(&self, reconnect_after: Duration) {
        for node in self.streams.nodes() {
            // An agent that cannot be reached finds out by itself.
            let _ = self.streams.send(&node, wire::goodbye(reconnect_after));
        }
    }

    /// Carries out all effects, and asks the machines of the attempts that were touched what to do
    /// next, until nothing is left.
    fn settle(&mut self) {
        self.carry_out();
        while let Some(serial) = self.jobs.take_touched() {
            let Self { jobs, incidents, context, .. } = self;
            while let Some(finding) = jobs.poll_finding(serial) {
                incidents.found(context, serial, finding, jobs);
            }
            incidents.review(context, serial, jobs);
            self.carry_out();
            self.captures.settle(&mut self.context, serial, &mut self.jobs);
            self.carry_out();
        }
    }

    fn attach(
        &mut self,
        hello: Hello,
        from: SocketAddr,
        outgoing: ToAgent,
        end: CancellationToken,
    ) -> Result<StreamId, AgentRefused> {
        let now = self.context.now;
        let admitted = self.jobs.admit(now, &hello);
        admitted.inspect_err(|_| self.context.lose(Loss::AgentRefused))?;
        let node = hello.node.clone();
        if let Some(stream) = self.streams.of_node(&node) {
            if let Some(why) = self.jobs.replaced(now, &node, from) {
                let status = Status::aborted(why.to_string());
                // A full queue means an agent that does not read.
                let _ = self.streams.sender(&node).map(|outgoing| outgoing.try_send(Err(status)));
            }
            self.gone(stream);
        }
        self.jobs.attach(now, hello);
        let stream = self.streams.open(&node, outgoing, end);
        let first = wire::first_answer(self.config.report_interval, self.shared.store.id());
        self.send(&node, first);
        Ok(stream)
    }

    /// Handles the end of an agent's stream.
    fn gone(&mut self, stream: StreamId) {
        let Some(node) = self.streams.close(stream) else { return };
        if self.jobs.is_stream_logged(self.context.now, &node) {
            tracing::warn!(node = ?node, "agent disconnected");
        }
        self.jobs.node_lost(self.context.now, &node);
    }

    /// Handles a message of an agent.
    fn said(&mut self, stream: StreamId, message: Incoming, share: Share) {
        let Some(node) = self.streams.node(stream).cloned() else { return };
        self.jobs.heard(self.context.now, &node);
        if let Incoming::RankUp(up) = &message
            && self.jobs.rank_of(&up.tape_id).is_none()
            && self.jobs.may_make_room(self.context.now, &node, up)
            && let begins = self.jobs.begins_attempt(&node, up)
            && let Some(serial) = self.surplus(Some(((&node, up.owner.key()), begins)))
        {
            self.forget_attempt(serial);
        }
        let Self { jobs, captures, actions, context, .. } = self;
        match message {
            Incoming::RankUp(up) => {
                let tape_id = up.tape_id.clone();
                jobs.rank_up(context, &node, *up, share);
                actions.announced(context, &tape_id, jobs);
            }
            Incoming::Report(report) => {
                actions.gpus_reported(context, &node, &report.gpus);
                jobs.report(context, &node, report, share);
            }
            Incoming::RankDown { tape_id, end } => {
                jobs.rank_down(context, &node, &tape_id, end);
            }
            Incoming::Answer(answer) => {
                if jobs.capture_answer(context, &node, answer.clone()) {
                    captures.note_answer(answer);
                }
            }
            Incoming::AgentCapture(taken) => {
                captures.agent_capture(context, &node, &taken, jobs);
            }
            Incoming::Remedied(answer) => actions.answered(context, &node, &answer, jobs),
        }
    }

    fn tick(&mut self) {
        let now = self.context.now;
        let Self { jobs, incidents, .. } = self;
        for (serial, reason) in jobs.tick(now, |serial| incidents.is_healthy(serial)) {
            let asker = Asker::Trigger;
            self.context.push(Effect::RequestCapture { serial, reason, step: None, asker });
        }
        self.carry_out();
        let interval_ns = self.config.interval_ns();
        let Self { jobs, captures, incidents, context, .. } = self;
        incidents.tick(context, captures, jobs, interval_ns);
        self.carry_out();
        let Self { jobs, captures, incidents, actions, context, .. } = self;
        actions.take_up(context, captures, incidents, jobs);
        actions.look_at_calls(context, incidents, jobs);
        actions.observe(context, jobs);
        self.carry_out();
        if now.mono_ns.saturating_sub(self.tidied_ns) >= TIDY_EVERY_NS {
            self.tidied_ns = now.mono_ns;
            self.make_room();
        }
    }

    /// Deletes data that exceeds a bound.
    fn make_room(&mut self) {
        if let Some(serial) = self.surplus(None) {
            self.forget_attempt(serial);
        }
        let in_use = self.incidents.captures_in_use();
        self.captures.make_room(&mut self.context, &in_use, &self.jobs);
        self.actions.make_room(&mut self.context);
        self.actions.forget_nodes(|node| self.jobs.node(node).is_some());
    }

    /// The attempt to delete first when the bound of attempts is exceeded.
    fn surplus(&self, newcomer: Option<(HolderKey<'_>, bool)>) -> Option<u32> {
        self.jobs.surplus(newcomer, |serial| self.incidents.open_of(serial).next().is_some())
    }

    /// Deletes an attempt with all that belongs to it.
    fn forget_attempt(&mut self, serial: u32) {
        if self.jobs.forget(&mut self.context, serial) {
            self.context.lose(Loss::Forgotten);
            self.captures.forget_attempt(&mut self.context, serial);
            self.incidents.forget_attempt(&mut self.context, serial);
        }
    }

    /// Handles a user's request for a capture. Once its record is stored, the capture ends in a
    /// manifest, even if this process is killed.
    fn capture_wanted(&mut self, job: &str, step: Option<u64>, reply: CaptureReply) {
        let Some(attempt) = self.jobs.current(job) else {
            // The client may have gone.
            let _ = reply.send(Err(CaptureRefused::NoJob(job.to_string())));
            return;
        };
        let (serial, asker) = (attempt.record.serial, Asker::User(reply));
        let reason = Reason::Manual;
        self.context.push(Effect::RequestCapture { serial, reason, step, asker });
    }

    /// Carries out all effects, in order.
    fn carry_out(&mut self) {
        while let Some(effect) = self.context.pop() {
            let Self { jobs, captures, incidents, actions, context, .. } = self;
            let Shared { store, counters, telemetry, audit, .. } = &self.shared;
            match effect {
                Effect::Write(changes, after) => self.write(changes, after),
                Effect::TryWrite(changes, done) => store.try_write(changes, done),
                Effect::KeepSteps { node, report, batch, share } => {
                    self.keep_steps(&node, report, batch, share);
                }
                Effect::ForgetSteps { serial } => store.forget_steps(serial),
                Effect::ReleaseSnapshot(hash) => store.blobs().release(hash),
                Effect::AskAgent { node, request } => {
                    self.ask_agent(&node, wire::capture_request(request), true);
                }
                Effect::CallRanks { node, request, begins } => {
                    self.ask_agent(&node, wire::remedy_request(request), begins);
                }
                Effect::AskToComeAgain { node } => {
                    tracing::warn!(
                        node = ?node,
                        "an agent reports of tapes that are not known here: it is asked to \
                         announce all of them again"
                    );
                    self.send(&node, wire::goodbye(COME_AGAIN_WAIT));
                    if let Some(stream) = self.streams.of_node(&node) {
                        self.gone(stream);
                    }
                }
                // The worker is gone when the coordinator stops.
                Effect::Start(work) => drop(self.works.send(work)),
                Effect::Prove { target, verdict } => counters.prove(target, verdict),
                Effect::Count(count, more) => counters.add(count, more),
                Effect::Lose(loss, more) => counters.lose(loss, more),
                Effect::RequestCapture { serial, reason, step, asker } => {
                    self.request_capture(serial, reason, step, asker);
                }
                Effect::CaptureClosed { serial, capture } => {
                    jobs.captured(context.now, serial);
                    if let Some(closed) = captures.get(&capture) {
                        telemetry.capture(&closed.record, &closed.parts);
                        incidents.capture_closed(context, closed, captures, jobs);
                    }
                    actions.capture_closed(context, &capture, incidents, jobs);
                }
                Effect::CaptureForgotten { capture } => {
                    actions.capture_closed(context, &capture, incidents, jobs);
                }
                Effect::AttemptBegun { job } => incidents.attempt_begun(context, &job, jobs),
                Effect::RankFailed { serial, failure } => {
                    incidents.failed(context, serial, failure, jobs);
                }
                Effect::RankEnded { serial, rank, end } => {
                    incidents.rank_ended(context, serial, rank, end, jobs);
                }
                Effect::AttemptEnded { serial } => {
                    incidents.attempt_ended(context, serial, jobs);
                }
                Effect::AttemptResumed { serial } => {
                    incidents.attempt_resumed(context, serial, jobs);
                }
                Effect::Audit { action, subject, node } => {
                    drop(audit.note(audit::entry(context.now, node, action, subject)));
                }
                Effect::ConsiderRestart { incident } => {
                    actions.consider(context, &incident, incidents, jobs, captures);
                }
            }
        }
    }

    /// Stores step records, and acknowledges them when they are durable. If they do not fit, the
    /// agent is sent away, and resumes after its last acknowledged report.
    fn keep_steps(&self, node: &str, report: u64, batch: Batch, share: Share) {
        let outgoing = self.streams.sender(node);
        let done = move |is_kept: bool| {
            drop(share);
            let ack = wire::report_ack(report);
            let answer = if is_kept { ack } else { wire::goodbye(NO_ROOM_WAIT) };
            // A full queue means an agent that does not read; the loop finds out.
            let _ = outgoing.map(|outgoing| outgoing.try_send(Ok(answer)));
        };
        self.shared.store.steps(batch, Box::new(move |result| done(result.is_ok())));
    }

    /// Sends a request to the agent of a node once it is proved that this process still owns its
    /// store: a coordinator whose shard was taken may still have a stream of the agent. A request
    /// that `begins` nothing is sent in any case, in its turn. With a folder nothing waits for the
    /// store.
    fn ask_agent(&mut self, node: &str, message: Outgoing, begins: bool) {
        let may_ask = move |proved: memtape_store::Result<Proof>| {
            !begins || proved.is_ok_and(|proof| proof.holds(clock::now().mono_ns))
        };
        let Some(outlet) = self.streams.outlet(node) else { return };
        let Shared { store, counters, events, .. } = self.shared.clone();
        if let Some(proved) = store.prove_at_once() {
            return match may_ask(proved) {
                true => self.send(node, message),
                false => counters.lose(Loss::AgentNotAsked, 1),
            };
        }
        store.prove(Box::new(move |proved| {
            if !may_ask(proved) {
                counters.lose(Loss::AgentNotAsked, 1);
            } else if let Err(unsent) = outlet.send(message) {
                // The loop is gone when the coordinator stops.
                let _ = events.blocking_send(Event::Unsent(unsent));
            }
        }));
    }

    /// Asks for a capture and gives the answer to the asker.
    fn request_capture(&mut self, serial: u32, reason: Reason, step: Option<u64>, asker: Asker) {
        let Self { jobs, captures, incidents, context, .. } = self;
        let result = captures.request(context, serial, reason.clone(), step, jobs);
        if let Ok(id) = &result
            && !matches!(asker, Asker::User(_))
        {
            let holder = jobs.get(serial).map(|of| of.holder(reason.rank().unwrap_or(u32::MAX)));
            context.audit("capture", id.clone(), Some(&holder.unwrap_or_default().node));
        }
        match asker {
            Asker::Trigger => jobs.trigger_answered(context.now, serial, reason, &result),
            Asker::Incident(id) => incidents.capture_answered(context.now, &id, result),
            Asker::User(reply) => {
                let answer = Box::new(move |written: memtape_store::Result<()>| {
                    // The client may have gone.
                    let _ = reply.send(match (result, written) {
                        (Ok(id), Err(why)) => Err(CaptureRefused::NotStored { id, why }),
                        (result, _) => result.map_err(CaptureRefused::from),
                    });
                });
                // Behind the capture's own record.
                context.push(Effect::TryWrite(Changes::default(), answer));
            }
        }
    }

    fn write(&self, changes: Changes, after: After) {
        let store = &self.shared.store;
        let done: Done = match after {
            After::Nothing | After::Free(_) if changes.is_empty() => return,
            After::Nothing => Box::new(|_| {}),
            After::Free(share) => Box::new(move |_| drop(share)),
            After::ReleaseSnapshots(hashes) => {
                let blobs = store.blobs().clone();
                when_written(move || hashes.into_iter().for_each(|hash| blobs.release(hash)))
            }
            After::TellAction { action } => {
                let events = self.shared.events.clone();
                // As below.
                when_written(move || drop(events.blocking_send(Event::ActionStored { action })))
            }
            After::TellStored { incident, updated_wall_ns } => {
                let events = self.shared.events.clone();
                let event = Event::IncidentStored { incident, updated_wall_ns };
                // The store's thread may wait for the loop: the loop never waits for the store.
                when_written(move || drop(events.blocking_send(event)))
            }
        };
        store.write(changes, done);
    }

    /// Sends a message to the agent of a node. A stream whose agent does not read is closed.
    fn send(&mut self, node: &str, message: Outgoing) {
        if let Err(unsent) = self.streams.send(node, message) {
            self.unsent(unsent);
        }
    }

    fn unsent(&mut self, unsent: Unsent) {
        let Some(node) = self.streams.node(unsent.stream) else { return };
        if unsent.is_slow {
            self.shared.counters.lose(Loss::SlowAgent, 1);
            if self.jobs.is_stream_logged(self.context.now, node) {
                tracing::warn!(node = ?node, "an agent does not read: its stream is closed");
            }
        }
        self.gone(unsent.stream);
    }
}

/// Runs `then` if the write succeeds.
fn when_written(then: impl FnOnce() + Send + 'static) -> Done {
    Box::new(move |written| {
        if written.is_ok() {
            then();
        }
    })
}
