//! Reads the program's own entries on its tape: the present phase, and its marks.
//!
//! A mark is an event of the host lane whose `detail` is the id of a text: a phase's name, or
//! `key=value`. Marks share the ring with all else on the host side, so old ones are overwritten.

use alloc::string::String;
use alloc::vec::Vec;

use crate::event::{Event, Kind};
use crate::interned::stacks::Interned;
use crate::layout::sizes::HOST_LANE;
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
        let Some(lane) = self.lane(HOST_LANE) else { return Vec::new() };
        let end = self.word(lane.head + head::RESERVED);
        let first = end.saturating_sub(lane.ring_slots as u64);
        let interned = self.interned();
        let events = self.events(&lane, first, end).into_iter().flatten();
        newest(events, &interned, count)
    }
}

/// The marks among these events: the newest, at most `count`.
pub(crate) fn newest(
    events: impl Iterator<Item = Event>,
    interned: &Interned,
    count: usize,
) -> Vec<Mark> {
    let mut marks: Vec<Event> = events.filter(|event| event.kind == Kind::Mark).collect();
    let newest = marks.split_off(marks.len().saturating_sub(count));
    let mark = |event: Event| Mark {
        mono_ns: event.mono_ns,
        step: u64::from(event.step),
        text: text(interned, event.detail),
    };
    newest.into_iter().map(mark).collect()
}

/// The text with this id; empty for id 0 and for a damaged entry.
fn text(interned: &Interned, id: u64) -> String {
    let id = u32::try_from(id).unwrap_or(0);
    if id == 0 { String::new() } else { interned.string(id).unwrap_or_default() }
}
