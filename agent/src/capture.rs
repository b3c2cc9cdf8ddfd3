//! Answers to the coordinator's captures: rewinding a tape, and the life of each answer.
//!
//! A rewind runs on a blocking thread, a few at a time; its body waits compressed in memory, up to
//! a bound, until the coordinator has stored it or the capture's deadline has passed. Nothing here
//! pauses a rank. What cannot be had exactly is never guessed: the outcome says what the body
//! shows instead.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use memtape_core::capture::{Answer, Outcome};
use memtape_core::snapshot::RankSnapshot;
use memtape_core::tape::reader::Tape;
use memtape_core::tape::rewind::{Moment, RewindError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::Channel;

use crate::clock;
use crate::config::Config;
use crate::link;
use crate::liveness::{Holder, holder};
use crate::run::Event;
use crate::tapes::FileSource;
use crate::wire::{self, Outgoing, RankUp};

/// Answers in the making, at most; requests beyond are refused with a line that says so.
const JOBS_MAX: usize = 4096;

/// Largest body before compression, in bytes.
const BODY_BYTES_MAX: usize = 1 << 30;

/// zstd's level: 3 is its own default; higher ones cost more time than they save on the wire.
const ZSTD_LEVEL: i32 = 3;

/// Deadlines of requests are kept within these; one without any gets the first.
const DEADLINE_DEFAULT: Duration = Duration::from_secs(30);
const DEADLINE_MAX: Duration = Duration::from_secs(600);

/// Which answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct JobKey {
    /// Of which capture.
    pub(crate) capture_id: String,
    /// About which tape.
    pub(crate) tape_id: String,
}

/// All answers in the making.
#[derive(Debug)]
pub(crate) struct Captures {
    jobs: BTreeMap<JobKey, Job>,
    rewinds: Arc<Semaphore>,
    upload_kib: Arc<Semaphore>,
    upload_kib_max: u32,
}

#[derive(Debug)]
struct Job {
    deadline: Instant,
    /// Known after the rewind; sent again on a new stream until it is known to have arrived.
    answer: Option<Outgoing>,
    /// The report of the present stream whose acknowledgement says that the answer has arrived.
    arrives_with: Option<u64>,
    has_arrived: bool,
    /// The coordinator has the body, or there is none.
    is_stored: bool,
}

/// What a rewind needs.
#[derive(Debug)]
pub(crate) struct Rewind {
    /// The tape.
    pub(crate) tape: Arc<Tape<FileSource>>,
    /// Its file, for asking the lock.
    pub(crate) file: Arc<File>,
    /// Its process was seen alive, so that the tape's clock is this kernel's.
    pub(crate) same_boot: bool,
    /// The rank, for the body.
    pub(crate) rank: RankUp,
    /// T; none means the present.
    pub(crate) step: Option<u64>,
    /// T0, if any.
    pub(crate) before: Option<u64>,
    /// Events per device.
    pub(crate) trace_events_max: usize,
}

/// A body on its way. Dropping it frees its share of the memory bound.
#[derive(Debug)]
pub(crate) struct Body {
    bytes: Bytes,
    hash: blake3::Hash,
    _share: OwnedSemaphorePermit,
}

/// What became of a rewind.
#[derive(Debug)]
pub(crate) struct Rewound {
    /// What to tell the coordinator.
    pub(crate) answer: Outgoing,
    /// What to upload, if anything.
    pub(crate) body: Option<Body>,
}

impl Captures {
    /// No answers yet.
    pub(crate) fn new(config: &Config) -> Self {
        let upload_kib_max = u32::try_from(config.upload_bytes_max.div_ceil(1024))
            .unwrap_or(u32::MAX)
            .min(Semaphore::MAX_PERMITS as u32);
        Self {
            jobs: BTreeMap::new(),
            rewinds: Arc::new(Semaphore::new(config.rewinds_max)),
            upload_kib: Arc::new(Semaphore::new(upload_kib_max as usize)),
            upload_kib_max,
        }
    }

    /// Starts an answer. One that is in the making already is answered again when it is known;
    /// `Err` is an answer at once.
    pub(crate) fn start(
        &mut self,
        key: JobKey,
        rewind: Rewind,
        deadline: Option<Duration>,
        events: mpsc::Sender<Event>,
    ) -> Option<Outgoing> {
        if let Some(job) = self.jobs.get(&key) {
            return job.answer.clone();
        }
        if self.jobs.len() >= JOBS_MAX {
            let why = format!("the agent has {JOBS_MAX} captures to answer: ask again later");
            return Some(refusal(&key, &why));
        }
        let deadline = Instant::now() + deadline.unwrap_or(DEADLINE_DEFAULT).min(DEADLINE_MAX);
        let job = Job {
            deadline,
            answer: None,
            arrives_with: None,
            has_arrived: false,
            is_stored: false,
        };
        self.jobs.insert(key.clone(), job);
        let rewinds = Arc::clone(&self.rewinds);
        let upload_kib = Arc::clone(&self.upload_kib);
        let upload_kib_max = self.upload_kib_max;
        tokio::spawn(async move {
            let answering = answer_in_turn(&key, rewind, rewinds, upload_kib, upload_kib_max);
            let event = match timeout_at(deadline, answering).await {
                Ok(rewound) => Event::Rewound(key, rewound),
                Err(_) => Event::Ended(key, Err("its deadline passed before its turn".into())),
            };
            let _ = events.send(event).await; // the loop is gone: the agent stops
        });
        None
    }

    /// A rewind is done: keeps the answer until it has arrived, and starts the upload.
    pub(crate) fn rewound(
        &mut self,
        key: JobKey,
        rewound: Rewound,
        channel: Channel,
        events: mpsc::Sender<Event>,
    ) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        job.answer = Some(rewound.answer);
        let Some(body) = rewound.body else {
            job.is_stored = true;
            return;
        };
        let deadline = job.deadline;
        tokio::spawn(async move {
            let uploading = upload_until_done(&key, &body, channel);
            let result = timeout_at(deadline, uploading)
                .await
                .unwrap_or_else(|_| Err("its deadline passed before it was stored".to_string()));
            let _ = events.send(Event::Ended(key, result)).await; // the agent stops
        });
    }

    /// A body is stored, or will not be.
    pub(crate) fn ended(&mut self, key: &JobKey, result: Result<(), String>) {
        if let Err(why) = result {
            let JobKey { capture_id, tape_id } = key;
            let (capture, tape) = (capture_id, tape_id);
            tracing::warn!(?capture, ?tape, "part of a capture was not stored: {why}");
            self.jobs.remove(key);
        } else if let Some(job) = self.jobs.get_mut(key) {
            job.is_stored = true;
        }
        self.forget_done();
    }

    /// A new stream: answers that are not known to have arrived have to be sent again.
    pub(crate) fn start_stream(&mut self) {
        for job in self.jobs.values_mut() {
            job.arrives_with = None;
        }
    }

    /// Answers to be sent on this stream.
    pub(crate) fn unsent(&self) -> Vec<(JobKey, Outgoing)> {
        let unsent =
            self.jobs.iter().filter(|(_, job)| !job.has_arrived && job.arrives_with.is_none());
        unsent.filter_map(|(key, job)| Some((key.clone(), job.answer.clone()?))).collect()
    }

    /// An answer was sent; the acknowledgement of this report will say that it has arrived.
    pub(crate) fn sent(&mut self, key: &JobKey, report: u64) {
        if let Some(job) = self.jobs.get_mut(key) {
            job.arrives_with = Some(report);
        }
    }

    /// Everything up to this report has arrived.
    pub(crate) fn acked(&mut self, report: u64) {
        for job in self.jobs.values_mut() {
            job.has_arrived |= job.arrives_with.is_some_and(|number| number <= report);
        }
        self.forget_done();
    }

    /// Gives up answers whose deadline has passed; those with a body end by themselves.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.jobs.retain(|_, job| !job.is_stored || now < job.deadline);
    }

    fn forget_done(&mut self) {
        self.jobs.retain(|_, job| !(job.is_stored && job.has_arrived));
    }

    /// True while an answer about this tape is in the making.
    pub(crate) fn needs(&self, tape_id: &str) -> bool {
        self.jobs.keys().any(|key| key.tape_id == tape_id)
    }
}

/// The answer for a tape that is not there or cannot be read.
pub(crate) fn refusal(key: &JobKey, why: &str) -> Outgoing {
    wire::capture_answer(&key.capture_id, &key.tape_id, &no_tape(why), None)
}

async fn answer_in_turn(
    key: &JobKey,
    rewind: Rewind,
    rewinds: Arc<Semaphore>,
    upload_kib: Arc<Semaphore>,
    upload_kib_max: u32,
) -> Rewound {
    let closed = || Rewound { answer: refusal(key, "the agent is stopping"), body: None };
    // Held until the body has its share of the memory bound: no more than this many bodies can
    // be beyond it.
    let Ok(_turn) = rewinds.acquire_owned().await else { return closed() };
    let done = tokio::task::spawn_blocking(move || rewind_and_encode(&rewind)).await;
    let (mut answer, body) = match done {
        Ok(done) => done,
        Err(error) => (no_tape(&format!("the tape could not be rewound: {error}")), None),
    };
    let Some(bytes) = body else {
        let answer = wire::capture_answer(&key.capture_id, &key.tape_id, &answer, None);
        return Rewound { answer, body: None };
    };
    let kib = u32::try_from(bytes.len().div_ceil(1024)).unwrap_or(u32::MAX).min(upload_kib_max);
    let Ok(share) = upload_kib.acquire_many_owned(kib).await else { return closed() };
    let hash = blake3::hash(&bytes);
    answer.body_bytes = bytes.len() as u64;
    let answer = wire::capture_answer(&key.capture_id, &key.tape_id, &answer, Some(hash));
    Rewound { answer, body: Some(Body { bytes: bytes.into(), hash, _share: share }) }
}

async fn upload_until_done(key: &JobKey, body: &Body, channel: Channel) -> Result<(), String> {
    let mut failures = 0;
    loop {
        let JobKey { capture_id, tape_id } = key;
        let bytes = body.bytes.clone();
        match link::upload(channel.clone(), capture_id, tape_id, bytes, body.hash).await {
            Ok(()) => return Ok(()),
            Err(error) if error.is_final => return Err(error.why),
            Err(_) => sleep(link::backoff(failures, 500)).await,
        }
        failures += 1;
    }
}

/// The answer for one tape and its body, compressed. Blocks; takes milliseconds to seconds.
fn rewind_and_encode(rewind: &Rewind) -> (Answer, Option<Vec<u8>>) {
    // Asked first: everything a dead process wrote is then there to be read.
    let dead = matches!(holder(&rewind.file), Ok(Holder::Nobody));
    let (outcome, snapshot, mut details) = match take(rewind, dead) {
        Ok(taken) => taken,
        Err(error) => return (Answer { dead, ..no_tape(&error.to_string()) }, None),
    };
    if let Some(before) = rewind.before.filter(|_| snapshot.before_step == 0) {
        details.push(format!("the earlier step {before} is not on the tape"));
    }
    if snapshot.devices.iter().any(|device| !device.complete) {
        details.push("the live table overflowed, so that blocks may be missing".to_string());
    }
    let answer = Answer {
        outcome,
        step: snapshot.step,
        wall_ns: snapshot.wall_ns,
        wall_error_ns: wall_error_ns(rewind),
        dead,
        before_step: snapshot.before_step,
        body_bytes: 0,
        detail: details.join("; "),
    };
    let body = match wire::rank_body(snapshot, rewind.rank.clone(), BODY_BYTES_MAX) {
        Ok(body) => body,
        Err(bytes) => {
            let why = format!("its state is too large: {bytes} of {BODY_BYTES_MAX} bytes");
            return (Answer { dead, ..no_tape(&why) }, None);
        }
    };
    match zstd::bulk::compress(&body, ZSTD_LEVEL) {
        Ok(compressed) => (answer, Some(compressed)),
        Err(error) => (no_tape(&format!("its state cannot be compressed: {error}")), None),
    }
}

/// The state asked for, or else the newest, with what became of the request.
fn take(rewind: &Rewind, dead: bool) -> Result<(Outcome, RankSnapshot, Vec<String>), RewindError> {
    let moment = rewind.step.map_or(Moment::Present, Moment::EndOf);
    let snapshot = |moment| rewind.tape.snapshot(moment, rewind.before, rewind.trace_events_max);
    let (outcome, why) = match snapshot(moment) {
        Ok(snapshot) => return Ok((Outcome::Aligned, snapshot, Vec::new())),
        Err(error @ RewindError::NotCovered { .. }) => (Outcome::Late, error),
        Err(error @ RewindError::NotReached { .. }) if dead => (Outcome::Dead, error),
        Err(error @ RewindError::NotReached { .. }) => (Outcome::Behind, error),
        Err(error) => return Err(error),
    };
    Ok((outcome, snapshot(Moment::Present)?, vec![why.to_string()]))
}

/// How wrong the tape's wall times may be: its anchor's error, and how far the wall clock has
/// moved against the monotonic one since then. A tape of an earlier boot has only the first.
fn wall_error_ns(rewind: &Rewind) -> u64 {
    let anchor_error_ns = rewind.tape.status().anchor_error_ns;
    if !rewind.same_boot {
        return anchor_error_ns;
    }
    let now = clock::now();
    anchor_error_ns.saturating_add(rewind.tape.wall_ns(now.mono_ns).abs_diff(now.wall_ns))
}

fn no_tape(why: &str) -> Answer {
    Answer {
        outcome: Outcome::NoTape,
        step: 0,
        wall_ns: 0,
        wall_error_ns: 0,
        dead: false,
        before_step: 0,
        body_bytes: 0,
        detail: why.to_string(),
    }
}
