//! Clients that ask for what takes long, and leave.

use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use memtape_core::limits::{ANSWER_WORKS_MAX, ANSWER_WORKS_PER_CALLER_MAX};
use memtape_store::records::{SeriesKey, StepRecord};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::http::routes;

/// Steps of a long series that are not packed yet.
const STEPS: u64 = 200_000;

/// Requests for each route, one after the other.
const REQUESTS: usize = 40;

/// Requests of one caller whose answers read the store, each by its path.
const PATHS: [&str; 6] = [
    "/api/v1/jobs/j0/series?rank=0",
    "/api/v1/jobs/j0/hints",
    "/api/v1/audit",
    "/api/v1/store/backup",
    "/metrics",
    "/readyz",
];

fn get(router: &Router, path: &str) -> impl Future<Output = StatusCode> + use<> {
    let peer = Peer::new(SocketAddr::from(([127, 0, 0, 1], 1)));
    let call =
        Arc::new(Connections::new(memtape_core::limits::UNKNOWN_CALLS_MAX)).open(peer).begin();
    let request = Request::get(path).header("host", "localhost").extension(call.clone());
    let request = request.body(Body::empty()).unwrap();
    let answering = TowerToHyperService::new(router.clone()).call(request);
    async move { call.answer(answering.await.unwrap()).status() }
}

/// A series that no answer reads at once.
async fn keep_steps(store: &Store) {
    let key = SeriesKey { serial: 0, rank: 0, device: 0 };
    let step = |step| StepRecord { first_step: step, last_step: step, ..StepRecord::default() };
    let (done, kept) = oneshot::channel();
    let batch = vec![((key, (0, 0)), (1..=STEPS).map(step).collect())];
    store.steps(batch, Box::new(move |result| done.send(result.is_ok()).unwrap()));
    assert!(kept.await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_for_clients_that_left_ends_soon() {
    let folder = tempfile::tempdir().unwrap();
    let (mut coordinator, api, events, mut queues) = start(folder.path());
    keep_steps(&api.store).await;
    let (router, quotas) = (routes::router(api.clone(), &[]), api.quotas.clone());
    let asking = async {
        assert_eq!(get(&router, PATHS[0]).await, StatusCode::OK);
        for path in PATHS.iter().flat_map(|path| [path; REQUESTS]) {
            // A reset: the future is dropped.
            let _ = timeout(Duration::from_millis(2), get(&router, path)).await;
            assert!(quotas.works() <= ANSWER_WORKS_PER_CALLER_MAX, "{path}");
        }
        // Events are handled meanwhile, and what needs the same threads is not held up.
        events.send(Event::Tick).await.unwrap();
        let begin = Instant::now();
        assert_eq!(get(&router, "/readyz").await, StatusCode::OK);
        while quotas.works() > 0 {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    };
    tokio::select! {
        () = asking => {}
        () = async {
            while let Some(event) = queues.next().await {
                coordinator.handle(Now { mono_ns: 2, wall_ns: 2 }, event);
            }
        } => unreachable!("senders are kept"),
    }
}

/// No other file begins work that its client's permits do not count.
#[test]
fn work_on_answers_has_one_beginning() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/http");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    for file in files.filter(|file| file.is_file()) {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(!text.contains("spawn_blocking"), "{}: use Asking::work", file.display());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_counts_until_it_ends_and_leaves_threads_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let (_coordinator, api, _events, _queues) = start(folder.path());
    let (running, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let work = |caller: u32| {
        let (asking, running, is_over) = (asking(&api, caller), running.clone(), is_over.clone());
        tokio::spawn(async move {
            let work = move |client: &Client| {
                running.fetch_add(1, SeqCst);
                while is_over.load(SeqCst) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                running.fetch_sub(1, SeqCst);
                client.waits().is_break()
            };
            asking.work(work).await
        })
    };
    let all: Vec<_> = (0..60).map(|of| work(of % 10)).collect();
    let reaches = async |count| {
        while running.load(SeqCst) < count {
            sleep(Duration::from_millis(1)).await;
        }
        sleep(Duration::from_millis(50)).await;
        assert_eq!(running.load(SeqCst), count);
    };
    reaches(ANSWER_WORKS_MAX).await;
    // The works of clients that have left still count.
    all.iter().for_each(|task| task.abort());
    reaches(ANSWER_WORKS_MAX).await;
    is_over.store(1, SeqCst);
    for task in (0..4).map(work).collect::<Vec<_>>() {
        assert_eq!(task.await.unwrap(), Ok(false));
    }
    while api.quotas.works() > 0 {
        sleep(Duration::from_millis(1)).await;
    }
}
