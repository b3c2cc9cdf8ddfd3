//! The step index of a tape: what each device did during each of the last few thousand steps.
//!
//! A lane's writer closes a step when the next event comes, so the newest steps may not be in the
//! index yet. Nothing has happened since, so the lane's head says all of it: the reader derives the
//! record that the writer is going to write.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::StepRecord;
use crate::event::check;
use crate::layout::header::device;
use crate::layout::regions::LaneLayout;
use crate::layout::sizes::{CURSOR_MAX, HOST_LANE, LANES, STEP_WORDS};
use crate::layout::{head, header};
use crate::read::source::Source;
use crate::read::tape::{Tape, believable, device_word};
use crate::write::lane::{known_steps, pending_step};

/// Records that are read at once: 8 KiB.
const RECORDS_PER_READ: usize = 64;

/// Times that one who wants all records reads on after a gap.
const READINGS_MAX: usize = 64;

/// A record of the index, with its place on the tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexedStep {
    /// The device's step record. Its wall time is set where the record leaves the tape.
    pub(crate) record: StepRecord,
    /// Events of the lane that had happened by its end.
    pub(crate) cursor: u64,
    /// CLOCK_MONOTONIC at its end.
    pub(crate) end_mono_ns: u64,
}

/// Records of a device, oldest first, and how many steps were overwritten before they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// The records.
    pub records: Vec<StepRecord>,
    /// Steps that are gone.
    pub missed: u64,
    /// True if newer records exceeded the bound.
    pub has_more: bool,
}

impl<S: Source> Tape<S> {
    /// All records of the steps after `after_step` on one device.
    pub fn steps_after(&self, device: u8, after_step: u64) -> Steps {
        let mut all = self.next_steps(device, after_step, usize::MAX);
        for _ in 0..READINGS_MAX {
            if !all.has_more {
                break;
            }
            let known_step = all.records.last().map_or(after_step, |record| record.last_step);
            let more = self.next_steps(device, known_step, usize::MAX);
            all.has_more = more.has_more && !more.records.is_empty();
            all.missed = all.missed.saturating_add(more.missed);
            all.records.extend(more.records);
        }
        all
    }

    /// The oldest records of the steps after `after_step` on one device, at most `records_max`, and
    /// none beyond steps that were overwritten meanwhile: the next reading counts those as missed.
    /// Reads no more of the tape than that, and a few records to find the first.
    pub fn next_steps(&self, device: u8, after_step: u64, records_max: usize) -> Steps {
        let Some(lane) = self.lane(usize::from(device)) else { return Steps::default() };
        let (written, pending) = self.newest(&lane);
        let first = self.first_record(&lane, written, |step| step.record.last_step > after_step);
        let first = first.map_or(written, |(number, _)| number);
        let end = written.min(first.saturating_add(records_max as u64));
        let mut records = self.records(&lane, first..end);
        // Where no record is whole, none was written; without room that is not known.
        let has_more = end < written && (records_max == 0 || !records.is_empty());
        if end == written {
            add_pending(pending, &mut records);
        }
        let wall = |step: IndexedStep| StepRecord {
            end_wall_ns: self.wall_ns(step.end_mono_ns),
            ..step.record
        };
        let mut records: Vec<StepRecord> = records.into_iter().map(wall).collect();
        records.retain(|record| record.last_step > after_step);
        records.sort_by_key(|record| record.last_step);
        // A slot that was overwritten meanwhile has a much newer step: the records end before it.
        let gap = |pair: &[StepRecord]| pair[1].first_step > pair[0].last_step.saturating_add(1);
        let whole = records.windows(2).position(gap).map_or(records.len(), |last| last + 1);
        let has_more = has_more || records.len() > records_max.min(whole);
        records.truncate(records_max.min(whole));
        for record in &mut records {
            record.first_step = record.first_step.max(after_step.saturating_add(1));
        }
        let expected = after_step.max(self.birth_step(&lane)).saturating_add(1);
        let missed = records.first().map_or(0, |r| r.first_step.saturating_sub(expected));
        Steps { records, missed, has_more }
    }

    /// The oldest step whose end every device's events still cover; 0 when there is none. Where
    /// there is no device, that of the other lanes: a state can be had without them.
    pub fn oldest_step(&self) -> u64 {
        let oldest = |index: usize| {
            let lane = self.lane(index)?;
            let held = self.word(lane.head + head::RESERVED).saturating_sub(lane.ring_slots as u64);
            // A lane that never wrapped can also be rewound to before its first record.
            if held == 0 && self.word(lane.head + head::STEPS_WRITTEN) <= lane.step_records as u64 {
                return Some(1);
            }
            Some(self.first_covered(&lane, held).map_or(u64::MAX, |step| step.record.first_step))
        };
        // Less than what stands for a lane that covers no step.
        let newest = believable(self.word(header::STEP));
        let devices = (0..HOST_LANE).filter_map(oldest).max();
        let oldest = devices.or((HOST_LANE..LANES).filter_map(oldest).max()).unwrap_or(0);
        if oldest > newest { 0 } else { oldest }
    }

    /// All records of a lane by the present clock, oldest first, including the head's record.
    pub(crate) fn indexed_steps(&self, lane: &LaneLayout) -> Vec<IndexedStep> {
        let (written, pending) = self.newest(lane);
        let first = self.first_record(lane, written, |_| true);
        let first = first.map_or(written, |(number, _)| number);
        let mut records = self.records(lane, first..written);
        add_pending(pending, &mut records);
        records
    }

    /// The records with these numbers by the present clock, oldest first, without records that are
    /// being overwritten. Read in pieces, up to one that has no whole record.
    fn records(&self, lane: &LaneLayout, numbers: Range<u64>) -> Vec<IndexedStep> {
        let steps_since_ns = self.word(header::STEPS_SINCE_NS);
        let mut records = Vec::new();
        let mut first = numbers.start;
        while first < numbers.end {
            // A piece does not reach over the end of the ring.
            let slot = first as usize & (lane.step_records - 1);
            let count = RECORDS_PER_READ.min(lane.step_records - slot);
            let count = count.min((numbers.end - first) as usize);
            let mut words = vec![0; count * STEP_WORDS];
            if !self.source.read(lane.steps + slot * STEP_WORDS, &mut words) {
                return Vec::new();
            }
            let known = records.len();
            // The oldest slot may be changing right now; its check tells.
            let whole = words.as_chunks::<STEP_WORDS>().0.iter().filter_map(decode_step);
            records.extend(whole.filter(|step| step.end_mono_ns >= steps_since_ns));
            if records.len() == known {
                break;
            }
            first += count as u64;
        }
        records
    }

    /// The oldest record of a lane whose end its events still cover, where they cover all from
    /// position `held` on.
    fn first_covered(&self, lane: &LaneLayout, held: u64) -> Option<IndexedStep> {
        let (written, pending) = self.newest(lane);
        let found = self.first_record(lane, written, |step| step.cursor >= held);
        found.map(|(_, step)| step).or(pending.filter(|step| step.cursor >= held))
    }

    /// The oldest record of a lane that `is_wanted` accepts, by the present clock, with its number.
    /// All newer records are accepted, too: records are in the order of their cursors and steps, so
    /// that few are read.
    fn first_record(
        &self,
        lane: &LaneLayout,
        written: u64,
        is_wanted: impl Fn(&IndexedStep) -> bool,
    ) -> Option<(u64, IndexedStep)> {
        let steps_since_ns = self.word(header::STEPS_SINCE_NS);
        let wanted = |number: u64| {
            let slot = number as usize & (lane.step_records - 1);
            let step = decode_step(&self.words(lane.steps + slot * STEP_WORDS)?)?;
            (step.end_mono_ns >= steps_since_ns && is_wanted(&step)).then_some(step)
        };
        let (mut first, mut end) = (written.saturating_sub(lane.step_records as u64), written);
        let mut found = None;
        while first < end {
            let middle = first + (end - first) / 2;
            match wanted(middle) {
                Some(step) => (found, end) = (Some((middle, step)), middle),
                None => first = middle + 1,
            }
        }
        found
    }

    /// Steps finished when a lane was made; 0 where turns were counted then.
    pub(crate) fn birth_step(&self, lane: &LaneLayout) -> u64 {
        let birth = self.word(lane.head + head::BIRTH_STEP);
        let is_turn = self.word(header::STEPS_SINCE_NS) != 0 && birth > self.word(header::STEP);
        if is_turn { 0 } else { birth }
    }

    /// Number of records that a lane has written, and the record of steps that ended after its last
    /// event: the lane's writer has not written it yet, but nothing has happened since, so the head
    /// has all of it. Both are read together: a step that is closed between two readings would be
    /// in neither.
    fn newest(&self, lane: &LaneLayout) -> (u64, Option<IndexedStep>) {
        const TRIES_MAX: usize = 16;
        let failures_at = device_word(self.device_of(lane), device::MALLOC_FAILURES);
        let mut written = 0;
        for attempt in 1..=TRIES_MAX {
            let Some(mut words) = self.words::<{ head::WORDS }>(lane.head) else { break };
            let Some([finished, end_ns]) = self.words::<2>(header::STEP) else { break };
            written = words[head::STEPS_WRITTEN].min(CURSOR_MAX);
            let steps_since_ns = self.word(header::STEPS_SINCE_NS);
            let known = known_steps(words[head::STEP], finished, steps_since_ns);
            if finished <= known {
                break;
            }
            let failures = self.word(failures_at);
            let again = self.words::<{ head::WORDS }>(lane.head);
            let still = again == Some(words) && self.word(header::STEP) == finished;
            let whole = words[head::DONE] == words[head::RESERVED];
            // A writer that died inside its last event never becomes whole: cut before that event.
            if still && (whole || attempt == TRIES_MAX) {
                words[head::RESERVED] = words[head::DONE];
                let read = |index: usize| words.get(index).copied().unwrap_or(0);
                let step = pending_step(read, known, finished, [end_ns, failures]);
                return (written, decode_step(&step));
            }
        }
        (written, None)
    }

    fn device_of(&self, lane: &LaneLayout) -> u8 {
        self.lanes.iter().position(|each| each.as_ref() == Some(lane)).unwrap_or(HOST_LANE) as u8
    }
}

/// Adds the record that the head of a lane stands for, if it is newer than the others.
fn add_pending(pending: Option<IndexedStep>, records: &mut Vec<IndexedStep>) {
    let known = records.last().map_or(0, |last| last.record.last_step);
    if let Some(mut step) = pending.filter(|step| step.record.last_step > known) {
        // The writer may be closing the steps before it.
        step.record.first_step = step.record.first_step.max(known + 1);
        records.push(step);
    }
}

fn decode_step(words: &[u64; STEP_WORDS]) -> Option<IndexedStep> {
    // The check is no secret: a tape can lie in a whole record, too.
    let in_order = words[1] <= words[2] && words[2] <= CURSOR_MAX && words[3] <= CURSOR_MAX;
    if words[0] != check(0, words) || !in_order {
        return None;
    }
    let [_, first_step, last_step, cursor, end_mono_ns, levels @ ..] = words.map(believable);
    let mut numbers = [0; StepRecord::NUMBERS];
    (numbers[0], numbers[1]) = (first_step, last_step);
    numbers[3..].copy_from_slice(&levels);
    Some(IndexedStep { record: StepRecord::from_numbers(numbers), cursor, end_mono_ns })
}
