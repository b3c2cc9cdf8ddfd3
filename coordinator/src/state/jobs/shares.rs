//! Chooses the attempt to forget where a bound is exceeded, and counts the holdings of each node.
//!
//! An agent proves its node by its certificate, but only claims the owners of its ranks. So the
//! node that holds most gives way, and on that node the owner who has most. An attempt counts for
//! the node whose rank began it, a rank for the node that announced it. An announcement of a node
//! pushes out no running attempt of a node with less than an equal part. Names of owners and jobs
//! are given elsewhere; captures and incidents are shared by the same rule in their own files.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use memtape_core::capacity;
use memtape_core::census::changes::Changes;
use memtape_core::identity::owner::{HolderKey, OwnerKey};
use memtape_core::limits::{
    ATTEMPTS_PER_JOB_MAX, CENSUSES_OF_RANK_BYTES_MAX, JOBS_MAX, JOBS_RUNNING_PER_NODE_MAX,
    RANKS_RUNNING_PER_NODE_MAX,
};
use memtape_core::sharing::Shares;

use crate::state::counters::Loss;
use crate::state::effects::{Context, Effect};
use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::{Attempt, Presence, Rank};
use crate::state::messages::RankReport;

/// One node may hold at most one part in this number of all ranks, and of the memory of censuses.
const NODES_AT_LEAST: usize = 8;

/// Ranks of one node, or one rank.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Held {
    /// Remembered ranks; each device of a rank beyond the first counts as one.
    pub(super) ranks: usize,
    /// Ranks that have not ended.
    pub(super) running: usize,
    /// Memory of the censuses of running ranks.
    pub(super) censuses_bytes: u64,
}

impl Held {
    pub(super) fn of(rank: &Rank) -> Self {
        Self {
            ranks: rank.devices.len().max(1),
            running: usize::from(rank.presence != Presence::Ended),
            censuses_bytes: rank.censuses.most_bytes(),
        }
    }
}

/// Ranks of each node.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Holdings {
    nodes: BTreeMap<String, Held>,
    /// Numbers of the ranks on each node, by the serial of their attempt.
    attempts: BTreeMap<(String, u32), BTreeSet<u32>>,
    /// Memory of the censuses of all running ranks.
    pub(super) censuses_bytes: u64,
}

impl Holdings {
    pub(super) fn of(&self, node: &str) -> Held {
        self.nodes.get(node).copied().unwrap_or_default()
    }

    /// Ranks of all nodes.
    pub(super) fn ranks(&self) -> usize {
        self.nodes.values().map(|held| held.ranks).sum()
    }

    /// Takes a rank more.
    pub(super) fn add(&mut self, rank: &Rank) {
        let record = &rank.record;
        self.change(&record.node, Held::default(), Held::of(rank));
        let ranks = self.attempts.entry((record.node.clone(), record.serial)).or_default();
        ranks.insert(record.rank);
    }

    /// Removes an attempt.
    pub(super) fn remove(&mut self, attempt: &Attempt) {
        for rank in attempt.ranks.values() {
            self.change(&rank.record.node, Held::of(rank), Held::default());
            self.attempts.remove(&(rank.record.node.clone(), rank.record.serial));
        }
    }

    /// The attempts with a rank on a node, and the numbers of these ranks.
    pub(super) fn attempts_on(&self, node: &str) -> impl Iterator<Item = (u32, &BTreeSet<u32>)> {
        let of_node = (node.to_string(), 0)..=(node.to_string(), u32::MAX);
        self.attempts.range(of_node).map(|((_, serial), ranks)| (*serial, ranks))
    }

    /// Takes a change of a rank of a node: it held this before, and holds that now.
    pub(super) fn change(&mut self, node: &str, before: Held, now: Held) {
        let held = self.nodes.entry(node.to_string()).or_default();
        held.ranks = (held.ranks + now.ranks).saturating_sub(before.ranks);
        held.running = (held.running + now.running).saturating_sub(before.running);
        for all in [&mut held.censuses_bytes, &mut self.censuses_bytes] {
            *all = all.saturating_add(now.censuses_bytes).saturating_sub(before.censuses_bytes);
        }
        if held.ranks == 0 {
            self.nodes.remove(node);
        }
    }

    /// Takes censuses of a rank, where this many ranks may be remembered. Returns the number of
    /// censuses that are not kept.
    pub(super) fn take_censuses(
        &mut self,
        rank: &mut Rank,
        changes: Vec<Changes>,
        ranks_max: usize,
    ) -> u64 {
        if changes.is_empty() {
            return 0;
        }
        let before = Held::of(rank);
        let all_max = capacity::censuses_bytes(ranks_max);
        let node_max =
            (all_max / NODES_AT_LEAST as u64).max(CENSUSES_OF_RANK_BYTES_MAX.min(all_max));
        let rooms = [
            all_max.saturating_sub(self.censuses_bytes),
            node_max.saturating_sub(self.of(&rank.record.node).censuses_bytes),
        ];
        let room = rooms.into_iter().fold(u64::MAX, u64::min).saturating_add(before.censuses_bytes);
        let bytes_max = room.min(CENSUSES_OF_RANK_BYTES_MAX);
        let taken = changes.into_iter().map(|changes| rank.censuses.take(changes, bytes_max));
        let left_out = taken.filter(|is_taken| !is_taken).count() as u64;
        if rank.presence == Presence::Ended {
            // The last census of a rank may come after its end.
            rank.censuses.end();
        }
        self.change(&rank.record.node, before, Held::of(rank));
        left_out
    }
}

impl Attempt {
    /// The node whose rank began the attempt; before records 1.7 the node of its first rank.
    pub(super) fn begun_by(&self) -> &str {
        match self.record.node.as_str() {
            "" => self.ranks.values().next().map_or("", |rank| &rank.record.node),
            node => node,
        }
    }

    /// Holder of the attempt, where bounds are shared.
    pub(crate) fn held_by(&self) -> HolderKey<'_> {
        (self.begun_by(), self.record.owner.key())
    }

    /// Sort key of attempts to forget: ended ones first, by the time of their end.
    fn over(&self) -> (bool, Option<i64>, i64) {
        let record = &self.record;
        (record.ended_wall_ns.is_none(), record.ended_wall_ns, record.started_wall_ns)
    }
}

impl Jobs {
    /// May a node have one rank more?
    ///
    /// # Errors
    /// It has as many as a node can have.
    pub(super) fn admit_rank(&self, node: &str) -> Result<(), Loss> {
        let held = self.holdings.of(node);
        let is_full = held.running >= RANKS_RUNNING_PER_NODE_MAX;
        if is_full || held.ranks >= self.ranks_per_node_max() {
            return Err(Loss::NodeFull);
        }
        Ok(())
    }

    /// May a node begin one attempt more?
    ///
    /// # Errors
    /// As many as a node can have are running.
    pub(super) fn admit_attempt(&self, node: &str) -> Result<(), Loss> {
        if self.running_of(node).count() >= JOBS_RUNNING_PER_NODE_MAX {
            return Err(Loss::NodeFull);
        }
        Ok(())
    }

    /// The attempts that a rank of this node began and that have not ended.
    pub(super) fn running_of(&self, node: &str) -> impl Iterator<Item = &Attempt> {
        self.attempts.values().filter(move |of| !of.has_ended() && of.begun_by() == node)
    }

    /// Counts the devices that a report names, and leaves out of it those beyond the bound of the
    /// node.
    pub(super) fn admit_devices(&mut self, context: &mut Context, node: &str, of: &mut RankReport) {
        let ranks_max = self.ranks_per_node_max();
        let Some((serial, rank)) = self.tapes.get(&of.tape_id) else { return };
        let attempt = self.attempts.get_mut(serial);
        let Some(rank) = attempt.and_then(|attempt| attempt.ranks.get_mut(rank)) else { return };
        let Some(held) = self.holdings.nodes.get_mut(node) else { return };
        if rank.record.node != node {
            return;
        }
        let steps = of.steps.iter().map(|(device, _)| *device);
        let censuses = of.censuses.iter().map(|changes| changes.device);
        let totals = of.totals.iter().map(|totals| totals.device);
        for device in totals.chain(steps).chain(censuses) {
            let is_first = rank.devices.is_empty();
            if (is_first || held.ranks < ranks_max) && rank.devices.insert(device) {
                held.ranks += usize::from(!is_first);
            }
        }
        let before = of.totals.len();
        of.totals.retain(|totals| rank.devices.contains(&totals.device));
        of.steps.retain(|(device, _)| rank.devices.contains(device));
        of.censuses.retain(|changes| rank.devices.contains(&changes.device));
        context.push(Effect::Lose(Loss::NodeFull, (before - of.totals.len()) as u64));
    }

    fn ranks_per_node_max(&self) -> usize {
        let ranks_max = self.limits.ranks_max;
        (ranks_max / NODES_AT_LEAST).max(RANKS_RUNNING_PER_NODE_MAX.min(ranks_max))
    }

    /// The attempt to forget first when a bound is exceeded, also for a newcomer: a rank of this
    /// holder, which begins an attempt or not. On a node at its bound of running jobs or ranks: one
    /// of the largest owner there. Of a job with too many attempts: one that the most frequent node
    /// began. On a node at its bound of remembered ranks: one of its own. Else: one of the largest
    /// node, and there of the largest owner. Attempts that ended first go first, attempts with an
    /// open incident after the others. Where none has ended, a running one of the largest node
    /// gives way to a newcomer with less than an equal part.
    pub(crate) fn surplus(
        &self,
        newcomer: Option<(HolderKey<'_>, bool)>,
        has_open_incident: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let crowded = self.jobs.iter().find(|(_, serials)| serials.len() > ATTEMPTS_PER_JOB_MAX);
        if let Some((job, serials)) = crowded {
            return self.surplus_of_job(job, serials);
        }
        if let Some(serial) = newcomer.and_then(|(of, begins)| self.surplus_of_node(of, begins)) {
            return Some(serial);
        }
        let has_ended = || self.attempts.values().filter(|attempt| attempt.has_ended());
        let newcomer = newcomer.map(|(holder, _)| holder);
        let full_node = newcomer
            .map(|(node, _)| node)
            .filter(|node| self.holdings.of(node).ranks >= self.ranks_per_node_max());
        if let Some(node) = full_node {
            let own = has_ended().filter(|attempt| attempt.begun_by() == node);
            let first = own.min_by_key(|of| (has_open_incident(of.record.serial), of.over()));
            return first.map(|attempt| attempt.record.serial);
        }
        // Before it is full: the next job or rank shall find a place.
        let are_ranks_full = self.holdings.ranks() >= self.limits.ranks_max;
        if self.jobs.len() < JOBS_MAX && !are_ranks_full {
            return None;
        }
        let shares = self.shares(are_ranks_full);
        let order = |attempt: &&Attempt| {
            let open = has_open_incident(attempt.record.serial);
            (Reverse(shares.of(attempt.held_by())), open, attempt.over())
        };
        let gives_way = |attempt: &&Attempt| {
            newcomer.is_none_or(|newcomer| shares.gives_way(attempt.held_by(), newcomer))
        };
        let ended = has_ended().filter(gives_way).min_by_key(order);
        // Its agents are away: whether it runs is not known.
        let away = || self.attempts.values().filter(|of| of.ranks_here() == 0);
        let oldest = ended.or_else(|| away().filter(gives_way).min_by_key(order));
        let running = || {
            let newcomer = newcomer?;
            let room = if are_ranks_full { self.limits.ranks_max } else { JOBS_MAX } as u64;
            let gives_way = |of: &&Attempt| shares.gives_way_in_use(of.held_by(), newcomer, room);
            let all = self.attempts.values().filter(gives_way);
            all.max_by_key(|of| (shares.of(of.held_by()), of.record.serial))
        };
        oldest.or_else(running).map(|attempt| attempt.record.serial)
    }

    /// For a node at its bound of running jobs or ranks: the newest running attempt of the owner
    /// who has most, where the newcomer's owner has less.
    fn surplus_of_node(&self, newcomer: HolderKey<'_>, begins: bool) -> Option<u32> {
        let (node, _) = newcomer;
        let running = || self.running_of(node);
        let are_ranks_full = self.holdings.of(node).running >= RANKS_RUNNING_PER_NODE_MAX;
        let are_jobs_full = begins && running().count() >= JOBS_RUNNING_PER_NODE_MAX;
        let max = match (are_ranks_full, are_jobs_full) {
            (true, _) => RANKS_RUNNING_PER_NODE_MAX,
            (false, true) => JOBS_RUNNING_PER_NODE_MAX,
            (false, false) => return None,
        };
        let mut shares = Shares::default();
        let on_node = |attempt: &Attempt| {
            let ranks = attempt.ranks.values().filter(|of| of.presence != Presence::Ended);
            ranks.filter(|rank| rank.record.node == node).count() as u64
        };
        for attempt in self.attempts.values().filter(|of| !of.has_ended()) {
            let is_own = u64::from(attempt.begun_by() == node);
            let more = if are_ranks_full { on_node(attempt) } else { is_own };
            shares.add((node, attempt.held_by().1), more);
        }
        let newest = running().max_by_key(|of| (shares.of(of.held_by()), of.record.serial))?;
        let gives_way = shares.gives_way_in_use(newest.held_by(), newcomer, max as u64);
        gives_way.then_some(newest.record.serial)
    }

    /// The attempt to forget of a job with too many: of those that are not its own, if there are
    /// any, and of these of the attempts that the most frequent node began, the oldest ended one,
    /// else the newest.
    fn surplus_of_job(&self, job: &str, serials: &[u32]) -> Option<u32> {
        let own = self.own(job);
        let are_all_own = serials.iter().all(|serial| own.contains(serial));
        let given = serials.iter().filter(|serial| are_all_own || !own.contains(serial));
        let all = || given.clone().filter_map(|serial| self.attempts.get(serial));
        let mut begun = BTreeMap::<&str, usize>::new();
        for attempt in all() {
            *begun.entry(attempt.begun_by()).or_default() += 1;
        }
        let most = begun.values().max()?;
        let of_most = || all().filter(|attempt| begun.get(attempt.begun_by()) == Some(most));
        // Attempts that an agent makes up push out none that runs.
        let over = of_most().find(|attempt| attempt.ranks_here() == 0);
        over.or(of_most().next_back()).map(|attempt| attempt.record.serial)
    }

    /// Each holder's number of ranks, or of jobs, whichever is beyond its bound.
    fn shares(&self, are_ranks_full: bool) -> Shares<&str, OwnerKey<'_>> {
        let (mut jobs, mut shares) = (BTreeSet::new(), Shares::default());
        for attempt in self.attempts.values() {
            let is_new = jobs.insert((attempt.held_by(), &attempt.record.job));
            let more = if are_ranks_full { attempt.ranks.len() } else { usize::from(is_new) };
            shares.add(attempt.held_by(), more as u64);
        }
        if !are_ranks_full {
            return shares;
        }
        // A rank counts for the node that announced it.
        let held =
            self.holdings.nodes.iter().map(|(node, held)| (node.as_str(), held.ranks as u64));
        shares.with_nodes(held.collect())
    }
}

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;
