//! Phases and annotations that the program set while it was recorded.

use alloc::string::String;

/// A point in time that the program marked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub mono_ns: u64,
    /// Steps that had ended.
    pub step: u64,
    /// `key=value`, or the name of the phase that began; empty where one only ended.
    pub text: String,
}

/// Meaning of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning<'a> {
    /// A phase of this name begins, and the one before it ends.
    PhaseBegins(&'a str),
    /// The phase ends, and none follows.
    PhaseEnds,
    /// The program annotates the point in time: `key=value`.
    Annotation(&'a str),
}

impl Mark {
    /// Meaning of the mark, a phase or an annotation; only annotations have an equals sign.
    pub fn meaning(&self) -> Meaning<'_> {
        match self.text.as_str() {
            "" => Meaning::PhaseEnds,
            text if text.contains('=') => Meaning::Annotation(text),
            name => Meaning::PhaseBegins(name),
        }
    }
}
