//! The allocator's cache is emptied and filled again in most steps.

use alloc::format;
use alloc::string::String;

use super::common::other_account;
use super::facts::{Facts, Judge, Outlook, Phrase, RestartAnswer, Share};
use super::remedy::{Cause, Remedy};
use super::verdict::Verdict;
use crate::detector::Layer;
use crate::diagnosis::class::Class;
use crate::diagnosis::evidence::case::Case;
use crate::diagnosis::evidence::view::View;
use crate::diagnosis::words::{bytes, location, plural};
use crate::snapshot::frames::telling_frame;

pub(crate) const JUDGE: Judge = Judge {
    evaluate: |case, _, _| evaluate(case),
    confidence_ppm: |_, _| 950_000,
    outlook: Outlook::Open,
    share: Share::Tensors,
    restart: RestartAnswer::EmptiedAgain,
    phrase: Phrase::Unless(Layer::Churn, "; the cache is emptied in most steps"),
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
                      behind the phase that needs it: each step waits for the device to free \
                      memory and to take it again; without one, the device is so full that the \
                      allocator empties its cache itself: lower the peak";

fn remedy() -> Remedy {
    Remedy::new(Cause::EmptyCache, ADVICE, None)
}

/// The same in files of PyTorch.
pub(crate) fn in_files(views: &[View<'_>]) -> Option<Verdict> {
    let is_thrashing = |view: &&View<'_>| view.device.trace.churn.is_thrash();
    let view = views.iter().find(is_thrashing)?;
    let churn = &view.device.trace.churn;
    let stack = view.stack(view.device.trace.returned_by);
    let culprit = telling_frame(&stack).cloned();
    let at = culprit.as_ref().map_or(String::new(), |frame| format!(", by {}", location(frame)));
    let a_step = churn.taken_bytes / churn.steps.max(1);
    Some(Verdict {
        ranks: views.iter().filter(is_thrashing).map(|view| view.rank).collect(),
        bytes: a_step,
        confidence_ppm: 850_000,
        sentence: format!(
            "rank {} gives memory back to the device and takes it again in most steps{at}: {} a \
             step",
            view.rank,
            bytes(a_step)
        ),
        evidence: alloc::vec![format!(
            "in {} of {} segments were given back and others taken",
            churn.thrashing_steps,
            plural(churn.steps, "step")
        )],
        stack: stack.into_iter().cloned().collect(),
        culprit,
        ..Verdict::of(Class::CacheThrash, ADVICE, view)
    })
}
