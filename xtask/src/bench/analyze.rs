//! `cargo xtask bench analyze`: `memtape analyze` on a large snapshot, beside CPython.
//!
//! tests/bench/big_snapshot.py writes the file, once for each number of events, and
//! tests/bench/analyze.py runs both on it in turn: the program as it is released, and
//! `pickle.load`, which is what every other tool begins with.

use std::ffi::OsStr;
use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::folder;
use crate::process::{Steps, command, read_json, released, say};
use crate::report::{Found, median, rounded};

/// Seconds for a file of 1 GB, and bytes for each of the file, to aim at.
const GOAL_SECONDS: f64 = 5.0;
const GOAL_BYTES_RATIO: f64 = 1.5;

pub(super) fn bench(steps: &mut Steps, events: u64, runs: u64) -> Result<Found> {
    steps.build(&["memtape"])?;
    let folder = folder()?;
    let file = folder.join(format!("snapshot-{events}.pickle"));
    if !file.exists() {
        say(&format!("a snapshot of {events} events …\n"));
        let unfinished = file.with_extension("unfinished");
        python("big_snapshot.py", &[unfinished.as_ref(), events.to_string().as_ref()])?;
        fs::rename(&unfinished, &file)?;
    }
    say("memtape analyze and pickle.load, in turn …\n");
    let (program, out) = (released("memtape"), folder.join("analyze.json"));
    let runs = runs.to_string();
    python("analyze.py", &[program.as_ref(), file.as_ref(), out.as_ref(), runs.as_ref()])?;
    let figures = figures(&read_json(&out)?, events).context("analyze.py measured too little")?;
    Ok(Found::figures(true, &figures))
}

fn python(script: &str, arguments: &[&OsStr]) -> Result<()> {
    let mut python = command("python3");
    python.arg(format!("tests/bench/{script}")).args(arguments);
    let status = python.status().context("python3")?;
    ensure!(status.success(), "tests/bench/{script}: {status}");
    Ok(())
}

fn figures(found: &Value, events: u64) -> Option<Value> {
    let of = |program: &str, field: &str| {
        let runs = found[program].as_array().filter(|runs| !runs.is_empty())?;
        Some(median(runs.iter().filter_map(|run| run[field].as_f64()).collect()))
    };
    let file_bytes = found["file_bytes"].as_f64()?;
    let (seconds, pickle_seconds) = (of("ours", "seconds")?, of("pickle", "seconds")?);
    let (cpu, pickle_cpu) = (of("ours", "cpu_seconds")?, of("pickle", "cpu_seconds")?);
    let (peak, pickle_peak) = (of("ours", "peak_bytes")?, of("pickle", "peak_bytes")?);
    let ratio = |part: f64, whole: f64| rounded(part / whole.max(1e-9), 2);
    let per_gb = seconds * 1e9 / file_bytes.max(1.0);
    Some(json!({
        "events": events,
        "file_bytes": found["file_bytes"],
        "seconds": rounded(seconds, 2),
        "seconds_per_gb": rounded(per_gb, 2),
        "cpu_seconds": rounded(cpu, 2),
        "peak_bytes": peak,
        "peak_per_file_byte": ratio(peak, file_bytes),
        "pickle_seconds": rounded(pickle_seconds, 2),
        "pickle_cpu_seconds": rounded(pickle_cpu, 2),
        "pickle_peak_bytes": pickle_peak,
        "pickle_peak_per_file_byte": ratio(pickle_peak, file_bytes),
        "pickle_times_slower": ratio(pickle_seconds, seconds),
        "pickle_times_cpu": ratio(pickle_cpu, cpu),
        "pickle_times_larger": ratio(pickle_peak, peak),
        "is_fast": per_gb <= GOAL_SECONDS,
        "is_small": peak / file_bytes.max(1.0) <= GOAL_BYTES_RATIO,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_become_ratios() {
        let run = |took: f64, peak: u64| {
            let peak_bytes = json!(peak);
            json!({ "seconds": took, "peak_bytes": peak_bytes, "cpu_seconds": took })
        };
        let found = json!({
            "file_bytes": 1_000,
            "ours": [run(2.0, 1_200), run(9.0, 1_300), run(1.0, 1_100)],
            "pickle": [run(6.0, 6_000), run(6.0, 6_000), run(6.0, 6_000)],
        });
        let figures = figures(&found, 7).expect("figures");
        assert_eq!(
            (&figures["seconds"], &figures["peak_per_file_byte"]),
            (&2.0.into(), &1.2.into())
        );
        assert_eq!(figures["pickle_times_slower"], 3.0);
        assert_eq!((&figures["is_fast"], &figures["is_small"]), (&false.into(), &true.into()));
        assert_eq!(super::figures(&json!({ "file_bytes": 1 }), 1), None);
    }
}
