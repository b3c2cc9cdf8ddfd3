//! A job that would run out of memory lives: its ranks write a checkpoint at one step, torchrun
//! starts the worker group again, and it goes on at that step and finishes.
//!
//! Two DDP ranks train over gloo on two nodes, which are network namespaces joined to a third one
//! with the coordinator. A SIGKILL to the coordinator, at any stage of the action, changes nothing:
//! there is exactly one restart. No attempt runs out of memory: torchrun starts the job again
//! because the ranks were signalled. The ranks make no step while there is no coordinator, so that
//! a slow start of it is no reason to run out of memory.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memtape_tests::namespaces::Network;
use memtape_tests::processes::{Process, wait_for};
use memtape_tests::{library, memtape, root, torch};
use serde_json::Value;

const JOB: &str = "healed";
const NODES: usize = 2;
const STEPS: u64 = 1200;

/// An attempt that begins at step 0 runs out of memory after about 1,050 steps.
const DEVICE: &str = "2200M";

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
    rig.train(2);
    let action = rig.restart(|action| action["verdict"] != "");
    let healed = rig.finish();
    healed.check(&action);
    let proof = action["proof"].as_str().expect("a proof");
    assert!(proof.contains("its first step came after"), "{action:#}");
    println!("healed within {:?}: {action:#}", begin.elapsed());
}

#[test]
fn without_a_restart_the_leaking_job_dies() {
    let Some(mut rig) = Rig::new("a leaking job dies", "dry-run") else { return };
    // A further attempt would begin at step 0, too.
    rig.train(0);
    let mut said = Vec::new();
    for launcher in std::mem::take(&mut rig.launchers) {
        let (code, lines) = launcher.end(PATIENCE);
        said.extend(lines);
        assert_ne!(code, Some(0), "{said:#?}");
    }
    assert!(said.iter().any(|line| line.contains("OutOfMemoryError")), "{said:#?}");
    // What the dry run showed is what `act` does.
    let actions = rig.of("actions");
    let decisions: Vec<&str> = actions.iter().filter_map(|it| it["decision"].as_str()).collect();
    assert!(decisions.contains(&"would restart"), "{actions:#?}");
}

/// Killed when the leak is found.
#[test]
fn a_coordinator_that_is_killed_before_it_acts_restarts_the_job_once() {
    killed("a coordinator is killed before it acts", |rig| {
        let incidents = rig.of("incidents");
        incidents.into_iter().find(|incident| incident["state"] == "open")
    });
}

/// Killed while the ranks wait for the step of their checkpoint.
#[test]
fn a_coordinator_that_is_killed_before_the_checkpoint_restarts_the_job_once() {
    killed("a coordinator is killed before the checkpoint", |rig| {
        let is_awaited = |action: &Value| {
            action["outcome"].as_str().is_some_and(|it| it.starts_with("all ranks act at step"))
        };
        rig.newest_restart().filter(is_awaited)
    });
}

/// Killed as soon as the ranks are signalled.
#[test]
fn a_coordinator_that_is_killed_while_it_acts_restarts_the_job_once() {
    killed("a coordinator is killed while it acts", |rig| {
        rig.newest_restart().filter(|action| action["checkpoint"] != "")
    });
}

/// Killed while it waits for the next attempt.
#[test]
fn a_coordinator_that_is_killed_while_it_observes_restarts_the_job_once() {
    killed("a coordinator is killed while it observes", |rig| {
        // One rank may have ended because of the other's end before its agent came to it.
        let is_observed = |action: &Value| {
            let outcome = action["outcome"].as_str().unwrap_or_default();
            (1..=2).any(|done| outcome.starts_with(&format!("SIGTERM: done on {done} of 2 ranks")))
        };
        rig.newest_restart().filter(is_observed)
    });
}

/// Kills the coordinator with SIGKILL when something is seen, and starts another one.
fn killed(scenario: &str, seen: impl Fn(&Rig) -> Option<Value>) {
    let Some(mut rig) = Rig::new(scenario, "act") else { return };
    rig.train(2);
    let seen = wait_for("the stage is reached", PATIENCE, || seen(&rig));
    std::fs::write(rig.file("pause"), "").expect("the ranks pause");
    rig.coordinator.take().expect("it runs").kill();
    rig.start_coordinator("act");
    wait_for("the agents are back", PATIENCE, || {
        let back = rig.of("nodes").iter().filter(|node| node["connected"] == true).count();
        (back == NODES).then_some(())
    });
    std::fs::remove_file(rig.file("pause")).expect("the ranks go on");
    let action = rig.restart(|action| action["verdict"] != "");
    let healed = rig.finish();
    println!("killed at {:?}, then {action:#}", seen["outcome"]);
    healed.check(&action);
}

impl Healed {
    /// One restart, at the step of one checkpoint of all ranks, which helped, and after which some
    /// steps were made again.
    #[track_caller]
    fn check(&self, action: &Value) {
        let Self { written, begun, said } = self;
        let is_out_of_memory = said.iter().any(|line| line.contains("OutOfMemoryError"));
        assert!(!is_out_of_memory, "the restart came too late: {action:#} {said:#?}");
        let at = *written.last().unwrap_or_else(|| panic!("no checkpoint: {said:#?}"));
        let last = written.iter().filter(|step| **step == at).count();
        assert_eq!(last, NODES, "all ranks write at one step: {written:?}");
        let again: Vec<u64> = begun.iter().copied().filter(|step| *step > 0).collect();
        assert_eq!(begun.len(), 2 * NODES, "one restart: {begun:?} {said:#?}");
        assert_eq!(again, vec![at; NODES], "it goes on at its checkpoint: {action:#}");
        assert_eq!(action["verdict"], "helped", "{action:#}");
        assert!(action["steps_lost"].is_u64(), "{action:#}");
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

    /// Starts torchrun on each node; it starts the ranks again as often as this.
    fn train(&mut self, restarts: u32) {
        let torch = torch(JOB).expect("it was there");
        for node in 0..NODES {
            let inner = torch.command(1, DEVICE);
            let mut command = self.network.on_node(node, memtape());
            command.args(["run", "--job", JOB, "--actions", "checkpoint,signal", "--dir"]);
            command.arg(self.file(&format!("tapes-{node}"))).arg("--");
            command.arg(inner.get_program()).args(inner.get_args());
            command.args(["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]);
            command.args(["--max-restarts", &restarts.to_string()]);
            command.args(["--rdzv-backend", "c10d", "--rdzv-id", JOB]);
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
            let newest = self.newest_restart()?;
            let is_run = newest["outcome"].as_str().is_some_and(|it| !it.starts_with("not run"));
            assert!(is_run, "{:#?}", self.of("actions"));
            Some(newest).filter(&is_there)
        })
    }

    fn newest_restart(&self) -> Option<Value> {
        self.of("actions").into_iter().find(|action| action["decision"] == "restart")
    }

    /// All actions or incidents, newest first.
    fn of(&self, list: &str) -> Vec<Value> {
        let mut command = self.network.on_hub("curl");
        command.args(["--silent", &format!("{}/api/v1/{list}", url())]);
        let answer = command.output().expect("curl runs").stdout;
        let answer: Option<Value> = serde_json::from_slice(&answer).ok();
        answer.and_then(|answer| answer[list].as_array().cloned()).unwrap_or_default()
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
