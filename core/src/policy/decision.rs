//! Decisions of the policy and their reasons, typed; the sentences are made by [`Display`].

use alloc::string::String;
use core::fmt::{self, Display, Formatter};
use core::mem::discriminant;

use super::budgets::Scope;
use crate::diagnosis::{Class, RestartAnswer};

/// What to do, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Run the restart targets now.
    Restart(Grounds),
    /// A dry run: they would run, were the mode `act`.
    WouldRestart(Grounds),
    /// Do nothing.
    Nothing(Objection),
}

/// Why a restart is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grounds {
    /// Class of the incident.
    pub class: Class,
    /// Name of the incident.
    pub incident: String,
    /// Time until the device is full, in nanoseconds.
    pub oom_in_ns: Option<u64>,
    /// Memory already failed.
    pub urgent: bool,
}

/// Why nothing is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objection {
    /// The policy is off.
    Off,
    /// There is nothing to restart.
    Ended {
        /// Number of the attempt.
        attempt: u32,
    },
    /// The agents of its nodes name different Slurm jobs.
    Disputed,
    /// The diagnosis does not say that a restart helps.
    NoHelp {
        /// Class of the incident.
        class: Class,
        /// What it says.
        answer: RestartAnswer,
    },
    /// The job was restarted a short time ago.
    CoolDown {
        /// How long the cool-down lasts, in nanoseconds.
        left_ns: u64,
        /// The number of the attempt, when it is the one that was restarted last.
        same_attempt: Option<u32>,
        /// That restart was a dry run.
        is_dry_run: bool,
    },
    /// A restart of the job is under way.
    UnderWay,
    /// A restart of the job was asked for, and whether it helped is not known yet.
    Observed,
    /// The restart target refused the last restart of the job; it is tried again.
    Retried {
        /// Tries that were refused.
        tries: u32,
        /// Time until the next try, in nanoseconds.
        left_ns: u64,
    },
    /// There were too many restarts.
    BudgetSpent {
        /// Of what.
        scope: Scope,
        /// Restarts within the window.
        restarts: usize,
        /// Length of the window, in nanoseconds.
        window_ns: u64,
    },
    /// The restart target refused too many restarts.
    TriesSpent {
        /// Of what.
        scope: Scope,
        /// Tries within the window that no restart came of.
        tries: usize,
        /// Length of the window, in nanoseconds.
        window_ns: u64,
    },
    /// The device is full too late.
    BeyondHorizon {
        /// Time until the device is full, in nanoseconds.
        oom_in_ns: u64,
        /// The horizon, in nanoseconds.
        horizon_ns: u64,
    },
    /// There is no forecast of when the device is full.
    NoForecast,
    /// The last restarts of the job did not help.
    DidNotHelp {
        /// How many in a row.
        failures: usize,
    },
}

impl Decision {
    /// The name a user meets.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Restart(_) => "restart",
            Self::WouldRestart(_) => "would restart",
            Self::Nothing(_) => "nothing",
        }
    }

    /// True when both do nothing for the same reason, whatever its figures: it is not recorded
    /// again.
    pub fn repeats(&self, earlier: &Self) -> bool {
        let (Self::Nothing(new), Self::Nothing(old)) = (self, earlier) else { return false };
        match (new, old) {
            (Objection::NoHelp { .. }, Objection::NoHelp { .. }) => new == old,
            (
                Objection::BudgetSpent { scope: new, .. },
                Objection::BudgetSpent { scope: old, .. },
            )
            | (
                Objection::TriesSpent { scope: new, .. },
                Objection::TriesSpent { scope: old, .. },
            ) => new == old,
            _ => discriminant(new) == discriminant(old),
        }
    }
}

impl Display for Decision {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restart(grounds) => write!(formatter, "restart: {grounds}"),
            Self::WouldRestart(grounds) => write!(formatter, "would restart: {grounds}"),
            Self::Nothing(objection) => write!(formatter, "did nothing: {objection}"),
        }
    }
}

impl Display for Grounds {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.class.as_str(), self.incident)?;
        match self.oom_in_ns {
            _ if self.urgent => formatter.write_str(", memory already fails"),
            Some(oom_in_ns) => write!(formatter, ", out of memory in {}", Duration(oom_in_ns)),
            None => Ok(()),
        }
    }
}

impl Display for Objection {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Off => formatter.write_str("the restart policy is off"),
            Self::Ended { attempt } => write!(formatter, "attempt {attempt} is over"),
            Self::NoHelp { class, answer } => write_no_help(formatter, class, answer),
            Self::CoolDown { left_ns, same_attempt, is_dry_run } => {
                match (same_attempt, is_dry_run) {
                    (None, _) => formatter.write_str("the last restart is too recent")?,
                    (Some(attempt), false) => {
                        write!(formatter, "attempt {attempt} was already asked to restart")?;
                    }
                    (Some(attempt), true) => write!(
                        formatter,
                        "attempt {attempt} would already have been asked to restart (dry run)"
                    )?,
                }
                write!(formatter, ": {} of cool-down left", Duration(left_ns))
            }
            Self::UnderWay => formatter.write_str("a restart of the job is under way"),
            Self::Retried { tries, left_ns } => write!(
                formatter,
                "the restart target refused ({tries} tries): the next try is in {}",
                Duration(left_ns)
            ),
            Self::BudgetSpent { scope, restarts, window_ns } => write!(
                formatter,
                "the budget of the {} is spent: {restarts} restarts within {}; inspect the jobs \
                 before you raise the budget",
                scope.as_str(),
                Duration(window_ns)
            ),
            Self::TriesSpent { scope, tries, window_ns } => write!(
                formatter,
                "the restart target refuses: {tries} tries of the {} within {}, a person must look",
                scope.as_str(),
                Duration(window_ns)
            ),
            Self::BeyondHorizon { oom_in_ns, horizon_ns } => write!(
                formatter,
                "out of memory only in {}, beyond the horizon of {}",
                Duration(oom_in_ns),
                Duration(horizon_ns)
            ),
            Self::NoForecast => formatter.write_str("it is not known when memory runs out"),
            Self::Observed => {
                formatter.write_str("whether the last restart helped is not known yet")
            }
            Self::Disputed => formatter.write_str(
                "the agents of the job's nodes name different Slurm jobs: one agent may be \
                 compromised",
            ),
            Self::DidNotHelp { failures } => {
                write!(formatter, "the last {failures} restarts did not help: a person must look")
            }
        }
    }
}

fn write_no_help(
    formatter: &mut Formatter<'_>,
    class: Class,
    answer: RestartAnswer,
) -> fmt::Result {
    let class = class.as_str();
    match answer.helps() {
        None => write!(formatter, "it is not known whether a restart helps against {class}"),
        Some(_) => {
            write!(formatter, "a restart does not help against {class}")?;
            match answer {
                RestartAnswer::OtherProcesses => {
                    formatter.write_str(": other processes hold the memory")
                }
                RestartAnswer::GivesBack
                | RestartAnswer::NeededAgain
                | RestartAnswer::MoreWorkAgain
                | RestartAnswer::EmptiedAgain
                | RestartAnswer::EndsWaiting
                | RestartAnswer::Unknown => Ok(()),
            }
        }
    }
}

/// A duration in nanoseconds, as people say it.
pub(crate) struct Duration(pub(crate) u64);

impl Display for Duration {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let seconds = self.0 / 1_000_000_000;
        match seconds {
            0..=119 => write!(formatter, "{seconds} s"),
            120..=7_199 => write!(formatter, "{} min", seconds / 60),
            _ => write!(formatter, "{} h", seconds / 3_600),
        }
    }
}
