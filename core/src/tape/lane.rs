//! Writing one lane: events, the live table, totals and the step index.
//!
//! The order of stores is the whole art. For each event the writer
//! 1. raises `RESERVED`, 2. fills the slot and then its check, 3. changes the table and totals,
//! 4. raises `DONE`. A writer can die between any two stores, and a reader can look between them:
//! - a slot not whole means the table was not touched for it (2 before 3);
//! - whatever a reader sees changed in the table belongs to an event below `RESERVED` (1 before 3);
//! - everything below `DONE` is in the table (3 before 4).
//!
//! One thread at a time may write a lane: for devices the allocator's mutex sees to that, for the
//! host lane [`Lane::try_lock`] does. Nothing here waits, allocates or panics.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use super::event::{Event, Kind, check};
use super::layout::{
    ENTRY_WORDS, LaneLayout, PROBE_MAX, SLOT_WORDS, STEP_WORDS, device, head, header,
};
use super::words::Words;

/// Address word of an entry that was never used: a search ends here.
pub(super) const EMPTY: u64 = 0;
/// Address word of an entry that was removed: a search goes on.
pub(super) const REMOVED: u64 = 1;

/// Unknown birth step: the block was not in the table.
pub const BIRTH_UNKNOWN: u32 = u32::MAX;

/// Totals of the allocator after an event, as it reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Bytes handed out.
    pub allocated: u64,
    /// Bytes held from the device.
    pub reserved: u64,
}

/// The writer's view of one lane.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    words: Words<'a>,
    at: LaneLayout,
    device: u8,
}

/// A live block as the table has it.
#[derive(Clone, Copy, Debug)]
struct Entry {
    size: u64,
    stack: u32,
    birth_step: u32,
    birth_ns: u64,
}

impl<'a> Lane<'a> {
    /// The lane at `at`, which must be open.
    pub fn new(words: Words<'a>, at: LaneLayout, device: u8) -> Self {
        Self { words, at, device }
    }

    /// A block was handed out.
    #[inline]
    pub fn alloc(&self, now_ns: u64, address: u64, size: u64, stack: u32, totals: Totals) {
        let step = self.close_finished_steps();
        self.publish(Event {
            kind: Kind::Alloc,
            device: self.device,
            mono_ns: now_ns,
            address,
            size,
            stack,
            step,
            birth_step: step,
            birth_ns: now_ns,
        });
        if self.insert(address, size, stack, step, now_ns) {
            self.bump(head::LIVE_BLOCKS, 1);
            self.bump(head::LIVE_BYTES, size);
        } else {
            self.bump(head::LOST_BLOCKS, 1);
        }
        self.bump(head::ALLOCS, 1);
        self.totals(totals);
        self.done();
    }

    /// A block was taken back. `size` is used when the block is not in the table.
    #[inline]
    pub fn free(&self, now_ns: u64, address: u64, size: u64, totals: Totals) {
        let step = self.close_finished_steps();
        let found = self.find(address);
        let entry = match found {
            Some(index) => self.entry(index),
            None => Entry { size, stack: 0, birth_step: BIRTH_UNKNOWN, birth_ns: 0 },
        };
        self.publish(Event {
            kind: Kind::Free,
            device: self.device,
            mono_ns: now_ns,
            address,
            size: entry.size,
            stack: entry.stack,
            step,
            birth_step: entry.birth_step,
            birth_ns: entry.birth_ns,
        });
        if let Some(index) = found {
            self.remove(index);
            self.bump(head::LIVE_BLOCKS, 1u64.wrapping_neg());
            self.bump(head::LIVE_BYTES, entry.size.wrapping_neg());
        } else {
            self.bump(head::UNKNOWN_FREES, 1);
        }
        self.bump(head::FREES, 1);
        self.totals(totals);
        self.done();
    }

    /// A request failed: for good (`Kind::Oom`) or for now (`Kind::MallocFailed`).
    pub fn failure(&self, now_ns: u64, kind: Kind, size: u64, stack: u32, totals: Totals) {
        let step = self.close_finished_steps();
        self.publish(Event {
            kind,
            device: self.device,
            mono_ns: now_ns,
            address: 0,
            size,
            stack,
            step,
            birth_step: step,
            birth_ns: now_ns,
        });
        if kind == Kind::Oom {
            self.bump(head::OOMS, 1);
        }
        self.totals(totals);
        self.done();
    }

    /// Bytes in the live table: the totals of a lane whose allocator reports none.
    pub fn live_bytes(&self) -> u64 {
        self.words.get(self.at.head + head::LIVE_BYTES)
    }

    /// The block at `address`, if it is live: its size.
    pub fn live_size(&self, address: u64) -> Option<u64> {
        self.find(address).map(|index| self.entry(index).size)
    }

    /// Runs `write` as the lane's only writer, or not at all: `false` says it was not.
    /// Waits a bounded number of rounds only, since the holder may have been killed or stopped.
    pub fn try_lock(&self, write: impl FnOnce(&Self)) -> bool {
        const ROUNDS_MAX: u32 = 2000;
        let lock = self.words.at(self.at.head + head::LOCK);
        let mut rounds = 0;
        while lock.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            rounds += 1;
            if rounds > ROUNDS_MAX {
                return false;
            }
            core::hint::spin_loop();
        }
        write(self);
        lock.store(0, Ordering::Release);
        true
    }

    #[inline(always)]
    fn head(&self, index: usize) -> &'a AtomicU64 {
        self.words.at(self.at.head + index)
    }

    #[inline(always)]
    fn bump(&self, index: usize, more: u64) {
        self.words.add(self.at.head + index, more);
    }

    /// Steps 1 and 2: reserve, fill, check.
    #[inline]
    fn publish(&self, event: Event) {
        let ticket = self.head(head::RESERVED).load(Ordering::Relaxed).wrapping_add(1);
        self.head(head::RESERVED).store(ticket, Ordering::Relaxed);
        fence(Ordering::Release);
        let index = (ticket.wrapping_sub(1) as usize) & (self.at.ring_slots.wrapping_sub(1));
        let first = self.at.ring + index * SLOT_WORDS;
        let slot = event.encode(ticket);
        for (offset, word) in slot.iter().enumerate().skip(1) {
            self.words.set(first + offset, *word);
        }
        self.words.at(first).store(slot[0], Ordering::Release);
        fence(Ordering::Release);
    }

    /// Step 4.
    #[inline(always)]
    fn done(&self) {
        let reserved = self.head(head::RESERVED).load(Ordering::Relaxed);
        self.head(head::DONE).store(reserved, Ordering::Release);
    }

    #[inline]
    fn totals(&self, totals: Totals) {
        let at = self.at.head;
        let words = self.words;
        words.set(at + head::ALLOCATED, totals.allocated);
        words.set(at + head::RESERVED_BYTES, totals.reserved);
        if totals.allocated < words.get(at + head::FLOOR_ALLOCATED) {
            words.set(at + head::FLOOR_ALLOCATED, totals.allocated);
        }
        if totals.allocated > words.get(at + head::PEAK_ALLOCATED) {
            words.set(at + head::PEAK_ALLOCATED, totals.allocated);
            if totals.allocated > words.get(at + head::PEAK_EVER) {
                words.set(at + head::PEAK_EVER, totals.allocated);
            }
        }
        if totals.reserved < words.get(at + head::FLOOR_RESERVED) {
            words.set(at + head::FLOOR_RESERVED, totals.reserved);
        }
        if totals.reserved > words.get(at + head::PEAK_RESERVED) {
            words.set(at + head::PEAK_RESERVED, totals.reserved);
        }
    }

    /// Writes the record of the steps that ended since the last event, if any did, and returns
    /// the number of finished steps. Steps are marked elsewhere, by a thread that does not hold
    /// the lane; closing them here keeps the lane single-writer. Until the next event a reader
    /// derives the same record from the head.
    #[inline]
    fn close_finished_steps(&self) -> u32 {
        let finished = self.words.at(header::STEP).load(Ordering::Acquire);
        let at = self.at.head;
        let known = self.words.get(at + head::STEP);
        if finished != known {
            self.close_steps(known, finished);
        }
        finished as u32
    }

    #[cold]
    fn close_steps(&self, known: u64, finished: u64) {
        let words = self.words;
        let at = self.at.head;
        if finished > known {
            let number = words.get(at + head::STEPS_WRITTEN);
            let index = (number as usize) & (self.at.step_records.wrapping_sub(1));
            let first = self.at.steps + index * STEP_WORDS;
            let record = pending_step(
                |index| words.get(at + index),
                known,
                finished,
                [
                    words.get(header::STEP_MONO_NS),
                    words.get(Words::device_word(self.device, device::MALLOC_FAILURES)),
                ],
            );
            words.set(first, 0); // not a record while it is being changed
            fence(Ordering::Release);
            for (offset, word) in record.iter().enumerate().skip(1) {
                words.set(first + offset, *word);
            }
            words.at(first).store(record[0], Ordering::Release);
            words.at(at + head::STEPS_WRITTEN).store(number.wrapping_add(1), Ordering::Release);
        }
        // A smaller number means the program set its step back: the index goes on from there.
        let (allocated, reserved) =
            (words.get(at + head::ALLOCATED), words.get(at + head::RESERVED_BYTES));
        words.set(at + head::FLOOR_ALLOCATED, allocated);
        words.set(at + head::PEAK_ALLOCATED, allocated);
        words.set(at + head::FLOOR_RESERVED, reserved);
        words.set(at + head::PEAK_RESERVED, reserved);
        words.at(at + head::STEP).store(finished, Ordering::Release);
    }

    /// Puts a block into the table; false when there is no room near its place.
    #[inline]
    fn insert(&self, address: u64, size: u64, stack: u32, birth_step: u32, birth_ns: u64) -> bool {
        let mut index = home(address, self.at.table_entries);
        for _ in 0..PROBE_MAX {
            let first = self.at.table + index * ENTRY_WORDS;
            let there = self.words.get(first);
            if there == EMPTY || there == REMOVED {
                self.words.set(first + 1, size);
                self.words.set(first + 2, u64::from(stack) | u64::from(birth_step) << 32);
                self.words.set(first + 3, birth_ns);
                self.words.at(first).store(address, Ordering::Release);
                return true;
            }
            index = (index + 1) & (self.at.table_entries - 1);
        }
        false
    }

    #[inline]
    fn find(&self, address: u64) -> Option<usize> {
        let mut index = home(address, self.at.table_entries);
        for _ in 0..PROBE_MAX {
            let there = self.words.get(self.at.table + index * ENTRY_WORDS);
            if there == address {
                return Some(index);
            }
            if there == EMPTY {
                return None;
            }
            index = (index + 1) & (self.at.table_entries - 1);
        }
        None
    }

    fn entry(&self, index: usize) -> Entry {
        let first = self.at.table + index * ENTRY_WORDS;
        let packed = self.words.get(first + 2);
        Entry {
            size: self.words.get(first + 1),
            stack: packed as u32,
            birth_step: (packed >> 32) as u32,
            birth_ns: self.words.get(first + 3),
        }
    }

    /// Takes an entry out. Entries never move, so it leaves a mark for searches to step over,
    /// unless nothing lies behind it; then the marks before it go as well.
    fn remove(&self, index: usize) {
        let mask = self.at.table_entries - 1;
        let address_at = |index: usize| self.at.table + index * ENTRY_WORDS;
        if self.words.get(address_at((index + 1) & mask)) != EMPTY {
            self.words.set(address_at(index), REMOVED);
            return;
        }
        self.words.set(address_at(index), EMPTY);
        let mut before = index.wrapping_sub(1) & mask;
        for _ in 0..PROBE_MAX {
            if self.words.get(address_at(before)) != REMOVED {
                break;
            }
            self.words.set(address_at(before), EMPTY);
            before = before.wrapping_sub(1) & mask;
        }
    }
}

/// The record for steps `known + 1 ..= finished`, from a lane's head.
/// `at_end` is the time of the last step's end and the device's failed `cudaMalloc`s.
pub(super) fn pending_step(
    read: impl Fn(usize) -> u64,
    known: u64,
    finished: u64,
    at_end: [u64; 2],
) -> [u64; STEP_WORDS] {
    let mut record = [
        0,
        known.wrapping_add(1),
        finished,
        read(head::RESERVED),
        at_end[0],
        read(head::FLOOR_ALLOCATED),
        read(head::PEAK_ALLOCATED),
        read(head::ALLOCATED),
        read(head::FLOOR_RESERVED),
        read(head::PEAK_RESERVED),
        read(head::RESERVED_BYTES),
        read(head::LIVE_BLOCKS),
        read(head::ALLOCS),
        read(head::FREES),
        read(head::OOMS),
        at_end[1],
    ];
    record[0] = check(&record);
    record
}

/// Where the search for an address starts. Blocks are multiples of 512 bytes apart; the golden
/// ratio spreads neighbours over the table.
#[inline(always)]
fn home(address: u64, table_entries: usize) -> usize {
    let spread = (address >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (spread >> 32) as usize & (table_entries.wrapping_sub(1))
}
