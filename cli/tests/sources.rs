//! One reader for everything: tapes, snapshots of captures as files and by id, pickles, and folders
//! of them, in `memtape analyze`, `diff`, `export`, `show` and `tape`.
//!
//! The ranks are those of the demo, which write real tapes without PyTorch: rank 2 of four leaks. A
//! small server stands for the coordinator; it answers two requests of the HTTP API.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use memtape_core::limits::{FILES_ANALYZED_MAX, SNAPSHOT_BYTES_MAX, TRACE_EVENTS_MAX};
use memtape_core::snapshot::RankSnapshot;
use memtape_core::tape::Words;
use memtape_core::tape::event::Kind;
use memtape_core::tape::layout::{Layout, Sizes, descriptor, header};
use memtape_core::tape::read::Tape;
use memtape_core::tape::rewind::PointInTime;
use memtape_core::tape::write::{Lane, Totals};
use serde_json::{Value, json};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_memtape");

/// Steps that each rank trains, and the step from which rank 2 leaks.
const STEPS: u64 = 60;
const LEAK_FROM: u64 = 5;

/// Events and live blocks that a tape has room for.
const EVENTS: usize = 16_384;
const BLOCKS: usize = 1024;

/// The rank that leaks.
const LEAKING: u32 = 2;

/// The four ranks of a job on two nodes, each with a folder of its own for its tapes.
struct Job {
    folder: TempDir,
    /// By rank.
    tapes: Vec<PathBuf>,
}

impl Job {
    fn recorded() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let tapes = (0..4).map(|rank| record(folder.path(), rank)).collect();
        Self { folder, tapes }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The state of a rank at the end of a step.
    fn state(&self, rank: u32, step: u64) -> RankSnapshot {
        let memory = self.memory(rank);
        let tape = Tape::open(memory.as_slice()).expect("a tape");
        tape.snapshot(PointInTime::EndOf(step), None, TRACE_EVENTS_MAX).expect("covered")
    }

    /// The words of a tape.
    fn memory(&self, rank: u32) -> Vec<AtomicU64> {
        let bytes = std::fs::read(&self.tapes[rank as usize]).expect("the tape");
        let words = bytes.as_chunks::<8>().0.iter();
        words.map(|word| AtomicU64::new(u64::from_le_bytes(*word))).collect()
    }

    /// Frees all blocks after the last step, as a program does that ends, and has more events then.
    fn free_all(&self, rank: u32, more_events: usize) {
        let blocks = &self.state(rank, STEPS).devices[0].blocks;
        let last_ns = blocks.iter().map(|block| block.birth_ns).max().expect("blocks");
        let exit_ns = last_ns + 1_000_000_000;
        self.rewrite(rank, |words, layout| {
            let lane = Lane::new(words, layout.lanes[0], 0);
            let totals = Totals { allocated: 0, reserved: 0 };
            blocks.iter().for_each(|of| lane.free(exit_ns, of.address, of.size, totals));
            assert_eq!(lane.live_bytes(), 0);
            (0..more_events).for_each(|_| lane.mark(exit_ns, Kind::Mark, 0, 0));
        });
    }

    /// Removes the devices, as of a process that used none.
    fn without_devices(&self, rank: u32) {
        self.rewrite(rank, |Words(words), layout| {
            for lane in 0..layout.lanes.len() {
                let at = header::DESCRIPTORS + lane * descriptor::WORDS + descriptor::STATE;
                words[at].store(0, Ordering::Relaxed);
            }
        });
    }

    fn rewrite(&self, rank: u32, change: impl FnOnce(Words<'_>, Layout)) {
        let memory = self.memory(rank);
        let sizes = Sizes { events: EVENTS, table_entries: 2 * BLOCKS, ..Sizes::default() };
        change(Words(&memory), Layout::new(sizes));
        let bytes: Vec<u8> =
            memory.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        std::fs::write(&self.tapes[rank as usize], bytes).expect("written");
    }

    /// The same as captures store it.
    fn stored(&self, rank: u32, step: u64) -> Vec<u8> {
        memtape_proto::snapshot::encode(self.state(rank, step), SNAPSHOT_BYTES_MAX)
            .expect("encoded")
    }
}

fn record(folder: &Path, rank: u32) -> PathBuf {
    let node = folder.join(if rank < 2 { "node-a" } else { "node-b" });
    let dir = node.join(format!("of-{rank}"));
    std::fs::create_dir_all(&dir).expect("folders");
    let mut command = Command::new(PROGRAM);
    command.args(["demo-rank", "--step-time", "1ms", "--steps", &STEPS.to_string()]);
    if rank == LEAKING {
        command.args(["--fault", "leak", "--fault-from", &LEAK_FROM.to_string()]);
    }
    command.env("MEMTAPE_DIR", &dir).env("MEMTAPE_JOB", "four");
    command.env("MEMTAPE_EVENTS", EVENTS.to_string()).env("MEMTAPE_BLOCKS", BLOCKS.to_string());
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", "4").env("LOCAL_RANK", "0");
    let output = command.output().expect("memtape runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut entries = std::fs::read_dir(&dir).expect("the folder");
    entries.next().expect("a tape").expect("its entry").path()
}

/// What the program said, and its exit code.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Said {
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }
}

fn memtape(words: &[&str], paths: &[&Path], coordinator: Option<&str>) -> Said {
    let mut command = Command::new(PROGRAM);
    command.args(words).args(paths).env_remove("MEMTAPE_COORDINATOR");
    command.envs(coordinator.map(|url| ("MEMTAPE_COORDINATOR", url)));
    let output = command.output().expect("memtape runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Said { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn leaks(found: &Value) {
    let verdict = &found["verdict"];
    assert_eq!(verdict["class"], "leak", "{found:#}");
    assert_eq!(verdict["rank"], LEAKING, "{verdict:#}");
    assert_eq!(verdict["culprit"]["function"], "remember_loss", "{verdict:#}");
}

#[test]
fn tapes_are_judged_and_broken_ones_left_out() {
    let job = Job::recorded();
    let tapes: Vec<&Path> = job.tapes.iter().map(PathBuf::as_path).collect();
    let said = memtape(&["analyze", "--json"], &tapes, None);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    leaks(&said.json());
    let found = said.json();
    assert_eq!(found["files"][0]["format"], "tape");
    assert_eq!(found["files"][0]["rank_from"], "file");
    assert_eq!(found["ranks"][0]["trace"]["steps_from"], "recorded");
    assert_eq!(found["ranks"][0]["trace"]["steps_ended"], STEPS - 1);

    let whole = std::fs::read(tapes[0]).expect("the tape");
    let broken = job.path().join("node-a/cut.tape");
    std::fs::write(&broken, &whole[..whole.len() / 3]).expect("written");
    let body = job.stored(1, 9);
    let cut = job.path().join("node-a/rank7.rankbody.zst");
    std::fs::write(&cut, &body[..body.len() / 2]).expect("written");
    let said = memtape(&["analyze", "--json"], &[job.path()], None);
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    assert!(said.stderr.contains("2 of 6 files could not be read"), "{}", said.stderr);
    leaks(&said.json());
    let left_out: Vec<String> = said.json()["left_out"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|file| file["path"].as_str().expect("a path").to_string())
        .collect();
    assert_eq!(left_out, [&broken, &cut].map(|path| path.to_str().expect("UTF-8").to_string()));
}

#[test]
fn every_command_judges_the_same_state_of_a_tape() {
    let job = Job::recorded();
    job.free_all(LEAKING, 0);
    let tape = job.tapes[LEAKING as usize].as_path();
    let of_leak = |lines: &Value, function: &str| {
        let lines = lines.as_array().expect("lines");
        let is_it = |line: &&Value| line.pointer(function) == Some(&json!("remember_loss"));
        lines.iter().find(is_it).cloned().unwrap_or_else(|| panic!("no leak: {lines:#?}"))
    };
    let counted = memtape(&["lines", "--json"], &[tape], None).json();
    let held = of_leak(&counted["lines"], "/frames/0/function")["holders"][0].clone();
    assert_eq!((&held["blocks"], &held["step"]), (&json!(STEPS - LEAK_FROM), &json!(STEPS)));
    let shown = memtape(&["show", "--json"], &[tape], None).json();
    let line = of_leak(&shown["devices"][0]["lines"], "/frame/function");
    assert_eq!((&line["blocks"], &line["bytes"]), (&held["blocks"], &held["bytes"]));
    let judged = memtape(&["analyze", "--json"], &[tape], None).json();
    leaks(&judged);
    let verdict = &judged["verdict"];
    assert_eq!((&verdict["blocks"], &verdict["bytes"]), (&held["blocks"], &held["bytes"]));
    let read = memtape(&["tape", "--json"], &[tape], None).json();
    assert_eq!(read["moment"], format!("at the end of step {STEPS}"));
    let stacks = read["devices"][0]["stacks"].as_array().expect("stacks");
    let is_it = |stack: &&Value| stack["frames"][0].to_string().contains("remember_loss");
    let stack = stacks.iter().find(is_it).expect("the stack of the leak");
    assert_eq!((&stack["blocks"], &stack["bytes"]), (&held["blocks"], &held["bytes"]));
}

#[test]
fn a_tape_that_cannot_be_counted_is_left_out() {
    let job = Job::recorded();
    // What was written after the last step fills the ring.
    job.free_all(LEAKING, EVENTS);
    let tapes: Vec<&Path> = job.tapes.iter().map(PathBuf::as_path).collect();
    let why = format!("cannot rewind {}: step {STEPS} is no longer", tapes[2].display());
    std::fs::write(job.path().join("rank0.pickle"), "no tape").expect("written");
    let said = memtape(&["lines", "--json"], &[job.path()], None);
    assert_eq!((said.code, &said.json()["ranks"]), (Some(1), &json!(3)), "{}", said.stderr);
    assert!(said.stderr.starts_with(&format!("memtape: left out: {why}")), "{}", said.stderr);
    assert!(said.stderr.ends_with("memtape: 1 of 4 tapes could not be counted\n"), "{said:?}");
    let said = memtape(&["lines"], &[tapes[2]], None);
    assert!(said.stderr.starts_with(&format!("memtape: {why}")), "{}", said.stderr);

    job.without_devices(1);
    let said = memtape(&["lines"], &[tapes[1]], None);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stdout.starts_with("the tapes show no memory of a GPU"), "{}", said.stdout);
    let said = memtape(&["lines", "--json"], &tapes[..2], None);
    assert_eq!((said.code, &said.json()["ranks"]), (Some(0), &json!(1)), "{}", said.stderr);
}

#[test]
fn the_programs_of_coordinator_and_command_are_compared() {
    let check = |status: Status, index: Value, outcome: &str, found: &str, advice: &str| {
        let url = serve(move |path| match path {
            ["", "api", "v1"] => (status, index.to_string().into_bytes()),
            ["openapi.json"] => (OK, json!({ "info": { "version": "1" } }).to_string().into()),
            _ => (NOT_FOUND, json!({ "error": "not here" }).to_string().into()),
        });
        let report = memtape(&["doctor", "--json", "--python", "false"], &[], Some(&url)).json();
        let checks = report["checks"].as_array().expect("checks");
        let named = |name: &str| checks.iter().find(|check| check["name"] == name);
        let check = named("coordinator").expect("the check");
        assert_eq!(check["found"], format!("{url} {found}"), "{report:#}");
        assert_eq!((&check["outcome"], &check["advice"]), (&json!(outcome), &json!(advice)));
        // The date of the answer is in 1994.
        let ahead = named("clock").and_then(|check| check["found"].as_str());
        assert!(ahead.is_some_and(|it| it.ends_with("s ahead of the coordinator's")), "{report:#}");
    };
    let of = |version: &str| json!({ "version": version });
    let own = env!("CARGO_PKG_VERSION");
    check(OK, of(own), "ok", &format!("answers, version {own}"), "");
    let advice = format!("this program has version {own}: use one");
    check(OK, of("0.0.1"), "warn", "answers, version 0.0.1", &advice);
    check(OK, json!({ "routes": [] }), "ok", "answers, without its version", "");
    let found = "refuses this program: no credentials were sent";
    let refusal = json!({ "error": "no credentials were sent" });
    let advice = "its version and its nodes are not checked";
    check("401 Unauthorized", refusal, "warn", found, advice);
}

#[test]
fn an_export_is_judged_as_its_tape_is() {
    let job = Job::recorded();
    let tape = job.tapes[LEAKING as usize].as_path();
    let of_tape = memtape(&["analyze", "--json"], &[tape], None).json();
    leaks(&of_tape);
    let pickle = job.path().join("exported.pickle");
    let export = |words: &[&str], from: &Path, to: &Path| {
        let output = ["-o", to.to_str().expect("UTF-8")];
        let said = memtape(&[&["export"], words, &output].concat(), &[from], None);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
    };
    export(&[], tape, &pickle);
    let of_pickle = memtape(&["analyze", "--json"], &[&pickle], None).json();
    assert_eq!(of_pickle["verdict"], of_tape["verdict"]);
    let against = of_pickle["verdict"]["against"].to_string();
    assert!(!against.contains("guessed"), "{against}");
    assert!(of_pickle["verdict"]["confidence"].as_f64() > Some(0.8), "{of_pickle:#}");

    // The same state in JSON, from the tape and from the pickle.
    let (first, second) = (job.path().join("a.json"), job.path().join("b.json"));
    export(&["--format", "json"], tape, &first);
    export(&["--format", "json"], &pickle, &second);
    let read = |path: &Path| -> Value {
        serde_json::from_slice(&std::fs::read(path).expect("written")).expect("JSON")
    };
    let (first, second) = (read(&first), read(&second));
    assert_eq!(second["step"], first["step"]);
    let count = |value: &Value, of: &str| value["devices"][0][of].as_array().map(Vec::len);
    assert_eq!(count(&second, "blocks"), count(&first, "blocks"));
    assert_eq!(second["devices"][0]["allocated"], first["devices"][0]["allocated"]);

    let said = memtape(&["export", "--step", "9"], &[&pickle], None);
    assert_eq!(said.code, Some(64), "{said:?}");
    assert!(said.stderr.starts_with("memtape: --step and --oom need a tape"), "{}", said.stderr);
}

#[test]
fn downloaded_snapshots_of_captures_are_read() {
    let job = Job::recorded();
    let downloads = job.path().join("downloads");
    std::fs::create_dir(&downloads).expect("a folder");
    for rank in 0..4 {
        let file = downloads.join(format!("rank{rank}.rankbody.zst"));
        std::fs::write(file, job.stored(rank, STEPS)).expect("written");
    }
    let found = memtape(&["analyze", "--json"], &[&downloads], None).json();
    leaks(&found);
    assert_eq!(found["files"][2]["format"], "snapshot");

    // The content tells, not the name.
    let odd = job.path().join("odd.bin");
    std::fs::copy(downloads.join("rank2.rankbody.zst"), &odd).expect("copied");
    let said = memtape(&["show"], &[&odd], None);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stdout.starts_with("rank 2 of four at the end of step 60 ("), "{}", said.stdout);
    assert!(said.stdout.contains(" remember_loss"), "{}", said.stdout);
    let shown = memtape(&["show", "--json"], &[&odd], None).json();
    let lines = shown["devices"][0]["lines"].as_array().expect("lines");
    let kept = lines.iter().find(|line| line["frame"]["function"] == "remember_loss");
    let kept = kept.expect("the line that leaks");
    assert_eq!(kept["blocks"], STEPS - LEAK_FROM, "{kept}");
    assert_eq!(kept["birth_steps"], kept["blocks"], "{kept}");

    let said = memtape(&["show", "--rank", "9"], &[&downloads], None);
    assert!(said.stderr.ends_with("has no rank 9: it has ranks 0-3\n"), "{}", said.stderr);
    let said = memtape(&["show"], &[&downloads], None);
    assert!(said.stderr.contains("choose a rank with --rank: it has ranks 0-3"), "{said:?}");
    let said = memtape(&["show", "--rank", "2"], &[&downloads], None);
    assert!(said.stdout.starts_with("rank 2 of four "), "{said:?}");
    // A damaged file before it does not hide the rank that is asked for.
    let cut = downloads.join("rank1.rankbody.zst");
    let whole = std::fs::read(&cut).expect("readable");
    std::fs::write(&cut, &whole[..whole.len() / 2]).expect("written");
    let export = ["export", "--format", "json", "--rank", "2", "-o", "-"];
    for words in [["show", "--rank", "2"].as_slice(), &export] {
        let said = memtape(words, &[&downloads], None);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        let named = format!("memtape: left out: {}: ", cut.display());
        assert!(said.stderr.starts_with(&named), "{}", said.stderr);
        assert_eq!(said.stderr.lines().count(), 1, "{}", said.stderr);
    }
    let said = memtape(&["show", "--rank", "1"], &[&downloads], None);
    assert_eq!(said.code, Some(1));
    let expected = "has no rank 1: it has ranks 0, 2-3; a file cannot be read: ";
    assert!(said.stderr.contains(expected), "{}", said.stderr);
    assert!(said.stderr.contains("rank1.rankbody.zst"), "{}", said.stderr);

    let said = memtape(&["export", "--format", "json", "-o", "-"], &[&odd], None);
    assert_eq!((said.code, &said.json()["rank"]), (Some(0), &json!(LEAKING)), "{}", said.stderr);
}

#[test]
fn any_two_states_are_compared() {
    let job = Job::recorded();
    let (healthy, leaking) = (job.tapes[1].as_path(), job.tapes[LEAKING as usize].as_path());
    let pickle = job.path().join("rank2.pickle");
    let output = ["export", "-o", pickle.to_str().expect("UTF-8")];
    assert_eq!(memtape(&output, &[leaking], None).code, Some(0));
    for other in [leaking, &pickle] {
        let found = memtape(&["diff", "--json"], &[healthy, other], None).json();
        let top = &found["lines"][0];
        assert_eq!(top["frames"][0]["function"], "remember_loss", "{top}");
        assert_eq!(top["state"], "new", "{top}");
        let rates = &found["step_min_bytes_per_step"];
        let (flat, growing) = (rates[0].as_i64(), rates[1].as_i64());
        assert!(flat.is_some() && growing > flat.map(|rate| rate + (1 << 20)), "{rates}");
    }
    let text = memtape(&["diff"], &[healthy, leaking], None).stdout;
    assert!(text.contains("its per-step minimum moves by "), "{text}");
    assert!(text.contains("GROWTH/STEP"), "{text}");

    let (early, late) = (job.path().join("early"), job.path().join("late"));
    for (folder, step, ranks) in [(&early, 20, 0..4), (&late, STEPS, 1..4)] {
        std::fs::create_dir(folder).expect("a folder");
        for rank in ranks {
            let file = folder.join(format!("{rank}.rankbody.zst"));
            std::fs::write(file, job.stored(rank, step)).expect("written");
        }
    }
    let found = memtape(&["diff", "--json"], &[&early, &late], None).json();
    let ranks = found["ranks"].as_array().expect("several");
    let numbers: Vec<&Value> = ranks.iter().map(|rank| &rank["rank"]).collect();
    assert_eq!(numbers, [&json!(1), &json!(2), &json!(3)]);
    assert_eq!(ranks[1]["lines"][0]["frames"][0]["function"], "remember_loss", "{found:#}");
    let text = memtape(&["diff"], &[&early, &late], None).stdout;
    assert!(text.contains("== rank 2 ==\n"), "{text}");
    let one = memtape(&["diff", "--json", "--rank", "2"], &[&early, &late], None).json();
    assert_eq!(one["lines"][0]["frames"][0]["function"], "remember_loss", "{one:#}");
    let none = memtape(&["diff", "--rank", "0"], &[&early, &late], None);
    assert!(none.stderr.ends_with("has no rank 0: it has ranks 1-3\n"), "{}", none.stderr);
}

#[test]
fn tapes_of_all_nodes_are_listed_and_small_growth_is_seen() {
    let job = Job::recorded();
    let listed = memtape(&["tape", "--json"], &[job.path()], None).json();
    assert_eq!(listed["tapes"].as_array().map(Vec::len), Some(4), "{listed:#}");
    let shown = memtape(&["tape"], &[&job.tapes[LEAKING as usize]], None).stdout;
    let titles = shown.lines().find(|line| line.contains("STEP MIN")).expect("the table");
    assert!(titles.contains("Δ MIN"), "{titles}");
    let found = memtape(&["tape", "--json"], &[&job.tapes[LEAKING as usize]], None).json();
    let steps = found["devices"][0]["steps"].as_array().expect("steps");
    for pair in steps.windows(2) {
        let minimum = |step: &Value| step["step_min_bytes"].as_i64().expect("a number");
        let change = pair[1]["step_min_change_bytes"].as_i64();
        assert_eq!(change, Some(minimum(&pair[1]) - minimum(&pair[0])));
    }
    assert!(steps[0]["step_min_change_bytes"].is_i64(), "earlier steps are on the tape");
}

/// Status line of an answer.
type Status = &'static str;

const OK: Status = "200 OK";
const NOT_FOUND: Status = "404 Not Found";

/// A server that answers for the captures `cap-early` and `cap-late`, which have all four ranks. It
/// lists the ranks of `cap-large`, which are more than are compared at once.
fn coordinator(job: &Job) -> String {
    let captures: Vec<(String, Vec<Vec<u8>>)> = [("cap-early", 20), ("cap-late", STEPS)]
        .map(|(id, step)| (id.to_string(), (0..4).map(|rank| job.stored(rank, step)).collect()))
        .into();
    serve(move |path| answer(path, &captures))
}

/// A server with these answers to the segments of a path below `/api/v1/`; its URL.
fn serve(answer: impl Fn(&[&str]) -> (Status, Vec<u8>) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(stream.try_clone().expect("a handle")).lines();
            let first = lines.next().and_then(Result::ok).unwrap_or_default();
            // The rest of the request's head has to be read before the connection may end.
            lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
            let path = first.split(' ').nth(1).unwrap_or_default();
            let path: Vec<&str> = path.trim_start_matches("/api/v1/").split('/').collect();
            let (status, body) = answer(&path);
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\
                 date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        }
    });
    url
}

fn answer(path: &[&str], captures: &[(String, Vec<Vec<u8>>)]) -> (Status, Vec<u8>) {
    let found = |id: &str| captures.iter().find(|(known, _)| known == id);
    match path {
        ["incidents", "inc-1"] => {
            let incident = json!({ "id": "inc-1", "capture_id": "cap-late", "rank": LEAKING });
            (OK, incident.to_string().into_bytes())
        }
        ["captures", "cap-large"] => {
            let part = |rank| json!({ "rank": rank, "hash": "0".repeat(64), "outcome": "aligned" });
            let parts: Vec<Value> = (0..=FILES_ANALYZED_MAX).map(part).collect();
            (OK, json!({ "id": "cap-large", "parts": parts }).to_string().into_bytes())
        }
        ["captures", id] if found(id).is_some() => {
            let part =
                |rank: u32| json!({ "rank": rank, "hash": "0".repeat(64), "outcome": "aligned" });
            let parts: Vec<Value> = (0..4).map(part).collect();
            (OK, json!({ "id": id, "parts": parts }).to_string().into_bytes())
        }
        ["captures", id, "ranks", rank] => {
            let rank: Option<usize> = rank.parse().ok();
            let body = found(id).and_then(|(_, ranks)| ranks.get(rank?));
            (OK, body.cloned().unwrap_or_default())
        }
        _ => (NOT_FOUND, json!({ "error": "there is no such thing" }).to_string().into()),
    }
}

#[test]
fn captures_are_read_by_their_ids() {
    let job = Job::recorded();
    let url = coordinator(&job);
    let ask = |words: &[&str]| memtape(words, &[], Some(&url));
    let found = ask(&["analyze", "--json", "cap-late"]);
    assert_eq!(found.code, Some(0), "{}", found.stderr);
    leaks(&found.json());
    assert_eq!(found.json()["files"][3]["path"], "cap-late/rank3");
    assert_eq!(found.json()["files"][3]["format"], "capture");

    let diff = ask(&["diff", "--json", "cap-early", "cap-late"]).json();
    assert_eq!(diff["ranks"].as_array().map(Vec::len), Some(4), "{diff:#}");
    let one = ask(&["diff", "--json", "--rank", "2", "cap-early", "cap-late"]).json();
    assert_eq!(one["lines"][0]["frames"][0]["function"], "remember_loss", "{one:#}");

    let shown = ask(&["show", "cap-late", "--rank", "2"]);
    assert!(shown.stdout.contains(" remember_loss"), "{shown:?}");
    let unknown = ask(&["show", "cap-late", "--rank", "9"]);
    assert_eq!(unknown.code, Some(1));
    assert_eq!(unknown.stderr, "memtape: cap-late has no rank 9: it has ranks 0-3\n");
    let unknown = ask(&["analyze", "cap-none"]);
    assert_eq!(unknown.stderr, "memtape: there is no such thing\n");

    // One rank of a capture of any size is read; all ranks are not compared beyond the limit.
    let many = ask(&["analyze", "cap-large"]);
    assert_eq!(many.code, Some(1));
    let expected = "at most 4096 are compared at once (FILES_ANALYZED_MAX): give fewer files, or \
                    look at one rank of a capture with `memtape show CAPTURE --rank N`\n";
    assert!(many.stderr.ends_with(expected), "{}", many.stderr);
    let unchosen = ask(&["export", "cap-large"]);
    let expected = "memtape: cap-large: choose a rank with --rank: it has ranks 0-4096\n";
    assert_eq!(unchosen.stderr, expected);

    let file = job.path().join("of-incident.pickle");
    let file = file.to_str().expect("UTF-8");
    let exported = ask(&["export", "inc-1", "--json", "-o", file]);
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    assert_eq!(exported.json()["rank"], LEAKING);
}
