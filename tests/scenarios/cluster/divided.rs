//! A cluster of two shards: each coordinator has its jobs, an agent with jobs of both has a stream
//! to each, and when one coordinator is killed another one takes its jobs over.

use std::process::Command;
use std::time::Duration;

use memtape_bucket::Server;
use memtape_tests::cluster::free_port;
use memtape_tests::processes::{Process, wait_for};
use memtape_tests::{Torch, library, marked_line, memtape, root, torch};
use serde_json::Value;
use tokio::runtime::Runtime;

const SCRIPT: &str = "tests/torch/train_ddp.py";
const PATIENCE: Duration = Duration::from_secs(150);

/// A job in each shard.
const JOBS: [&str; 2] = ["alpha", "beta"];

/// The bucket, and what runs on it. Processes go before the bucket.
struct Rig {
    processes: Vec<Process>,
    ports: [u16; 3],
    scratch: tempfile::TempDir,
    server: Server,
    _runtime: Runtime,
}

impl Rig {
    fn new() -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let server = runtime.block_on(Server::start());
        let scratch = tempfile::tempdir().expect("a temporary folder");
        let ports = [free_port(), free_port(), free_port()];
        Self { processes: Vec::new(), ports, scratch, server, _runtime: runtime }
    }

    fn url(&self, member: usize) -> String {
        format!("http://127.0.0.1:{}", self.ports[member])
    }

    fn coordinator(&self, member: usize) -> Process {
        let mut command = Command::new(memtape());
        command.args(["coordinator", "--cluster", "s3://bucket/cluster", "--cluster-shards", "2"]);
        command.arg("--listen").arg(format!("127.0.0.1:{}", self.ports[member]));
        command.current_dir(self.scratch.path());
        command.envs(self.server.settings(["a", "b", "c"][member]));
        Process::start(&mut command)
    }

    /// Starts a coordinator that finds a shard without an owner; which shard.
    fn owner(&self, member: usize) -> (Process, usize) {
        let mut coordinator = self.coordinator(member);
        let owns = coordinator.line_with("owns shard ", PATIENCE);
        coordinator.line_with("listening", PATIENCE);
        let (_, shard) = owns.split_once("owns shard ").expect("a shard");
        (coordinator, shard[..1].parse().expect("a number"))
    }

    /// One agent that knows all coordinators, and the two jobs, each with a leak.
    fn train(&mut self, torch: &Torch) {
        let tapes = self.scratch.path().join("tapes");
        std::fs::create_dir_all(&tapes).expect("a folder for tapes");
        let mut agent = Command::new(memtape());
        agent.args(["agent", "--node", "node", "--report-interval", "250ms", "--coordinator"]);
        agent.arg([0, 1, 2].map(|member| self.url(member)).join(","));
        agent.arg("--tape-dir").arg(&tapes);
        agent.arg("--spool-dir").arg(self.scratch.path().join("spool"));
        self.processes.push(Process::start(&mut agent));
        for job in JOBS {
            let mut training = torch.recorded(2, "4G", &tapes);
            training.env("MEMTAPE_JOB", job).current_dir(root());
            training.args(Torch::torchrun(2)).arg(SCRIPT);
            training.args(["--steps", "4000", "--leak-rank", "1", "--step-ms", "50"]);
            self.processes.push(Process::start(&mut training));
        }
    }

    fn ask(&self, member: usize, arguments: &[&str]) -> Option<Value> {
        let mut command = Command::new(memtape());
        command.args(["--coordinator", &self.url(member), "--json"]).args(arguments);
        let output = command.output().expect("memtape runs");
        output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    fn incident(&self, member: usize, job: &str) -> Option<Value> {
        let incidents = self.ask(member, &["incidents", job])?["incidents"].take();
        let incidents = incidents.as_array().cloned().unwrap_or_default();
        incidents.into_iter().find(|incident| !incident["culprit"].is_null())
    }

    fn step(&self, member: usize, job: &str) -> Option<u64> {
        let jobs = self.ask(member, &["jobs"])?["jobs"].take();
        let is_it = |of: &&Value| of["job"].as_str().is_some_and(|id| id.starts_with(job));
        jobs.as_array()?.iter().find(is_it)?["step_min"].as_u64()
    }
}

#[test]
fn each_shard_has_its_coordinator_and_its_jobs() {
    let Some(torch) = torch("a cluster of two shards") else { return };
    let _ = library();
    let mut rig = Rig::new();
    let (first, first_shard) = rig.owner(0);
    let (second, second_shard) = rig.owner(1);
    assert_eq!(first_shard + second_shard, 1, "one shard each");
    let mut third = rig.coordinator(2);
    third.line_with("waiting: all 2 shards have owners", PATIENCE);
    rig.train(&torch);
    // Member of each shard.
    let mut owners = if first_shard == 0 { [0, 1] } else { [1, 0] };
    let incidents: Vec<Value> = (0..2)
        .map(|shard| {
            wait_for("an incident in each shard", PATIENCE, || {
                rig.incident(owners[shard], JOBS[shard])
            })
        })
        .collect();
    for incident in &incidents {
        assert_eq!(incident["culprit"]["line"], marked_line(SCRIPT, "# CULPRIT"), "{incident:#}");
    }

    let lost = second_shard;
    let mut second = second;
    second.kill();
    third.line_with(&format!("owns shard {lost}"), PATIENCE);
    third.line_with("listening", PATIENCE);
    owners[lost] = 2;
    let before = wait_for("the job is known", PATIENCE, || rig.step(2, JOBS[lost]));
    wait_for("the agent has found the new owner", PATIENCE, || {
        rig.step(2, JOBS[lost]).filter(|step| *step > before + 20)
    });
    for shard in 0..2 {
        let now = rig.incident(owners[shard], JOBS[shard]).expect("the incident");
        assert_eq!(now["id"], incidents[shard]["id"], "one cause, one incident");
    }
    drop(first);
}
