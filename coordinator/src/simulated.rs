//! The coordinator for simulations: the real loop, wire and store in one thread, with the time
//! that the caller passes.
//!
//! A [`SimulatedCoordinator`] has no runtime, no thread, no socket and no clock of its own. The
//! simulation carries messages between it and its agents, says when the store's writer works and
//! when a comparison is done. What `grpc.rs` does for a stream and an upload is done here in the
//! same order. Dropping the value is a SIGKILL; a new one on the same [`Disk`] is its restart.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use memtape_core::capture::{Outcome, Reason};
use memtape_core::limits::MESSAGES_WAITING_MAX;
use memtape_core::snapshot::RankSnapshot;
use memtape_proto::snapshot::{self, Bounds};
use tokio::sync::{mpsc, oneshot};

use crate::clock::{self, Now as Moment};
use crate::config::Config;
use crate::coordinator::{Coordinator, Shared};
use crate::ingest::event::Event;
use crate::ingest::wire::{self, Outgoing, Raw};
use crate::records::{CaptureRecord, IncidentRecord, PartRecord, SeriesKey};
use crate::restore::Restored;
use crate::state::captures::uploads::{BodyRefused, StoredBody, Upload};
use crate::state::counters::Counters;
use crate::state::effects::{CaptureRefused, Work, WorkDone};
use crate::store::Store;
use crate::store::testing::simulated::disk::SimulatedDisk;
use crate::telemetry::export::Telemetry;
use crate::work::diagnosing;

/// Events in the queue between two turns, as many as a simulation may make at once.
const EVENTS_MAX: usize = 1 << 16;

/// Both clocks of the coordinator's machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Never goes back, also not over restarts.
    pub mono_ns: u64,
    /// Unix time.
    pub wall_ns: i64,
}

/// The disk of its machine. Clones are the same disk; it outlives coordinators.
#[derive(Clone, Debug)]
pub struct Disk(SimulatedDisk);

impl Disk {
    /// An empty disk that fails as this seed says.
    pub fn new(seed: u64) -> Self {
        Self(SimulatedDisk::new(seed))
    }

    /// The machine is gone, with what was not synced. For a coordinator that was just dropped.
    pub fn power_loss(&self) {
        self.0.power_loss();
    }

    /// The process is gone; what it wrote stays.
    pub fn kill(&self) {
        self.0.kill();
    }

    /// Bounds the bytes of all files together; `None` removes the bound.
    pub fn set_room(&self, bytes: Option<u64>) {
        self.0.set_room(bytes);
    }

    /// The next `count` writes fail.
    pub fn fail_writes(&self, count: u64) {
        self.0.fail_writes(count);
    }

    /// The next `count` syncs fail.
    pub fn fail_syncs(&self, count: u64) {
        self.0.fail_syncs(count);
    }

    /// The process dies, or the power fails, in the middle of the operation that comes after
    /// `operations` more. [`Self::crashes`] counts it.
    pub fn crash_after(&self, operations: u64, is_power_loss: bool) {
        self.0.crash_after(Some(operations), is_power_loss);
    }

    /// Takes an ordered crash back.
    pub fn crash_never(&self) {
        self.0.crash_after(None, false);
    }

    /// Crashes so far: those at once, and those in the middle of an operation.
    pub fn crashes(&self) -> u64 {
        let counts = self.0.counts();
        counts.kills + counts.power_losses
    }

    /// Times that the index came back older, empty or unreadable.
    pub fn index_losses(&self) -> u64 {
        self.0.counts().index_losses
    }

    /// Bytes of all files.
    pub fn used_bytes(&self) -> u64 {
        self.0.used_bytes()
    }
}

/// What became of one try to send a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// It is stored and synced, under this hash.
    Stored([u8; 32]),
    /// Another try may help.
    Failed(String),
    /// Another try does not help.
    Refused(String),
}

/// A capture as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// Its name.
    pub id: String,
    /// The job.
    pub job: String,
    /// Which attempt, as the coordinator numbers them.
    pub serial: u32,
    /// Why it was taken.
    pub reason: Reason,
    /// T.
    pub step: u64,
    /// When it was asked for, Unix time.
    pub requested_wall_ns: i64,
    /// When it was closed; none while it is in flight.
    pub closed_wall_ns: Option<i64>,
    /// All ranks are aligned.
    pub complete: bool,
    /// One for each rank.
    pub parts: Vec<Part>,
}

/// A rank's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Global rank.
    pub rank: u32,
    /// Its tape.
    pub tape_id: String,
    /// What became of it.
    pub outcome: Outcome,
    /// The step its body shows.
    pub step: u64,
    /// Its process was dead.
    pub dead: bool,
    /// BLAKE3 of the stored body; none when none is stored.
    pub hash: Option<[u8; 32]>,
    /// One line.
    pub detail: String,
}

/// An incident, as far as a simulation looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incident {
    /// Its name.
    pub id: String,
    /// Which attempt, as the coordinator numbers them.
    pub serial: u32,
    /// Global rank.
    pub rank: u32,
    /// Step at which the growth began.
    pub onset_step: u64,
    /// Unix time.
    pub opened_wall_ns: i64,
    /// None while it is open.
    pub closed_wall_ns: Option<i64>,
    /// Growth of one rank or of all.
    pub scope: String,
    /// What a capture has shown.
    pub class: String,
    /// Why it was closed.
    pub closed_why: String,
}

/// A rank as the coordinator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankSeen {
    /// Which attempt, as the coordinator numbers them.
    pub serial: u32,
    /// Global rank.
    pub rank: u32,
    /// Its tape.
    pub tape_id: String,
    /// Newest finished step.
    pub step: u64,
    /// How it ended; none while it is not known to have.
    pub end: Option<String>,
    /// Steps that its tape had overwritten before they were read.
    pub steps_missed: u64,
}

/// A stored step: its first and last number, and what was allocated at its end.
pub type Step = (u64, u64, u64);

/// What a coordinator holds in memory, to compare with its bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Captures, closed or not.
    pub captures: usize,
    /// Incidents, closed or not.
    pub incidents: usize,
    /// Captures in flight.
    pub in_flight: usize,
    /// Most messages waiting for one agent.
    pub outgoing_max: usize,
    /// Changes that wait for a journal that can be written.
    pub waiting: u64,
    /// Changes given up because more waited than can be kept.
    pub given_up: u64,
}

/// A coordinator without a machine.
pub struct SimulatedCoordinator {
    coordinator: Coordinator,
    store: Store,
    events: mpsc::Receiver<Event>,
    works: mpsc::UnboundedReceiver<Work>,
    streams: BTreeMap<u64, mpsc::Receiver<Outgoing>>,
    /// Answers that wait for the store.
    receipts: VecDeque<(u64, Waiting)>,
    /// Captures that were asked for, and are not said to be taken yet.
    asked: VecDeque<(u64, oneshot::Receiver<Result<String, CaptureRefused>>)>,
    /// Restarts that were asked for.
    restarts: Vec<(String, String)>,
}

/// An upload that waits for the store.
enum Waiting {
    /// It may be there already.
    Begun { reply: oneshot::Receiver<Upload>, upload: Box<BodyOnItsWay> },
    /// It is written, and not in the manifest yet.
    Kept { reply: oneshot::Receiver<Result<(), BodyRefused>>, hash: blake3::Hash },
}

struct BodyOnItsWay {
    capture: String,
    tape_id: String,
    body: Bytes,
}

impl SimulatedCoordinator {
    /// Starts one on a disk, with what an earlier one left there.
    ///
    /// # Errors
    /// One line, as a real one would say it.
    pub fn open(now: Now, config: Config, disk: &Disk) -> anyhow::Result<Self> {
        let now = set_clock(now);
        let config = Arc::new(config);
        let (store, loaded, _) = Store::open_simulated(&disk.0)?;
        let restored = Restored::new(now, &config, loaded, &store);
        at_once(store.blobs().sweep());
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let (works_sender, works) = mpsc::unbounded_channel();
        let counters = Arc::new(Counters::default());
        let telemetry = Arc::new(Telemetry::start(None, &counters)?);
        let shared = Shared { store: store.clone(), counters, telemetry, events: sender };
        let coordinator = Coordinator::new(now, config, restored, shared, works_sender);
        Ok(Self {
            coordinator,
            store,
            events,
            works,
            streams: BTreeMap::new(),
            receipts: VecDeque::new(),
            asked: VecDeque::new(),
            restarts: Vec::new(),
        })
    }

    /// An agent opens a stream with its first message.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn attach(&mut self, now: Now, hello: Raw) -> Result<u64, String> {
        let hello = wire::hello(hello).map_err(|why| why.to_string())?;
        let (outgoing, receiver) = mpsc::channel(MESSAGES_WAITING_MAX);
        let (reply, mut answer) = oneshot::channel();
        self.handle(now, Event::Attached { hello, outgoing, reply });
        let stream = answer.try_recv().map_err(|_| "no answer".to_string())?;
        let stream = stream.map_err(|why| why.to_string())?;
        self.streams.insert(stream, receiver);
        Ok(stream)
    }

    /// An agent says something on its stream.
    ///
    /// # Errors
    /// Why the stream is closed.
    pub fn said(&mut self, now: Now, stream: u64, raw: Raw) -> Result<(), String> {
        if let Some(message) = wire::incoming(raw).map_err(|why| why.to_string())? {
            self.handle(now, Event::Said { stream, message, share: None });
        }
        Ok(())
    }

    /// A stream is gone.
    pub fn gone(&mut self, now: Now, stream: u64) {
        self.streams.remove(&stream);
        self.handle(now, Event::Gone { stream });
    }

    /// The next message to an agent, with its stream; a stream that the coordinator has closed
    /// comes without a message, once.
    pub fn poll(&mut self) -> Option<(u64, Option<Outgoing>)> {
        for (&stream, receiver) in &mut self.streams {
            match receiver.try_recv() {
                Ok(message) => return Some((stream, Some(message))),
                Err(mpsc::error::TryRecvError::Empty) => {}
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    self.streams.remove(&stream);
                    return Some((stream, None));
                }
            }
        }
        None
    }

    /// 200 ms have passed.
    pub fn tick(&mut self, now: Now) {
        self.handle(now, Event::Tick);
    }

    /// Requests a capture of a job's newest attempt. The answer comes with
    /// [`Self::taken`] under this number.
    pub fn request_capture(&mut self, now: Now, number: u64, job: &str, step: Option<u64>) {
        let (reply, answer) = oneshot::channel();
        self.handle(now, Event::CaptureWanted { job: job.to_string(), step, reply });
        self.asked.push_back((number, answer));
    }

    /// The next answer to [`Self::request_capture`]: the name of the capture, or why not.
    pub fn taken(&mut self) -> Option<(u64, Result<String, String>)> {
        for index in 0..self.asked.len() {
            let (number, answer) = self.asked.get_mut(index)?;
            let number = *number;
            let result = match answer.try_recv() {
                Ok(Ok(id)) => Ok(id),
                Ok(Err(why)) => Err(why.to_string()),
                Err(oneshot::error::TryRecvError::Empty) => continue,
                Err(oneshot::error::TryRecvError::Closed) => Err("no answer".to_string()),
            };
            self.asked.remove(index);
            return Some((number, result));
        }
        None
    }

    /// An agent sends a body, whole. The answer comes with [`Self::receipt`] under this number.
    pub fn upload(&mut self, now: Now, number: u64, capture: &str, tape_id: &str, body: Bytes) {
        let (reply, answer) = oneshot::channel();
        let (capture, tape_id) = (capture.to_string(), tape_id.to_string());
        let upload = Box::new(BodyOnItsWay { capture, tape_id, body });
        let (capture, tape_id) = (upload.capture.clone(), upload.tape_id.clone());
        self.handle(now, Event::UploadBegun { capture, tape_id, reply });
        self.receipts.push_back((number, Waiting::Begun { reply: answer, upload }));
    }

    /// The next answer to [`Self::upload`].
    pub fn receipt(&mut self, now: Now) -> Option<(u64, Receipt)> {
        for index in 0..self.receipts.len() {
            let (number, waiting) = self.receipts.remove(index)?;
            match self.look(now, waiting) {
                Ok(receipt) => return Some((number, receipt)),
                Err(waiting) => self.receipts.insert(index, (number, waiting)),
            }
        }
        None
    }

    /// The store's writer does what waits, and what follows from it.
    pub fn turn(&mut self, now: Now) {
        set_clock(now);
        self.store.turn();
        while let Ok(event) = self.events.try_recv() {
            self.handle(now, event);
        }
    }

    /// Does the oldest comparison or restart that waits; false when there is none.
    pub fn do_work(&mut self, now: Now) -> bool {
        set_clock(now);
        let Ok(work) = self.works.try_recv() else { return false };
        let done = match work {
            Work::Compare(task) => at_once(diagnosing::compare(*task, self.store.blobs())),
            Work::Restart { order, .. } => {
                self.restarts.push((order.action.clone(), order.job));
                let (action, outcome) = (order.action, "done".to_string());
                WorkDone::Restarted {
                    action,
                    outcome: memtape_core::policy::Outcome::Finished { said: outcome },
                }
            }
        };
        self.handle(now, Event::Worked(done));
        true
    }

    /// Restarts that were asked for since the last call: action and job.
    pub fn restarts(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.restarts)
    }

    /// All captures, by name.
    pub fn captures(&self) -> impl Iterator<Item = Capture> {
        let view = self.coordinator.view(clock::now());
        view.captures.iter().map(|state| capture(&state.record, &state.parts))
    }

    /// One capture.
    pub fn capture(&self, id: &str) -> Option<Capture> {
        let state = self.coordinator.view(clock::now()).captures.get(id)?;
        Some(capture(&state.record, &state.parts))
    }

    /// All incidents, by name.
    pub fn incidents(&self) -> impl Iterator<Item = Incident> {
        let view = self.coordinator.view(clock::now());
        view.incidents.iter().map(|known| incident(known.incident()))
    }

    /// All ranks of all attempts.
    pub fn ranks(&self) -> Vec<RankSeen> {
        let view = self.coordinator.view(clock::now());
        let ranks = view.jobs.attempts().flat_map(|attempt| {
            attempt.ranks.values().map(|rank| RankSeen {
                serial: attempt.record.serial,
                rank: rank.record.rank,
                tape_id: rank.record.tape_id.clone(),
                step: rank.step,
                end: rank.record.end.map(|end| format!("{end:?}")),
                steps_missed: rank.steps_missed,
            })
        });
        ranks.collect()
    }

    /// The steps of a rank's first device that the store has, in order.
    ///
    /// # Errors
    /// One line.
    pub fn steps(&self, now: Now, serial: u32, rank: u32) -> Result<Vec<Step>, String> {
        set_clock(now);
        let attempt = self.coordinator.view(clock::now()).jobs.get(serial);
        let from_wall_ns = attempt.map_or(0, |attempt| attempt.record.first_seen_wall_ns);
        let key = SeriesKey { serial, rank, device: 0 };
        let rows = self.store.series(key, from_wall_ns, now.wall_ns);
        let rows = rows.map_err(|error| error.to_string())?;
        Ok(rows.iter().map(|row| (row.first_step, row.last_step, row.end_allocated)).collect())
    }

    /// The state that a stored body holds.
    ///
    /// # Errors
    /// One line: it is gone, or damaged.
    pub fn body(&self, hash: [u8; 32]) -> Result<RankSnapshot, String> {
        let bytes = at_once(self.store.blobs().get(blake3::Hash::from_bytes(hash)));
        let bytes = bytes.map_err(|error| error.to_string())?;
        snapshot::decode(&bytes, Bounds::default()).map_err(|error| error.to_string())
    }

    /// What it holds in memory.
    pub fn held(&self) -> Held {
        let health = self.store.health();
        let load =
            |count: &std::sync::atomic::AtomicU64| count.load(std::sync::atomic::Ordering::Relaxed);
        let view = self.coordinator.view(clock::now());
        Held {
            captures: view.captures.count(),
            incidents: view.incidents.count(),
            in_flight: view.captures.iter().filter(|state| !state.record.is_closed()).count(),
            outgoing_max: self.streams.values().map(mpsc::Receiver::len).max().unwrap_or(0),
            waiting: load(&health.waiting),
            given_up: load(&health.given_up),
        }
    }

    fn handle(&mut self, now: Now, event: Event) {
        self.coordinator.handle(set_clock(now), event);
    }

    /// Takes an upload one step further; gives it back while it has to wait.
    fn look(&mut self, now: Now, waiting: Waiting) -> Result<Receipt, Waiting> {
        match waiting {
            Waiting::Begun { mut reply, upload } => match reply.try_recv() {
                Ok(verdict @ Upload::Wanted { .. }) => self.keep(now, verdict, *upload),
                Ok(Upload::Stored { hash }) => Ok(Receipt::Stored(*hash.as_bytes())),
                Ok(Upload::Later) => Ok(Receipt::Failed("the store cannot be written".into())),
                Ok(Upload::Refused) => Ok(Receipt::Refused("no capture waits for it".into())),
                Err(oneshot::error::TryRecvError::Empty) => Err(Waiting::Begun { reply, upload }),
                Err(_) => Ok(Receipt::Failed("the coordinator is stopping".into())),
            },
            Waiting::Kept { mut reply, hash } => match reply.try_recv() {
                Ok(Ok(())) => Ok(Receipt::Stored(*hash.as_bytes())),
                Ok(Err(BodyRefused::Stale(why))) => Ok(Receipt::Refused(why.into())),
                Ok(Err(BodyRefused::Store(why))) => Ok(Receipt::Failed(why)),
                Err(oneshot::error::TryRecvError::Empty) => Err(Waiting::Kept { reply, hash }),
                Err(_) => Ok(Receipt::Failed("the coordinator is stopping".into())),
            },
        }
    }

    fn keep(
        &mut self,
        now: Now,
        verdict: Upload,
        upload: BodyOnItsWay,
    ) -> Result<Receipt, Waiting> {
        let BodyOnItsWay { capture, tape_id, body } = upload;
        let (bytes, hash) = (body.len() as u64, blake3::hash(&body));
        if !verdict.is_as_promised(bytes, &hash) {
            return Ok(Receipt::Failed("the body is not the one that was announced".into()));
        }
        if let Err(why) = snapshot::decode(&body, Bounds::default()) {
            return Ok(Receipt::Refused(why.to_string()));
        }
        if let Err(why) = at_once(self.store.blobs().put(hash, body)) {
            let why = why.to_string();
            self.handle(now, Event::BodyFailed { capture, tape_id, why: why.clone() });
            return Ok(Receipt::Failed(why));
        }
        let (reply, answer) = oneshot::channel();
        let body = StoredBody { capture, tape_id, bytes, hash };
        self.handle(now, Event::BodyStored { body, reply });
        Err(Waiting::Kept { reply: answer, hash })
    }
}

fn set_clock(now: Now) -> Moment {
    let now = Moment { mono_ns: now.mono_ns, wall_ns: now.wall_ns };
    clock::set(now);
    now
}

/// What a future answers that waits for nothing, as all do here.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a simulated future waits"),
    }
}

fn capture(record: &CaptureRecord, parts: &[PartRecord]) -> Capture {
    let part = |part: &PartRecord| Part {
        rank: part.rank,
        tape_id: part.tape_id.clone(),
        outcome: part.outcome,
        step: part.step,
        dead: part.dead,
        hash: part.hash().map(|hash| *hash.as_bytes()),
        detail: part.detail.clone(),
    };
    Capture {
        id: record.id.clone(),
        job: record.job.clone(),
        serial: record.serial,
        reason: record.reason.clone(),
        step: record.step,
        requested_wall_ns: record.requested_wall_ns,
        closed_wall_ns: record.closed_wall_ns,
        complete: record.complete,
        parts: parts.iter().map(part).collect(),
    }
}

fn incident(record: &IncidentRecord) -> Incident {
    Incident {
        id: record.id.clone(),
        serial: record.serial,
        rank: record.growth.rank,
        onset_step: record.growth.onset_step,
        opened_wall_ns: record.opened_wall_ns,
        closed_wall_ns: record.closed.map(|closed| closed.wall_ns),
        scope: record.growth.scope.as_str().to_string(),
        class: record.class().as_str().to_string(),
        closed_why: record.closed.map(|closed| closed.reason.to_string()).unwrap_or_default(),
    }
}
