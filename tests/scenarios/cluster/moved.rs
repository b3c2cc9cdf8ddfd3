//! `memtape store move`: a coordinator's folder becomes a cluster, also when the move is killed
//! again and again; and what `memtape doctor` and `memtape store check` say of the bucket.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use memtape_bucket::{Fault, Rule, Server};
use memtape_tests::cluster::{Cluster, free_port};
use memtape_tests::killed_history::{SEED, STEP_US};
use memtape_tests::memtape;
use memtape_tests::processes::{Process, wait_for};
use serde_json::Value;
use tokio::runtime::Runtime;

const PATIENCE: Duration = Duration::from_secs(120);
const JOB: &str = "kept";
const URL: &str = "s3://bucket/team/memtape";

/// Kills of the move before it may end.
const KILLS: u32 = 8;

struct Rig {
    cluster: Cluster,
    server: Server,
    _runtime: Runtime,
}

impl Rig {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(memtape());
        command.args(arguments).envs(self.server.settings("command"));
        command.current_dir(self.cluster.scratch());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("memtape runs")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    }

    /// The line of a failure.
    fn refusal(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        said.lines().last().unwrap_or_default().to_string()
    }

    /// What a coordinator at this address knows.
    fn known(&self, url: &str) -> Option<[Value; 3]> {
        let ask = |words: &[&str]| {
            let output = self.run(&[&["--coordinator", url, "--json"], words].concat());
            let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
            output.status.success().then_some(answer)
        };
        Some([
            ask(&["jobs"])?["jobs"][0]["job"].clone(),
            ask(&["incidents", JOB])?["incidents"][0]["id"].clone(),
            ask(&["captures"])?["captures"].clone(),
        ])
    }
}

/// A coordinator that was killed, with a job, its incident and a capture.
fn rig() -> (Rig, [Value; 3]) {
    let runtime = Runtime::new().expect("a runtime");
    let server = runtime.block_on(Server::start());
    let cluster = Cluster::start(&["node"]);
    let mut rig = Rig { cluster, server, _runtime: runtime };
    let mut training = Command::new(env!("CARGO_BIN_EXE_memtape-killed-writer"));
    training.env(SEED, "7").env(STEP_US, "2000").env("MEMTAPE_JOB", JOB);
    training.env("MEMTAPE_DIR", rig.cluster.tapes("node"));
    let mut training = Process::start(&mut training);
    wait_for("steps", PATIENCE, || {
        let jobs = rig.cluster.get("/api/v1/jobs")?;
        jobs["jobs"][0]["step_min"].as_u64().filter(|step| *step > 500)
    });
    rig.cluster.ask(&["capture", JOB]);
    training.kill();
    let url = rig.cluster.url();
    wait_for("the incident of a death", PATIENCE, || {
        rig.cluster.incidents(JOB).first().map(|incident| incident["id"].clone())
    });
    wait_for("its capture is closed", PATIENCE, || {
        let captures = rig.cluster.get("/api/v1/captures")?["captures"].as_array()?.clone();
        (captures.iter().filter(|of| !of["closed_wall_ns"].is_null()).count() >= 2).then_some(())
    });
    let known = rig.known(&url).expect("it answers");
    rig.cluster.kill_coordinator();
    (rig, known)
}

#[test]
fn a_store_is_moved_into_a_bucket_however_often_the_move_is_killed() {
    let (rig, before) = rig();
    let data = rig.cluster.data().to_str().expect("a plain path").to_string();
    let doctor = |rig: &Rig| {
        let report = rig.json(&["doctor", "--python", "false", "--cluster", URL]);
        let checks = report["checks"].as_array().cloned().unwrap_or_default();
        let of = |name: &str| checks.iter().find(|check| check["name"] == name).cloned();
        ["cluster", "conditions", "round trip", "owner"].map(|name| of(name).expect(name))
    };
    assert!(doctor(&rig)[0]["found"].as_str().is_some_and(|it| it.ends_with("makes a cluster")));

    // Each request takes a while, so that kills meet every part of a move.
    rig.server.add_rule(Rule::of("", Fault::Slow(Duration::from_millis(50))));
    let seed = std::process::id();
    println!("seed {seed}");
    let mut random = u64::from(seed);
    let mut killed = 0;
    for kill in 0..KILLS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        // A move has more than 50 requests in a row: all kills but the last one meet it.
        let range = if kill + 1 < KILLS { 2_500 } else { 8_000 };
        let after = Duration::from_millis((random >> 33) % range);
        let mut moving = Process::start(&mut rig.command(&["store", "move", &data, URL]));
        match moving.ended_within(after) {
            Some((status, said)) => {
                assert_eq!(status, Some(0), "{said:#?}");
                println!("the move ended before kill {kill}, after at most {after:?}");
                break;
            }
            None => moving.kill(),
        }
        killed += 1;
        let identity = rig.server.keys().contains(&"team/memtape/memtape-cluster".to_string());
        println!("killed after {after:?}: {} objects", rig.server.keys().len());
        if identity {
            let line = rig.refusal(&["coordinator", "--cluster", URL, "--listen", "127.0.0.1:0"]);
            assert!(line.contains("did not end: run memtape store move"), "{line}");
        }
    }
    assert!(killed > 0);
    rig.server.clear_faults();
    let begun = Instant::now();
    let moved = rig.json(&["store", "move", &data, URL]);
    println!("{killed} kills; the last call took {:?}: {moved}", begun.elapsed());
    assert_eq!(moved["missing"].as_array().map(Vec::len), Some(0), "{moved}");
    let line = rig.refusal(&["coordinator", "--data-dir", &data, "--listen", "127.0.0.1:0"]);
    assert!(line.contains(&format!("was moved to {URL}: start the coordinator with")), "{line}");

    let port = free_port();
    let mut command = rig.command(&["coordinator", "--cluster", URL]);
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    let mut coordinator = Process::start(&mut command);
    coordinator.line_with("listening", PATIENCE);
    let url = format!("http://127.0.0.1:{port}");
    assert_eq!(rig.known(&url).expect("it answers"), before);
    // Its store is checked while it works.
    let checked = rig.json(&["store", "check", URL]);
    assert_eq!(checked["ok"], true, "{checked:#}");
    assert!(checked["snapshots"].as_u64() >= Some(1), "{checked:#}");
    let found = doctor(&rig);
    assert!(found.iter().all(|check| check["outcome"] == "ok"), "{found:#?}");
    let owner = found[3]["found"].as_str().expect("a line");
    assert!(owner.starts_with(&format!("{url} says that it owns")), "{owner}");
    coordinator.kill();
    starts_from_a_copy(&rig, &before);
}

/// The objects alone are the cluster, wherever they lie.
fn starts_from_a_copy(rig: &Rig, before: &[Value; 3]) {
    let runtime = Runtime::new().expect("a runtime");
    let other = runtime.block_on(Server::start());
    other.copy(&rig.server, "team/memtape/", "elsewhere/");
    let elsewhere = "s3://bucket/elsewhere";
    let port = free_port();
    let mut command = Command::new(memtape());
    command.args(["coordinator", "--cluster", elsewhere, "--listen"]);
    command.arg(format!("127.0.0.1:{port}")).envs(other.settings("other"));
    let mut coordinator = Process::start(command.current_dir(rig.cluster.scratch()));
    coordinator.line_with("listening", PATIENCE);
    assert_eq!(&rig.known(&format!("http://127.0.0.1:{port}")).expect("it answers"), before);
    let mut check = Command::new(memtape());
    check.args(["store", "check", elsewhere, "--json"]).envs(other.settings("check"));
    let output = check.output().expect("memtape runs");
    let checked: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(checked["ok"] == true && checked["snapshots"].as_u64() >= Some(1), "{checked:#}");
    coordinator.kill();
}
