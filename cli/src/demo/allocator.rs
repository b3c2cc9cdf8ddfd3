//! A caching allocator without memory: it hands out addresses.
//!
//! It does what PyTorch's does where fragmentation comes from: requests of up to 1 MiB have
//! segments of their own, a free piece is split, neighbours merge, the best fit serves, and only
//! a segment that is free as a whole goes back to the device, before a request fails. There are no
//! streams, no private pools and no `cudaFree` without need.

use std::collections::{BTreeMap, BTreeSet};

/// Blocks are multiples of this.
const ROUND_BYTES: u64 = 512;
const MIB: u64 = 1 << 20;
/// Requests of up to this size come from small segments, …
const SMALL_MAX: u64 = MIB;
/// … which have this size.
const SMALL_SEGMENT_BYTES: u64 = 2 * MIB;
/// Requests below this size share segments, …
const SHARED_MAX: u64 = 10 * MIB;
/// … which have this size.
const SHARED_SEGMENT_BYTES: u64 = 20 * MIB;
/// Other segments are multiples of this.
const SEGMENT_ROUND_BYTES: u64 = 2 * MIB;
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
}

/// One device's allocator.
#[derive(Debug)]
pub(crate) struct Allocator<L> {
    listener: L,
    device_bytes: u64,
    next_segment: u64,
    allocated: u64,
    reserved: u64,
    /// Segments by address: their sizes.
    segments: BTreeMap<u64, u64>,
    /// Free pieces by address: their sizes.
    pieces: BTreeMap<u64, u64>,
    /// The same: for small requests or not, size, address.
    fits: BTreeSet<(bool, u64, u64)>,
}

impl<L: Listener> Allocator<L> {
    /// An allocator of a device of this size.
    pub(crate) fn new(listener: L, device_bytes: u64) -> Self {
        Self {
            listener,
            device_bytes,
            next_segment: FIRST_ADDRESS,
            allocated: 0,
            reserved: 0,
            segments: BTreeMap::new(),
            pieces: BTreeMap::new(),
            fits: BTreeSet::new(),
        }
    }

    /// Bytes in use.
    #[cfg(test)]
    pub(crate) fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Hands out a block. Fails when the device is full.
    pub(crate) fn alloc(&mut self, bytes: u64) -> Result<Held, OutOfMemory> {
        let request = bytes.max(1).next_multiple_of(ROUND_BYTES);
        let is_small = request <= SMALL_MAX;
        let fit = self.fits.range((is_small, request, 0)..=(is_small, u64::MAX, u64::MAX)).next();
        let (address, piece) = match fit.copied() {
            Some((_, piece, address)) => (address, piece),
            None => self.take_segment(request, is_small)?,
        };
        self.remove_piece(address);
        let left = piece - request;
        let is_split = if is_small { left >= ROUND_BYTES } else { left > SMALL_MAX };
        let size = if is_split { request } else { piece };
        if is_split {
            self.insert_piece(address + size, left, is_small);
        }
        self.allocated += size;
        self.listener.block(address, size.cast_signed(), self.allocated, self.reserved);
        Ok(Held { address, size })
    }

    /// Takes a block back, and merges it with the free pieces beside it.
    pub(crate) fn free(&mut self, Held { address, size }: Held) {
        self.allocated -= size;
        self.listener.block(address, -size.cast_signed(), self.allocated, self.reserved);
        let segment = self.segments.range(..=address).next_back();
        let (first, bytes) = segment.map_or((address, size), |(&first, &bytes)| (first, bytes));
        let (mut start, mut end) = (address, address + size);
        let before = self.pieces.range(first..address).next_back();
        if let Some((at, piece)) = before.map(|(&at, &piece)| (at, piece))
            && at + piece == start
        {
            self.remove_piece(at);
            start = at;
        }
        if let Some(piece) = self.pieces.get(&end).copied().filter(|_| end < first + bytes) {
            self.remove_piece(end);
            end += piece;
        }
        self.insert_piece(start, end - start, bytes == SMALL_SEGMENT_BYTES);
    }

    /// Gives free segments back to the device, as PyTorch does before a request fails.
    fn empty_cache(&mut self) {
        let is_free = |(at, bytes): &(&u64, &u64)| self.pieces.get(at) == Some(bytes);
        let free = self.segments.iter().filter(is_free).map(|(&at, &bytes)| (at, bytes));
        for (address, bytes) in free.collect::<Vec<_>>() {
            self.remove_piece(address);
            self.segments.remove(&address);
            self.reserved -= bytes;
            self.listener.returned(address, bytes);
        }
    }

    /// Takes a segment from the device; it is one free piece.
    fn take_segment(&mut self, size: u64, is_small: bool) -> Result<(u64, u64), OutOfMemory> {
        let bytes = match size {
            _ if is_small => SMALL_SEGMENT_BYTES,
            ..SHARED_MAX => SHARED_SEGMENT_BYTES,
            _ => size.next_multiple_of(SEGMENT_ROUND_BYTES),
        };
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
        self.segments.insert(address, bytes);
        self.insert_piece(address, bytes, is_small);
        self.listener.segment(address, bytes);
        Ok((address, bytes))
    }

    fn insert_piece(&mut self, address: u64, size: u64, is_small: bool) {
        self.pieces.insert(address, size);
        self.fits.insert((is_small, size, address));
    }

    fn remove_piece(&mut self, address: u64) {
        if let Some(size) = self.pieces.remove(&address) {
            // Of either kind: only one of both is there.
            self.fits.remove(&(true, size, address));
            self.fits.remove(&(false, size, address));
        }
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
        check(0, 512, 2 * MIB);
        check(513, 1024, 2 * MIB);
        check(2 * MIB + 1, 2 * MIB + 512, 20 * MIB);
        check(33 * MIB, 34 * MIB, 34 * MIB);
        check(32 * MIB + 1, 32 * MIB + 512, 34 * MIB);
    }

    #[test]
    fn a_block_that_stays_holds_its_whole_segment() {
        let mut allocator = Allocator::new(Auditor::default(), 100 * MIB);
        let large = allocator.alloc(60 * MIB).expect("enough");
        allocator.free(large);
        let inside = allocator.alloc(2 * MIB).expect("enough");
        assert_eq!(allocator.listener.reserved, 60 * MIB, "the large piece was split");
        let second = allocator.alloc(60 * MIB);
        assert_eq!(second, Err(OutOfMemory { size: 60 * MIB }), "98 MiB are free, in two pieces");
        allocator.free(inside);
        assert!(allocator.alloc(60 * MIB).is_ok(), "the pieces merged");
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
            let free: Vec<(u64, u64)> =
                allocator.pieces.iter().map(|(&at, &size)| (at, size)).collect();
            prop_assert_eq!(segments, free);
            prop_assert_eq!(allocator.fits.len(), allocator.pieces.len());
        }
    }
}
