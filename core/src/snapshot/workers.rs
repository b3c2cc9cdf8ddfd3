//! Where the worker processes of a rank ran, sampled by a profiler from outside.
//!
//! Samples say where a worker spends its time. They do not say which memory it keeps: no hook of
//! Memtape runs in a worker. Idle threads are not sampled.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Frame, RankSnapshot};
use crate::limits::WORKER_STACKS_MAX;

/// Samples of the worker processes of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerSamples {
    /// Worker processes that were sampled.
    pub processes: u32,
    /// Worker processes that were not: beyond [`crate::limits::WORKERS_SAMPLED_MAX`], or failed.
    pub processes_left_out: u32,
    /// How long each was sampled, in nanoseconds.
    pub duration_ns: u64,
    /// Samples of each stack, most first; at most [`WORKER_STACKS_MAX`].
    pub stacks: Vec<WorkerStack>,
    /// Samples of further stacks.
    pub samples_left_out: u64,
    /// Why a process could not be sampled, one line; empty where all could.
    pub failure: String,
}

/// Samples of one stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerStack {
    /// Index into [`RankSnapshot::stacks`].
    pub stack: u32,
    /// How often a running thread had this stack.
    pub samples: u64,
}

impl WorkerSamples {
    /// Samples of all stacks.
    pub fn samples(&self) -> u64 {
        let known = self.stacks.iter().map(|stack| stack.samples);
        known.fold(self.samples_left_out, u64::saturating_add)
    }
}

impl RankSnapshot {
    /// Adds samples with their stacks, innermost frame first; keeps the most frequent stacks.
    pub fn add_worker_samples(
        &mut self,
        mut samples: WorkerSamples,
        stacks: BTreeMap<Vec<Frame>, u64>,
    ) {
        let mut all: Vec<(Vec<Frame>, u64)> = stacks.into_iter().collect();
        all.sort_by_key(|(_, samples)| core::cmp::Reverse(*samples));
        let rest = all.split_off(all.len().min(WORKER_STACKS_MAX));
        samples.samples_left_out = rest.iter().fold(0, |sum: u64, (_, n)| sum.saturating_add(*n));
        let mut known = BTreeMap::new();
        // Entry 0 of both tables stays the unknown one.
        if self.frames.is_empty() {
            self.frames.push(Frame::default());
        }
        if self.stacks.is_empty() {
            self.stacks.push(Vec::new());
        }
        for (stack, samples_of) in all {
            let frames = &mut self.frames;
            let mut intern = |frame: Frame| {
                *known.entry(frame).or_insert_with_key(|frame| {
                    frames.push(frame.clone());
                    index(frames.len())
                })
            };
            let stack: Vec<u32> = stack.into_iter().map(&mut intern).collect();
            self.stacks.push(stack);
            let stack = index(self.stacks.len());
            samples.stacks.push(WorkerStack { stack, samples: samples_of });
        }
        self.worker_samples = Some(samples);
    }
}

/// Index of the last entry of a table.
fn index(len: usize) -> u32 {
    u32::try_from(len.saturating_sub(1)).unwrap_or(0)
}
