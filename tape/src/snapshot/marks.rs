//! Phases and annotations that the program set, and activities that the recorder noticed.

use alloc::string::String;

crate::names! {
    /// Work beside the training steps that the recorder marks by itself. Its mark is the annotation
    /// `activity=save`.
    pub enum Activity in "snake_case" {
        /// PyTorch serializes tensors: `torch.save`, `torch.distributed.checkpoint`.
        Save,
        /// PyTorch reads serialized tensors: `torch.load`.
        Load,
        /// A module is set to evaluation: `model.eval()`.
        Evaluation,
    }
}

impl Activity {
    /// All of them, in the order of their numbers.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Key of the annotation that marks an activity.
    pub const KEY: &'static str = "activity";
}

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

    /// The activity that began, where the mark is of one.
    pub fn activity(&self) -> Option<Activity> {
        let (key, name) = self.text.split_once('=')?;
        name.parse().ok().filter(|_| key == Activity::KEY)
    }
}
