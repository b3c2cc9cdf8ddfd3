//! Ends of the process of a rank.

use strum::VariantArray;

/// Ends on two nodes that are this near to each other have no order, in nanoseconds: clocks differ,
/// and agents scan at different times.
pub const TOGETHER_NS: i64 = 2_000_000_000;

/// How a process ended, as far as it is known.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, strum::EnumString, strum::IntoStaticStr, VariantArray,
)]
#[strum(serialize_all = "snake_case")]
#[derive(serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Ended by itself, with status 0 or an unknown status.
    Exited,
    /// Ended by itself, with a status other than 0.
    Failed,
    /// Ended by a signal; without an exit status nothing is known but that the tape is not sealed.
    Killed,
    /// Killed by the kernel, for memory of the host.
    OomKilled,
    /// Not known.
    Unknown,
}

impl End {
    /// The name in output.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The end of the process, in a table. Without an exit status it is not known that a signal
    /// ended it.
    pub fn word(self, exit_status: Option<i32>) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Failed => "failed",
            Self::Killed if exit_status.is_some() => "killed",
            Self::OomKilled => "OOM killed",
            Self::Killed | Self::Unknown => "ended",
        }
    }

    /// The end of the process, as a verb, where its exit status is not known.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Failed => "exited with an error",
            Self::Killed => "ended without an orderly exit",
            Self::OomKilled => "was killed by the kernel for memory of the host",
            Self::Unknown => "ended",
        }
    }

    /// Was the process asked to end, by SIGTERM, SIGINT or SIGHUP? Programs that catch these exit
    /// with 128 and the signal. Of an exit status that is negative, its amount is the signal.
    pub fn was_asked(self, exit_status: Option<i32>) -> bool {
        match self {
            Self::Killed => matches!(exit_status, Some(-15 | -2 | -1)),
            Self::Failed => matches!(exit_status, Some(143 | 130 | 129)),
            Self::Exited | Self::OomKilled | Self::Unknown => false,
        }
    }

    /// Does this end, with its exit status, say more than the `known` one of the same process? An
    /// agent that was restarted sees no more than an unsealed tape.
    pub fn says_more_than(self, exit_status: Option<i32>, known: (Self, Option<i32>)) -> bool {
        match (self, exit_status) {
            (Self::Unknown, _) => false,
            (Self::Killed, None) => known.0 == Self::Unknown,
            (end, status) => end != known.0 || (status.is_some() && known.1.is_none()),
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
