//! `cargo xtask bench capture`: how long a capture takes, and one rank's snapshot in it.
//!
//! tests/load measures both: captures of 64 ranks with real agents and tapes, from the request to
//! the closed manifest, and the time to build the snapshot of a rank with 100,000 live blocks and
//! 100,000 events from its tape. That tape is of a process with PyTorch on the fake CUDA runtime
//! (tests/bench/snapshot.py), whose own `_snapshot()` of the same state is timed beside it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{folder, generator, only_tape, tapes};
use crate::process::{Steps, released, say};
use crate::python;
use crate::report::{Found, median};

/// Ranks of the captures.
const RANKS: &str = "64";

pub(super) fn bench(steps: &mut Steps) -> Result<Found> {
    steps.build(&["memtape", "memtape-load", "memtape-recorder"])?;
    say(&format!("captures of {RANKS} ranks …\n"));
    let found = Found::of_program(&mut generator(&["capture", "--ranks", RANKS]))?;
    let mut figures = found.object["figures"].clone();
    if python::is_torch_ready() {
        say("one rank's snapshot …\n");
        let tapes = tapes()?;
        let pytorch = script(tapes.path())?;
        let tape = only_tape(tapes.path())?;
        let read = ["snapshot", "--tape", &tape.to_string_lossy()];
        let snapshot = &Found::of_program(&mut generator(&read))?.object["figures"];
        let times = serde_json::from_value(pytorch["pytorch_ms"].clone())?;
        figures["snapshot_ms"] = snapshot["snapshot_ms"].clone();
        figures["snapshot_max_ms"] = snapshot["snapshot_max_ms"].clone();
        figures["snapshot_blocks"] = snapshot["blocks"].clone();
        figures["snapshot_events"] = snapshot["events"].clone();
        figures["pytorch_snapshot_ms"] = json!(median(times));
        figures["pytorch_blocks"] = pytorch["blocks"].clone();
        figures["pytorch_events"] = pytorch["events"].clone();
        figures["torch"] = pytorch["torch"].clone();
    } else {
        say("there is no PyTorch, and so no snapshot: `cargo xtask test` sets it up\n");
    }
    Ok(Found::figures(found.is_good, &figures))
}

/// Runs PyTorch with the recorder; what it says of its own snapshot. It ends by SIGKILL, so that
/// its tape keeps what was alive.
fn script(tapes: &Path) -> Result<Value> {
    let out = folder()?.join("snapshot.json");
    let _ = fs::remove_file(&out);
    let mut script = python::on_fake_cuda("8G", "tests/bench/snapshot.py");
    script.env("LD_PRELOAD", released("libmemtape.so")).env("MEMTAPE_DIR", tapes);
    script.arg("--out").arg(&out).stdout(std::process::Stdio::null());
    script.status().context("tests/fake_cuda/run")?;
    let text = fs::read_to_string(&out).context("tests/bench/snapshot.py wrote nothing")?;
    Ok(serde_json::from_str(&text)?)
}
