//! Code locations of a rank's worker processes, in a table and as JSON.

use std::collections::BTreeMap;

use memtape_core::diagnosis::{location, telling_frame};
use memtape_core::snapshot::RankSnapshot;
use memtape_core::snapshot::workers::{WorkerSamples, WorkerStack};
use serde_json::{Value, json};

use crate::output::clean;
use crate::render::units::{plural, table};

/// Lines in the table.
const LINES_MAX: usize = 10;

/// Samples of workers, and the lines that were sampled most.
pub(crate) fn text(state: &RankSnapshot, samples: &WorkerSamples) -> String {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for stack in &samples.stacks {
        let frame = telling_frame(&state.worker_frames(stack.stack));
        let line = frame.map_or_else(|| "unknown line".to_string(), location);
        *lines.entry(clean(&line)).or_default() += stack.samples;
    }
    let mut lines: Vec<(String, u64)> = lines.into_iter().collect();
    lines.sort_by_key(|(_, samples)| std::cmp::Reverse(*samples));
    let rows = lines.into_iter().take(LINES_MAX).map(|(line, n)| vec![n.to_string(), line]);
    let table = table(&[">samples", "workers ran"], rows.collect());
    let seconds = samples.duration_ns / 1_000_000_000;
    let workers = |count: u32| plural(u64::from(count), "worker");
    let mut said = format!("{} sampled for {seconds} s", workers(samples.processes));
    if samples.processes_left_out > 0 {
        said.push_str(&format!(", {} not tried", workers(samples.processes_left_out)));
    }
    if samples.processes_failed > 0 {
        let (failed, why) = (workers(samples.processes_failed), clean(&samples.failure));
        said.push_str(&format!(", {failed} failed: {why}"));
    }
    format!("{table}{said}\n")
}

/// The samples as JSON; stacks innermost frame first.
pub(crate) fn json(state: &RankSnapshot, samples: &WorkerSamples) -> Value {
    let stack = |stack: &WorkerStack| {
        let frames = state.worker_frames(stack.stack);
        let frames: Vec<String> = frames.into_iter().map(location).collect();
        json!({ "samples": stack.samples, "frames": frames })
    };
    json!({
        "processes": samples.processes,
        "processes_failed": samples.processes_failed,
        "processes_left_out": samples.processes_left_out,
        "duration_ns": samples.duration_ns,
        "stacks": samples.stacks.iter().map(stack).collect::<Vec<_>>(),
        "samples_left_out": samples.samples_left_out,
        "failure": samples.failure,
    })
}

#[cfg(test)]
mod tests {
    use memtape_core::snapshot::Frame;
    use memtape_core::snapshot::workers::SampledStacks;

    use super::*;

    #[test]
    fn lines_are_of_the_workers_own_code_and_added_up() {
        let frame = |file: &str, line, function: &str| Frame {
            file: file.to_string(),
            line,
            function: function.to_string(),
        };
        let mut sampled = SampledStacks::default();
        let start = sampled.frame(frame("/usr/lib/python3.11/multiprocessing/process.py", 1, "f"));
        let main = sampled.frame(frame("/app/train.py", 80, "main"));
        let queue = sampled.frame(frame("/usr/lib/python3.11/queue.py", 7, "get"));
        let decode = sampled.frame(frame("/app/data.py", 12, "decode"));
        sampled.add(vec![queue, start, main], 5);
        sampled.add(vec![decode, start, main], 20);
        sampled.add(vec![queue, decode, start, main], 30);
        let mut state = RankSnapshot::default();
        let samples = WorkerSamples {
            processes: 2,
            processes_failed: 1,
            processes_left_out: 3,
            duration_ns: 5_000_000_000,
            failure: "gone".to_string(),
            ..WorkerSamples::default()
        };
        state.add_worker_samples(samples, sampled);
        let samples = state.worker_samples.as_ref().expect("just added");
        assert_eq!(
            text(&state, samples),
            "SAMPLES  WORKERS RAN\n     50  data.py:12 in decode\n      5  queue.py:7 in get\n\
             2 workers sampled for 5 s, 3 workers not tried, 1 worker failed: gone\n"
        );
        let frames = json(&state, samples)["stacks"][0]["frames"].clone();
        assert_eq!(frames, json!(["queue.py:7 in get", "data.py:12 in decode"]));
    }
}
