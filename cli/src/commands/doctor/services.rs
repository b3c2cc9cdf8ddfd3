//! Checks of the services: the agent of this machine, and the coordinator.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use memtape_proto::api::Nodes;
use rustix::process::geteuid;
use rustix::system::uname;

use super::Check;
use crate::client::Client;
use crate::clock;
use crate::render::units::plural;

/// Clocks that differ by less are taken for equal: the coordinator's answer has whole seconds.
const SKEW_SECONDS_MAX: u64 = 2;

/// Most bytes that are read of a file of a process: its user decides how long some are.
const FILE_BYTES_MAX: u64 = 4096;

/// The agent of this machine, by the processes of root and of this user.
pub(super) fn agent() -> Check {
    const NAME: &str = "agent";
    let processes = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let agent = processes.map(|entry| entry.path()).find(|process| {
        is_trusted(&read(process, "status")) && is_agent(&read(process, "cmdline"))
    });
    match agent.as_deref().and_then(Path::file_name) {
        Some(pid) => Check::ok(NAME, format!("runs as process {}", pid.to_string_lossy())),
        None => Check::warn(
            NAME,
            "no process `memtape agent` is seen here",
            "tapes are written without one; to watch a cluster, start it on each node (in \
             Kubernetes it runs in a pod of its own, which is not seen here)",
        ),
    }
}

fn read(process: &Path, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = File::open(process.join(name));
    // A process that has ended has neither.
    let _ = file.and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    bytes
}

/// Is the real user of this `/proc/PID/status` root, or the user of this process? The owner of the
/// files is root for each process that may not be traced.
fn is_trusted(status: &[u8]) -> bool {
    let text = String::from_utf8_lossy(status);
    let uid = text.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next());
    uid.and_then(|uid| uid.parse().ok())
        .is_some_and(|uid: u32| uid == 0 || uid == geteuid().as_raw())
}

/// Words as in `/proc/PID/cmdline`: `memtape`, then `agent` among the first words.
fn is_agent(words: &[u8]) -> bool {
    let mut words = words.split(|byte| *byte == 0);
    let program = words.next().unwrap_or_default();
    let name = program.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name == b"memtape" && words.find(|word| !word.starts_with(b"-")) == Some(b"agent")
}

/// The coordinator: whether it answers, its version, its clock, and its nodes.
pub(super) fn coordinator(client: &Client, has_agent: bool, checks: &mut Vec<Check>) {
    const NAME: &str = "coordinator";
    let facts = match client.about() {
        Ok(facts) => facts,
        Err(error) => {
            let advice = "captures and incidents need it; `memtape run` and `memtape tape` do not";
            checks.push(Check::warn(NAME, error.to_string(), advice));
            return;
        }
    };
    let own = env!("CARGO_PKG_VERSION");
    let base = client.base();
    let found = |version: &str| format!("{base} answers, version {version}");
    checks.push(match facts.version.as_deref() {
        Err(refusal) => {
            let advice = "its version and its nodes are not checked";
            Check::warn(NAME, format!("{base} refuses this program: {refusal}"), advice)
        }
        Ok("") => Check::ok(NAME, format!("{base} answers, without its version")),
        Ok(theirs) if theirs == own => Check::ok(NAME, found(theirs)),
        Ok(theirs) => {
            Check::warn(NAME, found(theirs), format!("this program has version {own}: use one"))
        }
    });
    if let Some(seconds) = facts.unix_seconds {
        checks.push(skew(seconds, clock::wall_ns() / 1_000_000_000));
    }
    if let Ok(nodes) = client.fetch(&["nodes"], &[]) {
        let here = has_agent.then(|| uname().nodename().to_string_lossy().into_owned());
        checks.push(of_nodes(&nodes, here.as_deref()));
    }
}

fn skew(theirs: i64, ours: i64) -> Check {
    let seconds = ours.saturating_sub(theirs);
    let way = if seconds > 0 { "ahead of" } else { "behind" };
    match seconds.unsigned_abs() {
        0..=SKEW_SECONDS_MAX => {
            Check::ok("clock", format!("within {SKEW_SECONDS_MAX} s of the coordinator's"))
        }
        much => Check::warn(
            "clock",
            format!("{much} s {way} the coordinator's"),
            "times of incidents and captures are off by as much: synchronize both (NTP, chrony)",
        ),
    }
}

/// Judges the agents that are connected. `here` is the name of this machine where an agent runs.
fn of_nodes(nodes: &Nodes, here: Option<&str>) -> Check {
    let connected = || nodes.nodes.iter().filter(|node| node.connected);
    let missing = here.filter(|here| connected().all(|node| node.node != *here));
    let connected = connected().count() as u64;
    let found = format!(
        "{} connected of {} known to the coordinator",
        plural(connected, "agent"),
        nodes.nodes.len()
    );
    match (missing, connected) {
        (Some(here), _) => Check::warn(
            "nodes",
            format!("{found}; none has the name of this machine, {here}"),
            "the agent here has another coordinator or name: see its --coordinator and --node",
        ),
        (None, 0) => Check::warn("nodes", found, "start `memtape agent` on each node"),
        (None, _) => Check::ok("nodes", found),
    }
}

#[cfg(test)]
mod tests {
    use memtape_proto::api::Node;

    use super::super::Outcome;
    use super::*;

    #[test]
    fn an_agent_is_recognized_by_its_answer() {
        assert!(is_agent(b"/usr/bin/memtape\0agent\0--coordinator\0x\0"));
        assert!(is_agent(b"memtape\0--json\0agent\0"));
        assert!(!is_agent(b"memtape\0run\0agent\0"));
        assert!(!is_agent(b"grep\0agent\0"));
        assert!(!is_agent(b""));
        let uid = geteuid().as_raw();
        let of = |real: u32| format!("Name:\tmemtape\nUid:\t{real}\t0\t0\t0\n").into_bytes();
        assert!(is_trusted(&of(0)) && is_trusted(&of(uid)));
        assert!(!is_trusted(&of(uid + 1)) && !is_trusted(b""));
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("cmdline"), [b'x'; 1 << 20]).expect("a file");
        assert_eq!(read(dir.path(), "cmdline").len() as u64, FILE_BYTES_MAX);
    }

    #[test]
    fn clocks_and_nodes_are_judged() {
        assert_eq!(skew(100, 101).outcome, Outcome::Ok);
        assert!(skew(100, 160).found.starts_with("60 s ahead"));
        assert!(skew(160, 100).found.starts_with("60 s behind"));
        let node = |connected| Node { node: "a".into(), connected, ..Node::default() };
        let of = |nodes: &[Node], here| {
            of_nodes(&Nodes { nodes: nodes.to_vec(), ..Nodes::default() }, here).outcome
        };
        assert_eq!(of(&[node(false), node(true)], None), Outcome::Ok);
        assert_eq!(of(&[node(false)], None), Outcome::Warn);
        assert_eq!(of(&[node(true)], Some("a")), Outcome::Ok);
        assert_eq!(of(&[node(true)], Some("b")), Outcome::Warn);
        assert_eq!(of(&[node(false)], Some("a")), Outcome::Warn);
    }
}
