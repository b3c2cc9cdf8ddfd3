//! A caching allocator without memory: it hands out addresses.
//!
//! Each block has a segment of its own. Freed segments are kept and reused, best fit first. There
//! are no streams and no `cudaFree`, and no segment is split as PyTorch splits its own.

use std::collections::BTreeSet;

/// Blocks are multiples of this.
const ROUND_BYTES: u64 = 512;
/// Segments are multiples of this, and so are their addresses.
const SEGMENT_ROUND_BYTES: u64 = 2 << 20;
/// A segment serves requests down to this part of its size.
const FIT_MAX: u64 = 2;
/// Where CUDA's addresses usually begin.
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;

/// Receives what the allocator does: the recorder, or a test.
pub(crate) trait Listener {
    /// A block of `size` bytes was handed out (negative: taken back), and the totals after it.
    fn block(&mut self, address: u64, size: i64, allocated: u64, reserved: u64);
    /// A segment was taken from the device.
    fn segment(&mut self, address: u64, size: u64);
    /// A segment was given back to the device.
    fn returned(&mut self, address: u64, size: u64);
    /// A request failed for good, with the totals at that time.
    fn full(&mut self, size: u64, allocated: u64, reserved: u64);
}

/// The device has less free memory than the request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfMemory {
    /// Bytes of the request.
    pub(crate) size: u64,
}

/// A block in use; [`Allocator::free`] takes it back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Held {
    address: u64,
    size: u64,
    segment_bytes: u64,
}

/// One device's allocator.
#[derive(Debug)]
pub(crate) struct Allocator<L> {
    listener: L,
    device_bytes: u64,
    next_segment: u64,
    allocated: u64,
    reserved: u64,
    /// Free segments by size and address.
    free: BTreeSet<(u64, u64)>,
}

impl<L: Listener> Allocator<L> {
    /// An allocator of a device of this size.
    pub(crate) fn new(listener: L, device_bytes: u64) -> Self {
        let (allocated, reserved, free) = (0, 0, BTreeSet::new());
        Self { listener, device_bytes, next_segment: FIRST_ADDRESS, allocated, reserved, free }
    }

    /// Bytes in use.
    #[cfg(test)]
    pub(crate) fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Hands out a block. Fails when the device is full.
    pub(crate) fn alloc(&mut self, bytes: u64) -> Result<Held, OutOfMemory> {
        let size = bytes.max(1).next_multiple_of(ROUND_BYTES);
        let fit = self.free.range((size, 0)..=(size.saturating_mul(FIT_MAX), u64::MAX)).next();
        let (segment_bytes, address) = match fit.copied() {
            Some(segment) => segment,
            None => self.take_segment(size)?,
        };
        self.free.remove(&(segment_bytes, address));
        self.allocated += size;
        self.listener.block(address, size.cast_signed(), self.allocated, self.reserved);
        Ok(Held { address, size, segment_bytes })
    }

    /// Takes a block back.
    pub(crate) fn free(&mut self, Held { address, size, segment_bytes }: Held) {
        self.allocated -= size;
        self.listener.block(address, -size.cast_signed(), self.allocated, self.reserved);
        self.free.insert((segment_bytes, address));
    }

    /// Gives free segments back to the device, as PyTorch does before a request fails.
    fn empty_cache(&mut self) {
        for (bytes, address) in std::mem::take(&mut self.free) {
            self.reserved -= bytes;
            self.listener.returned(address, bytes);
        }
    }

    fn take_segment(&mut self, size: u64) -> Result<(u64, u64), OutOfMemory> {
        let bytes = size.next_multiple_of(SEGMENT_ROUND_BYTES);
        if self.reserved + bytes > self.device_bytes {
            self.empty_cache();
        }
        if self.reserved + bytes > self.device_bytes {
            self.listener.full(size, self.allocated, self.reserved);
            return Err(OutOfMemory { size });
        }
        let address = self.next_segment;
        self.next_segment += bytes;
        self.reserved += bytes;
        self.listener.segment(address, bytes);
        Ok((bytes, address))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Keeps totals from the reports alone, and checks every report against them.
    #[derive(Debug, Default)]
    pub(crate) struct Auditor {
        /// Live blocks: address → size.
        pub(crate) live: BTreeMap<u64, u64>,
        pub(crate) segments: BTreeMap<u64, u64>,
        pub(crate) allocated: u64,
        pub(crate) reserved: u64,
        /// Number of reports on blocks.
        pub(crate) reports: u64,
        /// Requests that failed.
        pub(crate) failed: Vec<u64>,
    }

    impl Listener for Auditor {
        fn block(&mut self, address: u64, size: i64, allocated: u64, reserved: u64) {
            self.reports += 1;
            if size >= 0 {
                let size = size.unsigned_abs();
                let end = address + size;
                let before = self.live.range(..end).next_back();
                assert!(before.is_none_or(|(at, bytes)| at + bytes <= address), "blocks overlap");
                let segment = self.segments.range(..=address).next_back();
                assert!(segment.is_some_and(|(at, bytes)| end <= at + bytes), "not in a segment");
                self.live.insert(address, size);
                self.allocated += size;
            } else {
                let was = self.live.remove(&address);
                assert_eq!(was, Some(size.unsigned_abs()), "a freed block was in use");
                self.allocated -= size.unsigned_abs();
            }
            assert_eq!((allocated, reserved), (self.allocated, self.reserved));
            assert!(allocated <= reserved);
        }

        fn segment(&mut self, address: u64, size: u64) {
            let before = self.segments.range(..address + size).next_back();
            assert!(before.is_none_or(|(at, bytes)| at + bytes <= address), "segments overlap");
            self.segments.insert(address, size);
            self.reserved += size;
        }

        fn returned(&mut self, address: u64, size: u64) {
            assert_eq!(self.segments.remove(&address), Some(size));
            let inside = self.live.range(address..address + size).next();
            assert_eq!(inside, None, "a block lives in it");
            self.reserved -= size;
        }

        fn full(&mut self, size: u64, allocated: u64, reserved: u64) {
            assert_eq!((allocated, reserved), (self.allocated, self.reserved));
            self.failed.push(size);
        }
    }

    impl<L> Allocator<L> {
        pub(crate) fn listener(&self) -> &L {
            &self.listener
        }
    }

    #[test]
    fn a_block_has_a_segment() {
        let check = |request: u64, block: u64, reserved: u64| {
            let mut allocator = Allocator::new(Auditor::default(), 1 << 40);
            let held = allocator.alloc(request).expect("enough");
            assert_eq!((held.size, allocator.listener().reserved), (block, reserved), "{request}");
        };
        const MIB: u64 = 1 << 20;
        check(0, 512, 2 * MIB);
        check(513, 1024, 2 * MIB);
        check(2 * MIB + 1, 2 * MIB + 512, 4 * MIB);
        check(33 * MIB, 33 * MIB, 34 * MIB);
    }

    #[test]
    fn a_full_device_is_an_error() {
        let mut allocator = Allocator::new(Auditor::default(), 20 << 20);
        let held = allocator.alloc(15 << 20).expect("enough");
        assert_eq!(allocator.alloc(10 << 20), Err(OutOfMemory { size: 10 << 20 }));
        assert_eq!(allocator.listener.failed, [10 << 20]);
        allocator.free(held);
        assert!(allocator.alloc(10 << 20).is_ok(), "the cache is used");
        let mut allocator = Allocator::new(Auditor::default(), 20 << 20);
        let held = allocator.alloc(15 << 20).expect("enough");
        allocator.free(held);
        assert!(allocator.alloc(20 << 20).is_ok(), "the cache is given back");
    }

    proptest! {
        /// The auditor checks every report; in the end every segment is free.
        #[test]
        fn totals_agree_and_segments_come_back(
            requests in prop::collection::vec((1_u64..40 << 20, any::<u16>()), 1..200),
        ) {
            let mut allocator = Allocator::new(Auditor::default(), 1 << 40);
            let mut held = Vec::new();
            for (size, choice) in requests {
                let size = if choice % 2 == 0 { size } else { size >> 12 };
                held.push(allocator.alloc(size).expect("a large device"));
                if choice % 3 == 0 {
                    let index = usize::from(choice) % held.len();
                    allocator.free(held.swap_remove(index));
                }
            }
            for block in held {
                allocator.free(block);
            }
            prop_assert_eq!(allocator.allocated(), 0);
            let segments: Vec<(u64, u64)> =
                allocator.listener().segments.iter().map(|(&at, &size)| (at, size)).collect();
            let mut free: Vec<(u64, u64)> =
                allocator.free.iter().map(|&(size, at)| (at, size)).collect();
            free.sort_unstable();
            prop_assert_eq!(segments, free);
        }
    }
}
