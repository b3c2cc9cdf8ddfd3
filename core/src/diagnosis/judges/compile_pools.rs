//! Private pools of CUDA graphs, one more with each recompilation.

use alloc::format;
use alloc::string::String;

use super::common::{is_in_pools, is_of_graphs};
use super::facts::{Facts, Judge, Outlook, Phrase, RestartAnswer, Share};
use super::remedy::{Cause, Remedy};
use crate::detector::Layer;
use crate::diagnosis::evidence::account::unsigned;
use crate::diagnosis::evidence::case::{Case, Lines};
use crate::diagnosis::words::{bytes, count};

pub(crate) const JUDGE: Judge = Judge {
    evaluate: |case, lines, _| evaluate(case, lines),
    confidence_ppm: |_, _| 900_000,
    outlook: Outlook::Fault,
    share: Share::Private,
    restart: RestartAnswer::GivesBack,
    phrase: Phrase::Always("it", ("lies", "lay"), "in private pools of CUDA graphs"),
    remedy: |case, _| remedy(case),
};

fn evaluate(case: &Case<'_>, lines: &Lines<'_>) -> Facts {
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
    let new = match case.private {
        1.. => format!("{private} of what is new lie in private pools"),
        _ => String::new(),
    };
    let few = if new.is_empty() { new.clone() } else { format!("only {new}") };
    // Whose pools hold free memory is not known, and no setting gives it back.
    let is_of_graphs = case.layer != Layer::Allocated || is_of_graphs(case, lines);
    let of_program = "no CUDA graph made the private pool of what is new: the program allocates in \
                      a pool of its own (torch.cuda.MemPool)";
    Facts::default()
        .needs(Some(is_possible), "", "")
        .needs(is_in_pools, new, few)
        .excluded_by(is_in_pools.map(|is| is && !is_of_graphs), of_program, "")
        .supports(pools)
}

fn remedy(case: &Case<'_>) -> Remedy {
    let text = "each new shape records a graph with a pool of its own: mark the sizes that change \
                as dynamic (torch._dynamo.mark_dynamic, dynamic=True), pad to a few lengths, or \
                leave CUDA graphs out (mode=\"default\"); TORCH_LOGS=recompiles names the reasons; \
                a graph that outlives its model keeps its pool: drop the CUDAGraph and its outputs \
                with the model";
    let shape = case.shape.as_ref().map(|shape| shape.private.saturating_sub(case.peer_private));
    let saved = match unsigned(case.private) {
        0 => shape,
        private => Some(private),
    };
    Remedy::new(Cause::Recompiles, text, saved)
}
