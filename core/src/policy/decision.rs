//! Decisions of the policy and their reasons, typed; the sentences are made by [`Display`].

use alloc::string::String;
use core::fmt::{self, Display, Formatter};
use core::mem::discriminant;

use super::budgets::Scope;
use super::remedy::Remedy;
use super::terms::{Level, QuietHours};
use crate::diagnosis::{Class, RestartAnswer};

/// What to do, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Carry out the remedy now.
    Act(Remedy, Grounds),
    /// A dry run: it would be carried out, were the mode `act`.
    WouldAct(Remedy, Grounds),
    /// Do nothing.
    Nothing(Objection),
}

/// Why something is done.
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
    /// A level of the terms that is reached.
    pub level: Option<Level>,
}

/// Why nothing is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objection {
    /// The policy is off.
    Off,
    /// Nothing is done in these hours.
    Quiet {
        /// The hours.
        hours: QuietHours,
    },
    /// The remedy does not help against the class.
    NotSuited {
        /// The remedy.
        remedy: Remedy,
        /// Class of the incident.
        class: Class,
    },
    /// Not all living ranks offer the remedy.
    NotOffered {
        /// The remedy.
        remedy: Remedy,
    },
    /// An agent is not connected, but was a moment ago.
    Away {
        /// The remedy.
        remedy: Remedy,
    },
    /// No step is known at which all ranks can act.
    NoStep {
        /// The remedy.
        remedy: Remedy,
    },
    /// Memory fails already, or before the steps are made that prove the remedy.
    NoTime {
        /// The remedy.
        remedy: Remedy,
    },
    /// The ranks refused the remedy twice in a row, or too often.
    Refused {
        /// The remedy.
        remedy: Remedy,
    },
    /// The remedy was carried out too often lately.
    OftenDone {
        /// The remedy.
        remedy: Remedy,
    },
    /// The remedy was carried out, or tried, a moment ago.
    JustDone {
        /// The remedy.
        remedy: Remedy,
    },
    /// A person must approve the restart.
    NotApproved,
    /// There is nothing to restart.
    Ended {
        /// Number of the attempt.
        attempt: u32,
    },
    /// The agents of its nodes name different Slurm jobs.
    Disputed,
    /// Its agents are not back since the coordinator was started.
    NotBack,
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
    /// Something was done, and whether it helped is not known yet.
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
    /// The remedy did not help the last times.
    DidNotHelp {
        /// The remedy.
        remedy: Remedy,
        /// How many in a row.
        failures: usize,
    },
}

impl Decision {
    /// The name a user meets.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Act(remedy, _) => remedy.verb(),
            Self::WouldAct(Remedy::Gc, _) => "would collect garbage",
            Self::WouldAct(Remedy::EmptyCache, _) => "would empty the cache",
            Self::WouldAct(Remedy::Restart, _) => "would restart",
            Self::Nothing(_) => "nothing",
        }
    }

    /// What is done, or would be.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::Act(remedy, _) | Self::WouldAct(remedy, _) => Some(*remedy),
            Self::Nothing(_) => None,
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

impl Objection {
    /// True when the next remedy is not tried either: this one is at work, or soon can be.
    pub(super) fn is_wait(&self) -> bool {
        matches!(self, Self::Observed | Self::JustDone { .. } | Self::Away { .. })
    }

    /// What is said of a remedy inside the ranks where this speaks against a restart.
    pub(super) fn of_inside(self, remedy: Remedy) -> Self {
        match self {
            // A request that was refused once may have come too late for its step.
            Self::CoolDown { .. } | Self::UnderWay | Self::Retried { tries: 0..=1, .. } => {
                Self::JustDone { remedy }
            }
            Self::Retried { .. } | Self::TriesSpent { scope: Scope::Job, .. } => {
                Self::Refused { remedy }
            }
            _ => Self::OftenDone { remedy },
        }
    }
}

impl Display for Decision {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Act(_, grounds) | Self::WouldAct(_, grounds) => {
                write!(formatter, "{}: {grounds}", self.as_str())
            }
            Self::Nothing(objection) => write!(formatter, "did nothing: {objection}"),
        }
    }
}

impl Display for Grounds {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.class.as_str(), self.incident)?;
        match self.oom_in_ns {
            _ if self.urgent => formatter.write_str(", memory already fails")?,
            Some(oom_in_ns) => write!(formatter, ", out of memory in {}", Duration(oom_in_ns))?,
            None => {}
        }
        self.level.map_or(Ok(()), |level| write!(formatter, ", {level}"))
    }
}

const AWAY: &str = "an agent of the job is not connected: it is too early to";
const NO_STEP: &str = "no step is known at which to";
const NO_TIME: &str = "memory fails already, or before its effect is known: too late to";
const NOT_APPROVED: &str = "a person must approve the restart, by `memtape policy approve`";
const NOT_BACK: &str = "the agents of the job are not back since the coordinator was started";
const DISPUTED: &str = "the agents of the job's nodes name different Slurm jobs: one agent may be \
                        compromised";

impl Display for Objection {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Off => formatter.write_str("the policy is off"),
            Self::Quiet { hours } => write!(formatter, "quiet hours ({hours})"),
            Self::NotSuited { remedy, class } => {
                write!(formatter, "to {} does not help against {}", remedy.verb(), class.as_str())
            }
            Self::NotOffered { remedy } => write!(
                formatter,
                "not all ranks were started with `memtape run --actions {}`",
                remedy.as_str()
            ),
            Self::Away { remedy } => write!(formatter, "{AWAY} {}", remedy.verb()),
            Self::NoStep { remedy } => write!(formatter, "{NO_STEP} {}", remedy.verb()),
            Self::NoTime { remedy } => write!(formatter, "{NO_TIME} {}", remedy.verb()),
            Self::Refused { remedy } => {
                write!(formatter, "the ranks refused to {}", remedy.verb())
            }
            Self::OftenDone { remedy } => {
                write!(formatter, "too many {} lately", remedy.plural())
            }
            Self::JustDone { remedy } => {
                write!(formatter, "it is too early to {} again", remedy.verb())
            }
            Self::NotApproved => formatter.write_str(NOT_APPROVED),
            Self::Ended { attempt } => write!(formatter, "attempt {attempt} is over"),
            Self::NoHelp { class, answer } => write_no_help(formatter, class, answer),
            Self::CoolDown { left_ns, same_attempt, is_dry_run } => {
                write_cool_down(formatter, left_ns, same_attempt, is_dry_run)
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
                formatter.write_str("whether the last action helped is not known yet")
            }
            Self::NotBack => formatter.write_str(NOT_BACK),
            Self::Disputed => formatter.write_str(DISPUTED),
            Self::DidNotHelp { remedy, failures } => write!(
                formatter,
                "the last {failures} {} did not help: a person must look",
                remedy.plural()
            ),
        }
    }
}

fn write_cool_down(
    formatter: &mut Formatter<'_>,
    left_ns: u64,
    same_attempt: Option<u32>,
    is_dry_run: bool,
) -> fmt::Result {
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
