//! The job needs this much: nothing is kept that should not be.

use alloc::format;

use super::common::{
    about_births, gave_back, is_about_tensors, is_explained, too_early, unexplained,
};
use super::facts::{Facts, Judge, Outlook, Phrase, RestartAnswer, Share};
use super::remedy::{
    Cause, Remedy, advice_for_unpickled, is_called, is_of_checkpoint, unpickled_by,
};
use crate::detector::Layer;
use crate::diagnosis::evidence::account::unsigned;
use crate::diagnosis::evidence::births::AgeProfile;
use crate::diagnosis::evidence::case::{Case, Lines};
use crate::diagnosis::words::location;

pub(crate) const JUDGE: Judge = Judge {
    evaluate,
    confidence_ppm,
    outlook: Outlook::Load,
    share: Share::Tensors,
    restart: RestartAnswer::NeededAgain,
    phrase: Phrase::Plain,
    remedy,
};

fn evaluate(case: &Case<'_>, lines: &Lines<'_>, leaks: bool) -> Facts {
    let facts = Facts::default();
    let leak = "memory of earlier steps stays: a job that only needs more does not keep it";
    match case.layer {
        Layer::Peak => {
            let said = "the peaks within steps grow: it is given back in each step";
            return facts.needs(Some(!leaks), said, leak);
        }
        Layer::Retries => {
            let said = "the allocator had to empty its cache to serve what the steps ask for";
            return facts.needs(Some(true), said, "");
        }
        _ if !is_about_tensors(case) => return facts.needs(Some(false), "", ""),
        _ => {}
    }
    let in_peaks = case.context.in_peaks == Some(true);
    facts
        .needs(Some(case.is_counted()), "", too_early(case))
        .needs(Some(is_explained(case, lines)), "", unexplained(case, lines))
        .excluded_by(
            Some(leaks),
            leak,
            lines.top().map(|line| about_births(case, line)).unwrap_or_default(),
        )
        .supports(in_peaks.then_some("the peaks within steps grow, and the per-step minima do not"))
        .excluded_by(Some(case.give_backs().is_some()), gave_back(case), "")
}

fn confidence_ppm(case: &Case<'_>, lines: &Lines<'_>) -> u64 {
    if matches!(case.layer, Layer::Peak | Layer::Retries) {
        return 850_000;
    }
    match lines.top().map(|line| case.age_profile(line)) {
        Some(AgeProfile::Once | AgeProfile::Passing) => 900_000,
        Some(AgeProfile::Few | AgeProfile::Filling) => 800_000,
        _ => 700_000,
    }
}

fn remedy(case: &Case<'_>, lines: &Lines<'_>) -> Remedy {
    if matches!(case.layer, Layer::Peak | Layer::Retries) {
        return load();
    }
    let Some(line) = lines.top() else { return load() };
    let here = location(line.frame);
    let profile = case.age_profile(line);
    if case.is_workspace(line) {
        let text = format!(
            "each block of {here} is on a stream of its own, as the workspaces of a library are \
             (cuBLAS takes one for each stream): use a few streams again and again, or smaller \
             workspaces (CUBLAS_WORKSPACE_CONFIG=:4096:8)"
        );
        return Remedy::new(Cause::Workspaces, text, Some(unsigned(line.net.bytes)));
    }
    let is_made_once = matches!(profile, AgeProfile::Once | AgeProfile::Few | AgeProfile::Ended);
    if is_called(line.stack, "torch/optim/") && is_made_once {
        let text = "this is optimizer state, made at the first step() that needs it; it grows no \
                    further: shard it, or use an optimizer with less state, if there is no room \
                    for it";
        return Remedy::new(Cause::OptimizerState, text, None);
    }
    if let Some(cause) = unpickled_by(line.stack) {
        let text = advice_for_unpickled(cause, &here);
        return Remedy::new(cause, text, Some(unsigned(line.net.bytes)));
    }
    if is_of_checkpoint(line.stack) {
        let text = "these are copies made for a checkpoint: save sharded, offload to the CPU \
                    (cpu_offload=True), and drop them once they are written";
        return Remedy::new(Cause::Checkpoint, text, Some(unsigned(line.net.bytes)));
    }
    if profile == AgeProfile::Filling {
        let text = format!(
            "{here} fills something up and adds less and less: nothing to do if there is room \
             for it; a bound on its size saves the rest"
        );
        return Remedy::new(Cause::OneTime, text, None);
    }
    if profile == AgeProfile::Once {
        let text = format!(
            "{here} made this once and it stays (a copy of the weights, a buffer, newly trained \
             parameters): nothing to do if it is meant to be there"
        );
        return Remedy::new(Cause::OneTime, text, Some(unsigned(line.net.bytes)));
    }
    load()
}

fn load() -> Remedy {
    let text = "the job needs this memory: a smaller micro-batch or shorter sequences, activation \
                checkpointing or more sharding; a restart does not help";
    Remedy::new(Cause::Load, text, None)
}
