//! Tapes full of lies, made from a fuzzer's bytes, and a reader that looks at all of them.
//!
//! Shared by the fuzz targets (`fuzz/`), by the test that runs their corpus, and by anyone who
//! wants a small tape: [`small::small_layout`] is as compact as a tape can be, so that a fuzzer's
//! few bytes reach all of it.

use std::sync::atomic::{AtomicU64, Ordering};

use memtape_core::census::Census;
use memtape_core::census::comparison::{Counted, Lines};
use memtape_core::census::reader::CensusReader;
use memtape_core::diagnosis::Churn;
use memtape_core::limits::CENSUS_LINES_MAX;
use memtape_core::pickle::torch_snapshot;
use memtape_core::segment_map::{MapBounds, SegmentMap};
use memtape_core::snapshot::RankSnapshot;
use memtape_core::snapshot::ledger::{Ledger, Sources};
use memtape_core::tape::event::Kind;
use memtape_core::tape::interned::InternedWriter;
use memtape_core::tape::interned::StreamPoolWriter;
use memtape_core::tape::layout::{CPU_LANE, HOST_LANE, Layout, Tracker, head, header};
use memtape_core::tape::read::Source;
use memtape_core::tape::read::Tape;
use memtape_core::tape::rewind::{PointInTime, RewindError};
use memtape_core::tape::write::{Grant, Lane, Totals};
use memtape_core::tape::{Birth, Words};

/// The layout of such a tape.
#[path = "../../../tape/tests/harness/small.rs"]
pub(crate) mod small;

use small::{INTERNED_WORDS, small_layout};

/// A file with a hole at its end.
#[derive(Debug)]
pub(crate) struct Holed {
    words: Vec<u64>,
    len_bytes: u64,
}

impl Source for Holed {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read(&self, first_word: usize, out: &mut [u64]) -> bool {
        let Some(end) = first_word.checked_add(out.len()) else { return false };
        if end as u64 > self.len_bytes / 8 {
            return false;
        }
        let there = self.words.get(first_word..).unwrap_or_default();
        let there = &there[..there.len().min(out.len())];
        out[..there.len()].copy_from_slice(there);
        out[there.len()..].fill(0);
        true
    }
}

/// Whatever the bytes are, as a tape: they, and a hole of as many words as the last four say.
pub(crate) fn any_bytes(data: &[u8]) -> Holed {
    let words: Vec<u64> = data.chunks(8).map(word).collect();
    let (_, hole) = data.split_at(data.len().saturating_sub(4));
    let len_bytes = (words.len() as u64 + word(hole)) * 8;
    Holed { words, len_bytes }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// A sound tape that a fuzzer's bytes then wrote lies on: a byte says what, others where. Some
/// go through the writer, whose checks make every lie look whole.
pub(crate) fn lies(data: &[u8]) -> Holed {
    let layout = small_layout(8, 8, 4);
    let memory: Vec<AtomicU64> = (0..layout.file_words).map(|_| AtomicU64::new(0)).collect();
    let words = Words(&memory);
    words.format(&layout, &Birth { identity: "job=j\nrank=3\n".into(), ..Birth::default() });
    for lane in [0, 1, HOST_LANE, CPU_LANE] {
        words.open_lane(lane, &layout);
    }
    words.set(header::TRACKER, Tracker::Attached as u64);
    let mut liar = Liar { words, layout, data, now_ns: 1, hole: 0 };
    while liar.lie() {}
    let hole = liar.hole;
    let words: Vec<u64> = memory.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    Holed { len_bytes: (words.len() as u64 + hole) * 8, words }
}

struct Liar<'a> {
    words: Words<'a>,
    layout: Layout,
    data: &'a [u8],
    now_ns: u64,
    hole: u64,
}

impl Liar<'_> {
    fn bytes(&mut self, count: usize) -> u64 {
        let (taken, rest) = self.data.split_at(count.min(self.data.len()));
        self.data = rest;
        word(taken)
    }

    /// A number: small, or near a power of two, or anything.
    fn number(&mut self) -> u64 {
        match self.bytes(1) {
            small @ 0..0x80 => small,
            shift @ 0x80..0xc0 => 1 << (shift - 0x80),
            shift @ 0xc0..0xf8 => (1 << (shift - 0xb8)) - 1,
            0xf8 => u64::MAX,
            _ => self.bytes(8),
        }
    }

    /// A word of the tape, mostly one that steers the reader.
    fn word(&mut self) -> usize {
        let lane = self.layout.lanes[self.bytes(1) as usize % self.layout.lanes.len()];
        let (kind, offset) = (self.bytes(1), self.bytes(1) as usize);
        match kind % 7 {
            0 => offset,
            1 => 256 + offset,
            2 => lane.head + offset % head::WORDS,
            3 => lane.ring + offset % (lane.table - lane.ring),
            4 => lane.table + offset % (lane.end - lane.table),
            5 => self.layout.stream_pools + offset,
            _ => self.layout.interned + offset % INTERNED_WORDS,
        }
    }

    /// Tells one lie; false when there is nothing left to tell.
    fn lie(&mut self) -> bool {
        if self.data.is_empty() {
            return false;
        }
        self.now_ns += 1;
        let words = self.words;
        match self.bytes(1) % 12 {
            0 => {
                let (at, lie) = (self.word(), self.number());
                words.set(at, lie);
            }
            1 => {
                let (at, bit) = (self.word(), self.bytes(1) % 64);
                words.set(at, words.get(at) ^ 1 << bit);
            }
            2 => {
                let (one, two) = (self.word(), self.word());
                let (first, second) = (words.get(one), words.get(two));
                words.set(one, second);
                words.set(two, first);
            }
            3 => words.mark_step(self.now_ns, self.number()),
            4 => self.hole = self.number().min(1 << 33), // words: the largest tape
            5 => self.atom(),
            6 => {
                let pool = (self.number(), self.number());
                StreamPoolWriter(words).index(pool.0, (pool.1 > 0).then_some(pool));
            }
            _ => self.event(),
        }
        true
    }

    fn atom(&mut self) {
        let (kind, one, two) = (self.bytes(1), self.bytes(1) as u32, self.bytes(1) as u32);
        let interned = InternedWriter(self.words);
        match kind % 3 {
            0 => interned.string(&[one as u8; 3]),
            1 => interned.frame(one, two, two),
            _ => interned.stack(&[one, two, one]),
        };
    }

    fn event(&mut self) {
        let index = [0, 1, HOST_LANE, CPU_LANE][self.bytes(1) as usize % 4];
        let lane = Lane::new(self.words, self.layout.lanes[index], index as u8);
        let kind = self.bytes(1);
        // Few addresses, so that blocks meet each other.
        let address = match self.bytes(1) {
            near @ 0..0xf0 => near << 20,
            _ => self.number(),
        };
        let size = self.number();
        let (requested, owner, stack) = (self.number(), self.bytes(1) as u16, self.bytes(1) as u32);
        let grant = Grant { address, size, requested, owner, stack };
        let totals = Totals { allocated: size, reserved: requested };
        let now_ns = if kind & 0x40 == 0 { self.now_ns } else { self.number() };
        match kind % 16 {
            0..3 => lane.alloc(now_ns, grant, totals),
            3 | 4 => lane.free(now_ns, address, size, totals),
            5 => lane.free_deferred(now_ns, address, size, totals),
            6 => lane.free_completed(now_ns, address),
            7 => lane.failure(now_ns, Kind::Oom, grant, totals),
            8 => lane.failure(now_ns, Kind::MallocFailed, grant, totals),
            9 => lane.mark(now_ns, Kind::Mark, size, requested),
            10 => lane.mark(now_ns, Kind::Snapshot, size, requested),
            11 | 12 => lane.segment(now_ns, Kind::SegmentMap, grant),
            13 => lane.segment(now_ns, Kind::SegmentUnmap, grant),
            14 => lane.segment(now_ns, Kind::SegmentAlloc, grant),
            _ => lane.segment(now_ns, Kind::SegmentFree, grant),
        }
    }
}

/// The stacks of a snapshot's failed request.
fn uses(snapshot: &RankSnapshot) -> usize {
    snapshot.failed_request.as_ref().map_or(0, |failed| failed.uses.len())
}

/// Looks at everything that a reader can look at. Nothing may panic, and what comes back must
/// hold together.
pub(crate) fn read_all(source: impl Source) {
    let Ok(tape) = Tape::open(source) else { return };
    let status = tape.status();
    let _ = (tape.totals(), tape.device_uuids(), tape.oldest_step(), tape.last_oom());
    let _ = (tape.phase(), tape.marks(10), tape.identity());
    for device in tape.devices() {
        let _ = (tape.steps_after(device, status.step.saturating_sub(5)), tape.tail_end(device));
        assert!(tape.tail(device, 10).len() <= 10, "a tail is longer than it was asked for");
    }
    let steps = (1..4).chain([status.step.saturating_sub(1), status.step, status.step + 1]);
    let moments = [PointInTime::Present, PointInTime::LastOom]
        .into_iter()
        .chain(steps.map(PointInTime::EndOf));
    for moment in moments {
        let before = Some(status.step / 2);
        let whole = tape.snapshot(moment, before, 16);
        match tape.snapshot_within(moment, before, 16, 16 << 10) {
            Err(RewindError::TooLarge { .. }) => {}
            // A failed request that has no room is shown without its stacks.
            Ok(within) if uses(&within) < whole.as_ref().map_or(0, uses) => {
                assert_eq!(uses(&within), 0, "{moment:?}");
            }
            within => assert_eq!(within, whole, "{moment:?}"),
        }
        let Ok(snapshot) = whole else { continue };
        for device in &snapshot.devices {
            assert!(device.blocks.is_sorted_by_key(|block| block.address), "{moment:?}");
            assert!(device.segments.is_sorted_by_key(|segment| segment.address), "{moment:?}");
            for block in device.blocks.iter().take(100) {
                assert!(snapshot.frames_of(block.stack).count() <= 64, "{moment:?}");
                let _ = snapshot.stream_pool(block.stream_pool);
            }
            let sources = Sources {
                device_bytes: Some(device.device_bytes),
                allocator: Some(device),
                outside: Some(&snapshot.outside),
                ..Sources::default()
            };
            let _ = (Ledger::of(&sources), Churn::of(&device.trace, snapshot.step));
            let map = SegmentMap::of(&snapshot, device, MapBounds::default());
            let filled: u64 = map.segments.iter().flat_map(|of| &of.parts).map(|of| of.bytes).sum();
            assert_eq!(filled + map.other_segments.bytes, map.sums.bytes, "segments are filled");
        }
        assert!(torch_snapshot(&snapshot).ends_with(b"."), "a pickle ends with a stop");
    }
    for device in tape.devices() {
        let census = CensusReader::default().count(&tape, device);
        let counted = |census: Census| {
            let growths = census.growths(|_, step| Some((step, 0)));
            Counted { rank: 0, census, growths }
        };
        let lines = Lines::new(&census.map(counted).into_iter().collect::<Vec<_>>(), None);
        assert!(lines.lines.len() + lines.lines_left_out as usize <= CENSUS_LINES_MAX);
    }
}
