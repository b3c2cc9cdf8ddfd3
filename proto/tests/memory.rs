//! What rewinding a tape and encoding its snapshot take of memory, counted by the allocator: never
//! more than they are given, whatever lies on the tape.

use std::alloc::{GlobalAlloc, Layout as Request, System};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use memtape_core::census::reader::CensusReader;
use memtape_core::limits::{CENSUS_BYTES_MAX, SNAPSHOT_BYTES_MAX, TRACE_EVENTS_MAX};
use memtape_core::tape::event::Kind;
use memtape_core::tape::interned::InternedWriter;
use memtape_core::tape::layout::{ENTRY_WORDS, Layout, Sizes, head};
use memtape_core::tape::read::Tape;
use memtape_core::tape::rewind::{PointInTime, RewindError};
use memtape_core::tape::write::{Grant, Lane, Totals};
use memtape_core::tape::{Birth, Words};
use memtape_proto::snapshot;

/// The buffers that a tape is read through, and what is smaller than a kilobyte.
const UNCOUNTED_BYTES: u64 = 1 << 20;

const SIZES: Sizes = Sizes {
    events: 1 << 13,
    table_entries: 1 << 14,
    step_records: 64,
    segment_entries: 1 << 10,
    interned_words: 1 << 16,
};

struct Counting;

static TAKEN: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grow(bytes: usize) {
    PEAK.fetch_max(TAKEN.fetch_add(bytes, Ordering::Relaxed) + bytes, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator as it is; only sums are kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, request: Request) -> *mut u8 {
        grow(request.size());
        // SAFETY: the caller's promises are those that the system's allocator wants.
        unsafe { System.alloc(request) }
    }

    unsafe fn alloc_zeroed(&self, request: Request) -> *mut u8 {
        grow(request.size());
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(request) }
    }

    unsafe fn dealloc(&self, at: *mut u8, request: Request) {
        TAKEN.fetch_sub(request.size(), Ordering::Relaxed);
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(at, request) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that `work` takes at most, beyond what was taken before.
fn peak_bytes<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = TAKEN.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let made = work();
    ((PEAK.load(Ordering::Relaxed) - before) as u64, made)
}

/// A tape whose two devices are as full as their writer fills them, with many stacks.
fn full_tape() -> Vec<AtomicU64> {
    let layout = Layout::new(SIZES);
    let memory: Vec<AtomicU64> = (0..layout.file_words).map(|_| AtomicU64::new(0)).collect();
    let words = Words(&memory);
    words.format(&layout, &Birth { identity: "job=j\nrank=3\n".into(), ..Birth::default() });
    let stacks = stacks(words);
    for device in [0, 1] {
        words.open_lane(device, &layout);
    }
    let mut now_ns = 0;
    for index in 0..SIZES.table_entries as u64 / 2 - 1 {
        if index % 1000 == 999 {
            words.mark_step(now_ns, index / 1000 + 1);
        }
        for device in [0_u8, 1] {
            now_ns += 1;
            let lane = Lane::new(words, layout.lanes[usize::from(device)], device);
            let stack = stacks[index as usize % stacks.len()];
            let size = 512 + (index * 7919) % 1_000_003;
            let grant = Grant { address: (index + 1) << 24, size, stack, ..Grant::default() };
            lane.alloc(now_ns, grant, Totals { allocated: 0, reserved: 0 });
            if index % 16 == 0 {
                lane.segment(now_ns, Kind::SegmentAlloc, grant);
            }
        }
    }
    memory
}

fn stacks(words: Words<'_>) -> Vec<u32> {
    let entries = InternedWriter(words);
    let mut stacks = Vec::new();
    for index in 0..1000_u32 {
        let name = format!("/a/rather/long/path/of/a/module_{index}.py");
        let text = entries.string(name.as_bytes());
        let frame = text.and_then(|text| entries.frame(text, text, index));
        let stack = frame.and_then(|frame| entries.stack(&[frame; 24]));
        stacks.extend(stack);
    }
    stacks
}

/// Rewinds and encodes with these bytes; what it took, and whether it was enough.
fn check(memory: &[AtomicU64], at: PointInTime, bytes_max: u64) -> (u64, bool) {
    let tape = Tape::open(memory).expect("a tape");
    let (bytes, made) = peak_bytes(|| {
        let taken = tape.snapshot_within(at, Some(3), TRACE_EVENTS_MAX, bytes_max);
        taken.map(|taken| snapshot::encode(taken, SNAPSHOT_BYTES_MAX))
    });
    assert!(bytes <= bytes_max + UNCOUNTED_BYTES, "{at:?} took {bytes} of {bytes_max}");
    match made {
        Ok(encoded) => drop(encoded.expect("a snapshot")),
        Err(RewindError::TooLarge { .. }) => return (bytes, false),
        Err(other) => panic!("{at:?}: {other}"),
    }
    (bytes, true)
}

/// One test: the allocator counts for all threads.
#[test]
fn a_rewind_takes_no_more_memory_than_it_is_given() {
    let memory = full_tape();
    let claimed = Tape::open(&*memory).expect("a tape").snapshot_bytes(TRACE_EVENTS_MAX);
    for at in [PointInTime::Present, PointInTime::EndOf(6)] {
        let (taken, is_enough) = check(&memory, at, claimed);
        println!("{at:?}: {taken} bytes of the {claimed} that the tape says");
        assert!(is_enough, "what a sound tape says of itself is enough");
        assert!(claimed < 16 * taken, "{claimed} is far from {taken}");
        let enough = (16..28).map(|power| check(&memory, at, 1 << power).1);
        assert!(enough.collect::<Vec<_>>().is_sorted(), "more memory never does less");
    }
    // All of the table is in use, which no writer does, and the head does not say so.
    let lane = Layout::new(SIZES).lanes[0];
    for (number, entry) in (1_u64..).zip((0..lane.table_entries).map(|at| at * ENTRY_WORDS)) {
        memory[lane.table + entry].store(number << 24, Ordering::Relaxed);
        memory[lane.table + entry + 3].store(number % (1 << 16), Ordering::Relaxed);
    }
    memory[lane.head + head::LIVE_BLOCKS].store(0, Ordering::Relaxed);
    for power in 16..26 {
        check(&memory, PointInTime::Present, 1 << power);
    }
    // Stacks that are no stacks, each its own.
    let tape = Tape::open(&*memory).expect("a tape");
    let mut reader = CensusReader::default();
    let (bytes, census) = peak_bytes(|| reader.count(&tape, 0));
    assert!(bytes <= CENSUS_BYTES_MAX && census.is_some(), "a census took {bytes}");
}
