//! State of one lane at a cut of its history: copies the tables and undoes the events since.

use alloc::vec::Vec;

use crate::event::Event;
use crate::layout::head;
use crate::layout::regions::LaneLayout;
use crate::layout::sizes::CURSOR_MAX;
use crate::read::source::Source;
use crate::read::tape::{Tape, believable};
use crate::rewind::allowance::{
    Allowance, BLOCK_BYTES, EVENT_BYTES, PAST_BYTES, TOUCHED_BYTES, TRACED_BYTES,
};
use crate::rewind::undo::{Before, Live, Segments};

use crate::rewind::error::RewindError;

/// State of one lane at a point in time.
pub(crate) struct LaneState {
    pub(crate) live: Live,
    pub(crate) segments: Segments,
    /// State at the earlier point in time.
    pub(crate) before: Option<Before>,
    /// Events of the lane before the point in time.
    pub(crate) end: u64,
    pub(crate) trace: Vec<Event>,
    /// Events of the lane before the first of the trace.
    pub(crate) trace_first: u64,
    pub(crate) allocated: u64,
    pub(crate) reserved: u64,
}

/// A cut in a lane's history, with the totals there.
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    /// Events before it; `None` is the newest published event.
    pub(crate) cursor: Option<u64>,
    pub(crate) totals: Totals,
}

/// An earlier cut in a lane's history.
#[derive(Clone, Copy)]
pub(crate) struct Early {
    /// Events before it.
    pub(crate) cursor: u64,
    /// Whether each piece is of interest, or only what each stack held.
    pub(crate) in_pieces: bool,
}

/// The allocator's totals at a cut.
#[derive(Clone, Copy)]
pub(crate) enum Totals {
    /// Totals of the lane's head: the cut is the present.
    OfHead,
    /// Known: bytes handed out and bytes held.
    Known(u64, u64),
    /// Bytes handed out are to be added up from the blocks, and bytes held from the segments; where
    /// segments are not reported, this many bytes are held, 0 when unknown.
    OfBlocks(u64),
}

impl<S: Source> Tape<S> {
    pub(crate) fn lane_state(
        &self,
        lane: &LaneLayout,
        cut: Cut,
        early: Option<Early>,
        trace_events_max: usize,
        allowance: &mut Allowance,
    ) -> Result<LaneState, RewindError> {
        const TRIES_MAX: usize = 8;
        for _ in 0..TRIES_MAX {
            let before = self.words::<2>(lane.head);
            let mut left = *allowance;
            match self.try_lane_state(lane, cut, early, trace_events_max, &mut left) {
                // Where no event was written, another copy shows the same.
                Err(RewindError::Damaged) if before != self.words::<2>(lane.head) => {}
                other => {
                    *allowance = left;
                    return other;
                }
            }
        }
        Err(RewindError::Damaged)
    }

    fn try_lane_state(
        &self,
        lane: &LaneLayout,
        cut: Cut,
        early: Option<Early>,
        trace_events_max: usize,
        allowance: &mut Allowance,
    ) -> Result<LaneState, RewindError> {
        let [_, done] = self.words::<2>(lane.head).ok_or(RewindError::Damaged)?;
        let mut live = self.copy_table(lane, allowance)?;
        let mut segments = self.copy_segments(lane, allowance)?;
        let head_words = self.words::<{ head::WORDS }>(lane.head).ok_or(RewindError::Damaged)?;
        let reserved = head_words[head::RESERVED];
        if reserved > CURSOR_MAX || done > reserved {
            return Err(RewindError::Damaged);
        }
        let oldest_held = reserved.saturating_sub(lane.ring_slots as u64);
        let not_covered = || RewindError::NotCovered { step: 0, oldest: self.oldest_step() };

        // A cut beyond what is done needs the events up to it; the present takes all published.
        let first = cut.cursor.unwrap_or(done).min(done);
        if first < oldest_held {
            return Err(not_covered());
        }
        let early = early.filter(|early| (oldest_held..=first).contains(&early.cursor));
        let from = early.map_or(first, |early| early.cursor);
        let count = (reserved - from) as usize;
        allowance.take(count, EVENT_BYTES)?;
        let mut events = self.events(lane, from, reserved);
        let held = self.word(lane.head + head::RESERVED).saturating_sub(lane.ring_slots as u64);
        if events.last().is_some_and(Option::is_none) && reserved > held {
            events.pop(); // reserved but not published: the table knows nothing of it
        }
        let events: Option<Vec<Event>> = events.into_iter().collect();
        let Some(events) = events else {
            // The present moved on while it was looked at: another look may be quicker.
            let is_gone = from < held && cut.cursor.is_some();
            return Err(if is_gone { not_covered() } else { RewindError::Damaged });
        };
        let position = |cursor: u64| (cursor.saturating_sub(from) as usize).min(events.len());
        let at = cut.cursor.map_or(events.len(), position);

        let after = events.get(position(first)..).unwrap_or_default();
        let again = events.get(position(first)..at).unwrap_or_default();
        take_back(&mut live, &mut segments, (after, again), allowance)?;
        let since = events.get(..at).unwrap_or_default();
        let early = early.map(|early| past(early, (&live, &segments), since, allowance));
        let before = early.transpose()?;
        let end = from + at as u64;
        let trace_first = end.saturating_sub(trace_events_max as u64).max(oldest_held);
        drop(events);
        allowance.give_back(count, EVENT_BYTES);
        allowance.take(end.saturating_sub(trace_first) as usize, TRACED_BYTES)?;
        let trace = self.events(lane, trace_first, end).into_iter().flatten().collect();
        let (allocated, reserved) = match cut.totals {
            Totals::Known(allocated, reserved) => (allocated, reserved),
            Totals::OfHead => (head_words[head::ALLOCATED], head_words[head::RESERVED_BYTES]),
            Totals::OfBlocks(reserved) => {
                let held = segments.bytes();
                (live.bytes(), if held > 0 { held } else { reserved })
            }
        };
        let (allocated, reserved) = (believable(allocated), believable(reserved));
        Ok(LaneState { live, segments, before, end, trace, trace_first, allocated, reserved })
    }
}

/// Undoes the events `after` a cut, newest first, and redoes the events that came `again`.
fn take_back(
    live: &mut Live,
    segments: &mut Segments,
    (after, again): (&[Event], &[Event]),
    allowance: &mut Allowance,
) -> Result<(), RewindError> {
    let mut taken = live.len() + segments.len();
    for event in after.iter().rev() {
        live.undo(event);
        segments.undo(event);
        allowance.take_growth(&mut taken, live.len() + segments.len(), BLOCK_BYTES)?;
    }
    for event in again {
        live.redo(event);
        segments.redo(event);
        allowance.take_growth(&mut taken, live.len() + segments.len(), BLOCK_BYTES)?;
    }
    Ok(())
}

/// State at an earlier cut: a copy of the state with the events since undone.
fn past(
    early: Early,
    (live, segments): (&Live, &Segments),
    since: &[Event],
    allowance: &mut Allowance,
) -> Result<Before, RewindError> {
    let mut taken = 0;
    allowance.take_growth(&mut taken, live.len() + segments.len(), PAST_BYTES)?;
    let (mut live, mut segments) = (live.clone(), segments.clone());
    for event in since.iter().rev() {
        live.undo(event);
        segments.undo(event);
        allowance.take_growth(&mut taken, live.len() + segments.len(), PAST_BYTES)?;
    }
    allowance.take(live.len() + since.len(), TOUCHED_BYTES)?;
    Ok(Before::of(live, &segments, since, early.in_pieces))
}
