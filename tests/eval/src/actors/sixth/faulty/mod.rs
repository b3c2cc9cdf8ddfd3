//! Faulty jobs of the sixth set, each with its label.

mod outside;
mod tensors;

use crate::actors::faults::{Plan, Trouble};
use crate::job::Job;

/// All of them, by name.
pub const FAULTY: [(&str, Trouble); 15] = [
    ("graph_frames", tensors::graph_frames),
    ("epoch_outputs", tensors::epoch_outputs),
    ("judge_outputs", tensors::judge_outputs),
    ("newest_ids", tensors::newest_ids),
    ("gathered_checkpoints", tensors::gathered_checkpoints),
    ("mask_keys", tensors::mask_keys),
    ("unpruned_points", tensors::unpruned_points),
    ("compiled_residuals", tensors::compiled_residuals),
    ("loader_stream", tensors::loader_stream),
    ("render_contexts", outside::render_contexts),
    ("reconfigured_decoders", outside::reconfigured_decoders),
    ("plan_threads", outside::plan_threads),
    ("fetch_buffer", outside::fetch_buffer),
    ("memoized_samples", outside::memoized_samples),
    ("pinned_batches", outside::pinned_batches),
];

/// Most that comes at once, where a job would not live to see three of them otherwise.
const PIECE_MAX: f64 = 6e8;

/// Lets the fault begin with the job in this share of the jobs.
fn from_the_start(job: &mut Job, plan: &mut Plan, share: f64) {
    if job.rng.chance(share) {
        plan.onset = job.rng.between(1, 30);
    }
}
