//! Writing one lane: events, tables, totals and the step index.
//!
//! A reader relies on the order of the stores. For each event the writer
//! 1. raises `RESERVED`, 2. fills the slot and then its check, 3. changes the tables and totals,
//! 4. raises `DONE`. A writer can die between any two stores, and a reader can copy between them:
//! - a slot not whole means the tables were not touched for it (2 before 3);
//! - whatever a reader sees changed in a table belongs to an event below `RESERVED` (1 before 3);
//! - everything below `DONE` is in the tables (3 before 4).
//!
//! One thread at a time may write a lane: for devices by the allocator's mutex, for the
//! others by [`Lane::try_lock`]. Nothing here waits, allocates or panics.

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::event::{Event, Kind, check, of_kind, what};
use crate::layout::header::device;
use crate::layout::regions::LaneLayout;
use crate::layout::sizes::{ENTRY_WORDS, SLOT_WORDS, STEP_WORDS};
use crate::layout::{head, header};
use crate::limits::DEVICES_MAX;
use crate::shared_words::Words;
use crate::write::grant::{Grant, LiveBlock, Totals};
use crate::write::segments::SegmentTable;
use crate::write::table::{Entry, PENDING, Table};

/// Unknown birth step: the block was not in the table.
pub const BIRTH_UNKNOWN: u32 = u32::MAX;

/// The writer's view of one lane.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    pub(super) words: Words<'a>,
    pub(super) at: LaneLayout,
    head: &'a [AtomicU64; head::WORDS],
    ring: &'a [[AtomicU64; SLOT_WORDS]],
    table: Table<'a>,
    /// Number of finished steps in the header.
    finished: &'a AtomicU64,
    device: u8,
}

impl<'a> Lane<'a> {
    /// The lane at `at`, which must be open, for events of a device.
    pub fn new(words: Words<'a>, at: LaneLayout, device: u8) -> Self {
        Self {
            words,
            at,
            head: words.head(at.head),
            ring: words.chunks(at.ring, at.ring_slots),
            table: Table::new(words, &at),
            finished: words.at(header::STEP),
            device,
        }
    }

    /// This lane for events of another device.
    pub fn of_device(self, device: u8) -> Self {
        Self { device, ..self }
    }

    /// The device of the lane's events; for lanes of no device their index.
    pub fn device(&self) -> u8 {
        self.device
    }

    /// Records that a block was handed out.
    #[inline(always)]
    pub fn alloc(&self, now_ns: u64, grant: Grant, totals: Totals) {
        let Grant { address, size, requested, owner, stack } = grant;
        let step = self.close_finished_steps();
        let (birth, block) = (step << 32, what(Kind::Alloc, self.device, owner, stack));
        let ticket =
            self.publish(&[0, requested, now_ns, address, size, block, birth | step, now_ns]);
        let block = block ^ of_kind(Kind::Alloc);
        if self.table.insert(&[address, size, requested, block, birth, now_ns]) {
            self.bump(head::LIVE_BLOCKS, 1);
            self.bump(head::LIVE_BYTES, size);
            if requested != 0 {
                self.bump(head::REQUESTED_BYTES, requested);
            }
        } else {
            self.bump(head::LOST_BLOCKS, 1);
        }
        self.bump(head::ALLOCS, 1);
        self.totals(totals);
        self.done(ticket);
    }

    /// A block was taken back. `size` is used when the block is not in the table.
    #[inline(always)]
    pub fn free(&self, now_ns: u64, address: u64, size: u64, totals: Totals) {
        let Some((index, entry)) = self.table.find(address) else {
            return self.free_unknown(Kind::Free, now_ns, address, size, totals);
        };
        let ticket = self.publish_of(Kind::Free, now_ns, entry);
        self.table.remove(index);
        self.no_longer_live(entry);
        self.bump(head::FREES, 1);
        self.totals(totals);
        self.done(ticket);
        self.count_turn(now_ns, size);
    }

    /// Records that a block was taken back, but other streams still use it.
    pub fn free_deferred(&self, now_ns: u64, address: u64, size: u64, totals: Totals) {
        let Some((_, entry)) = self.table.find(address) else {
            return self.free_unknown(Kind::FreeDeferred, now_ns, address, size, totals);
        };
        let ticket = self.publish_of(Kind::FreeDeferred, now_ns, entry);
        let [_, size, _, block, ..] = entry;
        block.store(block.load(Ordering::Relaxed) | PENDING, Ordering::Relaxed);
        self.no_longer_live(entry);
        self.bump(head::DEFERRED_BLOCKS, 1);
        self.bump(head::DEFERRED_BYTES, size.load(Ordering::Relaxed));
        self.bump(head::FREES, 1);
        self.totals(totals);
        self.done(ticket);
        self.count_turn(now_ns, size.load(Ordering::Relaxed));
    }

    /// Records that a block that the table does not have was taken back.
    #[cold]
    fn free_unknown(&self, kind: Kind, now_ns: u64, address: u64, size: u64, totals: Totals) {
        let step = self.close_finished_steps();
        let block = what(kind, self.device, 0, 0);
        let steps = step | u64::from(BIRTH_UNKNOWN) << 32;
        let ticket = self.publish(&[0, 0, now_ns, address, size, block, steps, 0]);
        self.bump(head::UNKNOWN_FREES, 1);
        self.bump(head::FREES, 1);
        self.totals(totals);
        self.done(ticket);
    }

    /// Records that the last stream released a block taken back before. Ignores unknown blocks.
    pub fn free_completed(&self, now_ns: u64, address: u64) {
        let Some((index, entry)) = self.table.find(address) else { return };
        let [_, size, _, block, ..] = loaded(entry);
        if block & PENDING == 0 {
            return;
        }
        let ticket = self.publish_of(Kind::FreeCompleted, now_ns, entry);
        self.table.remove(index);
        self.bump(head::DEFERRED_BLOCKS, 1u64.wrapping_neg());
        self.bump(head::DEFERRED_BYTES, size.wrapping_neg());
        self.done(ticket);
    }

    /// The allocator took memory from the device, or gave it back: `kind` is one of the four kinds
    /// of segments. Memory given back carries the stack that took it, as a block's free does, so
    /// that undoing the event restores the segment. Totals come with the next block.
    pub fn segment(&self, now_ns: u64, kind: Kind, grant: Grant) {
        let table = SegmentTable::new(self.words, &self.at);
        let stack = match kind {
            Kind::SegmentFree | Kind::SegmentUnmap => table.taker(kind, &grant),
            _ => grant.stack,
        };
        let grant = Grant { requested: grant.size, stack, ..grant };
        let ticket = self.publish_new(now_ns, kind, grant, now_ns);
        table.apply(kind, &grant);
        self.done(ticket);
    }

    /// Records a failed request: for good (`Kind::Oom`) or for now (`Kind::MallocFailed`).
    /// [`Event::detail`] defines its `requested`.
    pub fn failure(&self, now_ns: u64, kind: Kind, grant: Grant, totals: Totals) {
        let ticket = if kind == Kind::Oom {
            let grant = Grant { address: totals.allocated, ..grant };
            let ticket = self.publish_new(now_ns, kind, grant, totals.reserved);
            self.bump(head::OOMS, 1);
            self.set(head::LAST_OOM, ticket);
            ticket
        } else {
            self.publish_new(now_ns, kind, grant, now_ns)
        };
        self.totals(totals);
        self.done(ticket);
    }

    /// Something happened that changes no memory: a mark, a snapshot.
    pub fn mark(&self, now_ns: u64, kind: Kind, size: u64, detail: u64) {
        let grant = Grant { size, requested: detail, ..Grant::default() };
        let ticket = self.publish_new(now_ns, kind, grant, now_ns);
        self.done(ticket);
    }

    /// Bytes in the live table: the totals of a lane whose allocator reports none.
    pub fn live_bytes(&self) -> u64 {
        self.get(head::LIVE_BYTES)
    }

    /// The block at `address`, if it is live.
    pub fn live(&self, address: u64) -> Option<LiveBlock> {
        let (_, entry) = self.table.find(address)?;
        let entry = Entry::decode(&loaded(entry))?;
        Some(LiveBlock { size: entry.size, device: entry.device, owner: entry.owner })
    }

    /// Runs `write` as the lane's only writer, or not at all: then returns `false`. Waits a bounded
    /// number of rounds only, since the holder may have been killed or stopped.
    pub fn try_lock(&self, write: impl FnOnce(&Self)) -> bool {
        let lock = &self.head[head::LOCK];
        let mut rounds = 0;
        while lock.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            rounds += 1;
            if rounds > crate::atomic::ROUNDS_MAX {
                return false;
            }
            crate::atomic::spin_loop();
        }
        write(self);
        lock.store(0, Ordering::Release);
        true
    }

    /// A word of the head that this writer alone changes.
    #[inline(always)]
    pub(super) fn get(&self, index: usize) -> u64 {
        self.head[index].load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn set(&self, index: usize, value: u64) {
        self.head[index].store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    fn bump(&self, index: usize, more: u64) {
        self.set(index, self.get(index).wrapping_add(more));
    }

    #[inline(always)]
    fn no_longer_live(&self, entry: &[AtomicU64; ENTRY_WORDS]) {
        let [_, size, requested, ..] = entry;
        self.bump(head::LIVE_BLOCKS, 1u64.wrapping_neg());
        self.bump(head::LIVE_BYTES, size.load(Ordering::Relaxed).wrapping_neg());
        let requested = requested.load(Ordering::Relaxed);
        if requested != 0 {
            self.bump(head::REQUESTED_BYTES, requested.wrapping_neg());
        }
    }

    /// Publishes an event about a block of the table, which it carries whole.
    #[inline(always)]
    fn publish_of(&self, kind: Kind, now_ns: u64, entry: &[AtomicU64; ENTRY_WORDS]) -> u64 {
        let step = self.close_finished_steps();
        let [address, size, requested, block, birth, birth_ns, ..] = loaded(entry);
        let block = block & !PENDING | of_kind(kind);
        self.publish(&[0, requested, now_ns, address, size, block, birth | step, birth_ns])
    }

    fn publish_new(&self, now_ns: u64, kind: Kind, grant: Grant, birth_ns: u64) -> u64 {
        let step = self.close_finished_steps() as u32;
        let event = Event {
            kind,
            device: self.device,
            owner: grant.owner,
            detail: grant.requested,
            mono_ns: now_ns,
            address: grant.address,
            size: grant.size,
            stack: grant.stack,
            step,
            birth_step: step,
            birth_ns,
        };
        self.publish(&event.words())
    }

    /// Steps 1 and 2: reserve, fill, check. Returns the event's ticket.
    #[inline(always)]
    fn publish(&self, event: &[u64; SLOT_WORDS]) -> u64 {
        let index = self.get(head::RESERVED);
        let ticket = index.wrapping_add(1);
        self.set(head::RESERVED, ticket);
        fence(Ordering::Release);
        if let Some(slot) = self.ring.get(index as usize & self.ring.len().wrapping_sub(1)) {
            for (word, value) in slot.iter().zip(event).skip(1) {
                word.store(*value, Ordering::Relaxed);
            }
            slot[0].store(check(ticket, event), Ordering::Release);
        }
        fence(Ordering::Release);
        ticket
    }

    /// Step 4.
    #[inline(always)]
    fn done(&self, ticket: u64) {
        self.head[head::DONE].store(ticket, Ordering::Release);
    }

    #[inline(always)]
    fn totals(&self, totals: Totals) {
        let Totals { allocated, reserved } = totals;
        self.set(head::ALLOCATED, allocated);
        self.set(head::RESERVED_BYTES, reserved);
        let is_usual = self.get(head::FLOOR_ALLOCATED) <= allocated
            && allocated <= self.get(head::PEAK_ALLOCATED)
            && self.get(head::FLOOR_RESERVED) <= reserved
            && reserved <= self.get(head::PEAK_RESERVED);
        if !is_usual {
            self.record_totals(totals);
        }
    }

    /// Updates the lowest and highest totals since the step began.
    #[cold]
    fn record_totals(&self, totals: Totals) {
        let Totals { allocated, reserved } = totals;
        let highest = |index, value| self.set(index, self.get(index).max(value));
        let lowest = |index, value| self.set(index, self.get(index).min(value));
        lowest(head::FLOOR_ALLOCATED, allocated);
        highest(head::PEAK_ALLOCATED, allocated);
        highest(head::PEAK_EVER, allocated);
        lowest(head::FLOOR_RESERVED, reserved);
        highest(head::PEAK_RESERVED, reserved);
    }

    /// Writes the record of the steps that ended since the last event, if any did, and returns
    /// the number of finished steps, in 32 bits. Steps are marked elsewhere, by a thread that does
    /// not hold the lane; closing them here keeps the lane single-writer. Until the next event a
    /// reader derives the same record from the head.
    #[inline(always)]
    fn close_finished_steps(&self) -> u64 {
        let finished = self.finished.load(Ordering::Acquire);
        if finished != self.get(head::STEP) {
            self.close_steps(self.get(head::STEP), finished);
        }
        u64::from(finished as u32)
    }

    #[cold]
    fn close_steps(&self, known: u64, finished: u64) {
        let words = self.words;
        let known = known_steps(known, finished, words.get(header::STEPS_SINCE_NS));
        if finished < self.get(head::BIRTH_STEP) {
            // It was made in turns.
            self.set(head::BIRTH_STEP, 0);
        }
        if finished > known {
            let number = self.get(head::STEPS_WRITTEN);
            let index = (number as usize) & (self.at.step_records.wrapping_sub(1));
            let first = self.at.steps + index * STEP_WORDS;
            let at_end = [words.get(header::STEP_MONO_NS), self.malloc_failures()];
            let record = pending_step(|index| self.get(index), known, finished, at_end);
            words.set(first, 0); // not a record while it is being changed
            fence(Ordering::Release);
            for (offset, word) in record.iter().enumerate().skip(1) {
                words.set(first + offset, *word);
            }
            words.at(first).store(record[0], Ordering::Release);
            self.head[head::STEPS_WRITTEN].store(number.wrapping_add(1), Ordering::Release);
        }
        // A smaller number means the program set its step back: the index goes on from there.
        let (allocated, reserved) = (self.get(head::ALLOCATED), self.get(head::RESERVED_BYTES));
        self.set(head::FLOOR_ALLOCATED, allocated);
        self.set(head::PEAK_ALLOCATED, allocated);
        self.set(head::FLOOR_RESERVED, reserved);
        self.set(head::PEAK_RESERVED, reserved);
        self.head[head::STEP].store(finished, Ordering::Release);
    }

    /// Failed `cudaMalloc`s of the lane's device; lanes of no device have none.
    fn malloc_failures(&self) -> u64 {
        if usize::from(self.device) >= DEVICES_MAX {
            return 0;
        }
        self.words.get(Words::device_word(self.device, device::MALLOC_FAILURES))
    }
}

/// The words of an entry.
#[inline(always)]
fn loaded(entry: &[AtomicU64; ENTRY_WORDS]) -> [u64; ENTRY_WORDS] {
    entry.each_ref().map(|word| word.load(Ordering::Relaxed))
}

/// The steps that a lane knew to be finished: none, where it knew turns and steps began since.
pub(crate) fn known_steps(known: u64, finished: u64, steps_since_ns: u64) -> u64 {
    if finished < known && steps_since_ns != 0 { 0 } else { known }
}

/// The record for steps `known + 1 ..= finished`, from a lane's head.
/// `at_end` is the time of the last step's end and the device's failed `cudaMalloc`s.
pub(crate) fn pending_step(
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
    record[0] = check(0, &record);
    record
}
