//! Everything a diagnosis is made of: the snapshots in figures, each worked out once.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::account::{
    Account, Amount, Measure, Reading, account, median, median_amount, primary_device, signed,
    unsigned,
};
use super::activities::{Activities, Occasions};
use super::births::{AgeProfile, Generations};
use super::bursts::{Burst, Bursts, bursts};
use super::churn::Churn;
use super::context::Context;
use super::inquiry::Inquiry;
use super::lines::{Line, growing, lines};
use super::outside::Outside;
use super::past::Past;
use super::segments::{Requests, Shape, requests, shape};
use super::shared::shared;
use super::workers::WorkerEvidence;
use crate::capture::collective::{Comparison, GroupState, RankState, Verdict, compare};
use crate::detector::{Growth, Layer, Scope, StepNeed};
use crate::diagnosis::constants::{
    CONFIRMED_PPM, EXPLAINED_PPM_MIN, GENERATIONS_MIN, ONSET_SLACK_STEPS,
};
use crate::diagnosis::evidence::past::replay::Replay;
use crate::diagnosis::words::plural;
use crate::snapshot::frames::telling_frame;
use crate::snapshot::{DeviceSnapshot, Frame, OutsideUse, RankSnapshot, allocation_step};

/// The snapshots in figures.
pub(crate) struct Case<'a> {
    pub(crate) layer: Layer,
    pub(crate) growth: &'a Growth,
    pub(crate) context: &'a Context,
    /// The step of the snapshots.
    pub(crate) step: u64,
    /// Step from which growth is counted.
    pub(crate) since_step: u64,
    /// Birth step from which blocks belong to the growth.
    pub(crate) born_since: u64,
    pub(crate) account: &'a Account<'a>,
    pub(crate) measure: Measure,
    pub(crate) peers: usize,
    /// Peers that are shown at other steps.
    pub(crate) peers_left_out: usize,
    /// Growth of the median peer.
    pub(crate) peer_grown: Amount,
    /// Peers that are not flat, in order.
    pub(crate) growing_peers: Vec<u32>,
    /// Growth that is to be explained: beyond the peers unless all ranks grow.
    pub(crate) net: Amount,
    /// Of that, what only passes through, where something else is what grows: see
    /// [`Case::leave_out_passing`].
    pub(crate) passing: i64,
    /// Bytes in private pools, on the same terms.
    pub(crate) private: i64,
    /// Bytes that were taken back and are still used by other streams, beyond the peers.
    pub(crate) deferred: i64,
    pub(crate) shape: Option<Shape>,
    /// Bytes of private pools of the median peer.
    pub(crate) peer_private: u64,
    pub(crate) requests: Option<Requests>,
    /// The line of [`Requests::rising_stack`].
    rising_frame: Option<&'a Frame>,
    pub(crate) bursts: Option<Bursts>,
    pub(crate) churn: Churn,
    /// The stack that gave back most segments.
    pub(crate) emptied_by: Vec<&'a Frame>,
    /// Memory that code other than PyTorch's allocator holds.
    pub(crate) outside: &'a [OutsideUse],
    /// Which lines took such memory; `None` where nothing was recorded that could be it.
    pub(crate) outside_lines: Option<Outside<'a>>,
    /// Where the workers were busy; `None` where it is not about them, or they were not sampled.
    pub(crate) workers: Option<WorkerEvidence<'a>>,
    pub(crate) comparison: Comparison,
    /// What the suspect's whole trace shows, where the snapshot has no trace any more.
    pub(crate) past: Option<&'a Past>,
    /// The allocator's own counter at the step of the snapshots.
    pub(crate) allocated: u64,
    /// Saves, loads and evaluations of the suspect.
    pub(crate) activities: Activities,
}

/// The lines that grew.
pub(crate) struct Lines<'a> {
    /// Largest growth first.
    pub(crate) all: Vec<Line<'a>>,
    /// The line that all the rest went through, where no line stands out.
    pub(crate) shared: Option<Line<'a>>,
}

impl<'a> Lines<'a> {
    /// The line to name.
    pub(crate) fn top(&self) -> Option<&Line<'a>> {
        self.shared.as_ref().or(self.all.first())
    }
}

/// The onset is dated from blocks of steps, so it may be some steps late.
fn onset_with_slack(growth: &Growth, step: u64) -> u64 {
    let slack = ONSET_SLACK_STEPS + step.saturating_sub(growth.onset_step) / 4;
    growth.onset_step.saturating_sub(slack)
}

/// How blocks are read for a growth.
pub(crate) fn reading(layer: Layer, growth: &Growth, suspect: &RankSnapshot) -> Reading {
    Reading {
        since_step: onset_with_slack(growth, suspect.step),
        deferred: layer == Layer::Deferred,
        is_after_return: growth.give_backs > 0 && growth.onset_step > suspect.before_step,
    }
}

/// The accounts of the peers that are shown at the same steps.
pub(crate) fn peer_accounts<'p>(
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
    let at = steps_of(suspect);
    let is_at = move |peer: &&'p RankSnapshot| steps_of(peer) == at;
    peers.iter().copied().filter(is_at).filter_map(|peer| Some((peer, primary_device(peer)?)))
}

/// The step of a snapshot, and the earlier one that it is compared with.
fn steps_of(snapshot: &RankSnapshot) -> (u64, u64) {
    (snapshot.step, snapshot.before_step)
}

impl<'a> Case<'a> {
    pub(crate) fn new(
        layer: Layer,
        inquiry: &Inquiry<'a>,
        device: &'a DeviceSnapshot,
        account: &'a Account<'a>,
        of_peers: &[Account<'_>],
    ) -> Self {
        let Inquiry { growth, suspect, peers, context, past } = *inquiry;
        let peer_grown = median_amount(of_peers.iter().map(|peer| peer.grown));
        let peer_private = median(of_peers.iter().map(|peer| peer.private).collect());
        let beyond_peers = growth.scope == Scope::OneRank;
        let less = |own: i64, peers: i64| {
            if beyond_peers { own.saturating_sub(peers) } else { own }
        };
        let reserved = comparable(suspect, peers).filter_map(|(peer, device)| shape(peer, device));
        let reserved = reserved.map(|shape| shape.private).collect();
        let pending: Vec<i64> =
            comparable(suspect, peers).map(|(_, device)| deferred(device)).collect();
        let measure = if layer == Layer::Blocks { Measure::Blocks } else { Measure::Bytes };
        // A peer that grows by less than a tenth of it is flat.
        let flat_max = account.grown.by(measure).max(0) / 10;
        let is_growing = |peer: &&Account<'_>| peer.grown.by(measure) > flat_max;
        let mut growing_peers: Vec<u32> =
            of_peers.iter().filter(is_growing).map(|peer| peer.rank).collect();
        growing_peers.sort_unstable();
        let churn = past.map_or_else(|| Churn::of(&device.trace, suspect.step), |past| past.churn);
        let requests = past.map_or_else(|| requests(device), |past| past.requests);
        let rising_stack = requests.map_or(0, |requests| requests.rising_stack);
        let rising_stack: Vec<&Frame> = suspect.frames_of(rising_stack).collect();
        let since_step = if account.has_before { suspect.before_step } else { growth.onset_step };
        Self {
            layer,
            growth,
            context,
            step: suspect.step,
            since_step,
            born_since: onset_with_slack(growth, suspect.step),
            measure,
            peers: of_peers.len(),
            peers_left_out: peers.iter().filter(|peer| steps_of(peer) != steps_of(suspect)).count(),
            peer_grown,
            growing_peers,
            net: if beyond_peers { account.grown.less(peer_grown) } else { account.grown },
            passing: 0,
            private: less(account.private, peer_private),
            deferred: less(deferred(device), median(pending)),
            account,
            shape: shape(suspect, device),
            peer_private: median::<u64>(reserved),
            requests,
            rising_frame: telling_frame(&rising_stack),
            bursts: past.map_or_else(
                || bursts(suspect, device, &Replay::of(&device.trace)),
                |past| past.bursts.clone(),
            ),
            emptied_by: suspect.frames_of(churn.returned_by).collect(),
            churn,
            past,
            outside: &suspect.outside,
            outside_lines: None,
            workers: WorkerEvidence::of(suspect).filter(|_| layer == Layer::Workers),
            comparison: compared(suspect, peers),
            allocated: device.allocated,
            activities: Activities::of(suspect),
        }
    }

    /// The lines that grew.
    pub(crate) fn lines(&mut self, peers: &[Account<'_>]) -> Lines<'a> {
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
        let stays = |line: &&Line<'_>| self.leaks(line) && !self.passes(line);
        let leaking = all.iter().filter(stays).fold(0, sum);
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
        is_young && !matches!(self.age_profile(line), AgeProfile::Steady | AgeProfile::Backlog)
    }

    /// What is to be explained, in the measure of the growth.
    pub(crate) fn net_grown(&self) -> i64 {
        self.net.by(self.measure).saturating_sub(self.passing)
    }

    /// About what the detector saw between the two steps.
    pub(crate) fn seen(&self) -> u64 {
        if !self.layer.has_rate() {
            return 0;
        }
        match self.is_level() {
            true => self.growth.grown_bytes,
            false => self.growth.bytes_per_step.saturating_mul(self.counted_steps()),
        }
    }

    /// Is it a level in a file that is too high, and has no rate?
    pub(crate) fn is_level(&self) -> bool {
        self.context.trace.is_some() && self.growth.bytes_per_step == 0
    }

    /// Steps over which growth is counted and was there.
    pub(crate) fn counted_steps(&self) -> u64 {
        match &self.context.trace {
            // A trace may end within a step, and blocks of that one count, too.
            Some(trace) => trace.steps,
            None => self.step.saturating_sub(self.since_step.max(self.growth.onset_step)),
        }
    }

    /// Steps that blocks older than the trace may be from; 0 where births are known.
    pub(crate) fn older_steps(&self) -> u64 {
        self.context.trace.as_ref().map_or(0, |trace| trace.older_steps)
    }

    /// Bytes that stay, with what is older than the trace; of reserved memory all that it grew by.
    pub(crate) fn kept_bytes(&self, grown: u64) -> u64 {
        if self.layer == Layer::Reserved {
            return self.growth.grown_bytes;
        }
        self.context.trace.as_ref().map_or(grown, |trace| trace.held_bytes.max(grown))
    }

    /// Are the steps guessed?
    pub(crate) fn guesses_steps(&self) -> bool {
        self.past.is_some_and(|past| past.ends > 0 && !past.source.is_known())
    }

    /// Would growth of tensors be seen? A file may have no history, or too few steps.
    pub(crate) fn shows_growth(&self) -> bool {
        self.past.is_none_or(|past| past.source.is_known() && past.ends >= GENERATIONS_MIN)
    }

    /// `from step 120 to step 376`; steps of a trace alone have no numbers.
    pub(crate) fn span(&self) -> String {
        match self.context.trace {
            Some(_) => format!("over {}", plural(self.counted_steps(), "step")),
            None => format!("from step {} to step {}", self.since_step, self.step),
        }
    }

    /// Peers that it was compared with: by their snapshots where those matter, else by what the
    /// detector saw of them.
    pub(crate) fn compared(&self) -> usize {
        if self.layer.is_in_blocks() { self.peers } else { self.growth.peers as usize }
    }

    /// How often the level gave back most of what it had grown by: as the detector saw
    /// it. None where it saw none.
    pub(crate) fn give_backs(&self) -> Option<u64> {
        let seen = u64::from(self.growth.give_backs);
        (seen > 0).then_some(seen)
    }

    /// Is that long enough to say anything?
    pub(crate) fn is_counted(&self) -> bool {
        self.context.trace.is_some() || self.counted_steps() >= GENERATIONS_MIN
    }

    /// Did tensors grow by more than half of what the detector saw?
    pub(crate) fn tensors_grew(&self) -> bool {
        self.layer != Layer::Deferred && unsigned(self.net.bytes) > self.seen() / 2
    }

    /// ` at each save`, where a line's blocks were allocated at each save.
    pub(crate) fn at_each(&self, line: &Line<'_>) -> String {
        let born = line.births.since(self.born_since).map(|(step, _)| step);
        self.activities.at_each(&Occasions::Each(born.collect()))
    }

    /// How the births of a line's blocks lie in time.
    pub(crate) fn age_profile(&self, line: &Line<'_>) -> AgeProfile {
        // Births count from the onset, also those of before the earlier step: they live still.
        match line.births.age_profile(self.born_since, self.growth.onset_step, self.step) {
            AgeProfile::Steady if self.outgrown(line).is_none() => AgeProfile::Steady,
            AgeProfile::Passing if self.falls_behind(line) => AgeProfile::Backlog,
            _ if self.is_replaced(line) => AgeProfile::Replaced,
            course => course,
        }
    }

    /// The step in which a line began to keep memory, where its blocks show it: the detector has
    /// dated it from levels or cohorts, to within some steps.
    pub(crate) fn onset_step(&self, line: &Line<'_>) -> Option<u64> {
        let Growth { onset_step: dated, detected_step, give_backs, .. } = *self.growth;
        let is_known = self.context.trace.is_none() && self.layer.is_in_blocks() && give_backs == 0;
        let keeps = self.age_profile(line) == AgeProfile::Steady;
        let slack = dated.saturating_sub(self.born_since);
        // A block from before the slack shows that the growth is older than it was dated.
        let (first, _) = line.births.since(self.born_since.saturating_sub(slack)).next()?;
        let step = allocation_step(first);
        let is_near = step.abs_diff(dated) <= slack && step <= detected_step;
        (is_known && keeps && is_near).then_some(step)
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
    pub(crate) fn generations(&self, line: &Line<'_>) -> Generations {
        line.births.generations(self.born_since, self.age_profile(line))
    }

    /// Does a line keep more and more: in blocks of many steps, as many late as early, or in a
    /// block that a larger one replaces?
    pub(crate) fn leaks(&self, line: &Line<'_>) -> bool {
        let trace = self.context.trace.as_ref();
        trace.is_some_and(|trace| trace.survivors.contains(line.frame))
            || matches!(
                self.age_profile(line),
                AgeProfile::Steady | AgeProfile::Backlog | AgeProfile::Replaced
            )
    }

    /// Whole free segments that no step needs: the others are only free between two steps.
    pub(crate) fn idle_cache(&self) -> u64 {
        let need = self.context.step_need.map_or(0, |need| need.now);
        self.shape.as_ref().map_or(0, |shape| shape.cached.saturating_sub(need))
    }

    /// Is more free in whole segments that no step needs than is inactive split?
    pub(crate) fn is_cache(&self) -> bool {
        self.shape.as_ref().is_some_and(|shape| self.idle_cache() > shape.inactive)
    }

    /// Does the memory that a line keeps grow because a larger block replaces its block again and
    /// again, as `torch.cat` of a tensor and a new piece does? Growth of tensors, of peaks and of
    /// reserved memory alike. The requests of the trace tell, or the blocks: the few of the line
    /// are new and not twice as many as before, and the steps need at most one copy more, as the
    /// old block and the new one are alive at once. Longer sequences cost more within the steps.
    fn is_replaced(&self, line: &Line<'_>) -> bool {
        let is_possible = matches!(self.layer, Layer::Allocated | Layer::Reserved | Layer::Peak)
            && self.give_backs().is_none()
            && line.net.bytes > 0
            && !line.has_larger_blocks();
        let span = self.step.saturating_sub(self.growth.onset_step);
        let is_new = |birth: u64| birth.saturating_add((span / 8).max(4)) >= self.step;
        let are_few_more = line.net.blocks.saturating_mul(2) < signed(line.blocks);
        let copies = |need: StepNeed| {
            let more = signed(need.now).saturating_sub(signed(need.before));
            more <= line.net.bytes.saturating_add(line.net.bytes / 8)
        };
        is_possible
            && (self.outgrown(line).is_some()
                || line.blocks <= 64
                    && (are_few_more || line.blocks == 1)
                    && line.births.first().is_some_and(is_new)
                    && self.context.step_need.is_some_and(copies)
                    && self.share_ppm(line.net_grown) >= EXPLAINED_PPM_MIN
                    && share_of(line.net_grown, self.net.by(self.measure)) >= CONFIRMED_PPM)
    }

    /// The requests, where a line leaves free memory behind because it asks for a larger block each
    /// time: the next one fits into none of the earlier ones.
    pub(crate) fn outgrown(&self, line: &Line<'_>) -> Option<Requests> {
        let is_left = self.layer == Layer::Reserved && line.net.bytes > 0;
        self.requests.filter(|_| is_left && self.rising_frame == Some(line.frame))
    }

    /// Is each new block of a line on a stream of its own? Then they are workspaces of a library,
    /// which takes one for each stream that it is called on.
    pub(crate) fn is_workspace(&self, line: &Line<'_>) -> bool {
        line.by_stream.len() as u64 >= GENERATIONS_MIN
            && line.by_stream.values().all(|new| new.blocks == 1)
    }

    /// Share of the growth that is to be explained, in parts per million, at most all of it. When
    /// the stacks show far less than the detector saw, the rest is unexplained.
    pub(crate) fn share_ppm(&self, part: i64) -> u32 {
        share_of(part, self.whole())
    }

    /// What all shares are shares of.
    pub(crate) fn whole(&self) -> i64 {
        self.net_grown().max(signed(self.seen() / 2)).max(1)
    }

    /// The group of processes in which this rank, or others for it, wait.
    pub(crate) fn desynchronised(&self) -> Option<&GroupState> {
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
    pub(crate) fn burst(&self, line: &Line<'_>) -> Option<(u64, &Burst)> {
        let of_line = self.bursts.as_ref()?.of(line.frame);
        of_line.filter(|(_, burst)| !burst.is_overdue(self.step))
    }

    /// Is anything known of the collectives of this rank?
    pub(crate) fn knows_collectives(&self) -> bool {
        self.comparison.groups.iter().any(|group| group.ranks.contains(&self.growth.rank))
    }
}

/// What counts of these lines together.
pub(crate) fn net_grown<'l>(lines: impl IntoIterator<Item = &'l Line<'l>>) -> i64 {
    lines.into_iter().fold(0, |sum: i64, line| sum.saturating_add(line.net_grown))
}

/// A part of a whole in parts per million, from nothing to all of it.
pub(crate) fn share_of(part: i64, whole: i64) -> u32 {
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
