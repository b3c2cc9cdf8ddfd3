//! Remedies, mildest first: what can be done to a job whose memory grows.
//!
//! The first ones are carried out inside the ranks, at one step on all of them, and the attempt
//! goes on. A restart ends the attempt. Which remedy may help is decided here by the class of the
//! incident; of a restart the diagnosis says more ([`crate::diagnosis::RestartAnswer`]).

use strum::VariantArray as _;

use crate::diagnosis::Class;
use crate::tape::mailbox;

/// Something that can be done to a job.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "kebab-case")]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Remedy {
    /// Run Python's garbage collector in every rank.
    Gc,
    /// Give the allocator's unused memory back to the device, in every rank.
    EmptyCache,
    /// Ask the orchestrator for a restart.
    #[default]
    Restart,
}

impl Remedy {
    /// All of them, mildest first.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The name in a policy file.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// What is done, as a command.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Gc => "collect garbage",
            Self::EmptyCache => "empty the cache",
            Self::Restart => "restart",
        }
    }

    /// What was done, as a noun in the plural.
    pub(super) fn plural(self) -> &'static str {
        match self {
            Self::Gc => "garbage collections",
            Self::EmptyCache => "empty caches",
            Self::Restart => "restarts",
        }
    }

    /// True when it is carried out inside the ranks, and the attempt goes on.
    pub fn is_inside(self) -> bool {
        match self {
            Self::Gc | Self::EmptyCache => true,
            Self::Restart => false,
        }
    }

    /// What the ranks are asked for: of a restart, the checkpoint before it.
    pub fn asked_of_ranks(self) -> mailbox::Remedy {
        match self {
            Self::Gc => mailbox::Remedy::Gc,
            Self::EmptyCache => mailbox::Remedy::EmptyCache,
            Self::Restart => mailbox::Remedy::Checkpoint,
        }
    }

    /// True when it may help against a class. A leak may be cycles that the captures do not show.
    pub(super) fn suits(self, class: Class) -> bool {
        match self {
            Self::Gc => matches!(class, Class::ReferenceCycles | Class::Leak),
            Self::EmptyCache => matches!(class, Class::Fragmentation | Class::DeferredFrees),
            Self::Restart => true,
        }
    }
}
