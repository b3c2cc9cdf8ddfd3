//! A leak: one tensor is kept each step.

use memtape::with_frames;

use super::Fault;
use crate::demo::allocator::{Allocator, Held, Listener, OutOfMemory};
use crate::demo::training::Noise;

/// Largest deviation of a tensor's size, in percent.
const NOISE: u64 = 12;

/// Keeps losses.
#[derive(Debug)]
pub(super) struct Leak {
    bytes: u64,
    loss_history: Vec<Held>,
}

impl Leak {
    /// A tensor of about this size is kept each step.
    pub(super) fn of(bytes: u64) -> Self {
        Self { bytes, loss_history: Vec::new() }
    }

    /// The bug: keeps the losses for a histogram that is never drawn.
    fn remember_loss(
        &mut self,
        gpu: &mut Allocator<impl Listener>,
        noise: &mut Noise,
    ) -> Result<(), OutOfMemory> {
        let bytes = noise.near(self.bytes, NOISE);
        let loss = with_frames(stack!("remember_loss"), || gpu.alloc(bytes))?;
        self.loss_history.push(loss);
        Ok(())
    }
}

impl<L: Listener> Fault<L> for Leak {
    fn act(
        &mut self,
        _step: u64,
        gpu: &mut Allocator<L>,
        noise: &mut Noise,
    ) -> Result<(), OutOfMemory> {
        self.remember_loss(gpu, noise)
    }
}
