//! The allocator's cache is emptied and filled again in most steps.

use alloc::format;
use alloc::string::String;

use super::common::other_account;
use super::facts::{Facts, Judge, Outlook, Phrase, RestartAnswer, Share};
use super::remedy::{Cause, Remedy};
use crate::detector::Layer;
use crate::diagnosis::evidence::case::Case;
use crate::diagnosis::words::bytes;

pub(crate) const JUDGE: Judge = Judge {
    evaluate: |case, _, _| evaluate(case),
    confidence_ppm: |_, _| 950_000,
    outlook: Outlook::Open,
    share: Share::Tensors,
    restart: RestartAnswer::EmptiedAgain,
    phrase: Phrase::Unless(Layer::Churn, "the cache", ("is", "was"), "emptied in most steps"),
    remedy: |_, _| remedy(),
};

fn evaluate(case: &Case<'_>) -> Facts {
    let churn = &case.churn;
    let is_seen = churn.steps > 0;
    let said = format!(
        "in {} of the last {} steps segments went back to the device and others were taken, {} \
         in all",
        churn.thrashing_steps,
        churn.steps,
        bytes(churn.taken_bytes),
    );
    let thrashes = case.layer == Layer::Churn || churn.is_thrash();
    let only_seen = |is: bool, said: String| if is { said } else { String::new() };
    Facts::default()
        .needs(
            Some(case.layer.is_in_segments()),
            "",
            only_seen(churn.is_thrash(), other_account(case)),
        )
        .needs(
            (is_seen || case.layer == Layer::Churn).then_some(thrashes),
            only_seen(is_seen, said.clone()),
            only_seen(churn.thrashing_steps > 0, said),
        )
}

const ADVICE: &str = "remove torch.cuda.empty_cache() from the training loop, or call it once \
                      after the phase that needs it: each step waits for the device to free \
                      memory and to take it again; without one, the device is so full that the \
                      allocator empties its cache itself: lower the peak";

fn remedy() -> Remedy {
    Remedy::new(Cause::EmptyCache, ADVICE, None)
}
