//! Jobs that leak: a real agent, and for each job ranks whose allocations go through the recorder
//! onto their own tapes, as the demo has them.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;

use crate::capture::Process;

/// Ranks of a job.
const RANKS: u32 = 2;

/// Steps of a job, and the length of a step.
pub(super) const STEPS: u64 = 500;
const STEP_TIME: &str = "60ms";

/// The step from which on rank 1 leaks: half of what its device has left, until it ends.
const LEAKS_FROM: &str = "40";

/// Sizes of a tape, and bytes of tapes of ended ranks.
const TAPE_EVENTS: &str = "65536";
const TAPE_BLOCKS: &str = "16384";
const DEAD_TAPE_BYTES_MAX: &str = "128MiB";

/// The agent and the ranks of all jobs that run.
#[derive(Debug)]
pub(super) struct Leaking {
    memtape: std::path::PathBuf,
    tapes: tempfile::TempDir,
    ranks: Vec<Process>,
    _agent: Process,
}

impl Leaking {
    /// Starts an agent that knows all coordinators, with its files and its tapes in these folders.
    pub(super) fn start(
        memtape: &Path,
        coordinators: &str,
        (folder, tapes): (&Path, &Path),
    ) -> anyhow::Result<Self> {
        let tapes = tempfile::tempdir_in(tapes)?;
        let mut agent = Command::new(memtape);
        agent.args(["agent", "--node", "real", "--report-interval", "250ms"]);
        agent.args(["--coordinator", coordinators, "--dead-tape-bytes-max", DEAD_TAPE_BYTES_MAX]);
        agent.arg("--tape-dir").arg(tapes.path()).arg("--spool-dir").arg(folder.join("spool"));
        let log = std::fs::File::create(folder.join("agent.log"))?;
        agent.stdout(log.try_clone()?).stderr(log);
        let agent = start(&mut agent)?;
        let memtape = memtape.to_path_buf();
        Ok(Self { memtape, tapes, ranks: Vec::new(), _agent: Process(agent) })
    }

    /// Starts the ranks of a new job, which end by themselves.
    pub(super) fn start_job(&mut self, job: &str) -> anyhow::Result<()> {
        self.ranks.retain_mut(|rank| !matches!(rank.0.try_wait(), Ok(Some(_))));
        for rank in 0..RANKS {
            let mut process = Command::new(&self.memtape);
            process.args(["demo-rank", "--step-time", STEP_TIME, "--steps", &STEPS.to_string()]);
            if rank == 1 {
                process.args(["--fault", "oom", "--fault-from", LEAKS_FROM]);
            }
            process.env("MEMTAPE_DIR", self.tapes.path()).env("MEMTAPE_JOB", job);
            process.env("MEMTAPE_RANK", rank.to_string()).env("RANK", rank.to_string());
            process.env("MEMTAPE_WORLD_SIZE", RANKS.to_string());
            process.env("LOCAL_RANK", rank.to_string());
            process.env("MEMTAPE_EVENTS", TAPE_EVENTS).env("MEMTAPE_BLOCKS", TAPE_BLOCKS);
            process.stdout(Stdio::null()).stderr(Stdio::null());
            self.ranks.push(Process(start(&mut process)?));
        }
        Ok(())
    }
}

fn start(command: &mut Command) -> anyhow::Result<Child> {
    command.args(["--die-with-parent", &std::process::id().to_string()]).stdin(Stdio::null());
    command.spawn().context("a process cannot be started")
}
