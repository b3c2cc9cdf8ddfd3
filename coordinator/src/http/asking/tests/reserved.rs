//! The memory of every answer of the API.

use axum::body::{Body, HttpBody as _};
use axum::http::{Request, Response};
use axum::response::Response as Answer;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use memtape_proto::api::IndexedRoute;

use super::*;
use crate::http::routes;

/// The answer to a GET, unread, and the smallest reservation with which the loop was asked.
async fn get(
    api: &Api,
    path: &str,
    coordinator: &mut Coordinator,
    queues: &mut Queues,
) -> (Answer, Option<u64>) {
    let peer = Peer::new(SocketAddr::from(([127, 0, 0, 1], 1)));
    let call =
        Arc::new(Connections::new(memtape_core::limits::UNKNOWN_CALLS_MAX)).open(peer).begin();
    let request = Request::get(path).header("host", "localhost").extension(call);
    let request = request.body(Body::empty()).unwrap();
    let router = TowerToHyperService::new(routes::router(api.clone(), &[]));
    let (mut answering, mut reserved) = (std::pin::pin!(router.call(request)), None);
    loop {
        tokio::select! {
            answer = &mut answering => return (answer.unwrap(), reserved),
            Some(event) = queues.next() => {
                if matches!(event, Event::Asked(_)) {
                    let bytes = api.quotas.answers.bytes();
                    reserved = Some(reserved.map_or(bytes, |of: u64| of.min(bytes)));
                }
                coordinator.handle(Now { mono_ns: 2, wall_ns: 2 }, event);
            }
        }
    }
}

#[tokio::test]
async fn every_answer_has_its_memory_before_it_is_made_and_until_it_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let (mut coordinator, api, _events, mut queues) = start(folder.path());
    let (index, _) = get(&api, "/api/v1", &mut coordinator, &mut queues).await;
    let index = axum::body::to_bytes(index.into_body(), usize::MAX).await.unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    let routes: Vec<IndexedRoute> = serde_json::from_value(index["routes"].clone()).unwrap();
    let paths = routes.iter().filter(|route| route.method == "GET").map(|route| {
        let path = route.path.replace("{job}", "j0").replace("{rank}", "0");
        path.replace("{id}", if path.contains("incidents") { "inc-1" } else { "cap-1" })
    });
    let (mut asked, mut large) = (0, Vec::new());
    for path in paths.chain(["/metrics".to_string()]) {
        let needs_rank = path.ends_with("series") || path.ends_with("kept");
        let path = if needs_rank { path + "?rank=0" } else { path };
        let (answer, reserved) = get(&api, &path, &mut coordinator, &mut queues).await;
        assert!(reserved.is_none_or(|bytes| bytes > 0), "{path}: the loop made it for nothing");
        asked += u32::from(reserved.is_some());
        let (bytes, held) = (answer.body().size_hint().exact(), api.quotas.answers.bytes());
        let bytes = bytes.unwrap_or(0);
        // The list of paths and the document are not the caller's.
        if bytes > 16 << 10 && !path.ends_with("openapi.json") {
            assert!((bytes..=bytes + 1024).contains(&held), "{path}: {held} of {bytes} bytes");
            large.push(path.clone());
        } else {
            assert!(held <= 1 << 20, "{path}: {held} bytes for {bytes}");
        }
        if path.ends_with("changes") {
            // It does not end by itself.
            drop(answer);
            while api.quotas.answers.bytes() > 0 {
                tokio::task::yield_now().await;
            }
        } else {
            read(answer).await;
        }
        assert_eq!(api.quotas.answers.bytes(), 0);
    }
    assert!(asked > 10 && large.len() >= 2, "{asked}, {large:?}");
    // What a person does needs none of that memory.
    let mut doing = asking(&api, 1);
    doing.is_read = false;
    let asked = tokio::spawn(async move { doing.ask(|view| view.jobs().count()).await });
    let event = queues.next().await.unwrap();
    assert_eq!(api.quotas.answers.bytes(), 0);
    coordinator.handle(Now { mono_ns: 2, wall_ns: 2 }, event);
    assert_eq!(asked.await.unwrap(), Ok(JOBS as usize));
}

async fn read(answer: Response<Body>) {
    // An answer in parts may end as an error: nothing is stored here.
    let _ = axum::body::to_bytes(answer.into_body(), usize::MAX).await;
}
