//! The diagnosis in words and figures, from the case and the class that was chosen.

use crate::detector::{Layer, Scope};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::confidence::confidence_ppm;
use super::diagnosis::{Diagnosis, Suspect};
use super::restart::restart;
use super::sentence::parts;
use crate::diagnosis::class::Class;
use crate::diagnosis::constants::SUSPECTS_MAX;
use crate::diagnosis::evidence::account::{Measure, signed, unsigned};
use crate::diagnosis::evidence::case::{Case, Lines, share_of};
use crate::diagnosis::evidence::lines::Line;
use crate::diagnosis::evidence::outside::Outside;
use crate::diagnosis::evidence::shared::model_call;
use crate::diagnosis::judges::Alternative;
use crate::diagnosis::judges::facts::Share;
use crate::diagnosis::judges::facts::Standing;
use crate::diagnosis::words::{amount, bytes, count, location, percent};
use crate::snapshot::frames::telling_frame;
use crate::snapshot::origin::Origin;
use crate::snapshot::{Frame, OutsideUse, allocation_step};

pub(crate) fn report(
    case: &Case<'_>,
    lines: &Lines<'_>,
    mut alternatives: Vec<Alternative>,
) -> Diagnosis {
    let answer = alternatives.first();
    let class = answer
        .filter(|each| each.standing == Standing::Holds)
        .map_or(Class::Unknown, |each| each.class);
    let confidence_ppm = confidence_ppm(case, lines, &alternatives);
    // Of memory that no tensor uses, no line of code is to blame.
    let names_line = case.layer.is_in_blocks() || class == Class::Leak;
    let top = lines.top().filter(|_| names_line);
    if let Some(first) = alternatives.first_mut() {
        add_sentences(first, case, class, top);
    }
    let first = alternatives.first();
    let outside = outside_lines(case, class);
    let blame = blame(case, class, top);
    let (grown, explained) = explained(case, class, blame.culprit);
    let remedy = (class.judge().remedy)(case, lines);
    let parts = parts(case, lines, class);
    Diagnosis {
        class,
        layer: case.growth.layer,
        scope: case.growth.scope,
        culprit: blame.frame.cloned(),
        stack: owned(blame.stack),
        explained_ppm: blame
            .explained_ppm
            .unwrap_or_else(|| share_of(signed(explained), signed(grown))),
        confidence_ppm,
        allocation_steps: blame.allocation_steps,
        histogram: top.map(|line| case.generations(line)).unwrap_or_default(),
        evidence: first.map(|each| each.evidence.clone()).unwrap_or_default(),
        against: first.map(|each| each.against.clone()).unwrap_or_default(),
        suspects: suspects(outside.map_or(lines, |outside| &outside.lines)),
        advice: remedy.text.clone(),
        remedy,
        restart: restart(case, class),
        ends_soon: super::urgency::ends_soon(case, class),
        steps_to_oom: match case.context.ooms {
            Some(1..) => Some(0),
            _ => case.growth.steps_to_oom,
        },
        age_steps: case.growth.last_step.saturating_sub(case.growth.onset_step),
        stands_out: case.growth.scope == Scope::OneRank && case.growth.peers > 0,
        peers_compared: case.peers,
        sentence: parts.sentence(case.growth, true),
        parts: Some(parts),
        seen: Some(*case.growth),
        alternatives,
    }
}

/// The code that a diagnosis names.
struct Blame<'a> {
    /// The line whose blocks grew, or that took memory outside the allocator.
    culprit: Option<&'a Line<'a>>,
    /// Its frame; without such a line the frame of the workers, of the level, or of the call that
    /// emptied the cache.
    frame: Option<&'a Frame>,
    /// The stack with that frame, innermost first.
    stack: &'a [&'a Frame],
    /// How much of the growth it explains, in millionths; `None` where bytes alone say it.
    explained_ppm: Option<u32>,
    /// Steps in which its blocks were allocated.
    allocation_steps: u64,
}

fn blame<'a>(case: &'a Case<'a>, class: Class, top: Option<&'a Line<'a>>) -> Blame<'a> {
    let outside = outside_lines(case, class);
    let taker = outside.and_then(|outside| outside.culprit());
    let is_to_blame = class.judge().share != Share::Nothing;
    // Of a level of the steps the line that the traces show, of an emptied cache who emptied it.
    let of_level = case.context.level.line.as_ref().filter(|_| !class.is_outside());
    let culprit = taker.or(top.filter(|_| is_to_blame && of_level.is_none()));
    let workers = case.workers.as_ref();
    let of_workers = workers.and_then(|workers| workers.line());
    let emptied_by = case.emptied_by.as_slice();
    let emptied_at = telling_frame(emptied_by).filter(|_| class == Class::CacheThrash);
    Blame {
        culprit,
        frame: culprit
            .map(|line| line.frame)
            .or(of_workers)
            .or(of_level.map(|(frame, _)| frame))
            .or(emptied_at),
        stack: match culprit {
            Some(line) => line.stack,
            None if emptied_at.is_some() => emptied_by,
            None => workers.map_or(&[][..], |workers| workers.stack()),
        },
        explained_ppm: match culprit {
            Some(_) if taker.is_some() => outside.map(|outside| outside.share_ppm()),
            Some(line) => Some(match case.outgrown(line) {
                Some(of) => share_of(signed(of.rising_sizes), signed(of.large_sizes)),
                None => case.share_ppm(line.net_grown),
            }),
            // Samples of time explain no bytes.
            None if of_workers.is_some() => Some(0),
            None => of_level.map(|(_, ppm)| *ppm),
        },
        allocation_steps: match (taker, outside) {
            (Some(_), Some(outside)) => outside.births(),
            _ => culprit.map_or(0, |line| line.births.count()),
        },
    }
}

/// The lines that took memory outside the allocator, where the answer is about such memory.
fn outside_lines<'a>(case: &'a Case<'a>, class: Class) -> Option<&'a Outside<'a>> {
    case.outside_lines.as_ref().filter(|_| class.is_outside())
}

/// Adds what the case says for and against the answer, whatever its class: first the comparison of
/// the ranks, last the trace.
fn add_sentences(answer: &mut Alternative, case: &Case<'_>, class: Class, top: Option<&Line<'_>>) {
    answer.evidence.splice(0..0, evidence(case, class, top));
    answer.against.splice(0..0, against(case, class, top));
    answer.evidence.extend(case.context.level.evidence.iter().cloned());
    if let Some(trace) = &case.context.trace {
        answer.evidence.extend(trace.evidence.iter().cloned());
        answer.against.extend(trace.against.iter().cloned());
    }
}

/// Bytes that grew, and how many of them are explained.
fn explained(case: &Case<'_>, class: Class, culprit: Option<&Line<'_>>) -> (u64, u64) {
    let shape = case.shape.as_ref();
    let outside = outside_lines(case, class);
    if let Some((outside, line)) = outside.zip(culprit) {
        let whole = unsigned(outside.whole);
        return (whole, unsigned(line.net.bytes).min(whole));
    }
    let grown = match case.layer {
        Layer::Allocated => unsigned(case.net_grown()),
        Layer::Blocks => unsigned(case.net.bytes),
        Layer::Retries | Layer::Churn | Layer::Progress => 0,
        _ => case.growth.grown_bytes,
    };
    let explained = match class.judge().share {
        Share::Tensors => culprit.map_or(0, |line| unsigned(line.net.bytes)),
        Share::Free => shape.map_or(0, |shape| shape.inactive.saturating_add(shape.cached)),
        Share::Deferred => unsigned(case.deferred),
        Share::Private => unsigned(case.private).max(shape.map_or(0, |shape| shape.private)),
        Share::Outside => {
            outside.map_or_else(|| named_on_device(case.outside), |outside| unsigned(outside.net))
        }
        Share::Host => grown,
        Share::Nothing => 0,
    };
    (grown, explained.min(grown))
}

/// Bytes of the device that are known to be of something else than PyTorch's allocator, to which
/// the other two origins give its segments, too.
fn named_on_device(outside: &[OutsideUse]) -> u64 {
    let is_others = |of: &&OutsideUse| {
        let is_shared = matches!(of.origin, Origin::CudaMalloc | Origin::DriverVmm);
        of.origin.is_on_device() && !is_shared
    };
    outside.iter().filter(is_others).fold(0, |sum: u64, of| sum.saturating_add(of.bytes))
}

/// What the named line's blocks say.
fn evidence(case: &Case<'_>, class: Class, top: Option<&Line<'_>>) -> Vec<String> {
    let mut evidence = Vec::new();
    if class == Class::Fragmentation && case.layer == Layer::Reserved {
        let rate = bytes(case.growth.bytes_per_step);
        evidence.push(match case.growth.bytes_per_step {
            0 => format!(
                "{} are reserved beyond the highest peak of the tensors",
                bytes(case.growth.grown_bytes)
            ),
            _ => format!(
                "reserved memory beyond the highest peak of the tensors grows by {rate} each step"
            ),
        });
    }
    let is_named = class == Class::Fragmentation || case.layer.is_in_blocks();
    if !is_named && case.layer.has_rate() {
        let grown = bytes(case.growth.grown_bytes);
        evidence.push(match case.context.trace {
            Some(_) => format!("it grew by {grown} {}", case.span()),
            None => format!("it grew by about {grown} since step {}", case.growth.onset_step),
        });
    }
    let (Some(line), true) = (top, case.layer.is_in_blocks()) else { return evidence };
    let span = case.span();
    let here = location(line.frame);
    if case.layer == Layer::Deferred {
        let held = amount(Measure::Bytes, line.grown.bytes);
        evidence.push(format!("{held} of it were allocated at {here}"));
        return evidence;
    }
    let grown = amount(case.measure, line.grown.by(case.measure));
    let below = match line.lines_inside {
        0 | 1 => String::new(),
        lines => format!("{lines} lines below "),
    };
    evidence.push(format!("blocks from {below}{here} grew by {grown} {span}"));
    if case.peers > 0 {
        let peers = amount(case.measure, line.peer_grown.by(case.measure));
        evidence.push(match case.peers {
            1 => format!("the same stacks grew by {peers} on its only peer"),
            count => format!("the same stacks grew by {peers} on the median of {count} peers"),
        });
    }
    evidence.extend(births(case, line));
    let share = percent(case.share_ppm(line.net_grown));
    evidence.push(format!("this line explains {share} of the growth"));
    if case.passing > 0 {
        evidence.push(format!(
            "{} more are in blocks of the last steps only, which pass through",
            amount(case.measure, case.passing),
        ));
    }
    if line.stacks > 1 {
        evidence.push(format!("{} stacks through it grew together", line.stacks));
    }
    let caller = model_call(line.stack).filter(|&frame| frame != line.frame);
    evidence.extend(caller.map(|frame| {
        format!("{} called the model: what keeps the tensors may be there", location(frame))
    }));
    evidence.extend(
        library(line).map(|frame| {
            format!("most of it was allocated inside a library, at {}", location(frame))
        }),
    );
    evidence
}

/// The line of a library that a line of the user's ended up in.
fn library<'a>(line: &Line<'a>) -> Option<&'a Frame> {
    let inside = line.stack.iter().take_while(|&&frame| frame != line.frame);
    inside.copied().find(|frame| crate::snapshot::frames::is_library_frame(frame))
}

fn births(case: &Case<'_>, line: &Line<'_>) -> Option<String> {
    let steps = [line.births.first()?, line.births.last()?];
    let [first, last] = steps.map(|born| count(allocation_step(born)));
    let generations = line.births.count();
    let blocks = count(line.blocks);
    // Steps of a trace alone have no numbers.
    let is_numbered = case.context.trace.is_none();
    if generations == 1 {
        let step = if is_numbered { format!("step {first}") } else { "one step".into() };
        return Some(match line.blocks {
            1 => format!("its only live block was allocated in {step}"),
            _ => format!("its {blocks} live blocks were all allocated in {step}"),
        });
    }
    let range = if is_numbered { format!(", {first} to {last}") } else { String::new() };
    let every = line.births.every_steps(case.born_since).filter(|&every| every > 2);
    let every = every.map_or(String::new(), |every| format!(", about every {every} steps"));
    let born = format!("were allocated in {} distinct steps", count(generations));
    Some(format!("its {blocks} live blocks {born}{range}{every}"))
}

/// Doubts: what the comparison lacks.
fn against(case: &Case<'_>, class: Class, top: Option<&Line<'_>>) -> Vec<String> {
    let mut against = Vec::new();
    if case.peers_left_out > 0 {
        let left_out = case.peers_left_out;
        against.push(match left_out {
            1 => "one peer is shown at another step and was left out".to_string(),
            _ => format!("{left_out} peers are shown at other steps and were left out"),
        });
    }
    if case.compared() == 0 {
        against.push("there are no peers to compare with".to_string());
    }
    if !case.layer.is_in_blocks() {
        return against;
    }
    let comes_back = case.give_backs().is_some();
    if !case.account.has_before && !comes_back && case.layer != Layer::Deferred {
        against.push("there is no earlier state: growth is told from the birth of blocks".into());
    }
    if case.account.incomplete {
        against.push("the tape's table of live blocks was full: some blocks are missing".into());
    }
    let nameless = case.account.nameless.by(case.measure);
    if nameless > case.net_grown().max(0) / 10 {
        against.push(format!("{} of the growth have no stack", amount(case.measure, nameless)));
    }
    if case.net_grown() <= 0 && case.layer != Layer::Deferred {
        against.push("the snapshots show no growth beyond the peers".to_string());
    }
    if let Some(line) = top.filter(|_| class == Class::Leak) {
        let share = case.share_ppm(line.net_grown);
        if share < 500_000 {
            against.push(format!("the top line explains only {} of the growth", percent(share)));
        }
    }
    against
}

/// The line to name first, then the others; the line that called the model is among them, even if
/// it is not the one to name.
fn suspects(lines: &Lines<'_>) -> Vec<Suspect> {
    let mut all: Vec<Suspect> = lines.shared.iter().chain(&lines.all).map(suspect).collect();
    all.truncate(SUSPECTS_MAX);
    let caller = lines.top().and_then(|line| Some((line, model_call(line.stack)?)));
    let is_missing = |frame: &Frame| !all.iter().any(|suspect| suspect.frame == *frame);
    if let Some((line, frame)) = caller.filter(|(_, frame)| is_missing(frame)) {
        all.truncate(SUSPECTS_MAX - 1);
        all.insert(1.min(all.len()), Suspect { frame: frame.clone(), ..suspect(line) });
    }
    all
}

fn suspect(line: &Line<'_>) -> Suspect {
    Suspect {
        frame: line.frame.clone(),
        stack: owned(line.stack),
        stacks: line.stacks,
        grown_bytes: unsigned(line.grown.bytes),
        peer_bytes: unsigned(line.peer_grown.bytes),
        blocks: line.blocks,
        allocation_steps: line.births.count(),
    }
}

fn owned(stack: &[&Frame]) -> Vec<Frame> {
    stack.iter().map(|&frame| frame.clone()).collect()
}
