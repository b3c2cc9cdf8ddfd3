//! Levels that grow from step to step, by the files of all ranks: what the steps need, and what is
//! reserved beyond it.
//!
//! Whether a level grows is decided by the test of the detector
//! ([`trend_of_peaks`], [`trend_of_idle`]), and what that is by the judges. Memory that stays is
//! not looked at: growth of that is a leak, which is looked for before.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::leaks::{Steepest, context, peers, steepest};
use crate::detector::{Growth, Layer, StepTrend, is_enough, trend_of_idle, trend_of_peaks};
use crate::diagnosis::answer::diagnosis::Diagnosis;
use crate::diagnosis::class::Class;
use crate::diagnosis::constants::EXCESS_BYTES_MIN;
use crate::diagnosis::evidence::account::median;
use crate::diagnosis::evidence::case::share_of;
use crate::diagnosis::evidence::context::{Context, FileGrowth, Peaks};
use crate::diagnosis::evidence::held::{HeldLine, Kind, by_line, kept};
use crate::diagnosis::evidence::inquiry::Inquiry;
use crate::diagnosis::evidence::survivors::is_of_a_step;
use crate::diagnosis::evidence::torch::walk::whole;
use crate::diagnosis::evidence::view::View;
use crate::diagnosis::judges::verdict::Verdict;
use crate::diagnosis::words::{bytes, plural};

/// Share of the growth with which a line is named, in parts per million.
const NAMED_PPM_MIN: u32 = 500_000;

/// Steps that need more than the ones before; none where no rank has such.
pub(super) fn peaks(views: &[View<'_>]) -> Option<(Verdict, Diagnosis)> {
    growing(views, Layer::Peak)
}

/// Reserved memory that grows beyond the peaks; none where it does not.
pub(super) fn reserved(views: &[View<'_>]) -> Option<(Verdict, Diagnosis)> {
    growing(views, Layer::Reserved)
}

/// Does the trace of this rank hold enough whole steps to judge their peaks?
pub(super) fn is_judged(view: &View<'_>) -> bool {
    is_enough(whole(&view.device.trace.peaks).len())
}

/// That the steps need more and more, where they do.
pub(super) fn said(view: &View<'_>) -> Option<String> {
    let trend = trend(view, Layer::Peak)?;
    let (rate, steps) = (bytes(trend.bytes_per_step), plural(trend.steps, "step"));
    Some(format!("each of the last {steps} needed about {rate} more than the one before"))
}

fn trend(view: &View<'_>, layer: Layer) -> Option<StepTrend> {
    let trace = &view.device.trace;
    let peaks = whole(&trace.peaks);
    let found = match layer {
        Layer::Peak => trend_of_peaks(peaks, whole(&trace.floors)),
        _ => trend_of_idle(whole(&trace.reserved), peaks),
    };
    found.filter(|found| is_of_a_step(view, found.bytes_per_step))
}

/// What grows in this layer, of the rank that grows most.
fn growing(views: &[View<'_>], layer: Layer) -> Option<(Verdict, Diagnosis)> {
    let found: Vec<Option<StepTrend>> = views.iter().map(|view| trend(view, layer)).collect();
    let rate = |found: &Option<StepTrend>| found.map_or(0, |found| found.bytes_per_step);
    let rates: Vec<u64> = found.iter().map(rate).collect();
    let judged: Vec<&View<'_>> = views.iter().filter(|view| is_judged(view)).collect();
    let Steepest { at, ranks, scope } = steepest(views, &rates, judged.len())?;
    let (view, trend) = (views.get(at)?, (*found.get(at)?)?);
    let growth = Growth {
        rank: view.rank,
        device: u8::try_from(view.device.device).unwrap_or(u8::MAX),
        scope,
        onset_step: view.step.saturating_sub(trend.steps),
        detected_step: view.step,
        last_step: view.step,
        bytes_per_step: trend.bytes_per_step,
        grown_bytes: trend.grown_bytes,
        layer,
        steps_to_oom: None,
        forecast: None,
        returns: 0,
        give_backs: 0,
        is_sure: true,
        ranks: u32::try_from(ranks.len()).unwrap_or(u32::MAX),
        peers: u32::try_from(judged.len().saturating_sub(1)).unwrap_or(u32::MAX),
    };
    let files = FileGrowth { steps: trend.steps, survivors: Vec::new() };
    let context = Context {
        in_peaks: Some(layer == Layer::Peak),
        peaks: (judged.len() > 1).then(|| highest(&judged, view)),
        ..context(view, files)
    };
    let (suspect, peers) = (view.snapshot(), peers(views, view));
    let peers: Vec<_> = peers.iter().collect();
    let inquiry = Inquiry { growth: &growth, suspect: &suspect, peers: &peers, context: &context };
    let diagnosis = inquiry.diagnose();
    Some((verdict(view, &trend, ranks, &diagnosis), diagnosis))
}

/// The highest peaks of this rank and of its median peer.
fn highest(judged: &[&View<'_>], view: &View<'_>) -> Peaks {
    let highest = |view: &View<'_>| whole(&view.device.trace.peaks).iter().copied().max();
    let others = judged.iter().filter(|other| other.rank != view.rank);
    Peaks {
        own: highest(view).unwrap_or(0),
        peers: median(others.filter_map(|other| highest(other)).collect()),
    }
}

fn verdict(view: &View<'_>, trend: &StepTrend, ranks: Vec<u32>, diagnosis: &Diagnosis) -> Verdict {
    let line = if diagnosis.layer == Layer::Peak { growing_line(view) } else { None };
    let named = line.as_ref().filter(|(line, ppm)| is_named(line) && *ppm >= NAMED_PPM_MIN);
    let name =
        named.map(|(line, _)| format!("; most of that is {}", line.name())).unwrap_or_default();
    let beyond = beyond_peak(view).map(|said| format!("; {said}")).unwrap_or_default();
    let mut evidence = diagnosis.evidence.clone();
    if let Some((line, _)) = &line {
        let more = bytes(line.grown.unsigned_abs());
        evidence.push(format!(
            "memory {} grew by {more} from the peak of the first whole step to that of the last",
            line.name()
        ));
    }
    evidence.extend(in_segments(view, diagnosis.layer));
    Verdict {
        ranks,
        scope: diagnosis.scope,
        culprit: named.map(|(line, _)| line.frame.clone()),
        bytes: trend.grown_bytes,
        bytes_per_step: Some(trend.bytes_per_step),
        explained_ppm: named.map_or(0, |(_, ppm)| *ppm),
        confidence_ppm: confidence_ppm(view, trend, diagnosis),
        sentence: format!("{}{name}{beyond}", diagnosis.sentence),
        evidence,
        against: [diagnosis.against.clone(), doubts(view, trend, diagnosis.layer)].concat(),
        saves_bytes: diagnosis.remedy.saves_bytes,
        restart: diagnosis.restart.to_string(),
        ..Verdict::of(in_files(diagnosis), &diagnosis.advice, view)
    }
}

/// Classifies the growth: by the judges, where files show what these need.
fn in_files(diagnosis: &Diagnosis) -> Class {
    match (diagnosis.class, diagnosis.layer) {
        (Class::Unknown, Layer::Reserved) => Class::Fragmentation,
        (Class::Unknown, _) => Class::Pressure,
        (class, _) => class,
    }
}

/// The line that needs more at the last whole peak than at the first, and its share of what all
/// lines need more, in parts per million.
fn growing_line(view: &View<'_>) -> Option<(HeldLine, u32)> {
    let (first, last) = view.device.trace.whole_peaks.as_ref()?;
    let first = by_line(view, &kept(&first.uses));
    let mut lines: Vec<HeldLine> = by_line(view, &kept(&last.uses)).into_values().collect();
    for line in &mut lines {
        let was = first.get(&(line.frame.clone(), line.kind)).map_or(0, |line| line.bytes);
        line.grown = i64::try_from(line.bytes.saturating_sub(was)).unwrap_or(i64::MAX);
    }
    let all = lines.iter().fold(0_i64, |sum, line| sum.saturating_add(line.grown));
    let most = lines
        .into_iter()
        .max_by(|a, b| a.grown.cmp(&b.grown).then_with(|| b.frame.cmp(&a.frame)))?;
    let ppm = share_of(most.grown, all);
    (most.grown > 0).then_some((most, ppm))
}

fn is_named(line: &HeldLine) -> bool {
    line.kind != Kind::Nameless
}

/// How much more is reserved than the steps need, where that is much.
fn beyond_peak(view: &View<'_>) -> Option<String> {
    let peak = view.device.trace.peak.as_ref()?.bytes;
    let reserved = view.device.space.reserved;
    let beyond = reserved.saturating_sub(peak);
    (beyond >= EXCESS_BYTES_MIN && beyond >= reserved / 4)
        .then(|| format!("{} are reserved over a peak of {}", bytes(reserved), bytes(peak)))
}

/// Where that memory is, and whether it grows with the peaks.
fn in_segments(view: &View<'_>, layer: Layer) -> Vec<String> {
    let space = &view.device.space;
    let mut said = Vec::new();
    if beyond_peak(view).is_some() {
        said.push(format!(
            "of {} reserved, {} are inactive split and {} are whole free segments",
            bytes(space.reserved),
            bytes(space.split_free),
            bytes(space.whole_free),
        ));
    }
    let grows = trend(view, Layer::Reserved).filter(|_| layer == Layer::Peak);
    said.extend(grows.map(|found| {
        let rate = bytes(found.bytes_per_step);
        format!("reserved memory beyond the peaks grows by {rate} each step")
    }));
    said
}

/// How sure it is: the more steps the trend goes on, the less it is chance.
fn confidence_ppm(view: &View<'_>, trend: &StepTrend, diagnosis: &Diagnosis) -> u32 {
    let ppm: u32 = match trend.steps {
        0..=7 => 650_000,
        8..=15 => 750_000,
        16..=31 => 850_000,
        _ => 900_000,
    };
    let ppm = if diagnosis.stands_out { ppm + (1_000_000 - ppm) / 2 } else { ppm };
    if view.device.trace.source.is_known() { ppm } else { ppm / 4 * 3 }
}

fn doubts(view: &View<'_>, trend: &StepTrend, layer: Layer) -> Vec<String> {
    let mut doubts = Vec::new();
    if layer == Layer::Peak {
        doubts.push(format!(
            "it was seen over {}: batches that are sorted by length, or a curriculum, look the \
             same",
            plural(trend.steps, "step")
        ));
    }
    if !view.device.trace.source.is_known() {
        doubts.push("its steps are guessed from what recurs in the trace".to_string());
    }
    doubts
}
