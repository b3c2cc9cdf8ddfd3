//! Remedies for what lives in the allocator.

use alloc::vec::Vec;

use super::*;
use crate::diagnosis::shape::Shape;

/// With so many different sizes of large requests, rounding them helps.
const SIZES_MANY: u64 = 64;

pub(in crate::diagnosis) fn deferred(case: &Case<'_>) -> Remedy {
    let text = "other streams hold on to what was freed (record_stream, transfers, collectives): \
                wait for them earlier (stream.synchronize() or wait_stream() once a step), and \
                keep fewer batches in flight";
    Remedy::new(Cause::Streams, text.into(), Some(unsigned(case.deferred)))
}

pub(in crate::diagnosis) fn fragmentation(case: &Case<'_>) -> Remedy {
    let shape = case.shape.as_ref();
    let settings = case.around.allocator;
    let is_expandable =
        settings.expandable_segments.unwrap_or_else(|| shape.is_some_and(|shape| shape.expandable));
    let mut steps: Vec<String> = Vec::new();
    if case.is_cache() {
        let idle = case.idle_cache();
        let text = format!(
            "{} wait in whole free segments, which the allocator gives back before it fails: \
             call torch.cuda.empty_cache() once behind the phase that needed them (a checkpoint, \
             an evaluation) if NCCL or other processes need the room, not in the loop",
            bytes(idle),
        );
        return Remedy::new(Cause::CachedSegments, text, Some(idle));
    }
    if !is_expandable {
        steps.push("set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True".into());
    }
    let sizes = case.requests.map_or(0, |requests| requests.large_sizes);
    if sizes >= SIZES_MANY {
        steps.push(format!(
            "{sizes} different sizes were asked for lately: pad to a few lengths, or set \
             roundup_power2_divisions:8"
        ));
    } else {
        steps.push("run the largest batch first, and pad to a few lengths".into());
    }
    if is_expandable {
        steps.push("expandable_segments is on already, so its free pieces are small".into());
    }
    if let Some(holder) = shape.and_then(|shape| shape.holder.as_ref()) {
        let here = place(&holder.frame);
        steps.push(format!("allocate what {here} keeps before the first step, or free it earlier"));
    }
    let text = format!("{}; a restart gives the memory back", steps.join("; "));
    Remedy::new(Cause::Fragments, text, shape.map(Shape::unused))
}

impl Shape {
    /// Free bytes in segments that are in use.
    fn unused(&self) -> u64 {
        self.inactive
    }
}

pub(in crate::diagnosis) fn compile_pools(case: &Case<'_>) -> Remedy {
    let text = "each new shape records a graph with a pool of its own: mark the sizes that change \
                as dynamic (torch._dynamo.mark_dynamic, dynamic=True), pad to a few lengths, or \
                leave CUDA graphs out (mode=\"default\"); TORCH_LOGS=recompiles names the reasons";
    let shape = case.shape.as_ref().map(|shape| shape.private.saturating_sub(case.peer_private));
    let saved = match unsigned(case.private) {
        0 => shape,
        private => Some(private),
    };
    Remedy::new(Cause::Recompiles, text.into(), saved)
}

pub(in crate::diagnosis) fn thrash() -> Remedy {
    let text = "remove torch.cuda.empty_cache() from the training loop, or call it once behind the \
                phase that needs it: each step waits for the device to free memory and to take it \
                again";
    Remedy::new(Cause::EmptyCache, text.into(), None)
}
