//! Coordinators of one cluster on the tests' bucket, in a folder or on a real S3 server, an agent
//! that knows all of them, and jobs with a leak. Judges nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use memtape_bucket::Server;
use memtape_tests::cluster::free_port;
use memtape_tests::processes::Process;
use memtape_tests::{Torch, memtape, root};
use serde_json::Value;
use tokio::runtime::Runtime;

pub(super) const SCRIPT: &str = "tests/torch/train_ddp.py";
pub(super) const RANKS: u32 = 2;
pub(super) const PATIENCE: Duration = Duration::from_secs(150);

/// Names of the coordinators, as the bucket tells its clients apart.
const MEMBERS: [&str; 3] = ["a", "b", "c"];

/// The bucket, and what runs on it. Processes go before the bucket.
pub(super) struct OnBucket {
    pub(super) agent: Option<Process>,
    pub(super) jobs: Vec<Process>,
    ports: Vec<u16>,
    url: String,
    /// Whether the URL leads to the server below.
    is_own: bool,
    pub(super) scratch: tempfile::TempDir,
    pub(super) server: Server,
    _runtime: Runtime,
}

impl OnBucket {
    /// A bucket for this number of coordinators.
    pub(super) fn new(members: usize) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let server = runtime.block_on(Server::start());
        let scratch = tempfile::tempdir().expect("a temporary folder");
        let ports = (0..members).map(|_| free_port()).collect();
        let url = "s3://bucket/cluster".to_string();
        let (agent, jobs) = (None, Vec::new());
        Self { agent, jobs, ports, url, is_own: true, scratch, server, _runtime: runtime }
    }

    /// A folder in the place of the bucket.
    pub(super) fn in_folder(members: usize) -> Self {
        let rig = Self::new(members);
        let url = format!("file://{}", rig.scratch.path().join("bucket").display());
        rig.at(url)
    }

    /// This URL in the place of the bucket's, with the `AWS_…` variables of this process.
    pub(super) fn at(self, url: String) -> Self {
        Self { url, is_own: false, ..self }
    }

    /// Where the coordinators keep everything.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn address(&self, member: usize) -> String {
        format!("http://127.0.0.1:{}", self.ports[member])
    }

    pub(super) fn coordinator(&self, member: usize, arguments: &[&str]) -> Process {
        let mut command = Command::new(memtape());
        command.args(["coordinator", "--cluster", &self.url, "--listen"]);
        command.arg(format!("127.0.0.1:{}", self.ports[member]));
        command.args(arguments).current_dir(self.scratch.path());
        if self.is_own {
            command.envs(self.server.settings(MEMBERS[member]));
        }
        Process::start(&mut command)
    }

    /// One agent that knows all coordinators; its folder of tapes.
    pub(super) fn start_agent(&mut self) -> PathBuf {
        let tapes = self.scratch.path().join("tapes");
        std::fs::create_dir_all(&tapes).expect("a folder for tapes");
        let urls: Vec<String> = (0..self.ports.len()).map(|member| self.address(member)).collect();
        let mut agent = Command::new(memtape());
        agent.args(["agent", "--node", "node", "--report-interval", "250ms", "--coordinator"]);
        agent.arg(urls.join(",")).arg("--tape-dir").arg(&tapes);
        agent.arg("--spool-dir").arg(self.scratch.path().join("spool"));
        self.agent = Some(Process::start(&mut agent));
        tapes
    }

    /// Jobs of these names with a leak, and the agent.
    pub(super) fn train(&mut self, torch: &Torch, jobs: &[&str]) {
        let tapes = self.start_agent();
        for job in jobs {
            let mut training = torch.recorded(RANKS, "4G", &tapes);
            training.env("MEMTAPE_JOB", job).current_dir(root());
            training.args(Torch::torchrun(RANKS)).arg(SCRIPT);
            training.args(["--steps", "4000", "--leak-rank", "1", "--step-ms", "50"]);
            self.jobs.push(Process::start(&mut training));
        }
    }

    /// The same without PyTorch.
    pub(super) fn model(&mut self, jobs: &[&str]) {
        let tapes = self.start_agent();
        for (job, rank) in jobs.iter().flat_map(|job| (0..RANKS).map(move |rank| (job, rank))) {
            let mut command = Command::new(memtape());
            command.arg("demo-rank");
            if rank == 1 {
                command.args(["--fault", "leak", "--fault-from", "40"]);
            }
            command.env("MEMTAPE_DIR", &tapes).env("MEMTAPE_JOB", job);
            command.env("MEMTAPE_EVENTS", "131072").env("MEMTAPE_BLOCKS", "65536");
            command.env("MEMTAPE_RANK", rank.to_string()).env("RANK", rank.to_string());
            command.env("MEMTAPE_WORLD_SIZE", RANKS.to_string());
            command.env("LOCAL_RANK", rank.to_string());
            self.jobs.push(Process::start(&mut command));
        }
    }

    /// Writes the tables of the cluster into a folder.
    pub(super) fn export(&self, member: usize, folder: &Path) -> Output {
        let mut command = Command::new(memtape());
        command.args(["--coordinator", &self.address(member), "--json", "store", "export"]);
        command.arg("--parquet").arg(folder).output().expect("memtape runs")
    }

    pub(super) fn ask(&self, member: usize, arguments: &[&str]) -> Option<Value> {
        let mut command = Command::new(memtape());
        command.args(["--coordinator", &self.address(member), "--json"]).args(arguments);
        let output = command.output().expect("memtape runs");
        output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    pub(super) fn incidents(&self, member: usize, job: &str) -> Vec<Value> {
        let incidents = self.ask(member, &["incidents", job]);
        incidents.and_then(|all| all["incidents"].as_array().cloned()).unwrap_or_default()
    }

    /// The first incident that names a line.
    pub(super) fn diagnosed(&self, member: usize, job: &str) -> Option<Value> {
        let incidents = self.incidents(member, job);
        incidents.into_iter().find(|incident| !incident["culprit"].is_null())
    }
}
