//! The coordinator for simulations: the real loop, wire and store in one thread, with the time
//! that the caller passes.
//!
//! A [`SimulatedCoordinator`] has no runtime, no thread, no socket and no clock of its own. The
//! simulation carries messages between it and its agents, says when the store's writer works and
//! when a comparison is done. What `grpc.rs` does for a stream and an upload is done here in the
//! same order. Dropping the value is a SIGKILL; a new one on the same disk is its restart.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use memtape_core::capacity::Division;
use memtape_core::identity::ids::Ids;
use memtape_core::limits::{MESSAGES_WAITING_MAX, SNAPSHOT_BYTES_MAX};
use memtape_core::snapshot::RankSnapshot;
use memtape_disk::files::Disk;
use memtape_proto::snapshot::{self, Bounds};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::access::audit::Audit;
use crate::config::Config;
use crate::coordinator::{Coordinator, Shared};
use crate::ingest::event::Event;
use crate::ingest::wire::{self, Outgoing, Raw};
use crate::state::captures::uploads::{StoredSnapshot, Upload, UploadRefused};
use crate::state::counters::Counters;
use crate::state::effects::{CaptureRefused, Work, WorkDone};
use crate::state::restored::Restored;
use crate::telemetry::export::Telemetry;
use crate::testing::seen::{self, Action, Capture, Held, Incident, RankSeen, Step};
use crate::work::decoding::Snapshots;
use crate::work::diagnosing;
use memtape_disk::clock::{self, Now as Moment};
use memtape_store::Store;
use memtape_store::records::SeriesKey;

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

/// What became of one try to send a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// It is stored and synced, under this hash.
    Stored([u8; 32]),
    /// Another try may help.
    Failed(String),
    /// Another try does not help.
    Refused(String),
}

/// A coordinator without a machine.
pub struct SimulatedCoordinator {
    coordinator: Coordinator,
    store: Store,
    events: mpsc::Receiver<Event>,
    works: mpsc::UnboundedReceiver<Work>,
    streams: BTreeMap<u64, mpsc::Receiver<Result<Outgoing, Status>>>,
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
    Begun { reply: oneshot::Receiver<Upload>, upload: Box<SnapshotOnItsWay> },
    /// It is written, and not in the manifest yet.
    Kept { reply: oneshot::Receiver<Result<(), UploadRefused>>, hash: blake3::Hash },
}

struct SnapshotOnItsWay {
    capture: String,
    tape_id: String,
    snapshot: Bytes,
}

impl SimulatedCoordinator {
    /// Starts one on a disk, with what an earlier one left there.
    ///
    /// # Errors
    /// One line, as a real one would say it.
    pub fn open(now: Now, config: Config, disk: &Arc<dyn Disk>) -> anyhow::Result<Self> {
        let now = set_clock(now);
        let config = Arc::new(config);
        let (store, loaded, _) = Store::open_in_turns(disk)?;
        let restored = Restored::new(now, &config, loaded, &store, &Ids::default());
        at_once(store.blobs().sweep());
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let (works_sender, works) = mpsc::unbounded_channel();
        let counters = Arc::new(Counters::default());
        let telemetry = Arc::new(Telemetry::start(None, &counters)?);
        let audit = Audit::new(store.clone(), counters.clone(), Vec::new());
        let shared = Shared { store: store.clone(), counters, audit, telemetry, events: sender };
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
    pub fn attach(&mut self, now: Now, hello: Raw) -> anyhow::Result<u64> {
        let (hello, _) = wire::hello(hello)?;
        let (outgoing, receiver) = mpsc::channel(MESSAGES_WAITING_MAX);
        let (reply, mut answer) = oneshot::channel();
        let (from, end) = (([127, 0, 0, 1], 1).into(), CancellationToken::new());
        self.handle(now, Event::Attached { hello, from, outgoing, end, reply });
        let stream = answer.try_recv()??;
        self.streams.insert(stream, receiver);
        Ok(stream)
    }

    /// An agent says something on its stream.
    ///
    /// # Errors
    /// Why the stream is closed.
    pub fn said(&mut self, now: Now, stream: u64, raw: Raw) -> anyhow::Result<()> {
        if let Some(message) = wire::incoming(raw)? {
            self.handle(
                now,
                Event::Said { stream, message: message.into(), share: None, turn: None },
            );
        }
        Ok(())
    }

    /// A stream is gone.
    pub fn gone(&mut self, now: Now, stream: u64) {
        self.streams.remove(&stream);
        self.handle(now, Event::Gone { stream, turn: None });
    }

    /// The next message to an agent, with its stream; a stream that the coordinator has closed
    /// comes without a message, once.
    pub fn poll(&mut self) -> Option<(u64, Option<Outgoing>)> {
        for (&stream, receiver) in &mut self.streams {
            match receiver.try_recv() {
                Ok(Ok(message)) => return Some((stream, Some(message))),
                Err(mpsc::error::TryRecvError::Empty) => {}
                Ok(Err(_)) | Err(mpsc::error::TryRecvError::Disconnected) => {
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
        // One owner has a job of that name.
        let id = self.coordinator.view().jobs.called(job).next().cloned();
        let job = id.unwrap_or_else(|| job.to_string());
        self.handle(now, Event::CaptureWanted { job, step, reply });
        self.asked.push_back((number, answer));
    }

    /// The next answer to [`Self::request_capture`]: the name of the capture, or why not.
    pub fn taken(&mut self) -> Option<(u64, anyhow::Result<String>)> {
        for index in 0..self.asked.len() {
            let (number, answer) = self.asked.get_mut(index)?;
            let number = *number;
            let result = match answer.try_recv() {
                Ok(result) => result.map_err(anyhow::Error::from),
                Err(oneshot::error::TryRecvError::Empty) => continue,
                Err(closed) => Err(closed.into()),
            };
            self.asked.remove(index);
            return Some((number, result));
        }
        None
    }

    /// An agent sends a snapshot, whole. The answer comes with [`Self::receipt`] under this number.
    pub fn upload(
        &mut self,
        now: Now,
        number: u64,
        (capture, tape_id): (&str, &str),
        node: &str,
        snapshot: Bytes,
    ) {
        let (reply, answer) = oneshot::channel();
        let (capture, tape_id) = (capture.to_string(), tape_id.to_string());
        let upload = Box::new(SnapshotOnItsWay { capture, tape_id, snapshot });
        let (capture, tape_id) = (upload.capture.clone(), upload.tape_id.clone());
        let (nodes, turn) = (vec![node.to_string()], None);
        self.handle(now, Event::UploadBegun { capture, tape_id, nodes, reply, turn });
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
            Work::Compare(task) => at_once(diagnosing::compare(*task, &self.snapshots())),
            Work::Resume { order, .. } => WorkDone::Resumed { action: order.action, outcome: None },
            Work::Act { order, .. } => {
                self.restarts.push((order.action.clone(), order.job));
                let (action, outcome) = (order.action, "done".to_string());
                WorkDone::Acted {
                    action,
                    outcome: memtape_core::action::Outcome::Finished { said: outcome },
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
        let view = self.coordinator.view();
        view.captures.iter().map(|state| seen::capture(&state.record, &state.parts))
    }

    /// One capture.
    pub fn capture(&self, id: &str) -> Option<Capture> {
        let state = self.coordinator.view().captures.get(id)?;
        Some(seen::capture(&state.record, &state.parts))
    }

    /// All incidents, by name.
    pub fn incidents(&self) -> impl Iterator<Item = Incident> {
        let view = self.coordinator.view();
        view.incidents.iter().map(|known| seen::incident(known.incident()))
    }

    /// All decisions, oldest first.
    pub fn actions(&self) -> impl Iterator<Item = Action> {
        self.coordinator.view().actions.iter().map(seen::action)
    }

    /// All ranks of all attempts.
    pub fn ranks(&self) -> Vec<RankSeen> {
        let view = self.coordinator.view();
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
    pub fn steps(&self, now: Now, serial: u32, rank: u32) -> anyhow::Result<Vec<Step>> {
        set_clock(now);
        let key = SeriesKey { serial, rank, device: 0 };
        let rows = self.store.series(key)?;
        Ok(rows.iter().map(|row| (row.first_step, row.last_step, row.end_allocated)).collect())
    }

    /// The state that a stored snapshot holds.
    ///
    /// # Errors
    /// One line: it is gone, or damaged.
    pub fn snapshot(&self, hash: [u8; 32]) -> anyhow::Result<RankSnapshot> {
        let bytes = at_once(self.store.blobs().get(blake3::Hash::from_bytes(hash)))?;
        Ok(snapshot::decode(&bytes, Bounds::default())?)
    }

    fn snapshots(&self) -> Snapshots {
        Snapshots::new(self.store.blobs().clone(), Arc::default(), Division::of(None))
    }

    /// What it holds in memory.
    pub fn held(&self) -> Held {
        let health = self.store.health();
        let load =
            |count: &std::sync::atomic::AtomicU64| count.load(std::sync::atomic::Ordering::Relaxed);
        let view = self.coordinator.view();
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
                Ok(Err(UploadRefused::Stale(why))) => Ok(Receipt::Refused(why.into())),
                Ok(Err(UploadRefused::Store(why))) => Ok(Receipt::Failed(why)),
                Err(oneshot::error::TryRecvError::Empty) => Err(Waiting::Kept { reply, hash }),
                Err(_) => Ok(Receipt::Failed("the coordinator is stopping".into())),
            },
        }
    }

    fn keep(
        &mut self,
        now: Now,
        verdict: Upload,
        upload: SnapshotOnItsWay,
    ) -> Result<Receipt, Waiting> {
        let SnapshotOnItsWay { capture, tape_id, snapshot } = upload;
        let (bytes, hash) = (snapshot.len() as u64, blake3::hash(&snapshot));
        if !verdict.is_as_promised(bytes, &hash) {
            return Ok(Receipt::Failed("the snapshot is not the one that was announced".into()));
        }
        if let Err(why) = snapshot::unpacked_bytes(&snapshot, SNAPSHOT_BYTES_MAX) {
            return Ok(Receipt::Refused(why.to_string()));
        }
        if let Err(why) = at_once(self.store.blobs().put(hash, snapshot)) {
            let why = why.to_string();
            self.handle(now, Event::SnapshotFailed { capture, tape_id, why: why.clone() });
            return Ok(Receipt::Failed(why));
        }
        let (reply, answer) = oneshot::channel();
        let snapshot = StoredSnapshot { capture, tape_id, bytes, hash };
        self.handle(now, Event::SnapshotStored { snapshot, reply });
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

#[cfg(test)]
mod tests {
    use memtape_proto::v1::agent_message::Body;
    use memtape_proto::v1::coordinator_message::Body as Answer;
    use memtape_proto::{PROTOCOL, v1};
    use memtape_simulated_disk::SimulatedDisk;

    use super::*;

    #[test]
    fn an_agent_is_asked_while_the_writer_of_a_folder_does_nothing() {
        let now = Now { mono_ns: 1_000_000_000, wall_ns: 1_700_000_000_000_000_000 };
        let disk = SimulatedDisk::new(1).process();
        let mut coordinator = SimulatedCoordinator::open(now, Config::default(), &disk).unwrap();
        let message = |body| v1::AgentMessage { body: Some(body) };
        let (protocol, node) = (PROTOCOL, "node-a".to_string());
        let hello = v1::Hello { protocol, node, ..v1::Hello::default() };
        let stream = coordinator.attach(now, message(Body::Hello(hello))).unwrap();
        let (tape_id, job) = ("tape-1".to_string(), "train".to_string());
        let (world_size, owner) = (1, Some(v1::Owner::default()));
        let report = v1::RankReport { tape_id: tape_id.clone(), step: 8, ..Default::default() };
        let report = v1::Report { number: 1, ranks: vec![report], ..Default::default() };
        let up = v1::RankUp { tape_id, job, world_size, owner, ..Default::default() };
        for body in [Body::RankUp(up), Body::Report(report)] {
            coordinator.said(now, stream, message(body)).unwrap();
        }
        coordinator.request_capture(now, 1, "train", None);
        let is_request = |answer: Outgoing| matches!(answer.body, Some(Answer::CaptureRequest(_)));
        let mut answers = std::iter::from_fn(|| coordinator.poll());
        assert!(answers.any(|(_, answer)| answer.is_some_and(is_request)));
    }
}
