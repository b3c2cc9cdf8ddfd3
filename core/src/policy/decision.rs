//! Decisions of the policy and their reasons, typed; the sentences are made by [`Display`].

use alloc::format;
use alloc::string::String;
use core::fmt::{self, Display, Formatter};
use core::mem::discriminant;

use super::budgets::Scope;
use crate::action::ActionKind;
use crate::diagnosis::{Class, RestartAnswer, duration, plural};

/// The action to take, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Act now.
    Act(ActionKind, Grounds),
    /// A dry run of this action; mode `act` would carry it out.
    WouldAct(ActionKind, Grounds),
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
}

/// Why nothing is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objection {
    /// The policy is off.
    Off,
    /// It is not certain that the growth goes on.
    NotCertain,
    /// A rank has failed, and the job's launcher decides what follows.
    Failed,
    /// The remedy does not help against the class.
    NotSuited {
        /// The remedy.
        kind: ActionKind,
        /// Class of the incident.
        class: Class,
    },
    /// Not all living ranks offer the remedy.
    NotOffered {
        /// The remedy.
        kind: ActionKind,
    },
    /// An agent is not connected, but was connected shortly before.
    Away {
        /// The remedy.
        kind: ActionKind,
    },
    /// No step is known at which all ranks can act.
    NoStep {
        /// The remedy.
        kind: ActionKind,
    },
    /// Memory fails already, or before the steps are made that prove the remedy.
    NoTime {
        /// The remedy.
        kind: ActionKind,
    },
    /// A person must approve the restart.
    NotApproved,
    /// There is nothing to restart.
    Ended {
        /// Number of the attempt.
        attempt: u32,
    },
    /// The job has not proved that the incident's rank is its own.
    Unproved,
    /// The job's agents are not back since the coordinator was started.
    NotBack,
    /// The diagnosis does not claim that a restart helps.
    NoHelp {
        /// Class of the incident.
        class: Class,
        /// The diagnosis's answer.
        answer: RestartAnswer,
    },
    /// The same action was done a short time ago.
    CoolDown {
        /// The action that was done.
        kind: ActionKind,
        /// Remaining cool-down time, in nanoseconds.
        left_ns: u64,
        /// True if the earlier action was a dry run.
        is_dry_run: bool,
    },
    /// The same action is under way.
    UnderWay {
        /// The action under way.
        kind: ActionKind,
    },
    /// An earlier action is observed: it is not known yet whether it helped.
    Observed,
    /// The target, or the ranks, refused the last action; it is tried again.
    Retried {
        /// The action that was refused.
        kind: ActionKind,
        /// Tries that were refused.
        tries: u32,
        /// Time until the next try, in nanoseconds.
        left_ns: u64,
    },
    /// The budget is spent.
    BudgetSpent {
        /// The kind of action with a spent budget.
        kind: ActionKind,
        /// Scope of the budget.
        scope: Scope,
        /// Number of actions within the window.
        count: usize,
        /// Length of the window, in nanoseconds.
        window_ns: u64,
    },
    /// The target, or the ranks, refused too many.
    TriesSpent {
        /// The action that was refused.
        kind: ActionKind,
        /// Scope of the budget.
        scope: Scope,
        /// Tries within the window that nothing came of.
        tries: usize,
        /// Length of the window, in nanoseconds.
        window_ns: u64,
    },
    /// The device is full only after the horizon.
    BeyondHorizon {
        /// Time until the device is full, in nanoseconds.
        oom_in_ns: u64,
        /// The horizon, in nanoseconds.
        horizon_ns: u64,
    },
    /// The job ends as planned before the device is full.
    JobEndsFirst,
    /// There is no forecast of when the device is full.
    NoForecast,
    /// The remedy did not help the last times.
    DidNotHelp {
        /// The remedy.
        kind: ActionKind,
        /// Number of failures in a row.
        failures: usize,
    },
}

impl Decision {
    /// The action that is done, or would be.
    pub fn kind(&self) -> Option<ActionKind> {
        match self {
            Self::Act(kind, _) | Self::WouldAct(kind, _) => Some(*kind),
            Self::Nothing(_) => None,
        }
    }

    /// True when both do nothing for the same reason, with any figures: the newer is not recorded.
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
    /// True when the next remedy has to wait, because this one is under way, or soon can be.
    pub(super) fn is_wait(&self) -> bool {
        match self {
            Self::Observed | Self::CoolDown { .. } | Self::UnderWay { .. } | Self::Away { .. } => {
                true
            }
            // A request that was refused once may have come too late for its step.
            Self::Retried { tries, .. } => *tries <= 1,
            _ => false,
        }
    }
}

impl Display for Decision {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Act(kind, grounds) => write!(formatter, "{}: {grounds}", kind.verb()),
            Self::WouldAct(kind, grounds) => {
                write!(formatter, "would {}: {grounds}", kind.verb())
            }
            Self::Nothing(objection) => write!(formatter, "did nothing: {objection}"),
        }
    }
}

impl Display for Grounds {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.class.as_str(), self.incident)?;
        match self.oom_in_ns {
            _ if self.urgent => formatter.write_str(", memory already fails"),
            Some(oom_in_ns) => write!(formatter, ", out of memory in {}", duration(oom_in_ns)),
            None => Ok(()),
        }
    }
}

/// Without a number: owners do not learn how often the jobs of others were restarted.
const CLUSTER_SPENT: &str = "the budget of the cluster is spent; inspect the jobs before you raise \
                             the budget";
const AWAY: &str = "an agent of the job is not connected: it is too early to";
const NO_STEP: &str = "no step is known at which to";
const NO_TIME: &str = "memory fails already, or before its effect is known: too late to";
const OBSERVED: &str = "whether the last action helped is not known yet";
const JOB_ENDS_FIRST: &str = "the job ends as planned before memory is full";
const NOT_APPROVED: &str = "a person must approve the restart, by `memtape policy approve`";
const NOT_BACK: &str = "the agents of the job are not back since the coordinator was started";
const UNPROVED: &str = "the job has not proved this rank: not all its ranks are known, another \
                        attempt stands for it, or the rank is in another Slurm job";

impl Display for Objection {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Off => formatter.write_str("the policy is off"),
            Self::NotCertain => formatter.write_str("it is not certain that the growth goes on"),
            Self::Failed => formatter.write_str("the launcher decides what follows a failure"),
            Self::NotSuited { kind, class } => {
                write!(formatter, "{} do not help against {}", kind.plural(), class.as_str())
            }
            Self::NotOffered { kind } => write!(
                formatter,
                "not all ranks were started with `memtape run --actions {}`",
                kind.as_str()
            ),
            Self::Away { kind } => write!(formatter, "{AWAY} {}", kind.verb()),
            Self::NoStep { kind } => write!(formatter, "{NO_STEP} {}", kind.verb()),
            Self::NoTime { kind } => write!(formatter, "{NO_TIME} {}", kind.verb()),
            Self::NotApproved => formatter.write_str(NOT_APPROVED),
            Self::Ended { attempt } => write!(formatter, "attempt {attempt} is over"),
            Self::NoHelp { class, answer } => write_no_help(formatter, class, answer),
            Self::CoolDown { kind, left_ns, is_dry_run } => {
                formatter.write_str(&cool_down(kind, duration(left_ns), is_dry_run))
            }
            Self::UnderWay { kind } => {
                write!(formatter, "the last decision to {} is under way", kind.verb())
            }
            Self::Retried { kind, tries, left_ns } => write!(
                formatter,
                "{} refused {}: the next try is in {}",
                refuser(kind),
                plural(tries.into(), "time"),
                duration(left_ns)
            ),
            Self::BudgetSpent { scope: Scope::Cluster, .. } => formatter.write_str(CLUSTER_SPENT),
            Self::TriesSpent { kind, scope: Scope::Cluster, .. } => {
                write!(formatter, "{} refused too often: a person must look", refuser(kind))
            }
            Self::BudgetSpent { kind, scope, count, window_ns } => write!(
                formatter,
                "the budget of the {} is spent: {count} {} within {}; inspect the jobs before you \
                 raise the budget",
                scope.as_str(),
                kind.plural(),
                duration(window_ns)
            ),
            Self::TriesSpent { kind, scope, tries, window_ns } => write!(
                formatter,
                "{} refused {tries} times for the {} within {}: a person must look",
                refuser(kind),
                scope.as_str(),
                duration(window_ns)
            ),
            Self::BeyondHorizon { oom_in_ns, horizon_ns } => write!(
                formatter,
                "out of memory only in {}, beyond the horizon of {}",
                duration(oom_in_ns),
                duration(horizon_ns)
            ),
            Self::JobEndsFirst => formatter.write_str(JOB_ENDS_FIRST),
            Self::NoForecast => formatter.write_str("it is not known when memory runs out"),
            Self::Observed => formatter.write_str(OBSERVED),
            Self::NotBack => formatter.write_str(NOT_BACK),
            Self::Unproved => formatter.write_str(UNPROVED),
            Self::DidNotHelp { kind, failures } => write!(
                formatter,
                "the last {failures} {} did not help: a person must look",
                kind.plural()
            ),
        }
    }
}

/// The party that may refuse an action of this kind.
fn refuser(kind: ActionKind) -> &'static str {
    if kind.is_inside() { "the ranks" } else { "the restart target" }
}

fn cool_down(kind: ActionKind, left: String, is_dry_run: bool) -> String {
    let verb = kind.verb();
    match is_dry_run {
        true => format!("the dry run already decided to {verb}; it decides again in {left}"),
        false => format!("it is too early to {verb} again: {left} of cool-down left"),
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
