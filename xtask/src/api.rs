//! `cargo xtask api [--examples N]`: requests that the OpenAPI document allows and forbids, made up
//! by schemathesis, to a real coordinator.
//!
//! The content is the demo's: a job with four ranks, captures, an incident. An answer with status
//! 500, one that the document does not describe, and one of another shape are failures. The demo
//! listens on the loopback; it ends with this command.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::process::{Steps, built, command, root, run};
use crate::python;
use crate::report::Found;

/// The environment of the tool.
const FOLDER: &str = "target/api";
const TOOL: &str = "schemathesis==4.32.5";

/// Fewer than the coordinator takes from one caller.
const RATE: &str = "100/s";

/// What is checked of every answer. Whether a forbidden request is refused is left out: unknown
/// fields and parameters are ignored, so that newer clients are understood.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance,unsupported_method";

/// Asks this many requests of each operation.
pub(crate) fn ask(steps: &mut Steps, examples: u64) -> Result<Found> {
    let started = Instant::now();
    steps.take("fetch schemathesis", python::environment(FOLDER, &[TOOL]))?;
    steps.take("build", crate::process::cargo(&["build", "--locked", "-p", "memtape"]))?;
    let (port, mut demo) = demo()?;
    let asked = run("api", tool(port, examples));
    // Its processes end with it.
    demo.kill()?;
    demo.wait()?;
    steps.0.push(asked);
    Ok(Found::tests(steps, started.elapsed()))
}

fn tool(port: u16, examples: u64) -> Command {
    let base = format!("http://127.0.0.1:{port}");
    let folder = root().join(FOLDER);
    let mut tool = command(folder.join("bin/schemathesis"));
    // It leaves files where it is started.
    tool.current_dir(folder);
    tool.args(["run", &format!("{base}/api/v1/openapi.json"), "--url", &base])
        .args(["--checks", CHECKS, "--rate-limit", RATE, "--no-color", "--continue-on-failure"])
        .args(["--max-examples", &examples.to_string()])
        .args(["--generation-database", "none"]);
    tool
}

/// A demo that has its incident, and the port of its coordinator.
fn demo() -> Result<(u16, Child)> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut demo = command(built("debug").join("memtape"));
    demo.args(["demo", "--json", "--port", &port.to_string()]);
    let mut demo = demo.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let said = demo.stdout.take().context("its output is read")?;
    let mut line = String::new();
    BufReader::new(said).read_line(&mut line)?;
    let is_ready = line.contains("\"incident\"");
    if !is_ready {
        demo.kill()?;
        demo.wait()?;
    }
    ensure!(is_ready, "the demo has no incident: run it by hand");
    Ok((port, demo))
}
