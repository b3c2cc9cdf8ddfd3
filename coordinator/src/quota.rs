//! Quotas of nodes and callers: bytes, permits and rates.
//!
//! | of | quota | when it is used up |
//! |---|---|---|
//! | all, and each node | bytes of messages while they are read | the stream waits |
//! | all, and each node | bytes of messages until they are stored | the stream waits |
//! | each node | one event in the queue of the loop | the others wait |
//! | all, and each node | bytes of uploads, and a queue of them | it waits, or is refused |
//! | all, and each caller | bytes of large answers | the request waits for a while |
//! | each caller | requests in progress, and a rate of them | the request is refused |
//! | each caller | one question in the queue of the loop | the others wait |
//! | all, and each caller | threads that work on answers | the request waits |
//! | each node, and each owner on it | a rate of changes of ranks | they are refused, but no end |
//! | each node | a rate of streams that its agents open | the stream is refused |
//! | each node, and each owner on it | a rate of step records | a thinner series is kept |
//! | each node, and each job | a rate of agent-initiated captures | the capture is refused |
//! | each node, and each caller | a rate of logged refusals | the refusal is counted |
//! | each owner on a node | a rate of audited decisions to do nothing | the decision is counted |
//!
//! Bytes are reserved before they are read. A waiting upload costs only the few bytes that HTTP/2
//! lets an agent send unread. Nothing is dropped here: agents keep what was refused, on their tapes
//! or in memory.
//!
//! An upload reserves the size of its snapshot, all of it at once, because half-reserved snapshots
//! would wait for each other forever. Before that it waits in the queue of its node, then for one
//! of few permits to send its first chunk. A node is the one that a connection's stream has proven:
//! it has one quota, whatever connections it has, and at most half of the bytes of all, so that its
//! slow uploads hold up no other node's. A message reserves the bytes that decoding takes, of its
//! node's quarter first: reports and announcements until they are stored, so that a slow disk stops
//! the streams and not the coordinator; ends, answers and agent-initiated captures, which are few,
//! until the loop has taken them.
//!
//! A caller whose clients do not read their answers occupies a quarter of the bytes of answers, or
//! one larger answer, and none of the others'. An authenticated caller has one quota over all
//! networks; all others share the quota of their network.
//!
//! Memory for ranks, jobs and captures is shared by node and owner in the files of `state/`, by
//! `memtape_core::sharing`.

pub(crate) mod unsent;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use memtape_core::capacity::Division;
use memtape_core::limits::{
    AGENT_CAPTURES_AT_ONCE_MAX, AGENT_CAPTURES_PER_JOB_AND_HOUR_MAX, AGENT_CAPTURES_PER_JOB_MAX,
    AGENT_CAPTURES_PER_MINUTE_MAX, ANSWER_WORKS_MAX, ANSWER_WORKS_PER_CALLER_MAX,
    ANSWERS_BYTES_MAX, ANSWERS_BYTES_PER_CALLER_MAX, CALLERS_MAX, CHUNK_BYTES_MAX,
    DECLINED_AUDITED_MAX, DECLINED_AUDITED_SECONDS_MAX, LARGE_ANSWERS_PER_CALLER_MAX,
    MESSAGE_DECODED_BYTES_MAX, NODE_CHANGES_AT_ONCE_MAX, NODE_CHANGES_PER_MINUTE_MAX,
    NODE_STEPS_AT_ONCE_MAX, NODE_STEPS_PER_SECOND_MAX, NODES_MAX, OWNER_CHANGES_AT_ONCE_MAX,
    OWNER_CHANGES_PER_MINUTE_MAX, OWNER_STEPS_AT_ONCE_MAX, OWNER_STEPS_PER_SECOND_MAX, RANKS_MAX,
    REFUSALS_LOGGED_AT_ONCE_MAX, REFUSALS_LOGGED_PER_MINUTE_MAX, REPORTS_WAITING_BYTES_MAX,
    REPORTS_WAITING_BYTES_PER_NODE_MAX, REQUESTS_IN_PROGRESS_MAX, UPLOADS_BYTES_MAX,
    UPLOADS_BYTES_PER_NODE_MAX, UPLOADS_PER_NODE_MAX,
};
use memtape_core::rates::{Holder, HolderRates, Rates};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::quota::unsent::{Answers, Unsent};

/// Part of a quota; none when the coordinator stops.
pub(crate) type Permit = Option<OwnedSemaphorePermit>;

/// What a message of an agent takes of the quotas until it is stored; none in a simulation.
pub(crate) type Share = Option<NodePermit>;

pub(crate) const SECOND_NS: u64 = 1_000_000_000;
pub(crate) const MINUTE_NS: u64 = 60 * SECOND_NS;

/// Reports of one stream that are not acknowledged yet; the next ones wait to be read. Agents
/// keep to half of it on their own.
pub(crate) const REPORTS_PER_STREAM_MAX: usize = 64;

/// Largest message of an agent, as it comes.
pub(crate) const MESSAGE_BYTES_MAX: usize = CHUNK_BYTES_MAX * 4;

/// Bytes of a message that need no reservation: HTTP/2 lets a stream send as many unread.
const SMALL_MESSAGE_BYTES_MAX: u64 = 32 << 10;

/// Bytes of an upload besides its snapshot: a chunk that is being decoded.
const UPLOAD_OVERHEAD_BYTES: u64 = 1 << 20;

/// Uploads whose first chunk is read, which names the snapshot, and which wait for bytes for the
/// whole snapshot.
pub(crate) const FIRST_CHUNKS_MAX: usize = 16;

/// Uploads of one node that are past its queue: their first chunk is read, or they wait for bytes,
/// or they have them.
const UPLOADS_AT_ONCE_PER_NODE_MAX: usize = 2;

/// Streams that the agents of one node open at once; then one a second.
const STREAMS_AT_ONCE_PER_NODE_MAX: u64 = 10;

/// Parts of the bytes of messages, uploads and answers: a node, and a caller, has one at most.
const REPORTS_PARTS: u64 = REPORTS_WAITING_BYTES_MAX / REPORTS_WAITING_BYTES_PER_NODE_MAX;
const UPLOADS_PARTS: u64 = UPLOADS_BYTES_MAX / UPLOADS_BYTES_PER_NODE_MAX;
const ANSWERS_PARTS: u64 = ANSWERS_BYTES_MAX / ANSWERS_BYTES_PER_CALLER_MAX;

/// Time between two answers that give way to an answer that waits for memory.
const GIVE_WAY_EVERY: Duration = Duration::from_secs(2);

/// The quotas of all, of each node, and of each caller.
#[derive(Debug)]
pub(crate) struct Quotas {
    pub(crate) memory: Division,
    pub(crate) uploads: ByteQuota,
    messages: ByteQuota,
    pub(crate) reports: ByteQuota,
    pub(crate) answers: ByteQuota,
    nodes: PerName<NodeQuota>,
    callers: PerName<CallerQuota>,
    upload_queue: Arc<Semaphore>,
    first_chunks: Arc<Semaphore>,
    works: Arc<Semaphore>,
    unsent: Answers,
    /// Uploads that were asked to come back later.
    pub(crate) deferred: AtomicU64,
}

/// Bytes that may be in memory at once.
#[derive(Debug)]
pub(crate) struct ByteQuota {
    kib: Arc<Semaphore>,
    pub(crate) bytes_max: u64,
    /// Number of requests that had to wait, also for its parts.
    pub(crate) waits: Arc<AtomicU64>,
}

/// The quota of one node.
#[derive(Debug)]
pub(crate) struct NodeQuota {
    /// Bytes of the message that is read.
    messages: ByteQuota,
    /// Bytes of messages until they are stored.
    reports: ByteQuota,
    /// The permit to have an event in the queue of the loop.
    event: Arc<Semaphore>,
    /// Permits of the queue.
    queue: Arc<Semaphore>,
    /// Permits of uploads, each until its snapshot is stored.
    uploads: Arc<Semaphore>,
    /// Bytes of the node's uploads, some of which also wait for bytes of the quota of all.
    bytes: ByteQuota,
}

/// The quota of one caller.
#[derive(Debug)]
pub(crate) struct CallerQuota {
    requests: Arc<Semaphore>,
    /// The permit to have a question in the queue of the loop.
    question: Arc<Semaphore>,
    large_answers: Arc<Semaphore>,
    /// Threads that work on its answers.
    works: Arc<Semaphore>,
    pickle: Arc<Semaphore>,
    bytes: ByteQuota,
}

/// Memory of an answer.
#[derive(Debug)]
pub(crate) struct Reservation {
    /// Bytes of its caller's, bytes of all callers', and the permit of a large answer.
    shares: [Permit; 3],
    _caller: Arc<CallerQuota>,
}

/// Permits of a message or an upload of a node.
#[derive(Debug)]
pub(crate) struct NodePermit {
    /// Of an upload: slots in the queues of its node and of all, and the permit to send the first
    /// chunk; then the bytes of the snapshot.
    _permits: [Permit; 3],
    /// The permit of an upload until its snapshot is stored.
    _upload: Permit,
    /// Kept, so that whatever else the node sends counts these permits.
    pub(crate) node: Arc<NodeQuota>,
}

/// A value for each name that is in use.
type PerName<T> = Mutex<HashMap<String, Weak<T>>>;

/// Rates of callers: a bucket for each caller, which fills again with time.
#[derive(Debug)]
pub(crate) struct CallerRates(Mutex<Rates>);

impl NodeQuota {
    fn new(reports: &ByteQuota, uploads: &ByteQuota) -> Self {
        Self {
            messages: ByteQuota::new(MESSAGE_BYTES_MAX as u64),
            reports: reports.part(REPORTS_PARTS),
            event: permits(1),
            queue: permits(UPLOADS_PER_NODE_MAX),
            uploads: permits(UPLOADS_AT_ONCE_PER_NODE_MAX),
            bytes: uploads.part(UPLOADS_PARTS),
        }
    }

    /// Waits until no other event of the node is in the queue of the loop.
    pub(crate) async fn begin_event(&self) -> Permit {
        self.event.clone().acquire_owned().await.ok()
    }
}

impl CallerQuota {
    fn new(answers: &ByteQuota) -> Self {
        Self {
            requests: permits(REQUESTS_IN_PROGRESS_MAX),
            question: permits(1),
            large_answers: permits(LARGE_ANSWERS_PER_CALLER_MAX),
            works: permits(ANSWER_WORKS_PER_CALLER_MAX),
            pickle: permits(1),
            bytes: answers.part(ANSWERS_PARTS),
        }
    }

    /// Begins a request; none where too many are in progress.
    pub(crate) fn begin_request(&self) -> Permit {
        self.requests.clone().try_acquire_owned().ok()
    }

    /// Waits until no other question is in the queue of the loop.
    pub(crate) async fn begin_question(&self) -> Permit {
        self.question.clone().acquire_owned().await.ok()
    }

    /// Waits until the other pickles are sent.
    pub(crate) async fn begin_pickle(&self) -> Permit {
        self.pickle.clone().acquire_owned().await.ok()
    }
}

impl Quotas {
    /// The quotas of a coordinator with this memory.
    pub(crate) fn new(memory: Division) -> Self {
        Self {
            memory,
            uploads: ByteQuota::new(memory.uploads),
            messages: ByteQuota::new(memory.messages),
            reports: ByteQuota::new(memory.reports),
            answers: ByteQuota::new(memory.answers),
            nodes: PerName::default(),
            callers: PerName::default(),
            upload_queue: permits(memory.uploads_waiting_max()),
            first_chunks: permits(FIRST_CHUNKS_MAX),
            works: permits(ANSWER_WORKS_MAX),
            unsent: Answers::default(),
            deferred: AtomicU64::new(0),
        }
    }

    /// The quota of a node, the same for as long as it is in use.
    pub(crate) fn node(&self, node: &str) -> Arc<NodeQuota> {
        of_name(&self.nodes, node, || NodeQuota::new(&self.reports, &self.uploads))
    }

    /// The quota of a caller, likewise.
    pub(crate) fn caller(&self, caller: &str) -> Arc<CallerQuota> {
        of_name(&self.callers, caller, || CallerQuota::new(&self.answers))
    }

    /// Memory that decoding one message may take: a message reserves no more than there is.
    pub(crate) fn message_decoded_bytes_max(&self) -> u64 {
        self.reports.bytes_max.min(MESSAGE_DECODED_BYTES_MAX)
    }

    /// Waits until a message of this size may be read; first for the node's own bytes, so that a
    /// node waits for all with one message.
    pub(crate) async fn reserve_message(&self, node: &NodeQuota, bytes: u64) -> [Permit; 2] {
        if bytes <= SMALL_MESSAGE_BYTES_MAX {
            return [None, None];
        }
        [node.messages.reserve(bytes).await, self.messages.reserve(bytes).await]
    }

    /// Waits until a message that takes this many bytes may be decoded, likewise.
    pub(crate) async fn reserve_report(&self, node: &Arc<NodeQuota>, bytes: u64) -> Share {
        let own = node.reports.reserve(bytes).await;
        let all = self.reports.reserve(bytes).await;
        Some(NodePermit { _permits: [own, all, None], _upload: None, node: node.clone() })
    }

    /// Queues an upload of a node, and waits until its first chunk may be read; none when the queue
    /// is full, or the node has too many uploads in it.
    pub(crate) async fn queue_upload(&self, node: &str) -> Option<NodePermit> {
        let node = self.node(node);
        let enter = |queue: &Arc<Semaphore>| queue.clone().try_acquire_owned().ok();
        let Some((own, all)) = enter(&node.queue).zip(enter(&self.upload_queue)) else {
            self.deferred.fetch_add(1, Relaxed);
            return None;
        };
        // Its node's permit first, so that a waiting upload of this node blocks no other node.
        let upload = node.uploads.clone().acquire_owned().await.ok();
        let first_chunk = self.first_chunks.clone().acquire_owned().await.ok();
        Some(NodePermit { _permits: [Some(own), Some(all), first_chunk], _upload: upload, node })
    }

    /// Waits until a snapshot of this size may be read whole; the permit of the first chunk is
    /// given back then.
    pub(crate) async fn reserve_upload(&self, queued: NodePermit, bytes: u64) -> NodePermit {
        let bytes = bytes.saturating_add(UPLOAD_OVERHEAD_BYTES);
        // The bytes of its node first: it is before no other while it waits for its own.
        let of_node = queued.node.bytes.reserve(bytes).await;
        let of_all = self.uploads.reserve(bytes).await;
        NodePermit { _permits: [of_node, of_all, None], ..queued }
    }

    /// Waits for a thread that works on an answer of a caller; none only when the coordinator
    /// stops. A caller's works wait for each other first: no caller has all threads.
    pub(crate) async fn begin_work(&self, caller: &CallerQuota) -> Option<[Permit; 2]> {
        let own = caller.works.clone().acquire_owned().await.ok();
        let of_all = self.works.clone().acquire_owned().await.ok();
        // In the order in which they are given back: no caller has a thread more meanwhile.
        (own.is_some() && of_all.is_some()).then_some([of_all, own])
    }

    /// Threads that work on answers now.
    #[cfg(test)]
    pub(crate) fn works(&self) -> usize {
        ANSWER_WORKS_MAX - self.works.available_permits()
    }

    /// Waits for an answer of about this many bytes, which has some already; none only when the
    /// coordinator stops. While it waits for the others' bytes, answers of callers who have more
    /// give way.
    pub(crate) async fn reserve_answer(
        &self,
        caller: Arc<CallerQuota>,
        bytes: u64,
        is_large: bool,
        before: Option<Reservation>,
    ) -> Option<Reservation> {
        let [mut own, mut all, mut permit] = before.map_or([None, None, None], |of| of.shares);
        if is_large && permit.is_none() {
            // It holds no bytes while it waits for its turn.
            (own, all) = (None, None);
            permit = Some(caller.large_answers.clone().acquire_owned().await.ok()?);
        }
        // Its own first: it holds no more bytes of the others while it waits for its own.
        let own = caller.bytes.fill(own, bytes).await;
        let mut filling = std::pin::pin!(self.answers.fill(all, bytes));
        let all = loop {
            match timeout(GIVE_WAY_EVERY, &mut filling).await {
                Ok(all) => break all,
                Err(_) => self.unsent.give_way(&caller),
            }
        };
        Some(Reservation { shares: [own, all, permit], _caller: caller })
    }

    /// An answer is sent from now on, and may give way.
    pub(crate) fn sent(&self, answer: &Arc<Unsent>) {
        self.unsent.add(answer);
    }
}

impl ByteQuota {
    fn new(bytes_max: u64) -> Self {
        Self { kib: permits(kib(bytes_max) as usize), bytes_max, waits: Arc::default() }
    }

    /// One of `parts` equal parts.
    fn part(&self, parts: u64) -> Self {
        Self { waits: self.waits.clone(), ..Self::new(self.bytes_max / parts) }
    }

    /// Waits for this many bytes; more than there are at all count as all there are.
    pub(crate) async fn reserve(&self, bytes: u64) -> Permit {
        let share = kib(bytes.min(self.bytes_max));
        if let Ok(share) = self.kib.clone().try_acquire_many_owned(share) {
            return Some(share);
        }
        self.waits.fetch_add(1, Relaxed);
        self.kib.clone().acquire_many_owned(share).await.ok()
    }

    /// Waits until a share has this many bytes, or gives some of it back.
    async fn fill(&self, share: Permit, bytes: u64) -> Permit {
        let bytes = bytes.min(self.bytes_max);
        let Some(mut share) = share else { return self.reserve(bytes).await };
        let held = (share.num_permits() as u64) << 10;
        if held < bytes {
            share.merge(self.reserve(bytes - held).await?);
        }
        shrink(&mut share, bytes);
        Some(share)
    }

    /// Bytes that are reserved.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes_max.saturating_sub((self.kib.available_permits() as u64) << 10)
    }
}

impl Reservation {
    /// Bytes reserved from the budget of all callers.
    pub(crate) fn bytes(&self) -> u64 {
        let [_, all, _] = &self.shares;
        all.as_ref().map_or(0, |share| (share.num_permits() as u64) << 10)
    }

    /// Gives back all but this many bytes.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let [own, all, _] = &mut self.shares;
        [own, all].into_iter().flatten().for_each(|share| shrink(share, bytes));
    }
}

fn shrink(share: &mut OwnedSemaphorePermit, bytes: u64) {
    drop(share.split(share.num_permits().saturating_sub(kib(bytes) as usize)));
}

fn kib(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}

fn permits(count: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(count))
}

/// The value of a name, kept while it is in use; unused ones are forgotten.
fn of_name<T>(all: &PerName<T>, name: &str, new: impl Fn() -> T) -> Arc<T> {
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = all.get(name).and_then(Weak::upgrade) {
        return known;
    }
    all.retain(|_, known| known.strong_count() > 0);
    let added = Arc::new(new());
    all.insert(name.to_string(), Arc::downgrade(&added));
    added
}

/// A node and an owner on it, or another holder, by their names. The numbers are stored with steps:
/// other ones are other holders.
pub(crate) fn holder(node: &str, on_node: impl std::fmt::Debug) -> Holder {
    (number(node), number(&format!("{node} {on_node:?}")))
}

/// Number of a name that has a rate.
pub(crate) fn number(name: &str) -> u64 {
    let hash = blake3::hash(name.as_bytes());
    hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Rates of changes by node and owner: ranks that begin, change or end. Ends are always taken.
pub(crate) fn rank_changes() -> HolderRates {
    HolderRates::new(
        (MINUTE_NS / NODE_CHANGES_PER_MINUTE_MAX, NODE_CHANGES_AT_ONCE_MAX),
        (MINUTE_NS / OWNER_CHANGES_PER_MINUTE_MAX, OWNER_CHANGES_AT_ONCE_MAX),
    )
}

/// Rate of streams that the agents of each node open: an honest one reconnects after a restart.
pub(crate) fn agent_streams() -> Rates {
    Rates::new(SECOND_NS, STREAMS_AT_ONCE_PER_NODE_MAX, NODES_MAX)
}

/// Rates at which step records are kept, by node and owner.
pub(crate) fn step_records() -> HolderRates {
    HolderRates::new(
        (SECOND_NS / NODE_STEPS_PER_SECOND_MAX, NODE_STEPS_AT_ONCE_MAX),
        (SECOND_NS / OWNER_STEPS_PER_SECOND_MAX, OWNER_STEPS_AT_ONCE_MAX),
    )
}

/// Rates of agent-initiated captures, by node and job: each job has a rank on the node.
pub(crate) fn agent_captures() -> HolderRates {
    HolderRates::new(
        (MINUTE_NS / AGENT_CAPTURES_PER_MINUTE_MAX, AGENT_CAPTURES_AT_ONCE_MAX),
        (60 * MINUTE_NS / AGENT_CAPTURES_PER_JOB_AND_HOUR_MAX, AGENT_CAPTURES_PER_JOB_MAX as u64),
    )
}

/// How many refusals of each node are logged.
pub(crate) fn logged_refusals() -> Rates {
    let refill_ns = MINUTE_NS / REFUSALS_LOGGED_PER_MINUTE_MAX;
    Rates::new(refill_ns, REFUSALS_LOGGED_AT_ONCE_MAX, NODES_MAX)
}

/// Rate of audited decisions to do nothing, by node and owner of the job.
pub(crate) fn declined_decisions() -> Rates {
    let at_once = DECLINED_AUDITED_MAX as u64;
    let refill_ns = DECLINED_AUDITED_SECONDS_MAX * SECOND_NS / at_once;
    Rates::new(refill_ns, at_once, RANKS_MAX)
}

impl CallerRates {
    /// Makes buckets of `at_once` permits each. One permit comes back every `refill_ns`.
    pub(crate) fn new(refill_ns: u64, at_once: u64) -> Self {
        Self(Mutex::new(Rates::new(refill_ns, at_once, CALLERS_MAX)))
    }

    /// Takes one from a caller's bucket.
    ///
    /// # Errors
    /// The bucket is empty: the time to wait.
    pub(crate) fn take(&self, now_ns: u64, caller: &str) -> Result<(), Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take(now_ns, number(caller))
    }
}

#[cfg(test)]
mod tests;
