//! The loop of one agent: it feeds [`Agent`] with events and carries out its work.
//!
//! The clock is read here, once per event. What takes time runs elsewhere and comes back as an
//! event: rewinds on blocking threads, uploads in tasks of their own. How many there are at once
//! is the agent's own decision.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinError;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::agent::{Agent, Event};
use crate::capture::answers::Work;
use crate::capture::rewind::Rewound;
use crate::health::Published;
use crate::link::coordinators::Coordinators;
use crate::link::stream::{self, ShardCount, StreamEvent};
use crate::link::upload::{UploadError, upload};
use crate::link::wire::Outgoing;
use crate::node::clock;
use crate::tapes::divided::DividedFolders;

/// Maximum number of events in the queue of the loop; senders wait beyond it.
const EVENTS_MAX: usize = 256;

/// Scans after which an agent ends that has no tapes and no kept records, and for whose shard no
/// file is found, unless it is the primary agent.
const IDLE_SCANS_MAX: u32 = 60;

/// How an agent ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// It was stopped.
    Stopped,
    /// The agent of this shard had nothing to do any more.
    Idle(u16),
    /// A coordinator named another number of shards.
    Divided(u16),
}

/// The other shards that have tapes in the folders; none before the folders were read.
pub(crate) type Found = Option<BTreeSet<u16>>;

/// Which agent of its process.
#[derive(Debug)]
pub(crate) enum Kind {
    /// The primary agent reads the folders, and publishes what it found.
    Primary(watch::Sender<Found>, DividedFolders),
    /// The agent of another shard.
    Other(u16, watch::Receiver<Found>),
}

impl Kind {
    /// The shard; none for the primary agent.
    pub(crate) fn shard(&self) -> Option<u16> {
        match self {
            Self::Primary(..) => None,
            Self::Other(shard, _) => Some(*shard),
        }
    }

    /// True if the primary agent finds files for the agent, whether or not they are sound tapes.
    fn is_found(&self) -> bool {
        match self {
            Self::Primary(..) => true,
            Self::Other(shard, found) => found.borrow().iter().flatten().any(|of| of == shard),
        }
    }
}

/// What an agent has to do with others.
#[derive(Debug)]
pub(crate) struct Following {
    pub(crate) kind: Kind,
    pub(crate) shard_count: ShardCount,
    pub(crate) coordinators: Arc<Coordinators>,
    pub(crate) published: Published,
    pub(crate) stop: CancellationToken,
    /// Number of the process's agents.
    pub(crate) agents: watch::Receiver<u64>,
    pub(crate) permits: Arc<Permits>,
}

/// Permits for what the agents of a process do on threads at the same time.
#[derive(Debug)]
pub(crate) struct Permits {
    rewinds: Semaphore,
    counts: Semaphore,
}

impl Permits {
    /// This number of rewinds, and one count for a census.
    pub(crate) fn new(rewinds_max: usize) -> Self {
        Self { rewinds: Semaphore::new(rewinds_max), counts: Semaphore::new(1) }
    }
}

/// Runs the loop of an agent to its end.
pub(crate) async fn follow(mut agent: Agent, hello: Outgoing, of: Following) -> Ended {
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    let holding = stream::hold(of.coordinators.clone(), of.shard_count, hello, sender.clone());
    let holding = tokio::spawn(holding);
    let mut ticks = ticks(agent.report_interval());
    let mut idle_scans = 0;
    let shard = of.kind.shard();
    let ended = loop {
        let event = tokio::select! {
            () = of.stop.cancelled() => break Ended::Stopped,
            _ = ticks.tick() => Event::Tick,
            Some(event) = events.recv() => event,
            () = until(agent.next_ns()) => Event::Timeout,
        };
        if let Event::Stream(StreamEvent::Divided(shards)) = event {
            break Ended::Divided(shards);
        }
        let (now, is_look) = (clock::now(), matches!(event, Event::Tick));
        agent.handle(now, event);
        if is_look {
            of.published.set(shard, agent.health(now));
            agent.share(*of.agents.borrow(), shard, &of.published);
            if let Kind::Primary(found, folders) = &of.kind {
                let shards = Some(BTreeSet::from_iter(folders.found(agent.others())));
                found.send_if_modified(|known| std::mem::replace(known, shards.clone()) != shards);
            }
            let is_idle = agent.is_idle() && !of.kind.is_found();
            idle_scans = if is_idle { idle_scans + 1 } else { 0 };
            if let Some(shard) = shard.filter(|_| idle_scans >= IDLE_SCANS_MAX) {
                break Ended::Idle(shard);
            }
        }
        if agent.report_interval() != ticks.period() {
            ticks = self::ticks(agent.report_interval());
        }
        while let Some(work) = agent.take_work() {
            begin(work, &of, &sender);
        }
    };
    holding.abort();
    if shard.is_some() {
        of.published.forget(shard);
    }
    ended
}

/// Carries out one work; its result comes back as an event.
fn begin(work: Work, of: &Following, events: &mpsc::Sender<Event>) {
    let (channel, events) = (of.coordinators.channel(), events.clone());
    let permits = of.permits.clone();
    tokio::spawn(async move {
        let event = match work {
            Work::Rewind(id, rewind) => {
                let made = on_thread(&permits.rewinds, move || rewind.make(clock::now)).await;
                let failed = |error| format!("the tape could not be rewound: {error}");
                let made = made.unwrap_or_else(|error| Rewound::nothing(&failed(error)));
                Event::Rewound(id, made)
            }
            Work::Count(key, count) => {
                let failure = count.failure();
                let counted = on_thread(&permits.counts, move || count.make()).await;
                Event::Counted(key, counted.unwrap_or(failure))
            }
            Work::Upload(id, key, snapshot, time_left) => {
                let uploading = upload(channel, &key.capture_id, &key.tape_id, snapshot);
                Event::Uploaded(id, within(time_left, uploading).await)
            }
        };
        let _ = events.send(event).await; // the loop is gone: the agent stops
    });
}

/// Runs work on a thread as soon as there is a permit.
async fn on_thread<T: Send + 'static>(
    permits: &Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let _permit = permits.acquire().await; // never closed
    tokio::task::spawn_blocking(work).await
}

/// Runs an upload for at most this long.
async fn within(
    time_left: Duration,
    uploading: impl Future<Output = Result<(), UploadError>>,
) -> Result<(), UploadError> {
    timeout(time_left, uploading).await.unwrap_or(Err(UploadError::Late))
}

/// Waits for a time of the monotonic clock; forever for none.
async fn until(moment_ns: Option<u64>) {
    let Some(moment_ns) = moment_ns else { return std::future::pending().await };
    sleep(Duration::from_nanos(moment_ns.saturating_sub(clock::now().mono_ns))).await;
}

fn ticks(period: Duration) -> Interval {
    let mut ticks = interval(period);
    // A slow look at the tapes is not made up for by several quick ones.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn agents_share_the_permits_of_a_node() {
        let (permits, running) = (Arc::new(Semaphore::new(2)), Arc::new(AtomicUsize::new(0)));
        let works = (0..12).map(|_| {
            let (permits, running) = (permits.clone(), running.clone());
            tokio::spawn(async move {
                let work = move || {
                    let others = running.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(5));
                    running.fetch_sub(1, Ordering::SeqCst);
                    others
                };
                on_thread(&permits, work).await.expect("no panic")
            })
        });
        let works: Vec<_> = works.collect();
        for work in works {
            assert!(work.await.expect("no panic") < 2);
        }
    }

    #[tokio::test]
    async fn an_upload_that_times_out_is_not_a_refusal() {
        let end = within(Duration::from_millis(1), std::future::pending()).await;
        assert_eq!(end, Err(UploadError::Late));
        assert!(!UploadError::Late.is_final());
        let refusal = Err(UploadError::Refused("it is not wanted".to_string()));
        let end = within(Duration::MAX, std::future::ready(refusal.clone())).await;
        assert_eq!(end, refusal);
    }
}
