//! Ranks without new data: their last reported state says nothing about the present.
//!
//! Four states, each with its own cause and its own person to call. A rank without new data is
//! never shown as healthy.

use memtape_core::detector;
use memtape_core::diagnosis::{Activity, Fate};
use memtape_core::incident::standstill::{AHEAD_STEPS, Progress, Ranks, STILL_STEPS};
use memtape_core::tape::layout::Clock;
use memtape_proto::api::RankState;

use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::{Attempt, Presence, Rank};

/// Kind of silence of a rank, ordered by its harm to the job.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Silence {
    /// The agent is not connected, or sends nothing: the whole node is unknown.
    Disconnected,
    /// The agent reports, but no longer reports the rank.
    Silent,
    /// The rank has finished no step for long, and is not behind most ranks.
    Stalled,
    /// The rank has finished no step for long, while most of its peers have gone on.
    Behind,
}

/// Reports that may be missed before a node counts as silent.
const INTERVALS_MAX: u64 = 3;

/// Minimum time before a node counts as silent, for any report interval: networks and disks pause.
const SILENT_NS_MIN: u64 = 10_000_000_000;

/// No rank counts as stalled for less than this, unless a rank of the job has died or is behind:
/// checkpoints and evaluation take their time.
const STALLED_NS_MIN: u64 = 30_000_000_000;

/// Begins the line about a rank without counted steps.
const NO_STEPS: &str = "no steps:";

/// Inputs for judging all ranks of an attempt.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    jobs: &'a Jobs,
    now_ns: u64,
    silent_ns: u64,
    behind_ns: u64,
    stalled_ns: u64,
    step_time_ns: Option<u64>,
    /// Age of the known standstill of the attempt.
    still_ns: Option<u64>,
    /// Steps of the living ranks that count steps, in order.
    steps: Vec<u64>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(jobs: &'a Jobs, attempt: &Attempt, now_ns: u64, interval_ns: u64) -> Self {
        let silent_ns = interval_ns.saturating_mul(INTERVALS_MAX).max(SILENT_NS_MIN);
        let step_time_ns = attempt.detectors.step_time_ns();
        let is_counted =
            |rank: &&Rank| rank.presence == Presence::Here && rank.clock() == Clock::Steps;
        let living = attempt.ranks.values().filter(is_counted);
        let mut steps: Vec<u64> = living.map(|rank| rank.step).collect();
        steps.sort_unstable();
        let behind_ns = step_time_ns.unwrap_or(0).saturating_mul(STILL_STEPS).max(silent_ns);
        let has_dead = attempt.ranks.values().any(Rank::has_died);
        let stalled_ns = behind_ns.max(STALLED_NS_MIN);
        let still_ns = None;
        let watch =
            Self { jobs, now_ns, silent_ns, behind_ns, stalled_ns, step_time_ns, still_ns, steps };
        let is_explained = has_dead || attempt.ranks.values().any(|rank| watch.is_behind(rank));
        Self { stalled_ns: if is_explained { behind_ns } else { stalled_ns }, ..watch }
    }

    /// The same of an attempt that is known to stand still for `still_ns`. Ranks that have finished
    /// no step since then do so, also where this process has not watched them for long.
    pub(crate) fn standing_for(self, still_ns: Option<u64>) -> Self {
        Self { still_ns, ..self }
    }

    /// Silence of a rank; none when it is not silent, or has ended.
    pub(crate) fn of(&self, rank: &Rank) -> Option<Silence> {
        match rank.presence {
            Presence::Ended => return None,
            Presence::Unknown => return Some(Silence::Disconnected),
            Presence::Here => {}
        }
        let node = self.jobs.node(&rank.record.node);
        let heard_ns = node.map_or(0, |node| node.reported_ns);
        if self.now_ns.saturating_sub(heard_ns) > self.silent_ns {
            Some(Silence::Disconnected)
        } else if heard_ns.saturating_sub(rank.reported_ns) > self.silent_ns {
            Some(Silence::Silent)
        } else if self.is_behind(rank) {
            Some(Silence::Behind)
        } else {
            self.is_stalled(rank).then_some(Silence::Stalled)
        }
    }

    /// Fate of a rank.
    pub(crate) fn fate(&self, rank: &Rank) -> Fate {
        let rests_ns = rank.reported_ns.saturating_sub(rank.stepped_ns);
        let rests = rests_ns > self.step_time_ns.unwrap_or(0).saturating_mul(2);
        rank.fate(match self.of(rank) {
            None if rests || rank.stepped_ns <= rank.here_since_ns => Activity::Alive,
            None => Activity::Moving,
            Some(Silence::Behind) => Activity::Behind,
            Some(Silence::Stalled) => Activity::Stalled,
            Some(Silence::Silent | Silence::Disconnected) => Activity::NotHeard,
        })
    }

    /// How far the ranks of its attempt are that are heard and count steps.
    pub(crate) fn ranks(&self, attempt: &Attempt) -> Ranks {
        let is_heard = |rank: &&Rank| self.is_alive(rank) && counts_steps(rank);
        let since = |at_ns: u64| self.now_ns.saturating_sub(at_ns);
        let progress = |rank: &Rank| Progress {
            rank: rank.record.rank,
            device: rank.newest.keys().next().copied().unwrap_or(0),
            role: rank.role,
            step: rank.step,
            stood_ns: since(rank.stepped_ns),
            quiet_ns: since(rank.allocated_ns),
        };
        Ranks {
            heard: attempt.ranks.values().filter(is_heard).map(progress).collect(),
            world: attempt.world(),
            step_time_ns: self.step_time_ns,
            pauses: attempt.record.pauses,
        }
    }

    /// The state of a rank: what it does now, or why nothing new is known of it.
    pub(crate) fn state(&self, attempt: &Attempt, rank: &Rank) -> RankState {
        match (rank.presence, self.of(rank)) {
            (Presence::Ended, _) if rank.has_died() => RankState::Failed,
            (Presence::Ended, _) => RankState::Ended,
            (_, Some(Silence::Disconnected)) => RankState::Disconnected,
            (_, Some(Silence::Silent)) => RankState::Silent,
            (_, Some(Silence::Behind)) => RankState::Behind,
            (_, Some(Silence::Stalled)) => RankState::Stalled,
            (_, None) => match attempt.detectors.state(rank.record.rank).state {
                detector::RankState::Warming => RankState::Warming,
                detector::RankState::Healthy => RankState::Healthy,
                detector::RankState::Watching => RankState::Watching,
                detector::RankState::Growing => RankState::Growing,
            },
        }
    }

    /// True while the rank's agent reports its process.
    pub(crate) fn is_alive(&self, rank: &Rank) -> bool {
        let is_unseen = matches!(self.of(rank), Some(Silence::Disconnected | Silence::Silent));
        rank.presence == Presence::Here && !is_unseen
    }

    fn is_behind(&self, rank: &Rank) -> bool {
        self.stands(rank, Some(self.behind_ns)) && self.lags(rank)
    }

    /// Are more than half of all ranks ahead of this one? One that has ended is not behind.
    fn lags(&self, rank: &Rank) -> bool {
        let most = self.steps.len() / 2 + 1;
        let ahead = rank.step.saturating_add(AHEAD_STEPS);
        let are_ahead = self.steps.len() - self.steps.partition_point(|step| *step < ahead);
        rank.presence == Presence::Here && counts_steps(rank) && are_ahead >= most
    }

    fn is_stalled(&self, rank: &Rank) -> bool {
        // Without a usual step time, a step may take this long.
        self.stands(rank, self.step_time_ns.map(|_| self.stalled_ns))
    }

    /// Has a rank that counts steps finished no step for this long, or in a known standstill?
    fn stands(&self, rank: &Rank, for_ns: Option<u64>) -> bool {
        let [stood_ns, here_ns] =
            [rank.stepped_ns, rank.here_since_ns].map(|at_ns| self.now_ns.saturating_sub(at_ns));
        let is_known = self.still_ns.is_some_and(|still_ns| stood_ns >= still_ns.min(here_ns));
        counts_steps(rank) && (is_known || for_ns.is_some_and(|for_ns| stood_ns > for_ns))
    }
}

fn counts_steps(rank: &Rank) -> bool {
    let counts = !rank.record.limitations.iter().any(|line| line.starts_with(NO_STEPS));
    // A server without requests is not behind the others.
    counts && rank.clock() == Clock::Steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::effects::{Context, Effect};
    use crate::state::jobs::attempt::Limits;
    use crate::state::messages::{RankReport, RankUp, Report};
    use memtape_core::incident::standstill::Pauses;
    use memtape_disk::clock::Now;
    use memtape_store::records::{AttemptRecord, End};

    const SECOND: u64 = 1_000_000_000;

    /// Four ranks on two nodes that have all reported at 100 s, at these steps.
    fn jobs(steps: [u64; 4]) -> Jobs {
        let mut jobs = Jobs::new(Limits { ranks_max: 4, ..Limits::default() });
        let now = Now { mono_ns: 100 * SECOND, wall_ns: 0 };
        for (rank, step) in (0..).zip(steps) {
            let node = if rank < 2 { "a" } else { "b" };
            let (tape_id, job) = (format!("t{rank}"), "job".to_string());
            let up = RankUp { tape_id, job, rank, world_size: 4, ..RankUp::default() };
            jobs.announce(now, node, up).unwrap();
            jobs.nodes.entry(node.to_string()).or_default().reported_ns = now.mono_ns;
            jobs.attempts.get_mut(&0).unwrap().ranks.get_mut(&rank).unwrap().step = step;
        }
        jobs
    }

    /// The states at this time, of reports each `interval` seconds.
    fn check(jobs: &Jobs, at: u64, interval: u64, expected: [Option<Silence>; 4]) {
        let attempt = jobs.current("job@0").unwrap();
        let watch = Watch::new(jobs, attempt, at * SECOND, interval * SECOND);
        let found: Vec<_> = attempt.ranks.values().map(|rank| watch.of(rank)).collect();
        assert_eq!(found, expected, "at {at}");
    }

    fn rank(jobs: &mut Jobs, number: u32) -> &mut Rank {
        jobs.attempts.get_mut(&0).unwrap().ranks.get_mut(&number).unwrap()
    }

    /// The same ranks after a report at this time.
    fn jobs_at(steps: [u64; 4], seconds: u64) -> Jobs {
        let mut jobs = jobs(steps);
        jobs.nodes.values_mut().for_each(|node| node.reported_ns = seconds * SECOND);
        (0..4).for_each(|number| rank(&mut jobs, number).reported_ns = seconds * SECOND);
        jobs
    }

    #[test]
    fn a_silent_node_is_disconnected() {
        let mut jobs = jobs([5; 4]);
        check(&jobs, 110, 1, [None; 4]);
        let disconnected = Some(Silence::Disconnected);
        check(&jobs, 111, 1, [disconnected; 4]);
        check(&jobs, 111, 60, [None; 4]);
        jobs.nodes.get_mut("b").unwrap().reported_ns = 111 * SECOND;
        rank(&mut jobs, 2).reported_ns = 111 * SECOND;
        rank(&mut jobs, 3).reported_ns = 101 * SECOND;
        check(&jobs, 112, 1, [disconnected, disconnected, None, None]);
        // Not connected at all, and ended.
        rank(&mut jobs, 2).presence = Presence::Unknown;
        rank(&mut jobs, 0).presence = Presence::Ended;
        check(&jobs, 112, 1, [None, disconnected, disconnected, None]);
    }

    #[test]
    fn a_rank_missing_from_its_nodes_reports_is_silent() {
        let mut jobs = jobs([5; 4]);
        for node in ["a", "b"] {
            jobs.nodes.get_mut(node).unwrap().reported_ns = 120 * SECOND;
        }
        for number in [0, 1, 3] {
            rank(&mut jobs, number).reported_ns = 119 * SECOND;
        }
        check(&jobs, 121, 1, [None, None, Some(Silence::Silent), None]);
    }

    #[test]
    fn a_rank_goes_on_only_where_a_step_was_seen() {
        let mut jobs = jobs([0; 4]);
        let at_step = |jobs: &mut Jobs, at: u64, step: u64| {
            let now = Now { mono_ns: at * SECOND, wall_ns: 0 };
            let of = RankReport { tape_id: "t0".into(), step, ..RankReport::default() };
            let report = Report { ranks: vec![of], ..Report::default() };
            jobs.report(&mut Context::new(now), "a", report, None);
            let attempt = jobs.current("job@0").unwrap();
            Watch::new(jobs, attempt, at * SECOND, SECOND).fate(&attempt.ranks[&0]).activity
        };
        // Its agent is connected again, after a restart of the coordinator, and says where it is.
        assert_eq!(at_step(&mut jobs, 101, 700), Activity::Alive);
        assert_eq!(at_step(&mut jobs, 102, 700), Activity::Alive);
        assert_eq!(at_step(&mut jobs, 103, 701), Activity::Moving);
        assert_eq!(at_step(&mut jobs, 104, 701), Activity::Alive, "it may have stopped");
    }

    #[test]
    fn a_stalled_rank_whose_peers_advance_is_behind() {
        let at = |steps| jobs_at(steps, 125);
        let behind = Some(Silence::Behind);
        check(&at([5, 9, 9, 9]), 126, 1, [behind, None, None, None]);
        // All hang together, or wait for one that is only a step before them: none is behind.
        check(&at([5, 5, 5, 5]), 126, 1, [None; 4]);
        check(&at([5, 6, 6, 6]), 126, 1, [None; 4]);
        check(&at([5, 5, 9, 9]), 126, 1, [None; 4]);
        let mut exited = at([5, 9, 9, 9]);
        rank(&mut exited, 0).presence = Presence::Ended;
        let attempt = exited.current("job@0").unwrap();
        let watch = Watch::new(&exited, attempt, 126 * SECOND, SECOND);
        assert!(!attempt.ranks.values().any(|of| watch.lags(of)), "it goes nowhere any more");
        let mut moving = at([5, 9, 9, 9]);
        rank(&mut moving, 0).stepped_ns = 118 * SECOND;
        check(&moving, 126, 1, [None; 4]);
        let mut uncounted = at([0, 9, 9, 9]);
        let line = format!("{NO_STEPS} PyTorch's optimizer hook is not there");
        rank(&mut uncounted, 0).record.limitations.push(line);
        check(&uncounted, 126, 1, [None; 4]);
    }

    #[test]
    fn ranks_that_are_heard_and_count_steps_may_stand_still() {
        let mut jobs = jobs_at([5, 9, 9, 9], 125);
        rank(&mut jobs, 1).allocated_ns = 120 * SECOND;
        rank(&mut jobs, 2).record.clock = Clock::Turns;
        rank(&mut jobs, 3).presence = Presence::Unknown;
        let attempt = jobs.current("job@0").unwrap();
        let ranks = Watch::new(&jobs, attempt, 126 * SECOND, SECOND).ranks(attempt);
        let heard: Vec<_> = ranks
            .heard
            .iter()
            .map(|of| (of.rank, of.step, of.stood_ns / SECOND, of.quiet_ns / SECOND))
            .collect();
        assert_eq!(heard, [(0, 5, 26, 26), (1, 9, 26, 6)]);
        assert_eq!(ranks.world, 4);
    }

    /// Reports that rank 0 has finished this step; true where a record is written.
    fn is_stored(jobs: &mut Jobs, seconds: u64, step: u64) -> bool {
        let mut context = Context::new(Now { mono_ns: seconds * SECOND, ..Now::default() });
        let of_rank = RankReport { tape_id: "t0".to_string(), step, ..RankReport::default() };
        let report = Report { ranks: vec![of_rank], ..Report::default() };
        jobs.report(&mut context, "a", report, None);
        std::iter::from_fn(|| context.pop()).any(|effect| matches!(effect, Effect::Write(..)))
    }

    #[test]
    fn the_longest_pause_is_stored_with_its_attempt() {
        let mut jobs = jobs([5; 4]);
        for (seconds, step) in [(101, 6), (102, 7), (139, 7)] {
            assert!(!is_stored(&mut jobs, seconds, step), "after {seconds} s");
        }
        assert!(is_stored(&mut jobs, 140, 8), "it has stood for 37 s");
        let record = jobs.current("job@0").unwrap().record.clone();
        let stored = serde_json::to_string(&record).unwrap();
        assert!(stored.contains(r#""longest_ns":37000000000"#), "{stored}");
        let restored: AttemptRecord = serde_json::from_str(&stored).unwrap();
        assert_ne!(restored.pauses, Pauses::default());
        assert!(serde_json::from_str::<AttemptRecord>(r#"{"serial":7}"#).is_ok(), "an older one");
        // Its agent is away for ten minutes. The job may have gone on.
        let now = Now { mono_ns: 740 * SECOND, wall_ns: 0 };
        jobs.node_lost(now, "a");
        let up = RankUp { tape_id: "t0".into(), job: "job".into(), ..RankUp::default() };
        jobs.announce(now, "a", up).unwrap();
        assert!(!is_stored(&mut jobs, 741, 900));
        // It is connected, and reports nothing.
        assert!(!is_stored(&mut jobs, 1_341, 1_800));
    }

    #[test]
    fn in_a_known_standstill_the_ranks_that_finish_a_step_do_not_stand() {
        let mut jobs = jobs_at([5, 9, 9, 9], 126);
        rank(&mut jobs, 1).stepped_ns = 125 * SECOND;
        let attempt = jobs.current("job@0").unwrap();
        let (behind, stalled) = (Some(Silence::Behind), Some(Silence::Stalled));
        // It was opened 20 s ago, or 300 s ago and the agents were connected again 26 s ago.
        for still_s in [20, 300] {
            let watch = || Watch::new(&jobs, attempt, 126 * SECOND, SECOND);
            let known = watch().standing_for(Some(still_s * SECOND));
            let found: Vec<_> = attempt.ranks.values().map(|rank| known.of(rank)).collect();
            assert_eq!(found, [behind, None, stalled, stalled]);
            let of = |watch: &Watch<'_>| format!("{:?}", watch.ranks(attempt));
            assert_eq!(of(&known), of(&watch()), "it decides nothing");
        }
    }

    #[test]
    fn ranks_that_all_stand_are_stalled() {
        let (behind, stalled) = (Some(Silence::Behind), Some(Silence::Stalled));
        let at = |watch_ns: u64, jobs: &Jobs, knows: bool| {
            let attempt = jobs.current("job@0").unwrap();
            let watch = Watch {
                step_time_ns: knows.then_some(0),
                ..Watch::new(jobs, attempt, watch_ns, SECOND)
            };
            attempt.ranks.values().map(|rank| watch.of(rank)).collect::<Vec<_>>()
        };
        for (steps, first) in [([5; 4], stalled), ([5, 9, 9, 9], behind)] {
            let mut jobs = jobs_at(steps, 160);
            (0..4).for_each(|number| rank(&mut jobs, number).stepped_ns = 130 * SECOND);
            let early = first.filter(|_| first == behind);
            // The ranks that wait for the one behind.
            let waits = early.and(stalled);
            assert_eq!(at(160 * SECOND, &jobs, true), [early, waits, waits, waits]);
            assert_eq!(at(161 * SECOND, &jobs, true), [first, stalled, stalled, stalled]);
            // Sooner where a rank has died.
            let mut failed = rank(&mut jobs, 3).clone();
            (failed.presence, failed.record.end) = (Presence::Ended, Some(End::Killed));
            let alive = std::mem::replace(rank(&mut jobs, 3), failed);
            assert_eq!(at(141 * SECOND, &jobs, true)[1..], [stalled, stalled, None]);
            *rank(&mut jobs, 3) = alive;
            // A job has just begun: its steps may take this long.
            assert_eq!(at(161 * SECOND, &jobs, false), [early, None, None, None]);
        }
    }
}
