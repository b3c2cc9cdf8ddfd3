//! The agent's logic: the reaction to each event of one closed set.
//!
//! Every iteration compares the present state with the state sent on this stream, and sends the
//! difference; it depends on no earlier iteration. So a stream may end at any point, a full queue
//! only postpones, and an agent that has just started sends everything. Nothing here reads a clock,
//! waits, or knows a runtime: times come in with the events, and what takes time is handed out as
//! [`Work`]. `run.rs` carries it out on a node, a simulation in its own way.

use std::collections::BTreeSet;
use std::time::Duration;

use memtape_core::census::Census;
use memtape_core::limits::{CENSUSES_PER_REPORT_MAX, STEPS_PER_REPORT_MAX, TAPES_PER_REQUEST_MAX};
use memtape_core::placement::JobsShard;
use memtape_core::rates::Rates;
use memtape_core::redaction::Redaction;
use memtape_core::roles;
use memtape_core::sharing::Amounts;

use crate::capture::agent_initiated::AgentInitiated;
use crate::capture::answers::{Captures, DEADLINE_DEFAULT, JobKey, Work, WorkId, refusal};
use crate::capture::rewind::{Rewind, Rewound};
use crate::config::{Config, REPORT_INTERVAL_MAX, REPORT_INTERVAL_MIN};
use crate::health::{Health, Published};
use crate::link::deliveries::Deliveries;
use crate::link::report;
use crate::link::stream::{Session, StreamEvent};
use crate::link::upload::UploadError;
use crate::link::wire::{self, CaptureRequest, Incoming, Outgoing, Ownership, RankReport, RankUp};
use crate::node::accounts::Account;
use crate::node::clock::Now;
use crate::node::gpu_memory::GpuMemory;
use crate::node::machine::Node;
use crate::node::py_spy::Sampling;
use crate::remedies::Remedies;
use crate::spool::Spool;
use crate::tapes::census::{Censuses, CountResult};
use crate::tapes::cleanup::{self, DeadTape, Limits, UNREPORTED_MAX};
use crate::tapes::known::{KnownTape, Tapes};
use crate::tapes::quota::TapeKey;
use crate::tapes::source::{Entry, TapeSource};

mod announcing;
mod checking;
mod remedying;
mod spooling;

/// An event of the agent's loop.
#[derive(Debug)]
pub(crate) enum Event {
    /// Time to scan the tapes.
    Tick,
    /// The time of [`Agent::next_ns`] has come.
    Timeout,
    /// An event of the stream.
    Stream(StreamEvent),
    /// A tape was rewound.
    Rewound(WorkId, Rewound),
    /// A tape was counted.
    Counted(TapeKey, CountResult),
    /// An upload has ended.
    Uploaded(WorkId, Result<(), UploadError>),
}

impl From<StreamEvent> for Event {
    fn from(event: StreamEvent) -> Self {
        Self::Stream(event)
    }
}

/// The state of one agent.
#[derive(Debug)]
pub(crate) struct Agent {
    config: Config,
    node: Box<dyn Node>,
    tapes: Tapes,
    deliveries: Deliveries,
    captures: Captures,
    remedies: Remedies,
    censuses: Censuses,
    session: Option<Session>,
    announcements: announcing::Announcements,
    /// Records wait for the next acknowledgement.
    has_more: bool,
    report_interval: Duration,
    /// Since when there is no coordinator.
    alone_since_ns: u64,
    /// When a report was last acknowledged on the present stream, or the stream began.
    acked_ns: u64,
    alone: AgentInitiated,
    /// The spool on disk. Without one, nothing is kept on disk.
    spool: Option<Spool>,
    /// Tapes whose newest kept steps were read from the spool.
    recalled: BTreeSet<TapeKey>,
    own_upload: Option<spooling::CaptureUpload>,
    /// State of the spool as last logged.
    spool_state: spooling::SpoolState,
    /// Rate of the step records of each account that the spool keeps.
    keep_rates: Rates<Account>,
    /// Time of the next attempt to keep step records.
    keep_again_ns: u64,
    /// Id of the store of the last coordinator; empty before the first.
    store: String,
    /// Number of times that the coordinator came back with another store.
    store_changes: u64,
    gpu_memory: GpuMemory,
    /// The agent's part of the bound of dead tapes.
    dead_tape_bytes_max: u64,
}

impl Agent {
    /// A new agent.
    pub(crate) fn new(
        now: Now,
        config: Config,
        node: Box<dyn Node>,
        (source, jobs): (Box<dyn TapeSource>, Option<JobsShard>),
        spool: Option<Spool>,
    ) -> Self {
        let mut alone = AgentInitiated::default();
        for capture in spool.iter().flat_map(Spool::captures) {
            let tape_id = capture.answer.as_ref().map_or("", |answer| &answer.tape_id);
            alone.note_taken(now.mono_ns, tape_id, capture.reason());
        }
        let redaction = Redaction::with_names(config.redacted_names.iter().map(String::as_str));
        Self {
            tapes: Tapes::new(source, redaction, jobs),
            captures: Captures::new(&config),
            remedies: Remedies::default(),
            deliveries: Deliveries::default(),
            censuses: Censuses::default(),
            session: None,
            announcements: announcing::Announcements::default(),
            has_more: false,
            report_interval: config.report_interval,
            alone_since_ns: now.mono_ns,
            acked_ns: now.mono_ns,
            alone,
            spool,
            recalled: BTreeSet::new(),
            own_upload: None,
            spool_state: spooling::SpoolState::default(),
            keep_rates: spooling::keep_rates(),
            keep_again_ns: 0,
            store: String::new(),
            store_changes: 0,
            gpu_memory: GpuMemory::default(),
            dead_tape_bytes_max: config.dead_tape_bytes_max,
            config,
            node,
        }
    }

    /// How long after a [`Event::Tick`] the next one is wanted.
    pub(crate) fn report_interval(&self) -> Duration {
        self.report_interval
    }

    /// Time of the next [`Event::Timeout`], on the monotonic clock; none when none is needed.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        let captures = self.captures.next_ns().into_iter().chain(self.next_own_capture_ns());
        captures.min()
    }

    /// The agent's health after a scan.
    pub(crate) fn health(&self, now: Now) -> Health {
        let spool = self.spool.as_ref();
        let dead = self.tapes.iter().filter(|(_, of)| !of.is_kept && of.life.death().is_some());
        Health {
            store_changes: self.store_changes,
            gpu_memory: self.gpu_memory.clone(),
            looked_ns: now.mono_ns,
            report_interval: self.report_interval,
            is_connected: self.session.is_some(),
            acked_ns: self.acked_ns,
            tapes: self.tapes.iter().count(),
            dead_tape_bytes: dead.map(|(_, known)| known.occupied_bytes).sum(),
            refused: self.tapes.refused(),
            spool: spool.map(|spool| (spool.bytes(), spool.dropped())),
        }
    }

    /// Tapes that were found and belong to other shards, and which.
    pub(crate) fn others(&self) -> impl Iterator<Item = (u16, &Entry)> {
        self.tapes.others()
    }

    /// True when there is no tape, and nothing to deliver.
    pub(crate) fn is_idle(&self) -> bool {
        self.tapes.iter().next().is_none() && self.spool.as_ref().is_none_or(Spool::is_empty)
    }

    /// Takes this agent's part of the node's bounds, beside what the others have published.
    pub(crate) fn share(&mut self, agents: u64, shard: Option<u16>, published: &Published) {
        self.captures.divide(&self.config, agents);
        self.censuses.divide(agents);
        let dead_tapes = published.amounts(|health| health.dead_tape_bytes);
        self.dead_tape_bytes_max = dead_tapes.part(shard, self.config.dead_tape_bytes_max);
        if let Some(spool) = &mut self.spool {
            let spools = published.amounts(|health| health.spool.map_or(0, |(bytes, _)| bytes));
            spool.limit(spools.part(shard, self.config.spool_bytes_max));
        }
    }

    /// Bytes of memory that captures occupy or have reserved.
    #[cfg(feature = "simulation")]
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.captures.memory_bytes()
    }

    /// Bytes of snapshots that are being uploaded.
    #[cfg(feature = "simulation")]
    pub(crate) fn held_bytes(&self) -> u64 {
        self.captures.held_bytes()
    }

    /// The next effect for the caller. `None` when all are carried out.
    pub(crate) fn take_work(&mut self) -> Option<Work> {
        self.captures.take_work()
    }

    /// Begins the count of the next tape, one at a time, while a coordinator is connected.
    fn count(&mut self, now: Now) {
        if self.session.is_none() {
            return;
        }
        if let Some((key, count)) = self.censuses.next(now.mono_ns, &self.tapes) {
            self.captures.add_work(Work::Count(key, count));
        }
    }

    /// Handles one event, and all effects that follow from it at once.
    pub(crate) fn handle(&mut self, now: Now, event: Event) {
        match event {
            Event::Tick => {
                self.look(now);
                self.check_gpus(now);
                self.watch_remedies();
                self.captures.pass_time(now.mono_ns);
                self.count(now);
                self.keep(now);
                self.send_news(now);
                self.upload_capture(now);
                self.clean(now);
                if let Some(spool) = &mut self.spool {
                    spool.pass_time(now.mono_ns);
                }
                self.log_spool_state();
            }
            Event::Timeout => {
                self.captures.pass_time(now.mono_ns);
                self.take_due_captures(now);
                self.upload_capture(now);
                self.send_answers();
            }
            Event::Stream(event) => self.handle_stream(now, event),
            Event::Rewound(id, rewound) => {
                if let Some((key, rewound)) = self.captures.rewound(now.mono_ns, id, rewound) {
                    self.keep_capture(&key, &rewound);
                }
                self.send_answers();
            }
            Event::Counted(key, result) => {
                let is_final = result.is_final;
                self.censuses.counted(key, result);
                self.count(now);
                // The end of a rank waits for its last census.
                if is_final && !self.censuses.is_counting() {
                    self.send_news(now);
                }
            }
            Event::Uploaded(id, result) => {
                if !self.capture_uploaded(now, id, &result) {
                    self.captures.uploaded(now.mono_ns, id, result);
                }
                self.send_answers();
            }
        }
    }

    fn look(&mut self, now: Now) {
        for (key, tape_id) in self.tapes.look(now, self.node.as_ref()) {
            self.forget(key, &tape_id);
        }
        for key in self.tapes.take_new_ends() {
            self.deliveries.send_end_again(key);
        }
        for key in self.tapes.take_new_clocks() {
            self.deliveries.restart(key);
            // What was counted in turns is counted again, and sent as a whole.
            self.censuses.forget(key);
        }
    }

    fn handle_stream(&mut self, now: Now, event: StreamEvent) {
        match event {
            StreamEvent::Connected(session) => self.start_stream(now, session),
            StreamEvent::Disconnected => {
                self.session = None;
                self.alone_since_ns = now.mono_ns;
                // What was sent and not acknowledged may have to be kept.
                self.deliveries.start_stream();
            }
            StreamEvent::Message(Incoming::Ack(number)) => {
                let number = self.deliveries.acked(number);
                if number > 0 {
                    self.acked_ns = now.mono_ns;
                }
                self.captures.acked(number);
                if let Some(spool) = &mut self.spool {
                    spool.acked(number);
                }
                self.upload_capture(now);
                if self.has_more {
                    self.send_news(now);
                }
            }
            StreamEvent::Message(Incoming::Capture(request)) => self.capture(now, request),
            StreamEvent::Message(Incoming::Remedy(request)) => self.remedy(now, request),
            // supervisor.rs starts other agents.
            StreamEvent::Divided(_) => {}
            // stream.rs handles both.
            StreamEvent::Message(Incoming::Welcome { .. } | Incoming::Goodbye(_)) => {}
        }
    }

    fn start_stream(&mut self, now: Now, session: Session) {
        let asked = session.report_interval.unwrap_or(self.config.report_interval);
        self.report_interval = asked.clamp(REPORT_INTERVAL_MIN, REPORT_INTERVAL_MAX);
        self.look_at_store(&session.store);
        self.session = Some(session);
        self.acked_ns = now.mono_ns;
        self.deliveries.start_stream();
        self.censuses.start_stream();
        self.captures.start_stream();
        self.remedies.start_stream();
        // A stream's first report says that all tapes were announced: an agent that has just
        // started must not say so before it has looked.
        self.look(now);
        self.recall();
        self.announcements.start_stream(self.tapes.iter().map(|(key, _)| key).collect());
        if let Some(spool) = &mut self.spool {
            spool.start_stream();
        }
        self.send_news(now);
    }

    /// Compares the store id of the coordinator. Another store lacks everything that the previous
    /// one acknowledged: the data folder was lost, or restored from a backup.
    fn look_at_store(&mut self, store: &str) {
        if store.is_empty() || self.store == store {
            return;
        }
        let before = std::mem::replace(&mut self.store, store.to_string());
        if !before.is_empty() {
            self.store_changes += 1;
            tracing::warn!(
                before,
                now = store,
                "the coordinator has another store than before: everything that the tapes have is \
                 sent again"
            );
            self.deliveries.begin_again();
        }
    }

    /// Sends all news that the coordinator lacks on this stream.
    fn send_news(&mut self, now: Now) {
        if self.session.is_none() {
            return;
        }
        let announced = self.announce(now);
        self.send_answers();
        self.send_remedies();
        let is_first = self.deliveries.next_number() == 1;
        if is_first && !(announced.has_awaited && announced.has_tapeless) {
            return;
        }
        // What is kept of a rank comes after its announcement.
        let kept = if announced.has_tapeless { self.send_kept() } else { Ok(None) };
        let Ok(kept) = kept else { return };
        if self.spool.as_mut().is_some_and(Spool::take_has_lost) {
            self.deliveries.distrust_kept();
        }
        let Some(drained) = self.send_report(now, kept) else { return };
        self.send_ends(now, drained);
        if announced.has_tapeless {
            self.send_last(now);
        }
    }

    /// Returns the tapes whose end was not sent on this stream, and the tapes for which `is_owed`
    /// holds.
    fn unended(&self, is_owed: impl Fn(TapeKey) -> bool) -> Vec<(TapeKey, &KnownTape)> {
        let is_asked = |key: TapeKey| !self.deliveries.is_down_sent(key) || is_owed(key);
        self.tapes.iter().filter(|(key, _)| is_asked(*key)).collect()
    }

    /// Sends a report. Returns the ranks with nothing more to report. Records on a tape wait until
    /// all kept records of the tape are sent.
    fn send_report(
        &mut self,
        now: Now,
        kept: Option<(u64, Vec<RankReport>)>,
    ) -> Option<Vec<TapeKey>> {
        if !self.deliveries.may_send() {
            return None;
        }
        let gpus = self.node.gpus(now);
        let reading = gpus.as_deref().ok();
        let node = self.node.as_ref();
        let records_kept = kept.iter().flat_map(|(_, kept)| kept);
        let records_kept: usize = records_kept.map(|rank| rank.steps.len()).sum();
        let later = self.later();
        let mut tapes = self.unended(|key| self.censuses.has_unsent(key));
        tapes.retain(|(key, _)| self.announcements.has_said(*key));
        let asked = report::Asked {
            tapes,
            later: &later,
            records_max: STEPS_PER_REPORT_MAX.saturating_sub(records_kept),
        };
        let mut ranks = report::ranks(asked, &self.deliveries, reading, (now, node));
        let censuses = self.add_censuses(&mut ranks);
        let kept_until = kept.map(|(number, kept)| {
            ranks.add_kept(kept);
            number
        });
        let message = wire::report(
            self.deliveries.next_number(),
            now.wall_ns,
            ranks.reports,
            self.node.memory(),
            gpus.as_deref(),
            &self.pids_of_ranks(),
            (self.spool_report(), self.tapes.refused()),
        );
        if !self.send(message) {
            return None;
        }
        self.censuses.sent(censuses);
        self.deliveries.report_sent(ranks.marks);
        if let Some((number, spool)) = kept_until.zip(self.spool.as_mut()) {
            spool.sent_with(number, self.deliveries.next_number() - 1);
        }
        self.has_more = ranks.has_more;
        Some(ranks.drained)
    }

    /// Pids of all ranks of this node.
    fn pids_of_ranks(&self) -> BTreeSet<u32> {
        let own = self.tapes.iter().filter_map(|(_, known)| Some(known.process?.pid));
        own.chain(self.node.ranks_of_others()).collect()
    }

    /// Adds censuses that the coordinator lacks to a report. Returns the added censuses.
    fn add_censuses(&self, ranks: &mut report::Ranks) -> Vec<(TapeKey, Census)> {
        let mut added = Vec::new();
        for (key, census) in self.censuses.unsent() {
            if added.len() >= CENSUSES_PER_REPORT_MAX {
                break;
            }
            let Some(known) = self.tapes.get(key) else { continue };
            let changes = self.censuses.changes(key, census);
            if ranks.add_census(known.tape_id(), changes) {
                added.push((key, census.clone()));
            }
        }
        added
    }

    /// Reports processes that are gone, after the last of their steps and their last census, which
    /// may be late: of each user one after the other, so that the queue is not full of one user's.
    fn send_ends(&mut self, now: Now, mut drained: Vec<TapeKey>) {
        let mut before = Amounts::<Account>::default();
        drained.sort_by_cached_key(|key| {
            let account = self.tapes.get(*key).map_or(0, |known| known.account);
            before.add(account, 1);
            before.of(account)
        });
        for key in drained {
            if self.deliveries.is_down_sent(key) {
                continue;
            }
            let Some(known) = self.tapes.get(key) else { continue };
            let Some(death) = known.life.death() else { continue };
            if !known.is_cut && !self.censuses.may_end(now.mono_ns, key) {
                continue;
            }
            let message = wire::rank_down(known.tape_id(), death, known.status.step);
            if self.send(message) {
                self.deliveries.down_sent(key);
                self.censuses.end_sent(key);
            }
        }
    }

    /// Sends the answers to captures that are known and not sent yet.
    fn send_answers(&mut self) {
        for (key, answer) in self.captures.unsent() {
            if self.send(answer) {
                self.captures.sent(&key, self.deliveries.next_number());
            }
        }
    }

    fn capture(&mut self, now: Now, request: CaptureRequest) {
        for tape_id in request.tape_ids.iter().take(TAPES_PER_REQUEST_MAX) {
            let capture_id = request.capture_id.clone();
            let key = JobKey { capture_id, tape_id: tape_id.clone() };
            let at_once = match self.tapes.find(tape_id) {
                Some((_, known)) if known.is_cut => Some(refusal(&key, "the tape was cut short")),
                Some((_, known)) => {
                    let mut rewind = self.rewind(known, request.step, request.before);
                    if *tape_id == request.sample_workers {
                        rewind.sampling = self.sampling(now, known, request.deadline);
                    }
                    self.captures.start(now.mono_ns, key, rewind, request.deadline)
                }
                None => Some(refusal(&key, "this node has no such tape")),
            };
            if let Some(answer) = at_once {
                self.send(answer);
            }
        }
    }

    fn rewind(&self, known: &KnownTape, step: Option<u64>, before: Option<u64>) -> Rewind {
        Rewind {
            account: known.account,
            tape_id: known.tape_id().to_string(),
            tape: known.tape.clone(),
            file: known.file(),
            same_boot: known.life.seen_alive(),
            pid: known.process.map(|process| process.pid),
            step,
            before,
            trace_events_max: self.config.trace_events_max,
            bytes_max: 0,
            sampling: None,
        }
    }

    /// Sampling of a rank's worker processes; none where the rank has no workers, or there is no
    /// profiler.
    fn sampling(
        &self,
        now: Now,
        known: &KnownTape,
        deadline: Option<Duration>,
    ) -> Option<Sampling> {
        let program = self.config.py_spy.clone()?;
        let workers = self.node.processes_below(now, known.process?);
        let deadline_ns = now.after_ns(deadline.unwrap_or(DEADLINE_DEFAULT));
        (!workers.is_empty()).then(|| Sampling::new(program, workers, deadline_ns))
    }

    /// Deletes tapes of dead processes that are too old or too many.
    fn clean(&mut self, now: Now) {
        let is_alone = self.session.is_none() && self.alone_for(now) > UNREPORTED_MAX;
        let candidates = self.tapes.iter().filter(|(_, known)| !known.is_kept);
        let dead = candidates.filter_map(|(key, known)| {
            let age_ns = now.wall_ns.saturating_sub(known.life.death()?.wall_ns);
            let is_known = self.deliveries.is_settled(key) || is_alone;
            Some(DeadTape {
                key,
                account: known.account,
                age: Duration::from_nanos(u64::try_from(age_ns).unwrap_or(0)),
                bytes: known.occupied_bytes,
                is_settled: is_known
                    && !self.captures.needs(known.tape_id())
                    && !self.alone.needs(key),
                is_linked: known.is_linked,
            })
        });
        let limits =
            Limits { bytes_max: self.dead_tape_bytes_max, age_max: self.config.dead_tape_age_max };
        for (key, reason) in cleanup::choose(dead.collect(), limits) {
            let Some(known) = self.tapes.get(key) else { continue };
            let (path, bytes) = (known.path.clone(), known.occupied_bytes);
            let is_logged = known.is_logged;
            let tape_id = known.tape_id().to_string();
            if let Err(error) = self.tapes.delete(key) {
                if is_logged {
                    tracing::warn!("tape {path:?} cannot be deleted: {error}");
                }
                continue;
            }
            if is_logged {
                tracing::info!(bytes, "tape {path:?} is deleted: {reason}");
            }
            self.forget(key, &tape_id);
        }
    }

    /// Forgets a tape.
    fn forget(&mut self, key: TapeKey, tape_id: &str) {
        self.deliveries.forget(key);
        self.censuses.forget(key);
        self.announcements.forget(key);
        self.recalled.remove(&key);
        self.alone.forget(tape_id);
    }

    /// Queues a message on the present stream; false when there is none or its queue is full.
    fn send(&self, message: Outgoing) -> bool {
        self.session.as_ref().is_some_and(|session| session.send(message))
    }
}

fn rank_up(known: &KnownTape) -> RankUp {
    let pid = known.process.map(|process| process.pid);
    let peer_groups = roles::peer_groups(&known.tape.collectives().groups);
    let uuids = known.tape.device_uuids();
    let of = Ownership { tape_id: known.tape_id(), owner: &known.owner, workload: &known.workload };
    wire::rank_up(of, known.tape.identity(), &known.status, &uuids, pid, peer_groups)
}
