//! The exported pickle opens in PyTorch's viewer, and shows there what PyTorch's own shows.
//!
//! The job in tests/viz/job.py holds still at a moment that is known from three sides: Memtape's
//! export, PyTorch's snapshot with its own history, and PyTorch's counters. Two checks:
//!
//! - always: the pickle keeps the rules of the viewer's unpickler (tests/viz/rules.py), and its
//!   segments, blocks and events are those of the counters;
//! - where there are Node and MemoryViz.js (`cargo xtask test` gets it from PyTorch's source with
//!   tests/viz/fetch.py): the viewer's own code opens both pickles and replays both traces.
//!
//! A check that cannot run is reported as left out. Drawing is not checked.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memtape_tests::processes::{Process, wait_for};
use memtape_tests::{left_out, memtape, root, tapes, torch};
use serde_json::Value;

/// A job that was halted, in the files that it left.
struct Halted {
    _scratch: tempfile::TempDir,
    ours: PathBuf,
    theirs: PathBuf,
    /// PyTorch's counters.
    known: Value,
}

impl Halted {
    /// Runs the job until it halts, with the recorder's environment, and exports it.
    fn of_job(scenario: &str, environment: &[(&str, &str)]) -> Option<Self> {
        let torch = torch(scenario)?;
        let scratch = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| scratch.path().join(name);
        let mut command = torch.recorded(1, "4G", &at("tapes"));
        command.arg("tests/viz/job.py").arg(scratch.path()).envs(environment.iter().copied());
        let job = Process::start(&mut command);
        wait_for("the job holds still", Duration::from_secs(90), || {
            at("ready").exists().then_some(())
        });
        let tape = tapes::in_folder(&at("tapes")).pop().expect("one tape");
        let mut export = Command::new(memtape());
        export.args(["export", "--format", "pickle"]).arg(&tape);
        let export = export.arg("-o").arg(at("ours.pickle")).output().expect("memtape runs");
        assert!(export.status.success(), "{}", String::from_utf8_lossy(&export.stderr));
        drop(job);
        let known = fs::read_to_string(at("known.json")).expect("the job wrote it");
        Some(Self {
            ours: at("ours.pickle"),
            theirs: at("theirs.pickle"),
            known: serde_json::from_str(&known).expect("JSON"),
            _scratch: scratch,
        })
    }
}

/// Past the harness, which shows the output of failed tests only.
fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

#[test]
fn with_the_allocators_trace_the_viewer_shows_the_same() {
    let scenario = "with the allocator's trace the viewer shows the same";
    let Some(moment) = Halted::of_job(scenario, &[("MEMTAPE_DETAIL", "1")]) else { return };
    keeps_the_rules(&moment);
    let Some(viewer) = viewer() else { return };
    let (mut ours, mut theirs) = (viewer.open(&moment.ours), viewer.open(&moment.theirs));
    assert_eq!(lines_of_frames(&ours), lines_of_frames(&theirs));
    for opened in [&mut ours, &mut theirs] {
        opened.as_object_mut().expect("an object").remove("frames");
    }
    assert_eq!(ours, theirs, "every number of every view");
    assert_eq!(ours["max_at_time"], moment.known["requested_peak"]);
}

#[test]
fn the_pickle_opens_in_the_viewer() {
    let Some(moment) = Halted::of_job("the pickle opens in the viewer", &[]) else { return };
    keeps_the_rules(&moment);
    let size = |path: &Path| fs::metadata(path).expect("the file").len();
    let (our_bytes, their_bytes) = (size(&moment.ours), size(&moment.theirs));
    say(&format!("pickle of one moment: ours {our_bytes} bytes, PyTorch's {their_bytes}"));
    assert!(our_bytes < their_bytes, "frames are written once");

    let Some(viewer) = viewer() else { return };
    let (ours, theirs) = (viewer.open(&moment.ours), viewer.open(&moment.theirs));
    for name in ["segments", "blocks", "active_blocks", "allocs", "elements", "segment_max_size"] {
        assert_eq!(ours[name], theirs[name], "{name}");
    }
    // Without the allocator's trace, sizes are those after rounding: PyTorch's other counters.
    for (found, peak, now) in
        [(&ours, "allocated_peak", "allocated"), (&theirs, "requested_peak", "requested")]
    {
        assert_eq!(found["max_at_time"], moment.known[peak], "the timeline's highest point");
        assert_eq!(found["max_size"], moment.known[peak]);
        let states = found["states"].as_array().expect("states");
        let last = states.last().expect("the last event");
        assert_eq!(last[1], moment.known["reserved"]);
        assert_eq!(last[2], moment.known[now]);
        assert!(states.len() > 60, "the whole trace can be replayed");
    }
    assert_eq!(lines_of_frames(&ours), lines_of_frames(&theirs));
}

/// The pickle by itself: the rules of the viewer's unpickler, and the counters' numbers.
fn keeps_the_rules(moment: &Halted) {
    let read = |pickle: &Path| -> Value {
        let mut python = Command::new("python3");
        let output = python.arg(root().join("tests/viz/rules.py")).arg(pickle).output();
        let output = output.expect("python3");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    // PyTorch's own keeps them too: otherwise the rules would be wrong.
    read(&moment.theirs);
    for (name, found) in read(&moment.ours).as_object().expect("an object") {
        assert_eq!(found, &moment.known[name], "{name}");
    }
    say("the pickle keeps the rules of the viewer's unpickler");
}

#[test]
fn the_rules_of_the_viewer() {
    let test = Command::new("python3").arg(root().join("tests/viz/rules_test.py")).output();
    let test = test.expect("python3");
    assert!(test.status.success(), "{}", String::from_utf8_lossy(&test.stderr));
}

/// What a live block's stack shows, without what differs: we name methods with their class.
fn lines_of_frames(opened: &Value) -> Vec<Vec<String>> {
    let short = |line: &str| match line.rsplit_once(':') {
        Some((place, name)) => format!("{place}:{}", name.rsplit('.').next().unwrap_or(name)),
        None => line.to_string(),
    };
    let stacks = opened["frames"].as_array().expect("frames");
    let stacks = stacks.iter().map(|stack| stack.as_str().expect("text").lines());
    stacks.map(|lines| lines.map(short).collect()).collect()
}

// --- the viewer ----------------------------------------------------------------------------------

/// PyTorch's MemoryViz.js under Node.
struct Viewer {
    folder: PathBuf,
}

/// The viewer; `None`, reported as left out, where there is none.
fn viewer() -> Option<Viewer> {
    let folder = std::env::var_os("MEMTAPE_TEST_VIEWER")
        .map_or_else(|| root().join("target/viz"), PathBuf::from);
    let node = Command::new("node").arg("--version").output();
    let missing = match node.is_ok_and(|output| output.status.success()) {
        false => "Node",
        true if !folder.join("MemoryViz.js").is_file() => "MemoryViz.js (tests/viz/fetch.py)",
        true => {
            let version = fs::read_to_string(folder.join("VERSION")).unwrap_or_default();
            say(&format!("the pickle is opened by MemoryViz.js itself: {}", version.trim()));
            return Some(Viewer { folder });
        }
    };
    left_out("opening the pickle in PyTorch's viewer", missing);
    None
}

impl Viewer {
    /// What the viewer makes of a pickle.
    fn open(&self, pickle: &Path) -> Value {
        let mut node = Command::new("node");
        node.arg(root().join("tests/viz/open.mjs")).arg(&self.folder).arg(pickle);
        let output = node.output().expect("node runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}
