//! Private pools of compiled graphs, one more with each recompilation.

use alloc::format;
use alloc::string::String;

use super::common::is_in_pools;
use super::facts::{Facts, Judge, Outlook, Phrase, RestartAnswer, Share};
use super::remedy::{Cause, Remedy};
use crate::detector::Layer;
use crate::diagnosis::evidence::account::unsigned;
use crate::diagnosis::evidence::case::Case;
use crate::diagnosis::words::{bytes, count};

pub(crate) const JUDGE: Judge = Judge {
    evaluate: |case, _, _| evaluate(case),
    confidence_ppm: |_, _| 900_000,
    outlook: Outlook::Fault,
    share: Share::Private,
    restart: RestartAnswer::GivesBack,
    phrase: Phrase::Always("; it lies in private pools of compiled graphs"),
    remedy: |case, _| remedy(case),
};

fn evaluate(case: &Case<'_>) -> Facts {
    let is_possible = matches!(case.layer, Layer::Allocated | Layer::Reserved);
    let is_in_pools = is_possible.then(|| is_in_pools(case));
    let private = bytes(unsigned(case.private));
    let reserved = case.shape.as_ref().filter(|shape| shape.private > 0);
    let pools = reserved.filter(|_| is_in_pools == Some(true)).map(|shape| {
        let pools = match shape.private_pools {
            1 => "one private pool holds".into(),
            pools => format!("{} private pools hold", count(pools)),
        };
        format!("{pools} {}", bytes(shape.private))
    });
    let few = match case.private {
        1.. => format!("only {private} of what is new lie in private pools"),
        _ => String::new(),
    };
    Facts::default()
        .needs(Some(is_possible), "", "")
        .needs(
            is_in_pools,
            format!("{private} of what is new lie in private pools (CUDA graphs, or a MemPool)"),
            few,
        )
        .supports(pools)
}

fn remedy(case: &Case<'_>) -> Remedy {
    let text = "each new shape records a graph with a pool of its own: mark the sizes that change \
                as dynamic (torch._dynamo.mark_dynamic, dynamic=True), pad to a few lengths, or \
                leave CUDA graphs out (mode=\"default\"); TORCH_LOGS=recompiles names the reasons";
    let shape = case.shape.as_ref().map(|shape| shape.private.saturating_sub(case.peer_private));
    let saved = match unsigned(case.private) {
        0 => shape,
        private => Some(private),
    };
    Remedy::new(Cause::Recompiles, text, saved)
}
