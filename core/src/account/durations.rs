//! Durations of steps, from the times in step records at which the steps ended.
//!
//! A duration needs two records that follow each other. Within a part they do; the ends of parts
//! are kept until the part beside them has come. Where records are left out between two, the
//! duration is the mean of the steps between them. A clock that is set back makes no duration.

use alloc::vec::Vec;

use super::Value;
use crate::tape::StepRecord;

/// Ends of parts that are kept of a series. Beyond them parts are joined although another one may
/// come between them: its steps then count for the mean of a longer time, too.
const JOINABLE_PARTS_MAX: usize = 7;

#[derive(Clone, Debug, Default)]
pub(super) struct Durations {
    /// In the order of their first records.
    parts: Vec<Part>,
}

/// The first and the last of records that follow each other.
#[derive(Clone, Copy, Debug)]
struct Part {
    first: End,
    last: End,
}

/// What a record says of its last step.
#[derive(Clone, Copy, Debug)]
struct End {
    first_step: u64,
    last_step: u64,
    wall_ns: i64,
}

impl End {
    fn of(record: &StepRecord) -> Self {
        let StepRecord { first_step, last_step, end_wall_ns: wall_ns, .. } = *record;
        Self { first_step: first_step.min(last_step), last_step, wall_ns }
    }

    /// The duration of a step of this record, which follows `before`.
    fn since(&self, before: &Self) -> Option<Value> {
        let steps = self.last_step.checked_sub(before.last_step).filter(|&steps| steps > 0)?;
        let took_ns = self.wall_ns.checked_sub(before.wall_ns)?;
        let value = u64::try_from(took_ns).ok()? / steps;
        Some(Value { first_step: self.first_step, last_step: self.last_step, value })
    }

    /// Is no step between the record `before` and this one?
    fn is_next_to(&self, before: &Self) -> bool {
        before.last_step.checked_add(1).is_some_and(|next| self.first_step <= next)
    }
}

impl Durations {
    pub(super) fn take(&mut self, records: &[StepRecord], found: &mut dyn FnMut(Value)) {
        let mut part: Option<Part> = None;
        for end in records.iter().map(End::of) {
            match &mut part {
                Some(part) if end.last_step > part.last.last_step => {
                    end.since(&part.last).into_iter().for_each(&mut *found);
                    part.last = end;
                }
                // A record that came again, or a process that began again at an earlier step.
                _ => {
                    if let Some(part) = part.replace(Part { first: end, last: end }) {
                        self.add(part, found);
                    }
                }
            }
        }
        if let Some(part) = part {
            self.add(part, found);
        }
    }

    pub(super) fn end(&mut self, found: &mut dyn FnMut(Value)) {
        let parts = self.parts.drain(..);
        let joined = parts.reduce(|before, part| join(before, part, found));
        self.parts.extend(joined);
    }

    /// Adds a part, and joins it with those that no step is between.
    fn add(&mut self, mut part: Part, found: &mut dyn FnMut(Value)) {
        let first = |of: &Part| of.first.last_step;
        let mut at = self.parts.partition_point(|before| first(before) <= first(&part));
        if let Some(&before) = at.checked_sub(1).and_then(|before| self.parts.get(before))
            && part.first.is_next_to(&before.last)
        {
            at -= 1;
            self.parts.remove(at);
            part = join(before, part, found);
        }
        while let Some(&after) = self.parts.get(at)
            && after.first.is_next_to(&part.last)
        {
            self.parts.remove(at);
            part = join(part, after, found);
        }
        self.parts.insert(at, part);
        if self.parts.len() > JOINABLE_PARTS_MAX {
            self.end(found);
        }
    }
}

/// Both parts as one. Parts with steps in common have no duration between them: it is within one.
fn join(before: Part, after: Part, found: &mut dyn FnMut(Value)) -> Part {
    if after.first.last_step > before.last.last_step {
        after.first.since(&before.last).into_iter().for_each(found);
    }
    let last = if after.last.last_step > before.last.last_step { after.last } else { before.last };
    Part { first: before.first, last }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record((first_step, last_step): (u64, u64), end_wall_ns: i64) -> StepRecord {
        StepRecord { first_step, last_step, end_wall_ns, ..StepRecord::default() }
    }

    /// The durations of records that come in these parts, by step, each once.
    fn durations<'a>(parts: impl IntoIterator<Item = &'a [StepRecord]>) -> Vec<(u64, u64, u64)> {
        let (mut durations, mut all) = (Durations::default(), Vec::new());
        let mut found = |of: Value| all.push((of.first_step, of.last_step, of.value));
        parts.into_iter().for_each(|part| durations.take(part, &mut found));
        durations.end(&mut found);
        all.sort_unstable();
        all.dedup();
        all
    }

    proptest! {
        /// Each record follows the one before it, with all steps between them or without some; the
        /// parts come in any order, and some twice.
        #[test]
        fn parts_in_any_order_have_the_durations_of_the_whole(
            steps in prop::collection::vec((1_u64..4, 0_i64..1000), 1..60),
            lengths in prop::collection::vec(1_usize..20, 60),
            order in prop::collection::vec(any::<u64>(), 60),
            gap in 0_u64..2,
            again in any::<bool>(),
        ) {
            let (mut last, mut wall_ns, mut records) = (0, 0, Vec::new());
            for (count, took_ns) in steps {
                (last, wall_ns) = (last + count, wall_ns + took_ns);
                records.push(record((last + 1 - count, last), wall_ns));
                last += gap;
            }
            let (mut rest, mut parts) = (records.as_slice(), Vec::new());
            for length in lengths {
                let (part, after) = rest.split_at(length.min(rest.len()));
                parts.push(part);
                rest = after;
            }
            parts.retain(|part| !part.is_empty());
            prop_assume!(gap == 0 || parts.len() <= JOINABLE_PARTS_MAX);
            let mut keyed: Vec<_> = order.into_iter().zip(parts).collect();
            keyed.sort_unstable_by_key(|(key, _)| *key);
            let parts = keyed.iter().map(|(_, part)| *part);
            let twice = keyed.iter().filter(|_| again && gap == 0).map(|(_, part)| *part);
            prop_assert_eq!(durations(parts.chain(twice)), durations([records.as_slice()]));
        }

        #[test]
        fn any_records_are_survived(
            numbers in prop::collection::vec((any::<u64>(), any::<u64>(), any::<i64>()), 0..60),
            length in 1_usize..9,
        ) {
            let records: Vec<_> =
                numbers.into_iter().map(|(first, last, ns)| record((first, last), ns)).collect();
            durations(records.chunks(length));
        }
    }

    #[test]
    fn a_duration_is_that_of_one_step() {
        let records = [
            record((1, 1), 100),
            record((2, 2), 130),
            // The device was idle for three steps.
            record((3, 5), 190),
            // Two records were left out.
            record((8, 8), 280),
            // The process began again at an earlier step.
            record((4, 4), 900),
            record((5, 5), 950),
            // The clock was set back.
            record((6, 6), 10),
        ];
        let expected = [(2, 2, 30), (3, 5, 20), (5, 5, 50), (8, 8, 30)];
        assert_eq!(durations([records.as_slice()]), expected);
    }

    #[test]
    fn parts_that_are_kept_are_few() {
        let (mut durations, mut found) = (Durations::default(), 0);
        for step in (0..10_000).rev() {
            let part = [record((3 * step, 3 * step), step as i64 * 6)];
            durations.take(&part, &mut |of| {
                assert_eq!(of.value, 2);
                found += 1;
            });
            assert!(durations.parts.len() <= JOINABLE_PARTS_MAX);
        }
        durations.end(&mut |_| found += 1);
        assert_eq!(found, 9_999);
    }
}
