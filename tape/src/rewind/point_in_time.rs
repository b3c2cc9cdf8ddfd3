//! The state of a rank at the end of a step it has long finished, or now, from outside.
//!
//! The live table is the present; the events say how it came to be. To have the state at an
//! earlier cursor `c`: read `DONE`, copy the table, read `RESERVED`, take the events from `c` on,
//! and undo them, newest first. Undoing an allocation takes the address out, undoing a free puts
//! back what the event carries; both may be done to a table that has not seen the event yet, or
//! only half of it, with the same result. That is why the writer's order (`lane.rs`) is enough:
//! any address the copy may have caught in the middle of a change has an event at or after
//! `DONE`, and the event decides. All other addresses are as the table says.
//!
//! The last event of a writer that died may be published but not in the table (it is redone), or
//! reserved but not published (then the table was never touched for it).

use alloc::vec::Vec;

use crate::StepRecord;
use crate::event::{Event, Kind};
use crate::layout::head;
use crate::layout::regions::LaneLayout;
use crate::layout::sizes::{HOST_LANE, LANES};
use crate::read::Status;
use crate::read::source::Source;
use crate::read::step_index::IndexedStep;
use crate::read::tape::Tape;
use crate::rewind::allowance::Allowance;
use crate::rewind::error::RewindError;
use crate::rewind::lane_state::{Cut, Early, Totals};
use crate::snapshot::RankSnapshot;

/// A point in time of a rank's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointInTime {
    /// The end of this step, counted from 1.
    EndOf(u64),
    /// The newest state there is; for a dead process its last.
    Present,
    /// Just after the last request that failed for good.
    LastOom,
}

impl PointInTime {
    /// The state that a tape is judged by: the newest, but of a process that has exited the end of
    /// its last finished step, because an exit frees what the process held.
    pub fn judged(status: &Status) -> Self {
        match status.sealed && status.step > 0 {
            true => Self::EndOf(status.step),
            false => Self::Present,
        }
    }
}

impl<S: Source> Tape<S> {
    /// The state of the rank at a point in time, with the memory of each stack at the end of an
    /// earlier step where the tape still covers it (`before_step` of the result says whether), and
    /// the last events up to it, at most `trace_events_max` a device.
    ///
    /// Host-side lanes have rings of their own, the host's a short one. A lane whose events back to
    /// that time are overwritten is left out, and `outside_missing` says so: the devices' memory is
    /// exact without it.
    ///
    /// # Errors
    /// A [`RewindError`] when the state is not exactly known; never a guess.
    pub fn snapshot(
        &self,
        at: PointInTime,
        before: Option<u64>,
        trace_events_max: usize,
    ) -> Result<RankSnapshot, RewindError> {
        self.snapshot_within(at, before, trace_events_max, u64::MAX)
    }

    /// As [`Self::snapshot`], for a tape whose owner is not trusted: takes at most about
    /// `bytes_max` bytes of memory, including the encoding of the snapshot.
    ///
    /// # Errors
    /// [`RewindError::TooLarge`] when the state takes more, and those of [`Self::snapshot`].
    pub fn snapshot_within(
        &self,
        at: PointInTime,
        before: Option<u64>,
        trace_events_max: usize,
        bytes_max: u64,
    ) -> Result<RankSnapshot, RewindError> {
        let mut allowance = Allowance::new(bytes_max);
        let status = self.status();
        let (step, mono_ns) = match at {
            PointInTime::Present => (status.step, None),
            PointInTime::EndOf(step) if step > status.step => {
                return Err(RewindError::NotReached { step, reached: status.step });
            }
            PointInTime::EndOf(step) => (step, self.step_end(step)),
            PointInTime::LastOom => {
                let (_, event) = self.last_oom().ok_or(RewindError::NoOom)?;
                (u64::from(event.step), Some(event.mono_ns))
            }
        };
        let mut before = before.filter(|&early| early > 0 && early < step);
        let mut states = Vec::new();
        for index in 0..LANES {
            let Some(lane) = self.lane(index) else { continue };
            let cut = match self.cut_at(index, &lane, at) {
                Err(RewindError::NotCovered { .. }) if index >= HOST_LANE => continue,
                cut => cut?,
            };
            let early = before.and_then(|early| {
                let cursor = self.cut_at(index, &lane, PointInTime::EndOf(early)).ok()?.cursor?;
                Some(Early { cursor, in_pieces: index >= HOST_LANE })
            });
            let state = self.lane_state(&lane, cut, early, trace_events_max, &mut allowance);
            let state = match state {
                Err(RewindError::NotCovered { .. }) if index >= HOST_LANE => continue,
                Err(RewindError::NotCovered { oldest, .. }) => {
                    return Err(RewindError::NotCovered { step, oldest });
                }
                state => state?,
            };
            if index < HOST_LANE && state.before.is_none() {
                before = None;
            }
            states.push((index, state));
        }
        let wall_ns = self.wall_ns(mono_ns.unwrap_or(status.step_mono_ns));
        self.assemble(step, wall_ns, before, states, allowance)
    }

    /// End of a step, from any lane that has its record.
    fn step_end(&self, step: u64) -> Option<u64> {
        let of = |index| {
            let lane = self.lane(index)?;
            let ends = |indexed: &IndexedStep| indexed.record.last_step >= step;
            self.indexed_steps(&lane).into_iter().find(ends).map(|found| found.end_mono_ns)
        };
        (0..LANES).find_map(of)
    }

    /// The newest failed request of any device that the tape still has: its lane and the event.
    pub fn last_oom(&self) -> Option<(usize, Event)> {
        let of = |index: usize| {
            let lane = self.lane(index)?;
            let position = self.word(lane.head + head::LAST_OOM);
            let event = *self.events(&lane, position.checked_sub(1)?, position).first()?;
            Some((index, event.filter(|event| event.kind == Kind::Oom)?))
        };
        (0..HOST_LANE).filter_map(of).max_by_key(|(_, event)| event.mono_ns)
    }

    /// Cursor of a point in time in a lane.
    pub(super) fn cut_at(
        &self,
        index: usize,
        lane: &LaneLayout,
        at: PointInTime,
    ) -> Result<Cut, RewindError> {
        match at {
            PointInTime::EndOf(step) => self.cut_at_step(lane, step),
            PointInTime::Present => Ok(Cut { cursor: None, totals: Totals::OfHead }),
            PointInTime::LastOom => {
                let (failed, event) = self.last_oom().ok_or(RewindError::NoOom)?;
                if index == failed {
                    let cursor = self.word(lane.head + head::LAST_OOM);
                    // A failed request has no address and no birth: its totals stand there.
                    let totals = Totals::Known(event.address, event.birth_ns);
                    return Ok(Cut { cursor: Some(cursor), totals });
                }
                let step = u64::from(event.step);
                let not_covered = || RewindError::NotCovered { step, oldest: self.oldest_step() };
                let cursor = self.cursor_at(lane, event.mono_ns).ok_or_else(not_covered)?;
                let reserved = self.reserved_throughout(lane, step.saturating_add(1)).unwrap_or(0);
                Ok(Cut { cursor: Some(cursor), totals: Totals::OfBlocks(reserved) })
            }
        }
    }

    /// Number of a lane's events up to a time; `None` when the events around it are overwritten. An
    /// earlier event must be left, else the number of overwritten later ones is unknown.
    fn cursor_at(&self, lane: &LaneLayout, mono_ns: u64) -> Option<u64> {
        let end = self.word(lane.head + head::RESERVED);
        let first = end.saturating_sub(lane.ring_slots as u64);
        let later = |event: &Option<Event>| event.is_some_and(|event| event.mono_ns > mono_ns);
        let events = self.events(lane, first, end);
        let Some(index) = events.iter().position(later) else { return Some(end) };
        let is_covered = first == 0 || events.iter().take(index).any(Option::is_some);
        is_covered.then_some(first + index as u64)
    }

    /// Bytes that a device held all the time in a step, in which it took and gave back none.
    fn reserved_throughout(&self, lane: &LaneLayout, step: u64) -> Option<u64> {
        let steps = self.indexed_steps(lane);
        let mut records = steps.iter().map(|indexed| indexed.record);
        if let Some(record) = records.find(|record| step <= record.last_step) {
            let is_exact =
                record.first_step <= step && record.floor_reserved == record.peak_reserved;
            return is_exact.then_some(record.end_reserved);
        }
        // The step is under way.
        let words = self.words::<{ head::WORDS }>(lane.head)?;
        let [floor, peak] = [words[head::FLOOR_RESERVED], words[head::PEAK_RESERVED]];
        let is_under_way = self.word(lane.head + head::STEP) < step;
        (is_under_way && floor == peak).then_some(peak)
    }

    fn cut_at_step(&self, lane: &LaneLayout, step: u64) -> Result<Cut, RewindError> {
        if step <= self.birth_step(lane) {
            return Ok(Cut { cursor: Some(0), totals: Totals::Known(0, 0) });
        }
        // A lane that closes the step at this moment shows it neither as written nor as pending.
        const TRIES_MAX: usize = 16;
        for _ in 0..TRIES_MAX {
            let steps = self.indexed_steps(lane);
            let is_in = |r: &StepRecord| r.first_step <= step && step <= r.last_step;
            if let Some(found) = steps.iter().find(|indexed| is_in(&indexed.record)) {
                let record = found.record;
                let totals = Totals::Known(record.end_allocated, record.end_reserved);
                return Ok(Cut { cursor: Some(found.cursor), totals });
            }
            if steps.first().is_some_and(|oldest| step < oldest.record.first_step) {
                break;
            }
        }
        let oldest = self.oldest_step();
        Err(RewindError::NotCovered { step, oldest })
    }
}
