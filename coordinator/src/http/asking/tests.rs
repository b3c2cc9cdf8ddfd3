//! Many questions at once, and what else the loop has to do.

mod leaving;
mod refusals;
mod reserved;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

use memtape_core::capacity::Division;
use memtape_core::detector::{Finding, Growth, Layer};
use memtape_core::identity::ids::Ids;
use memtape_core::limits::{REQUESTS_IN_PROGRESS_MAX, UNKNOWN_CALLS_MAX};
use memtape_store::Store;
use tokio::sync::mpsc;
use tokio::task::{JoinSet, yield_now};

use super::*;
use crate::access::audit::Audit;
use crate::access::tokens::Tokens;
use crate::access::{Door, Peer};
use crate::config::Config;
use crate::connections::Connections;
use crate::coordinator::{Coordinator, Shared};
use crate::http::job_routes;
use crate::ingest::event::{Event, Queues};
use crate::members::Members;
use crate::quota::Quotas;
use crate::state::effects::Context;
use crate::state::messages::{Hello, RankUp};
use crate::state::restored::Restored;
use crate::telemetry::export::Telemetry;
use crate::work::decoding::Snapshots;
use memtape_disk::clock::Now;

const JOBS: u32 = 50;
const CALLERS: u32 = 3;

/// A coordinator without a server, and its handles.
pub(in crate::http) type Started = (Coordinator, Api, mpsc::Sender<Event>, Queues);

/// A coordinator with jobs that have an open incident each.
fn start(folder: &Path) -> Started {
    let jobs = (0..JOBS).map(|number| format!("j{number}"));
    start_one(folder, jobs, Members::alone(), |tokens, audit| {
        Door::new(None, None, tokens, audit).unwrap()
    })
}

/// A coordinator of a cluster with these jobs, each with an open incident.
pub(in crate::http) fn start_one(
    folder: &Path,
    jobs: impl IntoIterator<Item = String>,
    members: Members,
    door: impl FnOnce(Tokens, Audit) -> Door,
) -> Started {
    let (now, config) = (Now { mono_ns: 1, wall_ns: 1 }, Config::default());
    let (store, loaded, _) = Store::open(folder).unwrap();
    let ids = Ids::of_shard(members.own(), members.shards());
    let mut restored = Restored::new(now, &config, loaded, &store, &ids);
    restored.jobs.attach(now, Hello { node: "n".into(), ..Hello::default() });
    for (number, job) in (0..).zip(jobs) {
        let tape_id = format!("t{number}");
        let up = RankUp { tape_id, job, ..RankUp::default() };
        restored.jobs.rank_up(&mut Context::new(now), "n", up, None);
        let growth = Growth { layer: Layer::Allocated, bytes_per_step: 1, ..Growth::default() };
        let opened = Finding::Opened(growth);
        restored.incidents.found(&mut Context::new(now), number, opened, &restored.jobs);
    }
    let counters = Arc::new(crate::state::counters::Counters::default());
    let audit = Audit::new(store.clone(), counters.clone(), Vec::new());
    let tokens = Tokens::new(audit.clone(), Vec::new());
    let door = Arc::new(door(tokens, audit.clone()));
    let telemetry = Arc::new(Telemetry::start(None, &counters).unwrap());
    let snapshots = Snapshots::new(store.blobs().clone(), counters.clone(), Division::of(None));
    let (events, requests, queues) = Queues::new();
    let shared = Shared { store, counters, audit, telemetry, events: events.clone() };
    let api = Api::new(
        shared.clone(),
        requests,
        door,
        (Arc::new(Quotas::new(Division::of(None))), members),
        snapshots,
    );
    let works = mpsc::unbounded_channel().0;
    (Coordinator::new(now, Arc::new(config), restored, shared, works), api, events, queues)
}

fn asking(api: &Api, caller: u32) -> Asking {
    let peer = Peer::new(SocketAddr::from((caller.to_be_bytes(), 1)));
    let call = Arc::new(Connections::new(UNKNOWN_CALLS_MAX)).open(peer).begin();
    let (unsent, caller) = (Arc::<Unsent>::default(), Arc::new(Caller::anyone()));
    let quota = api.quotas.caller(&api.door.bucket(call.connection().peer(), Some(&caller)));
    unsent.belongs_to(quota.clone());
    Asking { api: api.clone(), caller, call, quota, unsent, is_read: true, request: 1 }
}

/// Each caller asks for all jobs as often as a caller may at once.
async fn flood(api: &Api) -> JoinSet<Result<usize, Problem>> {
    let mut asked = JoinSet::new();
    for of in 0..CALLERS * REQUESTS_IN_PROGRESS_MAX as u32 {
        let asking = asking(api, of % CALLERS);
        asked.spawn(async move { job_routes::jobs(asking).await.map(|all| all.jobs.len()) });
    }
    for _ in 0..10 {
        yield_now().await;
    }
    asked
}

#[tokio::test]
async fn questions_delay_an_event_of_an_agent_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let (mut coordinator, api, events, mut queues) = start(folder.path());
    let mut asked = flood(&api).await;
    let now = Now { mono_ns: 2, wall_ns: 2 };
    for _ in 0..10 {
        let question = queues.next().await.unwrap();
        assert!(matches!(question, Event::Asked(_)));
        events.send(Event::Tick).await.unwrap();
        let scans = coordinator.view().incidents.scans.load(SeqCst);
        coordinator.handle(now, question);
        let scanned = coordinator.view().incidents.scans.load(SeqCst) - scans;
        assert_eq!(scanned, 0, "a job visits its own incidents");
        assert_eq!(asked.join_next().await.unwrap().unwrap(), Ok(JOBS as usize));
        assert!(matches!(queues.next().await, Some(Event::Tick)));
    }
}

#[tokio::test]
async fn a_caller_has_one_question_in_the_queue_and_none_once_it_has_left() {
    let folder = tempfile::tempdir().unwrap();
    let (mut coordinator, api, events, mut queues) = start(folder.path());
    let mut asked = flood(&api).await;
    let waiting = api.requests.max_capacity() - api.requests.capacity();
    assert_eq!(waiting, CALLERS as usize);
    asked.shutdown().await;
    drop((api, events));
    for _ in 0..CALLERS {
        let question = queues.next().await.unwrap();
        coordinator.handle(Now { mono_ns: 2, wall_ns: 2 }, question);
    }
    assert_eq!(coordinator.view().incidents.scans.load(SeqCst), 0);
}
