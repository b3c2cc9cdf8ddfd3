//! Reads the program's own entries on its tape: the present phase, and its marks.
//!
//! A mark is an event of the host lane whose `detail` is the id of a text: a phase's name, or
//! `key=value`. Marks share the ring with all else on the host side, so old ones are overwritten.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

use crate::event::{Event, Kind};
use crate::interned::stacks::Interned;
use crate::layout::sizes::{CURSOR_MAX, HOST_LANE};
use crate::layout::{head, header};
use crate::read::source::Source;
use crate::read::tape::Tape;
use crate::snapshot::marks::Mark;

impl<S: Source> Tape<S> {
    /// The phase that the program is in; empty where it names none.
    pub fn phase(&self) -> String {
        text(&self.interned(), self.word(header::PHASE))
    }

    /// The newest marks, oldest first: at most `count`.
    pub fn marks(&self, count: usize) -> Vec<Mark> {
        self.marks_until(CURSOR_MAX, &self.interned(), count)
    }

    /// The newest marks among the events of the host lane before this position, oldest first: at
    /// most `count`.
    pub(crate) fn marks_until(&self, end: u64, interned: &Interned, count: usize) -> Vec<Mark> {
        const CHUNK_EVENTS: usize = 4096;
        let Some(lane) = self.lane(HOST_LANE) else { return Vec::new() };
        let newest = self.word(lane.head + head::RESERVED).min(CURSOR_MAX);
        let (first, end) = (newest.saturating_sub(lane.ring_slots as u64), newest.min(end));
        let mut marks = VecDeque::new();
        for from in (first..end).step_by(CHUNK_EVENTS) {
            let events = self.events(&lane, from, end.min(from + CHUNK_EVENTS as u64));
            for event in events.into_iter().flatten().filter(|event| event.kind == Kind::Mark) {
                if marks.len() >= count {
                    marks.pop_front();
                }
                marks.push_back(event);
            }
        }
        let mark = |event: Event| Mark {
            mono_ns: event.mono_ns,
            step: u64::from(event.step),
            text: text(interned, event.detail),
        };
        marks.into_iter().map(mark).collect()
    }
}

/// The text with this id; empty for id 0 and for a damaged entry.
fn text(interned: &Interned, id: u64) -> String {
    let id = u32::try_from(id).unwrap_or(0);
    if id == 0 { String::new() } else { interned.string(id).unwrap_or_default() }
}
