//! How the process of a rank ended.

use strum::VariantArray;

/// Ends that are this near to each other have no order, in nanoseconds: clocks of nodes differ, and
/// agents look at different times.
pub const TOGETHER_NS: i64 = 2_000_000_000;

/// How a process ended, as far as it is known.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, strum::EnumString, strum::IntoStaticStr, VariantArray,
)]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum End {
    /// By itself, with status 0 or one that is not known.
    Exited,
    /// By itself, with another status than 0.
    Failed,
    /// By a signal.
    Killed,
    /// By the kernel, for memory of the host.
    OomKilled,
    /// Not known.
    Unknown,
}

impl End {
    /// The name in output.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// What a process did that ended like this.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Failed => "exited with an error",
            Self::Killed => "was killed by a signal",
            Self::OomKilled => "was killed by the kernel for memory of the host",
            Self::Unknown => "ended",
        }
    }

    /// Did the process die, where it should have gone on?
    pub fn is_death(self) -> bool {
        match self {
            Self::Failed | Self::Killed | Self::OomKilled => true,
            Self::Exited | Self::Unknown => false,
        }
    }
}
