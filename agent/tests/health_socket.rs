//! The socket of the health check of a whole agent.

use std::path::Path;

use hyper_util::rt::TokioIo;
use memtape_agent::{Config, RunError};
use memtape_proto::nvhcd::health_check_service_client::HealthCheckServiceClient;
use memtape_proto::nvhcd::{HealthCheckRequest, HealthCheckResponse};
use tokio::net::UnixStream;
use tonic::transport::{Endpoint, Uri};

use crate::folder;
use crate::support::RunningAgent;
use crate::support::coordinator::FakeCoordinator;

async fn ask(path: &Path) -> HealthCheckResponse {
    let path = path.to_path_buf();
    let connect = move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    };
    let channel = Endpoint::from_static("http://socket")
        .connect_with_connector(tower::service_fn(connect))
        .await
        .expect("a connection");
    let request = HealthCheckRequest { args: vec!["--no-slurm".to_string()] };
    let response = HealthCheckServiceClient::new(channel).run_health_check(request).await;
    response.expect("an answer").into_inner()
}

/// Waits until an agent listens.
async fn connected(path: &Path) {
    for _ in 0..1500 {
        if UnixStream::connect(path).await.is_ok() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("no agent listens on {path:?}");
}

/// On a node whose GPUs are not used, or that has none, ft_launcher may go on. What is not known is
/// reported as not known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launcher_is_answered_by_an_agent_and_by_the_next_one() {
    let (dir, coordinator) = (folder(), FakeCoordinator::start());
    let path = dir.path().join("health.sock");
    let with_socket = |config: &mut Config| config.health_socket = Some(path.clone());
    for _ in 0..2 {
        let agent = RunningAgent::start(dir.path(), &coordinator.url(), with_socket);
        connected(&path).await;
        let response = ask(&path).await;
        assert!(response.success, "{response:?}");
        let output: serde_json::Value = serde_json::from_str(&response.output).expect("JSON");
        assert_eq!(output["fail_count"], 0, "{output}");
        let has_driver = Path::new("/proc/driver/nvidia/version").exists();
        assert!(has_driver || output["verdict"] == "unknown", "{output}");
        agent.stop().await;
        // A launcher that starts now still finds the file, and the next agent replaces it.
        assert!(path.exists());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_does_not_start_over_the_file_of_another() {
    let dir = folder();
    let path = dir.path().join("health.sock");
    std::fs::write(&path, "precious").expect("a file");
    let config = Config {
        tape_dirs: vec![dir.path().to_path_buf()],
        spool_dir: None,
        health_socket: Some(path.clone()),
        ..Config::default()
    };
    let ended = memtape_agent::run(config, std::future::pending()).await;
    assert!(matches!(&ended, Err(RunError::HealthSocket(_))), "{ended:?}");
    assert_eq!(std::fs::read(&path).expect("a file"), b"precious");
}
