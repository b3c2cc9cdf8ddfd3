//! What looks wrong in the states of the ranks, before a judge has seen it: which rank, which
//! layer, how much and over how many steps. A finder stands for the detector, which did not watch.
//!
//! Levels that grow from step to step are found by the detector's own test
//! ([`trend_of_peaks`], [`trend_of_idle`]), memory that stays by [`survivors`].

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::aligned::Aligned;
use super::beyond::PeakLines;
use super::failures;
use super::survivors::{Survivors, is_of_a_step, survivors};
use crate::allocator_settings::is_expandable;
use crate::detector::{
    Growth, GrowthKey, Layer, SPREAD_NEWS_DIVISOR, Scope, StepNeed, StepTrend, block_peak,
    trace_points_min, trend_of_floors, trend_of_idle, trend_of_peaks,
};
use crate::diagnosis::answer::diagnosis::Diagnosis;
use crate::diagnosis::constants::{EXCESS_BYTES_MIN, PENDING_BYTES_MIN};
use crate::diagnosis::evidence::account::median;
use crate::diagnosis::evidence::context::{Context, LevelLine, Peaks, TraceGrowth};
use crate::diagnosis::evidence::inquiry::Inquiry;
use crate::diagnosis::evidence::past::whole;
use crate::diagnosis::judges::remedy::Cause;
use crate::diagnosis::words::{bytes, plural};
use crate::roles::are_most;
use crate::snapshot::failed_request::FailedRequest;
use crate::snapshot::frames::telling_frame;
use crate::snapshot::{Frame, RankSnapshot, StackUse};

/// Whole steps that say something about what each of them needs.
const STEPS_COMPARED_MIN: usize = 3;

/// Something to ask the judges about.
pub(super) struct Candidate {
    /// Which of the ranks has it most.
    pub(super) at: usize,
    pub(super) growth: Growth,
    /// The rank and those that have it alike.
    pub(super) ranks: Vec<u32>,
    pub(super) context: Context,
    /// The request that failed.
    pub(super) request: Option<FailedRequest>,
}

pub(super) type Finder = fn(&[Aligned<'_>]) -> Option<Candidate>;

/// What is looked for, in this order: growth of tensors explains that of peaks, and that of peaks
/// what the allocator does.
pub(super) const FINDERS: [Finder; 12] = [
    staying,
    replaced,
    failures::refused,
    failures::ended,
    |all| growing(all, Layer::Peak),
    thrashing,
    pending,
    |all| growing(all, Layer::Reserved),
    split,
    |all| uneven(all, false, [|one| Some(one.device.state.allocated); 2]),
    |all| uneven(all, true, step_peaks(all)),
    idle,
];

/// Blocks of every age that stay.
fn staying(all: &[Aligned<'_>]) -> Option<Candidate> {
    let found: Vec<Option<Survivors>> =
        all.iter().map(|one| survivors(one).filter(Survivors::matters)).collect();
    let rates: Vec<u64> =
        found.iter().map(|found| found.as_ref().map_or(0, Survivors::rate)).collect();
    let (at, ranks, scope) = steepest(all, &rates, all.len())?;
    let (one, stays) = (all.get(at)?, found.get(at)?.as_ref()?);
    let frame = |&stack: &u32| telling_frame(&one.stack(stack)).cloned();
    let lines: Vec<Frame> = stays.stacks.iter().filter_map(frame).collect();
    let trace = TraceGrowth {
        steps: stays.steps,
        older_steps: stays.older_steps,
        held_bytes: stays.held,
        evidence: about_staying(one, stays, &lines),
        against: doubts(
            one,
            stays.generations < 12,
            "a cache that still fills, or a list that is \
             emptied later, looks the same",
        ),
        survivors: lines,
    };
    let mut candidate = Candidate::new(all, at, (Layer::Allocated, scope), ranks, trace);
    let growth = &mut candidate.growth;
    growth.onset_step = stays.onset_step.max(one.before_step);
    growth.last_step = growth.onset_step + stays.steps;
    (growth.bytes_per_step, growth.grown_bytes) = (stays.rate(), stays.grown);
    Some(candidate)
}

/// A tensor that larger ones replace: no block of it stays, and the per-step minima rise. Whether
/// it is one the judges know.
fn replaced(all: &[Aligned<'_>]) -> Option<Candidate> {
    let candidate = growing(all, Layer::Allocated)?;
    (candidate.diagnosed(all)?.remedy.cause == Cause::GrowingTensor).then_some(candidate)
}

fn about_staying(one: &Aligned<'_>, stays: &Survivors, lines: &[Frame]) -> Vec<String> {
    let mut said = Vec::new();
    if one.earlier == 0 && stays.older_steps > 0 {
        let held = bytes(stays.held);
        let lines: BTreeSet<_> = lines.iter().map(|line| (&line.file, line.line)).collect();
        let on = if lines.len() > 1 { format!(" on {} lines", lines.len()) } else { String::new() };
        said.push(format!("with blocks older than the trace, what stays{on} holds {held}"));
    }
    if let Some(minima) = stays.minima.filter(|minima| minima.risen > 0) {
        let level = if one.earlier == 0 { "the per-step minimum" } else { "allocated memory" };
        let (risen, steps) = (bytes(minima.risen.unsigned_abs()), plural(minima.steps, "step"));
        said.push(format!("{level} rose by {risen} over {steps}"));
    }
    said
}

/// Steps that need more than the ones before, or reserved memory that grows beyond what they need.
fn growing(all: &[Aligned<'_>], layer: Layer) -> Option<Candidate> {
    let found: Vec<Option<StepTrend>> = all.iter().map(|one| trend(one, layer)).collect();
    let rate = |found: &Option<StepTrend>| found.map_or(0, |found| found.bytes_per_step);
    let rates: Vec<u64> = found.iter().map(rate).collect();
    let judged: Vec<&Aligned<'_>> =
        all.iter().filter(|one| whole_peaks(one).len() >= trace_points_min(layer)).collect();
    let (at, ranks, scope) = steepest(all, &rates, judged.len())?;
    let (one, trend) = (all.get(at)?, (*found.get(at)?)?);
    let is_peak = layer == Layer::Peak;
    let of_steps = one.past().whole_peaks.as_ref().filter(|_| is_peak);
    let mut level = of_steps.map_or(LevelLine::default(), |(first, last)| {
        peak_lines(one, &last.uses).grown_since(peak_lines(one, &first.uses))
    });
    level.said += &beyond_peak(one).map_or(String::new(), |said| format!("; {said}"));
    level.evidence.extend(in_segments(one, layer));
    let what = "batches that are sorted by length, or a curriculum, look the same";
    let trace = TraceGrowth {
        steps: trend.steps,
        against: doubts(one, is_peak, what),
        ..TraceGrowth::default()
    };
    let mut candidate = Candidate::new(all, at, (layer, scope), ranks, trace);
    let growth = &mut candidate.growth;
    growth.onset_step = one.step.saturating_sub(trend.steps);
    growth.peers = u32::try_from(judged.len().saturating_sub(1)).unwrap_or(u32::MAX);
    (growth.bytes_per_step, growth.grown_bytes) = (trend.bytes_per_step, trend.grown_bytes);
    candidate.context.level = level;
    candidate.context.in_peaks = Some(is_peak);
    candidate.context.step_need = step_need(one).filter(|_| layer != Layer::Reserved);
    candidate.context.peaks = (judged.len() > 1).then(|| {
        let highest = |one: &Aligned<'_>| whole_peaks(one).iter().copied().max();
        let others = judged.iter().filter(|other| other.rank != one.rank);
        let peers = median(others.filter_map(|other| highest(other)).collect());
        Peaks { own: highest(one).unwrap_or(0), peers }
    });
    Some(candidate)
}

/// What the first and the last whole step need beyond their floors, since the moment before.
fn step_need(one: &Aligned<'_>) -> Option<StepNeed> {
    let (floors, peaks) = one.levels();
    let need = |at: usize| Some(peaks.get(at)?.saturating_sub(*floors.get(at)?));
    Some(StepNeed { before: need(0)?, now: need(floors.len().checked_sub(2)?)? })
}

/// The peaks of the whole steps of a trace.
pub(super) fn whole_peaks<'a>(one: &Aligned<'a>) -> &'a [u64] {
    whole(&one.past().peaks)
}

pub(super) fn trend(one: &Aligned<'_>, layer: Layer) -> Option<StepTrend> {
    let past = one.past();
    let found = match layer {
        // Blocks are compared with the moment before, whenever the growth began.
        Layer::Allocated => trend_of_floors(whole(&past.floors)).map(|found| StepTrend {
            steps: one.steps(),
            grown_bytes: found.bytes_per_step.saturating_mul(one.steps()),
            ..found
        }),
        Layer::Peak => trend_of_peaks(whole(&past.peaks), whole(&past.floors)),
        _ => trend_of_idle(whole(&past.reserved), whole(&past.peaks)),
    };
    found.filter(|found| is_of_a_step(one, found.bytes_per_step))
}

/// What each line held at a peak.
fn peak_lines(one: &Aligned<'_>, uses: &[StackUse]) -> PeakLines {
    PeakLines::by_stack(|stack| one.stack(stack), uses.iter().map(|of| (of.stack, of.bytes)))
}

/// How much more is reserved than the steps need, where that is much.
fn beyond_peak(one: &Aligned<'_>) -> Option<String> {
    let peak = one.past().peak.as_ref()?.bytes;
    let reserved = one.device.state.reserved;
    let beyond = reserved.saturating_sub(peak);
    (beyond >= EXCESS_BYTES_MIN && beyond >= reserved / 4)
        .then(|| format!("{} are reserved over a peak of {}", bytes(reserved), bytes(peak)))
}

/// Where that memory is, and whether it grows with the peaks.
fn in_segments(one: &Aligned<'_>, layer: Layer) -> Vec<String> {
    let shape = one.device.shape.as_ref().filter(|_| beyond_peak(one).is_some());
    let grows = trend(one, Layer::Reserved).filter(|_| layer == Layer::Peak);
    let divided = shape.filter(|_| layer == Layer::Peak).map(|shape| {
        format!(
            "of {} reserved, {} are inactive split and {} are whole free segments",
            bytes(shape.reserved),
            bytes(shape.inactive),
            bytes(shape.cached),
        )
    });
    let rate = grows.map(|found| {
        let rate = bytes(found.bytes_per_step);
        format!("reserved memory beyond the peaks grows by {rate} each step")
    });
    divided.into_iter().chain(rate).collect()
}

/// Segments that are given back and taken again in most steps.
fn thrashing(all: &[Aligned<'_>]) -> Option<Candidate> {
    let is_thrashing = |one: &Aligned<'_>| one.past().churn.is_thrash();
    let at = all.iter().position(is_thrashing)?;
    let ranks = all.iter().filter(|one| is_thrashing(one)).map(|one| one.rank).collect();
    let churn = &all.get(at)?.past().churn;
    let trace = TraceGrowth { steps: churn.steps, ..TraceGrowth::default() };
    let mut candidate = Candidate::new(all, at, (Layer::Churn, Scope::OneRank), ranks, trace);
    candidate.growth.grown_bytes = churn.thrashing_steps;
    Some(candidate)
}

/// Blocks that were given back and that other streams still use.
fn pending(all: &[Aligned<'_>]) -> Option<Candidate> {
    let pending: Vec<u64> = all.iter().map(|one| one.device.pending()).collect();
    let most = pending.iter().copied().max()?;
    let at = pending.iter().position(|&bytes| bytes == most)?;
    let one = all.get(at)?;
    if most < PENDING_BYTES_MIN || most.saturating_mul(10) < one.device.state.allocated {
        return None;
    }
    Some(Candidate::standing(all, at, Layer::Deferred, most, alloc::vec![one.rank]))
}

/// Much of what is held is inactive split, even at the peak.
fn split(all: &[Aligned<'_>]) -> Option<Candidate> {
    let stuck = |one: &Aligned<'_>| {
        // Without a trace the end is all there is, and says little of the peak.
        let peak = one.past().peak.as_ref().filter(|_| one.past().ends > 0)?;
        let beyond = one.device.state.reserved.saturating_sub(peak.bytes);
        Some(beyond.min(one.device.shape.as_ref()?.inactive))
    };
    let found = all.iter().enumerate().filter_map(|(at, one)| Some((at, stuck(one)?)));
    let (at, split) = found.max_by_key(|&(_, split)| split)?;
    let one = all.get(at)?;
    let is_much = split.saturating_mul(10) >= one.device.state.reserved.saturating_mul(3);
    (split >= EXCESS_BYTES_MIN && is_much)
        .then(|| Candidate::standing(all, at, Layer::Reserved, split, alloc::vec![one.rank]))
}

/// Reserved memory of one rank that its steps do not need, far beyond that of its peers, where
/// nothing recorded the segments: with segments, [`split`] tells inactive splits from a cache.
fn idle(all: &[Aligned<'_>]) -> Option<Candidate> {
    let beyond_peak = |one: &Aligned<'_>| {
        let peak = one.past().peak.as_ref().filter(|_| one.past().ends > 0)?;
        Some(one.device.state.reserved.saturating_sub(peak.bytes))
    };
    let idle: Vec<u64> = all.iter().map(beyond_peak).collect::<Option<_>>()?;
    let most = idle.iter().copied().max()?;
    let at = idle.iter().position(|&bytes| bytes == most)?;
    let one = all.get(at).filter(|one| all.len() >= 3 && one.device.shape.is_none())?;
    let typical = median(idle);
    let beyond = most.saturating_sub(typical);
    let is_much = beyond.saturating_mul(10) >= one.device.state.reserved.saturating_mul(3);
    if beyond < EXCESS_BYTES_MIN || !is_much {
        return None;
    }
    let ranks = alloc::vec![one.rank];
    let mut candidate = Candidate::standing(all, at, Layer::Reserved, most, ranks);
    let trace = candidate.context.trace.get_or_insert_default();
    let typical = bytes(typical);
    trace.evidence.push(format!("{typical} are reserved beyond the peak on the median rank"));
    let doubt = "segments that stay from an earlier phase (an evaluation, a checkpoint) look the \
                 same where no segments are recorded";
    trace.against.push(doubt.to_string());
    Some(candidate)
}

/// A level of a rank; none where its file does not tell.
type LevelOf = fn(&Aligned<'_>) -> Option<u64>;

/// What the steps surely need, and how much it is said to be. The smallest of the whole steps is
/// sure: batches differ, and the largest of some may come to any rank. The amount is that of blocks
/// of steps, as in a running job, where the file of each rank has a block.
fn step_peaks(all: &[Aligned<'_>]) -> [LevelOf; 2] {
    let of_blocks: LevelOf = |one| block_peak(whole_peaks(one));
    let have_blocks = all.iter().all(|one| of_blocks(one).is_some());
    [lowest_peak, if have_blocks { of_blocks } else { lowest_peak }]
}

fn lowest_peak(one: &Aligned<'_>) -> Option<u64> {
    let peaks = whole_peaks(one);
    peaks.iter().copied().min().filter(|_| peaks.len() >= STEPS_COMPARED_MIN)
}

/// From how many bytes on the excess of one rank matters: on a small device as in a running job.
fn spread_bytes_min(one: &Aligned<'_>) -> u64 {
    match one.device.state.device_bytes {
        0 => EXCESS_BYTES_MIN,
        size => EXCESS_BYTES_MIN.min(size / SPREAD_NEWS_DIVISOR),
    }
}

/// One rank, or few, whose level (that of the peaks, where `in_peaks`) is much higher than that of
/// the others, and so is the level that says how much. With fewer than three ranks it is not known
/// which of them is the odd one.
fn uneven(all: &[Aligned<'_>], in_peaks: bool, [level, amount]: [LevelOf; 2]) -> Option<Candidate> {
    // The levels, the usual one, and how far each is beyond it, where that is much.
    let beyond = |level: LevelOf| {
        let levels = all.iter().map(level).collect::<Option<Vec<u64>>>()?;
        let typical = median(levels.clone());
        // Stages of a pipeline differ by half and half; that is how they were cut.
        let excess = |(one, level): (&Aligned<'_>, &u64)| {
            let beyond = level.saturating_sub(typical);
            let is_much = beyond >= spread_bytes_min(one) && beyond >= typical / 4;
            is_much.then_some(beyond)
        };
        let excess: Vec<Option<u64>> = all.iter().zip(&levels).map(excess).collect();
        Some((levels, typical, excess))
    };
    let (.., sure) = beyond(level)?;
    let (levels, typical, excess) = beyond(amount)?;
    let excess: Vec<Option<u64>> =
        excess.into_iter().zip(sure).map(|(of, sure)| of.filter(|_| sure.is_some())).collect();
    let ranks: Vec<u32> =
        all.iter().zip(&excess).filter(|(_, of)| of.is_some()).map(|(one, _)| one.rank).collect();
    if all.len() < 3 || ranks.len() * 4 > all.len().max(4) {
        return None;
    }
    let most = excess.iter().flatten().max().copied()?;
    let at = excess.iter().position(|&of| of == Some(most))?;
    let one = all.get(at)?;
    let mut candidate = Candidate::standing(all, at, Layer::Spread, most, ranks);
    let own = *levels.get(at)?;
    candidate.context.peaks = Some(Peaks { own, peers: typical });
    candidate.context.in_peaks = Some(in_peaks);
    candidate.context.level = line_beyond(all, one);
    let trace = candidate.context.trace.get_or_insert_default();
    let doubt = "ranks with other roles (stages of a pipeline, experts) may differ by design";
    trace.against.push(doubt.to_string());
    Some(candidate)
}

/// The line that is furthest beyond the other ranks: at the peaks, or now where the peaks are not
/// known.
fn line_beyond(all: &[Aligned<'_>], one: &Aligned<'_>) -> LevelLine {
    let are_known = all.iter().all(|one| one.past().peak.is_some());
    let lines = |one: &Aligned<'_>| match &one.past().peak {
        Some(peak) if are_known => peak_lines(one, &peak.uses),
        _ => {
            let now = one.kept.iter().map(|(&stack, of)| (stack, of.bytes));
            PeakLines::by_stack(|stack| one.stack(stack), now)
        }
    };
    let others = all.iter().filter(|other| other.rank != one.rank);
    lines(one).beyond(&others.map(lines).collect::<Vec<_>>())
}

impl Candidate {
    /// Growth of a layer of one rank, without its rate.
    pub(super) fn new(
        all: &[Aligned<'_>],
        at: usize,
        (layer, scope): (Layer, Scope),
        ranks: Vec<u32>,
        trace: TraceGrowth,
    ) -> Self {
        let one = &all[at.min(all.len() - 1)];
        let key = GrowthKey { rank: one.rank, device: one.device.state.device, layer, scope };
        let peers = u32::try_from(all.len().saturating_sub(1)).unwrap_or(u32::MAX);
        let mut growth = Growth::still(&key, (one.before_step, one.step), 0, peers);
        growth.ranks = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
        Self { at, growth, ranks, context: context(one, trace), request: None }
    }

    /// The judges' answer.
    pub(super) fn diagnosed(&self, all: &[Aligned<'_>]) -> Option<Diagnosis> {
        let Self { growth, context, request, .. } = self;
        let one = all.get(self.at)?;
        let mut suspect = one.snapshot();
        suspect.failed_request = request.clone().or(suspect.failed_request);
        let others = all.iter().filter(|other| other.rank != one.rank);
        let at =
            |other: &Aligned<'_>| RankSnapshot { before_step: one.before_step, ..other.snapshot() };
        let peers: Vec<RankSnapshot> = others.map(at).collect();
        let peers: Vec<&RankSnapshot> = peers.iter().collect();
        let (suspect, peers, past) = (&suspect, peers.as_slice(), Some(one.past()));
        Some(Inquiry { growth, suspect, peers, context, past }.diagnose())
    }

    /// A level that is too high and does not grow.
    fn standing(
        all: &[Aligned<'_>],
        at: usize,
        layer: Layer,
        amount: u64,
        ranks: Vec<u32>,
    ) -> Self {
        let key = (layer, Scope::OneRank);
        let mut candidate = Self::new(all, at, key, ranks, TraceGrowth::default());
        candidate.growth.grown_bytes = amount;
        candidate
    }
}

/// What a state says besides: settings, the length of a step, requests that failed.
fn context(one: &Aligned<'_>, trace: TraceGrowth) -> Context {
    let (past, settings) = (one.past(), &one.history.rank.settings);
    let pairs = settings.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let span = past.span_ns.filter(|_| past.ends > 0 && one.earlier == 0);
    Context {
        ooms: (past.events > 0).then_some(past.refused_count),
        step_time_ns: span.map(|(first, last)| last.saturating_sub(first) / past.ends),
        expandable_segments: (!settings.is_empty()).then(|| is_expandable(pairs)),
        trace: Some(trace),
        ..Context::default()
    }
}

/// The one that grows most, by the rate of each: its index, its rank with those that grow at half
/// its rate at least, and whether those are most of the ranks. None where nothing grows. `judged`
/// is the number of ranks that could have shown it.
fn steepest(all: &[Aligned<'_>], rates: &[u64], judged: usize) -> Option<(usize, Vec<u32>, Scope)> {
    let most = rates.iter().copied().max().filter(|&rate| rate > 0)?;
    let at = rates.iter().position(|&rate| rate == most)?;
    let concerned = all.iter().zip(rates).filter(|(_, rate)| **rate >= most.div_ceil(2));
    let ranks: Vec<u32> = concerned.map(|(one, _)| one.rank).collect();
    let is_common = judged > 1 && are_most(ranks.len(), judged);
    Some((at, ranks, if is_common { Scope::AllRanks } else { Scope::OneRank }))
}

/// Doubts about the steps of a trace; `are_few` where longer ones would say more.
fn doubts(one: &Aligned<'_>, are_few: bool, what: &str) -> Vec<String> {
    let mut doubts = Vec::new();
    if one.earlier == 0 && are_few {
        let ends = plural(one.past().ends, "step end");
        doubts.push(format!("the trace holds {ends} only: {what}"));
    }
    if one.earlier == 0 && !one.past().source.is_known() {
        doubts.push("its steps are guessed from what recurs in the trace".to_string());
    }
    doubts
}

/// Bytes and blocks that a finding is about.
pub(super) fn concerned(
    one: &Aligned<'_>,
    growth: &Growth,
    diagnosis: &Diagnosis,
    request: Option<&FailedRequest>,
) -> (u64, u64) {
    match growth.layer {
        Layer::Allocated => {
            let Some(culprit) = &diagnosis.culprit else { return (growth.grown_bytes, 0) };
            let through =
                one.kept.iter().filter(|(stack, _)| one.stack(**stack).contains(&culprit));
            through.fold((0, 0), |(bytes, blocks): (u64, u64), (_, held)| {
                (bytes.saturating_add(held.bytes), blocks + held.blocks)
            })
        }
        Layer::Process => (request.map_or(0, |request| request.bytes), 0),
        Layer::Churn => {
            let churn = &one.past().churn;
            (churn.taken_bytes / churn.steps.max(1), 0)
        }
        _ => (growth.grown_bytes, 0),
    }
}
