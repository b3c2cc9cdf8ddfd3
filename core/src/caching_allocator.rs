//! A caching allocator after PyTorch's, without memory: it hands out addresses.
//!
//! It does what PyTorch's does where fragmentation comes from. Sizes are rounded to 512 bytes.
//! Small requests (up to 1 MiB) have segments of their own, large ones take 20 MiB or their size in
//! whole 2 MiB. The best fit serves, a free block is split where enough remains, and neighbours
//! merge. Nothing goes back to the device before a request fails, and then only segments that are
//! free as a whole. With expandable segments each pool is one segment that grows at its end.
//!
//! The demo's ranks and the jobs of the evaluation allocate on it. Left out: the age of pools,
//! roundups by power of two, `max_split_size`, private pools' deaths.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

const NONE: u32 = u32::MAX;
const MIB: u64 = 1 << 20;

/// Blocks are multiples of this.
const ROUND_BYTES: u64 = 512;
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
/// Address space between two growing segments.
const EXPANDABLE_SPAN: u64 = 1 << 44;

/// Receives the events of the allocator: the recorder, the evaluation, or a test.
pub trait Listener {
    /// Takes a block of `size` bytes that was handed out (negative: taken back), and new totals.
    fn block(&mut self, _address: u64, _size: i64, _allocated: u64, _reserved: u64) {}
    /// Takes a segment, or a piece of a growing one, that was taken from the device.
    fn segment(&mut self, segment: &Segment);
    /// Takes a segment, or the end of a growing one, that was given back to the device.
    fn returned(&mut self, address: u64, size: u64);
    /// A request failed for good, with the totals at that time.
    fn full(&mut self, _size: u64, _allocated: u64, _reserved: u64) {}
}

/// A segment, or a mapped piece of a growing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Device address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// Stream or private pool that it belongs to.
    pub stream: u32,
    /// True for blocks of up to 1 MiB.
    pub is_small: bool,
    /// Part of a growing segment.
    pub is_expandable: bool,
}

/// The device has less free memory than the request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes of the request.
    pub size: u64,
}

/// A block that was handed out: index of its node. Used again after the block was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(u32);

impl Handle {
    /// The handle of no block.
    pub const NONE: Self = Self(NONE);

    /// Index of the block's node: small, so that it can index an array.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A block that is not free, with its place in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lying {
    /// Device address.
    pub address: u64,
    /// Size in bytes, rounded.
    pub size: u64,
    /// Taken back by the program, still used by another stream.
    pub is_pending: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Live,
    Pending,
}

/// A piece of a segment.
#[derive(Clone, Copy, Debug)]
struct Node {
    address: u64,
    size: u64,
    state: State,
    before: u32,
    after: u32,
    pool: u32,
}

/// The free blocks of one stream and size class.
#[derive(Debug, Default)]
struct Pool {
    free: BTreeSet<(u64, u64, u32)>,
    /// Last node of the growing segment.
    tail: Option<u32>,
}

/// One device's allocator.
#[derive(Debug)]
pub struct Allocator<L> {
    listener: L,
    nodes: Vec<Node>,
    spare: Vec<u32>,
    pools: Vec<Pool>,
    by_stream: BTreeMap<u32, u32>,
    next_address: u64,
    is_expandable: bool,
    allocated: u64,
    pending: u64,
    reserved: u64,
    blocks: u64,
    retries: u64,
    limit: u64,
}

impl<L: Listener> Allocator<L> {
    /// Creates an allocator whose segments may take `limit` bytes together.
    pub fn new(listener: L, limit: u64, is_expandable: bool) -> Self {
        Self {
            listener,
            nodes: Vec::new(),
            spare: Vec::new(),
            pools: Vec::new(),
            by_stream: BTreeMap::new(),
            next_address: FIRST_ADDRESS,
            is_expandable,
            allocated: 0,
            pending: 0,
            reserved: 0,
            blocks: 0,
            retries: 0,
            limit,
        }
    }

    /// The listener.
    pub fn listener(&mut self) -> &mut L {
        &mut self.listener
    }

    /// Changes the bytes that segments may take together.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Bytes in live blocks.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Bytes that the program took back and other streams still use.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// Bytes in segments.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Number of live blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Number of requests that did not fit before the cache was emptied.
    pub fn retries(&self) -> u64 {
        self.retries
    }

    /// Hands out a block of stream 0. Fails when the device is full.
    pub fn alloc(&mut self, bytes: u64) -> Result<Handle, OutOfMemory> {
        self.alloc_on(0, bytes)
    }

    /// Hands out a block of a stream, or of a private pool. Fails when the device is full.
    pub fn alloc_on(&mut self, stream: u32, bytes: u64) -> Result<Handle, OutOfMemory> {
        let size = bytes.max(1).next_multiple_of(ROUND_BYTES);
        let is_small = size <= SMALL_MAX;
        let pool = self.pool(stream, is_small);
        let found = self.fit(pool, size).or_else(|| self.grow(pool, size, (stream, is_small)));
        let Some(id) = found else {
            self.listener.full(size, self.allocated, self.reserved);
            return Err(OutOfMemory { size });
        };
        self.split(id, size, is_small);
        if let Some(node) = self.nodes.get_mut(id as usize) {
            node.state = State::Live;
            self.allocated += node.size;
            self.blocks += 1;
            let size = node.size.cast_signed();
            self.listener.block(node.address, size, self.allocated, self.reserved);
        }
        Ok(Handle(id))
    }

    /// Takes a block back, and merges it with the free ones beside it.
    pub fn free(&mut self, handle: Handle) {
        if self.lying(handle).is_some() {
            self.take_back(handle, State::Free);
            self.merge(handle.0);
        }
    }

    /// The program takes a block back that another stream still uses; [`Self::free`] ends that.
    pub fn defer(&mut self, handle: Handle) {
        self.take_back(handle, State::Pending);
    }

    fn take_back(&mut self, Handle(id): Handle, state: State) {
        let Some(node) = self.nodes.get_mut(id as usize) else { return };
        if node.state == State::Live {
            self.allocated -= node.size;
            self.blocks -= 1;
            let size = -node.size.cast_signed();
            self.listener.block(node.address, size, self.allocated, self.reserved);
            self.pending += if state == State::Pending { node.size } else { 0 };
        } else if node.state == State::Pending && state == State::Free {
            self.pending -= node.size;
        }
        node.state = state;
    }

    /// The block of a handle; none when it is free.
    pub fn lying(&self, handle: Handle) -> Option<Lying> {
        let node = self.nodes.get(handle.index()).filter(|node| node.state != State::Free)?;
        let is_pending = node.state == State::Pending;
        Some(Lying { address: node.address, size: node.size, is_pending })
    }

    /// All blocks that are not free.
    pub fn all_lying(&self) -> impl Iterator<Item = (Handle, Lying)> {
        (0..self.nodes.len() as u32).filter_map(|id| Some((Handle(id), self.lying(Handle(id))?)))
    }

    /// Gives every segment that is free as a whole back to the device, as `empty_cache` does.
    pub fn empty_cache(&mut self) {
        let free = self.pools.iter().flat_map(|pool| pool.free.iter().map(|&(.., id)| id));
        let is_whole = |id: &u32| {
            let node = self.nodes.get(*id as usize);
            node.is_some_and(|node| node.before == NONE && node.after == NONE)
        };
        let whole: Vec<u32> = free.filter(is_whole).collect();
        for id in whole {
            self.give_back(id);
        }
    }

    fn give_back(&mut self, id: u32) {
        let Some(&node) = self.nodes.get(id as usize) else { return };
        if let Some(pool) = self.pools.get_mut(node.pool as usize) {
            pool.free.remove(&(node.size, node.address, id));
            if pool.tail == Some(id) {
                pool.tail = None;
            }
        }
        self.reserved -= node.size;
        self.listener.returned(node.address, node.size);
        self.drop_node(id);
    }

    fn pool(&mut self, stream: u32, is_small: bool) -> u32 {
        let key = stream * 2 + u32::from(is_small);
        let next = self.pools.len() as u32;
        let index = *self.by_stream.entry(key).or_insert(next);
        if index == next {
            self.pools.push(Pool::default());
        }
        index
    }

    fn fit(&mut self, pool: u32, size: u64) -> Option<u32> {
        let pool = self.pools.get_mut(pool as usize)?;
        let found = *pool.free.range((size, 0, 0)..).next()?;
        pool.free.remove(&found);
        Some(found.2)
    }

    /// Takes memory from the device; empties the cache and tries again before it fails.
    fn grow(&mut self, pool: u32, size: u64, kind: (u32, bool)) -> Option<u32> {
        if let Some(id) = self.take(pool, size, kind) {
            return Some(id);
        }
        self.retries += 1;
        self.empty_cache();
        self.take(pool, size, kind)
    }

    fn take(&mut self, pool: u32, size: u64, (stream, is_small): (u32, bool)) -> Option<u32> {
        let tail = self.pools.get(pool as usize)?.tail.filter(|_| self.is_expandable);
        let last = tail.and_then(|id| self.nodes.get(id as usize).copied());
        let spare = last.filter(|node| node.state == State::Free).map_or(0, |node| node.size);
        let wanted = match (is_small, self.is_expandable) {
            (true, true) => (size - spare.min(size)).next_multiple_of(SMALL_SEGMENT_BYTES),
            (false, true) => (size - spare.min(size)).next_multiple_of(SHARED_SEGMENT_BYTES),
            (true, false) => SMALL_SEGMENT_BYTES,
            (false, false) if size < SHARED_MAX => SHARED_SEGMENT_BYTES,
            (false, false) => size.next_multiple_of(SEGMENT_ROUND_BYTES),
        };
        if self.reserved + wanted > self.limit {
            return None;
        }
        self.reserved += wanted;
        let address = match last {
            Some(node) => node.address + node.size,
            None if self.is_expandable => {
                self.next_address += EXPANDABLE_SPAN;
                self.next_address
            }
            None => {
                self.next_address += wanted + 2 * MIB;
                self.next_address - wanted
            }
        };
        let is_expandable = self.is_expandable;
        let size = wanted;
        self.listener.segment(&Segment { address, size, stream, is_small, is_expandable });
        let before = tail.unwrap_or(NONE);
        let (state, after) = (State::Live, NONE);
        let id = self.new_node(Node { address, size, state, before, after, pool });
        if let Some(node) = self.nodes.get_mut(before as usize) {
            node.after = id;
        }
        if let Some(pool) = self.pools.get_mut(pool as usize).filter(|_| self.is_expandable) {
            pool.tail = Some(id);
        }
        Some(if spare > 0 { self.join(before, id) } else { id })
    }

    /// Joins a node with the one behind it; the first one must be free and is taken out of its
    /// pool, the result is in no pool.
    fn join(&mut self, first: u32, second: u32) -> u32 {
        let (Some(&left), Some(&right)) =
            (self.nodes.get(first as usize), self.nodes.get(second as usize))
        else {
            return first;
        };
        if let Some(pool) = self.pools.get_mut(left.pool as usize) {
            pool.free.remove(&(left.size, left.address, first));
            pool.free.remove(&(right.size, right.address, second));
            if pool.tail == Some(second) {
                pool.tail = Some(first);
            }
        }
        if let Some(node) = self.nodes.get_mut(first as usize) {
            node.size += right.size;
            node.after = right.after;
        }
        if let Some(node) = self.nodes.get_mut(right.after as usize) {
            node.before = first;
        }
        self.drop_node(second);
        first
    }

    fn split(&mut self, id: u32, size: u64, is_small: bool) {
        let Some(&node) = self.nodes.get(id as usize) else { return };
        let rest = node.size - size;
        let is_worth_it = if is_small { rest >= 512 } else { rest > SMALL_MAX };
        // A growing segment is split wherever it can be: what is behind may be unmapped.
        let can_be = self.is_expandable && rest >= 512;
        if !is_worth_it && !can_be {
            return;
        }
        let piece = Node {
            address: node.address + size,
            size: rest,
            state: State::Free,
            before: id,
            ..node
        };
        let new = self.new_node(piece);
        if let Some(node) = self.nodes.get_mut(id as usize) {
            (node.size, node.after) = (size, new);
        }
        if let Some(behind) = self.nodes.get_mut(node.after as usize) {
            behind.before = new;
        }
        if let Some(pool) = self.pools.get_mut(node.pool as usize) {
            pool.free.insert((rest, piece.address, new));
            if pool.tail == Some(id) {
                pool.tail = Some(new);
            }
        }
    }

    fn merge(&mut self, id: u32) {
        let mut id = id;
        let Some(&node) = self.nodes.get(id as usize) else { return };
        let is_free = |of: &Self, at: u32| {
            of.nodes.get(at as usize).is_some_and(|node| node.state == State::Free)
        };
        if node.after != NONE && is_free(self, node.after) {
            id = self.join(id, node.after);
        }
        if node.before != NONE && is_free(self, node.before) {
            id = self.join(node.before, id);
        }
        let Some(&node) = self.nodes.get(id as usize) else { return };
        if let Some(pool) = self.pools.get_mut(node.pool as usize) {
            pool.free.insert((node.size, node.address, id));
        }
    }

    fn new_node(&mut self, node: Node) -> u32 {
        if let Some(id) = self.spare.pop() {
            if let Some(place) = self.nodes.get_mut(id as usize) {
                *place = node;
            }
            return id;
        }
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    fn drop_node(&mut self, id: u32) {
        if let Some(node) = self.nodes.get_mut(id as usize) {
            (node.size, node.state) = (0, State::Free);
            (node.before, node.after) = (NONE, NONE);
        }
        self.spare.push(id);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    /// Keeps totals from the reports alone, and checks every report against them.
    #[derive(Debug, Default)]
    struct Auditor {
        /// Live blocks: address → size.
        live: BTreeMap<u64, u64>,
        /// Segments, or their pieces: address → size.
        segments: BTreeMap<u64, u64>,
        allocated: u64,
        reserved: u64,
        failed: Vec<u64>,
    }

    impl Listener for Auditor {
        fn block(&mut self, address: u64, size: i64, allocated: u64, reserved: u64) {
            if size >= 0 {
                let size = size.unsigned_abs();
                let before = self.live.range(..address + size).next_back();
                assert!(before.is_none_or(|(at, bytes)| at + bytes <= address), "blocks overlap");
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

        fn segment(&mut self, segment: &Segment) {
            let Segment { address, size, .. } = *segment;
            let before = self.segments.range(..address + size).next_back();
            assert!(before.is_none_or(|(at, bytes)| at + bytes <= address), "segments overlap");
            self.segments.insert(address, size);
            self.reserved += size;
        }

        fn returned(&mut self, address: u64, size: u64) {
            let pieces = self.segments.extract_if(address..address + size, |_, _| true);
            assert_eq!(
                pieces.map(|(_, bytes)| bytes).sum::<u64>(),
                size,
                "it was no whole segment"
            );
            let inside = self.live.range(address..address + size).next();
            assert_eq!(inside, None, "a block lives in it");
            self.reserved -= size;
        }

        fn full(&mut self, size: u64, allocated: u64, reserved: u64) {
            assert_eq!((allocated, reserved), (self.allocated, self.reserved));
            self.failed.push(size);
        }
    }

    fn allocator(limit: u64, is_expandable: bool) -> Allocator<Auditor> {
        Allocator::new(Auditor::default(), limit, is_expandable)
    }

    #[test]
    fn a_block_has_a_segment() {
        let check = |request: u64, block: u64, reserved: u64| {
            let mut allocator = allocator(1 << 40, false);
            let held = allocator.alloc(request).expect("enough");
            let size = allocator.lying(held).map(|lying| lying.size);
            assert_eq!((size, allocator.reserved()), (Some(block), reserved), "{request}");
        };
        check(0, 512, 2 * MIB);
        check(513, 1024, 2 * MIB);
        check(2 * MIB + 1, 2 * MIB + 512, 20 * MIB);
        check(33 * MIB, 34 * MIB, 34 * MIB);
        check(32 * MIB + 1, 32 * MIB + 512, 34 * MIB);
    }

    #[test]
    fn a_survivor_pins_its_segment() {
        let mut allocator = allocator(100 * MIB, false);
        let large = allocator.alloc(60 * MIB).expect("enough");
        allocator.free(large);
        let inside = allocator.alloc(2 * MIB).expect("enough");
        assert_eq!(allocator.reserved(), 60 * MIB, "the large piece was split");
        let second = allocator.alloc(60 * MIB);
        assert_eq!(second, Err(OutOfMemory { size: 60 * MIB }), "98 MiB are free, in two pieces");
        assert_eq!((allocator.listener().failed.len(), allocator.retries()), (1, 1));
        allocator.free(inside);
        assert!(allocator.alloc(60 * MIB).is_ok(), "the pieces merged");
        // The large block finds room behind the small one where the segment grows.
        let mut growing = self::allocator(GIB, true);
        let large = growing.alloc(200 * MIB).expect("there is room");
        growing.free(large);
        growing.alloc(12 * MIB).expect("there is room");
        growing.alloc(200 * MIB).expect("there is room");
        assert_eq!(growing.reserved(), 220 * MIB);
    }

    #[test]
    fn a_full_device_is_an_error() {
        let mut small = allocator(20 << 20, false);
        let held = small.alloc(15 << 20).expect("enough");
        assert_eq!(small.alloc(10 << 20), Err(OutOfMemory { size: 10 << 20 }));
        small.free(held);
        assert!(small.alloc(10 << 20).is_ok(), "the cache is used");
        let mut small = allocator(20 << 20, false);
        let held = small.alloc(15 << 20).expect("enough");
        small.free(held);
        assert!(small.alloc(20 << 20).is_ok(), "the cache is given back");
    }

    proptest! {
        /// The auditor checks every report; in the end everything goes back to the device.
        #[test]
        fn totals_agree_and_segments_are_returned(
            requests in prop::collection::vec((0.0_f64..28.0, any::<u16>()), 1..400),
            is_expandable in any::<bool>(),
        ) {
            let mut allocator = allocator(GIB, is_expandable);
            let mut held = Vec::new();
            for (power, choice) in requests {
                let bytes = power.exp2() as u64;
                held.extend(allocator.alloc_on(u32::from(choice % 2), bytes));
                if choice % 3 == 0 && !held.is_empty() {
                    let block = held.swap_remove(usize::from(choice) % held.len());
                    if choice % 5 == 0 {
                        allocator.defer(block);
                    }
                    allocator.free(block);
                }
                let lying = allocator.all_lying().map(|(_, of)| of.size).sum::<u64>();
                prop_assert_eq!(lying, allocator.allocated() + allocator.pending());
                let free = allocator.pools.iter().flat_map(|pool| &pool.free);
                let free: u64 = free.map(|&(size, ..)| size).sum();
                prop_assert_eq!(lying + free, allocator.reserved());
            }
            held.into_iter().for_each(|block| allocator.free(block));
            allocator.empty_cache();
            prop_assert_eq!((allocator.allocated(), allocator.reserved()), (0, 0));
            prop_assert!(allocator.listener().segments.is_empty());
        }
    }
}
