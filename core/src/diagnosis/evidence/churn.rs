//! Cache thrash: a program that empties the allocator's cache again and again.
//!
//! A warm allocator takes segments from the device in the first steps and keeps them. Where a step
//! gives segments back *and* takes others, `empty_cache()` or its like is in the loop: each
//! `cudaFree` waits for the device, and each `cudaMalloc` costs hundreds of microseconds. One such
//! step is ordinary (a retry after a failed `cudaMalloc` empties the cache too), most of the last
//! ones are not.

use alloc::collections::BTreeMap;

use crate::snapshot::{TraceEvent, TraceKind};

/// Segments taken and given back in a number of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Churn {
    /// Steps that were looked at.
    pub steps: u64,
    /// Those in which segments were given back and others taken.
    pub thrashing_steps: u64,
    /// Segments given back in all of them …
    pub returned: u64,
    /// … and taken …
    pub taken: u64,
    /// … with this many bytes.
    pub taken_bytes: u64,
    /// Failed `cudaMalloc`s, each of which empties the cache by itself.
    pub retries: u64,
    /// The stack that gave back most segments; 0 where it is not known.
    pub returned_by: u32,
}

impl Churn {
    /// What the trace of a device says of the last steps up to `step`, of which it covers those
    /// from its oldest event on. The step under way is left out, and so is the oldest, of which
    /// the trace may have a part only.
    pub fn of(trace: &[TraceEvent], step: u64) -> Self {
        let Some(oldest) = trace.first() else { return Self::default() };
        // Events carry the number of steps finished before them: those of step 7 carry 6.
        let first = oldest.step.saturating_add(1).max(step.saturating_sub(16));
        let (mut churn, mut before, mut at) = (Self::default(), Self::default(), first);
        let mut by_stack: BTreeMap<u32, u64> = BTreeMap::new();
        for event in trace.iter().filter(|event| (first..step).contains(&event.step)) {
            if event.step != at {
                churn.end_step(&before);
                (before, at) = (churn, event.step);
            }
            match event.kind {
                TraceKind::SegmentAlloc | TraceKind::SegmentMap => {
                    churn.taken += 1;
                    churn.taken_bytes = churn.taken_bytes.saturating_add(event.size);
                }
                TraceKind::SegmentFree | TraceKind::SegmentUnmap => {
                    churn.returned += 1;
                    *by_stack.entry(event.stack).or_default() += 1;
                }
                TraceKind::MallocFailed => churn.retries += 1,
                _ => {}
            }
        }
        churn.end_step(&before);
        let most = by_stack.into_iter().max_by_key(|&(_, count)| count);
        let returned_by = most.map_or(0, |(stack, _)| stack);
        Self { steps: step.saturating_sub(first), returned_by, ..churn }
    }

    /// Counts the step that ends; `before` is what was counted before it.
    fn end_step(&mut self, before: &Self) {
        let both = self.returned > before.returned && self.taken > before.taken;
        self.thrashing_steps += u64::from(both);
    }

    /// True when most of the steps throw the cache away and fill it again, and no failed
    /// `cudaMalloc` accounts for it.
    pub fn is_thrash(&self) -> bool {
        self.steps >= 4
            && self.thrashing_steps * 2 > self.steps
            && self.retries < self.thrashing_steps
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn event(kind: TraceKind, step: u64) -> TraceEvent {
        TraceEvent {
            kind,
            mono_ns: 0,
            address: 0,
            size: 100,
            detail: 0,
            stack: 0,
            stream_pool: 0,
            step,
        }
    }

    /// Twelve steps, each with these events.
    fn steps(kinds: &[TraceKind]) -> Vec<TraceEvent> {
        (0..12).flat_map(|step| kinds.iter().map(move |&kind| event(kind, step))).collect()
    }

    #[test]
    fn emptying_the_cache_in_every_step_is_thrash() {
        use TraceKind::{Alloc, SegmentAlloc, SegmentFree};
        let trace = steps(&[SegmentFree, SegmentAlloc, Alloc, SegmentAlloc]);
        let churn = Churn::of(&trace, 12);
        let expected = Churn {
            steps: 11,
            thrashing_steps: 11,
            returned: 11,
            taken: 22,
            taken_bytes: 2200,
            retries: 0,
            returned_by: 0,
        };
        assert_eq!(churn, expected);
        assert!(churn.is_thrash());
    }

    #[test]
    fn what_is_not_thrash() {
        use TraceKind::{Alloc, Free, MallocFailed, SegmentAlloc, SegmentFree};
        // A warm cache, growth, shrinking, memory that is short: each has a class of its own.
        for kinds in [
            &[Alloc, Free][..],
            &[SegmentAlloc, Alloc],
            &[SegmentFree, Free],
            &[MallocFailed, SegmentFree, SegmentAlloc],
        ] {
            assert!(!Churn::of(&steps(kinds), 12).is_thrash(), "{kinds:?}");
        }
        // Once at the start, or in too few steps to say.
        let mut once = steps(&[Alloc]);
        once.extend([event(SegmentFree, 11), event(SegmentAlloc, 11)]);
        assert!(!Churn::of(&once, 12).is_thrash());
        assert!(!Churn::of(&steps(&[SegmentFree, SegmentAlloc]), 3).is_thrash());
        assert_eq!(Churn::of(&[], 12), Churn::default());
    }
}
