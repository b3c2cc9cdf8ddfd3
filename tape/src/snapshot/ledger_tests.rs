//! Cases of the partition, and that it always adds up.

use alloc::vec;

use proptest::prelude::*;

use super::*;
use crate::snapshot::Block;

const MIB: u64 = 1 << 20;

fn outside(origin: Origin, bytes: u64) -> OutsideUse {
    OutsideUse { origin, device: 0, bytes, count: 1 }
}

fn segment(address: u64, size: u64) -> Segment {
    Segment { address, size, ..Segment::default() }
}

fn block(address: u64, size: u64, requested: u64) -> Block {
    Block { address, size, requested, ..Block::default() }
}

/// Two segments, one of them half in use and one empty; one free is deferred.
fn allocator(segment_source: SegmentSource) -> DeviceSnapshot {
    let pending = Block { pending: true, ..block(0x2_0040_0000, MIB, 1) };
    DeviceSnapshot {
        allocated: 4 * MIB,
        reserved: 40 * MIB,
        blocks: vec![block(0x2_0000_0000, 4 * MIB, 4 * MIB - 100), pending],
        segments: vec![segment(0x1_0000_0000, 20 * MIB), segment(0x2_0000_0000, 20 * MIB)],
        segment_source,
        complete: true,
        ..DeviceSnapshot::default()
    }
}

fn amounts(ledger: &Ledger) -> Vec<(Name, Option<u64>)> {
    let amount = |layer: &Layer| match layer.amount {
        Amount::Known(bytes) => (layer.name, Some(bytes)),
        Amount::Unknown => (layer.name, None),
    };
    ledger.layers.iter().map(amount).collect()
}

#[test]
fn with_every_source_the_rest_is_the_context() {
    let allocator = allocator(SegmentSource::Allocator);
    let outside = [outside(Origin::CudaMalloc, 50 * MIB), outside(Origin::Nccl, 7 * MIB)];
    let ledger = Ledger::of(&Sources {
        device_bytes: Some(1000 * MIB),
        free_bytes: Some(500 * MIB),
        process_bytes: Some(400 * MIB),
        allocator: Some(&allocator),
        outside: Some(&outside),
    });
    let expected = [
        (Name::Free, Some(500 * MIB)),
        (Name::OtherProcesses, Some(100 * MIB)),
        (Name::Nccl, Some(7 * MIB)),
        (Name::OtherCode, Some(10 * MIB)),
        (Name::Cached, Some(20 * MIB)),
        (Name::InactiveSplit, Some(15 * MIB)),
        (Name::Deferred, Some(MIB)),
        (Name::Rounding, Some(100)),
        (Name::Requested, Some(4 * MIB - 100)),
    ];
    assert_eq!(amounts(&ledger), expected);
    assert_eq!(ledger.rest_bytes, Some(i128::from((400 - 40 - 10 - 7) * MIB)));
}

#[test]
fn a_layer_without_a_source_is_unknown_and_in_the_remainder() {
    let mut allocator = allocator(SegmentSource::None);
    allocator.segments.clear();
    allocator.blocks.iter_mut().for_each(|block| block.requested = 0);
    allocator.blocks.truncate(1);
    let ledger = Ledger::of(&Sources {
        device_bytes: Some(1000 * MIB),
        allocator: Some(&allocator),
        outside: Some(&[]),
        ..Sources::default()
    });
    let expected = [
        (Name::Free, None),
        (Name::OtherProcesses, None),
        (Name::Nccl, None),
        (Name::OtherCode, None),
        (Name::Cached, None),
        (Name::InactiveSplit, None),
        (Name::Unused, Some(36 * MIB)),
        (Name::Deferred, None),
        (Name::Rounding, None),
        (Name::Requested, None),
        (Name::InUse, Some(4 * MIB)),
    ];
    assert_eq!(amounts(&ledger), expected);
    assert_eq!(ledger.rest_bytes, Some(i128::from(960 * MIB)));
    let nothing = Ledger::of(&Sources::default());
    assert!(nothing.layers.iter().all(|layer| layer.amount == Amount::Unknown));
    assert_eq!((nothing.device_bytes, nothing.rest_bytes), (None, None));
}

#[test]
fn other_code_is_known_only_where_the_allocators_segments_are() {
    let taken = [outside(Origin::CudaMalloc, 50 * MIB)];
    let other = |allocator: Option<&DeviceSnapshot>| {
        let sources = Sources { allocator, outside: Some(&taken), ..Sources::default() };
        Ledger::of(&sources).amount(Name::OtherCode)
    };
    // No allocator at all (PYTORCH_NO_CUDA_MEMORY_CACHING=1): everything is.
    assert_eq!(other(None), Amount::Known(50 * MIB));
    let by_calls = allocator(SegmentSource::Runtime);
    assert_eq!(other(Some(&by_calls)), Amount::Known(10 * MIB));
    // A block outside of what cudaMalloc gave: expandable segments are in use as well.
    let mut mixed = by_calls.clone();
    mixed.blocks.insert(0, block(0x1000, 512, 0));
    assert_eq!(other(Some(&mixed)), Amount::Unknown);
    let mut expandable = allocator(SegmentSource::Allocator);
    expandable.segments.iter_mut().for_each(|segment| segment.expandable = true);
    assert_eq!(other(Some(&expandable)), Amount::Known(50 * MIB));
}

#[test]
fn where_the_drivers_calls_are_recorded_all_segments_are_taken_off() {
    let taken = [outside(Origin::CudaMalloc, 25 * MIB), outside(Origin::DriverVmm, 30 * MIB)];
    let other = |allocator: Option<&DeviceSnapshot>| {
        let sources = Sources { allocator, outside: Some(&taken), ..Sources::default() };
        Ledger::of(&sources).amount(Name::OtherCode)
    };
    assert_eq!(other(None), Amount::Known(55 * MIB));
    // One of its two segments came from each.
    let mut mixed = allocator(SegmentSource::Allocator);
    mixed.segments[1].expandable = true;
    assert_eq!(other(Some(&mixed)), Amount::Known(15 * MIB));
    mixed.segment_source = SegmentSource::Runtime;
    assert_eq!(other(Some(&mixed)), Amount::Known(15 * MIB));
    mixed.segment_source = SegmentSource::None;
    assert_eq!(other(Some(&mixed)), Amount::Unknown);
}

#[test]
fn the_free_part_of_an_expandable_segment_is_cached() {
    let mut allocator = allocator(SegmentSource::Allocator);
    for segment in &mut allocator.segments {
        segment.expandable = true;
    }
    // This one begins in the first part and ends in the second.
    let first_end = 0x1_0000_0000 + 20 * MIB;
    allocator.segments[1].address = first_end;
    allocator.blocks = vec![block(first_end - MIB, 4 * MIB, 4 * MIB)];
    let sources = Sources { allocator: Some(&allocator), ..Sources::default() };
    let ledger = Ledger::of(&sources);
    assert_eq!(ledger.amount(Name::InactiveSplit), Amount::Known(0));
    assert_eq!(ledger.amount(Name::Cached), Amount::Known(36 * MIB));
}

fn any_bytes() -> impl Strategy<Value = u64> {
    prop_oneof![0..1u64 << 40, any::<u64>()]
}

fn any_origin() -> impl Strategy<Value = Origin> {
    (0u16..10).prop_map(Origin::from_number)
}

fn any_allocator() -> impl Strategy<Value = DeviceSnapshot> {
    let source = prop_oneof![
        Just(SegmentSource::None),
        Just(SegmentSource::Runtime),
        Just(SegmentSource::Allocator)
    ];
    let blocks = proptest::collection::vec(any::<(u32, u32, u32, bool)>(), 0..20);
    let segments = proptest::collection::vec(any::<(u32, u32, bool)>(), 0..8);
    (any_bytes(), any_bytes(), source, blocks, segments, any::<bool>()).prop_map(
        |(allocated, reserved, segment_source, mut blocks, mut segments, complete)| {
            blocks.sort_unstable();
            segments.sort_unstable();
            let blocks = blocks.into_iter().map(|(address, size, requested, pending)| Block {
                pending,
                ..block(address.into(), size.into(), requested.into())
            });
            let segments = segments.into_iter().map(|(address, size, expandable)| Segment {
                expandable,
                ..segment(address.into(), size.into())
            });
            DeviceSnapshot {
                allocated,
                reserved,
                segment_source,
                blocks: blocks.collect(),
                segments: segments.collect(),
                complete,
                ..DeviceSnapshot::default()
            }
        },
    )
}

#[test]
fn totals_alone_give_sums_of_layers() {
    let known = Standing {
        device_bytes: Some(1000),
        free_bytes: Some(500),
        process_bytes: Some(400),
        allocated: 200,
        reserved: 300,
        deferred: Some(10),
        outside: Some(&[outside(Origin::CudaMalloc, 310), outside(Origin::Nccl, 20)]),
    };
    let ledger = Ledger::live(&known);
    let expected = [
        (Name::Free, Some(500)),
        (Name::OtherProcesses, Some(100)),
        (Name::Nccl, Some(20)),
        (Name::OtherCode, None),
        (Name::Cached, None),
        (Name::InactiveSplit, None),
        (Name::Unused, Some(90)),
        (Name::Deferred, Some(10)),
        (Name::Rounding, None),
        (Name::Requested, None),
        (Name::InUse, Some(200)),
    ];
    assert_eq!(amounts(&ledger), expected);
    assert_eq!(ledger.rest_bytes, Some(80));
    let other = |standing: Standing<'_>| Ledger::live(&standing).amount(Name::OtherCode);
    // Without an allocator, or with the driver's calls, other code's part is known.
    let none = Standing { allocated: 0, reserved: 0, ..known };
    assert_eq!(other(none), Amount::Known(310));
    let taken = [outside(Origin::CudaMalloc, 310), outside(Origin::DriverVmm, 7)];
    assert_eq!(other(Standing { outside: Some(&taken), ..known }), Amount::Known(17));
    let pools = [outside(Origin::CudaMallocAsync, 5)];
    assert_eq!(other(Standing { outside: Some(&pools), ..known }), Amount::Known(5));
    let unknown = Ledger::live(&Standing { outside: None, deferred: None, ..known });
    assert_eq!(unknown.amount(Name::Nccl), Amount::Unknown);
    assert_eq!(unknown.amount(Name::Unused), Amount::Known(100));
}

proptest! {
    /// For any sources, the layers from totals alone add up, too.
    #[test]
    fn totals_always_add_up(
        bytes in proptest::array::uniform4(proptest::option::of(any_bytes())),
        allocated in any_bytes(),
        reserved in any_bytes(),
        uses in proptest::option::of(
            proptest::collection::vec((any_origin(), any_bytes()), 0..5)
        ),
    ) {
        let [device_bytes, free_bytes, process_bytes, deferred] = bytes;
        let uses: Option<Vec<OutsideUse>> = uses.map(|uses| {
            uses.into_iter().map(|(origin, bytes)| outside(origin, bytes)).collect()
        });
        let outside = uses.as_deref();
        let ledger = Ledger::live(&Standing {
            device_bytes, free_bytes, process_bytes, allocated, reserved, deferred, outside,
        });
        let known = amounts(&ledger).into_iter().filter_map(|(_, bytes)| bytes);
        let known: i128 = known.map(i128::from).sum();
        let whole = ledger.rest_bytes.map(|rest| known + rest);
        prop_assert_eq!(whole, device_bytes.map(i128::from));
        let names: Vec<Name> = ledger.layers.iter().map(|layer| layer.name).collect();
        prop_assert!(names.is_sorted());
    }

    /// For any sources, even contradictory ones: the layers add up, and nothing is hidden.
    #[test]
    fn it_always_adds_up(
        bytes in proptest::array::uniform3(proptest::option::of(any_bytes())),
        allocator in proptest::option::of(any_allocator()),
        uses in proptest::option::of(
            proptest::collection::vec((any_origin(), any_bytes()), 0..5)
        ),
    ) {
        let [device_bytes, free_bytes, process_bytes] = bytes;
        let uses: Option<Vec<OutsideUse>> = uses.map(|uses| {
            uses.into_iter().map(|(origin, bytes)| outside(origin, bytes)).collect()
        });
        let sources = Sources {
            device_bytes,
            free_bytes,
            process_bytes,
            allocator: allocator.as_ref(),
            outside: uses.as_deref(),
        };
        let ledger = Ledger::of(&sources);
        let known: i128 =
            amounts(&ledger).iter().filter_map(|(_, bytes)| bytes.map(i128::from)).sum();
        let whole = ledger.rest_bytes.map(|rest| known + rest);
        prop_assert_eq!(whole, device_bytes.map(i128::from));
        // What the allocator holds is split, never counted twice.
        if let Some(allocator) = &allocator && allocator.segment_source != SegmentSource::None {
            let inside = |(name, _): &&(Name, Option<u64>)| *name > Name::OtherCode;
            let amounts = amounts(&ledger);
            let held: u128 = amounts
                .iter()
                .filter(inside)
                .filter_map(|(_, bytes)| bytes.map(u128::from))
                .sum();
            prop_assert!(held >= u128::from(allocator.reserved.min(allocator.allocated)));
        }
    }
}
