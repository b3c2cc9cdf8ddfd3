//! `/readyz` of a coordinator that cannot write.

use std::time::Duration;

use memtape_coordinator::Config;
use memtape_tls::authority::{Party, issue, make};
use tokio::time::Instant;

use crate::JOB;
use crate::fake::{Agent, PATIENCE, attached, config, start};

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_whose_folder_is_gone_is_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let (live, aside) = (dir.path().join("live"), dir.path().join("aside"));
    let running = start(config(&live)).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&JOB).await;
    agent.train(&JOB, 1..=5).await;
    assert_eq!(running.get("/readyz").await.0, 200);
    // Without the file that earlier versions lock the folder is still taken.
    std::fs::remove_file(live.join("lock")).unwrap();
    let second = memtape_coordinator::run(config(&live), std::future::ready(()), |_| ()).await;
    let refused = second.unwrap_err().to_string();
    assert!(refused.contains("in use"), "{refused}");
    std::fs::rename(&live, &aside).unwrap();
    // An answer counts for a second.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let (status, answer) = running.get("/readyz").await;
    assert_eq!(status, 503);
    assert!(answer["error"].as_str().unwrap().contains("gone"), "{answer}");
    // A capture is refused before it begins.
    let captures = "/api/v1/jobs/train/captures";
    let (status, answer) = running.post(captures, "").await;
    assert!(status == 503 && answer["error"].as_str().unwrap().ends_with("nothing was done"));
    assert_eq!(running.get("/api/v1/captures").await.1["captures"], serde_json::json!([]));
    std::fs::create_dir(&live).unwrap();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(running.get("/readyz").await.0, 503, "another folder in its place");
    assert_eq!(running.get("/healthz").await.0, 200);
    std::fs::remove_dir(&live).and_then(|()| std::fs::rename(&aside, &live)).unwrap();
    assert_eq!(running.post(captures, "").await.0, 202, "the same folder is back");
}

/// A file in the place of a folder fails as a full disk does.
#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_cannot_write_steps_is_not_ready() {
    let (dir, running, mut agent) = attached().await;
    agent.announce(&JOB).await;
    agent.train(&JOB, 1..=5).await;
    let ready = async |status: u16| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (found, answer) = running.get("/readyz").await;
            if found == status {
                return answer["error"].as_str().unwrap_or_default().to_string();
            }
            assert!(Instant::now() < deadline, "{found}: {answer}");
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    let (rows, aside) = (dir.path().join("rows"), dir.path().join("aside"));
    std::fs::rename(&rows, &aside).unwrap();
    std::fs::write(&rows, "").unwrap();
    let why = ready(503).await;
    assert!(why.starts_with("step records cannot be written") && !why.contains('\n'), "{why}");
    std::fs::remove_file(&rows).unwrap();
    ready(200).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_whose_certificate_has_ended_is_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, own) = (dir.path().join("authority"), dir.path().join("coordinator"));
    make(&authority).unwrap();
    let party = Party::Coordinator(vec!["127.0.0.1".to_string()]);
    issue(&authority, &own, &party, 0).unwrap();
    // Times in certificates are whole seconds.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let access = dir.path().join("access.toml");
    std::fs::write(&access, "[[grant]]\nrole = \"viewer\"\nnames = [\"cn:x\"]\n").unwrap();
    let data = config(&dir.path().join("data"));
    let running =
        start(Config { tls_dir: Some(own.clone()), access_file: Some(access), ..data }).await;
    let http = reqwest::Client::builder().tls_danger_accept_invalid_certs(true).build().unwrap();
    let answer = http.get(format!("https://{}/readyz", running.address)).send().await.unwrap();
    assert_eq!(answer.status(), 503);
    let why = answer.text().await.unwrap();
    let begin = format!("the certificate in {} ended on 2", own.display());
    assert!(why.contains(&begin), "{why}");
    running.stop().await;
}
