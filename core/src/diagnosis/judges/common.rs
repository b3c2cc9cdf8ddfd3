//! What several judges ask.

use alloc::format;
use alloc::string::String;

use super::facts::Facts;
use super::remedy::is_inside;
use crate::detector::Layer;
use crate::diagnosis::constants::{CONFIRMED_PPM, EXPLAINED_PPM_MIN};
use crate::diagnosis::evidence::account::{signed, unsigned};
use crate::diagnosis::evidence::births::AgeProfile;
use crate::diagnosis::evidence::case::{Case, Lines, net_grown};
use crate::diagnosis::evidence::context::Readings;
use crate::diagnosis::evidence::lines::Line;
use crate::diagnosis::words::{bytes, location, percent, times};
use crate::snapshot::frames::is_compiled_region;

/// What the detector saw grow, in bytes; 0 where it did not follow bytes.
pub(crate) fn seen_bytes(case: &Case<'_>) -> i64 {
    if case.layer.has_rate() && case.layer != Layer::Blocks {
        signed(case.growth.grown_bytes)
    } else {
        0
    }
}

/// At least half of what was seen.
pub(crate) fn explains(case: &Case<'_>, bytes: i64) -> bool {
    bytes > 0 && bytes.saturating_mul(2) >= seen_bytes(case)
}

pub(crate) fn is_deferred(case: &Case<'_>) -> bool {
    case.layer == Layer::Deferred || explains(case, case.deferred)
}

pub(crate) fn is_in_pools(case: &Case<'_>) -> bool {
    match case.layer {
        Layer::Allocated => case.private.saturating_mul(2) >= case.whole(),
        Layer::Reserved => explains(case, case.private) || is_free_in_pools(case),
        _ => false,
    }
}

/// Do private pools hold enough for the growth, and most of what is free? No other request can have
/// that, and no setting gives it back.
fn is_free_in_pools(case: &Case<'_>) -> bool {
    let Some(shape) = &case.shape else { return false };
    let free = shape.inactive.saturating_add(shape.cached);
    let in_pools = shape.private.saturating_sub(shape.private_used);
    let held = shape.private.saturating_sub(case.peer_private);
    in_pools.saturating_mul(2) >= free && explains(case, signed(held))
}

/// Did CUDA graphs make the private pools of what is new? PyTorch numbers the pool of a capture by
/// its first number, and those that a program makes (`torch.cuda.MemPool`, a pool that graphs
/// share) by the second. Graphs of new shapes bring a pool each; what `torch.compile` records lies
/// under its frames.
pub(crate) fn is_of_graphs(case: &Case<'_>, lines: &Lines<'_>) -> bool {
    let (pools, line) = (&case.account.pools, lines.top());
    let is_captured = pools.iter().any(|&(capture, _)| capture > 0);
    let births = line.map_or(0, |line| line.births.count()) as usize;
    let is_one_each = pools.len() > 1 && pools.len().saturating_mul(2) >= births;
    let is_compiled = line.is_some_and(|line| {
        ["torch/_inductor/", "torch/cuda/graphs.py"].iter().any(|part| is_inside(line.stack, part))
            || line.stack.iter().any(|frame| is_compiled_region(frame))
    });
    is_captured || is_one_each || is_compiled
}

/// Is the growth in tensors, or did they grow while something else was followed?
pub(crate) fn is_about_tensors(case: &Case<'_>) -> bool {
    match case.layer {
        Layer::Allocated | Layer::Blocks => true,
        Layer::Reserved => case.tensors_grew(),
        _ => false,
    }
}

/// Where the growth is, if it is not in tensors.
pub(crate) fn other_account(case: &Case<'_>) -> String {
    match case.layer {
        Layer::Allocated | Layer::Blocks => String::new(),
        Layer::Reserved => match unsigned(case.net.bytes) {
            0 => "live tensors did not grow".into(),
            grown => format!("live tensors grew by {} only", bytes(grown)),
        },
        Layer::Spread if case.context.in_peaks == Some(false) => {
            "none of its lines keeps more in each step".into()
        }
        Layer::Peak | Layer::Spread => "what is high is the peaks within steps, and they are \
                                           given back"
            .into(),
        Layer::Deferred => "the blocks are not kept: they were freed".into(),
        Layer::Retries | Layer::Churn => "it is about how the allocator works, not about what \
                                            grows"
            .into(),
        Layer::Progress => "nothing was heard of its memory since it fell silent".into(),
        layer if layer.is_host() => "the growth is in the host's memory, not on the GPU".into(),
        _ => "the growth is outside PyTorch's allocator".into(),
    }
}

pub(crate) fn too_early(case: &Case<'_>) -> String {
    let (step, onset) = (case.step, case.growth.onset_step);
    format!("the snapshot of step {step} shows too little of a growth that began at step {onset}")
}

pub(crate) fn is_explained(case: &Case<'_>, lines: &Lines<'_>) -> bool {
    case.net_grown() > 0
        && !lines.all.is_empty()
        && case.share_ppm(net_grown(&lines.all)) >= EXPLAINED_PPM_MIN
}

pub(crate) fn unexplained(case: &Case<'_>, lines: &Lines<'_>) -> String {
    if case.net_grown() <= 0 {
        return "the stacks of live blocks show no growth".into();
    }
    let explained = percent(case.share_ppm(net_grown(&lines.all)));
    format!("known lines explain only {explained} of the growth")
}

/// Is most of what is alive older than the last moment at which much of it was freed? None where
/// no such moment is known.
pub(crate) fn outlasts(case: &Case<'_>, lines: &Lines<'_>) -> Option<bool> {
    let line = lines.top()?;
    let (_, burst) = case.burst(line)?;
    let all = line.births.bytes_before(u64::MAX);
    Some(line.births.bytes_before(burst.step).saturating_mul(2) > all)
}

pub(crate) fn gave_back(case: &Case<'_>) -> String {
    let said = |backs| format!("the level gave back most of what it had grown by {}", times(backs));
    case.give_backs().map(said).unwrap_or_default()
}

/// What the ages of a line's blocks say against a leak.
pub(crate) fn about_births(case: &Case<'_>, line: &Line<'_>) -> String {
    let here = location(line.frame);
    let births = line.births.count();
    match case.age_profile(line) {
        AgeProfile::Once => {
            format!("all new blocks of {here} were allocated in one step: the growth happened once")
        }
        AgeProfile::Few => {
            format!(
                "the blocks of {here} were allocated in {births} steps only: the growth has stopped"
            )
        }
        AgeProfile::Passing => {
            format!("the older blocks of {here} are gone again: it passes through")
        }
        AgeProfile::Ended => format!("{here} has no blocks of late steps: it has ended"),
        AgeProfile::Filling => format!("{here} adds less and less: something fills up"),
        AgeProfile::Steady | AgeProfile::Backlog | AgeProfile::Replaced | AgeProfile::Unknown => {
            String::new()
        }
    }
}

/// Which line took memory outside the allocator, and what no line explains.
pub(crate) fn with_lines(mut facts: Facts, case: &Case<'_>) -> Facts {
    let Some(outside) = &case.outside_lines else { return facts };
    for said in outside.evidence(case) {
        facts = facts.supports(Some(said));
    }
    for said in outside.against() {
        facts = facts.doubts(Some(said));
    }
    facts
}

pub(crate) fn grew(name: &str, was: Option<u64>, is: Option<u64>) -> Option<String> {
    let (was, is) = was.zip(is)?;
    Some(format!("{name} went from {} to {}", bytes(was), bytes(is)))
}

/// What was read at both steps is surer than what the detector alone has seen.
pub(crate) fn confidence_of_readings(case: &Case<'_>) -> u64 {
    let (before, now) = (&case.context.before, &case.context.now);
    let grown = match case.layer {
        Layer::NonTorch => Readings::grown(before.non_torch, now.non_torch),
        Layer::Other => Readings::grown(before.other, now.other),
        Layer::Pinned => Readings::grown(before.pinned, now.pinned),
        Layer::Shared => Readings::grown(before.shared, now.shared),
        Layer::Workers => Readings::grown(before.workers, now.workers),
        _ => Readings::grown(before.rss_anon, now.rss_anon),
    };
    let named = case.outside_lines.as_ref().map_or(0, |outside| outside.share_ppm());
    if named >= CONFIRMED_PPM || grown.is_some_and(|grown| grown > 0) { 950_000 } else { 800_000 }
}

/// What the line to name has taken.
pub(crate) fn taken(case: &Case<'_>) -> Option<u64> {
    let line = case.outside_lines.as_ref()?.culprit()?;
    Some(unsigned(line.net.bytes))
}
