//! Memory that stays, by the files of all ranks: which ranks keep it, and what the diagnosis says.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::allocator_settings::is_expandable;
use crate::detector::{Growth, Layer, Scope};
use crate::diagnosis::answer::diagnosis::Diagnosis;
use crate::diagnosis::class::Class;
use crate::diagnosis::evidence::context::{Context, FileGrowth};
use crate::diagnosis::evidence::inquiry::Inquiry;
use crate::diagnosis::evidence::survivors::{Survivors, survivors};
use crate::diagnosis::evidence::view::View;
use crate::diagnosis::judges::verdict::Verdict;
use crate::diagnosis::words::{bytes, location, plural};
use crate::roles::are_most;
use crate::snapshot::frames::telling_frame;
use crate::snapshot::{Frame, RankSnapshot};

/// What stays, and the diagnosis of the rank that keeps most; none where nothing stays.
pub(super) fn leaking(views: &[View<'_>]) -> Option<(Verdict, Diagnosis)> {
    let found: Vec<Option<Survivors>> =
        views.iter().map(|view| survivors(view).filter(Survivors::matters)).collect();
    let rate = |found: &Option<Survivors>| found.as_ref().map_or(0, Survivors::rate);
    let rates: Vec<u64> = found.iter().map(rate).collect();
    let Steepest { at, ranks, scope } = steepest(views, &rates, views.len())?;
    let (view, kept) = (views.get(at)?, found.get(at)?.as_ref()?);
    let peers = peers(views, view);
    let growth = Growth {
        rank: view.rank,
        device: u8::try_from(view.device.device).unwrap_or(u8::MAX),
        scope,
        onset_step: kept.onset_step.max(view.before_step),
        detected_step: view.step,
        last_step: view.step,
        bytes_per_step: kept.rate(),
        grown_bytes: kept.grown,
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
    let stacks = kept.stacks.iter();
    let survivors = stacks.filter_map(|&stack| telling_frame(&view.stack(stack)).cloned());
    let context = context(view, FileGrowth { steps: kept.steps, survivors: survivors.collect() });
    let diagnosis =
        Inquiry { growth: &growth, suspect: &suspect, peers: &peers, context: &context }.diagnose();
    Some((verdict(view, kept, ranks, &diagnosis), diagnosis))
}

/// The file that grows most, and the ranks that do so at half its rate at least.
pub(super) struct Steepest {
    /// Its index.
    pub(super) at: usize,
    /// Its rank and those that grow alike.
    pub(super) ranks: Vec<u32>,
    /// Whether those are most of the ranks.
    pub(super) scope: Scope,
}

/// The file that grows most, by the rate of each; none where no file grows. `judged` is the number
/// of files that could have shown it.
pub(super) fn steepest(views: &[View<'_>], rates: &[u64], judged: usize) -> Option<Steepest> {
    let most = rates.iter().copied().max().filter(|&rate| rate > 0)?;
    let at = rates.iter().position(|&rate| rate == most)?;
    let concerned = views.iter().zip(rates).filter(|(_, rate)| **rate >= most.div_ceil(2));
    let ranks: Vec<u32> = concerned.map(|(view, _)| view.rank).collect();
    let is_common = judged > 1 && are_most(ranks.len(), judged);
    Some(Steepest { at, ranks, scope: if is_common { Scope::AllRanks } else { Scope::OneRank } })
}

/// The other ranks, beside this one.
pub(super) fn peers(views: &[View<'_>], of: &View<'_>) -> Vec<RankSnapshot> {
    let others = views.iter().filter(|other| other.rank != of.rank);
    let at = |other: &View<'_>| RankSnapshot { before_step: of.before_step, ..other.snapshot() };
    others.map(at).collect()
}

/// What a file says besides: settings, the length of a step, requests that failed.
pub(super) fn context(view: &View<'_>, growth: FileGrowth) -> Context {
    let trace = &view.device.trace;
    let settings = &view.look.settings;
    let pairs = settings.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let span = trace.span_us.filter(|_| trace.ends > 0 && view.earlier == 0);
    let step_us = span.map(|(first, last)| last.saturating_sub(first).max(0) as u64 / trace.ends);
    Context {
        ooms: (trace.events > 0).then_some(trace.oom_count),
        step_time_ns: step_us.map(|us| us.saturating_mul(1000)),
        expandable_segments: (!settings.is_empty()).then(|| is_expandable(pairs)),
        files: Some(growth),
        ..Context::default()
    }
}

fn verdict(view: &View<'_>, kept: &Survivors, ranks: Vec<u32>, diagnosis: &Diagnosis) -> Verdict {
    let grown = |stack: u32| view.kept.get(&stack).map_or(0, |held| held.grown.unsigned_abs());
    let mut by_line: BTreeMap<&Frame, u64> = BTreeMap::new();
    for &stack in &kept.stacks {
        if let Some(frame) = telling_frame(&view.stack(stack)) {
            *by_line.entry(frame).or_default() += grown(stack);
        }
    }
    let mut lines: Vec<(&Frame, u64)> = by_line.into_iter().collect();
    lines.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let culprit = diagnosis.culprit.as_ref().or(lines.first().map(|(frame, _)| *frame));
    let of_line: BTreeSet<u32> = kept
        .stacks
        .iter()
        .copied()
        .filter(|&stack| culprit.is_some_and(|frame| view.stack(stack).contains(&frame)))
        .collect();
    let sum = |of: fn(&View<'_>, u32) -> u64| {
        of_line.iter().fold(0_u64, |sum, &stack| sum.saturating_add(of(view, stack)))
    };
    let held = sum(|view, stack| view.kept.get(&stack).map_or(0, |held| held.bytes));
    let held = if of_line.is_empty() { kept.held } else { held };
    let blocks = sum(|view, stack| view.kept.get(&stack).map_or(0, |held| held.blocks));
    let also: Vec<Frame> = lines
        .iter()
        .filter(|(frame, _)| Some(*frame) != culprit)
        .map(|(frame, _)| (*frame).clone())
        .take(4)
        .collect();
    let mut more = Vec::new();
    if view.earlier == 0 && kept.older_steps > 0 {
        let (held, blocks) = (bytes(held), plural(blocks, "live block"));
        more.push(format!("including blocks older than the trace, its {blocks} hold {held}"));
    }
    more.extend(more_evidence(view, kept, &also));
    Verdict {
        ranks,
        scope: diagnosis.scope,
        culprit: culprit.cloned(),
        stack: diagnosis.stack.clone(),
        bytes: held,
        blocks,
        bytes_per_step: Some(kept.rate()),
        generations: kept.generations,
        explained_ppm: diagnosis.explained_ppm,
        confidence_ppm: confidence_ppm(view, kept, diagnosis),
        sentence: diagnosis.sentence.clone(),
        evidence: [diagnosis.evidence.clone(), more].concat(),
        against: [diagnosis.against.clone(), doubts(view, kept)].concat(),
        also,
        // The diagnosis knows of the steps of the trace only; what is older would come back too.
        saves_bytes: Some(kept.held),
        restart: format!(
            "a restart gives {} back, for as long as it took to grow",
            bytes(kept.held)
        ),
        ..Verdict::of(in_files(diagnosis.class), &diagnosis.advice, view)
    }
}

/// Classifies the growth that files show. Where the judges lack what only a running job shows, it
/// is a leak.
fn in_files(class: Class) -> Class {
    match class {
        Class::Leak | Class::CompilePools | Class::Pressure => class,
        Class::ReferenceCycles
        | Class::DeferredFrees
        | Class::Fragmentation
        | Class::Imbalance
        | Class::CacheThrash
        | Class::NonTorch
        | Class::Host
        | Class::Telemetry
        | Class::Desynchronised
        | Class::OutOfMemory
        | Class::Died
        | Class::Unknown => Class::Leak,
    }
}

/// How sure it is that it is a leak: the more steps have left something behind, the less it is a
/// buffer or a cache that fills.
fn confidence_ppm(view: &View<'_>, kept: &Survivors, diagnosis: &Diagnosis) -> u32 {
    let ppm: u32 = match kept.generations + kept.older_steps {
        0..=3 => 550_000,
        4..=5 => 750_000,
        6..=11 => 850_000,
        12..=31 => 920_000,
        _ => 950_000,
    };
    let supports = [
        (diagnosis.stands_out && !diagnosis.suspects.is_empty(), 2),
        (kept.minima_percent.is_some_and(|percent| percent >= 80), 4),
        (diagnosis.confidence_ppm > 0, 5),
    ];
    let supported = supports.into_iter().filter(|(holds, _)| *holds);
    let ppm = supported.fold(ppm, |ppm, (_, share)| ppm + (1_000_000 - ppm) / share);
    let is_guessed = !view.device.trace.source.is_known() && view.earlier == 0;
    if is_guessed { ppm / 4 * 3 } else { ppm.min(990_000) }
}

fn more_evidence(view: &View<'_>, kept: &Survivors, also: &[Frame]) -> Vec<String> {
    let mut evidence = Vec::new();
    if let Some(percent) = kept.minima_percent {
        let level = if view.earlier == 0 { "the per-step minimum" } else { "allocated memory" };
        let percent = percent.clamp(0, 999);
        evidence.push(format!("{level} rose by {percent} % of what stays"));
    }
    if let Some((first, rest)) = also.split_first() {
        let more =
            if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
        evidence.push(format!("{}{more} grows in the same steps", location(first)));
    }
    evidence
}

fn doubts(view: &View<'_>, kept: &Survivors) -> Vec<String> {
    let mut doubts = Vec::new();
    let trace = &view.device.trace;
    if view.earlier == 0 && kept.generations < 12 {
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
