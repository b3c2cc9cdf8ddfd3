//! Faults other than memory that stays: requests that failed, memory that is held and cannot be
//! used, a cache that is emptied again and again, ranks that differ.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::Verdict;
use super::lines::{self, Line, median};
use super::look::Oom;
use super::verdict::Case;
use super::view::View;
use super::words::plural;
use crate::diagnosis::{Class, bytes, place, telling_frame};
use crate::snapshot::Frame;

/// Memory that was given back and waits for a stream counts from this many bytes …
const PENDING_BYTES_MIN: u64 = 256 << 20;

/// … and from this share of what is allocated, in percent.
const PENDING_PERCENT_MIN: u64 = 10;

/// Free pieces beside live blocks count as fragmentation from this many bytes …
const SPLIT_BYTES_MIN: u64 = 1 << 30;

/// … and from this share of what is reserved, in percent, at the highest moment.
const SPLIT_PERCENT_MIN: u64 = 30;

/// One rank holds more than the others from this many bytes …
const IMBALANCE_BYTES_MIN: u64 = 1 << 30;

/// … and from this share of what they hold, in percent.
const IMBALANCE_PERCENT_MIN: u64 = 25;

/// With fewer ranks nobody can say which of them is the odd one.
const RANKS_MIN: usize = 3;

/// Whole steps that a trace must hold for its peaks to be called usual.
const WHOLE_STEPS_MIN: usize = 3;

/// Steps with segments taken and given back, of all, that make a habit of it, in percent.
const CHURN_PERCENT_MIN: u64 = 50;

/// Fewer steps than this say nothing of habits.
const CHURN_STEPS_MIN: u64 = 4;

/// A request failed.
pub(super) fn out_of_memory(cases: &[Case<'_, '_>]) -> Option<Verdict> {
    let mut failed =
        cases.iter().filter_map(|&(view, _)| Some((view, view.device.trace.ooms.last()?)));
    let (view, oom) = failed.next()?;
    let held = oom.space.reserved.saturating_sub(oom.space.in_use);
    let free = held.saturating_add(oom.device_free.unwrap_or(0));
    let would_fit = free >= oom.bytes;
    let class = if would_fit { Class::Fragmentation } else { Class::Pressure };
    let at_peak = lines::at_moment(view, &oom.moment.uses);
    let asked = view.stack(oom.stack);
    let culprit = telling_frame(&asked).cloned();
    let by = culprit.as_ref().map_or(String::new(), |frame| format!(" at {}", place(frame)));
    let size = bytes(oom.bytes);
    let sentence = match class {
        Class::Fragmentation => format!(
            "rank {}: a request of {size}{by} failed although {} were free, in pieces that it \
             could not use together",
            view.rank,
            bytes(free)
        ),
        _ => format!(
            "rank {}: a request of {size}{by} failed: live tensors held {}",
            view.rank,
            bytes(oom.space.in_use)
        ),
    };
    let mut evidence = why_refused(oom);
    let top = at_peak.iter().take(3).map(|line| format!("{} {}", bytes(line.bytes), name(line)));
    let top: Vec<String> = top.collect();
    if !top.is_empty() {
        evidence.push(format!("what was alive: {}", top.join(", ")));
    }
    let mut against = Vec::new();
    if view.device.trace.oom_count > 1 {
        against.push(format!(
            "{} failed; this is the last",
            plural(view.device.trace.oom_count, "request")
        ));
    }
    if oom.device_free.is_none() {
        against.push("the file does not say how much the device had free".to_string());
    }
    Some(Verdict {
        class,
        rank: view.rank,
        ranks: alloc::vec![view.rank],
        device: view.device.device,
        stack: asked.into_iter().cloned().collect(),
        culprit,
        bytes: oom.bytes,
        confidence_ppm: 900_000,
        advice: class.advice().to_string(),
        sentence,
        evidence,
        against,
        ..Verdict::default()
    })
}

/// Where the free memory was, and why it was not good enough.
pub fn why_refused(oom: &Oom) -> Vec<String> {
    let (space, refusal) = (&oom.space, &oom.refusal);
    let mut said = Vec::new();
    let device = oom.device_free.map_or("an unknown amount".to_string(), bytes);
    said.push(format!(
        "the device had {device} free; the allocator held {}, of which {} were in use",
        bytes(space.reserved),
        bytes(space.in_use)
    ));
    if refusal.eligible > 0 {
        said.push(format!(
            "{} were free for such a request, in {}, the largest {}",
            bytes(refusal.eligible),
            plural(refusal.eligible_pieces, "piece"),
            bytes(refusal.eligible_largest)
        ));
    }
    let others = [
        (refusal.other_streams, "belong to other streams"),
        (refusal.other_pools, "belong to private pools, such as those of CUDA graphs"),
        (refusal.small_segments, "lie in segments for blocks of another size class"),
    ];
    let others = others.into_iter().filter(|&(free, _)| free > 0);
    said.extend(others.map(|(free, what)| format!("{} were free and {what}", bytes(free))));
    said
}

/// A line in words.
fn name(line: &Line) -> String {
    match line.kind {
        lines::Kind::Nameless => "without a stack".to_string(),
        lines::Kind::OptimizerState => format!("of optimizer state ({})", place(&line.frame)),
        _ => format!("at {}", place(&line.frame)),
    }
}

/// Segments are given back and taken anew in most steps.
pub(super) fn thrashing(cases: &[Case<'_, '_>]) -> Option<Verdict> {
    let is_thrashing = |(view, _): &&Case<'_, '_>| {
        let churn = &view.device.trace.churn;
        churn.of >= CHURN_STEPS_MIN && churn.steps * 100 >= churn.of * CHURN_PERCENT_MIN
    };
    let ranks: Vec<u32> = cases.iter().filter(is_thrashing).map(|(view, _)| view.rank).collect();
    let (view, _) = cases.iter().find(is_thrashing)?;
    let churn = &view.device.trace.churn;
    let stack = view.stack(churn.stack);
    let culprit = telling_frame(&stack).cloned();
    let at = culprit.as_ref().map_or(String::new(), |frame| format!(", by {}", place(frame)));
    let a_step = churn.taken_bytes / churn.of.max(1);
    Some(Verdict {
        class: Class::CacheThrash,
        rank: view.rank,
        ranks,
        device: view.device.device,
        bytes: a_step,
        confidence_ppm: 850_000,
        advice: Class::CacheThrash.advice().to_string(),
        sentence: format!(
            "rank {} gives memory back to the device and takes it again in most steps{at}: {} a \
             step",
            view.rank,
            bytes(a_step)
        ),
        evidence: alloc::vec![format!(
            "in {} of {} segments were given back and others taken",
            churn.steps,
            plural(churn.of, "step")
        )],
        stack: stack.into_iter().cloned().collect(),
        culprit,
        ..Verdict::default()
    })
}

/// Memory was given back and a stream still uses it.
pub(super) fn deferring(cases: &[Case<'_, '_>]) -> Option<Verdict> {
    let (view, _) = cases.iter().max_by_key(|(view, _)| view.device.pending)?;
    let (pending, allocated) = (view.device.pending, view.device.allocated);
    if pending < PENDING_BYTES_MIN
        || pending.saturating_mul(100) < allocated.saturating_mul(PENDING_PERCENT_MIN)
    {
        return None;
    }
    let waits = view.device.blocks.iter().filter(|block| block.pending);
    let mut by_line: alloc::collections::BTreeMap<Frame, u64> = alloc::collections::BTreeMap::new();
    for block in waits {
        let frame = telling_frame(&view.stack(block.stack)).cloned().unwrap_or_default();
        let sum = by_line.entry(frame).or_default();
        *sum = sum.saturating_add(block.size);
    }
    let (culprit, most) = by_line.into_iter().max_by_key(|&(_, sum)| sum)?;
    Some(Verdict {
        class: Class::DeferredFrees,
        rank: view.rank,
        ranks: alloc::vec![view.rank],
        device: view.device.device,
        bytes: pending,
        confidence_ppm: 800_000,
        advice: Class::DeferredFrees.advice().to_string(),
        sentence: format!(
            "rank {}: {} were given back and wait for other streams, most of it from {}",
            view.rank,
            bytes(pending),
            place(&culprit)
        ),
        evidence: alloc::vec![format!(
            "{} of it come from {}; {} are in use",
            bytes(most),
            place(&culprit),
            bytes(allocated)
        )],
        culprit: Some(culprit),
        ..Verdict::default()
    })
}

/// Much of what is held lies in pieces between live blocks, even at the highest moment.
pub(super) fn fragmented(cases: &[Case<'_, '_>]) -> Option<Verdict> {
    let stuck = |(view, _): &&Case<'_, '_>| {
        // Without a trace the end is the only moment there is, and says little of the peak.
        let peak = view.device.trace.peak.as_ref().filter(|_| view.device.trace.ends > 0)?;
        let beyond = view.device.space.reserved.saturating_sub(peak.bytes);
        Some((beyond.min(view.device.space.split_free), view.device.space.reserved, peak.bytes))
    };
    let found = cases.iter().filter_map(|case| Some((case, stuck(&case)?)));
    let ((view, _), (split, reserved, peak)) = found.max_by_key(|(_, (split, ..))| *split)?;
    let share_min = reserved.saturating_mul(SPLIT_PERCENT_MIN);
    if split < SPLIT_BYTES_MIN || split.saturating_mul(100) < share_min {
        return None;
    }
    let space = &view.device.space;
    Some(Verdict {
        class: Class::Fragmentation,
        rank: view.rank,
        ranks: alloc::vec![view.rank],
        device: view.device.device,
        bytes: split,
        confidence_ppm: 650_000,
        advice: Class::Fragmentation.advice().to_string(),
        sentence: format!(
            "rank {} holds {} more than its tensors needed at their highest, in pieces between \
             live blocks",
            view.rank,
            bytes(split)
        ),
        evidence: alloc::vec![
            format!("{} are reserved; the tensors needed {} at most", bytes(reserved), bytes(peak)),
            format!(
                "{} lie in {} beside live blocks, the largest {}",
                bytes(space.split_free),
                plural(space.split_pieces, "piece"),
                bytes(space.largest_piece)
            ),
        ],
        against: alloc::vec!["no request is seen to fail in the trace".to_string()],
        ..Verdict::default()
    })
}

/// One rank, or few, hold or need much more than the others.
pub(super) fn imbalanced(cases: &[Case<'_, '_>]) -> Option<Verdict> {
    if cases.len() < RANKS_MIN {
        return None;
    }
    holding_more(cases).or_else(|| needing_more(cases))
}

/// What lies so far beyond the typical that it counts; none where it does not.
fn excess(level: u64, typical: u64) -> Option<u64> {
    let beyond = level.saturating_sub(typical);
    let is_much = beyond >= IMBALANCE_BYTES_MIN
        && beyond.saturating_mul(100) >= typical.saturating_mul(IMBALANCE_PERCENT_MIN);
    is_much.then_some(beyond)
}

/// The ranks that are beyond the others, each with how much; none where that is no exception.
/// Stages of a pipeline differ by half and half; that is how they were cut.
fn heavy(beyond: &[Option<u64>]) -> Option<(usize, u64)> {
    let most = (0..).zip(beyond).filter_map(|(at, beyond)| Some((at, (*beyond)?)));
    let most = most.max_by_key(|&(_, beyond)| beyond)?;
    let count = beyond.iter().flatten().count();
    (count * 4 <= beyond.len().max(4)).then_some(most)
}

/// One rank holds more when the files were written.
fn holding_more(cases: &[Case<'_, '_>]) -> Option<Verdict> {
    let levels: Vec<u64> = cases.iter().map(|(view, _)| view.device.allocated).collect();
    let typical = median(levels.clone());
    let beyond: Vec<Option<u64>> = levels.into_iter().map(|level| excess(level, typical)).collect();
    let (at, excess) = heavy(&beyond)?;
    let (view, kept) = *cases.get(at)?;
    let others = cases.iter().filter(|(other, _)| other.rank != view.rank);
    let others: Vec<_> = others.map(|(other, kept)| lines::by_line(other, kept)).collect();
    let most = most_beyond(lines::lines(view, kept, &others))?;
    let sentence = format!(
        "rank {} holds {} more than the median rank, most of it {}",
        view.rank,
        bytes(excess),
        name(&most)
    );
    Some(imbalance(cases, (at, &beyond), sentence, alloc::vec![beside(&most)], &most))
}

/// One rank needs more in each of its steps, and gives it back.
fn needing_more(cases: &[Case<'_, '_>]) -> Option<Verdict> {
    // The first and the last step of a trace are cut.
    let whole = |(view, _): &Case<'_, '_>| {
        let peaks = &view.device.trace.peaks;
        let inner = peaks.get(1..peaks.len().saturating_sub(1)).unwrap_or_default();
        (inner.len() >= WHOLE_STEPS_MIN).then(|| inner.to_vec())
    };
    let peaks: Vec<Vec<u64>> = cases.iter().map(whole).collect::<Option<_>>()?;
    let typical = median(peaks.iter().map(|peaks| median(peaks.clone())).collect());
    // Its lowest step counts: batches differ, and the largest of some may come to any rank.
    let lowest = |peaks: &Vec<u64>| peaks.iter().copied().min().unwrap_or(0);
    let beyond: Vec<Option<u64>> =
        peaks.iter().map(|peaks| excess(lowest(peaks), typical)).collect();
    let (at, excess) = heavy(&beyond)?;
    let (view, _) = *cases.get(at)?;
    let uses =
        |view: &View<'_>| view.device.trace.peak.as_ref().map(|peak| lines::kept(&peak.uses));
    let others = cases.iter().filter(|(other, _)| other.rank != view.rank);
    let others: Vec<_> =
        others.filter_map(|(other, _)| Some(lines::by_line(other, &uses(other)?))).collect();
    let most = most_beyond(lines::lines(view, &uses(view)?, &others))?;
    let sentence = format!(
        "rank {} needs {} more in each step than the median rank, most of it {}",
        view.rank,
        bytes(excess),
        name(&most)
    );
    let evidence = alloc::vec![
        format!(
            "each of its {} needs at least {}; those of the median rank need {}",
            plural(peaks.get(at)?.len() as u64, "whole step"),
            bytes(lowest(peaks.get(at)?)),
            bytes(typical)
        ),
        format!("at its highest moment {}", beside(&most)),
    ];
    Some(imbalance(cases, (at, &beyond), sentence, evidence, &most))
}

/// A line, and what the others have there.
fn beside(line: &Line) -> String {
    let others = bytes(line.others_bytes.unwrap_or(0));
    format!("{} {}; {others} on the median of the others", bytes(line.bytes), name(line))
}

/// The line that lies furthest beyond the other ranks.
fn most_beyond(lines: Vec<Line>) -> Option<Line> {
    let beyond = |line: &Line| line.bytes.saturating_sub(line.others_bytes.unwrap_or(0));
    // Of equal ones the first, which holds most.
    lines.into_iter().rev().max_by_key(beyond)
}

fn imbalance(
    cases: &[Case<'_, '_>],
    (at, beyond): (usize, &[Option<u64>]),
    sentence: String,
    evidence: Vec<String>,
    most: &Line,
) -> Verdict {
    let ranks = cases.iter().zip(beyond).filter(|(_, beyond)| beyond.is_some());
    let view = cases.get(at).map(|(view, _)| view);
    Verdict {
        class: Class::Imbalance,
        rank: view.map_or(0, |view| view.rank),
        ranks: ranks.map(|((view, _), _)| view.rank).collect(),
        device: view.map_or(0, |view| view.device.device),
        bytes: beyond.get(at).copied().flatten().unwrap_or(0),
        confidence_ppm: 600_000,
        advice: Class::Imbalance.advice().to_string(),
        sentence,
        evidence,
        against: alloc::vec![
            "ranks with other roles (stages of a pipeline, experts) may differ by design"
                .to_string()
        ],
        culprit: (most.kind != lines::Kind::Nameless).then(|| most.frame.clone()),
        ..Verdict::default()
    }
}
