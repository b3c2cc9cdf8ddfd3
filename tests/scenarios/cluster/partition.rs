//! Captures always finish, whatever state the ranks and nodes are in: each ends in a manifest by
//! its deadline that says of every rank what became of it, and the healthy ones are aligned.
//!
//! Four DDP ranks train over gloo on two nodes, which are network namespaces joined to a third one
//! where the coordinator lives. One after the other a rank is stopped, an agent is killed, a node
//! is cut off, the coordinator is killed in the middle of a capture, and a rank is killed. Between
//! them the coordinator is started again with another deadline.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use memtape_tests::namespaces::Network;
use memtape_tests::processes::{Process, signal, wait_for};
use memtape_tests::{Torch, library, memtape, torch};
use serde_json::Value;

const SCRIPT: &str = "tests/torch/train_apart.py";
const JOB: &str = "apart";
const NODES: usize = 2;
const RANKS_PER_NODE: usize = 2;
const RANKS: usize = NODES * RANKS_PER_NODE;

/// Deadline of a capture: short, because two captures wait for a missing answer.
const DEADLINE: Duration = Duration::from_secs(4);

/// Deadline of a capture that waits for no missing answer, but for agents that find a coordinator
/// again.
const DEADLINE_FAR: Duration = Duration::from_secs(90);

/// A manifest may be closed this much later: the clock of the loop, and a busy machine.
const DEADLINE_SLACK: Duration = Duration::from_secs(2);

/// How long anything else may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// What becomes of the four ranks.
type Labels = [&'static str; RANKS];

/// Everything that runs. Processes go before the network they are in.
struct Rig {
    ranks: Vec<Process>,
    agents: Vec<Process>,
    coordinator: Option<Process>,
    network: Network,
    scratch: tempfile::TempDir,
}

#[test]
fn captures_finish_whatever_happens_to_ranks_and_nodes() {
    let scenario = "captures finish with stopped, killed and unreachable ranks";
    let Some(torch) = torch(scenario) else { return };
    let Some(network) = Network::new(scenario, NODES) else { return };
    let mut rig = Rig::start(network, &torch);
    let all = ["aligned"; RANKS];
    let on_node_1 = ["aligned", "aligned", "unreachable", "unreachable"];

    rig.healthy();
    rig.captured("all run", all);

    // The ranks wait for each other: all have finished the step before the one that is stuck.
    signal(rig.ranks[3].id(), libc::SIGSTOP);
    rig.captured("rank 3 is stopped", all);
    signal(rig.ranks[3].id(), libc::SIGCONT);

    rig.healthy();
    rig.agents[1].kill();
    rig.captured("the agent of node 1 is killed", on_node_1);
    rig.agents[1] = rig.agent(1);

    rig.healthy();
    rig.network.cut(1);
    rig.captured("node 1 is cut off", on_node_1);
    rig.network.mend(1);

    rig.restart_coordinator(DEADLINE_FAR);
    rig.healthy();
    rig.survives_the_coordinator(all);

    rig.restart_coordinator(DEADLINE);
    rig.healthy();
    rig.ranks[3].kill();
    let manifest = rig.captured("rank 3 is killed", all);
    let dead: Vec<bool> = parts(&manifest).iter().map(|part| part["dead"] == true).collect();
    assert_eq!(dead, [false, false, false, true], "{manifest:#}");
}

impl Rig {
    fn start(network: Network, torch: &Torch) -> Self {
        library();
        let scratch = tempfile::tempdir().expect("a temporary folder");
        let mut rig =
            Self { ranks: Vec::new(), agents: Vec::new(), coordinator: None, network, scratch };
        rig.start_coordinator(DEADLINE);
        for node in 0..NODES {
            std::fs::create_dir(rig.tapes(node)).expect("a folder for tapes");
            rig.agents.push(rig.agent(node));
        }
        rig.ranks = (0..RANKS).map(|rank| rig.rank(rank, torch)).collect();
        for rank in &mut rig.ranks {
            rank.line_with("joined", PATIENCE);
        }
        rig
    }

    fn start_coordinator(&mut self, deadline: Duration) {
        let mut command = self.network.on_hub(memtape());
        command.args(["coordinator", "--listen", &format!("{}:7771", Network::HUB)]);
        command.arg("--insecure");
        command.args(["--report-interval", "250ms", "--data-dir"]).arg(self.file("data"));
        command.args(["--capture-deadline", &format!("{}s", deadline.as_secs())]);
        self.coordinator = Some(Process::start(&mut command));
        wait_for("the coordinator answers", PATIENCE, || {
            self.memtape(&["jobs", "--json"]).status.success().then_some(())
        });
    }

    fn restart_coordinator(&mut self, deadline: Duration) {
        self.coordinator.take().expect("it runs").kill();
        self.start_coordinator(deadline);
    }

    fn agent(&self, node: usize) -> Process {
        let mut command = self.network.on_node(node, memtape());
        command.args(["agent", "--node", &format!("node-{node}"), "--coordinator", &url()]);
        command.arg("--tape-dir").arg(self.tapes(node));
        Process::start(&mut command)
    }

    /// A rank on its node: gloo runs over the nodes' own addresses.
    fn rank(&self, rank: usize, torch: &Torch) -> Process {
        let (node, local_rank) = (rank / RANKS_PER_NODE, rank % RANKS_PER_NODE);
        let inner = torch.command(RANKS_PER_NODE as u32, "2G");
        let mut command = self.network.on_node(node, memtape());
        command.args(["run", "--job", JOB, "--dir"]).arg(self.tapes(node)).arg("--");
        command.arg(inner.get_program()).args(inner.get_args()).arg(SCRIPT);
        command.env("RANK", rank.to_string()).env("LOCAL_RANK", local_rank.to_string());
        command.env("WORLD_SIZE", RANKS.to_string());
        command.env("MASTER_ADDR", self.network.address(0)).env("MASTER_PORT", "29500");
        command.env("GLOO_SOCKET_IFNAME", Network::DEVICE);
        command.env("MEMTAPE_EVENTS", "65536").env("MEMTAPE_BLOCKS", "8192");
        command.current_dir(memtape_tests::root());
        Process::start(&mut command)
    }

    /// All ranks are known and make progress.
    fn healthy(&self) {
        let mut first = None;
        wait_for("all ranks train", PATIENCE, || {
            let ranks = self.ask(&["ranks", JOB])?;
            let ranks = ranks["ranks"].as_array()?.clone();
            let is_there = |rank: &Value| rank["alive"] == true;
            if ranks.len() < RANKS || !ranks.iter().all(is_there) {
                return None;
            }
            let step = ranks.iter().filter_map(|rank| rank["step"].as_u64()).min()?;
            (step > *first.get_or_insert(step) + 2).then_some(())
        });
    }

    /// Takes a capture, which must close in time with these labels.
    fn captured(&self, what: &str, labels: Labels) -> Value {
        let id = self.request();
        let begin = Instant::now();
        let manifest = self.closed(&id, DEADLINE + DEADLINE_SLACK);
        judge(what, &manifest, labels, begin.elapsed());
        manifest
    }

    fn request(&self) -> String {
        let mut said = String::new();
        wait_for("a capture begins", PATIENCE, || {
            let output = self.memtape(&["capture", JOB, "--json"]);
            said = String::from_utf8_lossy(&output.stdout).into_owned();
            let answer: Value = serde_json::from_str(&said).ok()?;
            Some(answer["id"].as_str()?.to_string())
        })
    }

    fn closed(&self, id: &str, patience: Duration) -> Value {
        wait_for("the manifest is closed", patience, || {
            self.ask(&["show", id]).filter(|manifest| !manifest["closed_wall_ns"].is_null())
        })
    }

    /// The coordinator is killed while a capture waits for node 1, and started again.
    fn survives_the_coordinator(&mut self, labels: Labels) {
        let agent = self.agents[1].id();
        signal(agent, libc::SIGSTOP);
        let id = self.request();
        // The half that can be answered is there.
        wait_for("node 0 has answered", PATIENCE, || {
            let manifest = self.ask(&["show", &id])?;
            let stored = parts(&manifest).iter().filter(|part| !part["hash"].is_null()).count();
            (stored == RANKS_PER_NODE && manifest["closed_wall_ns"].is_null()).then_some(())
        });
        self.coordinator.take().expect("it runs").kill();
        signal(agent, libc::SIGCONT);
        self.start_coordinator(DEADLINE_FAR);
        let begin = Instant::now();
        let manifest = self.closed(&id, PATIENCE);
        judge("the coordinator is killed", &manifest, labels, begin.elapsed());
    }

    fn ask(&self, arguments: &[&str]) -> Option<Value> {
        let output = self.memtape(&[arguments, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success())
    }

    fn memtape(&self, arguments: &[&str]) -> Output {
        let mut command: Command = self.network.on_hub(memtape());
        command.args(arguments).env("MEMTAPE_COORDINATOR", url());
        command.output().expect("memtape runs")
    }

    fn tapes(&self, node: usize) -> std::path::PathBuf {
        self.file(&format!("tapes-{node}"))
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        let scratch: &Path = self.scratch.path();
        scratch.join(name)
    }
}

fn url() -> String {
    format!("http://{}:7771", Network::HUB)
}

/// The labels are these, and all aligned parts show the step of the capture.
fn judge(what: &str, manifest: &Value, labels: Labels, took: Duration) {
    let parts = parts(manifest);
    let found: Vec<&str> =
        parts.iter().map(|part| part["outcome"].as_str().unwrap_or("none")).collect();
    assert_eq!(found, labels, "{what}: {manifest:#}");
    let is_complete = labels.iter().all(|label| *label == "aligned");
    let state = if is_complete { "complete" } else { "partial" };
    assert_eq!(manifest["state"], state, "{what}: {manifest:#}");
    assert!(manifest["step"].as_u64() > Some(0), "{what}: {manifest:#}");
    for part in parts.iter().filter(|part| part["outcome"] == "aligned") {
        assert_eq!(part["step"], manifest["step"], "{what}: {manifest:#}");
        assert!(!part["hash"].is_null(), "{what}: {manifest:#}");
    }
    let time = |name: &str| manifest[name].as_u64().expect("a time");
    let lasted = Duration::from_nanos(time("closed_wall_ns") - time("requested_wall_ns"));
    println!("{what}: closed after {lasted:?}, seen after {took:?}");
}

fn parts(manifest: &Value) -> Vec<Value> {
    manifest["parts"].as_array().cloned().unwrap_or_default()
}
