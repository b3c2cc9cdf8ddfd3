//! Reads what the program itself put on its tape: the phase it is in, and its marks.
//!
//! A mark is an event of the host lane whose `detail` is the atom of a text: a phase's name, or
//! `key=value`. Marks share the ring with all else on the host side, so old ones are overwritten.

use alloc::string::String;
use alloc::vec::Vec;

use crate::tape::event::Kind;
use crate::tape::interned::stacks::Atoms;
use crate::tape::layout::sizes::HOST_LANE;
use crate::tape::layout::{head, header};
use crate::tape::read::source::Source;
use crate::tape::read::tape::Tape;

/// A moment that the program marked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// CLOCK_MONOTONIC.
    pub mono_ns: u64,
    /// Steps that had ended.
    pub step: u64,
    /// `key=value`, or the name of the phase that began; empty where one only ended.
    pub text: String,
}

impl<S: Source> Tape<S> {
    /// The phase that the program is in; empty where it names none.
    pub fn phase(&self) -> String {
        text(&self.atoms(), self.word(header::PHASE))
    }

    /// The newest marks, oldest first: at most `count`.
    pub fn marks(&self, count: usize) -> Vec<Mark> {
        let Some(lane) = self.lane(HOST_LANE) else { return Vec::new() };
        let end = self.word(lane.head + head::RESERVED);
        let first = end.saturating_sub(lane.ring_slots as u64);
        let atoms = self.atoms();
        let events = self.events(&lane, first, end).into_iter().flatten();
        let marks = events.filter(|event| event.kind == Kind::Mark).map(|event| Mark {
            mono_ns: event.mono_ns,
            step: u64::from(event.step),
            text: text(&atoms, event.detail),
        });
        let mut marks: Vec<_> = marks.collect();
        marks.split_off(marks.len().saturating_sub(count))
    }
}

/// The text of an atom; atom 0 is none, and one that is damaged says nothing.
fn text(atoms: &Atoms, atom: u64) -> String {
    let atom = u32::try_from(atom).unwrap_or(0);
    if atom == 0 { String::new() } else { atoms.string(atom).unwrap_or_default() }
}
