//! Stacks of worker processes, sampled from outside by py-spy, a program that the operator names.
//!
//! py-spy reads the memory of a process and neither stops nor changes it (`--nonblocking`). One
//! py-spy runs for each worker, all at the same time; it ends by itself, or it is killed with all
//! that it has started. Its memory and its output are bounded, and the output is not trusted: the
//! worker chooses names in it. The caller decides which workers are sampled, and when.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use memtape_core::identity::cut;
use memtape_core::limits::{NAME_BYTES_MAX, STACK_FRAMES_MAX, WORKERS_SAMPLED_MAX};
use memtape_core::snapshot::Frame;
use memtape_core::snapshot::workers::{SampledStacks, WorkerSamples};
use memtape_core::tape::interned::STRING_BYTES_MAX;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process_group, prlimit};
use serde::Deserialize;

use crate::node::clock;
use crate::node::process::Process;

/// Sampling time of a worker. A worker that is busy for 1 % of its time is seen at work about ten
/// times. The capture waits as long.
const DURATION: Duration = Duration::from_secs(5);

/// Samples a second: about one part in twenty-five of a core for each worker.
const RATE_HZ: u32 = 200;

/// py-spy is killed so long after it should have ended.
const LATE_MAX: Duration = Duration::from_secs(5);

/// Time reserved for the snapshot before the deadline of a capture.
const UPLOAD_TIME: Duration = Duration::from_secs(5);

/// Time between two polls for the end of py-spy.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum address space of a py-spy, in bytes. One that samples a worker with PyTorch takes less
/// than a quarter of it.
const MEMORY_BYTES_MAX: u64 = 256 << 20;

/// Maximum bytes that are read of py-spy's output.
const OUTPUT_BYTES_MAX: u64 = 8 << 20;

/// Why a worker could not be sampled, in one line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SampleError {
    /// The capture would be closed first.
    #[error("the deadline of the capture leaves no time for it")]
    NoTime,
    /// There is no file for the output of py-spy.
    #[error("no memory for {}: {source}", program.display())]
    NoMemory { program: PathBuf, source: rustix::io::Errno },
    /// The program is not there, or cannot be run.
    #[error("{} cannot be started: {source}", program.display())]
    NotStarted { program: PathBuf, source: std::io::Error },
    /// The worker is gone.
    #[error("process {0} has ended")]
    Gone(u32),
    /// The kernel refuses to show the worker's memory.
    #[error("the agent may not read the memory of process {0}: it needs the capability SYS_PTRACE")]
    Refused(u32),
    /// py-spy's own error message.
    #[error("py-spy: {0}")]
    Failed(String),
    /// py-spy was killed.
    #[error("py-spy did not end in time")]
    Late,
    /// The kernel does not report how py-spy ended.
    #[error("py-spy cannot be waited for: {0}")]
    NotAwaited(std::io::Error),
    /// The output cannot be read.
    #[error("py-spy's output: {0}")]
    NoOutput(#[from] std::io::Error),
    /// The output is no speedscope file.
    #[error("py-spy's output: {0}")]
    BadOutput(#[from] serde_json::Error),
}

/// Worker processes that are to be sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sampling {
    program: PathBuf,
    workers: Vec<Process>,
    left_out: usize,
    duration: Duration,
    /// Time at which the capture is closed.
    deadline_ns: u64,
}

impl Sampling {
    /// The first of these workers, by this py-spy, for a capture with this deadline.
    pub(crate) fn new(program: PathBuf, mut workers: Vec<Process>, deadline_ns: u64) -> Self {
        let left_out = workers.len().saturating_sub(WORKERS_SAMPLED_MAX);
        workers.truncate(WORKERS_SAMPLED_MAX);
        Self { program, workers, left_out, duration: DURATION, deadline_ns }
    }

    /// Starts to sample all of them, if there is time for it.
    pub(crate) fn start(&self) -> Running {
        let (now, until) = (clock::now(), self.duration + LATE_MAX);
        let has_time = now.after_ns(until + UPLOAD_TIME) <= self.deadline_ns;
        let each = |worker: &Process| match has_time {
            true => OneRunning::start(&self.program, *worker, self.duration),
            false => Err(SampleError::NoTime),
        };
        let all = self.workers.iter().map(each).collect();
        let (left_out, duration) = (self.left_out, self.duration);
        Running { all, left_out, duration, until_ns: now.after_ns(until) }
    }
}

/// Workers that are being sampled. Dropped before it is finished, it ends every py-spy.
pub(crate) struct Running {
    all: Vec<Result<OneRunning, SampleError>>,
    left_out: usize,
    duration: Duration,
    until_ns: u64,
}

impl Running {
    /// Returns the samples. Blocks until every py-spy has ended.
    pub(crate) fn finish(self) -> (WorkerSamples, SampledStacks) {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let mut stacks = SampledStacks::default();
        let mut samples = WorkerSamples {
            processes_left_out: count(self.left_out),
            duration_ns: u64::try_from(self.duration.as_nanos()).unwrap_or(u64::MAX),
            ..WorkerSamples::default()
        };
        for one in self.all {
            match one.and_then(|one| one.finish(self.until_ns)) {
                Ok(output) => {
                    samples.processes += 1;
                    add(&mut stacks, &output);
                }
                Err(why) => {
                    samples.processes_failed += 1;
                    samples.failure = cut(&why.to_string(), NAME_BYTES_MAX).to_string();
                }
            }
        }
        (samples, stacks)
    }
}

/// A running py-spy, in a process group of its own.
struct OneRunning {
    /// The child process; none after its end.
    child: Option<Child>,
    worker: Process,
    output: File,
    errors: File,
}

impl OneRunning {
    fn start(program: &Path, worker: Process, duration: Duration) -> Result<Self, SampleError> {
        let named = || program.to_path_buf();
        let in_memory = || memfd_create("memtape-py-spy", MemfdFlags::CLOEXEC).map(File::from);
        let files = in_memory().and_then(|output| Ok((output, in_memory()?)));
        let no_memory = |source| SampleError::NoMemory { program: named(), source };
        let (output, errors) = files.map_err(no_memory)?;
        let shared = |file: &File| file.try_clone().map(Stdio::from);
        let run = || {
            Command::new(program)
                .args(["record", "--nonblocking", "--full-filenames", "--format", "speedscope"])
                .args(["--rate", &RATE_HZ.to_string()])
                .args(["--duration", &duration.as_secs().max(1).to_string()])
                .args(["--pid", &worker.pid.to_string()])
                // py-spy writes its result into a file and remarks on its output. The one
                // descriptor that it uses for neither is its input.
                .args(["--output", "/dev/stdin"])
                .stdin(shared(&output)?)
                .stdout(Stdio::null())
                .stderr(shared(&errors)?)
                .process_group(0)
                .spawn()
        };
        let not_started = |source| SampleError::NotStarted { program: named(), source };
        let child = run().map_err(not_started)?;
        let limit = Rlimit { current: Some(MEMORY_BYTES_MAX), maximum: Some(MEMORY_BYTES_MAX) };
        let limited = prlimit(Some(Pid::from_child(&child)), Resource::As, limit);
        // Dropped, it ends the child.
        let one = Self { child: Some(child), worker, output, errors };
        match limited {
            // One that has ended already is none that takes memory.
            Ok(_) | Err(rustix::io::Errno::SRCH) => Ok(one),
            Err(source) => Err(SampleError::NoMemory { program: named(), source }),
        }
    }

    /// Returns the output; the error is py-spy's message or the cause of its end, in one line.
    fn finish(mut self, until_ns: u64) -> Result<Speedscope, SampleError> {
        let status = self.wait(until_ns)?;
        if !status.success() {
            let said = read(&mut self.errors).unwrap_or_default();
            return Err(failure(self.worker.pid, &String::from_utf8_lossy(&said)));
        }
        // The number of a process that has ended is given away again.
        if self.worker.memory(Path::new("/")).is_none() {
            return Err(SampleError::Gone(self.worker.pid));
        }
        Ok(serde_json::from_slice(&read(&mut self.output)?)?)
    }

    fn wait(&mut self, until_ns: u64) -> Result<ExitStatus, SampleError> {
        loop {
            let ended = self.child.as_mut().map(Child::try_wait);
            match ended {
                Some(Ok(Some(status))) => {
                    self.child = None;
                    return Ok(status);
                }
                Some(Ok(None)) if clock::now().mono_ns < until_ns => {
                    std::thread::sleep(POLL_INTERVAL);
                }
                Some(Ok(None)) | None => return Err(SampleError::Late),
                Some(Err(error)) => return Err(SampleError::NotAwaited(error)),
            }
        }
    }
}

impl Drop for OneRunning {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        // What is gone already cannot be killed.
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        // One that waits in the kernel may take long to die; without a thread it stays a zombie.
        let _ = std::thread::Builder::new().spawn(move || child.wait());
    }
}

/// Classifies py-spy's error message. A missing permission may stand behind other causes in it.
fn failure(pid: u32, said: &str) -> SampleError {
    if said.to_lowercase().contains("permission denied") {
        return SampleError::Refused(pid);
    }
    let line = said.lines().map(str::trim).find(|line| !line.is_empty());
    SampleError::Failed(line.unwrap_or("it failed and said nothing").to_string())
}

fn read(file: &mut File) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(OUTPUT_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > OUTPUT_BYTES_MAX {
        true => Err(std::io::Error::other("it is larger than 8 MiB")),
        false => Ok(bytes),
    }
}

/// The used parts of a speedscope file.
#[derive(Deserialize)]
struct Speedscope {
    profiles: Vec<Profile>,
    shared: Shared,
}

/// The samples of one thread: indexes of frames, the outermost first.
#[derive(Deserialize)]
struct Profile {
    samples: Vec<Vec<usize>>,
}

#[derive(Deserialize)]
struct Shared {
    frames: Vec<SpeedscopeFrame>,
}

#[derive(Deserialize)]
struct SpeedscopeFrame {
    name: String,
    file: Option<String>,
    line: Option<u32>,
}

/// Adds the samples of one process. Frames that the file does not have are left out.
fn add(stacks: &mut SampledStacks, output: &Speedscope) {
    let frame = |frame: &SpeedscopeFrame| Frame {
        file: cut(frame.file.as_deref().unwrap_or_default(), STRING_BYTES_MAX).to_string(),
        line: frame.line.unwrap_or(0),
        function: cut(&frame.name, STRING_BYTES_MAX).to_string(),
    };
    let frames: Vec<u32> =
        output.shared.frames.iter().map(|each| stacks.frame(frame(each))).collect();
    for sample in output.profiles.iter().flat_map(|profile| &profile.samples) {
        let inward = sample.iter().rev().take(STACK_FRAMES_MAX);
        let stack: Vec<u32> = inward.filter_map(|&index| frames.get(index).copied()).collect();
        if !stack.is_empty() {
            stacks.add(stack, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn me() -> Process {
        Process::of_self()
    }

    /// A script in the place of py-spy. Another process writes it, because a script that is open
    /// for writing while some test starts a process cannot be run.
    fn script(folder: &Path, text: &str) -> PathBuf {
        let program = folder.join("py-spy");
        let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$0" && chmod 755 "$0""#;
        let status = Command::new("sh").arg("-c").arg(write).arg(&program).arg(text).status();
        assert!(status.expect("a shell").success());
        program
    }

    /// Samples this process with it.
    fn sampled(text: &str, workers: usize) -> (WorkerSamples, SampledStacks) {
        let folder = tempfile::tempdir().expect("folder");
        let program = script(folder.path(), text);
        let sampling = Sampling::new(program, vec![me(); workers], u64::MAX);
        Sampling { duration: SECOND, ..sampling }.start().finish()
    }

    const OUTPUT: &str = r#"cat > /dev/stdin << END
{"profiles": [{"samples": [[1, 0], [1, 0], [1], [], [7]]}, {"samples": [[1, 0]]}],
 "shared": {"frames": [{"name": "decode", "file": "/app/data.py", "line": 12, "col": null},
                       {"name": "_worker_loop", "file": null, "line": null}]}, "x": 1}
END"#;

    #[test]
    fn samples_of_all_workers_are_added_up() {
        let (samples, stacks) = sampled(OUTPUT, WORKERS_SAMPLED_MAX + 2);
        let text = |frame: &Frame| format!("{}:{} {}", frame.file, frame.line, frame.function);
        let found: BTreeMap<String, u64> = stacks
            .iter()
            .map(|(stack, samples)| {
                (stack.into_iter().map(text).collect::<Vec<_>>().join(" < "), samples)
            })
            .collect();
        let workers = WORKERS_SAMPLED_MAX as u64;
        let expected = [
            (":0 _worker_loop".to_string(), workers),
            ("/app/data.py:12 decode < :0 _worker_loop".to_string(), 3 * workers),
        ];
        assert_eq!(found, BTreeMap::from(expected));
        let processes = (samples.processes, samples.processes_failed, samples.processes_left_out);
        assert_eq!(processes, (4, 0, 2));
        assert_eq!((samples.failure.as_str(), samples.duration_ns), ("", 1_000_000_000));
    }

    /// Error message of py-spy 0.4.3 as root without SYS_PTRACE.
    const DENIED: &str = "cat >&2 << END
Error: Failed to get process executable name. Check that the process is running.

Caused by:
    0: Failed to open /proc/1/maps
    1: Permission denied (os error 13)
END
exit 1";

    #[test]
    fn failures_are_reported_in_one_line() {
        let fails = |script: &str, why: &str| {
            let (samples, stacks) = sampled(script, 1);
            assert!(samples.failure.contains(why), "{:?} is not {why:?}", samples.failure);
            assert!(samples.failure.len() <= NAME_BYTES_MAX && stacks.iter().next().is_none());
            assert_eq!((samples.processes, samples.processes_failed), (0, 1));
        };
        fails(DENIED, "it needs the capability SYS_PTRACE");
        fails("echo >&2; echo 'Error: no Python' >&2; echo trace >&2; exit 1", "Error: no Python");
        fails("exit 3", "it failed and said nothing");
        fails("true", "py-spy's output: EOF");
        fails("echo '[1]' > /dev/stdin", "py-spy's output: invalid");
        fails("head -c 9000000 /dev/zero > /dev/stdin", "it is larger than 8 MiB");
        fails("sleep 600; true", "did not end in time");
        fails("sleep 0.2; head -c 1000000000 /dev/zero | tail", "memory exhausted");
        fails("printf 'Error: %02000d' 7 >&2; exit 1", "Error: 000");

        let check = |program: &str, worker, deadline_ns, why: &str| {
            let sampling = Sampling::new(program.into(), vec![worker], deadline_ns);
            let (samples, _) = Sampling { duration: SECOND, ..sampling }.start().finish();
            assert!(samples.failure.contains(why), "{samples:?} is not {why:?}");
        };
        let gone = Process::known(std::process::id(), 0);
        check("/bin/true", gone, u64::MAX, "has ended");
        check("/absent", me(), u64::MAX, "/absent cannot be started");
        check("/bin/true", me(), clock::now().after_ns(5 * SECOND), "no time for it");
    }

    #[test]
    fn a_dropped_sampler_is_killed_with_its_children() {
        let folder = tempfile::tempdir().expect("folder");
        let pids = folder.path().join("pids");
        let text =
            format!("sleep 600 & echo $$ $! > {0}.new; mv {0}.new {0}; wait", pids.display());
        let program = script(folder.path(), &text);
        let running = Sampling::new(program, vec![me()], u64::MAX).start();
        let until = |is_so: &dyn Fn() -> bool| {
            for _ in 0..1500 {
                if is_so() {
                    return;
                }
                std::thread::sleep(POLL_INTERVAL);
            }
            panic!("not within 30 s");
        };
        until(&|| pids.exists());
        let pids = std::fs::read_to_string(&pids).expect("pids");
        drop(running);
        // A zombie has ended, too; who started it has to see to that.
        let is_gone = |pid: &str| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        };
        until(&|| pids.split_whitespace().all(is_gone));
    }
}
