//! The clock of a process without steps: what ends a turn, and what becomes of turns when a step
//! ends after all.

use std::sync::atomic::{AtomicU64, Ordering};

use memtape_tape::layout::{Clock, HOST_LANE, Layout, Sizes, header};
use memtape_tape::read::Tape;
use memtape_tape::rewind::PointInTime;
use memtape_tape::snapshot::origin::Origin;
use memtape_tape::write::{Grant, Lane, Totals};
use memtape_tape::{Birth, StepRecord, Words};

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

/// Turns before the first counted one.
const FIRST: u64 = 64;

/// A process on two devices that allocates as a test says.
struct Server {
    memory: Vec<AtomicU64>,
    layout: Layout,
    now_ns: u64,
    held: [u64; 2],
    next_address: u64,
}

impl Server {
    fn new() -> Self {
        let sizes = Sizes {
            events: 1 << 14,
            table_entries: 1 << 12,
            step_records: 2048,
            segment_entries: 64,
            interned_words: 1 << 10,
        };
        let layout = Layout::new(sizes);
        let memory = (0..layout.file_words).map(|_| AtomicU64::new(0)).collect();
        let server = Self { memory, layout, now_ns: MS, held: [0; 2], next_address: 1 << 40 };
        server.words().format(&layout, &Birth::default());
        for lane in [0, 1, HOST_LANE] {
            server.words().open_lane(lane, &layout);
        }
        server
    }

    fn words(&self) -> Words<'_> {
        Words(&self.memory)
    }

    fn lane(&self, device: usize) -> Lane<'_> {
        Lane::new(self.words(), self.layout.lanes[device], device as u8)
    }

    fn tape(&self) -> Tape<&[AtomicU64]> {
        Tape::open(self.memory.as_slice()).expect("a tape that was just made")
    }

    fn alloc_on(&mut self, device: usize, size: u64) -> (usize, u64, u64) {
        self.next_address += 1 << 30;
        self.held[device] += size;
        let grant = Grant { address: self.next_address, size, ..Grant::default() };
        self.lane(device).alloc(self.now_ns, grant, self.totals(device));
        (device, self.next_address, size)
    }

    fn free(&mut self, (device, address, size): (usize, u64, u64)) {
        self.held[device] -= size;
        self.lane(device).free(self.now_ns, address, size, self.totals(device));
    }

    fn totals(&self, device: usize) -> Totals {
        Totals { allocated: self.held[device], reserved: 1 << 40 }
    }

    /// Answers a request in 100 ms: takes eight pieces of this size, gives them back, keeps some.
    fn answer(&mut self, device: usize, piece: u64, kept: u64) {
        let pieces: Vec<_> = (0..8).map(|_| self.alloc_on(device, piece)).collect();
        if kept > 0 {
            self.alloc_on(device, kept);
        }
        self.now_ns += 100 * MS;
        pieces.into_iter().for_each(|piece| self.free(piece));
    }

    fn records(&self) -> Vec<StepRecord> {
        self.tape().steps_after(0, 0).records
    }
}

#[test]
fn a_turn_spans_a_few_requests_of_any_size() {
    for piece in [MIB, 16 * MIB, 512 * MIB] {
        let mut server = Server::new();
        let model = server.alloc_on(0, 1 << 34);
        for _ in 0..1_500 {
            server.answer(0, piece, MIB);
        }
        let status = server.tape().status();
        assert_eq!(status.clock, Clock::Turns);
        let requests = 1_500 / status.step;
        assert!((2..=9).contains(&requests), "{requests} requests a turn at {piece}");
        // Each record but the first has the level between two requests, and what was kept.
        let records = server.records();
        assert_eq!((records[0].first_step, records[0].last_step), (1, FIRST));
        for (before, record) in records.iter().zip(&records[1..]) {
            assert_eq!(record.first_step, before.last_step + 1);
            let risen = (record.floor_allocated - before.floor_allocated) / MIB;
            let is_first = before.last_step == FIRST;
            assert!(is_first || (1..=9).contains(&risen), "{risen} MiB from {before:?}");
            assert!(record.peak_allocated >= record.floor_allocated + 7 * piece);
        }
        server.free(model);
    }
}

#[test]
fn loading_idling_and_other_lanes_end_no_turn() {
    let mut server = Server::new();
    for _ in 0..1_000 {
        server.alloc_on(0, 256 * MIB);
        server.now_ns += 100 * MS;
    }
    // What the host lane frees is no work of the device.
    let host = server.lane(HOST_LANE).of_device(0);
    for _ in 0..1_000 {
        let owner = Origin::CudaMalloc as u16;
        let grant = Grant { address: 1 << 50, size: 1 << 32, owner, ..Grant::default() };
        host.alloc(server.now_ns, grant, Totals { allocated: 1 << 32, reserved: 1 << 32 });
        host.free(server.now_ns, 1 << 50, 1 << 32, Totals { allocated: 0, reserved: 0 });
    }
    server.now_ns += 3_600_000 * MS;
    assert_eq!(server.words().get(header::TURNS), 0);
    assert_eq!((server.tape().status().step, server.tape().status().clock), (0, Clock::Steps));
}

#[test]
fn turns_are_no_faster_than_fast_steps() {
    let mut server = Server::new();
    for _ in 0..100_000 {
        let block = server.alloc_on(0, 128 * MIB);
        server.now_ns += MS;
        server.free(block);
    }
    let turns = server.tape().status().step;
    assert!((1_500..=2_000).contains(&turns), "{turns} turns in 100 s");
}

#[test]
fn one_device_ends_the_turns_of_all() {
    let mut server = Server::new();
    for _ in 0..1_000 {
        server.answer(1, 16 * MIB, 0);
        server.answer(0, 16 * MIB, 0);
    }
    let of_both = server.tape().status().step;
    let mut alone = Server::new();
    for _ in 0..1_000 {
        alone.now_ns += 100 * MS;
        alone.answer(1, 16 * MIB, 0);
    }
    assert_eq!(of_both, alone.tape().status().step);
    assert!(!server.records().is_empty());
}

#[test]
fn a_program_that_marks_steps_has_no_turns() {
    let mut server = Server::new();
    // A first step that takes long: gradients are accumulated.
    for _ in 0..FIRST {
        server.answer(0, 16 * MIB, 0);
    }
    assert_eq!(server.tape().status().step, 0);
    for step in 1..=500 {
        server.words().mark_step(server.now_ns, step);
        server.answer(0, 16 * MIB, 0);
        server.answer(0, 16 * MIB, 0);
        assert_eq!(
            (server.tape().status().step, server.tape().status().clock),
            (step, Clock::Steps)
        );
    }
    assert_eq!(server.records().len(), 500);
    assert_eq!(server.words().get(header::STEPS_SINCE_NS), 0);
}

#[test]
fn the_first_step_begins_with_number_one_and_turns_are_over() {
    let mut server = Server::new();
    let model = server.alloc_on(0, 1 << 30);
    for _ in 0..800 {
        server.answer(0, 16 * MIB, 0);
    }
    let old = server.alloc_on(0, 3 * MIB);
    let turns = server.tape().status().step;
    assert!(turns > FIRST && server.tape().status().clock == Clock::Turns);
    // A device that is used from the middle of the turns on.
    server.now_ns += MS;
    for step in 1..=5 {
        server.words().mark_step(server.now_ns, step);
        server.now_ns += 1;
        server.answer(0, 16 * MIB, MIB);
    }
    let tape = server.tape();
    assert_eq!((tape.status().step, tape.status().clock), (5, Clock::Steps));
    let steps = tape.steps_after(0, 0);
    let numbers: Vec<_> = steps.records.iter().map(|r| (r.first_step, r.last_step)).collect();
    assert_eq!((numbers, steps.missed), ((1..=5).map(|step| (step, step)).collect(), 0));
    assert_eq!(tape.oldest_step(), 1);
    // What is older than the first step was born before it.
    let births = |address| {
        let snapshot = tape.snapshot(PointInTime::EndOf(3), None, 0).expect("it is covered");
        let found = snapshot.devices[0].blocks.iter().find(|block| block.address == address);
        found.expect("it is live").birth_step
    };
    assert_eq!((births(model.1), births(old.1)), (0, 0));
    let mut births = Vec::new();
    tape.for_each_live_block(0, |block| births.push(block.birth_step)).expect("a lane");
    births.sort_unstable();
    assert_eq!(births, [0, 0, 1, 2, 3, 4, 5]);
}

/// A step and a turn that end at once: the step wins, and the next one puts all right.
#[test]
fn a_turn_that_races_with_a_step_is_soon_discarded() {
    let mut server = Server::new();
    for _ in 0..800 {
        server.answer(0, 16 * MIB, 0);
    }
    server.words().mark_step(server.now_ns, 1);
    // As a turn's end leaves it that was looked at before the step and stored after it.
    server.words().at(header::CLOCK).store(Clock::Turns as u64, Ordering::Relaxed);
    server.words().mark_step(server.now_ns + MS, 2);
    server.answer(0, 16 * MIB, 0);
    let status = server.tape().status();
    assert_eq!((status.step, status.clock), (2, Clock::Steps));
    let steps = server.records();
    assert_eq!(steps.last().map(|record| record.last_step), Some(2));
}
