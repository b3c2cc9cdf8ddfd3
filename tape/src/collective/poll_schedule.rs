//! The poll schedule: when to ask PyTorch's flight recorder how far the collectives have come.
//!
//! PyTorch's function reads two maps without their lock. They change when a communicator has been
//! made, and when a group begins its first collective, for some nanoseconds each. So nothing is
//! asked while a communicator is being made or has just been, and only now and then while there are
//! communicators whose group has not begun a collective. When all have begun, nothing changes any
//! more, and polls are frequent. A long poll is followed by a long pause.

use crate::snapshot::CollectiveSource;

/// Pause from the end of one poll to the next, while nothing can change in the maps.
pub const LOOK_NS: u64 = 1_000_000_000;

/// Pause while some communicator's group has not begun a collective: it may do so at any time.
pub const UNSETTLED_NS: u64 = 10_000_000_000;

/// After a communicator was made: PyTorch notes its ranks, and begins a first collective, within
/// milliseconds.
pub const QUIET_NS: u64 = 5_000_000_000;

/// After a poll, the pause is this multiple of its duration: a thousandth of one core at most …
const REST_FACTOR: u64 = 1000;

/// … and no longer than this.
pub const REST_NS_MAX: u64 = 60_000_000_000;

/// Communicators that the recorder has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Communicators {
    /// Made since the start.
    pub made: u64,
    /// Number of communicators being made now.
    pub making: u64,
    /// CLOCK_MONOTONIC when the making of one last began or ended.
    pub changed_ns: u64,
}

/// Next action of the poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Say this, and ask nothing.
    Say(CollectiveSource),
    /// Write nothing, ask nothing.
    Rest,
    /// Ask.
    Ask,
}

/// Schedule of the polls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollSchedule {
    due_ns: u64,
    /// Communicators when there was nothing to be had: asked again when there are more.
    useless_at: Option<u64>,
}

impl PollSchedule {
    /// Next action at this time.
    pub fn turn(&self, now_ns: u64, seen: Communicators) -> Turn {
        if seen.making > 0 {
            Turn::Say(CollectiveSource::Making)
        } else if seen.made == 0 {
            Turn::Say(CollectiveSource::NoCommunicator)
        } else if self.useless_at == Some(seen.made) {
            Turn::Rest
        } else if now_ns < seen.changed_ns.saturating_add(QUIET_NS) {
            Turn::Say(CollectiveSource::Soon)
        } else if now_ns < self.due_ns {
            Turn::Rest
        } else {
            Turn::Ask
        }
    }

    /// Takes a poll's duration, and the number of groups that have begun a collective.
    pub fn answered(&mut self, now_ns: u64, took_ns: u64, groups: u64, seen: Communicators) {
        let least = if groups >= seen.made { LOOK_NS } else { UNSETTLED_NS };
        self.due_ns = now_ns.saturating_add(rest_ns(took_ns, least));
        self.useless_at = None;
    }

    /// Takes a poll without a result: further polls wait for another communicator.
    pub fn useless(&mut self, seen: Communicators) {
        self.useless_at = Some(seen.made);
    }
}

/// Pause after a poll of this duration, at least `least_ns`.
pub fn rest_ns(took_ns: u64, least_ns: u64) -> u64 {
    took_ns.saturating_mul(REST_FACTOR).clamp(least_ns.min(REST_NS_MAX), REST_NS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn no_poll_begins_while_a_communicator_is_made() {
        let schedule = PollSchedule::default();
        let check = |now_ns, made, making, changed_ns, turn| {
            let seen = Communicators { made, making, changed_ns };
            assert_eq!(schedule.turn(now_ns, seen), turn, "{seen:?}");
        };
        check(u64::MAX, 0, 0, 0, Turn::Say(CollectiveSource::NoCommunicator));
        check(QUIET_NS, 0, 1, 0, Turn::Say(CollectiveSource::Making));
        check(QUIET_NS, 1, 0, 1, Turn::Say(CollectiveSource::Soon));
        check(QUIET_NS, 1, 0, 0, Turn::Ask);
        check(QUIET_NS, 1, 1, 0, Turn::Say(CollectiveSource::Making));
    }

    #[test]
    fn polls_are_frequent_once_all_groups_have_begun() {
        let seen = Communicators { made: 2, making: 0, changed_ns: 0 };
        let check = |took_ns, groups, rest| {
            let mut schedule = PollSchedule::default();
            schedule.answered(QUIET_NS, took_ns, groups, seen);
            assert_eq!(schedule.turn(QUIET_NS + rest - 1, seen), Turn::Rest, "{groups} {took_ns}");
            assert_eq!(schedule.turn(QUIET_NS + rest, seen), Turn::Ask, "{groups} {took_ns}");
        };
        check(MS / 10, 2, LOOK_NS);
        check(MS / 10, 1, UNSETTLED_NS);
        check(7 * MS, 2, 7000 * MS);
        check(3600 * 1000 * MS, 2, REST_NS_MAX);
    }

    #[test]
    fn a_useless_poll_is_repeated_after_another_communicator() {
        let mut schedule = PollSchedule::default();
        let seen = |made| Communicators { made, making: 0, changed_ns: 0 };
        schedule.useless(seen(1));
        assert_eq!(schedule.turn(u64::MAX, seen(1)), Turn::Rest);
        assert_eq!(schedule.turn(u64::MAX, seen(2)), Turn::Ask);
    }

    proptest! {
        /// For any events, no poll begins near the making of a communicator.
        #[test]
        fn no_poll_begins_near_the_making_of_a_communicator(
            events in prop::collection::vec((0u64..4_000 * MS, 0u8..4, 0u64..100 * MS), 0..60),
        ) {
            let (mut schedule, mut now) = (PollSchedule::default(), 0);
            let mut seen = Communicators::default();
            for (pause, kind, took) in events {
                now += pause;
                match kind {
                    0 => (seen.making, seen.changed_ns) = (seen.making + 1, now),
                    1 if seen.making > 0 => {
                        seen = Communicators {
                            made: seen.made + 1, making: seen.making - 1, changed_ns: now,
                        };
                    }
                    _ => {}
                }
                if schedule.turn(now, seen) == Turn::Ask {
                    prop_assert!(seen.making == 0 && seen.made > 0);
                    prop_assert!(now >= seen.changed_ns + QUIET_NS);
                    schedule.answered(now, took, seen.made / 2 + 1, seen);
                    prop_assert_eq!(schedule.turn(now + LOOK_NS - 1, seen), Turn::Rest);
                }
            }
        }
    }
}
