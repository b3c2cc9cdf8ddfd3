//! Which job and which attempt a rank belongs to, which attempt stands for its job, and which ranks
//! an attempt has proved to be its own.
//!
//! A job is a name and its owner; `core` makes its id. A rank joins an attempt of the same number
//! and the same number of ranks, whose owner and Slurm job are its own. An agent proves its node
//! alone, and claims all else of its ranks, so a stolen one can begin attempts under any name: they
//! stand for no job that runs without it, and nothing is done because of them. Records and ranks
//! are changed elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use memtape_core::identity::owner::is_called;
use memtape_core::limits::FAILURE_AGE_SECONDS_MAX;

use crate::state::jobs::attempt::{Attempt, Presence, Rank};
use crate::state::jobs::{CLOCKS_APART_NS, Jobs};
use crate::state::messages::RankUp;

impl Jobs {
    /// The attempt that a new tape joins: one that lacks this rank and was not over when the tape
    /// began, the nearest in time.
    pub(super) fn attempt_for(&self, node: &str, job: &str, up: &RankUp) -> Option<u32> {
        let fitting = self.attempts_at(job).filter(|attempt| attempt.takes(node, up));
        let nearest =
            fitting.min_by_key(|attempt| attempt.record.started_wall_ns.abs_diff(up.start_wall_ns));
        nearest.map(|attempt| attempt.record.serial)
    }

    /// The attempts at a job, in order of their start.
    pub(crate) fn attempts_at(&self, job: &str) -> impl DoubleEndedIterator<Item = &Attempt> {
        self.serials(job).iter().filter_map(|serial| self.attempts.get(serial))
    }

    /// The attempt that stands for its job.
    pub(crate) fn current(&self, job: &str) -> Option<&Attempt> {
        self.chosen(job, |_| true)
    }

    /// Chooses among matching attempts: running first, then the job's own, then complete, then
    /// newest.
    pub(crate) fn chosen(
        &self,
        job: &str,
        is_meant: impl Fn(&Attempt) -> bool,
    ) -> Option<&Attempt> {
        self.chosen_of(job, &self.own(job), is_meant)
    }

    fn chosen_of(
        &self,
        job: &str,
        own: &BTreeSet<u32>,
        is_meant: impl Fn(&Attempt) -> bool,
    ) -> Option<&Attempt> {
        let order = |attempt: &&Attempt| {
            let runs = attempt.runs();
            let is_own = own.contains(&attempt.record.serial);
            (runs, is_own, runs && attempt.is_complete())
        };
        self.attempts_at(job).filter(|attempt| is_meant(attempt)).max_by_key(order)
    }

    /// The attempts of a job that are its own: the one on most nodes, of these the first announced,
    /// and those on nodes of these. A stolen certificate is one node, however much it claims. An
    /// attempt on other nodes follows when all of these are over that were announced before, and it
    /// has as many ranks and nodes as the last one.
    pub(crate) fn own(&self, job: &str) -> BTreeSet<u32> {
        let all = self.attempts_at(job).map(|attempt| (attempt, attempt.own_nodes()));
        let mut all: Vec<(&Attempt, BTreeSet<&str>)> = all.collect();
        all.sort_unstable_by_key(|(attempt, _)| attempt.record.serial);
        let Some((first, of_first)) = all.iter().rev().max_by_key(|(_, nodes)| nodes.len()) else {
            return BTreeSet::new();
        };
        let (mut nodes, mut own) = (of_first.clone(), BTreeSet::from([first.record.serial]));
        for (attempt, of) in &all {
            if !of.is_disjoint(&nodes) {
                nodes.extend(attempt.proved_nodes());
                own.insert(attempt.record.serial);
            }
        }
        for (attempt, of) in &all {
            let mut owned = all.iter().filter(|(of, _)| own.contains(&of.record.serial));
            let is_as_large = owned.clone().next_back().is_some_and(|(last, of_last)| {
                attempt.record.world_size == last.record.world_size && of.len() >= of_last.len()
            });
            if is_as_large
                && attempt.is_complete()
                && owned.all(|(of, _)| self.follows(attempt, of))
            {
                own.insert(attempt.record.serial);
            }
        }
        own
    }

    /// Is an attempt over, and was before another one was announced?
    fn follows(&self, later: &Attempt, earlier: &Attempt) -> bool {
        let announced_ns = later.record.first_seen_wall_ns.saturating_add(CLOCKS_APART_NS);
        !self.may_run(earlier) && earlier.record.ended_wall_ns.is_none_or(|at| at <= announced_ns)
    }

    /// Is a rank here that is not late, or was it heard of not long ago?
    fn may_run(&self, attempt: &Attempt) -> bool {
        let silent_ns = |rank: &Rank| self.now_ns.saturating_sub(rank.reported_ns);
        let mut ranks = attempt.ranks.values().filter(|rank| !rank.record.is_late);
        ranks.any(|rank| match rank.presence {
            Presence::Here => true,
            Presence::Unknown => silent_ns(rank) < FAILURE_AGE_SECONDS_MAX * 1_000_000_000,
            Presence::Ended => false,
        })
    }

    /// Does a newer attempt replace an older one? Only one of the job's `own` does, and while ranks
    /// of the older are here, only if both attempts have a rank on the same node.
    pub(crate) fn is_replaced(&self, own: &BTreeSet<u32>, older: u32, newer: u32) -> bool {
        let (Some(older), Some(newer)) = (self.get(older), self.get(newer)) else { return true };
        own.contains(&newer.record.serial)
            && (older.ranks_here() == 0 || !older.own_nodes().is_disjoint(&newer.own_nodes()))
    }

    /// The jobs with this id or name.
    pub(crate) fn called<'a>(&'a self, text: &str) -> impl Iterator<Item = &'a String> {
        self.jobs.keys().filter(move |id| is_called(id, text))
    }

    /// Has its job proved that this rank of an attempt is its own? What another rank says causes
    /// nothing.
    pub(crate) fn is_proved(&self, attempt: &Attempt, rank: u32) -> bool {
        let (job, serial) = (&attempt.record.job, attempt.record.serial);
        let own = self.own(job);
        own.contains(&serial)
            && self.chosen_of(job, &own, |_| true).is_some_and(|of| of.record.serial == serial)
            && attempt.has_proved(rank)
    }
}

impl Attempt {
    /// Is a rank here that is not late?
    fn runs(&self) -> bool {
        self.ranks.values().any(|rank| rank.presence == Presence::Here && !rank.record.is_late)
    }

    /// Is a new rank of this node late: the attempt is over, and has no rank there?
    pub(super) fn is_late(&self, node: &str) -> bool {
        self.has_ended() && self.ranks.values().all(|rank| rank.record.node != node)
    }

    /// Can a new tape be a rank of this attempt?
    fn takes(&self, node: &str, up: &RankUp) -> bool {
        let record = &self.record;
        // Without a launcher that says how many there are, each node has attempts of its own.
        let is_same = record.attempt == up.attempt
            && record.world_size == up.world_size
            && (record.world_size > 0 || self.begun_by() == node);
        let slurm_job = self.slurm_job();
        let is_gone = up.pid == 0 && up.workload.slurm_job.is_empty();
        is_same
            && record.owner == up.owner
            && (slurm_job.is_none_or(|job| job == up.workload.slurm_job) || is_gone)
            && !self.ranks.contains_key(&up.rank)
            && (record.world_size == 0 || !self.is_complete())
            && record
                .ended_wall_ns
                .is_none_or(|ended_ns| up.start_wall_ns <= ended_ns.saturating_add(CLOCKS_APART_NS))
    }

    /// The Slurm job of most of its ranks, empty where they are in none; none where no agent knows.
    fn slurm_job(&self) -> Option<&str> {
        let mut counts = BTreeMap::<&str, usize>::new();
        for record in self.ranks.values().map(|rank| &rank.record) {
            let job = record.workload.slurm_job.as_str();
            // Of a process that is gone its agent knows no Slurm job.
            if record.pid > 0 || !job.is_empty() {
                *counts.entry(job).or_default() += 1;
            }
        }
        counts.into_iter().max_by_key(|(_, ranks)| *ranks).map(|(job, _)| job)
    }

    /// Are all ranks known that its launcher announced? It takes no further rank then.
    fn is_complete(&self) -> bool {
        let world_size = self.record.world_size;
        let known = self.ranks.range(..world_size.max(1));
        known.filter(|(_, rank)| !rank.record.is_late).count() >= world_size.max(1) as usize
    }

    /// The ranks that are proved: all of them are known, or most are in one Slurm job, and they are
    /// in the Slurm job of most. Where no launcher announced the ranks, all are on one node. A late
    /// rank proves nothing.
    pub(crate) fn proved(&self) -> impl Iterator<Item = &Rank> {
        let (slurm_job, world_size) = (self.slurm_job(), self.record.world_size);
        let is_in = move |rank: &&Rank| {
            let is_of_world = world_size == 0 || rank.record.rank < world_size;
            let of_rank = rank.record.workload.slurm_job.as_str();
            let is_of_job = slurm_job.is_none_or(|job| job == of_rank);
            is_of_world && is_of_job && !rank.record.is_late
        };
        let most = || self.ranks.values().filter(is_in).count() > world_size as usize / 2;
        let is_in_slurm = slurm_job.is_some_and(|job| !job.is_empty());
        let is_enough = world_size == 0 || self.is_complete() || (is_in_slurm && most());
        self.ranks.values().filter(move |rank| is_enough && is_in(rank))
    }

    /// Is this rank proved, as far as the attempt itself shows?
    pub(crate) fn has_proved(&self, rank: u32) -> bool {
        self.proved().any(|of| of.record.rank == rank)
    }

    /// The nodes of its proved ranks; where none is proved, of all that are not late.
    fn own_nodes(&self) -> BTreeSet<&str> {
        let proved = self.proved_nodes();
        let all = self.ranks.values().filter(|rank| !rank.record.is_late);
        match proved.is_empty() {
            true => all.map(|rank| rank.record.node.as_str()).collect(),
            false => proved,
        }
    }

    fn proved_nodes(&self) -> BTreeSet<&str> {
        self.proved().map(|rank| rank.record.node.as_str()).collect()
    }
}

#[cfg(test)]
pub(in crate::state) mod tests;
