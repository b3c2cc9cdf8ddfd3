//! Fragmentation: reserved memory grows, and the tensors do not.
//!
//! Every few steps the rank takes one sample out of a large batch and keeps it in place of its
//! oldest one. The batch is freed, but the sample lies in the batch's segment, and what is left of
//! that is too small for the next batch. So each batch needs a new segment, until each sample
//! holds one.

use std::collections::VecDeque;

use memtape::with_frames;

use super::Fault;
use crate::demo::allocator::{Allocator, Held, Listener, OutOfMemory};
use crate::demo::training::{MAIN, Noise};

const MIB: u64 = 1 << 20;
const SAMPLES: usize = 36;
const SAMPLE_BYTES: u64 = 7 * MIB / 2;
/// Samples become a little shorter, so that the rest of a batch does not fit where that of an
/// older one was.
const SHORTER_BYTES: u64 = 512;
/// More than any other tensor, so that no free segment of theirs serves a batch.
const BATCH_BYTES: u64 = 112 * MIB;
const EVERY_STEPS: u64 = 16;

/// Keeps the last samples.
#[derive(Debug, Default)]
pub(super) struct Fragmentation {
    samples: VecDeque<Held>,
    sample_bytes: u64,
}

impl Fragmentation {
    /// Keeps a sample.
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

impl<L: Listener> Fault<L> for Fragmentation {
    fn prepare(&mut self, gpu: &mut Allocator<L>) -> Result<(), OutOfMemory> {
        self.sample_bytes = SAMPLE_BYTES;
        (0..SAMPLES).try_for_each(|_| self.keep_sample(gpu))
    }

    fn act(
        &mut self,
        step: u64,
        gpu: &mut Allocator<L>,
        _noise: &mut Noise,
    ) -> Result<(), OutOfMemory> {
        if step.is_multiple_of(EVERY_STEPS) { self.split_batch(gpu) } else { Ok(()) }
    }
}
