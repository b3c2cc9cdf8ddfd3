//! Jobs, their attempts, the ranks of each, and the nodes.
//!
//! [`Jobs`] alone changes them: `agents.rs` admits agents, `reports.rs` applies their reports,
//! `restore.rs` reads all back from the store. Others read them, and drive an attempt's capture
//! machine through [`Jobs::machine`]. Captures, incidents and streams are kept elsewhere.
//!
//! Launchers number attempts, but not always: a job that is started again under the same name and
//! number shows itself by a rank that comes with another tape. Then a new attempt begins, with an
//! ordinal of its own. Tapes never move between attempts, so a message about a tape is always
//! about the right one, however late it comes.
//!
//! A job is a name and its owner (`ownership.rs`). If a bound is exceeded, the node that holds most
//! gives way (`shares.rs`).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use memtape_core::capture::{Action, Captures, Reason, Refusal};
use memtape_core::detector::Finding;
use memtape_core::identity::owner::job_id;
use memtape_core::incident::standstill::Pauses;
use memtape_core::limits::JOBS_MAX;
use memtape_core::rates::{HolderRates, Rates};

use crate::quota::{agent_streams, logged_refusals, rank_changes, step_records};
use crate::state::counters::Loss;
use crate::state::effects::{Context, Effect};
use crate::state::jobs::attempt::{Attempt, Limits, Node, Presence, Rank};
use crate::state::jobs::ownership::is_slurm_job_known;
use crate::state::jobs::shares::{Held, Holdings};
use crate::state::messages::RankUp;
use memtape_disk::clock::Now;
use memtape_store::Changes;
use memtape_store::records::{AttemptRecord, End, RankRecord};

pub(crate) mod agents;
pub(crate) mod attempt;
pub(crate) mod censuses;
pub(crate) mod detectors;
pub(crate) mod growth_context;
pub(crate) mod host_readings;
pub(crate) mod neighbours;
pub(crate) mod ownership;
pub(crate) mod reports;
pub(crate) mod restore;
pub(crate) mod shares;
pub(crate) mod silence;

/// Maximum difference of two nodes' clocks: one node reports the end of an attempt, another the
/// start of a rank. No launcher starts a job again so soon.
const CLOCKS_APART_NS: i64 = 500_000_000;

/// All jobs and nodes.
#[derive(Debug)]
pub(crate) struct Jobs {
    limits: Limits,
    attempts: BTreeMap<u32, Attempt>,
    /// Serials of the attempts of each job, in order of their start.
    jobs: BTreeMap<String, Vec<u32>>,
    /// Attempt and rank of each tape. Each rank of each report is looked up.
    tapes: HashMap<String, (u32, u32)>,
    nodes: BTreeMap<String, Node>,
    /// Ranks of each node.
    holdings: Holdings,
    /// Rates at which nodes, and the owners on each, may change ranks.
    changes: HolderRates,
    /// Rates at which step records are kept.
    steps: HolderRates,
    /// Rate of streams that a node's agents open.
    streams: Rates,
    /// Rate of log lines about a node's reports.
    logged: Rates,
    /// Rate of log lines about a node's streams.
    streams_logged: Rates,
    next_serial: u32,
    /// Time of the last tick.
    now_ns: u64,
    /// Attempts whose machines may have actions to report.
    touched: BTreeSet<u32>,
}

/// Changes made by an announcement.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Announced {
    pub(crate) serial: u32,
    pub(crate) is_new_attempt: bool,
    /// True if the rank's record is new or has changed.
    pub(crate) is_news: bool,
    /// True if the rank counted as gone, and is back.
    pub(crate) is_back: bool,
}

impl Jobs {
    /// No jobs yet.
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            attempts: BTreeMap::new(),
            jobs: BTreeMap::new(),
            tapes: HashMap::new(),
            nodes: BTreeMap::new(),
            holdings: Holdings::default(),
            changes: rank_changes(),
            steps: step_records(),
            streams: agent_streams(),
            streams_logged: logged_refusals(),
            logged: logged_refusals(),
            next_serial: 0,
            now_ns: 0,
            touched: BTreeSet::new(),
        }
    }

    pub(crate) fn get(&self, serial: u32) -> Option<&Attempt> {
        self.attempts.get(&serial)
    }

    pub(crate) fn attempts(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.values()
    }

    /// The attempts of a job by their serials, in order of their start.
    pub(crate) fn serials(&self, job: &str) -> &[u32] {
        self.jobs.get(job).map_or(&[], Vec::as_slice)
    }

    /// The ids of all jobs.
    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = &String> {
        self.jobs.keys()
    }

    pub(crate) fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&String, &Node)> {
        self.nodes.iter()
    }

    /// The capture machine of an attempt, which is polled afterwards.
    pub(crate) fn machine(&mut self, serial: u32) -> Option<&mut Captures> {
        let attempt = self.attempts.get_mut(&serial)?;
        self.touched.insert(serial);
        Some(&mut attempt.captures)
    }

    /// An attempt whose machines may have actions to report; each once.
    pub(crate) fn take_touched(&mut self) -> Option<u32> {
        self.touched.pop_first()
    }

    /// The next finding of an attempt's detector.
    pub(crate) fn poll_finding(&mut self, serial: u32) -> Option<Finding> {
        self.attempts.get_mut(&serial)?.detectors.poll()
    }

    /// The next action of an attempt's capture machine.
    pub(crate) fn poll_capture(&mut self, serial: u32) -> Option<Action> {
        self.attempts.get_mut(&serial)?.captures.poll()
    }

    /// Passes the time to the machines; the captures that are due by themselves. `is_healthy` says
    /// of an attempt of which all ranks are here that its incidents are over.
    pub(crate) fn tick(
        &mut self,
        now: Now,
        is_healthy: impl Fn(u32) -> bool,
    ) -> Vec<(u32, Reason)> {
        self.now_ns = now.mono_ns;
        let mut due = Vec::new();
        for (serial, attempt) in &mut self.attempts {
            if attempt.captures.poll_timeout().is_some_and(|due_ns| due_ns <= now.mono_ns) {
                attempt.captures.handle_timeout(now.mono_ns);
                self.touched.insert(*serial);
            }
            if attempt.roles_due {
                attempt.learn_roles();
            }
            let is_whole = attempt.ranks_here() == attempt.world() as usize;
            let reason = attempt.triggers.poll(now.mono_ns, || is_whole && is_healthy(*serial));
            due.extend(reason.map(|reason| (*serial, reason)));
        }
        due
    }

    /// Takes the answer to a triggered request for a capture.
    pub(crate) fn trigger_answered(
        &mut self,
        now: Now,
        serial: u32,
        reason: Reason,
        answer: &Result<String, Refusal>,
    ) {
        let Some(attempt) = self.attempts.get_mut(&serial) else { return };
        match answer {
            Ok(_) => attempt.triggers.taken(now.mono_ns, &reason),
            Err(Refusal::TooSoon { wait_ns } | Refusal::OverBudget { wait_ns, .. }) => {
                attempt.triggers.put_off(now.mono_ns, reason, *wait_ns);
            }
            Err(refusal) => tracing::warn!("no capture could be taken: {refusal}"),
        }
    }

    /// Notes that a capture of an attempt is closed.
    pub(crate) fn captured(&mut self, now: Now, serial: u32) {
        if let Some(attempt) = self.attempts.get_mut(&serial) {
            attempt.triggers.captured(now.mono_ns);
        }
    }

    /// True when an attempt is over, or has no rank here while a later one of the job's `own` has
    /// some: ranks of a lost node never end by themselves.
    pub(crate) fn is_over(&self, own: &BTreeSet<u32>, serial: u32) -> bool {
        let Some(attempt) = self.attempts.get(&serial) else { return true };
        if attempt.has_ended() || attempt.ranks_here() > 0 {
            return attempt.has_ended();
        }
        let serials = self.jobs.get(&attempt.record.job).into_iter().flatten();
        let later = serials.rev().take_while(|other| **other != serial);
        let later = later.filter(|other| own.contains(other));
        later.filter_map(|other| self.attempts.get(other)).any(|other| other.ranks_here() > 0)
    }

    /// Ranks that are remembered, and how many may be.
    pub(crate) fn ranks(&self) -> (usize, usize) {
        (self.tapes.len(), self.limits.ranks_max)
    }

    /// The attempt and the rank that a tape belongs to.
    pub(crate) fn rank_of(&self, tape_id: &str) -> Option<(&Attempt, &Rank)> {
        let (serial, rank) = self.tapes.get(tape_id)?;
        let attempt = self.attempts.get(serial)?;
        Some((attempt, attempt.ranks.get(rank)?))
    }

    /// A tape was announced by the agent of a node.
    ///
    /// # Errors
    /// Why there is no place for it.
    pub(in crate::state) fn announce(
        &mut self,
        now: Now,
        node: &str,
        mut up: RankUp,
    ) -> Result<Announced, Loss> {
        if let Some(&(serial, rank)) = self.tapes.get(&up.tape_id) {
            return self.announce_again(now, node, serial, rank, up);
        }
        up.job = job_id(&up.job, &up.owner, node);
        if self.holdings.ranks() >= self.limits.ranks_max {
            return Err(Loss::NoRoom);
        }
        self.admit_rank(node)?;
        let (serial, is_new_attempt) = match self.attempt_for(node, &up.job, &up) {
            Some(serial) => (serial, false),
            None => (self.begin_attempt(now, node, &up)?, true),
        };
        let Some(attempt) = self.attempts.get_mut(&serial) else { return Err(Loss::NoRoom) };
        if attempt.ranks.len() >= self.limits.capture.ranks_max {
            return Err(Loss::NoRoom);
        }
        attempt.captures.rank_up((up.rank, &up.tape_id), node);
        self.tapes.insert(up.tape_id.clone(), (serial, up.rank));
        let is_late = attempt.is_late(node);
        let mut record = RankRecord { serial, rank: up.rank, is_late, ..RankRecord::default() };
        let offered = up.offered;
        record.workload = std::mem::take(&mut up.workload);
        describe(&mut record, node, up);
        let [reported_ns, stepped_ns, allocated_ns] = [now.mono_ns; 3];
        let presence = Presence::Here;
        let here_since_ns = now.mono_ns;
        let rank = Rank {
            record,
            presence,
            offered,
            here_since_ns,
            reported_ns,
            stepped_ns,
            allocated_ns,
            ..Rank::default()
        };
        self.holdings.add(&rank);
        attempt.insert(rank);
        // It goes on; if this rank is gone too, its agent says so next.
        if !is_late {
            attempt.record.ended_wall_ns = None;
        }
        Ok(Announced { serial, is_new_attempt, is_news: true, is_back: false })
    }

    /// Agents repeat everything after a reconnect.
    fn announce_again(
        &mut self,
        now: Now,
        node: &str,
        serial: u32,
        rank: u32,
        up: RankUp,
    ) -> Result<Announced, Loss> {
        self.reconnected(now, node, &up.tape_id);
        let Some(attempt) = self.attempts.get_mut(&serial) else { return Err(Loss::UnknownTape) };
        // A tape is a file on one node; another node that claims it is mistaken or lies.
        if attempt.ranks.get(&rank).is_none_or(|rank| rank.record.node != node) {
            return Err(Loss::UnknownTape);
        }
        // The message may name another rank.
        let tape = (rank, up.tape_id.as_str());
        let Some(rank) = attempt.ranks.get_mut(&rank) else { return Err(Loss::UnknownTape) };
        attempt.captures.rank_up(tape, node);
        let before = Held::of(rank);
        let is_back = rank.presence == Presence::Ended && rank.record.end == Some(End::Unknown);
        if is_back {
            // Its agent did not know its tape, or what became of it, and now does; if the process
            // is gone, it says so next.
            attempt.captures.rank_back(tape);
            (rank.record.end, rank.record.end_wall_ns) = (None, 0);
            rank.record.exit_status = None;
            rank.record.end_detail.clear();
            rank.censuses.clear();
            if !rank.record.is_late {
                attempt.record.ended_wall_ns = None;
            }
            rank.reconnected(now.mono_ns);
            attempt.record.pauses.reconnected(now.mono_ns);
        }
        self.holdings.change(node, before, Held::of(rank));
        rank.offered = up.offered;
        let before = rank.record.clone();
        describe(&mut rank.record, node, up);
        let is_news = is_back || rank.record != before;
        attempt.roles_due |= is_news;
        let is_known = is_slurm_job_known(&rank.record) && !is_slurm_job_known(&before);
        let of_job = attempt.slurm_jobs.entry(before.workload.slurm_job).or_default();
        of_job.known += usize::from(is_known);
        Ok(Announced { serial, is_new_attempt: false, is_news, is_back })
    }

    /// Notes that the agent of a rank is back and knows its tape.
    fn reconnected(&mut self, now: Now, node: &str, tape_id: &str) {
        let Some((serial, number)) = self.tapes.get(tape_id) else { return };
        let Some(attempt) = self.attempts.get_mut(serial) else { return };
        let rank = attempt.ranks.get_mut(number);
        if let Some(rank) = rank.filter(|rank| rank.is_away() && rank.record.node == node) {
            rank.reconnected(now.mono_ns);
            attempt.record.pauses.reconnected(now.mono_ns);
        }
    }

    /// Does a new tape begin an attempt, if it is accepted?
    pub(crate) fn begins_attempt(&self, node: &str, up: &RankUp) -> bool {
        self.attempt_for(node, &job_id(&up.job, &up.owner, node), up).is_none()
    }

    fn begin_attempt(&mut self, now: Now, node: &str, up: &RankUp) -> Result<u32, Loss> {
        self.admit_attempt(node)?;
        if !self.jobs.contains_key(&up.job) && self.jobs.len() >= JOBS_MAX {
            return Err(Loss::NoRoom);
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let serials = self.jobs.entry(up.job.clone()).or_default();
        let attempts = serials.iter().filter_map(|serial| self.attempts.get(serial));
        let of_number = attempts.filter(|attempt| attempt.record.attempt == up.attempt);
        let ordinal = of_number.map(|attempt| attempt.record.ordinal + 1).max().unwrap_or(0);
        let record = AttemptRecord {
            serial,
            job: up.job.clone(),
            attempt: up.attempt,
            ordinal,
            world_size: up.world_size,
            // A start in the future would keep this attempt the newest.
            started_wall_ns: up.start_wall_ns.min(now.wall_ns),
            first_seen_wall_ns: now.wall_ns,
            ended_wall_ns: None,
            owner: up.owner.clone(),
            node: node.to_string(),
            pauses: Pauses::default(),
        };
        let mut attempt = Attempt::new(record, &self.limits);
        if let Some(earlier) = self.current(&up.job) {
            attempt.captures.continue_from(&earlier.captures);
            attempt.triggers.continue_from(&earlier.triggers);
        }
        self.insert(attempt);
        Ok(serial)
    }

    /// Puts an attempt in its place among the attempts at its job.
    fn insert(&mut self, attempt: Attempt) {
        let serial = attempt.record.serial;
        // Not by number first: a job started again under its name begins again with number 0.
        let place = |record: &AttemptRecord| (record.started_wall_ns, record.attempt);
        let mine = place(&attempt.record);
        let serials = self.jobs.entry(attempt.record.job.clone()).or_default();
        let at = serials.partition_point(|other| {
            self.attempts.get(other).is_some_and(|other| place(&other.record) <= mine)
        });
        serials.insert(at, serial);
        self.next_serial = self.next_serial.max(serial + 1);
        self.attempts.insert(serial, attempt);
    }

    /// Up to `count` attempts may have been lost with their records: their numbers are not given
    /// again, because steps of them may be there.
    pub(crate) fn skip_serials(&mut self, count: u64) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.next_serial = self.next_serial.saturating_add(count);
    }

    /// Deletes an attempt with its records and steps; false when there is none.
    pub(crate) fn forget(&mut self, context: &mut Context, serial: u32) -> bool {
        let Some(attempt) = self.remove(serial) else { return false };
        tracing::info!(job = ?attempt.record.job, "an old attempt is forgotten");
        let record = &attempt.record;
        context.push(Effect::ForgetSteps { serial });
        let mut changes = Changes::default();
        changes.delete(record);
        for rank in attempt.ranks.values() {
            changes.delete(&rank.record);
        }
        context.write(changes);
        true
    }

    fn remove(&mut self, serial: u32) -> Option<Attempt> {
        let attempt = self.attempts.remove(&serial)?;
        self.holdings.remove(&attempt);
        if let Some(serials) = self.jobs.get_mut(&attempt.record.job) {
            serials.retain(|other| *other != serial);
            if serials.is_empty() {
                self.jobs.remove(&attempt.record.job);
            }
        }
        for rank in attempt.ranks.values() {
            self.tapes.remove(&rank.record.tape_id);
        }
        Some(attempt)
    }
}

fn describe(record: &mut RankRecord, node: &str, up: RankUp) {
    record.tape_id = up.tape_id;
    record.node = node.to_string();
    record.local_rank = up.local_rank;
    // An agent cannot tell the pid of a process that is gone; what it said before stays.
    record.pid = if up.pid == 0 { record.pid } else { up.pid };
    record.start_wall_ns = up.start_wall_ns;
    record.command = up.command;
    record.device_uuids = up.device_uuids;
    record.limitations = up.limitations;
    record.role = up.role;
    record.peer_groups = up.peer_groups;
    record.allocator = up.allocator;
    record.hints = up.hints;
    record.planned_end = up.planned_end;
}

#[cfg(test)]
mod logged_tests;

#[cfg(test)]
pub(in crate::state) mod tests {
    use memtape_core::limits::FAILURE_AGE_SECONDS_MAX;

    use super::*;
    use crate::state::messages::RankEnd;

    pub(in crate::state) fn limits() -> Limits {
        Limits { ranks_max: memtape_core::limits::RANKS_MAX, ..Limits::default() }
    }

    pub(super) fn killed() -> RankEnd {
        let (exit_status, detail) = (None, String::new());
        RankEnd { end: End::Killed, exit_status, detail, wall_ns: 0, step: 0 }
    }

    /// Announces tapes `(id, attempt, rank, start in tenths of a second)` and ends tapes named
    /// `!id`; answers the attempts as (number, ordinal, ranks).
    fn check(script: &[(&str, u32, u32, i64)], expected: &[(u32, u32, &[u32])]) {
        let mut jobs = Jobs::new(limits());
        for &(tape, attempt, rank, start) in script {
            let start_wall_ns = start * 100_000_000;
            let now = Now { mono_ns: 1, wall_ns: start_wall_ns };
            if let Some(tape) = tape.strip_prefix('!') {
                let (serial, rank) = jobs.tapes[tape];
                let attempt = jobs.attempts.get_mut(&serial).unwrap();
                let rank = attempt.ranks.get_mut(&rank).unwrap();
                rank.end(RankEnd { wall_ns: start_wall_ns, ..killed() });
                if attempt.ranks.values().all(|rank| rank.presence == Presence::Ended) {
                    attempt.record.ended_wall_ns = Some(start_wall_ns);
                }
                continue;
            }
            let up = RankUp {
                tape_id: tape.to_string(),
                job: "job".to_string(),
                attempt,
                rank,
                world_size: 2,
                start_wall_ns,
                ..RankUp::default()
            };
            jobs.announce(now, "node", up).unwrap();
        }
        let found: Vec<(u32, u32, Vec<u32>)> = jobs.jobs["job@0"]
            .iter()
            .map(|serial| &jobs.attempts[serial])
            .map(|attempt| {
                let record = &attempt.record;
                (record.attempt, record.ordinal, attempt.ranks.keys().copied().collect())
            })
            .collect();
        let expected: Vec<(u32, u32, Vec<u32>)> = expected
            .iter()
            .map(|(number, ordinal, ranks)| (*number, *ordinal, ranks.to_vec()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn attempts_are_distinguished() {
        let both: &[u32] = &[0, 1];
        check(&[("a0", 0, 0, 1), ("a1", 0, 1, 2)], &[(0, 0, both)]);
        check(&[("a0", 0, 0, 1), ("a0", 0, 0, 1), ("a1", 0, 1, 2)], &[(0, 0, both)]);
        // The launcher counts.
        check(&[("a0", 0, 0, 1), ("b0", 1, 0, 9), ("a1", 0, 1, 2)], &[(0, 0, both), (1, 0, &[0])]);
        // It does not, and the same ranks come again, in any order, before or after the deaths.
        let again = [("a0", 0, 0, 1), ("a1", 0, 1, 2), ("b1", 0, 1, 90), ("b0", 0, 0, 91)];
        check(&again, &[(0, 0, both), (0, 1, both)]);
        let died = [("a0", 0, 0, 1), ("!a0", 0, 0, 50), ("b1", 0, 1, 90), ("b0", 0, 0, 91)];
        check(&died, &[(0, 0, &[0]), (0, 1, both)]);
        // The clock of the other node is 0.3 s ahead, and the first life was a short one.
        let short = [("a0", 0, 0, 1), ("!a0", 0, 0, 3), ("b0", 0, 0, 50), ("a1", 0, 1, 6)];
        check(&short, &[(0, 0, both), (0, 1, &[0])]);
        // An agent that starts late announces old and new tapes in any order.
        let mixed = [("b0", 0, 0, 91), ("a0", 0, 0, 1), ("a1", 0, 1, 2), ("b1", 0, 1, 90)];
        check(&mixed, &[(0, 1, both), (0, 0, both)]);
        // A second run of the same name begins with number 0 again, and is the newest.
        let runs = [("a0", 0, 0, 1), ("b0", 3, 0, 9), ("!b0", 3, 0, 20), ("c0", 0, 0, 30)];
        check(&runs, &[(0, 0, &[0]), (3, 0, &[0]), (0, 1, &[0])]);
    }

    #[test]
    fn a_lost_attempt_is_over_once_a_later_one_is_here() {
        let mut jobs = Jobs::new(limits());
        let up = |tape: &str, attempt| RankUp {
            tape_id: tape.to_string(),
            job: "job".to_string(),
            attempt,
            start_wall_ns: i64::from(attempt),
            ..RankUp::default()
        };
        jobs.announce(Now::default(), "a", up("a0", 0)).unwrap();
        let is_over = |jobs: &Jobs, serial| jobs.is_over(&jobs.own("job@0"), serial);
        jobs.node_lost(Now::default(), "a");
        assert!(!is_over(&jobs, 0));
        jobs.announce(Now::default(), "b", up("b0", 1)).unwrap();
        assert!(!is_over(&jobs, 0), "any node can claim an attempt while this one may run");
        jobs.now_ns = FAILURE_AGE_SECONDS_MAX * 1_000_000_000;
        assert!(is_over(&jobs, 0) && !is_over(&jobs, 1));
        // Its node is back.
        jobs.announce(Now::default(), "a", up("a0", 0)).unwrap();
        assert!(!is_over(&jobs, 0));
    }

    #[test]
    fn a_baseline_is_taken_only_while_all_ranks_are_heard() {
        let mut jobs = Jobs::new(limits());
        let now = Now { mono_ns: 1, wall_ns: 1 };
        let up = |rank: u32| RankUp {
            tape_id: rank.to_string(),
            job: "job".to_string(),
            world_size: 2,
            rank,
            ..RankUp::default()
        };
        let due = |jobs: &mut Jobs| {
            let attempt = jobs.attempts.get_mut(&0).unwrap();
            attempt.triggers.notice(now.mono_ns, Reason::Baseline);
            let later = Now { mono_ns: 60_000_000_000, ..now };
            !jobs.tick(later, |_| true).is_empty()
        };
        jobs.announce(now, "a", up(0)).unwrap();
        assert!(!due(&mut jobs), "one rank has not come");
        jobs.announce(now, "b", up(1)).unwrap();
        assert!(due(&mut jobs));
        jobs.node_lost(now, "b");
        assert!(!due(&mut jobs), "nothing is heard of one rank");
        jobs.announce(now, "b", up(1)).unwrap();
        assert!(due(&mut jobs));
        for (rank, node) in [(1, "b"), (0, "a")] {
            let end = RankEnd { end: End::Exited, ..killed() };
            jobs.rank_down(&mut Context::new(now), node, &rank.to_string(), end);
            assert!(!due(&mut jobs), "rank {rank} has ended");
        }
    }

    #[test]
    fn a_tape_stays_on_its_node() {
        let mut jobs = Jobs::new(limits());
        let up = RankUp { tape_id: "t".to_string(), job: "j".to_string(), ..RankUp::default() };
        let now = Now::default();
        assert!(jobs.announce(now, "a", up.clone()).unwrap().is_news);
        assert!(!jobs.announce(now, "a", up.clone()).unwrap().is_news);
        assert_eq!(jobs.announce(now, "b", up), Err(Loss::UnknownTape));
    }
}
