//! When a capture is taken without a request: an OOM, a death, many retries, a device that is
//! nearly full, and a baseline from time to time.
//!
//! It reports transitions, not states: a rank that stays nearly full is reported once. A reason
//! waits for [`TriggerLimits::delay_ns`], so that the capture shows the aftermath; of several
//! reasons within that time the gravest one names the capture. The detector reports growth.
//! [`super::Captures`] decides whether a capture is taken.

use alloc::collections::BTreeMap;

use crate::capture::reason::Reason;
use crate::limits::RANKS_PER_JOB_MAX;

/// Thresholds of the triggers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TriggerLimits {
    /// A capture is asked for this long after the event, in nanoseconds: the other ranks of a job
    /// die or hang within it. Longer shows more of the aftermath and loses more of the time before.
    pub delay_ns: u64,
    /// Minimum time between two triggered captures, in nanoseconds. Otherwise a job that fails
    /// again and again would be captured all the time.
    pub interval_ns_min: u64,
    /// Failed `cudaMalloc` calls of one rank that trigger a capture; 0 never does.
    pub retries_min: u64,
    /// The time within which they do, in nanoseconds.
    pub retries_window_ns: u64,
    /// Reserved bytes from this share of the device on are worth a capture, in parts per million;
    /// 0 never are. Many healthy jobs live at nine tenths.
    pub reserved_ppm: u64,
    /// Decrease of the reserved part after which it can trigger again, in parts per million.
    pub reserved_rearm_ppm: u64,
    /// Time between two healthy states, in nanoseconds; 0 takes none.
    pub baseline_interval_ns: u64,
    /// Minimum step of a healthy state: a job shows its usual memory only later.
    pub baseline_steps_min: u64,
}

impl Default for TriggerLimits {
    fn default() -> Self {
        Self {
            delay_ns: 500_000_000,
            interval_ns_min: 30_000_000_000,
            retries_min: 8,
            retries_window_ns: 60_000_000_000,
            reserved_ppm: 970_000,
            reserved_rearm_ppm: 50_000,
            baseline_interval_ns: 3_600_000_000_000,
            baseline_steps_min: 300,
        }
    }
}

/// The triggers of one attempt at one job.
#[derive(Debug)]
pub struct Triggers {
    limits: TriggerLimits,
    ranks: BTreeMap<u32, Rank>,
    /// The reason noticed, and the time to ask for its capture.
    pending: Option<(u64, Reason)>,
    /// Time and gravity of the last triggered capture.
    taken: Option<(u64, u8)>,
    /// When the attempt was first seen at [`TriggerLimits::baseline_steps_min`], or the last
    /// healthy state was asked for.
    baseline_ns: Option<u64>,
    has_baseline: bool,
    suppressed: u64,
}

/// State of one rank.
#[derive(Clone, Copy, Debug, Default)]
struct Rank {
    /// Failed calls when the present window began, and when that was.
    failures: u64,
    window_ns: u64,
    has_window: bool,
    is_full: bool,
}

impl Triggers {
    /// Starts without any noticed event.
    pub fn new(limits: TriggerLimits) -> Self {
        Self {
            limits,
            ranks: BTreeMap::new(),
            pending: None,
            taken: None,
            baseline_ns: None,
            has_baseline: false,
            suppressed: 0,
        }
    }

    /// Takes the number of failed `cudaMalloc` calls of a rank since its process started; a reason
    /// to [notice](Self::notice). Each time the allocator frees its cache and tries again, which
    /// stops the device.
    pub fn retries(&mut self, now_ns: u64, rank: u32, failures: u64) -> Option<Reason> {
        let limits = self.limits.clone();
        let known = self.rank(rank)?;
        let is_over = now_ns.saturating_sub(known.window_ns) > limits.retries_window_ns;
        // Fewer than before: another process in its place.
        if !known.has_window || is_over || failures < known.failures {
            (known.failures, known.window_ns, known.has_window) = (failures, now_ns, true);
            return None;
        }
        let is_storm = limits.retries_min > 0 && failures - known.failures >= limits.retries_min;
        if is_storm {
            (known.failures, known.window_ns) = (failures, now_ns);
        }
        is_storm.then_some(Reason::Retries { rank })
    }

    /// Takes the bytes that a rank holds of a device of this size (0: unknown); a reason to notice.
    pub fn reserved(&mut self, rank: u32, reserved: u64, device_bytes: u64) -> Option<Reason> {
        let limits = self.limits.clone();
        if device_bytes == 0 || limits.reserved_ppm == 0 {
            return None;
        }
        let ppm = u128::from(reserved) * 1_000_000 / u128::from(device_bytes);
        let ppm = u64::try_from(ppm).unwrap_or(u64::MAX);
        let known = self.rank(rank)?;
        let was_full = known.is_full;
        if ppm >= limits.reserved_ppm {
            known.is_full = true;
        } else if ppm < limits.reserved_ppm.saturating_sub(limits.reserved_rearm_ppm) {
            known.is_full = false;
        }
        (!was_full && ppm >= limits.reserved_ppm).then_some(Reason::Reserved { rank })
    }

    /// Notes that the job has finished `step`; a reason to notice.
    pub fn stepped(&mut self, now_ns: u64, step: u64) -> Option<Reason> {
        if self.limits.baseline_interval_ns == 0 || step < self.limits.baseline_steps_min {
            return None;
        }
        let since_ns = *self.baseline_ns.get_or_insert(now_ns);
        let is_due = now_ns.saturating_sub(since_ns) >= self.limits.baseline_interval_ns;
        let is_wanted = (is_due || !self.has_baseline) && self.pending.is_none();
        is_wanted.then_some(Reason::Baseline)
    }

    /// Notes that a capture was closed for any reason: while it is fresh, no baseline is needed.
    pub fn captured(&mut self, now_ns: u64) {
        if self.has_baseline {
            self.baseline_ns = Some(now_ns);
        }
    }

    /// The reason to ask for a capture now, once. Then either [`Self::taken`] or [`Self::put_off`]
    /// must report the result; without such a call the reason is dropped. While the attempt has an
    /// open incident it is not healthy, and a baseline is dropped: it is noticed again later.
    /// `is_healthy` is asked of a baseline only.
    pub fn poll(&mut self, now_ns: u64, is_healthy: impl FnOnce() -> bool) -> Option<Reason> {
        let (_, reason) = self.pending.take_if(|(due_ns, _)| *due_ns <= now_ns)?;
        (reason != Reason::Baseline || is_healthy()).then_some(reason)
    }

    /// Notes that a capture is taken for this reason.
    pub fn taken(&mut self, now_ns: u64, reason: &Reason) {
        if *reason == Reason::Baseline {
            (self.baseline_ns, self.has_baseline) = (Some(now_ns), true);
        }
        self.taken = Some((now_ns, reason.gravity()));
    }

    /// None can be taken before this much time has passed: the reason is polled again then,
    /// unless a graver one comes before.
    pub fn put_off(&mut self, now_ns: u64, reason: Reason, wait_ns: u64) {
        let due_ns = now_ns.saturating_add(wait_ns);
        if self.pending.as_ref().is_none_or(|(_, known)| known.gravity() < reason.gravity()) {
            self.pending = Some((due_ns, reason));
        }
    }

    /// Continues from an earlier attempt: its last triggered capture still counts.
    pub fn continue_from(&mut self, earlier: &Self) {
        self.taken = earlier.taken;
    }

    /// Time at which [`Self::poll`] returns a reason.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.pending.as_ref().map(|(due_ns, _)| *due_ns)
    }

    /// Events that came too soon after a capture of at least the same gravity, and ranks beyond
    /// the bound.
    pub fn suppressed(&self) -> u64 {
        self.suppressed
    }

    /// Takes an event, joins it with the pending one, or drops it.
    pub fn notice(&mut self, now_ns: u64, reason: Reason) {
        let is_fresh = self.taken.is_some_and(|(taken_ns, known)| {
            let since_ns = now_ns.saturating_sub(taken_ns);
            since_ns < self.limits.interval_ns_min && reason.gravity() <= known
        });
        if is_fresh {
            // A healthy state is wanted at every step until there is one.
            self.suppressed += u64::from(reason != Reason::Baseline);
            return;
        }
        let due_ns = now_ns.saturating_add(self.limits.delay_ns);
        match &mut self.pending {
            Some((known_ns, known)) if reason.gravity() > known.gravity() => {
                (*known_ns, *known) = (due_ns.min(*known_ns), reason);
            }
            Some(_) => {}
            None => self.pending = Some((due_ns, reason)),
        }
    }

    fn rank(&mut self, rank: u32) -> Option<&mut Rank> {
        if !self.ranks.contains_key(&rank) && self.ranks.len() >= RANKS_PER_JOB_MAX as usize {
            self.suppressed += 1;
            return None;
        }
        Some(self.ranks.entry(rank).or_default())
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    enum At {
        Oom(u32),
        Died(u32),
        Retries(u32, u64),
        Reserved(u32, u64),
        Step(u64),
    }

    /// Plays events at their seconds, polls ten times a second until the last one and a second
    /// more, and compares the requested captures, in tenths of seconds.
    fn check(script: &[(u64, At)], expected: &[(u64, Reason)]) {
        let mut triggers = Triggers::new(TriggerLimits::default());
        let mut asked = Vec::new();
        let last = script.last().map_or(0, |(at, _)| *at) * 10 + 10;
        for tenth in 0..=last {
            let now_ns = tenth * SECOND / 10;
            for (_, at) in script.iter().filter(|(at, _)| at * 10 == tenth) {
                let reason = match *at {
                    At::Oom(rank) => Some(Reason::OutOfMemory { rank }),
                    At::Died(rank) => Some(Reason::Death { rank }),
                    At::Retries(rank, failures) => triggers.retries(now_ns, rank, failures),
                    At::Reserved(rank, percent) => triggers.reserved(rank, percent, 100),
                    At::Step(step) => triggers.stepped(now_ns, step),
                };
                reason.into_iter().for_each(|reason| triggers.notice(now_ns, reason));
            }
            let due = triggers.poll_timeout().is_some_and(|due_ns| due_ns <= now_ns);
            let reason = triggers.poll(now_ns, || true);
            assert_eq!(reason.is_some(), due);
            reason.iter().for_each(|reason| triggers.taken(now_ns, reason));
            asked.extend(reason.map(|reason| (tenth, reason)));
        }
        assert_eq!(asked, expected);
    }

    #[test]
    fn events_within_the_delay_are_one_capture_with_the_gravest_reason() {
        use At::{Died, Oom, Reserved};
        check(&[(1, Oom(2))], &[(15, Reason::OutOfMemory { rank: 2 })]);
        check(
            &[(1, Died(3)), (1, Oom(2)), (1, Reserved(0, 99))],
            &[(15, Reason::OutOfMemory { rank: 2 })],
        );
        check(&[(1, Died(3)), (1, Died(0))], &[(15, Reason::Death { rank: 3 })]);
        // Too soon, and later again.
        check(
            &[(1, Oom(1)), (20, Died(3)), (40, Oom(1))],
            &[(15, Reason::OutOfMemory { rank: 1 }), (405, Reason::OutOfMemory { rank: 1 })],
        );
    }

    #[test]
    fn a_storm_is_many_retries_in_a_short_time() {
        use At::Retries;
        let storm = Reason::Retries { rank: 1 };
        check(&[(1, Retries(1, 100)), (2, Retries(1, 107))], &[]);
        check(&[(1, Retries(1, 100)), (2, Retries(1, 108))], &[(25, storm.clone())]);
        // Slowly, the same number is none.
        check(&[(1, Retries(1, 0)), (40, Retries(1, 5)), (80, Retries(1, 9))], &[]);
        // Each rank for itself, and a new process counts from the start.
        check(&[(1, Retries(0, 0)), (1, Retries(1, 50)), (2, Retries(0, 7))], &[]);
        check(&[(1, Retries(1, 90)), (2, Retries(1, 0)), (3, Retries(1, 8))], &[(35, storm)]);
    }

    #[test]
    fn a_full_device_triggers_once_until_memory_is_freed() {
        use At::Reserved;
        let full = Reason::Reserved { rank: 0 };
        check(
            &[(1, Reserved(0, 96)), (2, Reserved(0, 97)), (40, Reserved(0, 99))],
            &[(25, full.clone())],
        );
        let again = [(1, Reserved(0, 98)), (40, Reserved(0, 93)), (41, Reserved(0, 97))];
        check(&again, &[(15, full.clone())]);
        let again = [(1, Reserved(0, 98)), (40, Reserved(0, 91)), (41, Reserved(0, 97))];
        check(&again, &[(15, full.clone()), (415, full)]);
    }

    #[test]
    fn no_baseline_is_taken_while_an_incident_is_open() {
        let mut triggers = Triggers::new(TriggerLimits::default());
        let mut polled = |second: u64, is_healthy: bool| {
            let reason = triggers.stepped(second * SECOND, 300 + second);
            reason.into_iter().for_each(|reason| triggers.notice(second * SECOND, reason));
            triggers.poll((second + 1) * SECOND, || is_healthy)
        };
        assert_eq!([polled(1, false), polled(2, false)], [None, None]);
        assert_eq!(polled(3, true), Some(Reason::Baseline));
        triggers.notice(9 * SECOND, Reason::Death { rank: 0 });
        assert_eq!(triggers.poll(10 * SECOND, || false), Some(Reason::Death { rank: 0 }));
    }

    #[test]
    fn a_healthy_state_is_taken_once_warm_and_then_every_hour() {
        use At::Step;
        let hour = |hour: u64| (hour * 36_000 + 15, Reason::Baseline);
        check(&[(1, Step(299))], &[]);
        check(&[(1, Step(300)), (2, Step(301)), (3599, Step(900))], &[hour(0)]);
        check(
            &[(1, Step(300)), (3602, Step(900)), (3700, Step(950))],
            &[hour(0), (36_025, Reason::Baseline)],
        );
        let mut triggers = Triggers::new(TriggerLimits {
            baseline_interval_ns: 0,
            reserved_ppm: 0,
            retries_min: 0,
            ..TriggerLimits::default()
        });
        assert_eq!(triggers.stepped(1, 10_000), None);
        assert_eq!(triggers.reserved(0, 100, 100), None);
        assert_eq!([triggers.retries(1, 0, 0), triggers.retries(1, 0, 100)], [None, None]);
    }

    #[test]
    fn graver_reasons_do_not_wait_and_a_pending_reason_is_kept() {
        use At::{Died, Oom, Reserved};
        // Nearly full, and ten seconds later out of memory: both are wanted.
        let oom = Reason::OutOfMemory { rank: 0 };
        check(
            &[(1, Reserved(0, 98)), (11, Oom(0)), (12, Died(0))],
            &[(15, Reason::Reserved { rank: 0 }), (115, oom.clone())],
        );
        let mut triggers = Triggers::new(TriggerLimits::default());
        triggers.notice(0, Reason::Reserved { rank: 0 });
        let reason = triggers.poll(SECOND, || true).expect("it is due");
        triggers.put_off(SECOND, reason, 60 * SECOND);
        assert_eq!(triggers.poll(60 * SECOND, || true), None);
        assert_eq!(triggers.poll(61 * SECOND, || true), Some(Reason::Reserved { rank: 0 }));
        triggers.put_off(61 * SECOND, Reason::Baseline, 60 * SECOND);
        triggers.notice(62 * SECOND, oom.clone());
        assert_eq!(triggers.poll(63 * SECOND, || true), Some(oom.clone()));
        triggers.taken(63 * SECOND, &oom);
        let mut next = Triggers::new(TriggerLimits::default());
        next.continue_from(&triggers);
        next.notice(64 * SECOND, oom);
        assert_eq!((next.poll(70 * SECOND, || true), next.suppressed()), (None, 1));
    }

    #[test]
    fn any_numbers_are_survived() {
        let mut triggers = Triggers::new(TriggerLimits::default());
        for now_ns in [u64::MAX, 0, 5] {
            let _ = triggers.reserved(u32::MAX, u64::MAX, 1);
            let _ = triggers.retries(now_ns, 0, u64::MAX);
            let _ = triggers.stepped(now_ns, u64::MAX);
            triggers.notice(now_ns, Reason::Death { rank: 7 });
        }
        assert_eq!(triggers.poll(u64::MAX, || true), Some(Reason::Death { rank: 7 }));
    }
}
