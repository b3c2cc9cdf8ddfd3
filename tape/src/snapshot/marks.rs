//! What the program itself said while it was recorded: its phases and annotations.

use alloc::string::String;

/// A moment that the program marked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub mono_ns: u64,
    /// Steps that had ended.
    pub step: u64,
    /// `key=value`, or the name of the phase that began; empty where one only ended.
    pub text: String,
}

/// What a mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning<'a> {
    /// A phase of this name begins, and the one before it ends.
    PhaseBegins(&'a str),
    /// The phase ends, and none follows.
    PhaseEnds,
    /// The program annotates the moment: `key=value`.
    Annotation(&'a str),
}

impl Mark {
    /// What the mark says, of phases and annotations alike; only annotations have an equals sign.
    pub fn meaning(&self) -> Meaning<'_> {
        match self.text.as_str() {
            "" => Meaning::PhaseEnds,
            text if text.contains('=') => Meaning::Annotation(text),
            name => Meaning::PhaseBegins(name),
        }
    }
}
