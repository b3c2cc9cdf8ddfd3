//! Host memory: the process keeps a part of each batch in its own memory.
//!
//! This memory is real, unlike that of the modelled device. It is bounded, and freed when the
//! process ends.

use super::Fault;
use crate::demo::allocator::{Allocator, Listener, OutOfMemory};
use crate::demo::training::Noise;

const STEP_BYTES: usize = 512 << 10;
/// The process takes no more than this.
pub(super) const BYTES_MAX: usize = 768 << 20;

/// Keeps batches.
#[derive(Debug, Default)]
pub(super) struct Host {
    batches: Vec<Vec<u8>>,
}

impl<L: Listener> Fault<L> for Host {
    fn act(&mut self, step: u64, _: &mut Allocator<L>, _: &mut Noise) -> Result<(), OutOfMemory> {
        if self.batches.len() < BYTES_MAX / STEP_BYTES {
            // Zeros would take no memory until they are written.
            self.batches.push(vec![step as u8 | 1; STEP_BYTES]);
        }
        Ok(())
    }
}
