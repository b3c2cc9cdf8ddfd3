//! Memory of the device that PyTorch's allocator did not give out.

use alloc::format;

use super::common::{confidence_of_readings, grew, taken, with_lines};
use super::facts::{Facts, Judge, Outlook, Phrase, RestartAnswer, Share};
use super::remedy::{Cause, Remedy};
use crate::detector::Layer;
use crate::diagnosis::evidence::case::Case;
use crate::diagnosis::evidence::context::Readings;
use crate::diagnosis::words::{bytes, plural};
use crate::snapshot::origin::Origin;

pub(crate) const JUDGE: Judge = Judge {
    evaluate: |case, _, _| evaluate(case),
    confidence_ppm: |case, _| confidence_of_readings(case),
    outlook: Outlook::Fault,
    share: Share::Outside,
    restart: RestartAnswer::GivesBack,
    phrase: Phrase::Plain,
    remedy: |case, _| remedy(case),
};

fn evaluate(case: &Case<'_>) -> Facts {
    let (before, now) = (&case.context.before, &case.context.now);
    if !case.layer.is_outside() {
        let grown = Readings::grown(before.non_torch, now.non_torch);
        let grown = grown.filter(|_| case.layer.names_device());
        let said = grown.map(|grown| {
            format!("memory of the process beside PyTorch's grew by {} only", bytes(grown))
        });
        return Facts::default().needs(Some(false), "", said.unwrap_or_default());
    }
    let (was, is, name) = match case.layer {
        Layer::Other => (before.other, now.other, "memory of other processes on the device"),
        _ => (before.non_torch, now.non_torch, "memory of the process beside PyTorch's"),
    };
    let mut facts = Facts::default().needs(Some(true), "", "").supports(grew(name, was, is));
    facts = with_lines(facts, case);
    for of in case.outside.iter().filter(|of| of.origin.is_on_device() && of.bytes > 0) {
        // The allocator takes its own segments with `cudaMalloc` or from the driver.
        if !matches!(of.origin, Origin::CudaMalloc | Origin::DriverVmm) {
            let pieces = if of.count == 1 { "one piece".into() } else { plural(of.count, "piece") };
            let said = format!("{} holds {} in {pieces}", of.origin.name(), bytes(of.bytes));
            facts = facts.supports(Some(said));
        }
    }
    let contexts = now.contexts.filter(|&contexts| contexts > 1);
    facts.supports(
        contexts.map(|contexts| {
            format!("{contexts} processes of the job have a context on this device")
        }),
    )
}

fn remedy(case: &Case<'_>) -> Remedy {
    let grown = Some(case.growth.grown_bytes);
    if case.layer == Layer::Other {
        let text = "other processes take memory on this GPU: nvidia-smi names them; look for a \
                    process of an earlier attempt that did not end, a notebook, or ranks that \
                    share the device by mistake (CUDA_VISIBLE_DEVICES)";
        return Remedy::new(Cause::Neighbours, text, grown);
    }
    if case.context.now.contexts.is_some_and(|contexts| contexts > 1) {
        let text = "other ranks have made a context on this device: call \
                    torch.cuda.set_device(local_rank) before anything else, and load checkpoints \
                    with map_location";
        return Remedy::new(Cause::Contexts, text, grown);
    }
    let taken_by = case.outside_lines.as_ref().and_then(|outside| outside.origin());
    if let Some(origin) = taken_by.filter(|&origin| origin != Origin::Nccl) {
        let text = format!(
            "look at what the line keeps of it: give each piece back when it is done with \
             ({}), or take it once and use it again",
            giving_back(origin),
        );
        return Remedy::new(Cause::Outside, text, taken(case));
    }
    let nccl = case.outside.iter().filter(|of| of.origin == Origin::Nccl);
    let nccl = nccl.fold(0, |sum: u64, of| sum.saturating_add(of.bytes));
    if taken_by.is_some() || (nccl > 0 && nccl.saturating_mul(2) >= case.growth.grown_bytes) {
        let text = "communicators of NCCL take this memory: make process groups once and use them \
                    again, destroy_process_group() those that are done, and lower \
                    NCCL_BUFFSIZE or NCCL_MAX_NCHANNELS where many are needed";
        let saved = if nccl > 0 { Some(nccl.min(case.growth.grown_bytes)) } else { grown };
        return Remedy::new(Cause::Communicators, text, saved);
    }
    let text = "something beside PyTorch's allocator takes this memory, perhaps kernels that are \
                compiled while the job runs (Triton, cuDNN plans), perhaps a library with \
                cudaMalloc of its own, perhaps a new communicator of NCCL: look at what the job \
                began to do at that step";
    Remedy::new(Cause::Outside, text, None).guess()
}

/// What gives memory of an origin back.
fn giving_back(origin: Origin) -> &'static str {
    match origin {
        Origin::CudaMallocAsync => "cudaFreeAsync",
        Origin::DriverVmm => "cuMemUnmap and cuMemRelease",
        _ => "cudaFree",
    }
}
