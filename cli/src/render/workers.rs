//! Where the worker processes of a rank ran, in a table and as JSON.

use memtape_core::diagnosis::{location, telling_frame};
use memtape_core::snapshot::workers::{WorkerSamples, WorkerStack};
use memtape_core::snapshot::{Frame, RankSnapshot};
use serde_json::{Value, json};

use crate::output::clean;
use crate::render::units::{plural, table};

/// Stacks in the table.
const STACKS_MAX: usize = 10;

/// What was sampled, and the stacks that were seen most.
pub(crate) fn text(state: &RankSnapshot, samples: &WorkerSamples) -> String {
    let row = |stack: &WorkerStack| {
        vec![stack.samples.to_string(), line(state, stack).map_or_else(String::new, location_of)]
    };
    let shown = samples.stacks.iter().take(STACKS_MAX);
    let table = table(&[">samples", "workers ran"], shown.map(row).collect());
    let seconds = samples.duration_ns / 1_000_000_000;
    let workers = plural(u64::from(samples.processes), "worker");
    let failure = match samples.failure.as_str() {
        "" => String::new(),
        why => format!("; a worker could not be sampled: {}", clean(why)),
    };
    format!("{table}{workers} sampled for {seconds} s while the capture was taken{failure}\n")
}

/// All of it for `--json`; stacks innermost frame first.
pub(crate) fn json(state: &RankSnapshot, samples: &WorkerSamples) -> Value {
    let stack = |stack: &WorkerStack| {
        let frames: Vec<String> = state.frames_of(stack.stack).map(location).collect();
        json!({ "samples": stack.samples, "frames": frames })
    };
    json!({
        "processes": samples.processes,
        "processes_left_out": samples.processes_left_out,
        "duration_ns": samples.duration_ns,
        "stacks": samples.stacks.iter().map(stack).collect::<Vec<_>>(),
        "samples_left_out": samples.samples_left_out,
        "failure": samples.failure,
    })
}

fn line<'a>(state: &'a RankSnapshot, stack: &WorkerStack) -> Option<&'a Frame> {
    telling_frame(&state.frames_of(stack.stack).collect::<Vec<_>>())
}

fn location_of(frame: &Frame) -> String {
    clean(&location(frame))
}
