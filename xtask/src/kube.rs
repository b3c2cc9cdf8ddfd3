//! `cargo xtask kube`: what a restart does to Kubernetes, against a real API server.
//!
//! `tests/kube/build` takes etcd and builds kube-apiserver, once, from Debian's packages. Both are
//! started on the loopback for the tests named `real_kubernetes`, which find a kubeconfig of each
//! user in the folder that `MEMTAPE_TEST_KUBE` names. There are no controllers and no kubelet: the
//! tests do what those would.
//!
//! Both programs end with this command, also where it fails or is killed: the kernel ends them with
//! the thread that started them.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::process::{Steps, call, cargo, command, root, run};
use crate::report::Found;

/// Where the programs are.
const FOLDER: &str = "target/kube";

/// Time until a program listens.
const START_MAX: Duration = Duration::from_mins(2);

/// Users by their names, which are their tokens, too, and their groups. Who is in `system:masters`
/// may do everything, and the others nothing until a test grants them something.
const USERS: [(&str, &str); 3] = [("admin", "system:masters"), ("memtape", ""), ("stranger", "")];

/// Bytes of a program's log that are shown when it fails.
const LOG_BYTES_MAX: usize = 4000;

/// Runs the tests against a server of their own.
pub(crate) fn ask(steps: &mut Steps) -> Result<Found> {
    let started = Instant::now();
    steps.take("kube-apiserver", call("tests/kube/build", &[]))?;
    // Built before the server runs.
    let tests = ["test", "--locked", "--workspace", "--lib"];
    steps.take("build", cargo(&[&tests[..], &["--no-run"]].concat()))?;
    let mut server = Server::start()?;
    let mut real = cargo(&[&tests[..], &["real_kubernetes"]].concat());
    real.env("MEMTAPE_TEST_KUBE", server.folder.path());
    let asked = run("real Kubernetes", real);
    let (is_good, passed, left_out) = (asked.is_good, asked.tests.passed, asked.left_out.len());
    steps.0.push(asked);
    server.check()?;
    ensure!(!is_good || passed > 0 && left_out == 0, "no test has asked the server");
    Ok(Found::tests(steps, started.elapsed()))
}

/// The running programs. They end when this is dropped.
struct Server {
    programs: Vec<Program>,
    /// Data, logs and kubeconfigs.
    folder: tempfile::TempDir,
}

impl Server {
    fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut server = Self { programs: Vec::new(), folder };
        let [peers, etcd, api] = free_ports()?;
        server.run("etcd", etcd, &etcd_options(server.folder.path(), peers, etcd))?;
        let tokens = USERS.map(|(name, group)| format!("{name},{name},{name},\"{group}\"\n"));
        fs::write(server.folder.path().join("tokens.csv"), tokens.concat())?;
        server.run("kube-apiserver", api, &api_options(server.folder.path(), etcd, api))?;
        for (name, _) in USERS {
            let config = kubeconfig(server.folder.path(), api, name);
            fs::write(server.folder.path().join(name), config.to_string())?;
        }
        Ok(server)
    }

    /// Starts a program and waits until it listens on its port.
    fn run(&mut self, name: &'static str, port: u16, options: &[String]) -> Result<()> {
        let log = self.folder.path().join(format!("{name}.log"));
        // By util-linux: the program is killed when the thread that has started it ends.
        let mut program = command("setpriv");
        program.args(["--pdeathsig", "KILL"]).arg(root().join(FOLDER).join(name)).args(options);
        self.programs.push(Program::start(name, program, log)?);
        let deadline = Instant::now() + START_MAX;
        while !is_listening(port) {
            self.check()?;
            let seconds = START_MAX.as_secs();
            ensure!(Instant::now() < deadline, "{name} does not listen after {seconds} s");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Does every program run?
    fn check(&mut self) -> Result<()> {
        for program in &mut self.programs {
            let Some(end) = program.child.try_wait()? else { continue };
            let log = fs::read(&program.log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_BYTES_MAX)..]);
            bail!("{} ended with {end}:\n{log}", program.name);
        }
        Ok(())
    }
}

/// A program that is killed when this is dropped.
struct Program {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Program {
    fn start(name: &'static str, mut program: Command, log: PathBuf) -> Result<Self> {
        let output = File::create(&log)?;
        program.stdout(output.try_clone()?).stderr(output);
        Ok(Self { name, child: program.spawn().context(name)?, log })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does a program listen on this port? A connection to a free port can come to be one to itself.
fn is_listening(port: u16) -> bool {
    let connected = TcpStream::connect(("127.0.0.1", port));
    connected.is_ok_and(|to| to.local_addr().is_ok_and(|from| from.port() != port))
}

/// Ports that were free a moment ago.
fn free_ports<const COUNT: usize>() -> Result<[u16; COUNT]> {
    let mut ports = [0; COUNT];
    let mut held = Vec::new();
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

fn etcd_options(folder: &Path, peers: u16, clients: u16) -> Vec<String> {
    let [peers, clients] = [peers, clients].map(|port| format!("http://127.0.0.1:{port}"));
    vec![
        format!("--data-dir={}", folder.join("etcd").display()),
        format!("--listen-peer-urls={peers}"),
        format!("--initial-advertise-peer-urls={peers}"),
        format!("--initial-cluster=default={peers}"),
        format!("--listen-client-urls={clients}"),
        format!("--advertise-client-urls={clients}"),
    ]
}

fn api_options(folder: &Path, etcd: u16, port: u16) -> Vec<String> {
    let key = root().join(FOLDER).join("accounts.key");
    vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd}"),
        "--bind-address=127.0.0.1".to_string(),
        format!("--secure-port={port}"),
        format!("--cert-dir={}", folder.display()),
        "--service-account-issuer=https://kubernetes.default.svc".to_string(),
        format!("--service-account-key-file={}", key.display()),
        format!("--service-account-signing-key-file={}", key.display()),
        "--authorization-mode=RBAC".to_string(),
        format!("--token-auth-file={}", folder.join("tokens.csv").display()),
        "--service-cluster-ip-range=10.0.0.0/24".to_string(),
        // A controller makes the accounts that it asks for, and there is none.
        "--disable-admission-plugins=ServiceAccount".to_string(),
    ]
}

/// How a user reaches the server. The server has made its certificate itself.
fn kubeconfig(folder: &Path, port: u16, user: &str) -> serde_json::Value {
    let authority = folder.join("apiserver.crt");
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{ "name": "test", "cluster": {
            "server": format!("https://127.0.0.1:{port}"),
            "certificate-authority": authority,
        } }],
        "users": [{ "name": user, "user": { "token": user } }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": user } }],
    })
}
