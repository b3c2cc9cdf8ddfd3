//! The store's clock: how long coordinators have run on this store. Ages are measured on it.
//!
//! The clock goes on with the machine's monotonic clock while a coordinator runs, and stands still
//! between two runs. Setting the machine's wall clock moves neither the keys of step blocks nor any
//! age. Its zero means nothing: a new store begins at the wall clock's reading, and a later run
//! goes on from the newest block of steps or from the [`ClockRecord`], whichever is later. A crash
//! sets it back by up to [`NOTED_EVERY_NS`], and by more where no coordinator could write.
//!
//! [`ClockWatch`] reports when the wall clock jumps. Nothing here decides what to delete.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::records::Record;
use memtape_disk::clock::Now;

/// Time between two notes of the clock in the journal.
pub(crate) const NOTED_EVERY_NS: i64 = 300_000_000_000;

/// The wall clock jumps when it passes the monotonic clock by more than this between two samples,
/// which are a second apart. NTP adjusts by less.
pub(crate) const JUMP_NS_MIN: i64 = 5_000_000_000;

/// The clock of one run; everything that measures ages has a copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreClock {
    /// Time of this clock when the store was opened.
    begin_ns: i64,
    begin_mono_ns: u64,
}

impl StoreClock {
    /// A clock that goes on from the newest time known, or begins at the wall clock's reading.
    pub fn go_on(now: Now, known_ns: Option<i64>) -> Self {
        let begin_ns = known_ns.unwrap_or(now.wall_ns).max(0);
        Self { begin_ns, begin_mono_ns: now.mono_ns }
    }

    /// Time of the store's clock, in nanoseconds.
    pub fn at(self, now: Now) -> i64 {
        let passed_ns = now.mono_ns.saturating_sub(self.begin_mono_ns);
        self.begin_ns.saturating_add(i64::try_from(passed_ns).unwrap_or(i64::MAX))
    }
}

/// Time of the store's clock, and jumps of the wall clock: the store's only own record.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct ClockRecord {
    /// The store's clock.
    pub store_ns: i64,
    /// The wall clock at the same time.
    pub wall_ns: i64,
    /// Jumps of the wall clock so far.
    pub jumps: u64,
    /// Size of the last jump: forward, or back when below zero.
    pub jump_ns: i64,
}

impl Record for ClockRecord {
    const KIND: u8 = b't';

    fn key(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// A jump of the wall clock, in nanoseconds; below zero it was set back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Jump(pub i64);

impl std::fmt::Display for Jump {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = Duration::from_secs(self.0.unsigned_abs() / 1_000_000_000);
        let way = if self.0 < 0 { "back" } else { "forward" };
        write!(formatter, "{way} by {} s", size.as_secs())
    }
}

/// Compares the wall clock with the monotonic clock.
#[derive(Debug)]
pub(crate) struct ClockWatch {
    clock: StoreClock,
    record: ClockRecord,
    /// Lead of the wall clock over the monotonic one at the last sample, in nanoseconds.
    ahead_ns: i64,
    noted_ns: i64,
}

impl ClockWatch {
    /// Begins to watch; also tells whether the wall clock was set back since the last run. A clock
    /// that was set forward cannot be distinguished from a stopped coordinator.
    pub(crate) fn new(clock: StoreClock, now: Now, known: Option<ClockRecord>) -> Self {
        let noted_ns = clock.at(now);
        let (record, ahead_ns) = (known.unwrap_or_default(), ahead_ns(now));
        Self { clock, record, ahead_ns, noted_ns }
    }

    /// Time by which the wall clock was set back between the last run and this one.
    pub(crate) fn set_back(&mut self, now: Now) -> Option<Jump> {
        let jump_ns = now.wall_ns.saturating_sub(self.record.wall_ns);
        (jump_ns < -JUMP_NS_MIN).then(|| self.jumped(jump_ns))
    }

    /// Jump of the wall clock since the last sample.
    pub(crate) fn look(&mut self, now: Now) -> Option<Jump> {
        let before_ns = std::mem::replace(&mut self.ahead_ns, ahead_ns(now));
        let jump_ns = self.ahead_ns.saturating_sub(before_ns);
        (jump_ns.saturating_abs() > JUMP_NS_MIN).then(|| self.jumped(jump_ns))
    }

    fn jumped(&mut self, jump_ns: i64) -> Jump {
        self.record.jumps += 1;
        self.record.jump_ns = jump_ns;
        self.noted_ns = i64::MIN;
        Jump(jump_ns)
    }

    /// The record, when it is time to write it.
    pub(crate) fn due(&mut self, now: Now) -> Option<&ClockRecord> {
        let store_ns = self.clock.at(now);
        if store_ns.saturating_sub(self.noted_ns) < NOTED_EVERY_NS {
            return None;
        }
        self.noted_ns = store_ns;
        (self.record.store_ns, self.record.wall_ns) = (store_ns, now.wall_ns);
        Some(&self.record)
    }
}

fn ahead_ns(now: Now) -> i64 {
    now.wall_ns.saturating_sub(i64::try_from(now.mono_ns).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND_NS: i64 = 1_000_000_000;

    fn now(mono_s: i64, wall_s: i64) -> Now {
        Now { mono_ns: (mono_s * SECOND_NS).unsigned_abs(), wall_ns: wall_s * SECOND_NS }
    }

    #[test]
    fn jumps_are_reported_and_drift_is_not() {
        let clock = StoreClock::go_on(now(100, 1000), None);
        let mut watch = ClockWatch::new(clock, now(100, 1000), None);
        let mut check = |mono_s, wall_s, expected: Option<i64>| {
            let jump = watch.look(now(mono_s, wall_s));
            assert_eq!(jump, expected.map(|seconds| Jump(seconds * SECOND_NS)));
        };
        check(101, 1001, None);
        check(102, 1006, None);
        check(103, 8207, Some(7200));
        check(104, 8208, None);
        check(105, 1009, Some(-7200));
        let record = watch.due(now(105, 1009)).cloned().expect("a jump is noted at once");
        assert_eq!((record.jumps, record.jump_ns), (2, -7200 * SECOND_NS));
        assert_eq!(record.store_ns, 1005 * SECOND_NS);
        assert_eq!(watch.due(now(106, 1010)), None);
        // The next run.
        let clock = StoreClock::go_on(now(0, 500), Some(record.store_ns));
        let mut watch = ClockWatch::new(clock, now(0, 500), Some(record));
        assert_eq!(watch.set_back(now(0, 500)), Some(Jump(-509 * SECOND_NS)));
        assert_eq!(Jump(-509 * SECOND_NS).to_string(), "back by 509 s");
    }

    proptest! {
        /// For any wall clock, the time of the store advances with the monotonic clock.
        #[test]
        fn the_wall_clock_does_not_move_the_stores_clock(
            known_ns in 0..i64::MAX / 4,
            mono_ns in 0..u64::MAX / 4,
            passed_ns in 0..i64::MAX / 4,
            walls in (any::<i64>(), any::<i64>()),
        ) {
            let begin = Now { mono_ns, wall_ns: walls.0 };
            let end = Now { mono_ns: mono_ns + passed_ns.unsigned_abs(), wall_ns: walls.1 };
            let clock = StoreClock::go_on(begin, Some(known_ns));
            prop_assert_eq!(clock.at(begin), known_ns);
            prop_assert_eq!(clock.at(end), known_ns + passed_ns);
            let mut watch = ClockWatch::new(clock, begin, None);
            let _ = (watch.set_back(begin), watch.look(end), watch.due(end));
        }
    }
}
