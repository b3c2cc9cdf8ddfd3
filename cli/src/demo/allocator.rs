//! A caching allocator without memory: it hands out addresses as PyTorch's does.
//!
//! Small requests (up to 1 MiB) are cut from segments of 2 MiB, larger ones from segments of
//! 20 MiB or of their own size. Freed blocks are cached, merged with free neighbours and reused,
//! best fit first. The sizes are PyTorch's defaults. There are no streams, no splitting limits and
//! no `cudaFree`: the cache is never emptied.

use std::collections::{BTreeMap, BTreeSet};

/// Blocks are multiples of this.
const ROUND_BYTES: u64 = 512;
/// Requests up to this come from small segments.
const SMALL_BYTES_MAX: u64 = 1 << 20;
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
/// Requests below this share segments of [`LARGE_SEGMENT_BYTES`].
const SHARED_BYTES_MAX: u64 = 10 << 20;
const LARGE_SEGMENT_BYTES: u64 = 20 << 20;
/// Larger segments are multiples of this, and so are the addresses of all segments.
const SEGMENT_ROUND_BYTES: u64 = 2 << 20;
/// Where CUDA's addresses usually begin.
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;

/// Receives what the allocator does: the recorder, or a test.
pub(crate) trait Listener {
    /// A block of `size` bytes was handed out (negative: taken back), and the totals after it.
    fn block(&mut self, address: u64, size: i64, allocated: u64, reserved: u64);
    /// A segment was taken from the device.
    fn segment(&mut self, address: u64, size: u64);
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

impl Held {
    /// Its first address, and the address after its last byte.
    #[cfg(test)]
    pub(crate) fn range(&self) -> (u64, u64) {
        (self.address, self.address + self.size)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Pool {
    Small,
    Large,
}

/// One device's allocator.
#[derive(Debug)]
pub(crate) struct Allocator<L> {
    listener: L,
    device_bytes: u64,
    next_segment: u64,
    allocated: u64,
    reserved: u64,
    /// Free blocks by pool, size and address.
    free: BTreeSet<(Pool, u64, u64)>,
    /// The same blocks by address: `address → (size, pool)`.
    free_at: BTreeMap<u64, (u64, Pool)>,
    /// First address and pool of every segment: blocks of different segments never merge.
    segments: BTreeMap<u64, Pool>,
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
            free: BTreeSet::new(),
            free_at: BTreeMap::new(),
            segments: BTreeMap::new(),
        }
    }

    /// Bytes in use.
    #[cfg(test)]
    pub(crate) fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Hands out a block.
    ///
    /// # Errors
    /// When the device is full.
    pub(crate) fn alloc(&mut self, bytes: u64) -> Result<Held, OutOfMemory> {
        let size = bytes.max(1).next_multiple_of(ROUND_BYTES);
        let pool = if size <= SMALL_BYTES_MAX { Pool::Small } else { Pool::Large };
        let fit = self.free.range((pool, size, 0)..).next().copied();
        let (found, address) = match fit.filter(|(of, ..)| *of == pool) {
            Some((_, found, address)) => (found, address),
            None => self.take_segment(size, pool)?,
        };
        self.remove_free(address, found, pool);
        let rest = found - size;
        let worth_splitting = match pool {
            Pool::Small => rest >= ROUND_BYTES,
            Pool::Large => rest > SMALL_BYTES_MAX,
        };
        let size = if worth_splitting { size } else { found };
        if worth_splitting {
            self.insert_free(address + size, rest, pool);
        }
        self.allocated += size;
        self.listener.block(address, size.cast_signed(), self.allocated, self.reserved);
        Ok(Held { address, size })
    }

    /// Takes a block back.
    pub(crate) fn free(&mut self, held: Held) {
        let Held { mut address, mut size } = held;
        self.allocated -= size;
        self.listener.block(address, -size.cast_signed(), self.allocated, self.reserved);
        let before = self.free_at.range(..address).next_back().map(|(&at, &block)| (at, block));
        let after = self.free_at.get(&(address + size)).copied();
        let own = self.segments.range(..=address).next_back();
        let own = own.map_or(Pool::Large, |(_, &pool)| pool);
        if let Some((bytes, pool)) = after
            && !self.segments.contains_key(&(address + size))
        {
            self.remove_free(address + size, bytes, pool);
            size += bytes;
        }
        if let Some((at, (bytes, pool))) = before
            && at + bytes == address
            && !self.segments.contains_key(&address)
        {
            self.remove_free(at, bytes, pool);
            address = at;
            size += bytes;
        }
        self.insert_free(address, size, own);
    }

    fn take_segment(&mut self, size: u64, pool: Pool) -> Result<(u64, u64), OutOfMemory> {
        let bytes = match pool {
            Pool::Small => SMALL_SEGMENT_BYTES,
            Pool::Large if size < SHARED_BYTES_MAX => LARGE_SEGMENT_BYTES,
            Pool::Large => size.next_multiple_of(SEGMENT_ROUND_BYTES),
        };
        if self.reserved + bytes > self.device_bytes {
            return Err(OutOfMemory { size });
        }
        let address = self.next_segment;
        self.next_segment += bytes.next_multiple_of(SEGMENT_ROUND_BYTES);
        self.reserved += bytes;
        self.segments.insert(address, pool);
        self.listener.segment(address, bytes);
        self.insert_free(address, bytes, pool);
        Ok((bytes, address))
    }

    fn insert_free(&mut self, address: u64, size: u64, pool: Pool) {
        self.free.insert((pool, size, address));
        self.free_at.insert(address, (size, pool));
    }

    fn remove_free(&mut self, address: u64, size: u64, pool: Pool) {
        self.free.remove(&(pool, size, address));
        self.free_at.remove(&address);
    }
}

#[cfg(test)]
pub(crate) mod tests {
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
    }

    impl<L> Allocator<L> {
        pub(crate) fn listener(&self) -> &L {
            &self.listener
        }
    }

    #[test]
    fn segments_have_pytorchs_sizes() {
        let check = |request: u64, block: u64, reserved: u64| {
            let mut allocator = Allocator::new(Auditor::default(), 1 << 40);
            let held = allocator.alloc(request).expect("enough");
            let (from, to) = held.range();
            assert_eq!((to - from, allocator.listener().reserved), (block, reserved), "{request}");
        };
        const MIB: u64 = 1 << 20;
        check(0, 512, 2 * MIB);
        check(513, 1024, 2 * MIB);
        check(MIB, MIB, 2 * MIB);
        check(MIB + 1, MIB + 512, 20 * MIB);
        check(19 * MIB + 1, 20 * MIB, 20 * MIB);
        check(33 * MIB, 34 * MIB, 34 * MIB);
    }

    #[test]
    fn a_full_device_is_an_error() {
        let mut allocator = Allocator::new(Auditor::default(), 20 << 20);
        let held = allocator.alloc(15 << 20).expect("enough");
        assert_eq!(allocator.alloc(6 << 20), Err(OutOfMemory { size: 6 << 20 }));
        allocator.free(held);
        assert!(allocator.alloc(6 << 20).is_ok(), "the cache is used");
    }

    proptest! {
        /// The auditor checks every report; freed blocks merge into whole segments.
        #[test]
        fn totals_agree_and_free_blocks_merge(
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
                allocator.free_at.iter().map(|(&at, &(size, _))| (at, size)).collect();
            prop_assert_eq!(segments, free);
        }
    }
}
