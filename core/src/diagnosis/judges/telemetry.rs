//! The recorder does not see enough to say anything else.

use alloc::format;

use super::facts::{Facts, Judge, Outlook, Phrase, RestartAnswer, Share};
use super::remedy::{Cause, Remedy};
use crate::detector::Layer;
use crate::diagnosis::evidence::case::Case;
use crate::diagnosis::words::{bytes, count};

pub(crate) const JUDGE: Judge = Judge {
    evaluate: |case, _, _| evaluate(case),
    confidence_ppm: |_, _| 800_000,
    outlook: Outlook::Passing,
    share: Share::Nothing,
    restart: RestartAnswer::Unknown,
    phrase: Phrase::Unless(Layer::Progress, "too little", ("was", "was"), "recorded to say more"),
    remedy: |case, _| remedy(case),
};

fn evaluate(case: &Case<'_>) -> Facts {
    if case.layer == Layer::Progress {
        let (last, peers) = (count(case.growth.onset_step), count(case.growth.last_step));
        let said = format!("its last step is {last}, its peers have finished step {peers}");
        return Facts::default().needs(Some(true), said, "");
    }
    // A quarter of a growth that was not recorded hides what grew.
    let held = case.account.held_bytes;
    let missing = case.allocated.saturating_sub(held);
    let is_short = case.account.incomplete
        && case.layer.is_in_blocks()
        && missing > 0
        && missing.saturating_mul(4) >= case.growth.grown_bytes;
    let span = case.growth.last_step.saturating_sub(case.growth.onset_step);
    let steps = case.context.steps_missing.filter(|&steps| steps > 0);
    let has_gap = steps.is_some_and(|steps| steps.saturating_mul(4) >= span);
    let gap =
        steps.map(|steps| format!("{} of {} steps were not recorded", count(steps), count(span)));
    let (gap, small_gap) = if has_gap { (gap, None) } else { (None, gap) };
    Facts::default()
        .needs(Some(is_short || has_gap), "", "")
        .supports(is_short.then(|| {
            format!(
                "the allocator counts {} in tensors, the blocks that were recorded hold {}",
                bytes(case.allocated),
                bytes(held),
            )
        }))
        .supports(gap)
        .doubts(small_gap)
}

fn remedy(case: &Case<'_>) -> Remedy {
    let text = if case.layer == Layer::Progress {
        "look whether the process lives and whether the agent of its node runs: nothing is known \
         of its memory until it is heard again"
    } else {
        "repair the recording first: give the tape more room (limitations of the rank name what \
         was lost), then take another capture"
    };
    Remedy::new(Cause::Recording, text, None)
}
