//! Runs one program through the whole product: a coordinator and an agent of its own, `memtape
//! run` in front of torchrun, the fake runtime behind.
//!
//! The program runs to its end, whatever is found meanwhile: an incident too many counts as well
//! as one too few. Then the job's end is awaited, and that the incidents have nothing to add.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{MARK, Program};
use crate::cluster::Cluster;
use crate::processes::{Process, wait_for};
use crate::{Torch, fake_cuda, memtape, root};

/// A program that takes longer hangs, and is ended. The longest takes about two minutes on two
/// busy cores.
const TIME_MAX: Duration = Duration::from_secs(300);

/// How long the end of a job may take to be seen.
const END_TIME_MAX: Duration = Duration::from_secs(60);

/// Incidents that say the same for so long have nothing to add.
const QUIET: Duration = Duration::from_secs(4);

/// As long for a program that failed: the product waits for the other ranks before it says which
/// one died first.
const FAILED_QUIET: Duration = Duration::from_secs(50);

/// Longest wait for that.
const QUIET_TIME_MAX: Duration = Duration::from_secs(90);

/// Longest wait for an incident's capture: the product leaves a minute between two.
const CAPTURE_TIME_MAX: Duration = Duration::from_secs(75);

/// What a run showed.
#[derive(Clone, Debug)]
pub struct Run {
    /// Exit code; none for a signal, or for one that had to be ended.
    pub code: Option<i32>,
    /// All that it printed.
    pub said: Vec<String>,
    /// Where the fault began, as the program says.
    pub onset: Option<Onset>,
    /// Lines that carry the mark.
    pub marked: Vec<u32>,
    /// The agent could sample workers.
    pub can_sample: bool,
    /// Incidents as the API shows them, in the order they were opened.
    pub incidents: Vec<Value>,
    /// Its captures, as the API lists them: they tell why an incident is not explained.
    pub captures: Value,
    /// How long the program ran.
    pub took: Duration,
}

/// Where a fault began.
#[derive(Clone, Copy, Debug)]
pub struct Onset {
    /// The step; 0 in a program without steps.
    pub step: u64,
    /// The time, in nanoseconds of Unix time.
    pub wall_ns: i64,
}

impl Run {
    /// The Python module that the program needs and this machine lacks.
    pub fn lacks(&self) -> Option<&str> {
        let lines = self.said.iter().filter_map(|line| line.split_once("ModuleNotFoundError: "));
        lines.map(|(_, what)| what).next()
    }
}

impl Onset {
    /// Of a line that a program printed, if it is one about the onset.
    fn of(line: &str) -> Option<Self> {
        let (step, wall_ns) = line.strip_prefix("ONSET ")?.trim().split_once(' ')?;
        Some(Self { step: step.parse().ok()?, wall_ns: wall_ns.parse().ok()? })
    }
}

/// The source of a program.
pub fn source(program: &Program) -> PathBuf {
    root().join(format!("tests/torch/programs/{}.py", program.script))
}

/// The argument with which a program applies its remedy.
const CURED: &str = "--cured";

/// Runs it, with its remedy or without. What it printed and what was found is left in a file in
/// `folder`.
pub fn run(torch: &Torch, program: &Program, is_cured: bool, folder: &Path) -> Run {
    let state = tempfile::NamedTempFile::new().expect("a temporary file");
    let devices = devices(program, state.path());
    let py_spy = torch.py_spy().map(|path| ("MEMTAPE_PY_SPY".to_string(), path));
    let can_sample = py_spy.is_some();
    let agent_sees: Vec<_> = devices.iter().cloned().chain(py_spy).collect();
    let cluster = Cluster::start_with(&["node-a"], &agent_sees);
    let started = Instant::now();
    let mut job =
        Process::start(command(torch, program, &cluster, &devices).args(is_cured.then_some(CURED)));
    let (code, said) = job.ended_within(TIME_MAX).unwrap_or_else(|| (None, job.said()));
    let took = started.elapsed();
    drop(job);
    wait_for("the job's end is seen", END_TIME_MAX, || {
        let jobs = cluster.ask(&["jobs"]);
        let job = &jobs["jobs"][0];
        (job["state"] == "ended" || job["state"] == "failed" || (code != Some(0) && job.is_null()))
            .then_some(())
    });
    let onset = said.iter().find_map(|line| Onset::of(line));
    let quiet = if code == Some(0) { QUIET } else { FAILED_QUIET };
    let incidents = settled(&cluster, program.name, quiet);
    let captures = match incidents.is_empty() {
        true => Value::Null,
        false => cluster.ask(&["captures", program.name]),
    };
    let marked = marked(program);
    let run = Run { code, said, onset, marked, can_sample, incidents, captures, took };
    let name = if is_cured { format!("{}.cured", program.name) } else { program.name.to_string() };
    keep(&name, &run, folder);
    run
}

/// The environment in which the agent's NVML and the ranks see the same devices.
fn devices(program: &Program, state: &Path) -> Vec<(String, String)> {
    let library = fake_cuda();
    [
        ("FAKECUDA_STATE", state.display().to_string()),
        ("FAKECUDA_DEVICES", (program.ranks * program.devices).to_string()),
        ("FAKECUDA_BYTES", program.device.to_string()),
        ("LD_LIBRARY_PATH", library.display().to_string()),
    ]
    .map(|(name, value)| (name.to_string(), value))
    .to_vec()
}

fn command(
    torch: &Torch,
    program: &Program,
    cluster: &Cluster,
    devices: &[(String, String)],
) -> Command {
    crate::library();
    // The fake runtime must stand behind the recorder, so its launcher is what `run` runs.
    let inner = torch.command(program.ranks * program.devices, program.device);
    let mut command = Command::new(memtape());
    command.args(["run", "--job", program.name]).args(program.options);
    command.arg("--dir").arg(cluster.tapes("node-a")).arg("--");
    command.arg(inner.get_program()).args(inner.get_args());
    command.args(Torch::torchrun(program.ranks)).arg(source(program)).args(program.arguments);
    command.envs(devices.iter().filter(|(name, _)| name.starts_with("FAKECUDA")).cloned());
    command.env("FAKENCCL_FOLDER", cluster.scratch());
    command.envs(program.environment.iter().copied()).current_dir(root());
    command
}

/// The incidents, once they have nothing to add.
fn settled(cluster: &Cluster, job: &str, quiet: Duration) -> Vec<Value> {
    // A job that was never known is an error to the command line.
    let ask = || match cluster.memtape(&["ranks", job]).status.success() {
        true => cluster.incidents(job),
        false => Vec::new(),
    };
    let (started, mut since) = (Instant::now(), Instant::now());
    let mut incidents = ask();
    let waits = |incidents: &[Value]| incidents.iter().any(|one| one["capture_id"].is_null());
    while (since.elapsed() < quiet && started.elapsed() < QUIET_TIME_MAX)
        || (waits(&incidents) && started.elapsed() < CAPTURE_TIME_MAX)
    {
        std::thread::sleep(Duration::from_millis(300));
        let now = ask();
        if now != incidents {
            (incidents, since) = (now, Instant::now());
        }
    }
    incidents.sort_by_key(|incident| incident["opened_wall_ns"].as_i64());
    incidents
}

/// The lines of a program that carry the mark, from 1.
fn marked(program: &Program) -> Vec<u32> {
    let text = std::fs::read_to_string(source(program)).expect("the program is there");
    let lines = (1..).zip(text.lines()).filter(|(_, line)| line.trim_end().ends_with(MARK));
    lines.map(|(number, _)| number).collect()
}

/// Leaves everything that was seen where a person can read it.
fn keep(name: &str, run: &Run, folder: &Path) {
    let seen = serde_json::json!({
        "program": name, "code": run.code, "said": run.said,
        "onset": run.onset.map(|onset| onset.step),
        "onset_wall_ns": run.onset.map(|onset| onset.wall_ns),
        "marked": run.marked, "seconds": run.took.as_secs_f64(), "incidents": run.incidents,
        "captures": run.captures,
    });
    let text = serde_json::to_string_pretty(&seen).expect("it is plain data");
    let path = folder.join(format!("{name}.json"));
    std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text)).expect("a file");
}
