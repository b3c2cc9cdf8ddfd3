//! NVIDIA Resiliency Extension asks `deploy/nvrx/health_check.py` for the health of a node, as
//! `ft_launcher` does before each rendezvous.
//!
//! The client is NVRx' own where there is NVRx, else one that does the same (`tests/nvrx`). The
//! rank is a real PyTorch process on the fake CUDA runtime, which has NVML as well; the memory that
//! stays after it is the number in a file.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memtape_tests::cluster::{Cluster, free_port};
use memtape_tests::processes::{Process, signal, wait_for};
use memtape_tests::{left_out, library, memtape, root, torch};

/// Allocates in a loop until it is killed.
const SCRIPT: &str = r#"
import time, torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100000):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, flush=True)
    time.sleep(0.01)
"#;

/// What `ft_launcher` does with its option `--ft-node-health-check-endpoint`.
const CLIENT: &str = r#"
import logging, sys
from nvidia_resiliency_ext.shared_utils import health_check
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(message)s")
health_check.logger.propagate = True
print("joins:", health_check.NodeHealthCheck(endpoint=sys.argv[1])(), flush=True)
"#;

/// The health check and its client.
struct Check {
    python: PathBuf,
    /// Where the package of NVRx is, if not in Python's own folders.
    package: Option<PathBuf>,
    socket: PathBuf,
}

impl Check {
    /// None, reported as left out, where there is no gRPC for Python.
    fn find(socket: &Path) -> Option<Self> {
        let python = std::env::var_os("MEMTAPE_TEST_NVRX_PYTHON");
        let python = python.or_else(|| std::env::var_os("MEMTAPE_TEST_PYTHON"));
        let python = python.map_or_else(|| root().join("target/venv/bin/python"), PathBuf::from);
        let can = |imports: &str| {
            let found = Command::new(&python).args(["-c", imports]).output();
            found.is_ok_and(|output| output.status.success())
        };
        let nvrx = "from nvidia_resiliency_ext.shared_utils.health_check import NodeHealthCheck";
        let package = (!can(nvrx)).then(|| root().join("tests/nvrx"));
        if package.is_some() {
            left_out("the client of NVRx", "nvidia-resiliency-ext in MEMTAPE_TEST_NVRX_PYTHON");
            if !can("import grpc, google.protobuf") {
                left_out("NVRx refuses a node that keeps memory", "grpcio and protobuf for Python");
                return None;
            }
        }
        Some(Self { python, package, socket: socket.to_path_buf() })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.python);
        if let Some(package) = &self.package {
            command.env("PYTHONPATH", package);
        }
        command
    }

    /// Starts the health check, for the agent with this health port.
    fn start(&self, agent: &str) -> Process {
        let mut command = self.command();
        command.arg(root().join("deploy/nvrx/health_check.py"));
        command.arg("--socket").arg(&self.socket).args(["--agent", agent]);
        let mut process = Process::start(&mut command);
        process.line_with("answers health checks", Duration::from_secs(30));
        process
    }

    /// Asks once; whether the node may join, and what NVRx logs.
    fn ask(&self) -> (bool, String) {
        let mut command = self.command();
        let output = command.args(["-c", CLIENT]).arg(&self.socket).output().expect("python");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let joins = said.lines().find_map(|line| line.strip_prefix("joins: "));
        (joins.unwrap_or_else(|| panic!("{output:?}")) == "True", said)
    }
}

#[test]
fn the_health_check_passes_on_what_the_agent_answers() {
    let mut python = Command::new("python3");
    let output = python.arg(root().join("tests/nvrx/health_check_test.py")).output();
    let output = output.expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn nvrx_refuses_a_node_whose_gpu_keeps_memory() {
    let Some(torch) = torch("NVRx refuses a node that keeps memory") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let in_folder = |name: &str| folder.path().join(name).display().to_string();
    let socket = in_folder("health.sock");
    let Some(check) = Check::find(Path::new(&socket)) else { return };
    library();
    // Builds NVML.
    let built = torch.command(1, "8G").args(["-c", "pass"]).status().expect("python");
    assert!(built.success());
    std::fs::write(folder.path().join("left"), "100000000").expect("a file");
    let listen = format!("127.0.0.1:{}", free_port());
    let fake = root().join("target/fake_cuda").display().to_string();
    let sees = [
        ("LD_LIBRARY_PATH", fake),
        ("FAKECUDA_BYTES", "8G".to_string()),
        ("FAKECUDA_STATE", in_folder("state")),
        ("FAKECUDA_LEFT", in_folder("left")),
        ("MEMTAPE_HEALTH_LISTEN", listen.clone()),
    ];
    let sees = sees.map(|(name, value)| (name.to_string(), value));
    let cluster = Cluster::start_with(&["node-a"], &sees);
    let mut served = check.start(&format!("http://{listen}"));
    let (joins, said) = check.ask();
    assert!(joins && said.contains("success (fail_count=0)"), "a GPU that is not used: {said}");
    served.line_with("the health check of this node passes: ", Duration::from_secs(30));

    let inner = torch.command(1, "8G");
    let mut command = Command::new(memtape());
    command.args(["run", "--job", "kept", "--dir"]).arg(cluster.tapes("node-a")).arg("--");
    command.arg(inner.get_program()).args(inner.get_args()).args(["-c", SCRIPT]);
    command.env("FAKECUDA_STATE", in_folder("state")).current_dir(root());
    let mut rank = Process::start(&mut command);
    rank.line_with("step 20", Duration::from_secs(60));
    wait_for("the rank is known", Duration::from_secs(30), || {
        (cluster.ask(&["jobs"])["jobs"][0]["step_max"].as_u64()? > 20).then_some(())
    });
    // The GPU is read while the rank holds much of it: what stays is known to be the rank's.
    std::fs::write(folder.path().join("left"), (5_u64 << 30).to_string()).expect("a file");
    let (joins, said) = check.ask();
    assert!(joins, "memory in use is not judged: {said}");

    signal(rank.id(), libc::SIGKILL);
    rank.end(Duration::from_secs(10));
    // An agent that cannot know it in time lets the node join, and says that nothing is proven.
    let said = wait_for("NVRx refuses the node", Duration::from_secs(240), || {
        let (joins, said) = check.ask();
        (!joins).then_some(said)
    });
    let held = " s after its last process has ended, GPU-";
    for text in ["(exit_code=1)", "\"fail_count\":1", held, "more than before"] {
        assert!(said.contains(text), "{text:?} is not in what NVRx logs: {said}");
    }
    std::fs::write(folder.path().join("left"), "100000000").expect("a file");
    let (joins, said) = check.ask();
    assert!(joins, "the memory is given back: {said}");
}
