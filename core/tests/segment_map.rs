//! The map of segments: filled exactly, with sums that agree with the counters, whatever is merged.

use memtape_core::limits::MAPPED_PARTS_MAX;
use memtape_core::segment_map::{
    MapBounds, MappedSegment, MergedParts, Part, PartKind, Pool, SegmentMap, SegmentSums,
};
use memtape_core::snapshot::ledger::Ledger;
use memtape_core::snapshot::{
    Block, DeviceSnapshot, Frame, Held, RankSnapshot, Segment, SegmentSource, StreamPool,
};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

const SOURCES: [SegmentSource; 3] =
    [SegmentSource::None, SegmentSource::Runtime, SegmentSource::Allocator];

fn frame(file: &str, line: u32, function: &str) -> Frame {
    Frame { file: file.into(), line, function: function.into() }
}

/// A rank whose stack 1 is of the user's code below PyTorch's, and whose stack 2 is of PyTorch
/// only.
fn rank() -> RankSnapshot {
    let private = StreamPool { stream: Some(7), pool: Some((0, 2)) };
    RankSnapshot {
        step: 9,
        frames: vec![
            Frame::default(),
            frame("/app/train.py", 80, "main"),
            frame("/x/site-packages/torch/nn/functional.py", 5, "linear"),
        ],
        stacks: vec![vec![], vec![2, 1], vec![2]],
        stream_pools: vec![StreamPool::default(), private],
        ..RankSnapshot::default()
    }
}

/// Blocks in MiB as (address, size, step in which they were allocated).
fn blocks(of: &[(u64, u64, u64)]) -> Vec<Block> {
    let block = |&(address, size, step): &(u64, u64, u64)| Block {
        address: address * MIB,
        size: size * MIB,
        requested: size * MIB - 5,
        stack: 1,
        birth_step: step - 1,
        ..Block::default()
    };
    of.iter().map(block).collect()
}

fn segment(address: u64, size: u64) -> Segment {
    Segment { address: address * MIB, size: size * MIB, ..Segment::default() }
}

fn bounds(parts_max: usize) -> MapBounds {
    MapBounds { parts_max, ..MapBounds::default() }
}

/// The parts of a segment in MiB, as (offset, size) and a letter.
fn drawn(segment: &MappedSegment) -> Vec<(u64, u64, char)> {
    let letter = |kind: PartKind| match kind {
        PartKind::Free => '-',
        PartKind::Block(block) if block.pending => 'p',
        PartKind::Block(_) => 'b',
        PartKind::Merged(_) => 'm',
    };
    segment
        .parts
        .iter()
        .map(|part| (part.offset / MIB, part.bytes / MIB, letter(part.kind)))
        .collect()
}

#[test]
fn blocks_and_free_ranges_fill_their_segments() {
    let mut blocks = blocks(&[(100, 2, 1), (105, 3, 6), (200, 1, 9)]);
    blocks[1].pending = true;
    let device = DeviceSnapshot {
        allocated: 3 * MIB,
        reserved: 52 * MIB,
        segments: vec![
            segment(100, 20),
            Segment { small: true, stream_pool: 1, ..segment(200, 2) },
            segment(300, 30),
        ],
        segment_source: SegmentSource::Allocator,
        blocks,
        complete: true,
        ..DeviceSnapshot::default()
    };
    let rank = rank();
    let map = SegmentMap::of(&rank, &device, MapBounds::default());
    let [used, private, cached] = &map.segments[..] else { panic!("{map:?}") };
    assert_eq!(drawn(used), [(0, 2, 'b'), (2, 3, '-'), (5, 3, 'p'), (8, 12, '-')]);
    assert_eq!(
        (used.address, used.pool, used.largest_free_bytes),
        (100 * MIB, Pool::Large, 12 * MIB)
    );
    let PartKind::Block(block) = used.parts[2].kind else { panic!("{used:?}") };
    assert_eq!((block.step, block.requested, block.stack), (6, Some(3 * MIB - 5), Some(0)));
    assert_eq!(drawn(private), [(0, 1, 'b'), (1, 1, '-')]);
    assert_eq!(
        (private.pool, private.private_pool, private.stream),
        (Pool::Private, Some((0, 2)), Some(7))
    );
    assert_eq!(drawn(cached), [(0, 30, '-')]);
    let free = map.free.expect("the allocator reported");
    assert_eq!(
        (free.split_bytes, free.cached_bytes, free.largest_bytes),
        (16 * MIB, 30 * MIB, 30 * MIB)
    );
    assert_eq!((map.allocated_difference, map.reserved_difference), (0, Some(0)));
    assert_eq!(map.sums.allocated, Held { bytes: 3 * MIB, count: 2 });
    assert_eq!(map.sums.pending, Held { bytes: 3 * MIB, count: 1 });
    // One stack, its frames outermost first, and the line as an incident names it.
    let [stack] = &map.stacks.stacks[..] else { panic!("{:?}", map.stacks) };
    let names: Vec<&str> =
        stack.frames.iter().map(|&at| map.stacks.frames[at as usize].function.as_str()).collect();
    assert_eq!((names, stack.line, stack.held.count), (vec!["main", "linear"], Some(0), 3));
}

#[test]
fn counters_that_disagree_are_shown() {
    let known = DeviceSnapshot {
        allocated: 7 * MIB,
        reserved: 22 * MIB,
        segments: vec![segment(100, 20)],
        segment_source: SegmentSource::Allocator,
        blocks: blocks(&[(100, 2, 1), (101, 2, 1), (119, 2, 1)]),
        ..DeviceSnapshot::default()
    };
    let rank = rank();
    let map = SegmentMap::of(&rank, &known, MapBounds::default());
    assert_eq!(map.allocated_difference, MIB as i64);
    assert_eq!(map.reserved_difference, Some(2 * MIB as i64));
    assert_eq!(map.misplaced, Held { bytes: 4 * MIB, count: 2 }, "overlap, and beyond the segment");
    assert_eq!(map.free, None, "blocks are missing");
    // The runtime's segments are the allocator's where their bytes are those of its counter.
    for (reserved, is_known) in [(20, true), (22, false)] {
        let runtime = DeviceSnapshot {
            reserved: reserved * MIB,
            segment_source: SegmentSource::Runtime,
            blocks: blocks(&[(100, 2, 1)]),
            complete: true,
            ..known.clone()
        };
        let map = SegmentMap::of(&rank, &runtime, MapBounds::default());
        assert_eq!(map.free.is_some(), is_known, "{reserved} MiB are reserved");
    }
    // Without segments nothing is known of the free memory; ranges are made up around the blocks.
    let unknown =
        DeviceSnapshot { segments: Vec::new(), segment_source: SegmentSource::None, ..known };
    let map = SegmentMap::of(&rank, &unknown, MapBounds::default());
    assert_eq!((map.free, map.reserved_difference, map.listed_bytes), (None, None, 0));
    let made_up: Vec<(u64, Pool)> =
        map.segments.iter().map(|of| (of.sums.bytes, of.pool)).collect();
    assert_eq!(made_up, [(4 * MIB, Pool::Unknown), (4 * MIB, Pool::Unknown)]);
}

#[test]
fn the_smallest_are_merged_first_and_no_more_than_it_takes() {
    let device = DeviceSnapshot {
        segments: vec![segment(0, 40)],
        segment_source: SegmentSource::Allocator,
        blocks: blocks(&[(0, 1, 3), (1, 1, 5), (3, 1, 4), (4, 20, 1), (30, 2, 2), (32, 4, 2)]),
        ..DeviceSnapshot::default()
    };
    let rank = rank();
    let map = |parts_max| SegmentMap::of(&rank, &device, bounds(parts_max));
    assert_eq!(drawn(&map(9).segments[0]).len(), 9, "there is room for all");
    let merged = map(8);
    let [first, ..] = &merged.segments[0].parts[..] else { panic!("{merged:?}") };
    let allocated = Held { bytes: 3 * MIB, count: 3 };
    let expected = MergedParts { allocated, pending: Held::default(), steps: (3, 5) };
    assert_eq!((first.bytes, first.kind), (4 * MIB, PartKind::Merged(expected)));
    assert_eq!(drawn(&merged.segments[0]).len(), 6, "of those that are alike, all");
    assert_eq!(merged.merged(), allocated);
    assert_eq!(
        drawn(&map(4).segments[0]),
        [(0, 4, 'm'), (4, 20, 'b'), (24, 6, '-'), (30, 10, 'm')]
    );
    assert_eq!(drawn(&map(0).segments[0]), [(0, 40, 'm')], "one for each segment in any case");
    let none = MapBounds { segments_max: 0, ..MapBounds::default() };
    let none = SegmentMap::of(&rank, &device, none);
    assert_eq!((none.segments.len(), none.other_segments), (0, none.sums));
}

#[test]
fn stacks_without_room_are_added_up() {
    let mut device = DeviceSnapshot {
        blocks: blocks(&[(0, 1, 1), (1, 1, 1), (2, 5, 1), (7, 1, 1)]),
        ..DeviceSnapshot::default()
    };
    device.blocks[0].stack = 2;
    device.blocks[3].stack = 0;
    let rank = rank();
    for bounds in [
        MapBounds { stacks_max: 1, ..MapBounds::default() },
        // Room for the larger stack with its two frames.
        MapBounds { stacks_bytes_max: 500, ..MapBounds::default() },
    ] {
        let stacks = SegmentMap::of(&rank, &device, bounds).stacks;
        let held: Vec<Held> = stacks.stacks.iter().map(|stack| stack.held).collect();
        assert_eq!(held, [Held { bytes: 6 * MIB, count: 2 }]);
        assert_eq!(stacks.others, (1, Held { bytes: MIB, count: 1 }));
    }
}

/// A device whose counters, segments and blocks agree: each segment is cut into pieces of a size
/// and a kind: free, pending free, or allocated by a stack in a step.
fn any_sound_device() -> impl Strategy<Value = DeviceSnapshot> {
    let piece = (1..4000_u64, 0..5_u32, 0..9_u64);
    let pieces = prop::collection::vec(piece, 1..24);
    let segment = (pieces, 0..3_u64, any::<bool>(), 0..2_u16);
    prop::collection::vec(segment, 0..8).prop_map(|segments| {
        let mut device = DeviceSnapshot {
            segment_source: SegmentSource::Allocator,
            complete: true,
            ..DeviceSnapshot::default()
        };
        let mut at = 512;
        for (pieces, gap, expandable, stream_pool) in segments {
            // Neighbours that are free are one range, and segments may touch.
            at += gap * 512;
            let address = at;
            for (size, kind, birth_step) in pieces {
                let size = size * 512;
                let block =
                    Block { address: at, size, birth_step, stack: kind % 4, ..Block::default() };
                let block = Block { pending: kind == 1, stream_pool, ..block };
                device.blocks.extend((kind > 0).then_some(block));
                at += size;
            }
            let size = at - address;
            device.segments.push(Segment {
                address,
                size,
                expandable,
                stream_pool,
                ..Segment::default()
            });
        }
        let live = device.blocks.iter().filter(|block| !block.pending);
        device.allocated = live.map(|block| block.size).sum();
        device.reserved = device.segments.iter().map(|segment| segment.size).sum();
        device
    })
}

fn any_bounds() -> impl Strategy<Value = MapBounds> {
    (0..10_usize, 0..120_usize, 0..5_usize, 0..900_u64).prop_map(
        |(segments_max, parts_max, stacks_max, stacks_bytes_max)| MapBounds {
            segments_max,
            parts_max,
            stacks_max,
            stacks_bytes_max,
        },
    )
}

/// What a part holds: allocated, pending free, and free bytes.
fn held(part: &Part) -> (Held, Held, u64) {
    let one = Held { bytes: part.bytes, count: 1 };
    match part.kind {
        PartKind::Free => (Held::default(), Held::default(), part.bytes),
        PartKind::Block(block) if block.pending => (Held::default(), one, 0),
        PartKind::Block(_) => (one, Held::default(), 0),
        PartKind::Merged(of) => {
            (of.allocated, of.pending, part.bytes - of.allocated.bytes - of.pending.bytes)
        }
    }
}

/// The sums of a segment, of its parts.
fn sums(segment: &MappedSegment) -> SegmentSums {
    let mut sums = SegmentSums { segments: 1, ..SegmentSums::default() };
    for part in &segment.parts {
        let (allocated, pending, free_bytes) = held(part);
        sums.bytes += part.bytes;
        sums.allocated = sums.allocated.plus(allocated);
        sums.pending = sums.pending.plus(pending);
        sums.free_bytes += free_bytes;
    }
    sums
}

fn plus(a: SegmentSums, b: SegmentSums) -> SegmentSums {
    SegmentSums {
        segments: a.segments + b.segments,
        bytes: a.bytes + b.bytes,
        allocated: a.allocated.plus(b.allocated),
        pending: a.pending.plus(b.pending),
        free_bytes: a.free_bytes + b.free_bytes,
    }
}

/// Segments in order, each filled from its first byte to its last: nothing overlaps.
fn assert_filled(map: &SegmentMap<'_>, bounds: MapBounds) {
    assert!(map.segments.len() <= bounds.segments_max);
    let mut end = 0;
    for segment in &map.segments {
        assert!(segment.address >= end, "segments overlap");
        let mut offset = 0;
        for part in &segment.parts {
            assert_eq!(part.offset, offset, "a hole, or parts overlap");
            assert!(part.bytes > 0);
            offset += part.bytes;
            if let PartKind::Merged(of) = part.kind {
                assert!(of.steps.0 <= of.steps.1 && of.allocated.count + of.pending.count > 0);
            }
        }
        assert_eq!(offset, segment.sums.bytes);
        assert_eq!(sums(segment), segment.sums);
        end = segment.address + offset;
    }
    let listed = map.segments.iter().map(|segment| segment.sums).reduce(plus).unwrap_or_default();
    assert_eq!(plus(listed, map.other_segments), map.sums);
    let parts: usize = map.segments.iter().map(|segment| segment.parts.len()).sum();
    assert!(parts <= bounds.parts_max.max(map.segments.len()), "{parts} parts");
}

proptest! {
    /// Bytes of segments add up to the reserved counter, allocated blocks to the allocated one.
    #[test]
    fn sums_are_the_counters(device in any_sound_device(), bounds in any_bounds()) {
        let rank = rank();
        let map = SegmentMap::of(&rank, &device, bounds);
        assert_filled(&map, bounds);
        prop_assert_eq!((map.sums.bytes, map.listed_bytes), (device.reserved, device.reserved));
        prop_assert_eq!(map.sums.allocated.bytes, device.allocated);
        prop_assert_eq!(map.sums.blocks(), device.blocks.len() as u64);
        prop_assert_eq!(map.allocated_difference, 0);
        prop_assert_eq!(map.reserved_difference, (device.reserved > 0).then_some(0));
        prop_assert_eq!(map.misplaced, Held::default());
        let free = map.free.expect("the allocator reported");
        prop_assert_eq!(Some(free.split_bytes), Ledger::inactive_split(&device), "as elsewhere");
        prop_assert_eq!(free.split_bytes + free.cached_bytes, map.sums.free_bytes);
    }

    /// What the stacks, those without room and merged or unknown ones hold are all blocks.
    #[test]
    fn stacks_hold_the_blocks_that_are_shown(device in any_sound_device(), bounds in any_bounds()) {
        let rank = rank();
        let map = SegmentMap::of(&rank, &device, bounds);
        let listed = map.stacks.stacks.iter().fold(Held::default(), |sum, of| sum.plus(of.held));
        let parts = map.segments.iter().flat_map(|segment| &segment.parts);
        let (mut of_list, mut of_none) = (Held::default(), Held::default());
        for part in parts {
            if let PartKind::Block(block) = part.kind {
                let sum = if block.stack.is_some() { &mut of_list } else { &mut of_none };
                sum.add(part.bytes);
            }
        }
        prop_assert_eq!(listed, of_list);
        prop_assert!(map.stacks.others.1.bytes <= of_none.bytes, "the others are unknown");
        prop_assert!(map.stacks.stacks.len() <= bounds.stacks_max);
        let frames = map.stacks.frames.len() as u32;
        prop_assert!(map.stacks.stacks.iter().flat_map(|of| &of.frames).all(|&at| at < frames));
    }

    /// A tape may say anything.
    #[test]
    fn any_device_makes_a_map(
        segments in prop::collection::vec((0_u64..64, 0_u64..9), 0..12),
        blocks in prop::collection::vec((0_u64..64, 0_u64..5, 0_u32..9, any::<bool>()), 0..24),
        base in prop::sample::select(vec![0, 1 << 40, u64::MAX - 70]),
        source in prop::sample::select(SOURCES.to_vec()),
        counters in any::<(u64, u64)>(),
        bounds in any_bounds(),
    ) {
        let segment = |&(at, size): &(u64, u64)| {
            Segment { address: base + at, size, ..Segment::default() }
        };
        let block = |&(at, size, stack, pending): &(u64, u64, u32, bool)| {
            Block { address: base + at, size, stack, pending, ..Block::default() }
        };
        let device = DeviceSnapshot {
            allocated: counters.0,
            reserved: counters.1,
            segments: segments.iter().map(segment).collect(),
            segment_source: source,
            blocks: blocks.iter().map(block).collect(),
            ..DeviceSnapshot::default()
        };
        let rank = rank();
        let map = SegmentMap::of(&rank, &device, bounds);
        assert_filled(&map, bounds);
        let all: u64 = device.blocks.iter().map(|block| block.size).sum();
        let shown = map.sums.allocated.plus(map.sums.pending);
        prop_assert_eq!(shown.bytes + map.misplaced.bytes, all);
        let sized = device.blocks.iter().filter(|block| block.size > 0).count() as u64;
        prop_assert_eq!(shown.count + map.misplaced.count, sized);
    }
}

#[test]
fn a_map_of_more_blocks_than_fit_is_bounded() {
    let mut device = any_large_device(2 * MAPPED_PARTS_MAX as u64);
    let rank = rank();
    let map = SegmentMap::of(&rank, &device, MapBounds::default());
    assert_filled(&map, MapBounds::default());
    assert!(map.merged().count > 0);
    device.blocks.truncate(MAPPED_PARTS_MAX / 4);
    let map = SegmentMap::of(&rank, &device, MapBounds::default());
    assert_eq!(map.merged(), Held::default());
}

/// One segment with this number of blocks of many sizes, with free ranges between them.
fn any_large_device(count: u64) -> DeviceSnapshot {
    let mut at = 0;
    let mut device =
        DeviceSnapshot { segment_source: SegmentSource::Allocator, ..DeviceSnapshot::default() };
    for number in 0..count {
        let size = 512 * (1 + number * 7919 % 1009);
        device.blocks.push(Block { address: at, size, ..Block::default() });
        at += size + 512 * (number % 3);
    }
    device.segments.push(Segment { address: 0, size: at, ..Segment::default() });
    device
}
