//! `cargo xtask bench capture`: how long a capture takes, and one rank's snapshot in it.
//!
//! tests/load measures both: captures of 64 ranks with real agents and tapes, from the request to
//! the closed manifest, and the time to build the snapshot of a rank with 100,000 live blocks and
//! 100,000 events from its tape. That tape is of a process with PyTorch on the fake CUDA runtime
//! (tests/bench/snapshot.py), whose own `_snapshot()` of the same state is timed beside it.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::cluster::{self, generate};
use crate::report::{Outcome, Step, or_failure};
use crate::step::{Tapes, command, only_tape, released, root, say};
use crate::torch;

/// Ranks of the captures.
const RANKS: &str = "64";

/// Where the script writes what it found.
const OUT: &str = "target/bench/snapshot.json";

/// Measures, and says what it found.
pub(crate) fn bench() -> Outcome {
    let mut steps = Vec::new();
    let found = measure(&mut steps);
    let (figures, failure) = or_failure(found);
    let is_good = failure.is_empty() && figures["aligned_min"] == figures["ranks"];
    let text = text(&figures) + &failure;
    Outcome::measured(("bench capture", is_good), &figures, &steps, text)
}

fn measure(steps: &mut Vec<Step>) -> Result<Value, String> {
    cluster::build(steps, &["memtape", "memtape-load", "memtape-recorder"])?;
    say(&format!("captures of {RANKS} ranks …\n"));
    let mut figures = generate(&["capture", "--ranks", RANKS])?;
    let python = torch::python();
    if !torch::is_ready(&python) {
        say("there is no PyTorch, and so no snapshot: `cargo xtask test` sets it up\n");
        return Ok(figures);
    }
    say("one rank's snapshot …\n");
    let tapes = Tapes::new()?;
    let pytorch = script(&python, tapes.folder())?;
    let tape = only_tape(tapes.folder())?;
    let snapshot = generate(&["snapshot", "--tape", &tape.to_string_lossy()])?;
    let mut times: Vec<f64> = serde_json::from_value(pytorch["pytorch_ms"].clone())
        .map_err(|error| format!("{OUT}: {error}"))?;
    times.sort_by(f64::total_cmp);
    figures["snapshot_ms"] = snapshot["snapshot_ms"].clone();
    figures["snapshot_max_ms"] = snapshot["snapshot_max_ms"].clone();
    figures["snapshot_blocks"] = snapshot["blocks"].clone();
    figures["snapshot_events"] = snapshot["events"].clone();
    figures["pytorch_snapshot_ms"] = json!(times.get(times.len() / 2));
    figures["pytorch_blocks"] = pytorch["blocks"].clone();
    figures["pytorch_events"] = pytorch["events"].clone();
    figures["torch"] = pytorch["torch"].clone();
    Ok(figures)
}

/// Runs PyTorch with the recorder; what it says of its own snapshot. It ends by SIGKILL, so that
/// its tape keeps what was alive.
fn script(python: &Path, tapes: &Path) -> Result<Value, String> {
    let out = root().join(OUT);
    let folder = out.parent().unwrap_or(root());
    fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    let _ = fs::remove_file(&out);
    let mut script = command(root().join("tests/fake_cuda/run"));
    script.env("LD_PRELOAD", released("libmemtape.so")).env("MEMTAPE_DIR", tapes);
    script.args(["-b", "8G", "--"]).arg(python).arg("tests/bench/snapshot.py");
    script.arg("--out").arg(&out).stdout(std::process::Stdio::null());
    let _ = script.status().map_err(|error| format!("tests/fake_cuda/run: {error}"))?;
    let text = fs::read_to_string(&out).map_err(|error| format!("{OUT}: {error}"))?;
    serde_json::from_str(&text).map_err(|error| format!("{OUT}: {error}"))
}

fn text(figures: &Value) -> String {
    let number = |name: &str| figures[name].as_f64();
    let mut text = String::new();
    if let (Some(p50), Some(p99)) = (number("latency_p50_ms"), number("latency_p99_ms")) {
        text += &format!(
            "{} captures of {} ranks, from the request to the closed manifest: \
             p50 {p50:.0} ms, p99 {p99:.0} ms\n",
            figures["captures"], figures["ranks"]
        );
    }
    if let (Some(ours), Some(theirs)) = (number("snapshot_ms"), number("pytorch_snapshot_ms")) {
        text += &format!(
            "one rank's snapshot, {} blocks and {} events: {ours:.0} ms \
             (PyTorch {}: {theirs:.0} ms)\n",
            figures["snapshot_blocks"],
            figures["snapshot_events"],
            figures["torch"].as_str().unwrap_or("?"),
        );
    }
    text
}
