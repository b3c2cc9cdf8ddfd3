//! An attempt at a job, its ranks, and the nodes they run on. [`Jobs`](super::Jobs) alone changes
//! them; others read them.

use std::collections::{BTreeMap, BTreeSet};

use memtape_core::capture::{self, Captures, TriggerLimits, Triggers};
use memtape_core::diagnosis::{Activity, Fate};
use memtape_core::tape::layout::Clock;
use memtape_core::tape::mailbox::Offers;
use memtape_proto::readings::{Gpu, Host, RankHost, RefusedTapes, SpoolReport};

use crate::state::jobs::censuses::Censuses;
use crate::state::jobs::detectors::Detectors;
use crate::state::jobs::host_readings::{History, WorkerMeasure};
use crate::state::messages::RankEnd;
use memtape_store::records::{AttemptRecord, End, Outside, RankRecord, StepRecord, Totals};

/// One attempt at one job. Only [`Jobs`] changes it.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) record: AttemptRecord,
    pub(crate) ranks: BTreeMap<u32, Rank>,
    /// Counts of the ranks by Slurm job, and nodes of those that are not late (`ownership.rs`).
    pub(super) slurm_jobs: BTreeMap<String, OfSlurmJob>,
    pub(super) nodes: BTreeSet<String>,
    pub(crate) detectors: Detectors,
    pub(crate) captures: Captures,
    pub(crate) triggers: Triggers,
    /// The detector must learn the roles of the ranks.
    pub(super) roles_due: bool,
}

/// Counts of an attempt's ranks in one Slurm job, or in none. Ranks are only added.
#[derive(Debug, Default)]
pub(super) struct OfSlurmJob {
    /// Ranks of which an agent knows that they are in it.
    pub(super) known: usize,
    /// Ranks that can be proved, and their nodes.
    pub(super) ranks: usize,
    pub(super) nodes: BTreeSet<String>,
}

/// A rank of an attempt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rank {
    pub(crate) record: RankRecord,
    pub(crate) presence: Presence,
    /// Remedies that the job offers on this rank.
    pub(crate) offered: Offers,
    /// Time at which its agent last connected.
    pub(crate) here_since_ns: u64,
    pub(crate) step: u64,
    pub(crate) step_wall_ns: i64,
    pub(crate) totals: Vec<Totals>,
    /// Devices that count for its node.
    pub(super) devices: BTreeSet<u8>,
    /// Newest finished step of each device.
    pub(crate) newest: BTreeMap<u8, StepRecord>,
    pub(crate) rss_bytes: Option<u64>,
    pub(crate) host: Option<RankHost>,
    pub(crate) outside: Vec<Outside>,
    /// Which lines hold the live memory of each device; the record has them only when written.
    pub(crate) censuses: Censuses,
    pub(crate) worker_measure: WorkerMeasure,
    /// Earlier readings of each of its devices, and with the first one of its host.
    pub(crate) history: BTreeMap<u8, History>,
    /// Role of the rank, as the detector knows it.
    pub(crate) role: Option<u64>,
    /// Times of its agent's last report of it, and of its last finished step.
    pub(crate) reported_ns: u64,
    pub(crate) stepped_ns: u64,
    /// When it was last seen to have allocated or freed anything.
    pub(crate) allocated_ns: u64,
    pub(crate) lost: u64,
    pub(crate) steps_missed: u64,
    /// Time of the last failed request for memory on the rank.
    pub(crate) failed_ns: Option<u64>,
}

/// Presence of a rank's process.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Presence {
    /// The agent reports the process.
    Here,
    /// The agent saw the process end.
    Ended,
    /// The agent is not connected.
    #[default]
    Unknown,
}

/// State of one node.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) boot_id: String,
    pub(crate) version: String,
    pub(crate) is_connected: bool,
    pub(crate) heard_ns: u64,
    pub(crate) last_report_wall_ns: i64,
    /// Time of the last report, or of the begin of the present stream.
    pub(crate) reported_ns: u64,
    /// Reports on the present stream. The agent announces all tapes before the first, and the ends
    /// that it knew before the second.
    pub(crate) reports: u64,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) host: Host,
    /// The agent's last report of its spool.
    pub(crate) spool: SpoolReport,
    /// The agent's last report of refused tapes.
    pub(crate) refused: RefusedTapes,
    /// Streams that replaced a live one, and since when they are counted.
    pub(super) replaced: (u32, u64),
    /// Tapes that were announced and not taken, and when: announced again they would not be taken
    /// either. At most as many as a node has.
    pub(super) not_taken: BTreeMap<String, u64>,
    /// Earliest time of the next request to announce everything again, and the wait after it.
    pub(super) ask_again: Wait,
}

/// Earliest time of the next attempt, with a wait that grows.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Wait {
    at_ns: u64,
    wait_ns: u64,
}

impl Wait {
    /// Is the next attempt due? Then the wait after it is longer.
    pub(super) fn take(&mut self, now_ns: u64, least_ns: u64, most_ns: u64) -> bool {
        if now_ns < self.at_ns {
            return false;
        }
        self.wait_ns = self.wait_ns.saturating_mul(2).clamp(least_ns, most_ns);
        self.at_ns = now_ns.saturating_add(self.wait_ns);
        true
    }

    /// Resets the wait after a success.
    pub(super) fn end(&mut self) {
        self.wait_ns = 0;
    }
}

/// Bounds and settings of new attempts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) capture: capture::Limits,
    pub(crate) triggers: TriggerLimits,
    /// Ranks of all attempts that are remembered.
    pub(crate) ranks_max: usize,
}

impl Attempt {
    pub(super) fn new(record: AttemptRecord, limits: &Limits) -> Self {
        let captures = Captures::new(&record.job, record.attempt, limits.capture.clone());
        let mut detectors = Detectors::default();
        detectors.expect_ranks(record.world_size);
        Self {
            record,
            ranks: BTreeMap::new(),
            slurm_jobs: BTreeMap::new(),
            nodes: BTreeSet::new(),
            detectors,
            captures,
            triggers: Triggers::new(limits.triggers.clone()),
            roles_due: false,
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.record.ended_wall_ns.is_some()
    }

    /// Unit of the step numbers of the attempt's ranks.
    pub(crate) fn clock(&self) -> Clock {
        Clock::of_all(self.ranks.values().map(Rank::clock))
    }

    /// Number of the attempt's ranks: its stated world size, or the known ranks if these are more.
    pub(crate) fn world(&self) -> u32 {
        self.record.world_size.max(u32::try_from(self.ranks.len()).unwrap_or(u32::MAX))
    }

    /// Has a request for memory failed for good on one of its ranks? A request that succeeded when
    /// PyTorch tried again does not count.
    pub(crate) fn has_failed_request(&self) -> bool {
        self.ranks.values().any(|rank| rank.failures().0 > 0)
    }

    pub(crate) fn ranks_here(&self) -> usize {
        self.ranks.values().filter(|rank| rank.presence == Presence::Here).count()
    }
}

impl Rank {
    /// Has its process died, where it should have gone on, and was not asked to end?
    pub(crate) fn has_died(&self) -> bool {
        let was_asked = self.record.end.is_some_and(|end| end.was_asked(self.record.exit_status));
        self.presence == Presence::Ended && self.record.end.is_some_and(End::is_death) && !was_asked
    }

    /// Fate of the rank; the caller knows its `activity` from the watch over its attempt.
    pub(crate) fn fate(&self, activity: Activity) -> Fate {
        let is_over = self.presence == Presence::Ended;
        let end = self.record.end.filter(|_| is_over);
        Fate {
            rank: self.record.rank,
            end: end.map(|end| (end, self.record.end_wall_ns)),
            exit_status: self.record.exit_status,
            pid: Some(self.record.pid).filter(|&pid| pid != 0),
            step: self.step,
            activity,
        }
    }

    /// Unit of the rank's step numbers.
    pub(crate) fn clock(&self) -> Clock {
        self.record.clock
    }

    /// Switches the rank to another clock, and forgets everything in the old step numbers.
    pub(super) fn restart(&mut self, clock: Clock) {
        self.record.clock = clock;
        (self.step, self.step_wall_ns) = (0, 0);
        self.newest.clear();
        self.history.clear();
        // Before the first turn a census has no births but at 0; its changes follow.
        if clock == Clock::Steps {
            self.censuses.clear();
        }
    }

    /// Requests for memory that failed so far.
    pub(crate) fn failures(&self) -> (u64, u64) {
        let sum = |count: fn(&Totals) -> u64| self.totals.iter().map(count).sum();
        (sum(|totals| totals.ooms), sum(|totals| totals.malloc_failures))
    }

    /// Failures that were reported before; none when a failure may be an old one.
    pub(crate) fn failures_known(&self) -> Option<(u64, u64)> {
        // An OOM before the first report is new if the rank lives.
        let is_alive = self.presence == Presence::Here && self.record.pid != 0;
        if self.totals.is_empty() {
            is_alive.then_some((0, u64::MAX))
        } else {
            Some(self.failures())
        }
    }

    /// Was it here when its agent was last connected?
    pub(super) fn is_away(&self) -> bool {
        self.presence == Presence::Unknown && self.record.end.is_none()
    }

    /// Its agent is connected and knows its tape.
    pub(super) fn reconnected(&mut self, now_ns: u64) {
        (self.presence, self.here_since_ns) = (Presence::Here, now_ns);
        [self.reported_ns, self.stepped_ns, self.allocated_ns] = [now_ns; 3];
    }

    /// Shows a device as at the end of a step, whose record has no pending frees.
    pub(super) fn show_step(&mut self, device: u8, row: &StepRecord) {
        let Some(totals) = self.totals.iter_mut().find(|of| of.device == device) else { return };
        *totals = Totals {
            allocated: row.end_allocated,
            reserved: row.end_reserved,
            peak_allocated: totals.peak_allocated.max(row.peak_allocated),
            blocks: row.blocks,
            ooms: totals.ooms.max(row.ooms),
            malloc_failures: totals.malloc_failures.max(row.malloc_failures),
            deferred: None,
            ..*totals
        };
    }

    /// The process ended. The only place where that is noted. A process that ended by itself has
    /// freed memory since its last step: that step is shown. One that was killed has not.
    pub(super) fn end(&mut self, end: RankEnd) {
        self.presence = Presence::Ended;
        if matches!(end.end, End::Exited | End::Failed) {
            self.newest.clone().iter().for_each(|(device, row)| self.show_step(*device, row));
        }
        self.record.end = Some(end.end);
        self.record.exit_status = end.exit_status;
        self.record.end_detail = end.detail;
        self.record.end_wall_ns = end.wall_ns;
        self.record.step = self.step;
        self.record.devices = self.totals.clone();
        self.record.host = self.host.clone();
        self.record.outside = self.outside.clone();
        self.censuses.end();
    }

    /// The record as it is written: with the censuses, once the rank has ended.
    pub(super) fn written(&self) -> RankRecord {
        let censuses = self.censuses.values().filter(|_| self.presence == Presence::Ended);
        RankRecord { censuses: censuses.cloned().collect(), ..self.record.clone() }
    }
}

#[cfg(test)]
mod tests {
    use memtape_core::limits::OWNER_CHANGES_AT_ONCE_MAX;

    use super::*;
    use crate::state::counters::Loss;
    use crate::state::effects::{Context, Effect};
    use crate::state::jobs::Jobs;
    use crate::state::jobs::tests::{killed, limits};
    use crate::state::messages::{Hello, RankReport, RankUp, Report};
    use memtape_disk::clock::Now;

    /// One user has four jobs, and has used up the rate of changes.
    #[test]
    fn ends_beyond_the_rate_of_changes_are_taken() {
        let mut jobs = Jobs::new(limits());
        let up = |number: u64, command: u64| RankUp {
            tape_id: format!("t{number}"),
            job: format!("j{number}"),
            command: command.to_string(),
            ..RankUp::default()
        };
        let mut context = Context::new(Now::default());
        for number in 0..4 {
            jobs.rank_up(&mut context, "a", up(number, 0), None);
        }
        for command in 0..=OWNER_CHANGES_AT_ONCE_MAX {
            jobs.rank_up(&mut context, "a", up(0, command), None);
        }
        while context.pop().is_some() {}
        jobs.rank_up(&mut context, "a", up(4, 0), None);
        let is_lost = |of| matches!(of, Effect::Lose(Loss::NodeChangesTooMany, 1));
        assert!(std::iter::from_fn(|| context.pop()).any(is_lost), "a rank that begins is not");
        let ranks = |jobs: &Jobs, presence| {
            let ranks = jobs.attempts().flat_map(|attempt| attempt.ranks.values());
            ranks.filter(|rank| rank.presence == presence).count()
        };
        jobs.rank_down(&mut context, "a", "t1", killed());
        assert!(jobs.attempts().nth(1).unwrap().has_ended());
        let is_death = |of| matches!(of, Effect::RankFailed { serial: 1, .. });
        assert!(std::iter::from_fn(|| context.pop()).any(is_death));
        // The agent reconnects, and knows one tape no longer.
        jobs.attach(Now::default(), Hello { node: "a".to_string(), ..Hello::default() });
        jobs.node_lost(Now::default(), "a");
        for number in [0, 2] {
            jobs.rank_up(&mut context, "a", up(number, 9), None);
        }
        jobs.report(&mut context, "a", Report::default(), None);
        assert_eq!((ranks(&jobs, Presence::Here), ranks(&jobs, Presence::Ended)), (2, 2));
    }

    #[test]
    fn an_end_is_not_in_the_future() {
        let mut jobs = Jobs::new(limits());
        let up = RankUp { tape_id: "t".to_string(), job: "j".to_string(), ..RankUp::default() };
        jobs.announce(Now::default(), "a", up).unwrap();
        let mut context = Context::new(Now { wall_ns: 7, ..Now::default() });
        jobs.rank_down(&mut context, "a", "t", RankEnd { wall_ns: i64::MAX, ..killed() });
        let attempt = jobs.attempts().next().unwrap();
        assert_eq!(attempt.record.ended_wall_ns, Some(7));
        assert_eq!(attempt.ranks[&0].record.end_wall_ns, 7);
    }

    /// The last report before an end follows the teardown; a later one changes nothing.
    #[test]
    fn an_ended_rank_shows_its_last_step_unless_it_was_killed() {
        for (end, shown) in [(End::Exited, 9), (End::Failed, 9), (End::Killed, 2)] {
            let mut jobs = Jobs::new(limits());
            let up = RankUp { tape_id: "t".to_string(), job: "j".to_string(), ..RankUp::default() };
            jobs.announce(Now::default(), "a", up).unwrap();
            let mut context = Context::new(Now::default());
            let report = |jobs: &mut Jobs, context: &mut Context, allocated, steps| {
                let totals = vec![Totals { allocated, ..Totals::default() }];
                let tape_id = "t".to_string();
                let rank = RankReport { tape_id, step: 4, totals, steps, ..RankReport::default() };
                let report = Report { ranks: vec![rank], ..Report::default() };
                jobs.report(context, "a", report, None);
            };
            jobs.attach(Now::default(), Hello { node: "a".to_string(), ..Hello::default() });
            let row = StepRecord { last_step: 4, end_allocated: 9, ..StepRecord::default() };
            report(&mut jobs, &mut context, 10, vec![(0, row)]);
            report(&mut jobs, &mut context, 2, Vec::new());
            jobs.rank_down(&mut context, "a", "t", RankEnd { end, ..killed() });
            report(&mut jobs, &mut context, 1, Vec::new());
            let rank = &jobs.attempts().next().unwrap().ranks[&0];
            let allocated = |of: &[Totals]| of.iter().map(|of| of.allocated).collect::<Vec<_>>();
            assert_eq!(allocated(&rank.totals), [shown], "{end:?}");
            assert_eq!((allocated(&rank.record.devices), rank.step), (vec![shown], 4));
        }
    }

    #[test]
    fn a_status_that_is_known_later_is_taken() {
        let mut jobs = Jobs::new(limits());
        let up = RankUp { tape_id: "t".to_string(), job: "j".to_string(), ..RankUp::default() };
        jobs.announce(Now::default(), "a", up).unwrap();
        let mut failures = Vec::new();
        // A new agent sees no more than an unsealed tape, and takes nothing back.
        let signal = (End::Killed, Some(-11));
        let ends = [(End::Killed, None), (End::Killed, None), signal, signal, (End::Killed, None)];
        let failed = (End::Failed, Some(3));
        for (end, exit_status) in ends.into_iter().chain([failed, (End::Killed, None)]) {
            let mut context = Context::new(Now::default());
            jobs.rank_down(&mut context, "a", "t", RankEnd { end, exit_status, ..killed() });
            let effects = std::iter::from_fn(|| context.pop());
            failures.extend(effects.filter_map(|effect| match effect {
                Effect::RankFailed { failure, .. } => Some(failure.exit_status),
                _ => None,
            }));
        }
        assert_eq!(failures, [None, Some(-11), Some(3)]);
        let rank = jobs.attempts().next().and_then(|attempt| attempt.ranks.get(&0)).unwrap();
        assert_eq!((rank.record.end, rank.record.exit_status), (Some(End::Failed), Some(3)));
    }
}
