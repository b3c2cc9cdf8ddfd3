//! Quotas of nodes and callers: bytes, permits and rates.
//!
//! | of | quota | when it is used up |
//! |---|---|---|
//! | all, and each node | bytes of messages while they are read | the stream waits |
//! | all | bytes of messages until they are stored | the stream waits, first in, first out |
//! | all, and each node | bytes of uploads, and a queue of them | it waits, or is refused |
//! | all, and each caller | bytes of large answers | the request waits for a while |
//! | each caller | requests in progress, and a rate of them | the request is refused |
//! | each caller | one question in the queue of the loop | the others wait |
//! | each node, and each owner on it | a rate of changes of ranks | they wait, or are refused |
//! | each node, and each owner on it | a rate of step records | a thinner series is kept |
//! | each node, and each job | a rate of agent-initiated captures | the capture is refused |
//! | each node, and each caller | a rate of logged refusals | the refusal is counted |
//! | each owner | a rate of audited decisions to do nothing | the decision is counted |
//!
//! Bytes are reserved before they are read. A waiting upload costs only the few bytes that HTTP/2
//! lets an agent send unread. Nothing is dropped here: agents keep what was refused, on their tapes
//! or in memory.
//!
//! An upload reserves the size of its snapshot, all of it at once, because half-reserved snapshots
//! would wait for each other forever. Before that it waits in the queue of its node, then for one
//! of few permits to send its first chunk. A node is the one that a connection's stream has proven:
//! it has one quota, whatever connections it has, and at most half of the bytes of all, so that its
//! slow uploads hold up no other node's. A message reserves the bytes that decoding takes: reports
//! and announcements until they are stored, so that a slow disk stops the streams and not the
//! coordinator; ends, answers and agent-initiated captures, which are few, until the loop has taken
//! them.
//!
//! A caller whose clients do not read their answers occupies a quarter of the bytes of answers, or
//! one larger answer, and none of the others'. An authenticated caller has one quota over all
//! networks; all others share the quota of their network.
//!
//! Memory for ranks, jobs and captures is shared by node and owner in the files of `state/`, by
//! `memtape_core::sharing`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use memtape_core::identity::owner::Owner;
use memtape_core::limits::{
    AGENT_CAPTURES_AT_ONCE_MAX, AGENT_CAPTURES_PER_JOB_AND_HOUR_MAX, AGENT_CAPTURES_PER_JOB_MAX,
    AGENT_CAPTURES_PER_MINUTE_MAX, ANSWERS_BYTES_MAX, ANSWERS_BYTES_PER_CALLER_MAX,
    AUDITED_AT_ONCE_MAX, AUDITED_PER_MINUTE_MAX, CALLERS_MAX, CHUNK_BYTES_MAX,
    DECLINED_AUDITED_MAX, DECLINED_AUDITED_SECONDS_MAX, JOBS_MAX, LARGE_ANSWERS_PER_CALLER_MAX,
    MESSAGES_BYTES_MAX, NODE_CHANGES_AT_ONCE_MAX, NODE_CHANGES_PER_MINUTE_MAX, NODES_MAX,
    OWNER_CHANGES_AT_ONCE_MAX, OWNER_CHANGES_PER_MINUTE_MAX, RANKS_MAX,
    REFUSALS_LOGGED_AT_ONCE_MAX, REFUSALS_LOGGED_PER_MINUTE_MAX, REPORTS_WAITING_BYTES_MAX,
    REQUESTS_AT_ONCE_MAX, REQUESTS_IN_PROGRESS_MAX, REQUESTS_PER_SECOND_MAX, UPLOADS_BYTES_MAX,
    UPLOADS_BYTES_PER_NODE_MAX, UPLOADS_PER_NODE_MAX, UPLOADS_WAITING_MAX,
};
use memtape_core::rates::Rates;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::state::effects::Share;

pub(crate) const SECOND_NS: u64 = 1_000_000_000;
const MINUTE_NS: u64 = 60 * SECOND_NS;

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

/// The quotas of all, of each node, and of each caller.
#[derive(Debug)]
pub(crate) struct Quotas {
    pub(crate) uploads: ByteQuota,
    messages: ByteQuota,
    pub(crate) reports: ByteQuota,
    pub(crate) answers: ByteQuota,
    nodes: PerName<NodeQuota>,
    callers: PerName<CallerQuota>,
    upload_queue: Arc<Semaphore>,
    first_chunks: Arc<Semaphore>,
    /// Uploads that were asked to come back later.
    pub(crate) deferred: AtomicU64,
}

/// Bytes that may be in memory at once.
#[derive(Debug)]
pub(crate) struct ByteQuota {
    kib: Arc<Semaphore>,
    pub(crate) bytes_max: u64,
    /// Number of requests that had to wait.
    pub(crate) waits: AtomicU64,
}

/// The quota of one node.
#[derive(Debug)]
pub(crate) struct NodeQuota {
    /// Bytes of the message that is read.
    messages: ByteQuota,
    /// Permits of the queue.
    queue: Arc<Semaphore>,
    /// Permits of uploads, each until its snapshot is stored.
    uploads: Arc<Semaphore>,
    /// Bytes of the node's uploads, some of which also wait for bytes of the quota of all.
    bytes: ByteQuota,
}

/// The quota of one caller.
#[derive(Debug)]
struct CallerQuota {
    requests: Arc<Semaphore>,
    /// The permit to have a question in the queue of the loop.
    question: Arc<Semaphore>,
    large_answers: Arc<Semaphore>,
    bytes: ByteQuota,
}

/// A slot in the queue of uploads, and then the permit to send the first chunk.
#[derive(Debug)]
pub(crate) struct QueuedUpload {
    of_node: Share,
    _queued: [OwnedSemaphorePermit; 2],
    _first_chunk: Share,
    pub(crate) node: Arc<NodeQuota>,
}

/// The bytes of a snapshot.
#[derive(Debug)]
pub(crate) struct UploadPermit {
    _bytes: [Share; 2],
    _permit: Share,
    /// Kept, so that further uploads of the node count these bytes.
    pub(crate) node: Arc<NodeQuota>,
}

/// A value for each name that is in use.
#[derive(Debug)]
struct PerName<T>(Mutex<HashMap<String, Weak<T>>>);

/// Rates at which a node, and each owner on it, may change its ranks: ranks that begin, change or
/// end.
#[derive(Debug)]
pub(crate) struct ChangeRates {
    of_nodes: Rates,
    /// Rates of owners, so that no owner uses up the rate of the node.
    of_owners: Rates,
}

/// Rates of callers: a bucket for each caller, which fills again with time.
#[derive(Debug)]
pub(crate) struct CallerRates(Mutex<Rates>);

impl Default for Quotas {
    fn default() -> Self {
        Self {
            uploads: ByteQuota::new(UPLOADS_BYTES_MAX),
            messages: ByteQuota::new(MESSAGES_BYTES_MAX),
            reports: ByteQuota::new(REPORTS_WAITING_BYTES_MAX),
            answers: ByteQuota::new(ANSWERS_BYTES_MAX),
            nodes: PerName::default(),
            callers: PerName::default(),
            upload_queue: permits(UPLOADS_WAITING_MAX),
            first_chunks: permits(FIRST_CHUNKS_MAX),
            deferred: AtomicU64::new(0),
        }
    }
}

impl Default for NodeQuota {
    fn default() -> Self {
        Self {
            messages: ByteQuota::new(MESSAGE_BYTES_MAX as u64),
            queue: permits(UPLOADS_PER_NODE_MAX),
            uploads: permits(UPLOADS_AT_ONCE_PER_NODE_MAX),
            bytes: ByteQuota::new(UPLOADS_BYTES_PER_NODE_MAX),
        }
    }
}

impl Default for CallerQuota {
    fn default() -> Self {
        Self {
            requests: permits(REQUESTS_IN_PROGRESS_MAX),
            question: permits(1),
            large_answers: permits(LARGE_ANSWERS_PER_CALLER_MAX),
            bytes: ByteQuota::new(ANSWERS_BYTES_PER_CALLER_MAX),
        }
    }
}

impl Quotas {
    /// The quota of a node, the same for as long as it is in use.
    pub(crate) fn node(&self, node: &str) -> Arc<NodeQuota> {
        self.nodes.of(node)
    }

    /// Waits until a message of this size may be read; first for the node's own bytes, so that a
    /// node waits for all with one message.
    pub(crate) async fn reserve_message(&self, node: &NodeQuota, bytes: u64) -> [Share; 2] {
        if bytes <= SMALL_MESSAGE_BYTES_MAX {
            return [None, None];
        }
        [node.messages.reserve(bytes).await, self.messages.reserve(bytes).await]
    }

    /// Queues an upload of a node, and waits until its first chunk may be read; none when the queue
    /// is full, or the node has too many uploads in it.
    pub(crate) async fn queue_upload(&self, node: &str) -> Option<QueuedUpload> {
        let node = self.nodes.of(node);
        let enter = |queue: &Arc<Semaphore>| queue.clone().try_acquire_owned().ok();
        let Some(queued) = enter(&node.queue).zip(enter(&self.upload_queue)) else {
            self.deferred.fetch_add(1, Relaxed);
            return None;
        };
        // Its node's permit first: it holds none that others wait for meanwhile.
        let of_node = node.uploads.clone().acquire_owned().await.ok();
        let first_chunk = self.first_chunks.clone().acquire_owned().await.ok();
        Some(QueuedUpload { of_node, _queued: queued.into(), _first_chunk: first_chunk, node })
    }

    /// Waits until a snapshot of this size may be read whole; the permit of the first chunk is
    /// given back then.
    pub(crate) async fn reserve_upload(&self, queued: QueuedUpload, bytes: u64) -> UploadPermit {
        let bytes = bytes.saturating_add(UPLOAD_OVERHEAD_BYTES);
        // The bytes of its node first: it is before no other while it waits for its own.
        let of_node = queued.node.bytes.reserve(bytes).await;
        let of_all = self.uploads.reserve(bytes).await;
        UploadPermit { _bytes: [of_node, of_all], _permit: queued.of_node, node: queued.node }
    }

    /// Begins a request of a caller; none where too many are in progress.
    pub(crate) fn begin_request(&self, caller: &str) -> Option<impl Send + use<>> {
        let caller = self.callers.of(caller);
        let permit = caller.requests.clone().try_acquire_owned().ok()?;
        Some((permit, caller))
    }

    /// Waits until no other question of a caller is in the queue of the loop.
    pub(crate) async fn begin_question(&self, caller: &str) -> Option<impl Send + use<>> {
        let caller = self.callers.of(caller);
        Some((caller.question.clone().acquire_owned().await.ok()?, caller))
    }

    /// Waits for an answer of about this many bytes; none only when the coordinator stops.
    pub(crate) async fn reserve_answer(
        &self,
        caller: &str,
        bytes: u64,
    ) -> Option<impl Send + use<>> {
        let caller = self.callers.of(caller);
        let permit = caller.large_answers.clone().acquire_owned().await.ok()?;
        // Its own first: it holds no bytes of the others while it waits for its own.
        let bytes = [caller.bytes.reserve(bytes).await, self.answers.reserve(bytes).await];
        Some((permit, bytes, caller))
    }
}

impl ByteQuota {
    fn new(bytes_max: u64) -> Self {
        Self { kib: permits(kib(bytes_max) as usize), bytes_max, waits: AtomicU64::new(0) }
    }

    /// Waits for this many bytes; more than there are at all count as all there are.
    pub(crate) async fn reserve(&self, bytes: u64) -> Share {
        let share = kib(bytes.min(self.bytes_max));
        if let Ok(share) = self.kib.clone().try_acquire_many_owned(share) {
            return Some(share);
        }
        self.waits.fetch_add(1, Relaxed);
        self.kib.clone().acquire_many_owned(share).await.ok()
    }

    /// Bytes that are reserved.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes_max.saturating_sub((self.kib.available_permits() as u64) << 10)
    }
}

fn kib(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}

fn permits(count: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(count))
}

impl<T> Default for PerName<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Default> PerName<T> {
    /// The value of a name, kept while it is in use; unused ones are forgotten.
    fn of(&self, name: &str) -> Arc<T> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(name).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, known| known.strong_count() > 0);
        let added = Arc::new(T::default());
        all.insert(name.to_string(), Arc::downgrade(&added));
        added
    }
}

impl ChangeRates {
    /// May a node change one thing more about ranks of this owner? Takes nothing.
    ///
    /// # Errors
    /// It did too much: the time to wait.
    pub(crate) fn check(&self, now_ns: u64, node: &str, owner: &Owner) -> Result<(), Duration> {
        self.of_nodes.check(now_ns, node)?;
        self.of_owners.check(now_ns, holder(node, owner).as_str())
    }

    /// A node changes one thing about ranks of this owner.
    ///
    /// # Errors
    /// It did too much: the time to wait.
    pub(crate) fn take(&mut self, now_ns: u64, node: &str, owner: &Owner) -> Result<(), Duration> {
        self.of_nodes.check(now_ns, node)?;
        self.of_owners.take(now_ns, holder(node, owner).as_str())?;
        self.of_nodes.take(now_ns, node)
    }
}

impl Default for ChangeRates {
    fn default() -> Self {
        let of_a_minute =
            |count: u64, at_once, callers_max| Rates::new(MINUTE_NS / count, at_once, callers_max);
        let (nodes, owners) = (NODE_CHANGES_AT_ONCE_MAX, OWNER_CHANGES_AT_ONCE_MAX);
        Self {
            of_nodes: of_a_minute(NODE_CHANGES_PER_MINUTE_MAX, nodes, NODES_MAX),
            of_owners: of_a_minute(OWNER_CHANGES_PER_MINUTE_MAX, owners, RANKS_MAX),
        }
    }
}

/// An owner on a node.
pub(crate) fn holder(node: &str, owner: &Owner) -> String {
    format!("{node} {:?}", owner.key())
}

/// How many refusals of each node are logged.
pub(crate) fn logged_refusals() -> Rates {
    let refill_ns = MINUTE_NS / REFUSALS_LOGGED_PER_MINUTE_MAX;
    Rates::new(refill_ns, REFUSALS_LOGGED_AT_ONCE_MAX, NODES_MAX)
}

/// How often each node may announce captures that agents took by themselves.
pub(crate) fn agent_captures_of_nodes() -> Rates {
    let refill_ns = MINUTE_NS / AGENT_CAPTURES_PER_MINUTE_MAX;
    Rates::new(refill_ns, AGENT_CAPTURES_AT_ONCE_MAX, NODES_MAX)
}

/// How often such captures of each job may be announced.
pub(crate) fn agent_captures_of_jobs() -> Rates {
    let refill_ns = 60 * MINUTE_NS / AGENT_CAPTURES_PER_JOB_AND_HOUR_MAX;
    Rates::new(refill_ns, AGENT_CAPTURES_PER_JOB_MAX as u64, JOBS_MAX)
}

/// How often decisions to do nothing about jobs of each owner are audited.
/// Rate of audited decisions to do nothing, by owner of the job.
pub(crate) fn declined_decisions() -> Rates {
    let at_once = DECLINED_AUDITED_MAX as u64;
    let refill_ns = DECLINED_AUDITED_SECONDS_MAX * SECOND_NS / at_once;
    Rates::new(refill_ns, at_once, CALLERS_MAX)
}

impl CallerRates {
    /// Rate of all requests.
    pub(crate) fn of_requests() -> Self {
        Self::new(SECOND_NS / REQUESTS_PER_SECOND_MAX, REQUESTS_AT_ONCE_MAX)
    }

    /// Rate of audited requests: no caller fills the audit and drives out other callers' entries.
    pub(crate) fn of_audited() -> Self {
        Self::new(MINUTE_NS / AUDITED_PER_MINUTE_MAX, AUDITED_AT_ONCE_MAX)
    }

    /// Rate of logged refusals: a flood of refusals floods no log.
    pub(crate) fn of_logged() -> Self {
        Self::new(MINUTE_NS / REFUSALS_LOGGED_PER_MINUTE_MAX, REFUSALS_LOGGED_AT_ONCE_MAX)
    }

    /// A rate a second, and as many at once.
    pub(crate) fn a_second(count: u64) -> Self {
        Self::new(SECOND_NS / count, count)
    }

    fn new(refill_ns: u64, at_once: u64) -> Self {
        Self(Mutex::new(Rates::new(refill_ns, at_once, CALLERS_MAX)))
    }

    /// Takes one from a caller's bucket.
    ///
    /// # Errors
    /// The bucket is empty: the time to wait.
    pub(crate) fn take(&self, now_ns: u64, caller: &str) -> Result<(), Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take(now_ns, caller)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use memtape_core::limits::{MESSAGE_MIB_SECONDS_MAX, SNAPSHOT_BYTES_MAX};
    use tokio::time::{Instant, sleep};

    use super::*;

    const STALL: Duration = Duration::from_secs(MESSAGE_MIB_SECONDS_MAX);

    #[tokio::test]
    async fn reservations_wait_in_order() {
        let quota = Arc::new(ByteQuota::new(10 << 10));
        let first = quota.reserve(8 << 10).await;
        assert_eq!((quota.bytes(), quota.waits.load(Relaxed)), (8 << 10, 0));
        let (send, mut entered) = tokio::sync::mpsc::unbounded_channel();
        // A large one, then a small one that would fit: it does not overtake.
        for (place, bytes) in [(1, 9 << 10), (2, 1 << 10)] {
            let (inner, send) = (quota.clone(), send.clone());
            tokio::spawn(async move {
                let share = inner.reserve(bytes).await;
                let _ = send.send((bytes, share));
            });
            while quota.waits.load(Relaxed) < place {
                tokio::task::yield_now().await;
            }
        }
        drop(first);
        let (bytes, share) = entered.recv().await.expect("the first in the queue");
        assert_eq!(bytes, 9 << 10);
        drop(share);
        assert_eq!(entered.recv().await.expect("the second").0, 1 << 10);
        // More than fits at all is let in alone.
        while quota.bytes() > 0 {
            tokio::task::yield_now().await;
        }
        let all = quota.reserve(u64::MAX).await;
        assert_eq!(quota.bytes(), 10 << 10);
        drop(all);
    }

    #[tokio::test]
    async fn a_full_queue_of_uploads_refuses() {
        let quotas = Quotas::default();
        let mut inside = Vec::new();
        let nodes: Vec<String> = (0..UPLOADS_WAITING_MAX).map(|of| format!("node-{of}")).collect();
        for of in &nodes[..FIRST_CHUNKS_MAX] {
            inside.push(quotas.queue_upload(of).await.expect("a permit"));
        }
        let mut waiting = Vec::new();
        for of in &nodes[FIRST_CHUNKS_MAX..] {
            let mut queued = Box::pin(quotas.queue_upload(of));
            let waits = std::future::poll_fn(|context| {
                Poll::Ready(queued.as_mut().poll(context).is_pending())
            });
            assert!(waits.await, "no more than {FIRST_CHUNKS_MAX} first chunks");
            waiting.push(queued);
        }
        assert!(quotas.queue_upload("other").await.is_none());
        assert_eq!(quotas.deferred.load(Relaxed), 1);
        drop(inside.pop());
        assert!(waiting.remove(0).await.is_some());
    }

    #[tokio::test]
    async fn silent_uploads_of_one_node_hold_up_no_other() {
        let quotas = Quotas::default();
        let mut inside = Vec::new();
        for _ in 0..UPLOADS_AT_ONCE_PER_NODE_MAX {
            inside.push(quotas.queue_upload("silent").await.expect("a permit"));
        }
        let mut waiting = Vec::new();
        for _ in UPLOADS_AT_ONCE_PER_NODE_MAX..UPLOADS_PER_NODE_MAX {
            let mut queued = Box::pin(quotas.queue_upload("silent"));
            let waits = std::future::poll_fn(|context| {
                Poll::Ready(queued.as_mut().poll(context).is_pending())
            });
            assert!(waits.await, "no more than {UPLOADS_AT_ONCE_PER_NODE_MAX} of a node");
            waiting.push(queued);
        }
        assert!(quotas.queue_upload("silent").await.is_none(), "too many of a node");
        assert!(quotas.queue_upload("other").await.is_some());
        drop(inside.pop());
        assert!(waiting.remove(0).await.is_some());
    }

    /// Makes all uploads of a node that it may, again and again, each as large as can be; none of
    /// them brings anything.
    fn stall(quotas: &Arc<Quotas>, node: &'static str) {
        for _ in 0..UPLOADS_PER_NODE_MAX {
            let quotas = quotas.clone();
            tokio::spawn(async move {
                while let Some(queued) = quotas.queue_upload(node).await {
                    let _permit = quotas.reserve_upload(queued, SNAPSHOT_BYTES_MAX as u64).await;
                    sleep(STALL).await;
                }
            });
        }
    }

    /// Uploads a snapshot as large as can be; how long it waits.
    async fn waits(quotas: &Quotas, node: &str) -> Duration {
        let begin = Instant::now();
        let queued = quotas.queue_upload(node).await.expect("a permit");
        let _permit = quotas.reserve_upload(queued, SNAPSHOT_BYTES_MAX as u64).await;
        begin.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_uploads_of_a_node_hold_up_no_other() {
        let quotas = Arc::new(Quotas::default());
        stall(&quotas, "evil-1");
        sleep(STALL / 2).await;
        assert_eq!(quotas.uploads.bytes(), UPLOADS_BYTES_PER_NODE_MAX);
        for _ in 0..100 {
            assert_eq!(waits(&quotas, "node-a").await, Duration::ZERO);
            sleep(STALL / 7).await;
        }
        // Two of them fill the quota, and every other node waits for one upload of each at most.
        stall(&quotas, "evil-2");
        for _ in 0..100 {
            let waited = waits(&quotas, "node-a").await;
            assert!(waited <= 2 * STALL, "{waited:?}");
            sleep(STALL / 7).await;
        }
    }

    #[test]
    fn an_unused_name_is_forgotten() {
        let nodes = PerName::<NodeQuota>::default();
        let node = nodes.of("node-a");
        assert!(Arc::ptr_eq(&node, &nodes.of("node-a")));
        assert!(!Arc::ptr_eq(&node, &nodes.of("node-b")));
        let permit = node.uploads.clone().try_acquire_owned();
        assert!(permit.is_ok() && nodes.of("node-a").uploads.available_permits() == 1);
        (0..300).for_each(|number| drop(nodes.of(&format!("node-{number}"))));
        assert!(nodes.0.lock().unwrap().len() <= 2);
        assert!(Arc::ptr_eq(&node, &nodes.of("node-a")));
    }

    /// Reserves an answer, if that is possible at once.
    async fn reserve(quotas: &Quotas, caller: &str, bytes: u64) -> Option<impl Send + use<>> {
        let mut reserving = std::pin::pin!(quotas.reserve_answer(caller, bytes));
        std::future::poll_fn(|context| match reserving.as_mut().poll(context) {
            Poll::Ready(permit) => Poll::Ready(permit),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    #[test]
    fn a_caller_has_a_number_of_requests_at_once() {
        let quotas = Quotas::default();
        let begin = |caller: &str| quotas.begin_request(caller);
        let mut of_a: Vec<_> = (0..REQUESTS_IN_PROGRESS_MAX).map(|_| begin("a")).collect();
        assert!(of_a.iter().all(Option::is_some) && begin("a").is_none() && begin("b").is_some());
        of_a.pop();
        assert!(begin("a").is_some());
    }

    #[tokio::test]
    async fn a_caller_has_at_most_a_quarter_of_the_bytes() {
        let quotas = Quotas::default();
        let half = ANSWERS_BYTES_PER_CALLER_MAX / 2;
        let of_a = [reserve(&quotas, "a", half).await, reserve(&quotas, "a", half).await];
        assert!(of_a.iter().all(Option::is_some));
        assert!(reserve(&quotas, "a", half).await.is_none());
        assert_eq!(quotas.answers.bytes(), ANSWERS_BYTES_PER_CALLER_MAX);
        for caller in ["b", "c", "d"] {
            // Freed at once.
            assert!(reserve(&quotas, caller, ANSWERS_BYTES_PER_CALLER_MAX).await.is_some());
        }
        drop(of_a);
        assert!(reserve(&quotas, "a", ANSWERS_BYTES_PER_CALLER_MAX).await.is_some());
    }

    #[tokio::test]
    async fn each_caller_has_a_share_of_the_quota_of_all() {
        let quotas = Quotas::default();
        let mut of_a = Vec::new();
        for _ in 0..LARGE_ANSWERS_PER_CALLER_MAX {
            of_a.push(reserve(&quotas, "a", 1024).await.expect("a permit"));
        }
        assert!(reserve(&quotas, "a", 1024).await.is_none());
        let rest = ANSWERS_BYTES_MAX - quotas.answers.bytes();
        let of_b = reserve(&quotas, "b", rest).await.expect("another caller's permit");
        assert!(reserve(&quotas, "c", 1024).await.is_none(), "no memory is left");
        drop(of_b);
        assert!(reserve(&quotas, "c", 1024).await.is_some());
        drop(of_a.pop());
        assert!(reserve(&quotas, "a", 1024).await.is_some());
        drop(of_a);
        assert_eq!(quotas.answers.bytes(), 0);
        assert!(reserve(&quotas, "d", 1).await.is_some());
        assert_eq!(quotas.callers.0.lock().unwrap().len(), 1, "callers are forgotten");
    }

    /// A user changes ranks at full rate, by subordinate ids too: another user's changes pass.
    #[test]
    fn changes_of_one_user_use_up_none_of_another() {
        let mut rates = ChangeRates::default();
        let owner = |uid, account| Owner { uid, account, ..Owner::default() };
        let mut taken = 0;
        for number in 0..2 * NODE_CHANGES_AT_ONCE_MAX as u32 {
            let of = owner(100_000 + number % 9, Some(2001));
            taken += u64::from(rates.take(7, "n", &of).is_ok());
        }
        assert_eq!(taken, OWNER_CHANGES_AT_ONCE_MAX);
        assert!(rates.check(7, "n", &owner(2001, None)).is_err());
        let victim = owner(2002, Some(2002));
        assert!(rates.take(7, "n", &victim).is_ok());
        assert!(rates.take(7, "other", &owner(2001, None)).is_ok(), "another node's");
    }

    #[test]
    fn a_flood_of_refusals_floods_no_log() {
        let logged = CallerRates::of_logged();
        let lines = (0..100_000).filter(|index| logged.take(index * 1_000_000, "a").is_ok());
        // 100 s of a refusal each millisecond.
        assert!((10..=20).contains(&lines.count()));
        assert!(logged.take(0, "b").is_ok());
    }
}
