//! The tape as its writer sees it: shared words, reached without a panic.
//!
//! Every access is bounds-checked and an access outside the tape goes to a word that is never read:
//! code that runs inside a training process must not panic, and a wrong index must not tear
//! another region.

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::layout::header::{descriptor, device};
use crate::layout::regions::Layout;
use crate::layout::sizes::{HEADER_WORDS, IDENTITY_WORDS, LANES, MAGIC, VERSION};
use crate::layout::states::{Clock, State};
use crate::layout::{head, header};
use crate::limits::DEVICES_MAX;
use crate::snapshot::origin::Origin;

/// Target of accesses outside the tape.
static NOWHERE: [AtomicU64; head::WORDS] = [const { AtomicU64::new(0) }; head::WORDS];

/// A tape being written.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a>(pub &'a [AtomicU64]);

impl<'a> Words<'a> {
    /// The word at `index`.
    #[inline(always)]
    pub fn at(self, index: usize) -> &'a AtomicU64 {
        self.0.get(index).unwrap_or(&NOWHERE[0])
    }

    /// The head of a lane, with one check of the bounds.
    pub(crate) fn head(self, first: usize) -> &'a [AtomicU64; head::WORDS] {
        self.chunks(first, 1).first().unwrap_or(&NOWHERE)
    }

    /// `count` times `N` words from `first` on; none at all when they are not all there.
    pub(crate) fn chunks<const N: usize>(self, first: usize, count: usize) -> &'a [[AtomicU64; N]] {
        let end = count.checked_mul(N).and_then(|words| first.checked_add(words));
        end.and_then(|end| self.0.get(first..end)).unwrap_or_default().as_chunks().0
    }

    /// Reads a word that this writer alone changes.
    #[inline(always)]
    pub fn get(self, index: usize) -> u64 {
        self.at(index).load(Ordering::Relaxed)
    }

    /// Reads a word of the header that is an offset or a length in words. At most the length of the
    /// tape: the value is not trusted, and callers add to it.
    pub(crate) fn offset(self, index: usize) -> usize {
        usize::try_from(self.get(index)).unwrap_or(usize::MAX).min(self.0.len())
    }

    /// Writes a word that needs no order of its own.
    #[inline(always)]
    pub fn set(self, index: usize, value: u64) {
        self.at(index).store(value, Ordering::Relaxed);
    }

    /// Adds to a word that only one thread changes at a time.
    #[inline(always)]
    pub fn add(self, index: usize, more: u64) {
        self.set(index, self.get(index).wrapping_add(more));
    }

    /// Adds one to a counter that several threads may change at once.
    #[inline]
    pub fn count(self, index: usize) {
        self.at(index).fetch_add(1, Ordering::Relaxed);
    }

    /// Word `index` of device `number`'s block in the header.
    #[inline(always)]
    pub fn device_word(number: u8, index: usize) -> usize {
        header::DEVICES + usize::from(number) * device::WORDS + index
    }

    /// Word of the header with the bytes of an origin on a device; none for origins without a sum.
    pub fn outside_word(origin: Origin, device: u8) -> Option<usize> {
        let device = if origin.is_on_device() { usize::from(device) } else { 0 };
        let index = (origin as usize).checked_sub(1).filter(|_| device < DEVICES_MAX)?;
        Some(header::OUTSIDE_BYTES + device * Origin::ALL.len() + index)
    }

    /// Adds to an origin's bytes on a device; less is added as its complement. Only the writer of
    /// the origin's lane may.
    pub fn add_outside(self, origin: Origin, device: u8, more: u64) {
        if let Some(word) = Self::outside_word(origin, device) {
            self.add(word, more);
        }
    }

    /// Makes a tape out of zeroed words. The magic comes last, so that no reader takes a tape that
    /// is half made.
    pub fn format(self, layout: &Layout, birth: &Birth) {
        self.set(header::VERSION, VERSION);
        self.set(header::FILE_WORDS, layout.file_words as u64);
        self.set(header::STATE, State::Recording as u64);
        self.set(header::BOOT_ID, birth.boot_id[0]);
        self.set(header::BOOT_ID + 1, birth.boot_id[1]);
        self.set(header::PID, birth.pid);
        self.set(header::PID_NAMESPACE, birth.pid_namespace);
        self.set(header::START_MONO_NS, birth.mono_ns);
        self.set(header::START_WALL_NS, birth.wall_ns);
        self.set(header::CLOCK_ERROR_NS, birth.clock_error_ns);
        self.set(header::IDENTITY_OFFSET, HEADER_WORDS as u64);
        self.set(header::STREAM_POOLS_OFFSET, layout.stream_pools as u64);
        self.set(header::STREAM_POOLS_USED, 1); // entry 0 means unknown
        self.set(header::COLLECTIVE_OFFSET, layout.collectives as u64);
        self.set(header::INTERNED_OFFSET, layout.interned as u64);
        self.set(header::INTERNED_WORDS, layout.interned_words as u64);
        self.set(header::INTERNED_USED, 1); // entry 0 means unknown
        self.write_identity(&birth.identity);
        for (index, lane) in layout.lanes.iter().enumerate().take(LANES) {
            let first = header::DESCRIPTORS + index * descriptor::WORDS;
            self.set(first + descriptor::HEAD, lane.head as u64);
            self.set(first + descriptor::RING, lane.ring as u64);
            self.set(first + descriptor::RING_SLOTS, lane.ring_slots as u64);
            self.set(first + descriptor::TABLE, lane.table as u64);
            self.set(first + descriptor::TABLE_ENTRIES, lane.table_entries as u64);
            self.set(first + descriptor::STEPS, lane.steps as u64);
            self.set(first + descriptor::STEP_RECORDS, lane.step_records as u64);
            self.set(first + descriptor::SEGMENTS, lane.segments as u64);
            self.set(first + descriptor::SEGMENT_ENTRIES, lane.segment_entries as u64);
        }
        fence(Ordering::Release);
        self.set(header::MAGIC, MAGIC);
    }

    fn write_identity(self, text: &str) {
        let text = crate::identity::cut(text, IDENTITY_WORDS * 8);
        for (index, chunk) in text.as_bytes().chunks(8).enumerate() {
            self.set(HEADER_WORDS + index, pack(chunk));
        }
        self.set(header::IDENTITY_BYTES, text.len() as u64);
    }

    /// Declares a lane ready, once its pages exist.
    pub fn open_lane(self, index: usize, layout: &Layout) {
        let Some(lane) = layout.lanes.get(index) else { return };
        let step = self.get(header::STEP);
        self.set(lane.head + head::BIRTH_STEP, step);
        self.set(lane.head + head::STEP, step);
        fence(Ordering::Release);
        self.set(header::DESCRIPTORS + index * descriptor::WORDS + descriptor::STATE, 1);
    }

    /// Marks the end of a step: `step` steps are finished now. The first step ends the counting of
    /// turns; it has the same number on every rank, however many turns were counted before.
    pub fn mark_step(self, now_ns: u64, step: u64) {
        if self.get(header::CLOCK) != Clock::Steps as u64 {
            self.set(header::STEPS_SINCE_NS, now_ns);
            self.set(header::CLOCK, Clock::Steps as u64);
        }
        self.set(header::STEP_MONO_NS, now_ns);
        self.at(header::STEP).store(step, Ordering::Release);
    }

    /// Marks the end of a turn: `turns` turns are finished now. Nothing happens when the program
    /// has marked a step meanwhile: another thread does that.
    pub(crate) fn mark_turn(self, now_ns: u64, turns: u64) {
        let step = self.at(header::STEP);
        let known = step.load(Ordering::Acquire);
        let is_first = known == 0;
        if !is_first && self.get(header::CLOCK) != Clock::Turns as u64 {
            return;
        }
        // Before the number, so that no reader takes turns for steps.
        self.set(header::CLOCK, Clock::Turns as u64);
        self.set(header::STEP_MONO_NS, now_ns);
        let marked = step.compare_exchange(known, turns, Ordering::Release, Ordering::Relaxed);
        if marked.is_err() {
            self.set(header::CLOCK, Clock::Steps as u64);
        }
    }
}

/// Packs up to eight bytes into a word.
pub(crate) fn pack(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// Facts about a tape's process from the start.
#[derive(Clone, Debug, Default)]
pub struct Birth {
    /// Kernel's boot id.
    pub boot_id: [u64; 2],
    /// Process id in its own namespace.
    pub pid: u64,
    /// Inode of that namespace.
    pub pid_namespace: u64,
    /// CLOCK_MONOTONIC …
    pub mono_ns: u64,
    /// … and Unix time at one moment …
    pub wall_ns: u64,
    /// … and the time between the readings around it.
    pub clock_error_ns: u64,
    /// `key=value` lines, see `reader::Identity`.
    pub identity: alloc::string::String,
}
