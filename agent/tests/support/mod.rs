//! What the tests put around an agent: ranks with real tapes, and a coordinator that only listens.

pub(crate) mod cgroup;

pub(crate) mod coordinator;

pub(crate) mod rank;

use std::path::Path;
use std::time::Duration;

use memtape_agent::Config;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// An agent in this process.
pub(crate) struct RunningAgent {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), memtape_agent::RunError>>,
}

impl RunningAgent {
    /// Starts one that reads `dir` and reports every 50 ms.
    pub(crate) fn start(dir: &Path, coordinator: &str, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config {
            node: "node-1".to_string(),
            coordinator: coordinator.to_string(),
            tape_dirs: vec![dir.to_path_buf()],
            report_interval: Duration::from_millis(50),
            spool_dir: None,
            ..Config::default()
        };
        change(&mut config);
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(memtape_agent::run(config, async {
            let _ = stopped.await;
        }));
        Self { stop, task }
    }

    /// Stops it and waits for its end, which must be an orderly one.
    pub(crate) async fn stop(self) {
        self.stop.send(()).expect("the agent runs");
        self.task.await.expect("no panic").expect("no error");
    }
}
