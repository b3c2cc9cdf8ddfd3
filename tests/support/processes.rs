//! Processes that do not outlive their test, and waiting with a deadline.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A process in a group of its own that is killed, with its children and theirs, when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Process {
    /// Starts a command; its stdout and stderr are read line by line.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(command: &mut Command) -> Self {
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (send, lines) = channel();
        let pipes: [Option<Box<dyn std::io::Read + Send>>; 2] = [
            child.stdout.take().map(|pipe| Box::new(pipe) as _),
            child.stderr.take().map(|pipe| Box::new(pipe) as _),
        ];
        for pipe in pipes.into_iter().flatten() {
            let send = send.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    if send.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        Self { child, lines, seen: Vec::new() }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line that contains `text`, and returns it.
    ///
    /// # Panics
    /// When none comes in time, with everything the process said.
    pub fn line_with(&mut self, text: &str, patience: Duration) -> String {
        let patience = patience * PATIENCE_FACTOR;
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.seen.push(line);
                    if let Some(line) = self.seen.last().filter(|line| line.contains(text)) {
                        return line.clone();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    panic!("no line with {text:?} in {patience:?}; said: {:#?}", self.seen)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("it ended without a line with {text:?}; said: {:#?}", self.seen)
                }
            }
        }
    }

    /// Waits for its end; returns its exit code (`None` for a signal) and all it said.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn end(mut self, patience: Duration) -> (Option<i32>, Vec<String>) {
        let patience = patience * PATIENCE_FACTOR;
        let ended = self.ended_within(patience);
        assert!(ended.is_some(), "still running after {patience:?}: {:#?}", self.seen);
        ended.expect("it has ended")
    }

    /// As [`Self::end`], with exactly this time; none when it has not ended by then.
    pub fn ended_within(&mut self, patience: Duration) -> Option<(Option<i32>, Vec<String>)> {
        let deadline = Instant::now() + patience;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                break status;
            }
            self.seen.extend(self.lines.try_iter());
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        // Its children may hold the pipes open for longer.
        let until = Instant::now() + PIPES_OPEN_MAX;
        while let Ok(line) =
            self.lines.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            self.seen.push(line);
        }
        Some((status.code(), std::mem::take(&mut self.seen)))
    }

    /// All it has said so far.
    pub fn said(&mut self) -> Vec<String> {
        self.seen.extend(self.lines.try_iter());
        self.seen.clone()
    }

    /// SIGKILL, to this process alone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // torchrun gives its ranks sessions of their own, out of the group.
        let family = descendants(self.child.id());
        signal_group(self.child.id(), libc::SIGKILL);
        for pid in family {
            signal(pid, libc::SIGKILL);
        }
        let _ = self.child.wait();
    }
}

/// The children of a process that has not been waited for, and theirs.
fn descendants(root: u32) -> Vec<u32> {
    let parent_of = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in brackets, may hold anything; behind it come the state and the parent.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let folders = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = folders.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> =
        pids.filter_map(|pid| parent_of(pid).map(|parent| (pid, parent))).collect();
    let mut family = vec![root];
    let mut next = 0;
    while let Some(&of) = family.get(next) {
        family.extend(parents.iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| pid));
        next += 1;
    }
    family.split_off(1)
}

/// Sends a signal to a process.
pub fn signal(pid: u32, signal: i32) {
    // SAFETY: sends a signal to a process this test started.
    unsafe { libc::kill(pid as libc::pid_t, signal) };
}

fn signal_group(pid: u32, signal: i32) {
    // SAFETY: sends a signal to the group of a process this test started.
    unsafe { libc::killpg(pid as libc::pid_t, signal) };
}

/// How long a process that has ended is listened to, where its children hold its pipes open.
const PIPES_OPEN_MAX: Duration = Duration::from_secs(5);

/// How much longer things may take on a machine that others use as well. Waiting costs nothing
/// where the answer comes.
const PATIENCE_FACTOR: u32 = 4;

/// Asks again and again until there is an answer.
///
/// # Panics
/// When there is none in time.
pub fn wait_for<T>(what: &str, patience: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let patience = patience * PATIENCE_FACTOR;
    let deadline = Instant::now() + patience;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not in {patience:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
