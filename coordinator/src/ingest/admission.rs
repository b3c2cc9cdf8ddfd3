//! Bounds the memory that is held on behalf of agents: bytes are reserved before they are read.
//!
//! A request that finds no room waits in a queue, first in, first out; when the queue is full the
//! request is refused and the agent tries again later. A waiting request costs only the few bytes
//! that HTTP/2 lets an agent send unread. Nothing is dropped here: agents keep what was refused,
//! on their tapes or in memory.
//!
//! There are two bounds. *Uploads* reserve the size of their snapshot, all of it at once, because
//! half-reserved snapshots would wait for each other forever. Before that an upload waits for its
//! turn to say what it brings. A node has few turns, and at most half of the room of all, so that
//! slow uploads of one node do not hold up those of others, whatever connections it has
//! (`upload_lines.rs`). *Messages* reserve what decoding them takes. Reports and
//! announcements hold it until they are stored, so that a slow disk stops the streams and not the
//! coordinator; ends, answers and agent-initiated captures, which are few, until the loop has taken
//! them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use memtape_core::limits::{REPORTS_WAITING_BYTES_MAX, UPLOADS_BYTES_MAX, UPLOADS_WAITING_MAX};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ingest::upload_lines::{UploadLine, UploadLines};
use crate::state::effects::Share;
use crate::telemetry::metrics::AdmissionFigures;

/// What an upload takes besides its snapshot: a chunk that is being understood.
const UPLOAD_OVERHEAD_BYTES: u64 = 1 << 20;

/// Uploads whose first chunk is read, which tells what the snapshot belongs to, and which wait for
/// room for all of it.
const FIRST_CHUNKS_MAX: usize = 16;

/// Both budgets, and how often requests waited.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) uploads: ByteBudget,
    pub(crate) reports: ByteBudget,
    pub(crate) lines: UploadLines,
    waiting: Arc<Semaphore>,
    first_chunks: Arc<Semaphore>,
    /// Uploads that were asked to come back later.
    pub(crate) deferred: AtomicU64,
}

/// One budget: bytes that may be in memory at once.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    kib: Arc<Semaphore>,
    bytes_max: u64,
    /// How often a request had to wait.
    pub(crate) waits: AtomicU64,
}

/// A place in the line of uploads, and beyond it the place of those who have said what they bring.
#[derive(Debug)]
pub(crate) struct Turn {
    of_node: Share,
    _waiting: [OwnedSemaphorePermit; 2],
    _first_chunk: Share,
    line: Arc<UploadLine>,
}

/// Room for a snapshot.
#[derive(Debug)]
pub(crate) struct Room {
    _bytes: [Share; 2],
    _turn: Share,
    /// Kept, so that further uploads of the node count what is taken here.
    _line: Arc<UploadLine>,
}

impl Default for Admission {
    fn default() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self {
            uploads: ByteBudget::new(UPLOADS_BYTES_MAX),
            reports: ByteBudget::new(REPORTS_WAITING_BYTES_MAX),
            lines: UploadLines::default(),
            waiting: places(UPLOADS_WAITING_MAX),
            first_chunks: places(FIRST_CHUNKS_MAX),
            deferred: AtomicU64::new(0),
        }
    }
}

impl ByteBudget {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let kib = Arc::new(Semaphore::new(kib(bytes_max) as usize));
        Self { kib, bytes_max, waits: AtomicU64::new(0) }
    }

    /// Waits until there is room for this many bytes; more than fit at all count as all there is.
    pub(crate) async fn enter(&self, bytes: u64) -> Share {
        let share = kib(bytes.min(self.bytes_max));
        if let Ok(share) = self.kib.clone().try_acquire_many_owned(share) {
            return Some(share);
        }
        self.waits.fetch_add(1, Relaxed);
        self.kib.clone().acquire_many_owned(share).await.ok()
    }

    /// Bytes inside.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes_max.saturating_sub((self.kib.available_permits() as u64) << 10)
    }
}

impl Admission {
    /// A place in the line of uploads, at its end; none when it is too long, or the node has too
    /// many in it. Waits until the first chunk may be read.
    pub(crate) async fn turn(&self, node: &str) -> Option<Turn> {
        let line = self.lines.of(node);
        let enter = |line: &Arc<Semaphore>| line.clone().try_acquire_owned().ok();
        let Some(waiting) = enter(&line.waiting).zip(enter(&self.waiting)) else {
            self.deferred.fetch_add(1, Relaxed);
            return None;
        };
        // Its node's turn first: it holds none that others wait for meanwhile.
        let of_node = line.turns.clone().acquire_owned().await.ok();
        let first_chunk = self.first_chunks.clone().acquire_owned().await.ok();
        Some(Turn { of_node, _waiting: waiting.into(), _first_chunk: first_chunk, line })
    }

    /// Waits until a snapshot of this size may be read whole; the place for the first chunk is
    /// given back then.
    pub(crate) async fn upload(&self, turn: Turn, bytes: u64) -> Room {
        let bytes = bytes.saturating_add(UPLOAD_OVERHEAD_BYTES);
        // The room of its node first: it takes no place before others while it waits for its own.
        let of_node = turn.line.bytes.enter(bytes).await;
        let of_all = self.uploads.enter(bytes).await;
        Room { _bytes: [of_node, of_all], _turn: turn.of_node, _line: turn.line }
    }

    /// What is inside now, for the metrics. Uploads may take: snapshots, first chunks, and what
    /// HTTP/2 lets waiting agents send unread.
    pub(crate) fn figures(&self, message_bytes_max: u64, window_bytes: u64) -> AdmissionFigures {
        AdmissionFigures {
            upload_bytes: self.uploads.bytes(),
            upload_bytes_max: self.uploads.bytes_max
                + FIRST_CHUNKS_MAX as u64 * message_bytes_max
                + UPLOADS_WAITING_MAX as u64 * window_bytes,
            report_bytes: self.reports.bytes(),
            report_bytes_max: self.reports.bytes_max,
            answer_bytes: 0,
            waits: [
                ("upload", self.uploads.waits.load(Relaxed)),
                ("upload_deferred", self.deferred.load(Relaxed)),
                ("report", self.reports.waits.load(Relaxed)),
            ],
        }
    }
}

fn kib(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use memtape_core::limits::{
        SNAPSHOT_BYTES_MAX, UPLOAD_PART_SECONDS_MAX, UPLOADS_BYTES_PER_NODE_MAX,
        UPLOADS_PER_NODE_MAX,
    };
    use tokio::time::{Duration, Instant, sleep};

    use super::*;
    use crate::ingest::upload_lines::TURNS_PER_NODE_MAX;

    const STALL: Duration = Duration::from_secs(UPLOAD_PART_SECONDS_MAX);

    #[tokio::test]
    async fn those_who_do_not_fit_wait_in_order() {
        let budget = Arc::new(ByteBudget::new(10 << 10));
        let first = budget.enter(8 << 10).await;
        assert_eq!((budget.bytes(), budget.waits.load(Relaxed)), (8 << 10, 0));
        let (send, mut entered) = tokio::sync::mpsc::unbounded_channel();
        // A large one, then a small one that would fit: it does not overtake.
        for (place, bytes) in [(1, 9 << 10), (2, 1 << 10)] {
            let (inner, send) = (budget.clone(), send.clone());
            tokio::spawn(async move {
                let share = inner.enter(bytes).await;
                let _ = send.send((bytes, share));
            });
            while budget.waits.load(Relaxed) < place {
                tokio::task::yield_now().await;
            }
        }
        drop(first);
        let (bytes, share) = entered.recv().await.expect("the first in line");
        assert_eq!(bytes, 9 << 10);
        drop(share);
        assert_eq!(entered.recv().await.expect("the second").0, 1 << 10);
        // More than fits at all is let in alone.
        while budget.bytes() > 0 {
            tokio::task::yield_now().await;
        }
        let all = budget.enter(u64::MAX).await;
        assert_eq!(budget.bytes(), 10 << 10);
        drop(all);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_ends() {
        let admission = Admission::default();
        let mut inside = Vec::new();
        let nodes: Vec<String> = (0..UPLOADS_WAITING_MAX).map(|of| format!("node-{of}")).collect();
        for of in &nodes[..FIRST_CHUNKS_MAX] {
            inside.push(admission.turn(of).await.expect("there is room"));
        }
        let mut lining_up = Vec::new();
        for of in &nodes[FIRST_CHUNKS_MAX..] {
            let mut turn = Box::pin(admission.turn(of));
            let waits = std::future::poll_fn(|context| {
                std::task::Poll::Ready(turn.as_mut().poll(context).is_pending())
            });
            assert!(waits.await, "no more than {FIRST_CHUNKS_MAX} first chunks");
            lining_up.push(turn);
        }
        assert!(admission.turn("other").await.is_none());
        assert_eq!(admission.deferred.load(Relaxed), 1);
        drop(inside.pop());
        assert!(lining_up.remove(0).await.is_some());
    }

    #[tokio::test]
    async fn silent_uploads_of_one_node_hold_up_no_other() {
        let admission = Admission::default();
        let mut inside = Vec::new();
        for _ in 0..TURNS_PER_NODE_MAX {
            inside.push(admission.turn("silent").await.expect("there is room"));
        }
        let mut lining_up = Vec::new();
        for _ in TURNS_PER_NODE_MAX..UPLOADS_PER_NODE_MAX {
            let mut turn = Box::pin(admission.turn("silent"));
            let waits = std::future::poll_fn(|context| {
                std::task::Poll::Ready(turn.as_mut().poll(context).is_pending())
            });
            assert!(waits.await, "no more than {TURNS_PER_NODE_MAX} of a node");
            lining_up.push(turn);
        }
        assert!(admission.turn("silent").await.is_none(), "too many of a node");
        assert!(admission.turn("other").await.is_some());
        drop(inside.pop());
        assert!(lining_up.remove(0).await.is_some());
    }

    /// Makes all uploads of a node that it may, again and again, each as large as can be; none of
    /// them brings anything.
    fn stall(admission: &Arc<Admission>, node: &'static str) {
        for _ in 0..UPLOADS_PER_NODE_MAX {
            let admission = admission.clone();
            tokio::spawn(async move {
                while let Some(turn) = admission.turn(node).await {
                    let _room = admission.upload(turn, SNAPSHOT_BYTES_MAX as u64).await;
                    sleep(STALL).await;
                }
            });
        }
    }

    /// Uploads a snapshot as large as can be; how long it waits for room.
    async fn waits(admission: &Admission, node: &str) -> Duration {
        let begin = Instant::now();
        let turn = admission.turn(node).await.expect("a turn");
        let _room = admission.upload(turn, SNAPSHOT_BYTES_MAX as u64).await;
        begin.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_uploads_of_a_node_hold_up_no_other() {
        let admission = Arc::new(Admission::default());
        stall(&admission, "evil-1");
        sleep(STALL / 2).await;
        assert_eq!(admission.uploads.bytes(), UPLOADS_BYTES_PER_NODE_MAX);
        for _ in 0..100 {
            assert_eq!(waits(&admission, "node-a").await, Duration::ZERO);
            sleep(STALL / 7).await;
        }
        // Two of them fill the room, and every other node waits for one upload of each at most.
        stall(&admission, "evil-2");
        for _ in 0..100 {
            let waited = waits(&admission, "node-a").await;
            assert!(waited <= 2 * STALL, "{waited:?}");
            sleep(STALL / 7).await;
        }
    }
}
