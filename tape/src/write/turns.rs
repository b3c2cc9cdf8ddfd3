//! The clock of a process that marks no steps: servers, generation, evaluation.
//!
//! A *turn* ends when the process has freed [`TIMES_WORK`] times its *work*: the bytes that it
//! takes and gives back in one piece of work, such as a request. Freed bytes are allocated bytes
//! less those that are kept, so loading a model ends no turn, and a process that is idle does not
//! age. The work is the largest fall of the allocated bytes that was seen lately; so a turn spans a
//! few pieces of work, of any size, and the lowest level of a turn is the level between them.
//!
//! One device ends the turns of a process: the first that has one to end. The first
//! [`TURNS_FIRST`] turns are not counted: a training job that accumulates gradients has some before
//! its first step. The first real step ends the counting for good; see
//! [`Words::mark_step`](crate::Words::mark_step).

use crate::atomic::Ordering;
use crate::layout::{Clock, head, header};
use crate::limits::DEVICES_MAX;
use crate::write::Lane;

/// Times the work that a turn frees.
const TIMES_WORK: u64 = 4;

/// Least bytes that a turn frees.
const TURN_BYTES_MIN: u64 = 64 << 20;

/// Shortest turn: as long as a short training step, for which everything downstream is made.
const TURN_NS_MIN: u64 = 50_000_000;

/// Turns that end before the first one is counted.
const TURNS_FIRST: u64 = 64;

/// Part of the work that is forgotten with each turn: 1 / 8.
const FORGOTTEN_SHIFT: u32 = 3;

impl Lane<'_> {
    /// Counts bytes that were freed towards the end of the turn.
    #[inline(always)]
    pub(super) fn count_turn(&self, now_ns: u64, freed: u64) {
        let left = self.get(head::TURN_LEFT_BYTES);
        if freed < left {
            self.set(head::TURN_LEFT_BYTES, left - freed);
        } else {
            self.turn(now_ns);
        }
    }

    /// The bytes of a turn are freed: ends the turn, or goes on where it is too short.
    #[cold]
    fn turn(&self, now_ns: u64) {
        let words = self.words;
        let is_turning = words.get(header::CLOCK) == Clock::Turns as u64;
        let has_steps = !is_turning && words.get(header::STEP) != 0;
        if has_steps || !self.is_of_device() {
            return self.set(head::TURN_LEFT_BYTES, u64::MAX);
        }
        let work = self.work();
        self.set(head::TURN_WORK_BYTES, work);
        self.set(head::TURN_START_BYTES, self.get(head::ALLOCATED));
        self.set(head::TURN_LEFT_BYTES, work.saturating_mul(TIMES_WORK).max(TURN_BYTES_MIN));
        let is_short = now_ns.saturating_sub(self.get(head::TURN_START_NS)) < TURN_NS_MIN;
        if is_short || !self.ends_turns() {
            return;
        }
        self.set(head::TURN_START_NS, now_ns);
        let turns = words.get(header::TURNS).wrapping_add(1);
        words.set(header::TURNS, turns);
        if turns >= TURNS_FIRST {
            words.mark_turn(now_ns, turns);
            // The next event closes the record and starts from this level.
            self.set(head::TURN_PEAK_BYTES, self.get(head::ALLOCATED));
        }
    }

    /// The largest fall of the allocated bytes that was seen lately. The peak counts where it is
    /// this turn's: before turns are counted, it is the highest level since the start.
    fn work(&self) -> u64 {
        let now = self.get(head::ALLOCATED);
        let peak = self.get(head::PEAK_ALLOCATED);
        let is_new = peak > self.get(head::TURN_PEAK_BYTES);
        self.set(head::TURN_PEAK_BYTES, peak);
        let from = self.get(head::TURN_START_BYTES).max(if is_new { peak } else { 0 });
        let known = self.get(head::TURN_WORK_BYTES);
        from.saturating_sub(now).max(known - (known >> FORGOTTEN_SHIFT))
    }

    /// Does this device end the turns of its process?
    fn ends_turns(&self) -> bool {
        let own = u64::from(self.device()) + 1;
        let word = self.words.at(header::TURN_DEVICE);
        match word.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(known) => known == own,
        }
    }

    /// Is this the lane of its device? The host's lane takes events of devices, too.
    fn is_of_device(&self) -> bool {
        let device = usize::from(self.device());
        let lane = header::DESCRIPTORS + device * header::descriptor::WORDS;
        let head = self.words.get(lane + header::descriptor::HEAD);
        device < DEVICES_MAX && head == self.at.head as u64
    }
}
