//! Outcomes of an action.

use alloc::string::String;
use core::fmt::{self, Display, Formatter};

/// Outcome of an action; [`Display`] puts it into words.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The decision was to do nothing.
    #[default]
    Nothing,
    /// A dry run.
    DryRun,
    /// No restart target is configured.
    NoTarget,
    /// The restart waits until this capture is closed.
    Waiting {
        /// Name of the capture.
        capture: String,
    },
    /// All ranks act at this step: they carry out the remedy, or write the checkpoint that a
    /// restart waits for.
    AtStep {
        /// The step.
        step: u64,
    },
    /// The coordinator was restarted before the target was asked, and cannot ask it any more.
    Lost,
    /// The incident or its attempt was over when the capture was closed, or the call to the ranks
    /// ended.
    Overtaken,
    /// The target is running.
    Running,
    /// The coordinator was restarted while the target was running, or the ranks acted.
    Interrupted,
    /// The target finished.
    Finished {
        /// Output of the target.
        said: String,
    },
    /// The target refused, or could not be asked: it surely restarted nothing.
    Refused {
        /// Why.
        why: String,
    },
    /// The target failed; it may have restarted the job before.
    Failed {
        /// Why.
        why: String,
    },
}

/// Progress of an action that budgets count. Of a decision with several targets the greatest
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// The action was given up before a target was asked.
    Dropped,
    /// The target refused the action, or could not be asked: it was certainly not made.
    Refused,
    /// The action was made, or may have been.
    Made,
    /// The action is under way.
    UnderWay,
}

impl Outcome {
    /// Progress that budgets count.
    pub fn progress(&self) -> Progress {
        match self {
            Self::Nothing | Self::Lost | Self::Overtaken => Progress::Dropped,
            Self::Refused { .. } => Progress::Refused,
            // A dry run shows what a restart would have been.
            Self::DryRun
            | Self::NoTarget
            | Self::Interrupted
            | Self::Finished { .. }
            | Self::Failed { .. } => Progress::Made,
            Self::Waiting { .. } | Self::AtStep { .. } | Self::Running => Progress::UnderWay,
        }
    }
}

impl Display for Outcome {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => Ok(()),
            Self::DryRun => formatter.write_str("not run: dry run"),
            Self::NoTarget => formatter.write_str("no restart target is configured"),
            Self::Waiting { capture } => write!(formatter, "waiting for capture {capture}"),
            Self::AtStep { step } => write!(formatter, "all ranks act at step {step}"),
            Self::Lost => formatter
                .write_str("not run: the coordinator was restarted before its target was asked"),
            Self::Overtaken => formatter.write_str("not run: its reason is gone"),
            Self::Running => formatter.write_str("running"),
            Self::Interrupted => formatter.write_str(
                "the coordinator was restarted meanwhile: the job or the node shows what came of \
                 it",
            ),
            Self::Finished { said } => formatter.write_str(said),
            Self::Refused { why } | Self::Failed { why } => formatter.write_str(why),
        }
    }
}
