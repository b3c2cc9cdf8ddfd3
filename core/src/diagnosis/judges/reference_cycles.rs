//! Tensors in cycles of Python objects: they wait for the garbage collector, which frees many at
//! once.

use alloc::format;

use super::common::{gave_back, is_about_tensors, outlasts};
use super::facts::{Facts, Judge, Outlook, Phrase, RestartAnswer, Share};
use super::remedy::{Cause, Remedy};
use crate::detector::Layer;
use crate::diagnosis::evidence::account::unsigned;
use crate::diagnosis::evidence::births::AgeProfile;
use crate::diagnosis::evidence::case::{Case, Lines};
use crate::diagnosis::words::{bytes, location, plural};

pub(crate) const JUDGE: Judge = Judge {
    evaluate: |case, lines, _| evaluate(case, lines),
    confidence_ppm: |_, _| 750_000,
    outlook: Outlook::Passing,
    share: Share::Tensors,
    restart: RestartAnswer::GivesBack,
    phrase: Phrase::Always("it", ("comes", "came"), "back in bursts, as reference cycles do"),
    remedy,
};

fn evaluate(case: &Case<'_>, lines: &Lines<'_>) -> Facts {
    if !is_about_tensors(case) && case.layer != Layer::Peak {
        return Facts::default().needs(Some(false), "", "");
    }
    let stays = outlasts(case, lines);
    let is_collected = case.give_backs().is_some() || stays == Some(false);
    let is_passing = lines.top().map(|line| case.age_profile(line) == AgeProfile::Passing);
    let burst = lines.top().and_then(|line| {
        let (_, burst) = case.burst(line)?;
        Some(format!(
            "{} ({}) of {} different steps from {} were freed at one moment, in step {}",
            plural(burst.blocks, "block"),
            bytes(burst.bytes),
            burst.births,
            location(line.frame),
            burst.step,
        ))
    });
    Facts::default()
        .needs(is_collected.then_some(true), gave_back(case), "")
        .doubts(
            is_collected.then_some("a list that the program empties at one moment looks the same"),
        )
        .excluded_by(
            is_passing.filter(|_| is_collected),
            "its blocks are of the last steps only, as those of any step",
            "",
        )
        .supports(burst)
        .excluded_by(
            stays.filter(|_| is_collected),
            "most of what is alive is older than that and stayed",
            "most of what is alive is younger than that: it goes together",
        )
}

fn remedy(case: &Case<'_>, lines: &Lines<'_>) -> Remedy {
    let waiting = lines.top().and_then(|line| case.burst(line)).map(|(_, burst)| burst.bytes);
    let waiting = waiting.unwrap_or_else(|| unsigned(case.net.bytes));
    let from = lines.top().map(|line| format!(" around {}", location(line.frame)));
    let text = format!(
        "break the cycle{} (a closure or an object that holds a tensor and, in the end, itself; \
         an exception kept with its traceback), or call gc.collect() every some hundred steps; \
         torch.utils.viz._cycles.warn_tensor_cycles() names the cycles",
        from.unwrap_or_default(),
    );
    Remedy::new(Cause::Cycles, text, Some(waiting))
}
