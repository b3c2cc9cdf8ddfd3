//! `memtape demo`: the whole system on this machine, in real processes.
//!
//! The demo starts a coordinator with its store, two agents for two simulated nodes, and ranks
//! that train ([`training`], or with `--torch` real PyTorch). One rank leaks. The demo polls the
//! coordinator's API until there is an incident. Then it kills the coordinator, starts it again on
//! the same store, and reads the incident back.
//!
//! [`children`] holds the processes, [`watch`] the requests to the coordinator, [`torch`] the
//! PyTorch job.

mod allocator;
mod children;
mod torch;
pub(crate) mod training;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::fs::statvfs;
use serde_json::Value;

use crate::args::duration;
use crate::client::Client;
use crate::globals::Globals;
use crate::runtime;
use crate::{clock, output};

use children::{Children, Start, Stdout, Stop};
use torch::Torch;
use watch::{Found, Watch};

/// `memtape demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Number of ranks.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) ranks: u32,
    /// The rank that leaks, or none [default: 2, or the last rank if there are fewer].
    #[arg(long, value_name = "RANK|none", value_parser = leak_rank)]
    pub(crate) leak_rank: Option<LeakRank>,
    /// Stop as soon as the incident was read back.
    #[arg(long)]
    pub(crate) exit: bool,
    /// Fail if there is no incident after this time; with --leak-rank none, run for this time
    /// [default: 120s, with --torch 300s, with --leak-rank none 60s].
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) limit: Option<Duration>,
    /// Port of the coordinator; 0 means any free port.
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
    /// Keep the store in this folder [default: a temporary folder].
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Train with real PyTorch: on this machine's GPUs, or without GPUs on a fake CUDA runtime.
    #[arg(long)]
    pub(crate) torch: bool,
    /// The Python that has torch [default: target/venv/bin/python if it exists, else python3].
    #[arg(long, value_name = "PATH", requires = "torch")]
    pub(crate) python: Option<PathBuf>,
}

/// Which rank of the demo leaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeakRank(pub(crate) Option<u32>);

/// Simulated nodes; each gets a contiguous range of ranks.
const NODES: u32 = 2;
/// Step at which the leak begins: after the detector's warm-up, as most leaks do.
const LEAK_FROM_STEP: u64 = 100;
/// Time between two reports of an agent; short, so that the demo ends soon.
const REPORT_TIME: Duration = Duration::from_millis(200);
/// Events on a tape: the demo's ranks make about 250 a step, so this covers 500 steps.
const TAPE_EVENTS: u32 = 1 << 17;
/// Live blocks on a tape.
const TAPE_BLOCKS: u32 = 1 << 16;
/// Upper bound of the bytes of a rank's tape of these sizes.
const TAPE_BYTES: u64 = 48 << 20;
/// Time between the start of the rank processes and their common step 1.
const START_DELAY: Duration = Duration::from_millis(1500);
const START_TIME_MAX: Duration = Duration::from_secs(20);
const INCIDENT_TIME_MAX: Duration = Duration::from_secs(120);
/// Longer, because importing torch in many processes on few cores is slow.
const TORCH_INCIDENT_TIME_MAX: Duration = Duration::from_secs(300);
const QUIET_TIME: Duration = Duration::from_secs(60);

/// The rank that leaks by default. Not rank 0, which is the only rank that many tools show.
const LEAK_RANK: u32 = 2;

const COORDINATOR: &str = "coordinator";

/// Runs the demo until it is interrupted, or with `--exit` until it has its result.
/// Fails when a process does not start, no incident is reported in time, or a wrong one is.
pub(crate) fn run(args: DemoArgs, globals: &Globals) -> anyhow::Result<()> {
    let json = globals.json;
    let leak_rank =
        args.leak_rank.unwrap_or(LeakRank(Some(LEAK_RANK.min(args.ranks.saturating_sub(1)))));
    if let LeakRank(Some(rank)) = leak_rank
        && rank >= args.ranks
    {
        let last = args.ranks.saturating_sub(1);
        let line = format!("--leak-rank {rank} does not exist: ranks are 0 to {last}, or none");
        return Err(crate::args::Mistakes(vec![line]).into());
    }
    let interrupted = watch_signals()?;
    let torch = args.torch.then(|| Torch::find(args.python.clone(), args.ranks)).transpose()?;
    let folders = Folders::make(&args)?;
    let mut demo = Demo {
        children: Children::new(folders.logs())?,
        watch: Watch::new(json, interrupted),
        job: format!("demo-{}", clock::unix_seconds()),
        torch,
        folders,
        leak_rank,
        args,
    };
    demo.play(json)
}

struct Demo {
    // Dropped first: processes end before their folders are deleted.
    children: Children,
    watch: Watch,
    job: String,
    torch: Option<Torch>,
    folders: Folders,
    leak_rank: LeakRank,
    args: DemoArgs,
}

impl Demo {
    fn play(&mut self, json: bool) -> anyhow::Result<()> {
        let client = self.start_coordinator(self.args.port)?;
        self.watch.say(&format!("coordinator: {}", client.base()));
        self.start_agents(client.base())?;
        match &self.torch {
            None => self.start_ranks()?,
            Some(_) => self.start_torch()?,
        }
        let Some(found) = self.wait_for_incident(&client)? else {
            // Interrupted, or the time without a leak is over.
            return if json { output::print_json(&watch::no_incident()) } else { Ok(()) };
        };
        let stays = !self.args.exit && !self.watch.is_interrupted();
        self.watch.show_incident(&found, Some(client.base()).filter(|_| stays));
        let stored = self.restart_and_read_back(&client, &found)?;
        if json {
            output::print_json(&found.to_json(stored))?;
        }
        self.judge(&found, stored)?;
        if self.args.exit || self.watch.is_interrupted() {
            return Ok(());
        }
        self.watch.show_commands_to_try(&found, client.base(), self.pid_of_a_healthy_rank());
        self.watch.until_interrupted(&client, &self.job, &mut self.children)
    }

    /// Checks that the incident is that of the leaking rank, with a culprit, and stored.
    fn judge(&self, found: &Found, stored: bool) -> anyhow::Result<()> {
        match self.leak_rank {
            LeakRank(None) => bail!("an incident was reported although no rank leaks"),
            LeakRank(Some(rank)) if rank != found.incident.rank => {
                bail!("rank {rank} leaks, but the incident is on rank {}", found.incident.rank)
            }
            LeakRank(Some(_)) if found.incident.culprit.is_none() => {
                bail!("the incident has no culprit: {}", found.incident.sentence)
            }
            LeakRank(Some(_)) if !stored => {
                bail!("the store lost the incident or its capture: see the line above")
            }
            LeakRank(Some(_)) => Ok(()),
        }
    }

    /// Starts the coordinator on this port (0: any free port) and waits until it answers.
    fn start_coordinator(&mut self, port: u16) -> anyhow::Result<Client> {
        let arguments = [
            "coordinator",
            "--json",
            "--listen",
            &format!("127.0.0.1:{port}"),
            "--data-dir",
            &self.folders.data.to_string_lossy(),
        ];
        self.children.start(Start {
            name: COORDINATOR.to_string(),
            arguments: arguments.map(str::to_string).to_vec(),
            stdout: Stdout::FirstLine,
            ..Start::default()
        })?;
        let line: Value = serde_json::from_str(&self.children.first_line(COORDINATOR)?)
            .context("the coordinator did not print its address")?;
        let url =
            line["listening"].as_str().context("the coordinator did not print its address")?;
        let client = Client::new(url)?;
        let polls = START_TIME_MAX.as_millis() / watch::POLL_TIME.as_millis();
        for _ in 0..polls {
            if client.is_healthy() {
                return Ok(client);
            }
            self.watch.pause();
        }
        bail!("the coordinator does not answer at {url}")
    }

    fn start_agents(&mut self, url: &str) -> anyhow::Result<()> {
        for node in 0..self.nodes() {
            let folder = self.folders.tapes(node)?;
            let arguments = [
                "agent",
                "--coordinator",
                url,
                "--node",
                &format!("node-{node}"),
                "--tape-dir",
                &folder.to_string_lossy(),
                "--report-interval",
                &format!("{}ms", REPORT_TIME.as_millis()),
                // No spool: agent and coordinator end together.
                "--spool-bytes-max",
                "0",
            ];
            self.children.start(Start {
                name: format!("agent-{node}"),
                arguments: arguments.map(str::to_string).to_vec(),
                ..Start::default()
            })?;
        }
        self.watch.say(&format!("agents: {}, each for a simulated node", self.nodes()));
        Ok(())
    }

    fn start_ranks(&mut self) -> anyhow::Result<()> {
        let ranks = self.args.ranks;
        let per_node = ranks.div_ceil(self.nodes());
        let start_ns = clock::mono_ns() + START_DELAY.as_nanos() as u64;
        for rank in 0..ranks {
            let (node, local_rank) = (rank / per_node, rank % per_node);
            let mut arguments = vec!["demo-rank".to_string(), format!("--start-ns={start_ns}")];
            if self.leak_rank == LeakRank(Some(rank)) {
                arguments.push(format!("--leak-from={LEAK_FROM_STEP}"));
            }
            self.children.start(Start {
                name: format!("rank-{rank}"),
                arguments,
                variables: vec![
                    ("MEMTAPE_DIR", self.folders.tapes(node)?.to_string_lossy().into_owned()),
                    ("MEMTAPE_JOB", self.job.clone()),
                    ("MEMTAPE_EVENTS", TAPE_EVENTS.to_string()),
                    ("MEMTAPE_BLOCKS", TAPE_BLOCKS.to_string()),
                    ("MEMTAPE_RANK", rank.to_string()),
                    ("MEMTAPE_WORLD_SIZE", ranks.to_string()),
                    ("RANK", rank.to_string()),
                    ("LOCAL_RANK", local_rank.to_string()),
                ],
                ..Start::default()
            })?;
        }
        let leak = match self.leak_rank.0 {
            Some(rank) => format!("rank {rank} will leak from step {LEAK_FROM_STEP} on"),
            None => "no rank will leak".to_string(),
        };
        self.watch.say(&format!("ranks: {ranks} processes, {leak}"));
        Ok(())
    }

    fn start_torch(&mut self) -> anyhow::Result<()> {
        let Some(torch) = &self.torch else { return Ok(()) };
        let (ranks, LeakRank(leak_rank)) = (self.args.ranks, self.leak_rank);
        let leak =
            leak_rank.map_or("no rank leaks".to_string(), |rank| format!("rank {rank} leaks"));
        self.watch.say(&format!("ranks: {ranks} of a DDP job on {}, {leak}", torch.runtime()));
        let arguments = torch.arguments(&self.job, &self.folders.tapes(0)?, ranks, leak_rank);
        self.children.start(Start {
            name: "torchrun".to_string(),
            arguments,
            stop: Stop::Ask,
            ..Start::default()
        })
    }

    /// The number of simulated nodes: one for a torchrun launcher.
    fn nodes(&self) -> u32 {
        if self.torch.is_some() { 1 } else { NODES.min(self.args.ranks) }
    }

    /// Waits for the first incident and its diagnosis. Returns none when the demo was interrupted,
    /// or when no rank leaks and the time is over.
    fn wait_for_incident(&mut self, client: &Client) -> anyhow::Result<Option<Found>> {
        let leaks = self.leak_rank.0.is_some();
        let limit = self.args.limit.or(match (leaks, self.args.exit, self.torch.is_some()) {
            (true, _, false) => Some(INCIDENT_TIME_MAX),
            (true, _, true) => Some(TORCH_INCIDENT_TIME_MAX),
            (false, true, _) => Some(QUIET_TIME),
            (false, false, _) => None,
        });
        let found = self.watch.incident(client, &self.job, limit, &mut self.children)?;
        if found.is_none() && leaks && !self.watch.is_interrupted() {
            let seconds = limit.unwrap_or_default().as_secs();
            bail!("no incident within {seconds} s: {}", self.watch.last_seen());
        }
        Ok(found)
    }

    /// Kills the coordinator (SIGKILL), starts it on the same store, and compares the incident.
    fn restart_and_read_back(&mut self, client: &Client, found: &Found) -> anyhow::Result<bool> {
        self.children.kill(COORDINATOR);
        let port = client.base().rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or(0);
        let client = self.start_coordinator(port)?;
        let (stored, outcome) = match found.read_back(&client) {
            Ok(()) => (true, "the incident and its capture are in the store".to_string()),
            Err(error) => (false, format!("{error:#}")),
        };
        self.watch.say(&format!("coordinator killed (SIGKILL) and started again: {outcome}"));
        Ok(stored)
    }

    fn pid_of_a_healthy_rank(&self) -> Option<u32> {
        let LeakRank(leaks) = self.leak_rank;
        let mut healthy = (0..self.args.ranks).filter(|&rank| leaks != Some(rank));
        healthy.find_map(|rank| self.children.pid(&format!("rank-{rank}")))
    }
}

fn leak_rank(text: &str) -> Result<LeakRank, String> {
    match text {
        "none" => Ok(LeakRank(None)),
        number => number
            .parse()
            .map(|rank| LeakRank(Some(rank)))
            .map_err(|_| "give the number of a rank, or none".to_string()),
    }
}

/// The demo's folders. All but a given `--data-dir` are deleted when it ends.
#[derive(Debug)]
struct Folders {
    /// Logs, and the store unless `--data-dir` is given.
    temporary: tempfile::TempDir,
    /// Tapes, in shared memory if it has room.
    tapes: tempfile::TempDir,
    data: PathBuf,
}

impl Folders {
    fn make(args: &DemoArgs) -> anyhow::Result<Self> {
        let new = |parent: &Path| {
            let folder = tempfile::Builder::new().prefix("memtape-demo-").tempdir_in(parent);
            folder.with_context(|| format!("cannot make a folder in {}", parent.display()))
        };
        let temporary = new(&std::env::temp_dir())?;
        let shared_memory = Path::new("/dev/shm");
        let needed = u64::from(args.ranks).saturating_mul(TAPE_BYTES);
        let has_room = statvfs(shared_memory)
            .is_ok_and(|stat| stat.f_bavail.saturating_mul(stat.f_frsize) > needed);
        let in_memory = if has_room { new(shared_memory).ok() } else { None };
        let tapes = match in_memory {
            Some(folder) => folder,
            None => new(&std::env::temp_dir())?,
        };
        let data = match &args.data_dir {
            Some(folder) => folder.clone(),
            None => temporary.path().join("store"),
        };
        std::fs::create_dir_all(&data)
            .with_context(|| format!("cannot make the folder {}", data.display()))?;
        Ok(Self { temporary, tapes, data })
    }

    fn logs(&self) -> PathBuf {
        self.temporary.path().to_path_buf()
    }

    /// The folder of a node's tapes.
    fn tapes(&self, node: u32) -> anyhow::Result<PathBuf> {
        let folder = self.tapes.path().join(format!("node-{node}"));
        std::fs::create_dir_all(&folder).context("cannot make a folder for tapes")?;
        Ok(folder)
    }
}

/// Sends once when Ctrl-C or SIGTERM arrives. A thread of its own waits for the signals.
fn watch_signals() -> anyhow::Result<Receiver<()>> {
    let (sender, interrupted) = channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("signals".to_string()).spawn(move || {
        runtime.block_on(async {
            if let Ok(shutdown) = runtime::shutdown() {
                shutdown.await;
            }
        });
        let _ = sender.send(());
    })?;
    Ok(interrupted)
}
