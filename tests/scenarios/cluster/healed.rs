//! A job that would run out of memory lives: its ranks write a checkpoint at one step, torchrun
//! starts the worker group again, and it goes on at that step and finishes.
//!
//! Two DDP ranks train over gloo on two nodes, which are network namespaces joined to a third one
//! with the coordinator. A SIGKILL to the coordinator while it asks its target changes nothing:
//! there is exactly one restart.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memtape_tests::namespaces::Network;
use memtape_tests::processes::{Process, wait_for};
use memtape_tests::{library, memtape, root, torch};
use serde_json::Value;

const JOB: &str = "healed";
const NODES: usize = 2;
const STEPS: u64 = 900;

const PATIENCE: Duration = Duration::from_secs(240);

/// Everything that runs. Processes go before the network they are in.
struct Rig {
    launchers: Vec<Process>,
    agents: Vec<Process>,
    coordinator: Option<Process>,
    network: Network,
    scratch: tempfile::TempDir,
}

/// What a healed job did.
#[derive(Debug)]
struct Healed {
    /// The step of each checkpoint, by rank, as the ranks printed it.
    written: Vec<u64>,
    /// The steps after which the ranks began, attempt by attempt.
    begun: Vec<u64>,
    said: Vec<String>,
}

#[test]
fn a_leaking_job_is_restarted_at_its_checkpoint_and_finishes() {
    let Some(mut rig) = Rig::new("a leaking job is healed", "act") else { return };
    let begin = Instant::now();
    rig.train();
    let action = rig.restart(|action| action["verdict"] != "");
    let healed = rig.finish();
    assert_eq!(action["verdict"], "helped", "{action:#}");
    healed.check(&action);
    println!("healed within {:?}: {action:#}", begin.elapsed());
}

#[test]
fn without_a_restart_the_leaking_job_dies() {
    let Some(mut rig) = Rig::new("a leaking job dies", "dry-run") else { return };
    rig.train();
    let mut said = Vec::new();
    for launcher in std::mem::take(&mut rig.launchers) {
        let (code, lines) = launcher.end(PATIENCE);
        said.extend(lines);
        assert_ne!(code, Some(0), "{said:#?}");
    }
    assert!(said.iter().any(|line| line.contains("OutOfMemoryError")), "{said:#?}");
    // What the dry run showed is what `act` does.
    let actions = rig.actions();
    let decisions: Vec<&str> = actions.iter().filter_map(|it| it["decision"].as_str()).collect();
    assert!(decisions.contains(&"would restart"), "{actions:#?}");
}

/// The coordinator is killed as soon as its target is asked, and started again.
#[test]
fn a_coordinator_that_is_killed_while_it_acts_restarts_the_job_once() {
    let Some(mut rig) = Rig::new("a killed coordinator heals once", "act") else { return };
    rig.train();
    let seen = rig.restart(|action| action["checkpoint"] != "");
    rig.coordinator.take().expect("it runs").kill();
    rig.start_coordinator("act");
    let action = rig.restart(|action| action["verdict"] != "");
    let healed = rig.finish();
    println!("killed at {:?}, then {:?}", seen["outcome"], action["outcome"]);
    healed.check(&action);
}

impl Healed {
    /// One restart, at the step of one checkpoint of all ranks.
    #[track_caller]
    fn check(&self, action: &Value) {
        let Self { written, begun, said } = self;
        let at = *written.last().unwrap_or_else(|| panic!("no checkpoint: {said:#?}"));
        let last = written.iter().filter(|step| **step == at).count();
        assert_eq!(last, NODES, "all ranks write at one step: {written:?}");
        let again: Vec<u64> = begun.iter().copied().filter(|step| *step > 0).collect();
        assert_eq!(begun.len(), 2 * NODES, "one restart: {begun:?} {said:#?}");
        assert_eq!(again, vec![at; NODES], "it goes on at its checkpoint: {action:#}");
        // Its ranks were signalled, and did not run out of memory.
        let ran_out = said.iter().find(|line| line.contains("OutOfMemoryError"));
        assert_eq!(ran_out, None, "{action:#}");
    }
}

impl Rig {
    fn new(scenario: &str, mode: &str) -> Option<Self> {
        torch(scenario)?;
        let network = Network::new(scenario, NODES)?;
        library();
        let scratch = tempfile::tempdir().expect("a temporary folder");
        let (launchers, agents) = (Vec::new(), Vec::new());
        let mut rig = Self { launchers, agents, coordinator: None, network, scratch };
        rig.start_coordinator(mode);
        for node in 0..NODES {
            std::fs::create_dir(rig.file(&format!("tapes-{node}"))).expect("a folder for tapes");
            rig.agents.push(rig.agent(node));
        }
        Some(rig)
    }

    fn start_coordinator(&mut self, mode: &str) {
        let mut command = self.network.on_hub(memtape());
        command.args(["coordinator", "--listen", &format!("{}:7771", Network::HUB)]);
        command.args(["--insecure", "--restart", mode, "--restart-signal", "SIGTERM"]);
        command.args(["--report-interval", "250ms", "--data-dir"]).arg(self.file("data"));
        self.coordinator = Some(Process::start(&mut command));
        wait_for("the coordinator answers", PATIENCE, || self.ask(&["jobs"]).map(|_| ()));
    }

    fn agent(&self, node: usize) -> Process {
        let mut command = self.network.on_node(node, memtape());
        command.args(["agent", "--node", &format!("node-{node}"), "--coordinator", &url()]);
        command.args(["--report-interval", "250ms", "--tape-dir"]);
        command.arg(self.file(&format!("tapes-{node}")));
        command.arg("--spool-dir").arg(self.file(&format!("spool-{node}")));
        Process::start(&mut command)
    }

    /// Starts torchrun on each node.
    fn train(&mut self) {
        let torch = torch(JOB).expect("it was there");
        for node in 0..NODES {
            let inner = torch.command(1, "1500M");
            let mut command = self.network.on_node(node, memtape());
            command.args(["run", "--job", JOB, "--actions", "checkpoint,signal", "--dir"]);
            command.arg(self.file(&format!("tapes-{node}"))).arg("--");
            command.arg(inner.get_program()).args(inner.get_args());
            command.args(["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]);
            command.args(["--max-restarts", "2", "--rdzv-backend", "c10d", "--rdzv-id", JOB]);
            command.args(["--rdzv-endpoint", &format!("{}:29500", self.network.address(0))]);
            // torchrun cannot tell by itself: the nodes have one host name.
            command.args(["--rdzv-conf", &format!("is_host={}", u8::from(node == 0))]);
            command.args(["--local-addr", &self.network.address(node)]);
            command.args(["tests/torch/train_healed.py", "--steps", &STEPS.to_string()]);
            command.arg("--folder").arg(self.scratch.path());
            command.env("PYTHONPATH", root().join("python")).env("PYTHONDONTWRITEBYTECODE", "1");
            // Without it, torchrun's restarts find the store of the round before.
            command.env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
            command.env("GLOO_SOCKET_IFNAME", Network::DEVICE).current_dir(root());
            self.launchers.push(Process::start(&mut command));
        }
    }

    /// Waits until the job has ended well, and says what it did.
    fn finish(&mut self) -> Healed {
        let mut said = Vec::new();
        for launcher in std::mem::take(&mut self.launchers) {
            let (code, lines) = launcher.end(PATIENCE);
            said.extend(lines);
            assert_eq!(code, Some(0), "{said:#?}");
        }
        let numbers = |text: &str| -> Vec<u64> {
            let after = said.iter().filter_map(|line| line.split_once(text));
            after.filter_map(|(_, number)| number.trim().parse().ok()).collect()
        };
        let (written, begun) =
            (numbers("wrote its checkpoint after step "), numbers("begins after step "));
        Healed { written, begun, said }
    }

    /// The newest restart, when it is as wished.
    fn restart(&self, is_there: impl Fn(&Value) -> bool) -> Value {
        wait_for("the restart is there", PATIENCE, || {
            let of_restart = |action: &Value| action["decision"] == "restart";
            let newest = self.actions().into_iter().find(of_restart)?;
            is_there(&newest).then_some(newest)
        })
    }

    /// All actions, newest first.
    fn actions(&self) -> Vec<Value> {
        let mut command = self.network.on_hub("curl");
        command.args(["--silent", &format!("{}/api/v1/actions", url())]);
        let answer = command.output().expect("curl runs").stdout;
        let answer: Option<Value> = serde_json::from_slice(&answer).ok();
        let actions = answer.and_then(|answer| answer["actions"].as_array().cloned());
        actions.unwrap_or_default()
    }

    fn ask(&self, arguments: &[&str]) -> Option<Value> {
        let mut command = self.network.on_hub(memtape());
        command.args(arguments).arg("--json").env("MEMTAPE_COORDINATOR", url());
        let output = command.output().expect("memtape runs");
        serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success())
    }

    fn file(&self, name: &str) -> PathBuf {
        let scratch: &Path = self.scratch.path();
        scratch.join(name)
    }
}

fn url() -> String {
    format!("http://{}:7771", Network::HUB)
}
