//! One verdict over all ranks: which fault there is, on which rank, at which line.
//!
//! The order is that of certainty. Memory that stays comes first, because it explains a request
//! that failed later; then such a request; then what only costs.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::Verdict;
use super::faults::{deferring, fragmented, imbalanced, out_of_memory, thrashing};
use super::judge::{Leak, leak};
use super::lines::median;
use super::view::{Kept, View};
use super::words::{plural, ranks_text};
use crate::detector::{Growth, Layer, Scope};
use crate::diagnosis::{
    AllocatorSettings, Circumstances, Class, Diagnosis, Inquiry, bytes, place, telling_frame,
};
use crate::snapshot::{Frame, RankSnapshot};

/// A peer that keeps more than this share of the rank's own, in percent, keeps it too.
const COMMON_PERCENT_MIN: u64 = 50;

/// A rank, and what its stacks keep.
pub(super) type Case<'v, 'a> = (&'v View<'a>, &'v BTreeMap<u32, Kept>);

/// The verdict; none where nothing is wrong.
pub(super) fn verdict(cases: &[Case<'_, '_>]) -> Option<Verdict> {
    leaking(cases)
        .or_else(|| out_of_memory(cases))
        .or_else(|| thrashing(cases))
        .or_else(|| deferring(cases))
        .or_else(|| fragmented(cases))
        .or_else(|| imbalanced(cases))
}

fn leaking(cases: &[Case<'_, '_>]) -> Option<Verdict> {
    let leaks: Vec<Option<Leak>> =
        cases.iter().map(|(view, kept)| leak(view, kept).filter(Leak::matters)).collect();
    let rate = |leak: &Option<Leak>| leak.as_ref().map_or(0, Leak::rate);
    let is_alone = cases.len() == 1;
    let typical = if is_alone { 0 } else { median(leaks.iter().map(rate).collect()) };
    let most = leaks.iter().map(rate).max().filter(|&rate| rate > 0)?;
    let at = leaks.iter().position(|leak| rate(leak) == most)?;
    let is_common =
        !is_alone && typical.saturating_mul(100) >= most.saturating_mul(COMMON_PERCENT_MIN);
    let concerned = |leak: &Option<Leak>| {
        rate(leak).saturating_sub(if is_common { 0 } else { typical }) >= most / 2 && rate(leak) > 0
    };
    let numbered = cases.iter().zip(&leaks).filter(|(_, leak)| concerned(leak));
    let ranks: Vec<u32> = numbered.map(|((view, _), _)| view.rank).collect();
    let (view, kept) = *cases.get(at)?;
    let leak = leaks.get(at)?.as_ref()?;
    let scope = if is_common { Scope::AllRanks } else { Scope::OneRank };
    let peers: Vec<RankSnapshot> = cases
        .iter()
        .zip(0..)
        .filter(|&(_, index)| index != at)
        .map(|((other, _), _)| other.snapshot())
        .map(|peer| RankSnapshot { before_step: view.before_step, ..peer })
        .collect();
    let growth = Growth {
        rank: view.rank,
        device: u8::try_from(view.device.device).unwrap_or(u8::MAX),
        scope,
        onset_step: leak.onset_step.max(view.before_step),
        detected_step: view.step,
        last_step: view.step,
        bytes_per_step: leak.rate(),
        grown_bytes: leak.grown,
        layer: Layer::Allocated,
        steps_to_oom: None,
        forecast: None,
        returns: 0,
        give_backs: 0,
        is_sure: true,
        ranks: u32::try_from(ranks.len()).unwrap_or(u32::MAX),
        peers: u32::try_from(peers.len()).unwrap_or(u32::MAX),
    };
    let (suspect, peers) = (view.snapshot(), peers.iter().collect::<Vec<_>>());
    let around = circumstances(view);
    let inquiry = Inquiry { growth: &growth, suspect: &suspect, peers: &peers, around: &around };
    let diagnosis = inquiry.diagnose();
    Some(leak_verdict(cases, (view, kept), leak, scope, ranks, diagnosis))
}

/// What a file says besides: settings, the length of a step, requests that failed.
fn circumstances(view: &View<'_>) -> Circumstances {
    let trace = &view.device.trace;
    let set =
        |name: &str| view.look.settings.iter().any(|(key, value)| key == name && value == "True");
    let step_us = trace.span_us.filter(|_| trace.ends > 0 && view.earlier == 0);
    let step_us =
        step_us.map(|(first, last)| last.saturating_sub(first).max(0) as u64 / trace.ends);
    Circumstances {
        ooms: (trace.events > 0).then_some(trace.oom_count),
        step_time_ns: step_us.map(|us| us.saturating_mul(1000)),
        allocator: AllocatorSettings {
            expandable_segments: (!view.look.settings.is_empty())
                .then(|| set("expandable_segments")),
        },
        ..Circumstances::default()
    }
}

fn leak_verdict(
    cases: &[Case<'_, '_>],
    (view, kept): Case<'_, '_>,
    leak: &Leak,
    scope: Scope,
    ranks: Vec<u32>,
    diagnosis: Diagnosis,
) -> Verdict {
    let mut by_line: BTreeMap<&Frame, (u64, Vec<u32>)> = BTreeMap::new();
    for &stack in &leak.stacks {
        let grown = kept.get(&stack).map_or(0, |held| held.grown.unsigned_abs());
        if let Some(frame) = telling_frame(&view.stack(stack)) {
            let (sum, stacks) = by_line.entry(frame).or_default();
            *sum = sum.saturating_add(grown);
            stacks.push(stack);
        }
    }
    let mut lines: Vec<(&Frame, (u64, Vec<u32>))> = by_line.into_iter().collect();
    lines.sort_by(|a, b| b.1.0.cmp(&a.1.0).then(a.0.cmp(b.0)));
    let class = class_of(&diagnosis);
    let mut verdict = Verdict {
        class,
        rank: view.rank,
        device: view.device.device,
        scope,
        ranks,
        bytes: leak.held,
        bytes_per_step: Some(leak.rate()),
        generations: leak.generations,
        confidence_ppm: confidence_ppm(cases, view, leak, &diagnosis, scope),
        advice: diagnosis.advice.clone(),
        ..Verdict::default()
    };
    if diagnosis.class != class {
        verdict.advice = class.advice().to_string();
    }
    if let Some((frame, (grown, stacks))) = lines.first() {
        verdict.culprit = Some((*frame).clone());
        let top = stacks.first().map(|&stack| view.stack(stack)).unwrap_or_default();
        verdict.stack = top.into_iter().cloned().collect();
        let held = |stack: &u32| kept.get(stack).map_or((0, 0), |held| (held.bytes, held.blocks));
        let sums =
            stacks.iter().map(held).fold((0_u64, 0), |a, b| (a.0.saturating_add(b.0), a.1 + b.1));
        (verdict.bytes, verdict.blocks) = sums;
        verdict.explained_ppm =
            u32::try_from(u128::from(*grown) * 1_000_000 / u128::from(leak.grown.max(1)))
                .unwrap_or(1_000_000);
    }
    verdict.also = lines.iter().skip(1).map(|(frame, _)| (*frame).clone()).take(4).collect();
    verdict.sentence = leak_sentence(cases, &verdict, leak);
    verdict.evidence = leak_evidence(cases, view, &verdict, leak);
    verdict.against = leak_doubts(cases, view, leak);
    if diagnosis.class == class {
        verdict.evidence.extend(new_words(&diagnosis.evidence));
        verdict.against.extend(new_words(&diagnosis.against));
    }
    // The diagnosis knows of the steps of the trace only; what is older would come back too.
    verdict.saves_bytes = Some(leak.held);
    verdict.restart =
        format!("a restart gives {} back, for as long as it took to grow", bytes(leak.held));
    verdict.diagnosis = Some(diagnosis);
    verdict
}

/// Memory that stays is a leak, unless what is new lies in private pools: nobody forgot a tensor
/// there, each new shape got a graph. Other classes rest on what a file does not hold.
fn class_of(diagnosis: &Diagnosis) -> Class {
    if diagnosis.class == Class::CompilePools { Class::CompilePools } else { Class::Leak }
}

/// What the diagnosis says that is not said here in better words: steps of a trace are counted
/// from where it begins.
fn new_words(said: &[String]) -> Vec<String> {
    const SAID: [&str; 5] =
        ["blocks from ", "the same stacks", "its ", "there are no peers", "this line explains"];
    let is_new = |line: &&String| !SAID.iter().any(|start| line.starts_with(start));
    said.iter().filter(is_new).cloned().collect()
}

/// How sure it is that it is a leak.
fn confidence_ppm(
    cases: &[Case<'_, '_>],
    view: &View<'_>,
    leak: &Leak,
    diagnosis: &Diagnosis,
    scope: Scope,
) -> u32 {
    // The more steps have left something behind, the less it is a buffer or a cache that fills.
    let mut ppm: u32 = match leak.generations + leak.older_steps {
        0..=3 => 550_000,
        4..=5 => 750_000,
        6..=11 => 850_000,
        12..=31 => 920_000,
        _ => 950_000,
    };
    let mut add = |holds: bool, share: u32| {
        if holds {
            ppm += (1_000_000 - ppm) / share;
        }
    };
    add(cases.len() > 2 && scope == Scope::OneRank, 2);
    add(leak.floor_percent.is_some_and(|percent| percent >= 80), 4);
    add(diagnosis.class == class_of(diagnosis), 5);
    if !view.device.trace.source.is_known() && view.earlier == 0 {
        ppm = ppm / 4 * 3;
    }
    ppm.min(990_000)
}

fn leak_sentence(cases: &[Case<'_, '_>], verdict: &Verdict, leak: &Leak) -> String {
    let rate = bytes(leak.rate());
    let others = cases.len() - 1;
    let who = match (verdict.scope, others) {
        (_, 0) => format!("{rate} more stays each step"),
        (Scope::AllRanks | Scope::Role, _) => {
            let ranks = ranks_text(&verdict.ranks);
            format!("{ranks} keep more each step, rank {} the most with {rate}", verdict.rank)
        }
        (Scope::OneRank, _) => {
            format!("{} {rate} more each step", keeps(&verdict.ranks))
        }
    };
    let at = match &verdict.culprit {
        Some(frame) => format!(", allocated at {}", place(frame)),
        None => ", allocated where no stack was recorded".to_string(),
    };
    let pools = Some(", in private pools of CUDA graphs");
    let pools = pools.filter(|_| verdict.class == Class::CompilePools).unwrap_or_default();
    let rest = others.saturating_sub(verdict.ranks.len().saturating_sub(1));
    let others = match (verdict.scope, rest) {
        (Scope::AllRanks | Scope::Role, _) | (_, 0) => String::new(),
        (_, 1) => "; the other rank does not".to_string(),
        (_, rest) => format!("; the other {rest} ranks do not"),
    };
    format!("{who}{at}{pools}{others}")
}

fn keeps(ranks: &[u32]) -> String {
    let verb = if ranks.len() == 1 { "keeps" } else { "keep" };
    format!("{} {verb}", ranks_text(ranks))
}

fn leak_evidence(
    cases: &[Case<'_, '_>],
    view: &View<'_>,
    verdict: &Verdict,
    leak: &Leak,
) -> Vec<String> {
    let mut evidence = Vec::new();
    let held = format!("{} hold {}", plural(verdict.blocks, "live block"), bytes(verdict.bytes));
    let others: Vec<u64> = cases
        .iter()
        .filter(|(other, _)| other.rank != view.rank)
        .map(|(other, kept)| held_at(other, kept, verdict.culprit.as_ref(), &verdict.stack))
        .collect();
    let beside = match others.len() {
        0 => String::new(),
        _ => format!("; the median of the others is {}", bytes(median(others))),
    };
    evidence.push(format!("its {held}{beside}"));
    let older = match (view.earlier, leak.older_steps) {
        (0, 1..) => ", and it holds older ones".to_string(),
        _ => String::new(),
    };
    let of = if view.earlier == 0 { "of the trace" } else { "since the first file" };
    evidence.push(format!(
        "blocks of {} {of} are alive{older}: blocks of all ages stay",
        plural(leak.generations, "different step")
    ));
    if let Some(percent) = leak.floor_percent {
        let percent = percent.clamp(0, 999);
        evidence.push(match view.earlier {
            0 => format!("the lowest level of each step rose by {percent} % of what it keeps"),
            _ => format!("allocated memory rose by {percent} % of what it keeps"),
        });
    }
    if let Some(also) = verdict.also.first() {
        let rest = verdict.also.len() - 1;
        let more = if rest == 0 { String::new() } else { format!(" and {rest} more") };
        evidence.push(format!("{}{more} grows in the same steps", place(also)));
    }
    evidence
}

/// What a rank holds under the same stack, or the same line.
fn held_at(
    view: &View<'_>,
    kept: &BTreeMap<u32, Kept>,
    line: Option<&Frame>,
    stack: &[Frame],
) -> u64 {
    let is_same = |number: u32| {
        let frames = view.stack(number);
        frames.iter().copied().eq(stack.iter())
            || (frames.len() == stack.len() && telling_frame(&frames) == line)
    };
    let same = kept.iter().filter(|(number, _)| is_same(**number));
    same.fold(0, |sum, (_, held)| sum.saturating_add(held.bytes))
}

fn leak_doubts(cases: &[Case<'_, '_>], view: &View<'_>, leak: &Leak) -> Vec<String> {
    let mut doubts = Vec::new();
    if cases.len() == 1 {
        doubts.push("there is no other rank to compare with".to_string());
    }
    let trace = &view.device.trace;
    if view.earlier == 0 && leak.generations < 12 {
        doubts.push(format!(
            "the trace holds {} only: a cache that still fills, or a list that is emptied later, \
             looks the same",
            plural(trace.ends, "step")
        ));
    }
    if view.earlier == 0 && !trace.source.is_known() {
        doubts.push("its steps are guessed from what recurs in the trace".to_string());
    }
    doubts
}
