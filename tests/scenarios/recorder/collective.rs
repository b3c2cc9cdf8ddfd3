//! How far a rank has come in its collectives is on its tape, as PyTorch's own flight recorder
//! says, whichever thread holds the GIL; where it says nothing, the tape says why.
//!
//! The process groups are PyTorch's NCCL backend, on a NCCL whose collectives move nothing and are
//! over when all ranks have begun them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use memtape_core::capture::collective::MARGIN_NS;
use memtape_core::snapshot::{CollectiveSource, Collectives};
use memtape_tests::cluster::Cluster;
use memtape_tests::processes::{Process, wait_for};
use memtape_tests::{Torch, library, root, tapes, torch};
use serde_json::{Value, json};

use crate::recorder::memory::Recorded;

const PATIENCE: Duration = Duration::from_secs(120);

/// `tests/torch/collective.py` with this number of ranks, its tapes in `folder`.
fn job(torch: &Torch, way: &str, ranks: u32, folder: &Path) -> Command {
    let mut command = torch.recorded(ranks, "1G", folder);
    command.env("FAKECUDA_NCCL", "1").env("FAKENCCL_FOLDER", folder);
    command.args(Torch::torchrun(ranks)).args(["tests/torch/collective.py", way]);
    command
}

/// Runs it to its end: what each rank expects, and its tape.
fn ran(command: &mut Command, folder: &Path) -> Vec<(Value, PathBuf)> {
    let (code, said) = Process::start(command).end(PATIENCE);
    assert_eq!(code, Some(0), "{said:#?}");
    let lines = said.iter().filter_map(|line| line.strip_prefix("expected "));
    let mut expected: Vec<Value> =
        lines.map(|line| serde_json::from_str(line).expect("a JSON object")).collect();
    expected.sort_by_key(|one| one["rank"].as_u64());
    let tapes = tapes::in_folder(folder);
    assert_eq!(expected.len(), tapes.len(), "{said:#?}");
    expected.into_iter().zip(tapes).collect()
}

fn collectives(tape: &Path) -> Collectives {
    tapes::open(tape).collectives()
}

/// The tape says what PyTorch said, of each group.
fn assert_equal(found: &Collectives, expected: &Value) {
    let (status, config) = (&expected["dump"]["pg_status"], &expected["dump"]["pg_config"]);
    let names = expected["names"].as_array().expect("names");
    assert_eq!(found.source, CollectiveSource::FlightRecorder, "{found:?}");
    assert_eq!(found.groups.len(), status.as_object().expect("groups").len(), "{found:?}");
    assert_eq!((found.groups.len(), found.groups_lost), (names.len(), 0), "{found:?}");
    for (group, name) in found.groups.iter().zip(names) {
        let said = &status[group.id.to_string()];
        let number = |name: &str| said[name].as_str().and_then(|text| text.parse().ok());
        assert_eq!(group.enqueued, number("last_enqueued_collective"), "{said}");
        assert_eq!(group.started, number("last_started_collective"), "{said}");
        assert_eq!(group.completed, number("last_completed_collective"), "{said}");
        assert!(group.enqueued.is_some() && group.enqueued == group.completed, "{group:?}");
        assert_eq!(Some(group.name.as_str()), name.as_str(), "the program's own name for it");
        let config = &config[group.name.as_str()];
        assert_eq!(Some(group.desc.as_str()), config["desc"].as_str());
        let ranks = config["ranks"].as_str().expect("ranks");
        assert_eq!(group.size as usize, ranks.split(',').count(), "{ranks}");
        assert!(group.key != 0 && group.since_wall_ns <= found.look_wall_ns, "{found:?}");
    }
    assert_eq!(found.asked_wall_ns, 0, "no look was under way");
}

#[test]
fn the_tape_matches_the_flight_recorder() {
    let Some(torch) = torch("collectives equal PyTorch's flight recorder") else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = job(&torch, "follow", 2, folder.path());
    let ranks = ran(command.env("TORCH_FR_BUFFER_SIZE", "2000"), folder.path());
    let found: Vec<Collectives> = ranks.iter().map(|(_, tape)| collectives(tape)).collect();
    for ((expected, _), found) in ranks.iter().zip(&found) {
        assert_equal(found, expected);
    }
    // World, a group of both, and one that rank 1 has alone.
    let keys = |of: &Collectives| of.groups.iter().map(|group| group.key).collect::<Vec<_>>();
    let (first, second) = (keys(&found[0]), keys(&found[1]));
    assert_eq!((first.len(), second.len()), (2, 3));
    assert_eq!(first, second[..2], "the same on all ranks");
}

#[test]
fn a_rank_that_keeps_the_gil_is_polled() {
    let Some(torch) = torch("collectives are looked at without the GIL") else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ranks = ran(&mut job(&torch, "gil", 1, folder.path()), folder.path());
    let [(expected, tape)] = ranks.as_slice() else { panic!("one rank: {ranks:?}") };
    let found = collectives(tape);
    assert_equal(&found, expected);
    let [begun, ended] = ["begun", "ended"].map(|name| expected[name].as_i64().expect("a time"));
    assert!((begun..ended).contains(&found.look_wall_ns), "{begun} {ended} {found:?}");
}

#[test]
fn a_rank_that_left_a_collective_out_differs_from_waiting_ranks() {
    let Some(torch) = torch("a desynchronised rank is on the tapes") else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut process = Process::start(&mut job(&torch, "skip", 3, folder.path()));
    let mut said: Vec<Value> = Vec::new();
    while said.len() < 3 {
        let line = process.line_with("expected ", PATIENCE);
        let json = line.split_once("expected ").expect("it has just been found").1;
        said.push(serde_json::from_str(json).expect("a JSON object"));
    }
    let deadline = Instant::now() + PATIENCE;
    let tapes = tapes::in_folder(folder.path());
    let found: Vec<Collectives> = loop {
        let found: Vec<Collectives> = tapes.iter().map(|tape| collectives(tape)).collect();
        if found.len() == 3 && found.iter().all(|each| !each.groups.is_empty()) {
            break found;
        }
        assert!(Instant::now() < deadline, "no look: {found:?}");
        std::thread::sleep(Duration::from_millis(200));
    };
    let numbers: Vec<_> =
        found.iter().map(|each| (each.groups[0].enqueued, each.groups[0].completed)).collect();
    assert_eq!(numbers, [(Some(4), Some(3)), (Some(3), Some(3)), (Some(4), Some(3))]);
    // And so it stays when they are killed.
    drop(process);
    for (tape, before) in tapes.iter().zip(&found) {
        let after = collectives(tape);
        assert_eq!(after.groups[0].enqueued, before.groups[0].enqueued);
    }
}

#[test]
fn missing_progress_is_explained_on_the_tape() {
    let Some(torch) = torch("unknown collectives have a reason") else { return };
    for (variable, value, source) in [
        ("TORCH_FR_BUFFER_SIZE", "0", CollectiveSource::Off),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "0", CollectiveSource::Off),
        ("MEMTAPE_COLLECTIVES", "0", CollectiveSource::NotWanted),
        ("MEMTAPE_COLLECTIVES", "1", CollectiveSource::Soon),
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = job(&torch, "brief", 1, folder.path());
        let ranks = ran(command.env(variable, value), folder.path());
        let found = collectives(&ranks[0].1);
        assert_eq!((found.source, found.groups.len()), (source, 0), "{variable}={value}");
        assert!(found.look_wall_ns == 0 && found.source_since_ns > 0, "{found:?}");
    }
    let run = Recorded::way(&torch, "pinned", &[]);
    assert_eq!(run.now().collectives.source, CollectiveSource::NoCommunicator);
}

#[test]
fn a_capture_names_the_rank_that_left_a_collective_out() {
    let Some(torch) = torch("a capture names a desynchronised rank") else { return };
    let cluster = Cluster::start(&["node-a"]);
    let folder = cluster.tapes("node-a");
    let mut command = job(&torch, "skip", 3, &folder);
    let mut process = Process::start(command.env("MEMTAPE_JOB", "skips"));
    for _ in 0..3 {
        process.line_with("expected ", PATIENCE);
    }
    // From the first look that finds them waiting it takes the margin of the comparison.
    let tapes = tapes::in_folder(&folder);
    wait_for("the ranks have waited", PATIENCE, || {
        let waited = |tape: &PathBuf| {
            let found = collectives(tape);
            let group = found.groups.first()?;
            Some(found.look_wall_ns.abs_diff(group.since_wall_ns) > MARGIN_NS + 1_000_000_000)
        };
        (tapes.len() == 3 && tapes.iter().all(|tape| waited(tape) == Some(true))).then_some(())
    });
    let asked = cluster.ask(&["capture", "skips"]);
    let id = asked["id"].as_str().unwrap_or_else(|| panic!("an id: {asked}"));
    let shown = wait_for("the capture is closed", PATIENCE, || {
        let shown = cluster.ask(&["show", id]);
        (shown["state"] == "complete").then_some(shown)
    });
    let group = &shown["collectives"]["groups"][0];
    assert_eq!(group["verdict"], "desynchronised", "{shown:#}");
    assert_eq!((&group["waiting"], &group["furthest"]), (&json!([0, 2]), &json!(4)), "{shown:#}");
    assert_eq!(group["behind"][0]["rank"], 1);
    assert_eq!(group["behind"].as_array().map(Vec::len), Some(1), "and no other: {shown:#}");
    let text = String::from_utf8(cluster.memtape(&["show", id]).stdout).expect("text");
    let line = text.lines().find(|line| line.contains("2 of 3 ranks wait in collective 4"));
    let line = line.unwrap_or_else(|| panic!("the sentence: {text}"));
    assert!(line.contains("rank 1 has enqueued only 3"), "{line}");
    assert!(line.ends_with("it is desynchronised, not leaking"), "{line}");

    let file = tapes[1].to_string_lossy().into_owned();
    let tape = cluster.ask(&["tape", &file]);
    assert_eq!(tape["collectives"]["groups"][0]["enqueued"], 3, "{tape:#}");
    let text = String::from_utf8(cluster.memtape(&["tape", &file]).stdout).expect("text");
    assert!(text.contains("\nCollectives at ") && text.contains("default_pg"), "{text}");
}

/// What becomes of a process whose flight recorder answers as it should, nonsense, with an
/// exception, or never: it goes on, and ends as it would have.
#[test]
fn a_flight_recorder_that_does_not_answer_is_on_the_tape_and_disturbs_no_other_thread() {
    let built = tempfile::tempdir().expect("a temporary folder");
    let standin = built.path().join("libtorch_cuda.so");
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-shared", "-fPIC", "-Wl,-soname,libtorch_cuda.so", "-o"]);
    compiler.args([&standin, &root().join("recorder/src/background/flight_recorder.cpp")]);
    assert!(compiler.status().expect("g++ runs").success());
    let runs = ["0", "1", "4", "5"].map(|kind| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new(root().join("tests/fake_cuda/run"));
        command.args(["-b", "1G", "--", "python3", "tests/torch/looks.py"]);
        command.arg(root().join("target/fake_cuda/nccl/libnccluser.so")).arg(&standin).arg(kind);
        command.env("LD_PRELOAD", library()).env("MEMTAPE_DIR", folder.path());
        (kind, Process::start(command.current_dir(root())), folder)
    });
    for (kind, process, folder) in runs {
        let (code, said) = process.end(PATIENCE);
        assert_eq!(code, Some(0), "{kind}: it ends as it would have: {said:#?}");
        let [tape] = tapes::in_folder(folder.path()).try_into().expect("one tape");
        let status = tapes::open(&tape).status();
        assert!(status.sealed && status.disabled.is_none(), "{kind}: {status:?}");
        let found = collectives(&tape);
        let numbers: Vec<_> = found.groups.iter().map(|of| (of.id, of.enqueued)).collect();
        let expected = match kind {
            "0" => (CollectiveSource::FlightRecorder, vec![(3, Some(812))], false),
            "1" => (CollectiveSource::NotUnderstood, vec![], false),
            "4" => (CollectiveSource::Threw, vec![], false),
            _ => (CollectiveSource::FlightRecorder, vec![], true),
        };
        assert_eq!((found.source, numbers, found.asked_wall_ns != 0), expected, "{kind}: {said:?}");
        let asked = said.iter().find_map(|line| line.strip_prefix("asked "));
        assert!(asked.is_some_and(|count| count == "1" || kind == "0"), "{kind}: {said:?}");
    }
}
