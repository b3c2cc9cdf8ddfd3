//! The page as a browser gets it: its files, its icon, what it downloads. `web/tests` has the tests
//! of what it shows.

use memtape_core::pickle::torch_snapshot;
use memtape_proto::snapshot::{self, Bounds};
use serde_json::json;

use crate::fake::{config, start, training};
use crate::{JOB, train_until_captured};

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_served_with_its_script_and_its_icon() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path())).await;
    for (path, content_type, part) in [
        ("/index.html", "text/html", "src=\"app.js\""),
        ("/app.js", "text/javascript", "api/v1/"),
        ("/app.css", "text/css", "color-scheme"),
        ("/favicon.ico", "image/svg+xml", "<svg"),
        ("/favicon.svg", "image/svg+xml", "<svg"),
    ] {
        let answer = reqwest::get(running.url(path)).await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        let found = answer.headers()["content-type"].to_str().unwrap().to_string();
        assert!(found.starts_with(content_type), "{path}: {found}");
        assert!(answer.text().await.unwrap().contains(part), "{path}");
    }
    for path in ["/src/main.tsx", "/nosuch.js", "/app.js.map"] {
        assert_eq!(running.get(path).await.0, 404, "{path}");
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_lists_its_routes() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path())).await;
    let (status, index) = running.get("/api/v1").await;
    assert_eq!((status, &index["document"]), (200, &json!("/api/v1/openapi.json")));
    assert_eq!(index["version"], env!("CARGO_PKG_VERSION"), "the program's, not the API's");
    assert_eq!(running.get("/api/v1/").await, (status, index.clone()));
    let (_, document) = running.get("/api/v1/openapi.json").await;
    let routes = index["routes"].as_array().unwrap();
    assert!(routes.len() > 10, "{index:#}");
    for route in routes {
        let (path, method) = (route["path"].as_str().unwrap(), route["method"].as_str().unwrap());
        let described = &document["paths"][path][method.to_lowercase()];
        assert_eq!(described["summary"], route["about"], "{method} {path}");
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_of_a_capture_is_downloaded_as_a_pickle() {
    let (_dir, running, mut agent) = training(&JOB).await;
    let (_, (request, snapshots)) = train_until_captured(&mut agent, &JOB, 0).await;
    let id = &request.capture_id;
    let path = format!("/api/v1/captures/{id}");
    running.wait(&path, |capture| capture["state"] == "complete").await;
    let url = |rank: u32| running.url(&format!("{path}/ranks/{rank}/pickle"));
    // At the same time: those that find no turn wait.
    let answers = (0..JOB.ranks).map(|rank| tokio::spawn(reqwest::get(url(rank))));
    for (rank, answer) in (0..JOB.ranks).zip(answers.collect::<Vec<_>>()) {
        let answer = answer.await.unwrap().unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "application/octet-stream");
        let name = format!("attachment; filename=\"{id}-rank{rank}.pickle\"");
        assert_eq!(answer.headers()["content-disposition"], name.as_str());
        // What `memtape export` writes of the same capture.
        let stored = snapshot::decode(&snapshots[&rank], Bounds::default()).unwrap();
        assert_eq!(answer.bytes().await.unwrap(), torch_snapshot(&stored));
    }
    for path in [format!("{path}/ranks/99/pickle"), "/api/v1/captures/cap-x/ranks/0/pickle".into()]
    {
        let (status, answer) = running.get(&path).await;
        assert_eq!(status, 404, "{path}");
        assert!(answer["error"].as_str().unwrap().starts_with("there is no "), "{answer}");
    }
    running.stop().await;
}
