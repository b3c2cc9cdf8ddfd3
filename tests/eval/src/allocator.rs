//! What is remembered of the blocks and segments of a rank, beside its allocator
//! ([`memtape_core::caching_allocator`]).

use std::collections::BTreeMap;

pub use memtape_core::caching_allocator::Handle;
use memtape_core::caching_allocator::{Listener, Segment};

/// Streams from this number on stand for private pools, as CUDA graphs have them.
pub const PRIVATE: u32 = 1 << 20;

/// What the program knows of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// Stack that allocated it.
    pub stack: u32,
    /// Number of the step in which it was allocated, from 1.
    pub step: u64,
    /// Bytes asked for.
    pub requested: u64,
    /// Step in which the program took it back; 0 while it has not.
    pub freed: u64,
    /// Stream it belongs to, or private pool.
    pub stream: u32,
}

/// A block as it lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lying {
    /// Device address.
    pub address: u64,
    /// Size, rounded.
    pub size: u64,
    /// What the program knows of it.
    pub tag: Tag,
}

/// A segment, or a mapped piece of a growing one, and when it was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentLife {
    /// Where it lies.
    pub segment: Segment,
    /// Step in which it was taken from the device.
    pub taken: u64,
    /// Step in which it went back; the largest number while it has not.
    pub returned: u64,
}

/// Every segment there ever was.
#[derive(Debug, Default)]
pub struct Segments {
    /// Step under way.
    pub step: u64,
    /// In the order in which they were taken.
    pub lives: Vec<SegmentLife>,
    /// Those that are there, by address: their indices.
    there: BTreeMap<u64, usize>,
}

impl Listener for Segments {
    fn segment(&mut self, segment: &Segment) {
        self.there.insert(segment.address, self.lives.len());
        let (taken, returned) = (self.step, u64::MAX);
        self.lives.push(SegmentLife { segment: *segment, taken, returned });
    }

    fn returned(&mut self, address: u64, size: u64) {
        for (_, index) in self.there.extract_if(address..address + size, |_, _| true) {
            if let Some(life) = self.lives.get_mut(index) {
                life.returned = self.step;
            }
        }
    }
}
