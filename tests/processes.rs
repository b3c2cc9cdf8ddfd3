//! Processes that do not outlive their test, and waiting with a deadline.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A process in a group of its own that is killed, with all its children, when dropped.
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
        let deadline = Instant::now() + patience;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                break status;
            }
            self.seen.extend(self.lines.try_iter());
            assert!(
                Instant::now() < deadline,
                "still running after {patience:?}: {:#?}",
                self.seen
            );
            std::thread::sleep(Duration::from_millis(20));
        };
        // Its children may hold the pipes open for a moment longer.
        while let Ok(line) = self.lines.recv_timeout(Duration::from_millis(300)) {
            self.seen.push(line);
        }
        (status.code(), std::mem::take(&mut self.seen))
    }

    /// SIGKILL, to this process alone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        signal_group(self.child.id(), libc::SIGKILL);
        let _ = self.child.wait();
    }
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

/// Asks again and again until there is an answer.
///
/// # Panics
/// When there is none in time.
pub fn wait_for<T>(what: &str, patience: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not in {patience:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
