//! A lane's writer killed a thousand times, at any instant, in everything that a lane can hold:
//! blocks, pending frees, segments, ranges that are mapped and unmapped, failed requests, marks.
//!
//! Children are forks that write a seeded history into shared memory and know nothing else, so that
//! a kill costs milliseconds. The same history is replayed here up to the last event that the tape
//! has; present, steps and the last failed request must be exactly what the replay says.
//! `MEMTAPE_KILLS` sets the number of kills and `MEMTAPE_SEED` the histories.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use memtape_core::snapshot::{RankSnapshot, Segment};
use memtape_core::tape::event::Kind;
use memtape_core::tape::layout::{Layout, Sizes, Tracker, header};
use memtape_core::tape::read::Tape;
use memtape_core::tape::rewind::{PointInTime, RewindError};
use memtape_core::tape::write::GRANULE_SMALL;
use memtape_core::tape::write::{Grant, Lane, Totals};
use memtape_core::tape::{Birth, Words};

/// Kills in one run of the test.
const KILLS: u64 = 1_000;

/// A child is killed when it has written this number of events and a random number more.
const EVENTS_MIN: u64 = 20;

/// How long a child may take to write its first events, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Events that the ring holds.
const RING: u64 = 256;

const SIZES: Sizes = Sizes {
    events: RING as usize,
    table_entries: 512,
    step_records: 64,
    segment_entries: 128,
    interned_words: 512,
};

/// What a lane holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    /// Address → size, birth step, taken back already.
    blocks: BTreeMap<u64, (u64, u64, bool)>,
    segments: BTreeSet<u64>,
    granules: BTreeSet<u64>,
}

/// The history of a seed, one operation after the other, without end.
struct History {
    rng: fastrand::Rng,
    now_ns: u64,
    step: u64,
    state: State,
}

enum Op {
    Event(Kind, Grant),
    Step(u64),
}

impl History {
    fn new(seed: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        Self { rng, now_ns: 0, step: 0, state: State::default() }
    }

    fn next(&mut self) -> Op {
        let random = self.rng.u64(..);
        self.now_ns += 1;
        match random % 64 {
            0 => {
                self.step += 1;
                Op::Step(self.step)
            }
            1 => Op::Event(Kind::Oom, Grant { size: random >> 40, ..Grant::default() }),
            2 => Op::Event(Kind::MallocFailed, Grant { size: random >> 40, ..Grant::default() }),
            3 => Op::Event(Kind::Mark, Grant::default()),
            4..8 => self.segment(random),
            8..16 => self.mapped(random),
            _ => self.block(random),
        }
    }

    fn block(&mut self, random: u64) -> Op {
        let address = 0x7f00_0000_0000 + (random >> 20 & 0x3f) * 512;
        let grant = Grant { address, ..Grant::default() };
        let blocks = &mut self.state.blocks;
        match blocks.get(&address).copied() {
            None => {
                let size = 512 * (1 + (random >> 40 & 0xff));
                blocks.insert(address, (size, self.step, false));
                Op::Event(Kind::Alloc, Grant { size, requested: size - 7, ..grant })
            }
            Some((size, born, false)) if random >> 32 & 3 == 0 => {
                blocks.insert(address, (size, born, true));
                Op::Event(Kind::FreeDeferred, grant)
            }
            Some((_, _, pending)) => {
                blocks.remove(&address);
                Op::Event(if pending { Kind::FreeCompleted } else { Kind::Free }, grant)
            }
        }
    }

    fn segment(&mut self, random: u64) -> Op {
        let address = 0x7e00_0000_0000 + (random >> 20 & 7) * GRANULE_SMALL;
        let grant = Grant { address, size: GRANULE_SMALL, ..Grant::default() };
        if self.state.segments.remove(&address) {
            return Op::Event(Kind::SegmentFree, grant);
        }
        self.state.segments.insert(address);
        Op::Event(Kind::SegmentAlloc, grant)
    }

    /// Maps or unmaps one to four granules, all of which are not or are mapped.
    fn mapped(&mut self, random: u64) -> Op {
        let (first, count) = (random >> 20 & 0xf, 1 + (random >> 30 & 3));
        let base = 0x7d00_0000_0000;
        let at = |index: u64| base + index * GRANULE_SMALL;
        let granules = &mut self.state.granules;
        let is_mapped = granules.contains(&at(first));
        let run = (first..first + count).take_while(|&i| granules.contains(&at(i)) == is_mapped);
        let run: Vec<u64> = run.map(at).collect();
        let size = run.len() as u64 * GRANULE_SMALL;
        let grant = Grant { address: at(first), size, ..Grant::default() };
        if is_mapped {
            granules.retain(|granule| !run.contains(granule));
            return Op::Event(Kind::SegmentUnmap, grant);
        }
        granules.extend(run);
        Op::Event(Kind::SegmentMap, grant)
    }

    fn totals(&self) -> Totals {
        let in_use = self.state.blocks.values().filter(|(_, _, pending)| !pending);
        let allocated = in_use.map(|(size, _, _)| size).sum();
        let held = self.state.segments.len() + self.state.granules.len();
        Totals { allocated, reserved: held as u64 * GRANULE_SMALL }
    }
}

/// Writes the history of a seed until it is killed.
fn write_for_ever(words: Words<'_>, layout: &Layout, seed: u64) -> ! {
    let lane = Lane::new(words, layout.lanes[0], 0);
    let mut history = History::new(seed);
    loop {
        let op = history.next();
        let (now_ns, totals) = (history.now_ns, history.totals());
        match op {
            Op::Step(number) => words.mark_step(now_ns, number),
            Op::Event(kind, grant) => match kind {
                Kind::Alloc => lane.alloc(now_ns, grant, totals),
                Kind::Free => lane.free(now_ns, grant.address, 1, totals),
                Kind::FreeDeferred => lane.free_deferred(now_ns, grant.address, 1, totals),
                Kind::FreeCompleted => lane.free_completed(now_ns, grant.address),
                Kind::Oom | Kind::MallocFailed => lane.failure(now_ns, kind, grant, totals),
                Kind::Mark | Kind::Snapshot => lane.mark(now_ns, kind, 0, 0),
                _ => lane.segment(now_ns, kind, grant),
            },
        }
    }
}

#[test]
fn a_lane_killed_at_any_instant_is_never_wrong() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (seed, kills) = (number("MEMTAPE_SEED").unwrap_or(1), number("MEMTAPE_KILLS"));
    let kills = kills.unwrap_or(KILLS);
    println!("MEMTAPE_SEED={seed}");
    let layout = Layout::new(SIZES);
    let (mut events, mut inside) = (0, 0);
    for round in 0..kills {
        let shared = Shared::new(layout.file_words);
        let words = Words(shared.words());
        words.format(&layout, &Birth::default());
        words.open_lane(0, &layout);
        words.set(header::TRACKER, Tracker::Attached as u64);
        let seed = seed * 1_000_003 + round;
        // The instant is random, but never so early that there is nothing to check.
        let events_min = EVENTS_MIN + seed.wrapping_mul(7919) % 3_000;
        let has_written = || words.get(layout.lanes[0].head + 1) >= events_min;
        kill_a_fork_when(has_written, || write_for_ever(words, &layout, seed));
        let tape = Tape::open(shared.words()).expect("the tape is there");
        events += check(&tape, seed);
        // The first two words of a lane's head are what is reserved and what is done.
        inside += u64::from(words.get(layout.lanes[0].head) != words.get(layout.lanes[0].head + 1));
    }
    println!("{kills} kills, {inside} of them inside an event, {events} events");
    assert!(events >= kills * EVENTS_MIN, "the tapes have {events} events only");
    assert!(inside > 0, "no writer was ever killed inside an event");
}

/// Replays the history against the tape; returns the number of events.
fn check(tape: &Tape<&[AtomicU64]>, seed: u64) -> u64 {
    let events = tape.tail_end(0);
    let mut history = History::new(seed);
    let (mut done, mut at_step, mut ooms) = (0, Vec::new(), Vec::new());
    while done < events {
        match history.next() {
            Op::Step(_) => at_step.push((history.state.clone(), done)),
            Op::Event(kind, _) => {
                done += 1;
                if kind == Kind::Oom {
                    ooms.push((history.state.clone(), done));
                }
            }
        }
    }
    let reached = tape.status().step;
    while (at_step.len() as u64) < reached {
        assert!(matches!(history.next(), Op::Step(_)), "seed {seed}: a step never taken");
        at_step.push((history.state.clone(), done));
    }
    let present = tape.snapshot(PointInTime::Present, None, 1).expect("the last state is there");
    assert_eq!(state_of(&present), history.state, "seed {seed}: the last state");
    check_oom(tape, &ooms, events, seed);
    for step in reached.saturating_sub(12).max(1)..=reached {
        let (expected, cursor) = &at_step[step as usize - 1];
        match tape.snapshot(PointInTime::EndOf(step), None, 0) {
            Ok(snapshot) => {
                assert!(events - cursor <= RING, "seed {seed}: step {step} is overwritten");
                assert_eq!(&state_of(&snapshot), expected, "seed {seed}: step {step}");
            }
            // The next event may have been reserved, and so have taken the oldest slot.
            Err(RewindError::NotCovered { .. }) => {
                assert!(events - cursor >= RING - 1, "seed {seed}: step {step} is covered");
            }
            Err(other) => panic!("seed {seed}, step {step}: {other}"),
        }
    }
    events
}

fn check_oom(tape: &Tape<&[AtomicU64]>, ooms: &[(State, u64)], events: u64, seed: u64) {
    let held: Vec<&(State, u64)> = ooms.iter().filter(|(_, at)| events - at < RING).collect();
    match tape.snapshot(PointInTime::LastOom, None, 0) {
        Ok(snapshot) => {
            let found = state_of(&snapshot);
            let mut newest = held.iter().rev();
            // The very last event may not have been noted as the newest failure any more.
            let is_last = held.last().is_some_and(|(_, at)| *at == events);
            let right = newest.next().is_some_and(|(state, _)| *state == found)
                || is_last && newest.next().is_some_and(|(state, _)| *state == found);
            assert!(right, "seed {seed}: the last failed request");
        }
        Err(RewindError::NoOom | RewindError::NotCovered { .. }) => {
            let certain = held.iter().find(|(_, at)| *at < events && events - at < RING - 2);
            assert!(certain.is_none(), "seed {seed}: a failed request is there");
        }
        Err(other) => panic!("seed {seed}, the last failed request: {other}"),
    }
}

fn state_of(snapshot: &RankSnapshot) -> State {
    let device = &snapshot.devices[0];
    let blocks = device.blocks.iter().map(|b| (b.address, (b.size, b.birth_step, b.pending)));
    let (ranges, whole): (Vec<_>, Vec<_>) = device.segments.iter().partition(|s| s.expandable);
    let granules = ranges.into_iter().flat_map(|range: &Segment| {
        (0..range.size / GRANULE_SMALL).map(|index| range.address + index * GRANULE_SMALL)
    });
    State {
        blocks: blocks.collect(),
        segments: whole.into_iter().map(|segment| segment.address).collect(),
        granules: granules.collect(),
    }
}

/// Memory that a fork shares with its parent.
struct Shared {
    first: *mut libc::c_void,
    words: usize,
}

impl Shared {
    fn new(words: usize) -> Self {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let kind = kind | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: asks for new memory, at no particular place.
        let first = unsafe { libc::mmap(std::ptr::null_mut(), words * 8, access, kind, -1, 0) };
        assert_ne!(first, libc::MAP_FAILED, "there is memory");
        Self { first, words }
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is as long as that, zeroed, aligned to pages, and lives as long as
        // `self`; other processes change it through atomics only.
        unsafe { std::slice::from_raw_parts(self.first.cast::<AtomicU64>(), self.words) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and its borrows have ended.
        unsafe { libc::munmap(self.first, self.words * 8) };
    }
}

/// Runs `write` in a fork, which is killed as soon as `has_written`.
fn kill_a_fork_when(has_written: impl Fn() -> bool, write: impl FnOnce()) {
    // SAFETY: the child uses memory and `malloc`, which glibc keeps usable in a fork; no locks of
    // this process and no output.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "a process can be made");
    if child == 0 {
        // SAFETY: the child dies with this thread, whatever happens to it.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        write();
    }
    let deadline = Instant::now() + PATIENCE;
    while !has_written() {
        assert!(Instant::now() < deadline, "the child writes nothing");
        std::thread::yield_now();
    }
    let mut status = 0;
    // SAFETY: the child is ours and was not waited for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, &raw mut status, 0);
    }
    assert_eq!(status & 0x7f, libc::SIGKILL, "the child ended before it was killed");
}
