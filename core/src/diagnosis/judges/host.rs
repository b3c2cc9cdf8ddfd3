//! Memory of the host: the process, its pinned and shared memory, its workers.

use alloc::format;

use super::common::{confidence_of_readings, grew, taken, with_lines};
use super::facts::{Facts, Judge, Outlook, Phrase, RestartAnswer, Share};
use super::remedy::{Cause, Remedy};
use crate::detector::Layer;
use crate::diagnosis::evidence::case::Case;
use crate::diagnosis::evidence::context::Readings;
use crate::diagnosis::words::{bytes, plural};

pub(crate) const JUDGE: Judge = Judge {
    evaluate: |case, _, _| evaluate(case),
    confidence_ppm: |case, _| confidence_of_readings(case),
    outlook: Outlook::Fault,
    share: Share::Host,
    restart: RestartAnswer::GivesBack,
    phrase: Phrase::Plain,
    remedy: |case, _| remedy(case),
};

fn evaluate(case: &Case<'_>) -> Facts {
    if !case.layer.is_host() {
        return Facts::default().needs(Some(false), "", "");
    }
    let (before, now) = (&case.context.before, &case.context.now);
    let mut facts = with_lines(Facts::default(), case);
    let parts = [
        (Layer::Host, "anonymous memory of the process", before.rss_anon, now.rss_anon),
        (Layer::Shared, "shared memory", before.shared, now.shared),
        (Layer::Pinned, "pinned memory", before.pinned, now.pinned),
        (Layer::Workers, "memory of the workers", before.workers, now.workers),
    ];
    for (layer, name, was, is) in parts {
        let has_grown = Readings::grown(was, is).is_some_and(|grown| grown > 0);
        // The figures of the layer itself are those since the onset.
        let said = match layer == case.layer {
            true => is.map(|is| format!("{name} is {}", bytes(is))),
            false => grew(name, was, is).map(|said| format!("{said} {}", case.span())),
        };
        facts = facts.supports(said.filter(|_| has_grown));
    }
    let workers = before.worker_count.zip(now.worker_count);
    if let Some(sampled) = &case.workers {
        facts = facts.supports(sampled.evidence());
        for said in sampled.against() {
            facts = facts.doubts(Some(said));
        }
    }
    facts
        .supports(workers.filter(|workers| *workers != (0, 0)).map(|(was, is)| match is == was {
            true => format!("{} ran the whole time", plural(is.into(), "worker")),
            false => format!("there were {was} workers and now there are {is}"),
        }))
        .supports(now.host_limit.map(|limit| format!("the cgroup allows {}", bytes(limit))))
}

fn remedy(case: &Case<'_>) -> Remedy {
    let grown = Some(case.growth.grown_bytes);
    let (before, now) = (&case.context.before, &case.context.now);
    match case.layer {
        Layer::Pinned => {
            let text = "pinned memory grows: batches are pinned faster than they are used, or \
                        something keeps them; bound what is fetched ahead (prefetch_factor, the \
                        queue of a prefetcher), wait for non_blocking copies, use few sizes so \
                        that the pool can hand blocks out again, or set pin_memory=False";
            Remedy::new(Cause::PinnedPool, text, grown)
        }
        Layer::Shared => {
            let text = "shared memory grows: batches wait in the queues of the workers; lower \
                        prefetch_factor and num_workers, or something in the main process \
                        keeps what a worker sent: each kept tensor holds the shared memory of its \
                        batch open, so keep .clone() of it";
            Remedy::new(Cause::SharedQueues, text, grown)
        }
        Layer::Workers => {
            let more = before.worker_count.zip(now.worker_count).is_some_and(|(was, is)| is > was);
            if more {
                let text = "more and more workers run: make the DataLoader once and not in each \
                            epoch, or set persistent_workers=True";
                return Remedy::new(Cause::Workers, text, grown);
            }
            let hint = match &case.workers {
                None => "; to sample them, start the agent with --py-spy",
                Some(_) => "",
            };
            let text = format!(
                "the workers grow: look for what the dataset remembers (a dict, a list, \
                 lru_cache), keep the index of the data in arrays instead of lists of Python \
                 objects (each worker copies those as it reads them), lower num_workers and \
                 prefetch_factor{hint}"
            );
            Remedy::new(Cause::Workers, text, grown)
        }
        _ => {
            let pinned = Readings::grown(before.pinned, now.pinned);
            let is_pinned = pinned.is_some_and(|pinned| pinned >= case.growth.grown_bytes / 2);
            if is_pinned {
                let text = "most of what grows is pinned memory: keep fewer batches in flight \
                            (prefetch_factor), use few sizes so that the pool can hand blocks \
                            out again, or set pin_memory=False";
                return Remedy::new(Cause::PinnedPool, text, pinned);
            }
            if case.outside_lines.as_ref().is_some_and(|outside| outside.culprit().is_some()) {
                let text = "CPU tensors grow: look at what keeps those of this line (results, \
                            samples or logs in a list, copies of tensors with .cpu()), and keep \
                            numbers instead, or write them out";
                return Remedy::new(Cause::HostObjects, text, taken(case));
            }
            let text = "the process itself grows on the host: look for lists of results, logs or \
                        samples that grow, tensors kept on the CPU, and a data pipeline that runs \
                        ahead; memray attach shows where";
            Remedy::new(Cause::HostObjects, text, grown)
        }
    }
}
