//! docs/reference/http-api.md and metrics.md are what a running coordinator says of itself: its
//! OpenAPI document, which is made here of the requests that it lists and their types, and its
//! metrics while a job with an incident runs. The coordinator is that of a cluster in a folder.
//!
//! `cargo xtask docs --reference` writes the pages and the document again.

mod api;
#[path = "../../../tape/tests/golden_files/mod.rs"]
mod golden_files;
mod metrics;

use std::path::Path;

use memtape_coordinator::Config;

use crate::fake::{Agent, config, start};
use crate::host_readings::{full, gpu};
use crate::{JOB, train_until_captured};

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "cluster"), ignore = "the page has the requests to a bucket")]
async fn the_reference_matches_the_served_document() {
    let dir = tempfile::tempdir().unwrap();
    let cluster_url = Some(format!("file://{}", dir.path().join("cluster").display()));
    let running = start(Config { cluster_url, ..config(dir.path()) }).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.gpus = (0..JOB.ranks).map(gpu).collect();
    agent.announce(&JOB).await;
    let (step, _) = train_until_captured(&mut agent, &JOB, 0).await;
    let is_done = |answer: &serde_json::Value| answer["incidents"][0]["class"] == "leak";
    running.wait("/api/v1/incidents", is_done).await;
    agent.report((0..JOB.ranks).map(|rank| full(&JOB, rank, step + 1)).collect()).await;
    agent.settle().await;
    let document = crate::openapi::made(&running).await;
    let exported = reqwest::get(running.url("/metrics")).await.unwrap().text().await.unwrap();
    running.stop().await;
    let text = serde_json::to_string_pretty(&document).unwrap() + "\n";
    let served = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http/openapi.json");
    golden_files::check(&served, &text, "cargo xtask docs --reference");
    check("http-api.md", &api::page(&document));
    check("metrics.md", &metrics::page(&exported));
}

/// The page is this text; `MEMTAPE_GOLDEN=make` writes it.
fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference").join(name);
    golden_files::check(&path, text, "cargo xtask docs --reference");
}
