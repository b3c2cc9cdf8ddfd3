//! How long a capture takes, from the request to the closed manifest.
//!
//! Everything is real here: the coordinator, agents that pretend to be nodes of eight ranks, and
//! ranks as the demo has them, processes whose allocations go through the recorder onto their own
//! tapes. Captures are asked for over HTTP, one after the other, while the ranks train.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::coordinator::{Binary, Coordinator};
use crate::figures::percentile;
use crate::job::{RANKS_PER_AGENT, mix};

const JOB: &str = "captured";

/// Length of a rank's step: slow, so that all processes fit on a few cores.
const STEP_TIME: &str = "100ms";

/// Sizes of a rank's tape: 64 of them shall fit into the shared memory of a small machine.
const TAPE_EVENTS: &str = "65536";
const TAPE_BLOCKS: &str = "8192";

/// Every rank has finished this step before the first capture. Where there is no CUDA driver, the
/// recorder looks for one during the first 40 s, and 64 processes that do so are a load.
const WARM_STEP: u64 = 450;

/// The job must be there after this time, and a capture closed.
const START_TIME_MAX: Duration = Duration::from_secs(120);
const CAPTURE_TIME_MAX: Duration = Duration::from_secs(60);

/// Time between two looks at whether the manifest is closed.
const POLL: Duration = Duration::from_millis(2);

/// What to capture.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Wish {
    #[arg(long)]
    pub(crate) ranks: u32,
    #[arg(long, default_value_t = 20)]
    pub(crate) captures: u32,
}

/// A process that ends with us.
#[derive(Debug)]
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes the captures, and tells how long they took.
pub(crate) async fn capture(binary: &Binary, wish: Wish) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir()?;
    // Where tapes lie by default.
    let tapes = tempfile::tempdir_in("/dev/shm")?;
    let coordinator = binary.start(folder.path())?;
    let _processes = start(&binary.path, &coordinator.url, tapes.path(), wish.ranks)?;
    wait_for_ranks(&coordinator, wish.ranks).await?;
    let (mut micros, mut aligned, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..wish.captures {
        // At any moment within the interval of reports.
        sleep(Duration::from_millis(200 + mix(u64::from(index)) % 1000)).await;
        let (took, manifest) = take(&coordinator).await?;
        micros.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
        aligned.push(manifest["aligned"].as_u64().unwrap_or(0));
        let parts = manifest["parts"].as_array().map(Vec::as_slice).unwrap_or_default();
        bytes.push(parts.iter().filter_map(|part| part["bytes"].as_u64()).sum::<u64>());
    }
    let ms = |micros: u32| f64::from(micros) / 1e3;
    Ok(json!({
        "ranks": wish.ranks,
        "captures": wish.captures,
        "latency_p50_ms": ms(percentile(&mut micros.clone(), 0.5)),
        "latency_p99_ms": ms(percentile(&mut micros.clone(), 0.99)),
        "latencies_ms": micros.iter().copied().map(ms).collect::<Vec<_>>(),
        "aligned_min": aligned.iter().min(),
        "snapshot_bytes": bytes.iter().max(),
    }))
}

fn start(memtape: &Path, url: &str, tapes: &Path, ranks: u32) -> anyhow::Result<Vec<Process>> {
    let mut processes = Vec::new();
    let mut spawn = |command: &mut Command| {
        command.args(["--die-with-parent", &std::process::id().to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        processes.push(Process(command.spawn().context("a process cannot be started")?));
        anyhow::Ok(())
    };
    for node in 0..ranks.div_ceil(RANKS_PER_AGENT) {
        let folder = tapes.join(node.to_string());
        std::fs::create_dir(&folder)?;
        let mut agent = Command::new(memtape);
        agent.args(["agent", "--coordinator", url, "--node", &format!("node-{node}")]);
        spawn(agent.arg("--tape-dir").arg(&folder))?;
    }
    for rank in 0..ranks {
        let mut process = Command::new(memtape);
        process.args(["demo-rank", "--step-time", STEP_TIME]);
        process.env("MEMTAPE_DIR", tapes.join((rank / RANKS_PER_AGENT).to_string()));
        process.env("MEMTAPE_JOB", JOB).env("MEMTAPE_RANK", rank.to_string());
        process.env("MEMTAPE_WORLD_SIZE", ranks.to_string());
        process.env("RANK", rank.to_string());
        process.env("LOCAL_RANK", (rank % RANKS_PER_AGENT).to_string());
        process.env("MEMTAPE_EVENTS", TAPE_EVENTS).env("MEMTAPE_BLOCKS", TAPE_BLOCKS);
        spawn(&mut process)?;
    }
    Ok(processes)
}

async fn wait_for_ranks(coordinator: &Coordinator, ranks: u32) -> anyhow::Result<()> {
    let begin = Instant::now();
    loop {
        let jobs: Value = coordinator.get("/jobs").await?;
        let job = &jobs["jobs"][0];
        if job["ranks_alive"] == ranks && job["step_min"].as_u64() >= Some(WARM_STEP) {
            return Ok(());
        }
        if begin.elapsed() > START_TIME_MAX {
            bail!("the job is not there: {job}");
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// One capture: its time, and its manifest.
async fn take(coordinator: &Coordinator) -> anyhow::Result<(Duration, Value)> {
    let begin = Instant::now();
    let id = coordinator.capture(JOB).await?;
    while begin.elapsed() < CAPTURE_TIME_MAX {
        let manifest: Value = coordinator.get(&format!("/captures/{id}")).await?;
        if !manifest["closed_wall_ns"].is_null() {
            return Ok((begin.elapsed(), manifest));
        }
        sleep(POLL).await;
    }
    bail!("capture {id} did not close");
}
