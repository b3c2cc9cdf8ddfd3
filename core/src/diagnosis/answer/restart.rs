//! Whether a restart would help, with how much, and for how long.
//!
//! A restart gives back what the process holds. What grows for a reason in the code grows again,
//! so it lasts as long as the growth took; what the job needs it needs again at once.
//! [`crate::policy`] reads this and decides whether to restart.

use core::fmt::{self, Display, Formatter};

use crate::detector::Layer;
use crate::diagnosis::class::Class;
use crate::diagnosis::evidence::account::unsigned;
use crate::diagnosis::evidence::case::Case;
use crate::diagnosis::judges::facts::RestartAnswer;
use crate::diagnosis::judges::facts::Share;
use crate::diagnosis::words::{about, about_plural, bytes};

/// What a restart from the last checkpoint would do; [`Display`] puts it into a sentence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Restart {
    /// Whether it helps, and why or why not.
    pub answer: RestartAnswer,
    /// Bytes that it gives back; none when unknown or nothing.
    pub gives_back_bytes: Option<u64>,
    /// Steps after which memory is as it is now.
    pub lasts_steps: Option<u64>,
    /// Steps after which memory ends, if nothing else changes.
    pub ends_after_steps: Option<u64>,
}

impl Display for Restart {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self.answer {
            RestartAnswer::GivesBack => return self.write_gain(formatter),
            RestartAnswer::OtherProcesses => {
                "a restart does not help: other processes hold the memory"
            }
            RestartAnswer::NeededAgain => "a restart does not help: the job needs this much again",
            RestartAnswer::MoreWorkAgain => {
                "a restart does not help: this rank gets more work again"
            }
            RestartAnswer::EmptiedAgain => {
                "a restart does not help: the loop empties the cache again"
            }
            RestartAnswer::EndsWaiting => {
                "a restart ends the waiting; whether the rank falls behind again is not known"
            }
            RestartAnswer::Unknown => "whether a restart helps is not known",
        })
    }
}

impl Restart {
    fn write_gain(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self.gives_back_bytes {
            Some(given) => write!(formatter, "a restart gives {} back", bytes(given))?,
            None => formatter.write_str("a restart gives the memory back")?,
        }
        match (self.lasts_steps, self.ends_after_steps) {
            (Some(lasts), Some(ends)) => write!(
                formatter,
                "; after about {} it is as now, after about {} memory ends",
                about_plural(lasts, "step"),
                about(ends),
            ),
            (Some(lasts), None) => {
                write!(formatter, "; after about {} it is as now", about_plural(lasts, "step"))
            }
            (None, _) => formatter.write_str("; for how long is not known"),
        }
    }
}

/// What a restart does about a growth of this class.
pub(crate) fn restart(case: &Case<'_>, class: Class) -> Restart {
    let growth = case.growth;
    let facts = class.judge();
    let answer = match (facts.restart, case.layer) {
        (RestartAnswer::GivesBack, Layer::Other) => RestartAnswer::OtherProcesses,
        (answer, _) => answer,
    };
    if answer != RestartAnswer::GivesBack {
        return Restart { answer, ..Restart::default() };
    }
    let given = match facts.share {
        Share::Tensors => case.kept_bytes(unsigned(case.account.grown.bytes.max(case.net.bytes))),
        Share::Deferred => unsigned(case.deferred).max(growth.grown_bytes),
        Share::Private => unsigned(case.private).max(growth.grown_bytes),
        Share::Free => match &case.shape {
            Some(shape) => shape.inactive.saturating_add(shape.cached),
            None if case.layer.has_rate() => growth.grown_bytes,
            None => 0,
        },
        Share::Outside | Share::Host => growth.grown_bytes,
        Share::Nothing => 0,
    };
    gives_back(case, given)
}

/// It helps for as long as the growth took.
fn gives_back(case: &Case<'_>, given: u64) -> Restart {
    let growth = case.growth;
    let took = growth.last_step.max(case.step).saturating_sub(growth.onset_step);
    let took = took.saturating_add(case.older_steps());
    let lasts = (took > 0).then_some(took);
    Restart {
        answer: RestartAnswer::GivesBack,
        gives_back_bytes: (given > 0).then_some(given),
        lasts_steps: lasts,
        ends_after_steps: lasts
            .zip(growth.steps_to_oom)
            .map(|(lasts, left)| lasts.saturating_add(left)),
    }
}
