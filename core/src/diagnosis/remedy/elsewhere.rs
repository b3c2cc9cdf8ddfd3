//! Remedies for what PyTorch's allocator does not know.

use super::*;
use crate::diagnosis::circumstances::Readings;
use crate::diagnosis::ground::Ground;
use crate::snapshot::origin::Origin;

pub(in crate::diagnosis) fn non_torch(case: &Case<'_>) -> Remedy {
    let grown = Some(case.growth.grown_bytes);
    if case.ground == Ground::Other {
        let text = "other processes take memory on this GPU: nvidia-smi names them; look for a \
                    process of an earlier attempt that did not end, a notebook, or ranks that \
                    share the device by mistake (CUDA_VISIBLE_DEVICES)";
        return Remedy::new(Cause::Neighbours, text.into(), grown);
    }
    if case.around.now.contexts.is_some_and(|contexts| contexts > 1) {
        let text = "other ranks have made a context on this device: call \
                    torch.cuda.set_device(local_rank) before anything else, and load checkpoints \
                    with map_location";
        return Remedy::new(Cause::Contexts, text.into(), grown);
    }
    let taken_by = case.elsewhere.as_ref().and_then(|outside| outside.origin());
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
        return Remedy::new(Cause::Communicators, text.into(), saved);
    }
    let text = "something beside PyTorch's allocator takes this memory, perhaps kernels that are \
                compiled while the job runs (Triton, cuDNN plans), perhaps a library with \
                cudaMalloc of its own, perhaps a new communicator of NCCL: look at what the job \
                began to do at that step";
    Remedy::new(Cause::Outside, text.into(), None).guess()
}

/// What gives memory of an origin back.
fn giving_back(origin: Origin) -> &'static str {
    match origin {
        Origin::CudaMallocAsync => "cudaFreeAsync",
        Origin::DriverVmm => "cuMemUnmap and cuMemRelease",
        _ => "cudaFree",
    }
}

/// What the line to name has taken.
fn taken(case: &Case<'_>) -> Option<u64> {
    let line = case.elsewhere.as_ref()?.culprit()?;
    Some(unsigned(line.net.bytes))
}

pub(in crate::diagnosis) fn host(case: &Case<'_>) -> Remedy {
    let grown = Some(case.growth.grown_bytes);
    let (before, now) = (&case.around.before, &case.around.now);
    match case.ground {
        Ground::Pinned => {
            let text = "pinned memory grows: batches are pinned faster than they are used, or \
                        something keeps them; bound what is fetched ahead (prefetch_factor, the \
                        queue of a prefetcher), wait for non_blocking copies, use few sizes so \
                        that the pool can hand blocks out again, or set pin_memory=False";
            Remedy::new(Cause::PinnedPool, text.into(), grown)
        }
        Ground::Shared => {
            let text = "shared memory grows: batches wait in the queues of the workers; lower \
                        prefetch_factor and num_workers, or something in the main process \
                        keeps what a worker sent: each kept tensor holds the shared memory of its \
                        batch open, so keep .clone() of it";
            Remedy::new(Cause::SharedQueues, text.into(), grown)
        }
        Ground::Workers => {
            let more = before.worker_count.zip(now.worker_count).is_some_and(|(was, is)| is > was);
            let text = if more {
                "more and more workers run: make the DataLoader once and not in each epoch, or \
                 set persistent_workers=True"
            } else {
                "the workers grow: lower num_workers and prefetch_factor, keep the index of the \
                 data in arrays instead of lists of Python objects (each worker copies those as \
                 it reads them), and look for what the dataset remembers"
            };
            Remedy::new(Cause::Workers, text.into(), grown)
        }
        _ => {
            let pinned = Readings::grown(before.pinned, now.pinned);
            let is_pinned = pinned.is_some_and(|pinned| pinned >= case.growth.grown_bytes / 2);
            if is_pinned {
                let text = "most of what grows is pinned memory: keep fewer batches in flight \
                            (prefetch_factor), use few sizes so that the pool can hand blocks \
                            out again, or set pin_memory=False";
                return Remedy::new(Cause::PinnedPool, text.into(), pinned);
            }
            if case.elsewhere.as_ref().is_some_and(|outside| outside.culprit().is_some()) {
                let text = "CPU tensors grow: look at what keeps those of this line (results, \
                            samples or logs in a list, copies of tensors with .cpu()), and keep \
                            numbers instead, or write them out";
                return Remedy::new(Cause::HostObjects, text.into(), taken(case));
            }
            let text = "the process itself grows on the host: look for lists of results, logs or \
                        samples that grow, tensors kept on the CPU, and a data pipeline that runs \
                        ahead; memray attach shows where";
            Remedy::new(Cause::HostObjects, text.into(), grown)
        }
    }
}

pub(in crate::diagnosis) fn desynchronised() -> Remedy {
    let text = "memory is not to blame: look at the collective that the others wait in, and at \
                the stacks of the rank that has not begun it";
    Remedy::new(Cause::Collectives, text.into(), None)
}

pub(in crate::diagnosis) fn telemetry(case: &Case<'_>) -> Remedy {
    if case.ground == Ground::Progress {
        let text = "look whether the process lives and whether the agent of its node runs: \
                    nothing is known of its memory until it is heard again";
        return Remedy::new(Cause::Recording, text.into(), None);
    }
    let text = "repair the recording first: give the tape more room (limitations of the rank name \
                what was lost), then take another capture";
    Remedy::new(Cause::Recording, text.into(), None)
}
