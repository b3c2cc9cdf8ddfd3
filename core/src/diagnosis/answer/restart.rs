//! Whether a restart would help, with how much, and for how long.
//!
//! A restart gives back what the process holds. What grows for a reason in the code grows again at
//! the same rate; what the job needs it needs again at once.
//! [`crate::policy`] reads this and decides whether to restart.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::{self, Display, Formatter};

use crate::detector::{Growth, Layer};
use crate::diagnosis::class::Class;
use crate::diagnosis::evidence::account::unsigned;
use crate::diagnosis::evidence::case::Case;
use crate::diagnosis::judges::facts::RestartAnswer;
use crate::diagnosis::judges::facts::Share;
use crate::diagnosis::words::{about_plural, bytes};

/// What a restart from the last checkpoint would do; [`Display`] puts it into a sentence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
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
        let reason = self.reason("");
        match self.answer {
            RestartAnswer::GivesBack | RestartAnswer::EndsWaiting => {
                write!(formatter, "a restart {reason}")
            }
            RestartAnswer::OtherProcesses
            | RestartAnswer::NeededAgain
            | RestartAnswer::MoreWorkAgain
            | RestartAnswer::EmptiedAgain => {
                write!(formatter, "a restart does not help: {reason}")
            }
            RestartAnswer::Unknown => formatter.write_str("whether a restart helps is not known"),
        }
    }
}

impl Restart {
    /// It gives these bytes back, and they are in use again when the growth has taken them at its
    /// rate. Without bytes or a rate that takes as long as the growth took.
    pub(super) fn gives_back(gives_back_bytes: Option<u64>, growth: &Growth) -> Self {
        let took_steps = growth.last_step.saturating_sub(growth.onset_step);
        let rate = growth.bytes_per_step;
        let lasts_steps = match gives_back_bytes.filter(|_| growth.layer.is_bytes() && rate > 0) {
            Some(given) => Some((given.saturating_add(rate / 2) / rate).max(1)),
            None => (took_steps > 0).then_some(took_steps),
        };
        Self { answer: RestartAnswer::GivesBack, gives_back_bytes, lasts_steps, ..Self::default() }
            .ending(growth.steps_to_oom)
    }

    /// Memory ends in this many steps more than the same memory is in use again.
    pub(super) fn ending(self, steps_to_oom: Option<u64>) -> Self {
        let ends = self.lasts_steps.zip(steps_to_oom);
        let ends_after_steps = ends.map(|(lasts, left)| lasts.saturating_add(left));
        Self { ends_after_steps, ..self }
    }

    /// What it does, or why it does not help; empty where that is not known. `at` follows the bytes
    /// that it gives back.
    pub(crate) fn reason(&self, at: &str) -> String {
        match self.answer {
            RestartAnswer::GivesBack => self.gain(at),
            RestartAnswer::OtherProcesses => "other processes hold the memory".to_string(),
            RestartAnswer::NeededAgain => "the job needs this much again".to_string(),
            RestartAnswer::MoreWorkAgain => "this rank gets more work again".to_string(),
            RestartAnswer::EmptiedAgain => "the loop empties the cache again".to_string(),
            RestartAnswer::EndsWaiting => {
                "ends the waiting; whether the rank falls behind again is not known".to_string()
            }
            RestartAnswer::Unknown => String::new(),
        }
    }

    fn gain(&self, at: &str) -> String {
        let given = match self.gives_back_bytes {
            Some(given) => format!("gives {} back{at}", bytes(given)),
            None => "gives the memory back".to_string(),
        };
        let lasts = self.lasts_steps.map(|lasts| about_plural(lasts, "step"));
        match (lasts, self.ends_after_steps.map(|ends| about_plural(ends, "step"))) {
            (Some(lasts), Some(ends)) => {
                let again = format!("{given}; as much is in use again after about {lasts}");
                format!("{again}, and memory is full after about {ends}")
            }
            (Some(lasts), None) => format!("{given}; as much is in use again after about {lasts}"),
            (None, _) => format!("{given}; for how long is not known"),
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
    Restart::gives_back((given > 0).then_some(given), growth)
}
