//! Everything a diagnosis is made of: the snapshots in figures, each worked out once.

use alloc::vec::Vec;

use super::account::{
    Account, Amount, Measure, Reading, account, home, median, median_amount, signed, unsigned,
};
use super::bursts::{Burst, Bursts, bursts};
use super::circumstances::Circumstances;
use super::generations::{Course, GENERATIONS_MIN, Generations};
use super::ground::Ground;
use super::inquiry::Inquiry;
use super::lines::{Line, growing, lines};
use super::outside::Outside;
use super::shape::{Requests, Shape, requests, shape};
use super::shared::shared;
use crate::capture::collective::{Comparison, GroupState, RankState, Verdict, compare};
use crate::detector::{Growth, Scope};
use crate::snapshot::{DeviceSnapshot, Frame, OutsideUse, RankSnapshot};
use crate::thrash::Churn;

/// Below this share of explained growth the class is unknown, in parts per million.
pub const EXPLAINED_PPM_MIN: u32 = 300_000;

/// Blocks born this many steps before the dated onset still belong to the growth.
const ONSET_SLACK_STEPS: u64 = 16;

/// A peer that grows by less than a tenth of the suspect counts as flat.
const FLAT_DIVISOR: i64 = 10;

/// A tensor that swells is one block, or few.
const SWELLING_BLOCKS_MAX: u64 = 64;

/// And it is nearly all of the growth, in parts per million.
const SWELLING_PPM_MIN: u32 = 700_000;

/// The snapshots in figures.
pub(super) struct Case<'a> {
    pub(super) ground: Ground,
    pub(super) growth: &'a Growth,
    pub(super) around: &'a Circumstances,
    /// The step of the snapshots.
    pub(super) step: u64,
    /// Step from which growth is counted.
    pub(super) since_step: u64,
    /// Birth step from which blocks belong to the growth.
    pub(super) born_since: u64,
    pub(super) account: &'a Account<'a>,
    pub(super) measure: Measure,
    pub(super) peers: usize,
    pub(super) peers_left_out: usize,
    /// Growth of the median peer.
    pub(super) peer_grown: Amount,
    /// Peers that are not flat, in order.
    pub(super) growing_peers: Vec<u32>,
    /// Growth that is to be explained: beyond the peers unless all ranks grow.
    pub(super) net: Amount,
    /// Of that, what only passes through, where something else is what grows: see
    /// [`Case::leave_out_passing`].
    pub(super) passing: i64,
    /// Bytes in private pools, on the same terms.
    pub(super) private: i64,
    /// Bytes that were taken back and are still used by other streams, beyond the peers.
    pub(super) deferred: i64,
    pub(super) shape: Option<Shape>,
    /// Bytes of private pools of the median peer.
    pub(super) peer_private: u64,
    pub(super) requests: Option<Requests>,
    pub(super) bursts: Option<Bursts<'a>>,
    pub(super) churn: Churn,
    /// Memory that other code than PyTorch's allocator holds, and of how many peers is known too.
    pub(super) outside: &'a [OutsideUse],
    /// Which lines took such memory; `None` where nothing was recorded that could be it.
    pub(super) elsewhere: Option<Outside<'a>>,
    pub(super) comparison: Comparison,
    /// The allocator's own counter at the step of the snapshots.
    pub(super) allocated: u64,
}

/// The lines that grew.
pub(super) struct Lines<'a> {
    /// Largest growth first.
    pub(super) all: Vec<Line<'a>>,
    /// The line that all the rest went through, where no line stands out.
    pub(super) shared: Option<Line<'a>>,
}

impl<'a> Lines<'a> {
    /// The line to name.
    pub(super) fn top(&self) -> Option<&Line<'a>> {
        self.shared.as_ref().or(self.all.first())
    }
}

/// The onset is dated from blocks of steps, so it may be some steps late.
fn onset_with_slack(growth: &Growth, step: u64) -> u64 {
    let slack = ONSET_SLACK_STEPS + step.saturating_sub(growth.onset_step) / 4;
    growth.onset_step.saturating_sub(slack)
}

/// How blocks are read for a growth.
pub(super) fn reading(ground: Ground, growth: &Growth, suspect: &RankSnapshot) -> Reading {
    Reading {
        since_step: onset_with_slack(growth, suspect.step),
        deferred: ground == Ground::Deferred,
    }
}

/// The accounts of the peers that are shown at the same steps.
pub(super) fn peer_accounts<'p>(
    suspect: &RankSnapshot,
    peers: &[&'p RankSnapshot],
    reading: Reading,
) -> Vec<Account<'p>> {
    let accounts = comparable(suspect, peers);
    accounts.map(|(peer, device)| account(peer, device, reading)).collect()
}

fn comparable<'p>(
    suspect: &RankSnapshot,
    peers: &[&'p RankSnapshot],
) -> impl Iterator<Item = (&'p RankSnapshot, &'p DeviceSnapshot)> {
    let at = (suspect.step, suspect.before_step);
    let is_at = move |peer: &&'p RankSnapshot| (peer.step, peer.before_step) == at;
    peers.iter().copied().filter(is_at).filter_map(|peer| Some((peer, home(peer)?)))
}

impl<'a> Case<'a> {
    pub(super) fn new(
        ground: Ground,
        inquiry: &Inquiry<'a>,
        device: &'a DeviceSnapshot,
        account: &'a Account<'a>,
        of_peers: &[Account<'_>],
    ) -> Self {
        let Inquiry { growth, suspect, peers, around } = *inquiry;
        let peer_grown = median_amount(of_peers.iter().map(|peer| peer.grown));
        let peer_private = median(of_peers.iter().map(|peer| peer.private).collect());
        let beyond_peers = growth.scope == Scope::OneRank;
        let less = |own: i64, peers: i64| {
            if beyond_peers { own.saturating_sub(peers) } else { own }
        };
        let shapes: Vec<Shape> =
            comparable(suspect, peers).filter_map(|(peer, device)| shape(peer, device)).collect();
        let pending: Vec<i64> =
            comparable(suspect, peers).map(|(_, device)| deferred(device)).collect();
        let measure = if ground == Ground::Count { Measure::Blocks } else { Measure::Bytes };
        let flat_max = account.grown.by(measure).max(0) / FLAT_DIVISOR;
        let is_growing = |peer: &&Account<'_>| peer.grown.by(measure) > flat_max;
        let mut growing_peers: Vec<u32> =
            of_peers.iter().filter(is_growing).map(|peer| peer.rank).collect();
        growing_peers.sort_unstable();
        let since_step = if account.has_before { suspect.before_step } else { growth.onset_step };
        Self {
            ground,
            growth,
            around,
            step: suspect.step,
            since_step,
            born_since: onset_with_slack(growth, suspect.step),
            measure,
            peers: of_peers.len(),
            peers_left_out: peers.len() - of_peers.len(),
            peer_grown,
            growing_peers,
            net: if beyond_peers { account.grown.less(peer_grown) } else { account.grown },
            passing: 0,
            private: less(account.private, peer_private),
            deferred: less(deferred(device), median(pending)),
            account,
            shape: shape(suspect, device),
            peer_private: unsigned(median(
                shapes.iter().map(|shape| signed(shape.private)).collect(),
            )),
            requests: requests(device),
            bursts: bursts(suspect, device),
            churn: Churn::of(&device.trace, suspect.step),
            outside: &suspect.outside,
            elsewhere: None,
            comparison: compared(suspect, peers),
            allocated: device.allocated,
        }
    }

    /// The lines that grew.
    pub(super) fn lines(&mut self, peers: &[Account<'_>]) -> Lines<'a> {
        let beyond_peers = self.growth.scope == Scope::OneRank;
        let mut growing = growing(self.account, peers, beyond_peers, self.measure);
        let mut all = lines(&growing);
        self.leave_out_passing(&mut all);
        if self.passing > 0 {
            let out: Vec<&Frame> =
                all.iter().filter(|line| self.passes(line)).map(|line| line.frame).collect();
            growing.retain(|each| !out.contains(&each.frame));
        }
        Lines { shared: shared(&growing, &all), all }
    }

    /// The lowest level of a step is without what the step itself needs, and so is the growth that
    /// the detector saw. The snapshots are of a moment. When lines that leak account for what was
    /// seen, what else is new and young (gradients, a batch, longer activations) is no part of it,
    /// however large it is.
    fn leave_out_passing(&mut self, all: &mut [Line<'_>]) {
        let sum = |sum: i64, line: &Line<'_>| sum.saturating_add(line.net_grown);
        let leaking = all.iter().filter(|line| self.leaks(line)).fold(0, sum);
        let seen = signed(self.seen());
        if seen == 0 || leaking.saturating_mul(2) < seen {
            return;
        }
        let passing = all.iter().filter(|line| self.passes(line)).fold(0, sum);
        self.passing = passing.min(self.net.by(self.measure).saturating_sub(leaking)).max(0);
        if self.passing > 0 {
            // The sort is stable: the others stay in their order.
            all.sort_by_key(|line| self.passes(line));
        }
    }

    /// Is all of a line young?
    fn passes(&self, line: &Line<'_>) -> bool {
        let span = self.step.saturating_sub(self.growth.onset_step);
        let young = self.step.saturating_sub((span / 4).max(2));
        let is_young = line.births.first().is_some_and(|first| first >= young);
        is_young && matches!(self.course(line), Course::Once | Course::Few | Course::Passing)
    }

    /// What is to be explained, in the measure of the growth.
    pub(super) fn net_grown(&self) -> i64 {
        self.net.by(self.measure).saturating_sub(self.passing)
    }

    /// About what the detector saw between the two steps.
    pub(super) fn seen(&self) -> u64 {
        if !self.ground.has_rate() {
            return 0;
        }
        self.growth.bytes_per_step.saturating_mul(self.counted_steps())
    }

    /// Steps over which growth is counted and was there.
    pub(super) fn counted_steps(&self) -> u64 {
        self.step.saturating_sub(self.since_step.max(self.growth.onset_step))
    }

    /// Peers that it was compared with: by their snapshots where those matter, else by what the
    /// detector saw of them.
    pub(super) fn compared(&self) -> usize {
        if self.ground.is_in_blocks() { self.peers } else { self.growth.peers as usize }
    }

    /// How often the level gave back most of what it had grown by: as the detector saw
    /// it. None where it saw none.
    pub(super) fn give_backs(&self) -> Option<u64> {
        let seen = u64::from(self.growth.give_backs);
        (seen > 0).then_some(seen)
    }

    /// Is that long enough to say anything?
    pub(super) fn is_counted(&self) -> bool {
        self.counted_steps() >= GENERATIONS_MIN
    }

    /// Did tensors grow by more than half of what the detector saw?
    pub(super) fn tensors_grew(&self) -> bool {
        self.ground != Ground::Deferred && unsigned(self.net.bytes) > self.seen() / 2
    }

    /// How the births of a line's blocks lie in time.
    pub(super) fn course(&self, line: &Line<'_>) -> Course {
        // Births count from the onset, also those of before the earlier step: they live still.
        match line.births.course(self.born_since, self.growth.onset_step, self.step) {
            Course::Passing if self.falls_behind(line) => Course::Backlog,
            course => course,
        }
    }

    /// Are more blocks of a line there than ever, of many steps, though the oldest went? A queue
    /// that is full, a window, has made its growth soon after the onset, and has made less than
    /// what was seen since.
    fn falls_behind(&self, line: &Line<'_>) -> bool {
        let (more, seen) = (unsigned(line.net.blocks), signed(self.seen()));
        line.births.count() >= 2 * GENERATIONS_MIN
            && more.saturating_mul(2) >= line.blocks
            && line.net_grown.saturating_mul(4) >= seen
            && self.net.by(self.measure).saturating_mul(4) >= seen.saturating_mul(3)
            && self.is_counted()
    }

    /// The same as a histogram.
    pub(super) fn generations(&self, line: &Line<'_>) -> Generations {
        let mut generations =
            line.births.generations(self.born_since, self.growth.onset_step, self.step);
        generations.course = self.course(line);
        generations
    }

    /// Blocks of many steps are alive, also of late ones, and as much late as early.
    pub(super) fn leaks(&self, line: &Line<'_>) -> bool {
        matches!(self.course(line), Course::Steady | Course::Backlog)
    }

    /// Whole free segments that no step needs: the others are only free between two steps.
    pub(super) fn idle_cache(&self) -> u64 {
        let need = self.around.step_need.map_or(0, |need| need.now);
        self.shape.as_ref().map_or(0, |shape| shape.cached.saturating_sub(need))
    }

    /// Is more free in whole segments that no step needs than in pieces?
    pub(super) fn is_cache(&self) -> bool {
        self.shape.as_ref().is_some_and(|shape| self.idle_cache() > shape.inactive)
    }

    /// Is it the few newest blocks of a line that grew, each made in place of an older one, while
    /// the steps need at most one such copy more than before? A tensor that is concatenated to
    /// looks like that: the old one and the new one are alive at once. Longer sequences do not:
    /// they cost more within the steps than between them.
    pub(super) fn swells(&self, line: &Line<'_>) -> bool {
        let Some(need) = self.around.step_need else { return false };
        let grown = signed(need.now).saturating_sub(signed(need.before));
        let span = self.step.saturating_sub(self.growth.onset_step);
        let is_new = |birth: u64| birth.saturating_add((span / 8).max(4)) >= self.step;
        line.blocks <= SWELLING_BLOCKS_MAX
            && line.births.first().is_some_and(is_new)
            && grown <= line.net.bytes.saturating_add(line.net.bytes / 8)
            && self.share_ppm(line.net_grown) >= SWELLING_PPM_MIN
    }

    /// Is each new block of a line on a stream of its own? Then they are workspaces of a library,
    /// which takes one for each stream that it is called on.
    pub(super) fn is_workspace(&self, line: &Line<'_>) -> bool {
        line.by_stream.len() as u64 >= GENERATIONS_MIN
            && line.by_stream.values().all(|&blocks| blocks == 1)
    }

    /// Share of the growth that is to be explained, in parts per million, at most all of it. When
    /// the stacks show far less than the detector saw, the rest is unexplained.
    pub(super) fn share_ppm(&self, part: i64) -> u32 {
        share_of(part, self.whole())
    }

    /// What all shares are shares of.
    pub(super) fn whole(&self) -> i64 {
        self.net_grown().max(signed(self.seen() / 2)).max(1)
    }

    /// The group of processes in which this rank, or others for it, wait.
    pub(super) fn desynchronised(&self) -> Option<&GroupState> {
        let rank = self.growth.rank;
        let concerns = |group: &&GroupState| {
            group.verdict == Verdict::Desynchronised
                && (group.behind.iter().any(|behind| behind.rank == rank)
                    || group.waiting.contains(&rank))
        };
        self.comparison.groups.iter().find(concerns)
    }

    /// How often many blocks of a line were freed at one moment, and the last of those, unless the
    /// next one is overdue: then it says nothing of what is alive.
    pub(super) fn burst(&self, line: &Line<'_>) -> Option<(u64, &Burst)> {
        let of_line = self.bursts.as_ref()?.of(line.frame);
        of_line.filter(|(_, burst)| !burst.is_overdue(self.step))
    }

    /// Is anything known of the collectives of this rank?
    pub(super) fn knows_collectives(&self) -> bool {
        self.comparison.groups.iter().any(|group| group.ranks.contains(&self.growth.rank))
    }
}

/// A part of a whole in parts per million, from nothing to all of it.
pub(super) fn share_of(part: i64, whole: i64) -> u32 {
    let share = i128::from(part.max(0)) * 1_000_000 / i128::from(whole.max(1));
    u32::try_from(share.min(1_000_000)).unwrap_or(1_000_000)
}

/// Bytes that were taken back and are still used by other streams.
fn deferred(device: &DeviceSnapshot) -> i64 {
    let pending = device.blocks.iter().filter(|block| block.pending);
    pending.fold(0, |sum: i64, block| sum.saturating_add(signed(block.size)))
}

/// How the collectives of the suspect and its peers stand, told from their own states.
fn compared(suspect: &RankSnapshot, peers: &[&RankSnapshot]) -> Comparison {
    let all = core::iter::once(&suspect).chain(peers);
    let known = all.filter(|snapshot| snapshot.collectives.look_wall_ns != 0);
    let states: Vec<RankState<'_>> = known
        .map(|snapshot| RankState {
            rank: snapshot.identity.rank,
            dead: false,
            state: Ok(&snapshot.collectives),
        })
        .collect();
    compare(&states)
}
