//! A caching allocator after PyTorch's: segments from the device, best fit, splits and merges.
//!
//! What it shares with the real one is what fragmentation comes from: sizes are rounded to 512
//! bytes, small requests (up to 1 MiB) have segments of their own, large ones take 20 MiB or their
//! size in whole 2 MiB, a free block is split where enough remains, neighbours merge, nothing goes
//! back to the device before a request fails, and then only segments that are free as a whole. With
//! expandable segments each pool is one segment that grows at its end.
//!
//! Left out: the age of pools, roundups by power of two, `max_split_size`, private pools' deaths.

use std::collections::{BTreeMap, BTreeSet};

/// Where a block is remembered: index of a node.
pub type Handle = u32;

const NONE: u32 = u32::MAX;
const MIB: u64 = 1 << 20;

/// Requests up to this size come from small segments.
const SMALL_MAX: u64 = MIB;
const SMALL_SEGMENT: u64 = 2 * MIB;
/// Requests below this size share segments of 20 MiB.
const SHARED_MAX: u64 = 10 * MIB;
const SHARED_SEGMENT: u64 = 20 * MIB;
/// Address space between two growing segments.
const EXPANDABLE_SPAN: u64 = 1 << 44;

/// Streams from this number on stand for private pools, as CUDA graphs have them.
pub const PRIVATE: u32 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Live,
    /// Taken back by the program, still used by another stream.
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
    segment: u32,
    tag: Tag,
}

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
    /// Device address.
    pub address: u64,
    /// Size.
    pub size: u64,
    /// Step in which it was taken from the device.
    pub taken: u64,
    /// Step in which it went back; the largest number while it has not.
    pub returned: u64,
    /// For blocks up to 1 MiB.
    pub is_small: bool,
    /// Part of a growing segment.
    pub is_expandable: bool,
    /// Stream it belongs to, or private pool.
    pub stream: u32,
}

/// The free blocks of one stream and size class.
#[derive(Debug, Default)]
struct Pool {
    free: BTreeSet<(u64, u64, u32)>,
    /// Last node of the growing segment.
    tail: Option<u32>,
}

/// One device's allocator.
#[derive(Debug, Default)]
pub struct Allocator {
    nodes: Vec<Node>,
    spare: Vec<u32>,
    pools: Vec<Pool>,
    by_stream: BTreeMap<u32, u32>,
    /// Every segment there ever was.
    pub segments: Vec<SegmentLife>,
    next_address: u64,
    is_expandable: bool,
    /// Bytes in live blocks.
    pub allocated: u64,
    /// Bytes taken back that other streams still use.
    pub pending: u64,
    /// Bytes in segments.
    pub reserved: u64,
    /// Number of live blocks.
    pub blocks: u64,
    /// Times the cache was emptied to satisfy a request.
    pub retries: u64,
    /// Step under way.
    pub step: u64,
    /// Bytes that segments may take together.
    pub limit: u64,
}

impl Allocator {
    /// An allocator that has taken nothing.
    pub fn new(is_expandable: bool, limit: u64) -> Self {
        Self { is_expandable, limit, next_address: 0x7f00_0000_0000, step: 1, ..Self::default() }
    }

    /// Hands out a block of stream 0.
    pub fn alloc(&mut self, bytes: u64, stack: u32) -> Option<Handle> {
        self.alloc_on(0, bytes, stack)
    }

    /// Hands out a block of a stream; none when the device is full.
    pub fn alloc_on(&mut self, stream: u32, bytes: u64, stack: u32) -> Option<Handle> {
        let size = bytes.max(1).next_multiple_of(512);
        let is_small = size <= SMALL_MAX;
        let pool = self.pool(stream, is_small);
        let mut found = self.fit(pool, size);
        if found.is_none() {
            found = self.grow(pool, size, (stream, is_small));
        }
        let id = found?;
        self.split(id, size, is_small);
        let tag = Tag { stack, step: self.step, requested: bytes, freed: 0, stream };
        let node = self.nodes.get_mut(id as usize)?;
        (node.state, node.tag) = (State::Live, tag);
        self.allocated += node.size;
        self.blocks += 1;
        Some(id)
    }

    /// Takes a block back.
    pub fn free(&mut self, id: Handle) -> Option<Lying> {
        let node = self.nodes.get_mut(id as usize)?;
        match node.state {
            State::Free => return None,
            State::Live => {
                self.allocated -= node.size;
                self.blocks -= 1;
                node.tag.freed = self.step;
            }
            State::Pending => self.pending -= node.size,
        }
        node.state = State::Free;
        let lying = Lying { address: node.address, size: node.size, tag: node.tag };
        self.merge(id);
        Some(lying)
    }

    /// The program takes a block back that another stream still uses; [`Self::free`] ends that.
    pub fn defer(&mut self, id: Handle) {
        let Some(node) = self.nodes.get_mut(id as usize) else { return };
        if node.state == State::Live {
            node.state = State::Pending;
            node.tag.freed = self.step;
            self.allocated -= node.size;
            self.pending += node.size;
            self.blocks -= 1;
        }
    }

    /// Blocks that are not free.
    pub fn lying(&self) -> impl Iterator<Item = Lying> {
        let used = self.nodes.iter().filter(|node| node.state != State::Free && node.size > 0);
        used.map(|node| Lying { address: node.address, size: node.size, tag: node.tag })
    }

    /// Bytes in free pieces of segments in which others are in use.
    pub fn inactive_split(&self) -> u64 {
        let free = self.pools.iter().flat_map(|pool| pool.free.iter());
        free.filter(|&&(.., id)| {
            self.nodes
                .get(id as usize)
                .is_some_and(|node| node.before != NONE || node.after != NONE)
        })
        .map(|&(size, ..)| size)
        .sum()
    }

    /// Gives every segment that is free as a whole back to the device, as `empty_cache` does.
    pub fn empty_cache(&mut self) {
        let whole: Vec<u32> = self
            .pools
            .iter()
            .flat_map(|pool| pool.free.iter().map(|&(.., id)| id))
            .filter(|&id| {
                let node = self.nodes.get(id as usize);
                node.is_some_and(|node| node.before == NONE && node.after == NONE)
            })
            .collect();
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
        let end = node.address + node.size;
        let step = self.step;
        // A growing segment was mapped in several pieces; all of them from this one on are its own.
        let pieces = if self.is_expandable { usize::MAX } else { 1 };
        for life in self.segments.iter_mut().skip(node.segment as usize).take(pieces) {
            let is_inside = life.address >= node.address && life.address < end;
            if is_inside && life.returned == u64::MAX {
                life.returned = step;
            }
        }
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
            (true, true) => (size - spare.min(size)).next_multiple_of(SMALL_SEGMENT),
            (false, true) => (size - spare.min(size)).next_multiple_of(SHARED_SEGMENT),
            (true, false) => SMALL_SEGMENT,
            (false, false) if size < SHARED_MAX => SHARED_SEGMENT,
            (false, false) => size.next_multiple_of(2 * MIB),
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
        let segment = self.segments.len() as u32;
        self.segments.push(SegmentLife {
            address,
            size: wanted,
            taken: self.step,
            returned: u64::MAX,
            is_small,
            is_expandable: self.is_expandable,
            stream,
        });
        let before = tail.unwrap_or(NONE);
        let segment = last.map_or(segment, |node| node.segment);
        let id = self.new_node(Node {
            address,
            size: wanted,
            state: State::Live,
            before,
            after: NONE,
            pool,
            segment,
            tag: Tag::default(),
        });
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
    use super::*;
    use crate::rng::Rng;

    const GIB: u64 = 1 << 30;

    /// Sums agree, nothing overlaps, every segment is covered.
    fn check(allocator: &Allocator) {
        let mut lying: Vec<Lying> = allocator.lying().collect();
        lying.sort_by_key(|block| block.address);
        for pair in lying.windows(2) {
            assert!(pair[0].address + pair[0].size <= pair[1].address, "{pair:?} overlap");
        }
        let used: u64 = lying.iter().map(|block| block.size).sum();
        assert_eq!(used, allocator.allocated + allocator.pending);
        let free: u64 =
            allocator.pools.iter().flat_map(|pool| &pool.free).map(|&(size, ..)| size).sum();
        assert_eq!(used + free, allocator.reserved);
        let there = allocator.segments.iter().filter(|life| life.returned == u64::MAX);
        assert_eq!(there.map(|life| life.size).sum::<u64>(), allocator.reserved);
        assert!(allocator.reserved <= allocator.limit);
    }

    #[test]
    fn sums_hold_whatever_is_asked() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed, 0);
            let mut allocator = Allocator::new(rng.chance(0.5), GIB);
            let mut held: Vec<Handle> = Vec::new();
            for turn in 0..3_000 {
                allocator.step = turn / 10 + 1;
                if rng.chance(0.55) {
                    let bytes = rng.log_uniform(100.0, 3e8) as u64;
                    let stream = rng.between(0, 2) as u32;
                    held.extend(allocator.alloc_on(stream, bytes, 0));
                } else if !held.is_empty() {
                    let id = held.swap_remove(rng.between(0, held.len() as u64) as usize);
                    if rng.chance(0.2) {
                        allocator.defer(id);
                    }
                    assert!(allocator.free(id).is_some());
                }
                if turn % 100 == 0 {
                    check(&allocator);
                }
            }
            for id in held {
                allocator.free(id);
            }
            allocator.empty_cache();
            check(&allocator);
            assert_eq!((allocator.allocated, allocator.reserved), (0, 0), "seed {seed}");
            assert!(allocator.retries > 0, "seed {seed} never filled the device");
        }
    }

    #[test]
    fn a_survivor_pins_its_segment() {
        let mut allocator = Allocator::new(false, GIB);
        let large = allocator.alloc(200 * MIB, 0).expect("there is room");
        allocator.free(large);
        let small = allocator.alloc(12 * MIB, 0).expect("there is room");
        let again = allocator.alloc(200 * MIB, 0).expect("there is room");
        assert_eq!(allocator.reserved, 400 * MIB);
        allocator.free(again);
        allocator.empty_cache();
        assert_eq!(allocator.reserved, 200 * MIB);
        assert_eq!(allocator.inactive_split(), 188 * MIB);
        allocator.free(small);
        // The same with a segment that grows: the large block finds room behind the small one.
        let mut growing = Allocator::new(true, GIB);
        let large = growing.alloc(200 * MIB, 0).expect("there is room");
        growing.free(large);
        growing.alloc(12 * MIB, 0).expect("there is room");
        growing.alloc(200 * MIB, 0).expect("there is room");
        assert_eq!(growing.reserved, 220 * MIB);
    }
}
