//! Any bytes as what lies in files of operators and of agents: roles, certificates, the spool.

use std::path::PathBuf;

use memtape_agent::Config;
use memtape_agent::testing::{
    Event, MemoryNode, MemoryTapes, Now, Output, SimulatedAgent, spool_entry,
};
use memtape_proto::v1;
use memtape_simulated_disk::SimulatedDisk;
use memtape_tls::client::ClientTls;
use memtape_tls::server::ServerTls;

/// Reads a file of roles.
pub(crate) fn read_roles(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Some(mistake) = memtape_coordinator::testing::mistake_in_roles(&text) else { return };
    assert!(!mistake.is_empty() && !mistake.contains('\n'), "{mistake:?} is one line");
}

/// Reads a folder of certificates: `tls.crt`, `tls.key`, `ca.crt` and `ca.crl`, divided by zeros.
/// The first certificate is also read as it is.
pub(crate) fn read_certificates(data: &[u8]) {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = folder();
    let mut parts = data.split(|byte| *byte == 0);
    for name in ["ca.crt", "tls.crt", "tls.key", "ca.crl"] {
        let path = folder.join(name);
        match parts.next() {
            Some(part) => std::fs::write(&path, part).expect("a file"),
            None => _ = std::fs::remove_file(&path),
        }
    }
    let only_own = std::fs::Permissions::from_mode(0o600);
    let _ = std::fs::set_permissions(folder.join("tls.key"), only_own);
    for error in [ServerTls::open(&folder).err(), ClientTls::open(&folder).err()] {
        let line = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(!line.contains('\n'), "{line:?} is one line");
    }
    let _ = memtape_tls::certificate::named(&data.into());
}

fn folder() -> PathBuf {
    let shared = PathBuf::from("/dev/shm");
    let base = if shared.is_dir() { shared } else { std::env::temp_dir() };
    let folder = base.join(format!("memtape-fuzz-certificates-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Reads a spool that an earlier agent has left, and delivers it. An entry is its kind (a byte:
/// which file, and whether it is whole), its number, its length (two bytes) and its bytes.
pub(crate) fn read_spool(data: &[u8]) {
    let disk = SimulatedDisk::new(1);
    let mut rest = data;
    while let [kind, number, low, high, more @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(more.len());
        let (bytes, after) = more.split_at(length);
        let number = u64::from(*number);
        let name = match kind % 4 {
            0 => "facts-0000000000000001".to_string(),
            1 => "steps-0000000000000001".to_string(),
            2 => format!("capture-{number:016x}"),
            _ => "cursor".to_string(),
        };
        match kind & 0x40 {
            0 => disk.put(&name, &spool_entry(number, u32::from(kind >> 4), bytes)),
            _ => disk.put(&name, bytes),
        }
        rest = after;
    }
    let at = |seconds: u64| Now {
        wall_ns: 1_700_000_000_000_000_000,
        mono_ns: (seconds + 5) * 1_000_000_000,
    };
    let config = Config { node: "node-1".to_string(), ..Config::default() };
    let (node, tapes) = (MemoryNode::default(), MemoryTapes::default());
    let mut agent = SimulatedAgent::new(at(0), "boot", config, node, tapes, Some(disk.process()));
    let welcome = v1::Welcome { protocol: memtape_proto::PROTOCOL, ..v1::Welcome::default() };
    let body = Some(v1::coordinator_message::Body::Welcome(welcome));
    agent.handle(at(0), Event::Connected { welcome: v1::CoordinatorMessage { body } });
    for seconds in 1..5 {
        agent.handle(at(seconds), Event::Tick);
        while let Some(output) = agent.poll() {
            let Output::Message(message) = output else { continue };
            if let Some(v1::agent_message::Body::Report(report)) = message.body {
                let ack = v1::ReportAck { number: report.number };
                let body = Some(v1::coordinator_message::Body::ReportAck(ack));
                agent.handle(at(seconds), Event::Message(v1::CoordinatorMessage { body }));
            }
        }
    }
}
