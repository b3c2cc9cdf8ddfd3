//! Requests that failed: whether there was memory for them, and why it was not good enough.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::growing;
use crate::diagnosis::class::Class;
use crate::diagnosis::evidence::held::at_peak;
use crate::diagnosis::evidence::torch::look::Oom;
use crate::diagnosis::evidence::view::View;
use crate::diagnosis::judges::fragmentation;
use crate::diagnosis::judges::verdict::Verdict;
use crate::diagnosis::words::{bytes, location, plural};
use crate::snapshot::frames::telling_frame;

const SMALLER: &str = "the job needs this memory: a smaller micro-batch, activation \
             checkpointing or more sharding; the peak below says which lines to \
             begin with";

/// A request failed.
pub(crate) fn out_of_memory(views: &[View<'_>]) -> Option<Verdict> {
    let (view, oom) = views.iter().find_map(|view| Some((view, view.device.trace.ooms.last()?)))?;
    let held = oom.space.reserved.saturating_sub(oom.space.in_use);
    let free = held.saturating_add(oom.device_free.unwrap_or(0));
    let would_fit = free >= oom.bytes;
    let (class, advice) = match would_fit {
        true => (Class::Fragmentation, fragmentation::ADVICE),
        false => (Class::Pressure, SMALLER),
    };
    let at_peak = at_peak(view, &oom.alive.uses);
    let asked = view.stack(oom.stack);
    let culprit = telling_frame(&asked).cloned();
    let by = culprit.as_ref().map_or(String::new(), |frame| format!(" at {}", location(frame)));
    let size = bytes(oom.bytes);
    let sentence = match class {
        Class::Fragmentation => format!(
            "rank {}: a request of {size}{by} failed although {} were free, in blocks that it \
             could not use",
            view.rank,
            bytes(free)
        ),
        _ => format!(
            "rank {}: a request of {size}{by} failed: live tensors held {}",
            view.rank,
            bytes(oom.space.in_use)
        ),
    };
    let mut evidence = why_refused(oom);
    let top = at_peak.iter().take(3).map(|line| format!("{} {}", bytes(line.bytes), line.name()));
    let top: Vec<String> = top.collect();
    if !top.is_empty() {
        evidence.push(format!("what was alive: {}", top.join(", ")));
    }
    evidence.extend(growing::said(view));
    let mut against = Vec::new();
    if view.device.trace.oom_count > 1 {
        against.push(format!(
            "{} failed; this is the last",
            plural(view.device.trace.oom_count, "request")
        ));
    }
    if oom.device_free.is_none() {
        against.push("the file does not say how much the device had free".to_string());
    }
    Some(Verdict {
        stack: asked.into_iter().cloned().collect(),
        culprit,
        bytes: oom.bytes,
        is_of_request: true,
        confidence_ppm: 900_000,
        sentence,
        evidence,
        against,
        ..Verdict::of(class, advice, view)
    })
}

/// Where the free memory was, and why it was not good enough.
pub fn why_refused(oom: &Oom) -> Vec<String> {
    let (space, refusal) = (&oom.space, &oom.refusal);
    let mut said = Vec::new();
    let device = oom.device_free.map_or("an unknown amount".to_string(), bytes);
    if space.reserved == 0 && space.in_use > 0 {
        said.push(format!(
            "the device had {device} free; {} were in use; what the allocator held free is not \
             known, because nothing recorded its segments",
            bytes(space.in_use)
        ));
        return said;
    }
    said.push(format!(
        "the device had {device} free; the allocator held {}, of which {} were in use",
        bytes(space.reserved),
        bytes(space.in_use)
    ));
    if refusal.eligible > 0 {
        said.push(format!(
            "{} were free for such a request, in {}, the largest {}",
            bytes(refusal.eligible),
            plural(refusal.eligible_pieces, "block"),
            bytes(refusal.eligible_largest)
        ));
    }
    let others = [
        (refusal.other_streams, "belong to other streams"),
        (refusal.other_pools, "belong to private pools, such as those of CUDA graphs"),
        (refusal.small_segments, "lie in segments for blocks of another size class"),
    ];
    let others = others.into_iter().filter(|&(free, _)| free > 0);
    said.extend(others.map(|(free, what)| format!("{} were free and {what}", bytes(free))));
    said
}
