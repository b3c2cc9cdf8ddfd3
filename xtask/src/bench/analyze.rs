//! `cargo xtask bench analyze`: `memtape analyze` on a large snapshot, beside CPython.
//!
//! tests/bench/big_snapshot.py writes the file, once for each number of events, and
//! tests/bench/analyze.py runs both on it in turn: the program as it is released, and
//! `pickle.load`, which is what every other tool begins with. Times differ from machine to
//! machine; the ratio between the two in the same run says more.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::cluster;
use crate::report::{Outcome, Step, or_failure};
use crate::step::{command, released, root, say};

/// Events that make a file of about 1 GB.
const EVENTS: u64 = 8_100_000;

/// Times that each is run; the median counts.
const RUNS: u64 = 3;

/// Seconds for a file of 1 GB, and bytes for each of the file, to aim at.
const GOAL_SECONDS: f64 = 5.0;
const GOAL_BYTES_RATIO: f64 = 1.5;

/// Where the file and the figures lie.
const FOLDER: &str = "target/bench";

/// Measures, and says what it found.
pub(crate) fn bench(events: Option<u64>, runs: Option<u64>) -> Outcome {
    let mut steps = Vec::new();
    let runs = runs.unwrap_or(RUNS).max(1);
    let (figures, failure) = or_failure(measure(&mut steps, events.unwrap_or(EVENTS), runs));
    // Whether a goal is met is said, and depends on the machine; it is no failure.
    let is_good = failure.is_empty();
    let text = text(&figures) + &failure;
    Outcome::measured(("bench analyze", is_good), &figures, &steps, text)
}

fn measure(steps: &mut Vec<Step>, events: u64, runs: u64) -> Result<Value, String> {
    cluster::build(steps, &["memtape"])?;
    let folder = root().join(FOLDER);
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let file = folder.join(format!("snapshot-{events}.pickle"));
    if !file.exists() {
        say(&format!("a snapshot of {events} events …\n"));
        let unfinished = file.with_extension("unfinished");
        python("big_snapshot.py", &[&unfinished, &PathBuf::from(events.to_string())])?;
        fs::rename(&unfinished, &file).map_err(|error| error.to_string())?;
    }
    say("memtape analyze and pickle.load, in turn …\n");
    let out = folder.join("analyze.json");
    let program = released("memtape");
    python("analyze.py", &[&program, &file, &out, &PathBuf::from(runs.to_string())])?;
    let found = fs::read_to_string(&out).map_err(|error| error.to_string())?;
    let found: Value = serde_json::from_str(&found).map_err(|error| error.to_string())?;
    figures(&found, events).ok_or_else(|| format!("{FOLDER}/analyze.json holds no figures"))
}

fn python(script: &str, arguments: &[&PathBuf]) -> Result<(), String> {
    let mut python = command("python3");
    python.arg(format!("tests/bench/{script}")).args(arguments);
    match python.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("tests/bench/{script}: {status}")),
        Err(error) => Err(format!("python3: {error}")),
    }
}

/// The median of a field over the runs.
fn median(runs: &Value, field: &str) -> Option<f64> {
    let mut values: Vec<f64> =
        runs.as_array()?.iter().filter_map(|run| run[field].as_f64()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn figures(found: &Value, events: u64) -> Option<Value> {
    let file_bytes = found["file_bytes"].as_f64()?;
    let (ours, theirs) = (&found["ours"], &found["pickle"]);
    let (seconds, pickle_seconds) = (median(ours, "seconds")?, median(theirs, "seconds")?);
    let (cpu, pickle_cpu) = (median(ours, "cpu_seconds")?, median(theirs, "cpu_seconds")?);
    let (peak, pickle_peak) = (median(ours, "peak_bytes")?, median(theirs, "peak_bytes")?);
    let hundredths = |value: f64| (value * 100.0).round() / 100.0;
    let ratio = |part: f64, whole: f64| hundredths(part / whole.max(1e-9));
    let per_gb = seconds * 1e9 / file_bytes.max(1.0);
    Some(json!({
        "events": events,
        "file_bytes": found["file_bytes"],
        "seconds": hundredths(seconds),
        "seconds_per_gb": hundredths(per_gb),
        "cpu_seconds": hundredths(cpu),
        "peak_bytes": peak,
        "peak_per_file_byte": ratio(peak, file_bytes),
        "pickle_seconds": hundredths(pickle_seconds),
        "pickle_cpu_seconds": hundredths(pickle_cpu),
        "pickle_peak_bytes": pickle_peak,
        "pickle_peak_per_file_byte": ratio(pickle_peak, file_bytes),
        "pickle_times_slower": ratio(pickle_seconds, seconds),
        "pickle_times_cpu": ratio(pickle_cpu, cpu),
        "pickle_times_larger": ratio(pickle_peak, peak),
        "is_fast": per_gb <= GOAL_SECONDS,
        "is_small": peak / file_bytes.max(1.0) <= GOAL_BYTES_RATIO,
    }))
}

fn text(figures: &Value) -> String {
    let number = |name: &str| figures[name].as_f64();
    let (Some(bytes), Some(seconds), Some(per_byte)) =
        (number("file_bytes"), number("seconds"), number("peak_per_file_byte"))
    else {
        return String::new();
    };
    let met = |name: &str| if figures[name] == true { "met" } else { "missed" };
    format!(
        "a snapshot of {:.0} MB, {} events\n\
         memtape analyze: {seconds:.2} s ({} s a GB, goal {GOAL_SECONDS} s: {}), {per_byte:.2} \
         bytes for each of the file (goal {GOAL_BYTES_RATIO}: {})\n\
         pickle.load:     {} s, {} bytes for each of the file: {} times as slow, {} times as \
         large\n\
         processor time:  {} s and {} s, {} times as much\n",
        bytes / 1e6,
        figures["events"],
        figures["seconds_per_gb"],
        met("is_fast"),
        met("is_small"),
        figures["pickle_seconds"],
        figures["pickle_peak_per_file_byte"],
        figures["pickle_times_slower"],
        figures["pickle_times_larger"],
        figures["cpu_seconds"],
        figures["pickle_cpu_seconds"],
        figures["pickle_times_cpu"],
    )
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
        assert!(text(&figures).contains("3.0 times as slow"));
        assert_eq!(super::figures(&json!({ "file_bytes": 1 }), 1), None);
    }
}
