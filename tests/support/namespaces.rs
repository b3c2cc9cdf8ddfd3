//! Network namespaces for scenarios: nodes that can be cut off, joined to a hub by cables.
//!
//! ```text
//!   node-a ─── cable ─── hub ─── cable ─── node-b
//!   10.9.1.2            10.9.0.1           10.9.2.2
//! ```
//!
//! The hub forwards between its nodes; nothing of it is connected to the machine's own network.
//! Needs root, and `ip` of iproute2.

use std::process::Command;

/// A hub and its nodes; all are gone when dropped.
#[derive(Debug)]
pub struct Network {
    tag: String,
    nodes: usize,
}

impl Network {
    /// The hub's address, as its nodes reach it.
    pub const HUB: &str = "10.9.0.1";

    /// Name of the network device of every node.
    pub const DEVICE: &str = "eth0";

    /// Makes a hub with this number of nodes; `None`, reported as left out, where it is impossible.
    pub fn new(scenario: &str, nodes: usize) -> Option<Self> {
        static NETWORKS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NETWORKS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let network = Self { tag: format!("mt{}-{number}", std::process::id()), nodes };
        match network.make() {
            Ok(()) => Some(network),
            Err(why) => {
                crate::left_out(scenario, &format!("network namespaces: {why}"));
                None
            }
        }
    }

    fn make(&self) -> Result<(), CommandError> {
        let hub = self.hub();
        ip(&format!("netns add {hub}"))?;
        ip(&format!("-n {hub} link set lo up"))?;
        ip(&format!("-n {hub} addr add {}/32 dev lo", Self::HUB))?;
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        run(Command::new("ip").args(["netns", "exec", &hub, "sh", "-c", forward]))?;
        for node in 0..self.nodes {
            let (name, cable) = (self.node(node), cable(node));
            let device = Self::DEVICE;
            let subnet = format!("10.9.{}", node + 1);
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link add {device} type veth peer name {cable} netns {hub}"))?;
            ip(&format!("-n {hub} addr add {subnet}.1/24 dev {cable}"))?;
            ip(&format!("-n {hub} link set {cable} up"))?;
            ip(&format!("-n {name} addr add {subnet}.2/24 dev {device}"))?;
            ip(&format!("-n {name} link set {device} up"))?;
            ip(&format!("-n {name} route add default via {subnet}.1"))?;
        }
        Ok(())
    }

    /// Address of a node.
    pub fn address(&self, node: usize) -> String {
        format!("10.9.{}.2", node + 1)
    }

    /// A command inside a node.
    pub fn on_node(&self, node: usize, program: impl AsRef<std::ffi::OsStr>) -> Command {
        within(&self.node(node), program)
    }

    /// A command inside the hub.
    pub fn on_hub(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        within(&self.hub(), program)
    }

    /// Pulls a node's cable: packets are dropped without an error.
    ///
    /// # Panics
    /// When that fails.
    pub fn cut(&self, node: usize) {
        ip(&format!("-n {} link set {} down", self.hub(), cable(node))).expect("a cable is cut");
    }

    /// Plugs it in again.
    ///
    /// # Panics
    /// When that fails.
    pub fn mend(&self, node: usize) {
        ip(&format!("-n {} link set {} up", self.hub(), cable(node))).expect("a cable is mended");
    }

    fn hub(&self) -> String {
        format!("{}-hub", self.tag)
    }

    fn node(&self, node: usize) -> String {
        format!("{}-{node}", self.tag)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in (0..self.nodes).map(|node| self.node(node)).chain([self.hub()]) {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// The hub's end of a node's cable.
fn cable(node: usize) -> String {
    format!("cable{node}")
}

fn within(namespace: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
    // `ip` replaces itself by the program: the process id is the program's.
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).arg(program);
    command
}

/// Why a command of a network failed.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    /// It cannot be started.
    #[error("{command} cannot be started: {source}")]
    NotStarted { command: String, source: std::io::Error },
    /// It ended with a failure; the first line that it wrote to stderr.
    #[error("{command}: {said}")]
    Failed { command: String, said: String },
}

fn ip(words: &str) -> Result<(), CommandError> {
    run(Command::new("ip").args(words.split(' ')))
}

fn run(command: &mut Command) -> Result<(), CommandError> {
    let shown = |command: &Command| format!("{command:?}");
    let output = command
        .output()
        .map_err(|source| CommandError::NotStarted { command: shown(command), source })?;
    if output.status.success() {
        return Ok(());
    }
    let error = String::from_utf8_lossy(&output.stderr);
    let said = error.lines().next().unwrap_or_default().to_string();
    Err(CommandError::Failed { command: shown(command), said })
}
