//! The fault of a modelled rank: the amounts of a [`Fault`], carried out step by step.
//!
//! A fault changes what the rank does, and nothing else: recorder, agent, coordinator, detector and
//! diagnosis do not know the scenario.

use std::collections::VecDeque;

use fastrand::Rng;
use memtape::with_frames;
use memtape_core::caching_allocator::{Allocator, Handle, Listener, OutOfMemory};

use super::training::{MAIN, near};

const MIB: u64 = 1 << 20;
/// Largest deviation of a leaked tensor's size, in percent.
const LEAK_NOISE: u64 = 12;
/// The process keeps no more of its own memory than this.
const HOST_BYTES_MAX: usize = 768 << 20;
const SAMPLE_BYTES: u64 = 7 * MIB / 2;
/// Bytes by which each sample is shorter, so that the remainder of a batch does not fit in the
/// place of an older one.
const SHORTER_BYTES: u64 = 512;
/// More than any other tensor, so that no free segment of theirs serves a batch.
const BATCH_BYTES: u64 = 112 * MIB;
const SPLIT_EVERY_STEPS: u64 = 16;

/// Differences of a rank from its peers; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fault {
    /// A tensor of about this size is kept each step.
    pub(crate) leak_bytes: u64,
    /// Number of samples that are kept in the segments of their batches: every few steps the rank
    /// takes one sample out of a large batch and keeps it in place of its oldest one. The batch is
    /// freed, but the remainder of its segment is too small for the next batch. So reserved memory
    /// grows, until each sample holds a segment, and the tensors do not.
    pub(crate) samples: usize,
    /// Percent by which the rank's sequences are longer than usual.
    pub(crate) longer_percent: u64,
    /// Bytes of the process's own memory that are kept each step. This memory is real, unlike that
    /// of the modelled device; it is bounded, and freed when the process ends.
    pub(crate) host_bytes: usize,
    /// The rank takes another branch than its peers: it leaves the collectives of a step out, and
    /// waits on the host.
    pub(crate) leaves_collectives_out: bool,
}

/// A fault from a step on, and the memory it keeps.
#[derive(Debug, Default)]
pub(crate) struct Faulty {
    of: Fault,
    from_step: u64,
    losses: Vec<Handle>,
    samples: VecDeque<Handle>,
    sample_bytes: u64,
    batches: Vec<Vec<u8>>,
}

impl Faulty {
    /// Keeps the first samples. Called once, before step 0.
    /// Fails when the device is full.
    pub(crate) fn new(
        (of, from_step): (Fault, u64),
        gpu: &mut Allocator<impl Listener>,
    ) -> Result<Self, OutOfMemory> {
        let mut faulty = Self { of, from_step, sample_bytes: SAMPLE_BYTES, ..Self::default() };
        (0..of.samples).try_for_each(|_| faulty.keep_sample(gpu))?;
        Ok(faulty)
    }

    /// The fault, once it has begun.
    pub(crate) fn at(&self, step: u64) -> Fault {
        if step >= self.from_step { self.of } else { Fault::default() }
    }

    /// Acts in a step, while the activations are alive.
    /// Fails when the device is full.
    pub(crate) fn act(
        &mut self,
        step: u64,
        gpu: &mut Allocator<impl Listener>,
        noise: &mut Rng,
    ) -> Result<(), OutOfMemory> {
        let Fault { leak_bytes, samples, host_bytes, .. } = self.at(step);
        if leak_bytes > 0 {
            self.remember_loss(near(noise, leak_bytes, LEAK_NOISE), gpu)?;
        }
        if samples > 0 && step.is_multiple_of(SPLIT_EVERY_STEPS) {
            self.split_batch(gpu)?;
        }
        if host_bytes > 0 && self.batches.len() < HOST_BYTES_MAX / host_bytes {
            // Zeros would take no memory until they are written.
            self.batches.push(vec![step as u8 | 1; host_bytes]);
        }
        Ok(())
    }

    /// The bug: keeps the losses for a histogram that is never drawn.
    fn remember_loss(
        &mut self,
        bytes: u64,
        gpu: &mut Allocator<impl Listener>,
    ) -> Result<(), OutOfMemory> {
        self.losses.push(with_frames(stack!("remember_loss"), || gpu.alloc(bytes))?);
        Ok(())
    }

    fn keep_sample(&mut self, gpu: &mut Allocator<impl Listener>) -> Result<(), OutOfMemory> {
        let frames = &[here!("keep_sample"), MAIN];
        self.samples.push_back(with_frames(frames, || gpu.alloc(self.sample_bytes))?);
        Ok(())
    }

    /// Collects a batch, and copies all of it but one sample, which is kept.
    fn split_batch(&mut self, gpu: &mut Allocator<impl Listener>) -> Result<(), OutOfMemory> {
        let batch = with_frames(stack!("split_batch"), || gpu.alloc(BATCH_BYTES))?;
        gpu.free(batch);
        self.sample_bytes = self.sample_bytes.saturating_sub(SHORTER_BYTES);
        let rest = BATCH_BYTES.saturating_sub(self.sample_bytes);
        let rest = with_frames(stack!("split_batch"), || gpu.alloc(rest))?;
        self.keep_sample(gpu)?;
        gpu.free(rest);
        if let Some(oldest) = self.samples.pop_front() {
            gpu.free(oldest);
        }
        Ok(())
    }
}
