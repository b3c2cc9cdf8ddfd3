//! A node whose GPU keeps the memory of a job that has ended, from the agent's reports to the list
//! of actions, and across a restart of the coordinator.
//!
//! It takes as long as the coordinator waits for the memory: a minute, almost without work.

use std::time::Duration;

use memtape_core::limits::LEFT_MEMORY_SECONDS_MAX;
use memtape_core::policy::Mode;
use memtape_proto::v1;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::fake::{Agent, MIB, PATIENCE, Running, config, start};

fn gpu(used_bytes: u64, ranks: u32) -> v1::Gpu {
    let (total_bytes, free_bytes) = (80_000 * MIB, 80_000 * MIB - used_bytes);
    let (processes, ranks) = (Some(ranks), Some(ranks));
    let uuid = "GPU-7".to_string();
    v1::Gpu { uuid, index: 0, total_bytes, used_bytes, free_bytes, processes, ranks }
}

async fn report(agent: &mut Agent, gpu: v1::Gpu) {
    agent.gpus = vec![gpu];
    agent.report(Vec::new()).await;
    agent.settle().await;
}

async fn actions(running: &Running) -> Vec<Value> {
    let (_, mut answer) = running.get("/api/v1/actions").await;
    answer["actions"].as_array_mut().map(std::mem::take).unwrap_or_default()
}

#[tokio::test]
async fn a_node_that_keeps_the_memory_of_a_job_that_has_ended_is_in_the_list_of_actions() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.restart.policy.keep_out = Mode::Act;
    config.restart.slurm = true;
    let running = start(config.clone()).await;
    let mut agent = Agent::attach(&running, "gpu-node-7").await;
    report(&mut agent, gpu(500 * MIB, 0)).await;
    report(&mut agent, gpu(70_000 * MIB, 8)).await;
    let deadline = Instant::now() + PATIENCE + Duration::from_secs(LEFT_MEMORY_SECONDS_MAX);
    let found = loop {
        report(&mut agent, gpu(30_000 * MIB, 0)).await;
        let ended = |of: &Value| of["outcome"] != "running";
        if let [found] = &actions(&running).await[..]
            && ended(found)
        {
            break found.clone();
        }
        assert!(Instant::now() < deadline, "{:#?}", actions(&running).await);
        sleep(Duration::from_secs(1)).await;
    };
    assert_eq!(found["node"], "gpu-node-7");
    assert_eq!(found["decision"], "keep node out");
    assert_eq!((&found["job"], &found["kind"]), (&Value::from(""), &Value::from("slurm")));
    let why = found["why"].as_str().unwrap();
    assert!(why.contains("GPU-7 holds 28.8 GiB more than before"), "{why}");
    // There is no Slurm here, or none that knows the node.
    assert!(found["outcome"].as_str().unwrap().contains("gpu-node-7"), "{found:#}");
    let (_, audit) = running.get("/api/v1/audit").await;
    let audit = audit.to_string();
    for entry in ["gpu-node-7: keep node out: ", "keep out refused"] {
        assert!(audit.contains(entry), "{audit}");
    }
    running.stop().await;
    let running = start(config).await;
    assert_eq!(actions(&running).await, [found]);
    running.stop().await;
}
