//! Stacks of worker processes, sampled from outside by py-spy, a program that the operator names.
//!
//! py-spy reads the memory of a process and neither stops nor changes it (`--nonblocking`). One
//! py-spy runs for each worker, all at the same time; it ends by itself, or it is killed. What it
//! writes is bounded and not trusted. Nothing here says what is sampled, or when.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use memtape_core::identity::cut;
use memtape_core::limits::{NAME_BYTES_MAX, STACK_FRAMES_MAX, WORKERS_SAMPLED_MAX};
use memtape_core::snapshot::Frame;
use memtape_core::snapshot::workers::WorkerSamples;
use memtape_core::tape::interned::STRING_BYTES_MAX;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Deserialize;

use crate::node::clock;
use crate::node::process::Process;

/// How long a worker is sampled: a worker that is busy for one part in a hundred of its time is
/// seen at work about five times. The capture waits as long.
const DURATION: Duration = Duration::from_secs(5);

/// Samples a second, py-spy's own default: about one part in fifty of a core for each worker.
const RATE_HZ: u32 = 100;

/// py-spy is killed so long after it should have ended.
const LATE_MAX: Duration = Duration::from_secs(5);

/// Time between two looks whether it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Bytes that are read of what it wrote.
const OUTPUT_BYTES_MAX: u64 = 8 << 20;

/// Samples of each stack, innermost frame first.
pub(crate) type Stacks = BTreeMap<Vec<Frame>, u64>;

/// Worker processes that are to be sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sampling {
    program: PathBuf,
    workers: Vec<Process>,
    left_out: usize,
    duration: Duration,
}

impl Sampling {
    /// The first of these workers, by this py-spy.
    pub(crate) fn new(program: PathBuf, mut workers: Vec<Process>) -> Self {
        let left_out = workers.len().saturating_sub(WORKERS_SAMPLED_MAX);
        workers.truncate(WORKERS_SAMPLED_MAX);
        Self { program, workers, left_out, duration: DURATION }
    }

    /// Starts to sample all of them.
    pub(crate) fn start(&self) -> Running {
        let each = |worker: &Process| OneRunning::start(&self.program, *worker, self.duration);
        let all = self.workers.iter().map(each).collect();
        Running { all, left_out: self.left_out, duration: self.duration }
    }
}

/// Workers that are being sampled.
pub(crate) struct Running {
    all: Vec<Result<OneRunning, String>>,
    left_out: usize,
    duration: Duration,
}

impl Running {
    /// What was sampled. Blocks until every py-spy has ended.
    pub(crate) fn finish(self) -> (WorkerSamples, Stacks) {
        let mut stacks = Stacks::new();
        let mut samples = WorkerSamples {
            duration_ns: u64::try_from(self.duration.as_nanos()).unwrap_or(u64::MAX),
            ..WorkerSamples::default()
        };
        let mut left_out = self.left_out;
        let until_ns = clock::now().after_ns(self.duration + LATE_MAX);
        for one in self.all {
            match one.and_then(|one| one.finish(until_ns)) {
                Ok(output) => {
                    samples.processes += 1;
                    add(&mut stacks, output);
                }
                Err(why) => {
                    left_out += 1;
                    samples.failure = cut(&why, NAME_BYTES_MAX).to_string();
                }
            }
        }
        samples.processes_left_out = u32::try_from(left_out).unwrap_or(u32::MAX);
        (samples, stacks)
    }
}

/// One py-spy at work.
struct OneRunning {
    child: Child,
    output: File,
    errors: File,
}

impl OneRunning {
    fn start(program: &Path, worker: Process, duration: Duration) -> Result<Self, String> {
        let name = program.display();
        if worker.memory(Path::new("/")).is_none() {
            return Err(format!("process {} has ended", worker.pid));
        }
        let in_memory = || memfd_create("memtape-py-spy", MemfdFlags::CLOEXEC).map(File::from);
        let files = in_memory().and_then(|output| Ok((output, in_memory()?)));
        let (output, errors) = files.map_err(|error| format!("no memory for {name}: {error}"))?;
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
                .spawn()
        };
        let child = run().map_err(|error| format!("{name} cannot be started: {error}"))?;
        Ok(Self { child, output, errors })
    }

    /// What it wrote; the error is what it says, or what happened to it, in one line.
    fn finish(mut self, until_ns: u64) -> Result<Speedscope, String> {
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if clock::now().mono_ns < until_ns => std::thread::sleep(POLL_INTERVAL),
                Ok(None) => {
                    // It may have ended meanwhile.
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    return Err("py-spy did not end in time and was killed".to_string());
                }
                Err(error) => return Err(format!("py-spy cannot be waited for: {error}")),
            }
        };
        if !status.success() {
            let said = read(&mut self.errors).unwrap_or_default();
            let said = String::from_utf8_lossy(&said).into_owned();
            let line = said.lines().map(str::trim).find(|line| !line.is_empty());
            return Err(format!("py-spy: {}", line.unwrap_or("it failed and said nothing")));
        }
        let output = read(&mut self.output);
        let output = output.map_err(|error| format!("py-spy's output: {error}"))?;
        serde_json::from_slice(&output).map_err(|error| format!("py-spy's output: {error}"))
    }
}

fn read(file: &mut File) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The parts of a speedscope file that are of use.
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
fn add(stacks: &mut Stacks, output: Speedscope) {
    let frame = |frame: &SpeedscopeFrame| Frame {
        file: cut(frame.file.as_deref().unwrap_or_default(), STRING_BYTES_MAX).to_string(),
        line: frame.line.unwrap_or(0),
        function: cut(&frame.name, STRING_BYTES_MAX).to_string(),
    };
    let frames: Vec<Frame> = output.shared.frames.iter().map(frame).collect();
    for sample in output.profiles.iter().flat_map(|profile| &profile.samples) {
        let inward = sample.iter().rev().take(STACK_FRAMES_MAX);
        let stack: Vec<Frame> = inward.filter_map(|&index| frames.get(index).cloned()).collect();
        if !stack.is_empty() {
            let count = stacks.entry(stack).or_default();
            *count = count.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Samples this process by a script in the place of py-spy.
    fn sampled(script: &str, workers: usize) -> (WorkerSamples, Stacks) {
        let folder = tempfile::tempdir().expect("folder");
        let program = folder.path().join("py-spy");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("script");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("mode");
        let me = std::process::id();
        let me = Process::find(Path::new("/"), me, me).expect("own process");
        let duration = Duration::from_secs(1);
        let sampling = Sampling { duration, ..Sampling::new(program, vec![me; workers]) };
        sampling.start().finish()
    }

    const OUTPUT: &str = r#"cat > /dev/stdin << END
{"profiles": [{"samples": [[1, 0], [1, 0], [1], [], [7]]}, {"samples": [[1, 0]]}],
 "shared": {"frames": [{"name": "decode", "file": "/app/data.py", "line": 12, "col": null},
                       {"name": "_worker_loop", "file": null, "line": null}]}, "x": 1}
END"#;

    #[test]
    fn samples_of_all_workers_are_added_up() {
        let (samples, stacks) = sampled(OUTPUT, WORKERS_SAMPLED_MAX + 2);
        let frame = |file: &str, line, function: &str| Frame {
            file: file.to_string(),
            line,
            function: function.to_string(),
        };
        let (inner, outer) = (frame("/app/data.py", 12, "decode"), frame("", 0, "_worker_loop"));
        let workers = WORKERS_SAMPLED_MAX as u64;
        let expected = [(vec![outer.clone()], workers), (vec![inner, outer], 3 * workers)];
        assert_eq!(stacks, Stacks::from(expected));
        assert_eq!((samples.processes, samples.processes_left_out), (4, 2));
        assert_eq!((samples.failure.as_str(), samples.duration_ns), ("", 1_000_000_000));
    }

    #[test]
    fn failures_are_told_in_one_line() {
        let fails = |script: &str, why: &str| {
            let (samples, stacks) = sampled(script, 1);
            assert!(samples.failure.contains(why), "{:?} is not {why:?}", samples.failure);
            assert!(samples.failure.len() <= NAME_BYTES_MAX && stacks.is_empty());
            assert_eq!((samples.processes, samples.processes_left_out), (0, 1));
        };
        let denied = "echo >&2; echo 'Error: Permission Denied' >&2; echo trace >&2; exit 1";
        fails(denied, "py-spy: Error: Permission Denied");
        fails("exit 3", "it failed and said nothing");
        fails("true", "py-spy's output: EOF");
        fails("echo '[1]' > /dev/stdin", "py-spy's output: invalid");
        fails("exec sleep 600", "was killed");
        fails("printf 'Error: %02000d' 7 >&2; exit 1", "Error: 000");

        let gone = Process::known(std::process::id(), 0);
        let (samples, _) = Sampling::new("/bin/true".into(), vec![gone]).start().finish();
        assert!(samples.failure.contains("has ended"), "{samples:?}");
        let me = std::process::id();
        let me = Process::find(Path::new("/"), me, me).expect("own process");
        let (samples, _) = Sampling::new("/absent".into(), vec![me]).start().finish();
        assert!(samples.failure.contains("/absent cannot be started"), "{samples:?}");
    }
}
