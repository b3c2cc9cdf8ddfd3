//! What a judge knows of its class: a list of facts for and against, each with its weight, and all
//! that follows from the class.

use alloc::string::String;
use alloc::vec::Vec;

use super::remedy::Remedy;
use crate::detector::Layer;
use crate::diagnosis::evidence::case::{Case, Lines};

/// One class of trouble.
pub(crate) struct Judge {
    /// What speaks for and against it; the last argument: does a line leak?
    pub(crate) evaluate: fn(&Case<'_>, &Lines<'_>, bool) -> Facts,
    /// The upper bound of its confidence before doubts, in parts per million.
    pub(crate) confidence_ppm: fn(&Case<'_>, &Lines<'_>) -> u64,
    /// The expected course of a growth of this class.
    pub(crate) outlook: Outlook,
    /// The memory that is its own.
    pub(crate) share: Share,
    /// What a restart does about it.
    pub(crate) restart: RestartAnswer,
    /// What the sentence says of it.
    pub(crate) phrase: Phrase,
    /// What to do about it.
    pub(crate) remedy: fn(&Case<'_>, &Lines<'_>) -> Remedy,
}

/// The expected course of a growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlook {
    /// Until the job dies or stands still; a person can repair it.
    Fault,
    /// The job was set up like this, and it may come to rest.
    Load,
    /// It ends without intervention, or its course is not known: its forecast is not urgent.
    Passing,
    /// It has a forecast, and is no fault that is known.
    Open,
}

/// The memory that is a class's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Tensors of the named line.
    Tensors,
    /// Blocks that were freed and are still in use.
    Deferred,
    /// Blocks in private pools.
    Private,
    /// What is reserved and not in use.
    Free,
    /// Memory of the device outside the allocator.
    Outside,
    /// Memory of the host.
    Host,
    /// None: no line is to blame.
    Nothing,
}

/// What the sentence says of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phrase {
    /// Nothing, or what the sentence works out.
    Plain,
    /// A subject, its verb while the growth goes on and after its end, and the rest.
    Always(&'static str, (&'static str, &'static str), &'static str),
    /// The same, unless the sentence is about this layer and says it already.
    Unless(Layer, &'static str, (&'static str, &'static str), &'static str),
}

/// Whether a restart helps, and why or why not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartAnswer {
    /// It helps: the process gives memory back.
    GivesBack,
    /// It does not help: other processes hold the memory.
    OtherProcesses,
    /// It does not help: the job needs as much again.
    NeededAgain,
    /// It does not help: this rank gets more work again.
    MoreWorkAgain,
    /// It does not help: the loop empties the cache again.
    EmptiedAgain,
    /// Not known: it ends the waiting, and the rank may fall behind again.
    EndsWaiting,
    /// Not known.
    #[default]
    Unknown,
}

impl RestartAnswer {
    /// Whether a restart helps; none when that is not known.
    pub fn helps(self) -> Option<bool> {
        match self {
            Self::GivesBack => Some(true),
            Self::OtherProcesses | Self::NeededAgain | Self::MoreWorkAgain | Self::EmptiedAgain => {
                Some(false)
            }
            Self::EndsWaiting | Self::Unknown => None,
        }
    }
}

crate::tape::names! {
    /// How a class stands when all its facts are known.
    pub enum Standing in "snake_case" {
        /// All that it needs is known to be so.
        Holds,
        /// Something that it needs is not known.
        Possible,
        /// Something that it needs is known to be otherwise.
        RuledOut,
    }
}

/// The facts for and against a class. Their weights, from the heaviest: `needs` and `excluded_by`
/// decide; `supports` and `doubts` are for the reader. Empty sentences are left out.
#[derive(Debug)]
pub(crate) struct Facts {
    standing: Standing,
    evidence: Vec<String>,
    against: Vec<String>,
}

impl Default for Facts {
    fn default() -> Self {
        Self { standing: Standing::Holds, evidence: Vec::new(), against: Vec::new() }
    }
}

impl Facts {
    /// The class needs this; what is not known leaves it possible.
    pub(crate) fn needs(
        mut self,
        holds: Option<bool>,
        yes: impl Into<String>,
        no: impl Into<String>,
    ) -> Self {
        match holds {
            Some(true) => self.supports(Some(yes)),
            Some(false) => Self { standing: Standing::RuledOut, ..self.doubts(Some(no)) },
            None => {
                self.standing = self.standing.max(Standing::Possible);
                self
            }
        }
    }

    /// The class is not possible with this; what is not known says nothing.
    pub(crate) fn excluded_by(
        self,
        holds: Option<bool>,
        yes: impl Into<String>,
        no: impl Into<String>,
    ) -> Self {
        match holds {
            Some(true) => Self { standing: Standing::RuledOut, ..self.doubts(Some(yes)) },
            Some(false) => self.supports(Some(no)),
            None => self,
        }
    }

    /// This speaks for the class.
    pub(crate) fn supports(mut self, sentence: Option<impl Into<String>>) -> Self {
        self.evidence.extend(sentence.map(Into::into).filter(|said: &String| !said.is_empty()));
        self
    }

    /// This speaks against the class.
    pub(crate) fn doubts(mut self, sentence: Option<impl Into<String>>) -> Self {
        self.against.extend(sentence.map(Into::into).filter(|said: &String| !said.is_empty()));
        self
    }

    /// How the class stands, and what was said for and against it.
    pub(crate) fn done(self) -> (Standing, Vec<String>, Vec<String>) {
        (self.standing, self.evidence, self.against)
    }
}
