//! What an operator sees of the coordinators of a cluster, and what a start that cannot work says.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use memtape_tests::cluster::free_port;
use memtape_tests::processes::{Process, signal, wait_for};
use memtape_tests::{memtape, root};

use super::on_bucket::{OnBucket, PATIENCE};

/// The names of objects of coordinators that wait.
fn waiting(rig: &OnBucket) -> Vec<String> {
    let name = |key: String| key.strip_prefix("cluster/waiting/").map(str::to_string);
    rig.server.keys().into_iter().filter_map(name).collect()
}

#[test]
fn an_operator_sees_who_owns_what_it_costs_and_who_waits() {
    let rig = OnBucket::new(2);
    let mut first = rig.coordinator(0, &[]);
    first.line_with("listening", PATIENCE);
    assert_eq!(waiting(&rig), [""; 0], "it did not wait");
    let mut second = rig.coordinator(1, &[]);
    second.line_with("waiting: http://127.0.0.1:", PATIENCE);
    let cluster = wait_for("a coordinator that waits, and a rate", PATIENCE, || {
        let cluster = rig.ask(0, &["cluster"])?;
        let is_seen = cluster["waiting"][0]["address"] == rig.address(1);
        (is_seen && !cluster["shards"][0]["requests"].is_null()).then_some(cluster)
    });
    let name = cluster["waiting"][0]["name"].as_str().expect("a name").to_string();
    assert_eq!(waiting(&rig), [name.as_str()]);
    assert!(name.starts_with(&format!("{}-", second.id())), "{name}");
    let owner = &cluster["shards"][0];
    assert_eq!((&owner["owner"], &owner["epoch"]), (&rig.address(0).into(), &1.into()));
    let number = |field: &str| owner["requests"][field].as_f64().expect("a number");
    // It renews its sign of life each second.
    assert!(number("puts_per_second") > 0.5 && number("dollars_per_day") > 0.1, "{owner:#}");
    assert!(owner["sign_of_life_age_ns"].as_u64() < Some(5_000_000_000), "{owner:#}");
    signal(first.id(), libc::SIGTERM);
    assert_eq!(first.end(PATIENCE).0, Some(0));
    second.line_with("listening", PATIENCE);
    wait_for("the owner has no object", PATIENCE, || waiting(&rig).is_empty().then_some(()));
    let cluster = rig.ask(1, &["cluster"]).expect("an answer");
    assert_eq!(cluster["shards"][0]["epoch"], 2, "{cluster:#}");
    let third = rig.coordinator(0, &[]);
    wait_for("the third waits", PATIENCE, || (waiting(&rig).len() == 1).then_some(()));
    signal(third.id(), libc::SIGTERM);
    assert_eq!(third.end(PATIENCE).0, Some(0));
    assert_eq!(waiting(&rig), [""; 0], "it ended in order");
}

/// The line of a start that ends at once, and leaves the owner alone.
fn refused(rig: &OnBucket, member: usize, arguments: &[&str]) -> String {
    let (status, said) = rig.coordinator(member, arguments).end(PATIENCE);
    assert_eq!((status, said.len()), (Some(1), 1), "{said:#?}");
    said.into_iter().next().expect("a line")
}

#[test]
fn a_start_whose_port_is_in_use_ends_at_once() {
    let rig = OnBucket::in_folder(3);
    let mut first = rig.coordinator(0, &[]);
    first.line_with("listening", PATIENCE);
    let mut second = rig.coordinator(1, &[]);
    second.line_with("waiting: http://127.0.0.1:", PATIENCE);
    assert!(TcpStream::connect(rig.address(1).trim_start_matches("http://")).is_err());
    let cluster = rig.ask(0, &["cluster"]).expect("an answer");
    assert!(cluster["shards"][0]["requests"].is_null(), "a folder has none: {cluster:#}");
    // That of the owner, of a coordinator that waits, and of another program.
    let address = rig.address(2);
    let other = TcpListener::bind(address.trim_start_matches("http://")).expect("a free port");
    for member in 0..3 {
        let line = refused(&rig, member, &[]);
        assert!(line.contains("is in use: stop the program that has it"), "{line}");
    }
    drop(other);
    let health = format!("127.0.0.1:{}", free_port());
    let _other = TcpListener::bind(&health).expect("a free port");
    let line = refused(&rig, 2, &["--health-listen", &health]);
    assert!(line.contains(&format!("address {health} is in use")), "{line}");
    assert!(rig.ask(0, &["cluster"]).is_some());
}

/// A folder that was renamed, or a disk that is not mounted.
#[test]
fn a_cluster_that_is_gone_is_not_made_again_by_one_that_waits() {
    let rig = OnBucket::in_folder(2);
    let mut first = rig.coordinator(0, &[]);
    first.line_with("listening", PATIENCE);
    let mut second = rig.coordinator(1, &[]);
    second.line_with("waiting: http://127.0.0.1:", PATIENCE);
    let (folder, away) = (rig.scratch.path().join("bucket"), rig.scratch.path().join("away"));
    signal(first.id(), libc::SIGKILL);
    std::fs::rename(&folder, &away).expect("it is renamed");
    let (status, said) = second.end(PATIENCE);
    assert_eq!(status, Some(1), "{said:#?}");
    assert!(said.iter().any(|line| line.contains("is no longer at file://")), "{said:#?}");
    assert!(!folder.join("shards").exists(), "no shard is made");
    // It may have said that it waits.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::rename(&away, &folder).expect("it is back");
    rig.coordinator(1, &[]).line_with("listening", PATIENCE);
}

#[test]
fn an_address_that_does_not_lead_to_its_coordinator_is_named() {
    let rig = OnBucket::in_folder(2);
    let dead = rig.address(1);
    let mut first = rig.coordinator(0, &["--cluster-address", &dead]);
    let said = first.line_with("does not lead to it", PATIENCE);
    assert!(said.contains(&dead) && said.contains("nothing answers there"), "{said}");
    let cluster = wait_for("the problem is shown", PATIENCE, || {
        let cluster = rig.ask(0, &["cluster"])?;
        (cluster["shards"][0]["address_problem"] != "").then_some(cluster)
    });
    let problem = cluster["shards"][0]["address_problem"].as_str().expect("a line");
    assert!(said.contains(problem), "{problem}");
}

/// Of two shards, each is asked for at the coordinator of the first.
#[test]
fn a_backup_of_each_shard_is_made_anywhere() {
    let rig = OnBucket::in_folder(2);
    let shards = ["--cluster-shards", "2"];
    let mut owners = [0, 1].map(|member| rig.coordinator(member, &shards));
    for owner in &mut owners {
        owner.line_with("listening", PATIENCE);
    }
    let own = wait_for("both owners are known", PATIENCE, || {
        let shards = rig.ask(0, &["cluster"])?["shards"].take();
        let shards = shards.as_array().filter(|shards| shards.len() == 2)?.clone();
        shards.iter().position(|of| of["owner"] == rig.address(0))
    });
    let backup = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(memtape());
        command.args(["--coordinator", &rig.address(0), "store", "backup"]).args(arguments);
        let file = rig.scratch.path().join(name);
        let output = command.arg(&file).output().expect("memtape runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // The header has the id of the store.
        let text = String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned();
        let id = text.split("\"store\":\"").nth(1).and_then(|rest| rest.split('"').next());
        (output.status.code(), said, id.map(String::from))
    };
    let (status, said, asked) = backup("asked", &[]);
    assert!(status == Some(0) && said.contains(&format!("shard {own} of 2: ")), "{said}");
    let of = [("0", "first"), ("1", "second")].map(|(shard, name)| {
        let (status, said, of) = backup(name, &["--shard", shard]);
        assert_eq!((status, said.as_str()), (Some(0), ""));
        of.expect("an id")
    });
    assert_ne!(of[0], of[1]);
    assert_eq!(asked.as_ref(), of.get(own));
    let (status, said, _) = backup("none", &["--shard", "2"]);
    assert!(status == Some(1) && said.contains("there is no shard 2 here"), "{said}");
}

#[test]
fn a_start_that_expects_a_store_makes_no_cluster() {
    let rig = OnBucket::in_folder(1);
    let folder = rig.url().trim_start_matches("file://");
    let (status, said) = rig.coordinator(0, &["--expect-store"]).end(PATIENCE);
    assert_eq!((status, said.len()), (Some(1), 1), "{said:#?}");
    assert!(said[0].contains("and --expect-store expects one: check the URL"), "{said:#?}");
    assert!(!Path::new(folder).exists());
    let mut first = rig.coordinator(0, &[]);
    first.line_with("listening", PATIENCE);
    signal(first.id(), libc::SIGTERM);
    assert_eq!(first.end(PATIENCE).0, Some(0));
    rig.coordinator(0, &["--expect-store"]).line_with("listening", PATIENCE);
}

/// It was stopped while another one took over, and is to end when it goes on: its store and its
/// shard cannot be closed any more.
#[test]
fn an_owner_that_was_replaced_ends_with_a_plain_line() {
    let mut rig = OnBucket::in_folder(2);
    let mut first = rig.coordinator(0, &[]);
    first.line_with("listening", PATIENCE);
    let mut second = rig.coordinator(1, &[]);
    second.line_with("waiting: http://127.0.0.1:", PATIENCE);
    rig.model(&["leaking"]);
    wait_for("the job is known", PATIENCE, || rig.ask(0, &["jobs"])?["jobs"].get(0).cloned());
    signal(first.id(), libc::SIGSTOP);
    second.line_with("listening", PATIENCE);
    signal(first.id(), libc::SIGTERM);
    signal(first.id(), libc::SIGCONT);
    let (status, said) = first.end(PATIENCE);
    assert_eq!(status, Some(1), "{said:#?}");
    let plain = "memtape: another coordinator owns the shard: start this one again";
    assert_eq!(said.last().map(String::as_str), Some(plain), "{said:#?}");
    let is_trace = |line: &&String| line.contains("backtrace") || line.contains("panicked");
    assert_eq!(said.iter().find(is_trace), None, "{said:#?}");
}

#[test]
fn the_model_ranks_of_the_page_are_watched_by_ones_own_coordinators() {
    let page = std::fs::read_to_string(root().join("docs/cluster.md")).expect("the page");
    let line = page.lines().find(|line| line.contains("memtape demo-rank")).expect("the line");
    let mut rig = OnBucket::in_folder(2);
    let mut first = rig.coordinator(0, &[]);
    first.line_with("listening", PATIENCE);
    let second = rig.coordinator(1, &[]);
    let tapes = rig.start_agent();
    let binaries = memtape().parent().expect("a folder").display().to_string();
    let path = format!("{binaries}:{}", std::env::var("PATH").unwrap_or_default());
    let mut ranks = Command::new("sh");
    ranks.args(["-c", &format!("{line}; wait")]).env("PATH", path).env("MEMTAPE_DIR", tapes);
    rig.jobs.push(Process::start(&mut ranks));
    let incident = wait_for("an incident", PATIENCE, || rig.diagnosed(0, "try"));
    assert_eq!((&incident["rank"], &incident["class"]), (&2.into(), &"leak".into()));
    drop((first, second));
}
