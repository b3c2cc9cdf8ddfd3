//! A coordinator and agents as real processes, asked through the command line.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::memtape;
use crate::processes::{Process, wait_for};

/// How long a service may take to answer; generous, since test machines are busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// A coordinator with its store, and agents, on loopback.
#[derive(Debug)]
pub struct Cluster {
    scratch: tempfile::TempDir,
    port: u16,
    coordinator: Option<Process>,
    agents: Vec<Process>,
    agents_see: Vec<(String, String)>,
    coordinator_sees: Vec<(String, String)>,
    has_tls: bool,
}

impl Cluster {
    /// Starts a coordinator and one agent for each name, each with a tape folder of its own.
    pub fn start(nodes: &[&str]) -> Self {
        Self::start_with(nodes, &[])
    }

    /// As [`Self::start`], with agents that have this in their environment.
    pub fn start_with(nodes: &[&str], agents_see: &[(String, String)]) -> Self {
        let mut cluster = Self { agents_see: agents_see.to_vec(), ..Self::new() };
        cluster.start_coordinator();
        cluster.start_agents(nodes);
        cluster
    }

    /// As [`Self::start`], with a coordinator that has a policy file with this text.
    pub fn start_with_policy(nodes: &[&str], policy: &str) -> Self {
        let mut cluster = Self::new();
        let file = cluster.scratch.path().join("policy.toml");
        std::fs::write(&file, policy).expect("a policy file");
        cluster.coordinator_sees.push(("MEMTAPE_POLICY".to_string(), file.display().to_string()));
        cluster.start_coordinator();
        cluster.start_agents(nodes);
        cluster
    }

    /// As [`Self::start`], with mutual TLS: `pki` in its folder has the certificates, valid for 60
    /// days, and the command line shows that of the admin. The coordinator has this in its
    /// environment.
    ///
    /// # Panics
    /// When certificates cannot be made.
    pub fn start_trusted(nodes: &[&str], coordinator_sees: &[(String, String)]) -> Self {
        let coordinator_sees = coordinator_sees.to_vec();
        let mut cluster = Self { coordinator_sees, has_tls: true, ..Self::new() };
        let init = ["tls", "init", "pki", "--host", "127.0.0.1", "--days", "60"];
        let issue = ["tls", "issue", "pki", "--agent", &nodes.join(","), "--days", "60"];
        for command in [&init[..], &issue[..]] {
            let made = cluster.run(command);
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        cluster.start_coordinator();
        cluster.start_agents(nodes);
        cluster
    }

    fn new() -> Self {
        Self {
            scratch: tempfile::tempdir().expect("a temporary folder"),
            port: free_port(),
            coordinator: None,
            agents: Vec::new(),
            agents_see: Vec::new(),
            coordinator_sees: Vec::new(),
            has_tls: false,
        }
    }

    fn start_agents(&mut self, nodes: &[&str]) {
        for node in nodes {
            std::fs::create_dir_all(self.tapes(node)).expect("a folder for tapes");
            let mut command = Command::new(memtape());
            command.envs(self.agents_see.iter().cloned());
            command.args(["agent", "--node", node, "--report-interval", "250ms"]);
            command.args(["--coordinator", &self.url()]);
            command.arg("--tape-dir").arg(self.tapes(node));
            command.arg("--spool-dir").arg(self.scratch.path().join(format!("spool-{node}")));
            if self.has_tls {
                command.arg("--tls-dir").arg(self.pki(&format!("agent-{node}")));
            }
            self.agents.push(Process::start(&mut command));
        }
    }

    /// Kills everything and starts it again, on the same store and the same tapes.
    pub fn restart(&mut self, nodes: &[&str]) {
        self.agents.clear();
        self.kill_coordinator();
        self.start_coordinator();
        self.start_agents(nodes);
    }

    /// Starts the coordinator on the store and port it had before.
    pub fn start_coordinator(&mut self) {
        let mut command = Command::new(memtape());
        command.args(["coordinator", "--listen", &format!("127.0.0.1:{}", self.port)]);
        command.arg("--data-dir").arg(self.data()).envs(self.coordinator_sees.iter().cloned());
        if self.has_tls {
            command.arg("--tls-dir").arg(self.pki("coordinator"));
            command.arg("--access-file").arg(self.pki("access.toml"));
        }
        self.coordinator = Some(Process::start(&mut command));
        wait_for("the coordinator answers", PATIENCE, || {
            self.memtape(&["jobs", "--json"]).status.success().then_some(())
        });
    }

    /// SIGKILL to the coordinator.
    pub fn kill_coordinator(&mut self) {
        let mut coordinator = self.coordinator.take().expect("it runs");
        coordinator.kill();
    }

    /// Waits until the first agent has said a line with this text.
    ///
    /// # Panics
    /// When it does not in time.
    pub fn wait_for_agent_line(&mut self, text: &str) {
        self.agents.first_mut().expect("there is an agent").line_with(text, PATIENCE);
    }

    /// Folder of a node's tapes.
    pub fn tapes(&self, node: &str) -> PathBuf {
        self.scratch.path().join("tapes").join(node)
    }

    /// Folder of the store.
    pub fn data(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    /// A folder for the test's own files.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Where the coordinator answers.
    pub fn url(&self) -> String {
        let scheme = if self.has_tls { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// The answer to a request for this path; none when there is none. Without TLS alone.
    pub fn get(&self, path: &str) -> Option<Value> {
        let address = self.url().replace("http://", "");
        let mut stream = TcpStream::connect(&address).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
            .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let begin = answer.find("\r\n\r\n")?;
        // Chunked or not, the object is between its braces.
        let body = answer.get(begin..)?;
        serde_json::from_str(body.get(body.find('{')?..=body.rfind('}')?)?).ok()
    }

    fn pki(&self, name: &str) -> PathBuf {
        self.scratch.path().join("pki").join(name)
    }

    /// Runs the command line in the folder for the test's own files, against no coordinator.
    ///
    /// # Panics
    /// When the binary cannot be run.
    pub fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(memtape());
        command.args(arguments).current_dir(self.scratch.path());
        command.output().expect("memtape runs")
    }

    /// Runs the command line against this cluster.
    pub fn memtape(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(memtape());
        command.args(arguments).env("MEMTAPE_COORDINATOR", self.url());
        if self.has_tls && !arguments.contains(&"--tls-dir") {
            command.arg("--tls-dir").arg(self.pki("user-admin"));
        }
        command.output().expect("memtape runs")
    }

    /// As [`Self::memtape`] with `--json`, which must succeed.
    ///
    /// # Panics
    /// When it does not, or does not print one JSON value.
    pub fn ask(&self, arguments: &[&str]) -> Value {
        let output = self.memtape(&[arguments, &["--json"]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "memtape {arguments:?}: {error}");
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("memtape {arguments:?}: {error}"))
    }

    /// The incidents of a job.
    pub fn incidents(&self, job: &str) -> Vec<Value> {
        self.ask(&["incidents", job])["incidents"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until a job's incident names its line of code, and returns it.
    pub fn named_incident(&self, job: &str, patience: Duration) -> Value {
        wait_for("an incident that names its line", patience, || {
            // A job that is not known yet is an error to the command line.
            let is_known = self.memtape(&["ranks", job]).status.success();
            let incidents = if is_known { self.incidents(job) } else { Vec::new() };
            incidents.into_iter().find(|incident| !incident["culprit"].is_null())
        })
    }
}

/// Ports that are given to coordinators. They lie below those that Linux gives to connections: a
/// connection could take a port between the time it is found free and the time of the listening.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// A loopback port that is free now. No other call in this process gets it.
///
/// # Panics
/// When no port is free.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes that run at the same time begin at different ports.
    let first = (std::process::id() % 997) as u16 * 22;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let next = || {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        PORTS.start + first.wrapping_add(number) % (PORTS.end - PORTS.start)
    };
    std::iter::repeat_with(next).take(PORTS.len()).find(is_free).expect("a free port")
}
