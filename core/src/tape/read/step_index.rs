//! The step index of a tape: what each device did during each of the last few thousand steps.
//!
//! A lane's writer closes a step when the next event comes, so the newest steps may not be in the
//! index yet. Nothing has happened since, so the lane's head says all of it: the reader derives the
//! record that the writer is going to write.

use alloc::vec;
use alloc::vec::Vec;

use crate::tape::event::check;
use crate::tape::layout::header::device;
use crate::tape::layout::regions::LaneLayout;
use crate::tape::layout::sizes::{CURSOR_MAX, HOST_LANE, LANES, STEP_WORDS};
use crate::tape::layout::{head, header};
use crate::tape::read::source::Source;
use crate::tape::read::tape::{Tape, believable, device_word};
use crate::tape::write::lane::{known_steps, pending_step};

/// Records that are read at once: 8 KiB.
const RECORDS_PER_READ: usize = 64;

/// What one device did during one or more steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepRecord {
    /// First step of the record; steps without events share one with the step before them.
    pub first_step: u64,
    /// Last step of the record.
    pub last_step: u64,
    /// Events of the lane that had happened by its end.
    pub cursor: u64,
    /// CLOCK_MONOTONIC at its end.
    pub end_mono_ns: u64,
    /// Least bytes handed out.
    pub floor_allocated: u64,
    /// Most bytes handed out.
    pub peak_allocated: u64,
    /// Bytes handed out at the end.
    pub end_allocated: u64,
    /// Least bytes held.
    pub floor_reserved: u64,
    /// Most bytes held.
    pub peak_reserved: u64,
    /// Bytes held at the end.
    pub end_reserved: u64,
    /// Live blocks at the end.
    pub blocks: u64,
    /// Blocks handed out since the start.
    pub allocs: u64,
    /// Blocks taken back since the start.
    pub frees: u64,
    /// Requests that failed for good since the start.
    pub ooms: u64,
    /// Failed `cudaMalloc` calls since the start.
    pub malloc_failures: u64,
}

/// Records of a device, oldest first, and how many steps were overwritten before they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// The records.
    pub records: Vec<StepRecord>,
    /// Steps that are gone.
    pub missed: u64,
}

impl<S: Source> Tape<S> {
    /// Records of the steps after `after_step` on one device.
    pub fn steps_after(&self, device: u8, after_step: u64) -> Steps {
        let Some(lane) = self.lane(usize::from(device)) else { return Steps::default() };
        let mut records: Vec<StepRecord> = self
            .step_records_until(&lane, |record| record.last_step <= after_step)
            .into_iter()
            .filter(|record| record.last_step > after_step)
            .map(|record| StepRecord {
                first_step: record.first_step.max(after_step.saturating_add(1)),
                ..record
            })
            .collect();
        records.sort_by_key(|record| record.last_step);
        let birth = self.birth_step(&lane);
        let expected = after_step.max(birth).saturating_add(1);
        let missed = records.first().map_or(0, |r| r.first_step.saturating_sub(expected));
        Steps { records, missed }
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
            Some(self.first_covered(&lane, held).map_or(u64::MAX, |record| record.first_step))
        };
        // Less than what stands for a lane that covers no step.
        let newest = believable(self.word(header::STEP));
        let devices = (0..HOST_LANE).filter_map(oldest).max();
        let oldest = devices.or((HOST_LANE..LANES).filter_map(oldest).max()).unwrap_or(0);
        if oldest > newest { 0 } else { oldest }
    }

    /// All records of a lane by the present clock, oldest first, with the one its head stands for.
    pub(crate) fn step_records(&self, lane: &LaneLayout) -> Vec<StepRecord> {
        self.step_records_until(lane, |_| false)
    }

    /// The newest records of a lane by the present clock, oldest first, with the one its head
    /// stands for: as far back as the last that `is_enough` accepts. They are read from the newest
    /// on, in pieces, so that a reader who has the older ones reads few.
    fn step_records_until(
        &self,
        lane: &LaneLayout,
        is_enough: impl Fn(&StepRecord) -> bool,
    ) -> Vec<StepRecord> {
        let written = self.word(lane.head + head::STEPS_WRITTEN).min(CURSOR_MAX);
        let oldest = written.saturating_sub(lane.step_records as u64);
        let steps_since_ns = self.word(header::STEPS_SINCE_NS);
        let mut newest_first = Vec::new();
        let mut end = written;
        while end > oldest {
            // A piece does not reach over the end of the ring.
            let slot = (end - 1) as usize & (lane.step_records - 1);
            let count = RECORDS_PER_READ.min(slot + 1).min((end - oldest) as usize);
            let mut words = vec![0; count * STEP_WORDS];
            let first = lane.steps + (slot + 1 - count) * STEP_WORDS;
            if !self.source.read(first, &mut words) {
                return Vec::new();
            }
            // The oldest slot may be changing right now; its check tells.
            let records = words.as_chunks::<STEP_WORDS>().0.iter().rev().filter_map(decode_step);
            let known = newest_first.len();
            newest_first.extend(records.filter(|record| record.end_mono_ns >= steps_since_ns));
            let new = newest_first.get(known..).unwrap_or_default();
            // Where no record is whole, none was written.
            if new.is_empty() || new.iter().any(&is_enough) {
                break;
            }
            end -= count as u64;
        }
        newest_first.reverse();
        let mut records = newest_first;
        if let Some(record) = self.pending_record(lane)
            && records.last().is_none_or(|last| last.last_step < record.last_step)
        {
            records.push(record);
        }
        records
    }

    /// The oldest record of a lane whose end its events still cover, where they cover all from
    /// position `held` on. Records are in the order of their cursors, so that few are read.
    fn first_covered(&self, lane: &LaneLayout, held: u64) -> Option<StepRecord> {
        let written = self.word(lane.head + head::STEPS_WRITTEN).min(CURSOR_MAX);
        let steps_since_ns = self.word(header::STEPS_SINCE_NS);
        let covered = |number: u64| {
            let slot = number as usize & (lane.step_records - 1);
            let record = decode_step(&self.words(lane.steps + slot * STEP_WORDS)?)?;
            let is_covered = record.cursor >= held && record.end_mono_ns >= steps_since_ns;
            is_covered.then_some(record)
        };
        let (mut first, mut end) = (written.saturating_sub(lane.step_records as u64), written);
        let mut found = None;
        while first < end {
            let middle = first + (end - first) / 2;
            match covered(middle) {
                Some(record) => (found, end) = (Some(record), middle),
                None => first = middle + 1,
            }
        }
        found.or_else(|| self.pending_record(lane).filter(|record| record.cursor >= held))
    }

    /// Steps finished when a lane was made; 0 where turns were counted then.
    pub(crate) fn birth_step(&self, lane: &LaneLayout) -> u64 {
        let birth = self.word(lane.head + head::BIRTH_STEP);
        let is_turn = self.word(header::STEPS_SINCE_NS) != 0 && birth > self.word(header::STEP);
        if is_turn { 0 } else { birth }
    }

    /// The record of steps that ended after the lane's last event: the lane's writer has not
    /// written it yet, but nothing has happened since, so the head says all of it.
    fn pending_record(&self, lane: &LaneLayout) -> Option<StepRecord> {
        const TRIES_MAX: usize = 16;
        let failures_at = device_word(self.device_of(lane), device::MALLOC_FAILURES);
        for attempt in 1..=TRIES_MAX {
            let mut words = self.words::<{ head::WORDS }>(lane.head)?;
            let [finished, end_ns] = self.words::<2>(header::STEP)?;
            let steps_since_ns = self.word(header::STEPS_SINCE_NS);
            let known = known_steps(words[head::STEP], finished, steps_since_ns);
            if finished <= known {
                return None;
            }
            let failures = self.word(failures_at);
            let again = self.words::<{ head::WORDS }>(lane.head)?;
            let still = again == words && self.word(header::STEP) == finished;
            let whole = words[head::DONE] == words[head::RESERVED];
            // A writer that died inside its last event never becomes whole: cut before that event.
            if still && (whole || attempt == TRIES_MAX) {
                words[head::RESERVED] = words[head::DONE];
                let read = |index: usize| words.get(index).copied().unwrap_or(0);
                return decode_step(&pending_step(read, known, finished, [end_ns, failures]));
            }
        }
        None
    }

    fn device_of(&self, lane: &LaneLayout) -> u8 {
        self.lanes.iter().position(|each| each.as_ref() == Some(lane)).unwrap_or(HOST_LANE) as u8
    }
}

fn decode_step(words: &[u64; STEP_WORDS]) -> Option<StepRecord> {
    // The check is no secret: a tape can lie in a whole record, too.
    let in_order = words[1] <= words[2] && words[2] <= CURSOR_MAX && words[3] <= CURSOR_MAX;
    if words[0] != check(0, words) || !in_order {
        return None;
    }
    let words = words.map(believable);
    Some(StepRecord {
        first_step: words[1],
        last_step: words[2],
        cursor: words[3],
        end_mono_ns: words[4],
        floor_allocated: words[5],
        peak_allocated: words[6],
        end_allocated: words[7],
        floor_reserved: words[8],
        peak_reserved: words[9],
        end_reserved: words[10],
        blocks: words[11],
        allocs: words[12],
        frees: words[13],
        ooms: words[14],
        malloc_failures: words[15],
    })
}
