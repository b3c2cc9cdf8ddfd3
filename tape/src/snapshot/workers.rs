//! Code locations of a rank's worker processes, sampled by a profiler from outside.
//!
//! Samples say where a worker spends its time. They do not say which memory it keeps: no hook of
//! Memtape runs in a worker. The profiler leaves out threads that it takes to be idle; which ones
//! it can tell depends on the version of Python.

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
    /// Worker processes that were tried and could not be sampled.
    pub processes_failed: u32,
    /// Worker processes beyond [`crate::limits::WORKERS_SAMPLED_MAX`], which were not tried.
    pub processes_left_out: u32,
    /// Sampling time of each worker, in nanoseconds.
    pub duration_ns: u64,
    /// Samples of each stack, most first; at most [`WORKER_STACKS_MAX`].
    pub stacks: Vec<WorkerStack>,
    /// Samples of further stacks.
    pub samples_left_out: u64,
    /// Why processes could not be sampled, one line; empty where all could.
    pub failure: String,
}

/// Samples of one stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerStack {
    /// Index into [`RankSnapshot::stacks`].
    pub stack: u32,
    /// Number of samples in which a thread had this stack.
    pub samples: u64,
}

/// Samples by stack, each frame kept once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampledStacks {
    indexes: BTreeMap<Frame, u32>,
    frames: Vec<Frame>,
    samples: BTreeMap<Vec<u32>, u64>,
}

impl SampledStacks {
    /// The index of a frame for [`Self::add`].
    pub fn frame(&mut self, frame: Frame) -> u32 {
        let frames = &mut self.frames;
        *self.indexes.entry(frame).or_insert_with_key(|frame| {
            frames.push(frame.clone());
            index(frames.len() - 1)
        })
    }

    /// Adds samples of a stack, innermost frame first.
    pub fn add(&mut self, stack: Vec<u32>, samples: u64) {
        let known = self.samples.entry(stack).or_default();
        *known = known.saturating_add(samples);
    }

    /// Every stack with its samples.
    pub fn iter(&self) -> impl Iterator<Item = (Vec<&Frame>, u64)> {
        let frame = |&index: &u32| self.frames.get(index as usize);
        let stack = move |stack: &Vec<u32>| stack.iter().filter_map(frame).collect();
        self.samples.iter().map(move |(frames, samples)| (stack(frames), *samples))
    }
}

impl WorkerSamples {
    /// Samples of all stacks.
    pub fn samples(&self) -> u64 {
        let known = self.stacks.iter().map(|stack| stack.samples);
        known.fold(self.samples_left_out, u64::saturating_add)
    }
}

impl RankSnapshot {
    /// Adds samples with the most frequent of their stacks.
    pub fn add_worker_samples(&mut self, mut samples: WorkerSamples, sampled: SampledStacks) {
        // Entry 0 of both tables stays the unknown one.
        if self.frames.is_empty() {
            self.frames.push(Frame::default());
        }
        if self.stacks.is_empty() {
            self.stacks.push(Vec::new());
        }
        let first = index(self.frames.len());
        self.frames.extend(sampled.frames);
        let mut all: Vec<(Vec<u32>, u64)> = sampled.samples.into_iter().collect();
        all.sort_by_key(|(_, samples)| core::cmp::Reverse(*samples));
        let rest = all.split_off(all.len().min(WORKER_STACKS_MAX));
        samples.samples_left_out = rest.iter().fold(0, |sum: u64, (_, n)| sum.saturating_add(*n));
        for (stack, samples_of) in all {
            let frames = stack.into_iter().map(|frame| first.saturating_add(frame));
            samples
                .stacks
                .push(WorkerStack { stack: index(self.stacks.len()), samples: samples_of });
            self.stacks.push(frames.collect());
        }
        self.worker_samples = Some(samples);
    }

    /// The frames of a worker's stack inside the start of the process, innermost first. A forked
    /// process has the frames of its parent further out.
    pub fn worker_frames(&self, stack: u32) -> Vec<&Frame> {
        let starts = |frame: &Frame| {
            let mut parts = frame.file.rsplit('/');
            let name = (parts.next(), parts.next());
            matches!(name, (Some("process.py"), Some("multiprocessing" | "multiprocess")))
        };
        self.frames_of(stack).take_while(|frame| !starts(frame)).collect()
    }
}

fn index(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
