//! The bound of what decoding takes, against what it does take: a counting allocator measures the
//! decoding of messages of every shape, hostile ones first of all.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use memtape_core::limits::{MESSAGE_DECODED_BYTES_MAX, SNAPSHOT_DECODED_BYTES_MAX};
use memtape_proto::decoding::{Encoded, Field, NotDecoded, Shape, Shaped};
use memtape_proto::snapshot::{self, Bounds, DecodeError};
use memtape_proto::v1;
use proptest::prelude::*;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Counts what each thread has allocated. An allocation that grows is there twice for a moment.
struct Counting;

fn count(bytes: isize) {
    // A thread that ends has no counters any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The peak of what `work` allocates beyond what was there.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = HELD.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    let done = work();
    (done, u64::try_from(PEAK.with(Cell::get) - before).unwrap())
}

/// Decoding takes no more than its bound; both.
fn check<M: Message + Shaped + Default>(wire: &[u8]) -> Option<(u64, u64)> {
    let encoded = Encoded::<M>::new(wire.to_vec().into());
    let (measured, measuring) = peak_of(|| encoded.measured(u64::MAX));
    assert_eq!(measuring, 0, "measuring allocates");
    let measured = measured.ok()?;
    let bound = measured.cost_bytes() - wire.len() as u64;
    let (decoded, peak) = peak_of(|| measured.decode());
    assert!(peak <= bound + ERROR_BYTES, "{peak} bytes were allocated, {bound} announced");
    decoded.ok().map(|_| (bound, peak))
}

/// What prost's error takes: the path to the damaged field.
const ERROR_BYTES: u64 = 1024;

/// A recipe for a message: what its fields are, whatever its shape.
fn recipes() -> impl Strategy<Value = Vec<(u32, Vec<u8>)>> {
    prop::collection::vec((0_u32..40, prop::collection::vec(any::<u8>(), 0..40)), 0..60)
}

/// A message of this shape by a recipe: each item chooses a field, and how it is filled.
fn write(shape: &Shape, recipe: &[(u32, Vec<u8>)], depth: usize, wire: &mut Vec<u8>) {
    for (index, (choice, filling)) in recipe.iter().enumerate() {
        let number = (*choice as usize % shape.fields.len().max(2)).max(1);
        let times = 1 + filling.first().map_or(0, |byte| usize::from(*byte % 9));
        for _ in 0..times {
            if wire.len() > 16 << 10 {
                return;
            }
            let mut value = Vec::new();
            match shape.fields.get(number) {
                Some(Field::Message(of) | Field::Messages(of)) if depth > 0 => {
                    let rest = recipe.get(index + 1..).unwrap_or_default();
                    write(of, &rest[..rest.len().min(filling.len()).min(4)], depth - 1, &mut value);
                }
                Some(Field::Text | Field::Texts) => {
                    value.extend(filling.iter().map(|byte| byte & 0x7f));
                }
                Some(Field::Numbers(_, 1)) => {
                    filling.iter().for_each(|byte| encode_varint(u64::from(*byte), &mut value));
                }
                Some(Field::Numbers(_, bytes)) => value.resize(bytes * filling.len(), 1),
                Some(Field::Flat) | None => {
                    encode_key(number as u32, WireType::Varint, wire);
                    encode_varint(u64::from(*choice), wire);
                    continue;
                }
                Some(Field::Message(_) | Field::Messages(_)) => {}
            }
            encode_key(number as u32, WireType::LengthDelimited, wire);
            encode_varint(value.len() as u64, wire);
            wire.extend(value);
        }
    }
}

proptest! {
    #[test]
    fn no_message_takes_more_than_was_announced(recipe in recipes(), cut in 0_usize..100) {
        let mut wire = Vec::new();
        write(v1::AgentMessage::SHAPE, &recipe, 4, &mut wire);
        check::<v1::AgentMessage>(&wire);
        wire.truncate(wire.len() * cut / 100);
        check::<v1::AgentMessage>(&wire);
        wire.clear();
        write(v1::RankSnapshot::SHAPE, &recipe, 4, &mut wire);
        check::<v1::RankSnapshot>(&wire);
        wire.clear();
        write(v1::UploadChunk::SHAPE, &recipe, 1, &mut wire);
        check::<v1::UploadChunk>(&wire);
    }

    #[test]
    fn any_bytes_are_measured(wire in prop::collection::vec(any::<u8>(), 0..200)) {
        check::<v1::AgentMessage>(&wire);
        check::<v1::RankSnapshot>(&wire);
    }
}

/// `count` empty items of a list inside a message, in two bytes each.
fn hostile(key: u8, count: usize) -> Vec<u8> {
    [key, 0].repeat(count)
}

/// As the only field of a message around it.
fn inside(number: u32, inner: &[u8]) -> Vec<u8> {
    let mut wire = Vec::new();
    encode_key(number, WireType::LengthDelimited, &mut wire);
    encode_varint(inner.len() as u64, &mut wire);
    wire.extend(inner);
    wire
}

#[test]
fn the_bound_is_close_for_lists_of_any_length() {
    for count in (1..70).chain([1000, 1024, 1025, 4096, 4097]) {
        // RankReport of a Report, and StepRecord of a RankReport.
        for inner in [hostile(3 << 3 | 2, count), inside(3, &hostile(6 << 3 | 2, count))] {
            let (bound, peak) = check::<v1::AgentMessage>(&inside(3, &inner)).expect("decodable");
            assert!(bound <= 3 * peak + 1024, "{count}: {bound} of {peak}");
        }
        let numbers = v1::Blocks { sizes: vec![1 << 20; count], ..v1::Blocks::default() };
        let (bound, peak) = check::<v1::Blocks>(&numbers.encode_to_vec()).expect("decodable");
        assert!(bound <= 3 * peak + 16, "{count}: {bound} of {peak}");
    }
}

#[test]
fn a_message_of_empty_parts_is_refused_before_it_takes_memory() {
    // 4 MiB of empty RankReports.
    let wire = inside(3, &hostile(3 << 3 | 2, 2 << 20));
    let encoded = Encoded::<v1::AgentMessage>::new(wire.into());
    let (refused, peak) = peak_of(|| encoded.measured(MESSAGE_DECODED_BYTES_MAX));
    let bytes_max = MESSAGE_DECODED_BYTES_MAX;
    assert_eq!(refused.unwrap_err(), NotDecoded::TooLarge { bytes_max });
    assert_eq!(peak, 0);
}

#[test]
fn a_small_snapshot_that_decodes_to_gigabytes_is_refused() {
    // The largest message that a snapshot may unpack to, of empty devices.
    let wire = hostile(4 << 3 | 2, 64 << 20);
    let encoded = zstd::bulk::compress(&wire, 3).expect("zstd");
    assert!(encoded.len() < 16 << 10, "{} bytes", encoded.len());
    let unpacked = wire.len() as u64;
    drop(wire);
    let (refused, peak) = peak_of(|| snapshot::decode(&encoded, Bounds::default()));
    let why = refused.unwrap_err();
    let bytes_max = SNAPSHOT_DECODED_BYTES_MAX;
    let expected = NotDecoded::TooLarge { bytes_max };
    assert!(matches!(&why, DecodeError::NotDecoded(why) if *why == expected), "{why}");
    println!("{} bytes unpack to {unpacked}; the peak was {peak} bytes", encoded.len());
    assert!(peak < unpacked + (1 << 20), "{peak}");
}

#[test]
fn the_beginning_of_a_snapshot_takes_little() {
    let wire = inside(10, &hostile(6 << 3 | 2, 30 << 10));
    let encoded = zstd::bulk::compress(&wire, 3).expect("zstd");
    let (refused, peak) = peak_of(|| snapshot::collectives(&encoded));
    assert!(matches!(refused, Err(DecodeError::NotDecoded(_))));
    assert!(peak < 1 << 20, "{peak}");
}
