//! Writing one lane: events, tables, totals and the step index.
//!
//! The order of stores is the whole art. For each event the writer
//! 1. raises `RESERVED`, 2. fills the slot and then its check, 3. changes the tables and totals,
//! 4. raises `DONE`. A writer can die between any two stores, and a reader can look between them:
//! - a slot not whole means the tables were not touched for it (2 before 3);
//! - whatever a reader sees changed in a table belongs to an event below `RESERVED` (1 before 3);
//! - everything below `DONE` is in the tables (3 before 4).
//!
//! One thread at a time may write a lane: for devices the allocator's mutex sees to that, for the
//! others [`Lane::try_lock`] does. Nothing here waits, allocates or panics.

use super::atomic::{AtomicU64, Ordering, fence};
use super::event::{Event, Kind, check};
use super::layout::{DEVICES_MAX, LaneLayout, SLOT_WORDS, STEP_WORDS, device, head, header};
use super::segments::SegmentTable;
use super::table::{Entry, Table};
use super::words::Words;

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

/// A block as it is handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Device address.
    pub address: u64,
    /// Bytes, rounded as the allocator rounds.
    pub size: u64,
    /// Bytes asked for; 0 is unknown.
    pub requested: u64,
    /// Stream and pool, or origin: see [`Event::place`].
    pub place: u16,
    /// Atom of the stack.
    pub stack: u32,
}

/// The writer's view of one lane.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    words: Words<'a>,
    at: LaneLayout,
    head: &'a [AtomicU64; head::WORDS],
    table: Table<'a>,
    device: u8,
}

impl<'a> Lane<'a> {
    /// The lane at `at`, which must be open, for events of a device.
    pub fn new(words: Words<'a>, at: LaneLayout, device: u8) -> Self {
        Self { words, at, head: words.head(at.head), table: Table::new(words, &at), device }
    }

    /// The same lane for events of another device.
    pub fn of_device(self, device: u8) -> Self {
        Self { device, ..self }
    }

    /// The device whose events it takes; for lanes of no device their index.
    pub fn device(&self) -> u8 {
        self.device
    }

    /// A block was handed out.
    #[inline]
    pub fn alloc(&self, now_ns: u64, grant: Grant, totals: Totals) {
        let Grant { address, size, requested, place, stack } = grant;
        let step = self.close_finished_steps();
        self.publish(&Event {
            kind: Kind::Alloc,
            device: self.device,
            place,
            detail: requested,
            mono_ns: now_ns,
            address,
            size,
            stack,
            step,
            birth_step: step,
            birth_ns: now_ns,
        });
        let entry = Entry {
            address,
            size,
            requested,
            stack,
            birth_step: step,
            birth_ns: now_ns,
            place,
            device: self.device,
            pending: false,
        };
        if self.table.insert(&entry) {
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
        self.done();
    }

    /// A block was taken back. `size` is used when the block is not in the table.
    #[inline]
    pub fn free(&self, now_ns: u64, address: u64, size: u64, totals: Totals) {
        let (found, entry) = self.entry_or_unknown(address, size);
        self.publish_of(Kind::Free, now_ns, &entry);
        if let Some(index) = found {
            self.table.remove(index);
            self.no_longer_live(&entry);
        } else {
            self.bump(head::UNKNOWN_FREES, 1);
        }
        self.bump(head::FREES, 1);
        self.totals(totals);
        self.done();
    }

    /// A block was taken back, but other streams still use it.
    pub fn free_deferred(&self, now_ns: u64, address: u64, size: u64, totals: Totals) {
        let (found, entry) = self.entry_or_unknown(address, size);
        self.publish_of(Kind::FreeDeferred, now_ns, &entry);
        if let Some(index) = found {
            self.table.set_pending(index);
            self.no_longer_live(&entry);
            self.bump(head::DEFERRED_BLOCKS, 1);
            self.bump(head::DEFERRED_BYTES, entry.size);
        } else {
            self.bump(head::UNKNOWN_FREES, 1);
        }
        self.bump(head::FREES, 1);
        self.totals(totals);
        self.done();
    }

    /// No stream uses a block any more that was taken back before. Nothing when it is not known.
    pub fn free_completed(&self, now_ns: u64, address: u64) {
        let Some(index) = self.table.find(address) else { return };
        let entry = self.table.entry(index);
        if !entry.pending {
            return;
        }
        self.publish_of(Kind::FreeCompleted, now_ns, &entry);
        self.table.remove(index);
        self.bump(head::DEFERRED_BLOCKS, 1u64.wrapping_neg());
        self.bump(head::DEFERRED_BYTES, entry.size.wrapping_neg());
        self.done();
    }

    /// The allocator took memory from the device, or gave it back: `kind` is one of the four kinds
    /// of segments. What is given back carries the stack that took it, as a block's free does, so
    /// that undoing it gives the segment that was there. Totals come with the next block.
    pub fn segment(&self, now_ns: u64, kind: Kind, grant: Grant) {
        let table = SegmentTable::new(self.words, &self.at);
        let stack = match kind {
            Kind::SegmentFree | Kind::SegmentUnmap => table.taker(kind, &grant),
            _ => grant.stack,
        };
        let step = self.close_finished_steps();
        self.publish(&Event {
            kind,
            device: self.device,
            place: grant.place,
            detail: grant.size,
            mono_ns: now_ns,
            address: grant.address,
            size: grant.size,
            stack,
            step,
            birth_step: step,
            birth_ns: now_ns,
        });
        table.apply(kind, &grant);
        self.done();
    }

    /// A request failed: for good (`Kind::Oom`) or for now (`Kind::MallocFailed`). Its `requested`
    /// is what [`Event::detail`] says of that kind.
    pub fn failure(&self, now_ns: u64, kind: Kind, grant: Grant, totals: Totals) {
        if kind == Kind::Oom {
            let grant = Grant { address: totals.allocated, ..grant };
            self.moment(now_ns, kind, grant, totals.reserved);
            self.bump(head::OOMS, 1);
            self.set(head::LAST_OOM, self.get(head::RESERVED));
        } else {
            self.moment(now_ns, kind, grant, now_ns);
        }
        self.totals(totals);
        self.done();
    }

    /// Something happened that changes no memory: a mark, a snapshot.
    pub fn mark(&self, now_ns: u64, kind: Kind, size: u64, detail: u64) {
        self.moment(now_ns, kind, Grant { size, requested: detail, ..Grant::default() }, now_ns);
        self.done();
    }

    /// Bytes in the live table: the totals of a lane whose allocator reports none.
    pub fn live_bytes(&self) -> u64 {
        self.get(head::LIVE_BYTES)
    }

    /// The block at `address`, if it is live: its size and device.
    pub fn live(&self, address: u64) -> Option<(u64, u8)> {
        let entry = self.table.entry(self.table.find(address)?);
        Some((entry.size, entry.device))
    }

    /// Runs `write` as the lane's only writer, or not at all: `false` says it was not.
    /// Waits a bounded number of rounds only, since the holder may have been killed or stopped.
    pub fn try_lock(&self, write: impl FnOnce(&Self)) -> bool {
        let lock = &self.head[head::LOCK];
        let mut rounds = 0;
        while lock.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            rounds += 1;
            if rounds > super::atomic::ROUNDS_MAX {
                return false;
            }
            super::atomic::spin_loop();
        }
        write(self);
        lock.store(0, Ordering::Release);
        true
    }

    /// A word of the head that this writer alone changes.
    #[inline(always)]
    fn get(&self, index: usize) -> u64 {
        self.head[index].load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn set(&self, index: usize, value: u64) {
        self.head[index].store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    fn bump(&self, index: usize, more: u64) {
        self.set(index, self.get(index).wrapping_add(more));
    }

    #[inline]
    fn entry_or_unknown(&self, address: u64, size: u64) -> (Option<usize>, Entry) {
        match self.table.find(address) {
            Some(index) => (Some(index), self.table.entry(index)),
            None => {
                let device = self.device;
                let birth_step = BIRTH_UNKNOWN;
                (None, Entry { address, size, birth_step, device, ..Entry::default() })
            }
        }
    }

    #[inline]
    fn no_longer_live(&self, entry: &Entry) {
        self.bump(head::LIVE_BLOCKS, 1u64.wrapping_neg());
        self.bump(head::LIVE_BYTES, entry.size.wrapping_neg());
        if entry.requested != 0 {
            self.bump(head::REQUESTED_BYTES, entry.requested.wrapping_neg());
        }
    }

    /// Publishes an event about a block of the table, which it carries whole.
    #[inline]
    fn publish_of(&self, kind: Kind, now_ns: u64, entry: &Entry) {
        let step = self.close_finished_steps();
        self.publish(&Event {
            kind,
            device: entry.device,
            place: entry.place,
            detail: entry.requested,
            mono_ns: now_ns,
            address: entry.address,
            size: entry.size,
            stack: entry.stack,
            step,
            birth_step: entry.birth_step,
            birth_ns: entry.birth_ns,
        });
    }

    fn moment(&self, now_ns: u64, kind: Kind, grant: Grant, birth_ns: u64) {
        let step = self.close_finished_steps();
        self.publish(&Event {
            kind,
            device: self.device,
            place: grant.place,
            detail: grant.requested,
            mono_ns: now_ns,
            address: grant.address,
            size: grant.size,
            stack: grant.stack,
            step,
            birth_step: step,
            birth_ns,
        });
    }

    /// Steps 1 and 2: reserve, fill, check.
    #[inline]
    fn publish(&self, event: &Event) {
        let ticket = self.get(head::RESERVED).wrapping_add(1);
        self.set(head::RESERVED, ticket);
        fence(Ordering::Release);
        let index = (ticket.wrapping_sub(1) as usize) & (self.at.ring_slots.wrapping_sub(1));
        if let Some(slot) = self.words.array::<SLOT_WORDS>(self.at.ring + index * SLOT_WORDS) {
            let [check, detail, mono_ns, address, size, what, steps, birth_ns] =
                event.encode(ticket);
            slot[1].store(detail, Ordering::Relaxed);
            slot[2].store(mono_ns, Ordering::Relaxed);
            slot[3].store(address, Ordering::Relaxed);
            slot[4].store(size, Ordering::Relaxed);
            slot[5].store(what, Ordering::Relaxed);
            slot[6].store(steps, Ordering::Relaxed);
            slot[7].store(birth_ns, Ordering::Relaxed);
            slot[0].store(check, Ordering::Release);
        }
        fence(Ordering::Release);
    }

    /// Step 4.
    #[inline(always)]
    fn done(&self) {
        self.head[head::DONE].store(self.get(head::RESERVED), Ordering::Release);
    }

    #[inline]
    fn totals(&self, totals: Totals) {
        let Totals { allocated, reserved } = totals;
        self.set(head::ALLOCATED, allocated);
        self.set(head::RESERVED_BYTES, reserved);
        if allocated < self.get(head::FLOOR_ALLOCATED) {
            self.set(head::FLOOR_ALLOCATED, allocated);
        }
        if allocated > self.get(head::PEAK_ALLOCATED) {
            self.set(head::PEAK_ALLOCATED, allocated);
            if allocated > self.get(head::PEAK_EVER) {
                self.set(head::PEAK_EVER, allocated);
            }
        }
        if reserved < self.get(head::FLOOR_RESERVED) {
            self.set(head::FLOOR_RESERVED, reserved);
        }
        if reserved > self.get(head::PEAK_RESERVED) {
            self.set(head::PEAK_RESERVED, reserved);
        }
    }

    /// Writes the record of the steps that ended since the last event, if any did, and returns
    /// the number of finished steps. Steps are marked elsewhere, by a thread that does not hold
    /// the lane; closing them here keeps the lane single-writer. Until the next event a reader
    /// derives the same record from the head.
    #[inline]
    fn close_finished_steps(&self) -> u32 {
        let finished = self.words.at(header::STEP).load(Ordering::Acquire);
        let known = self.get(head::STEP);
        if finished != known {
            self.close_steps(known, finished);
        }
        finished as u32
    }

    #[cold]
    fn close_steps(&self, known: u64, finished: u64) {
        let words = self.words;
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
