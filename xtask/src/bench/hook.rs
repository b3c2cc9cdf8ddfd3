//! `cargo xtask bench hook`: what the optimizer hook costs a step, with and without an instruction
//! that waits, in one process on the fake CUDA runtime.
//!
//! tests/bench/hook.py measures (its head says how). Here the medians over its batches become
//! figures, and the differences beside no instruction.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::json;

use super::{folder, recorder, tapes};
use crate::process::{Steps, built, read_json, root};
use crate::python;
use crate::report::{Found, aligned, median, rounded};

/// Modes: the name in the script and in the figures, and the one in the table.
const MODES: [(&str, &str); 3] = [
    ("none", "no instruction"),
    ("answered", "an instruction that was answered"),
    ("waiting", "an instruction that waits for its step"),
];

pub(super) fn bench(steps: &mut Steps) -> Result<Found> {
    python::fetch_torch(steps)?;
    steps.take("library", recorder::library())?;
    let (out, tapes) = (folder()?.join("hook.json"), tapes()?);
    let mut script = python::on_fake_cuda("1G", "tests/bench/hook.py");
    script.env("LD_PRELOAD", built("dist").join("libmemtape.so"));
    script.env("MEMTAPE_DIR", tapes.path()).env("MEMTAPE_ACTIONS", "gc");
    script.env("PYTHONPATH", root().join("python")).arg(&out);
    steps.take("measure", script)?;
    let batches = read_json::<BTreeMap<String, Vec<f64>>>(&out)?;
    let ns = |name: &str| batches.get(name).cloned().map(median).context("a mode is missing");
    let without = ns("none")?;
    let cells = ["median", "beside none"].map(str::to_string).to_vec();
    let mut rows = vec![("ns of the hook per step".to_string(), cells)];
    let mut figures = serde_json::Map::new();
    for (name, title) in MODES {
        let of = ns(name)?;
        let beside = format!("{:+.1}", of - without);
        rows.push((title.to_string(), vec![format!("{of:.1}"), beside]));
        figures.insert(format!("{name}_ns"), json!(rounded(of, 1)));
    }
    Ok(Found { is_good: true, text: aligned(rows), object: json!({ "figures": figures }) })
}
