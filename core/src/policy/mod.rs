//! Decides whether to act on a job whose memory grows, with which remedy, and always says why.
//!
//! Detecting is not acting: without a rule that says so, a dry run shows what would be done. Every
//! decision, also the one to do nothing, is a value with its reason ([`decision`]). What may be
//! done about which job is said by [`rule`]. The remedies are tried in the order of the rule,
//! mildest first. The next one is chosen where the one before does not suit, is not offered,
//! cannot be done at one step in time, was refused twice in a row, or did not help twice.
//! Whether a restart helps is decided by the diagnosis ([`RestartAnswer`]), not here.
//! How many there may be is decided by [`budgets`]. A decision rests on its facts and on the
//! actions so far ([`Action`]); nothing else is remembered, and nothing is carried out here.

use alloc::string::ToString;
use alloc::vec::Vec;

use crate::action::{Action, ActionKind};
use crate::diagnosis::{Class, RestartAnswer};
use crate::identity::owner::Owner;
use crate::limits::TAKE_UP_SECONDS_MAX;
use crate::tape::mailbox::Offers;

pub mod budgets;
mod decision;
pub mod gpu_memory;
pub mod rule;
mod time;

use budgets::{Budgets, Planned, decisions};
pub use decision::{Decision, Grounds, Objection};
pub use rule::Mode;
use rule::Rule;

/// Times in a row that a remedy did not help, after which it is not tried in the same attempt.
const FAILURES_MAX: usize = 2;

/// When to act, on which jobs, and how often: what a policy file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The rules, which [`rule::check`] has checked.
    pub rules: Vec<Rule>,
    /// What holds where no rule decides.
    pub rest: Rule,
    /// How many actions there may be.
    pub budgets: Budgets,
    /// How far it may go with nodes whose GPU memory was not given back.
    pub keep_out: Mode,
}

/// Facts for a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts<'a> {
    /// Name of the job.
    pub job: &'a str,
    /// Owner of the job; none where unknown.
    pub owner: Option<&'a Owner>,
    /// The node of the incident's rank; empty where that is not known.
    pub node: &'a str,
    /// True if the job has proved that the incident's rank is its own.
    pub is_proved: bool,
    /// True if the agents of the living ranks are back since the coordinator was started, or had
    /// the time for it: before that, the state of the job is the previous coordinator's.
    pub is_current: bool,
    /// Number of the attempt at the job.
    pub attempt: u32,
    /// Serial number of the attempt, never used twice.
    pub serial: u32,
    /// Name of the incident.
    pub incident: &'a str,
    /// Class of the incident.
    pub class: Class,
    /// The diagnosis's answer about a restart.
    pub restart: RestartAnswer,
    /// Time until the device is full, in nanoseconds; none when unknown.
    pub oom_in_ns: Option<u64>,
    /// True if the job ends as planned before the device is full.
    pub job_ends_first: bool,
    /// Memory already failed (an OOM, or retries).
    pub urgent: bool,
    /// What speaks against acting because of this incident at all.
    pub objection: Option<Objection>,
    /// True if the attempt is over, so that there is nothing to act on.
    pub ended: bool,
    /// The last action, while it is unknown whether it helped.
    pub observed: Option<ActionKind>,
    /// Which remedies inside the ranks all ranks offer.
    pub offers: Offers,
    /// Whether all ranks can act at one step.
    pub reach: Reach,
    /// True if a person has approved a restart because of this incident.
    pub is_approved: bool,
}

/// Whether all living ranks of a job can act at one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// They can, and it is known after this time, in nanoseconds, whether that helps.
    Known {
        /// The time.
        proof_in_ns: u64,
    },
    /// An agent is not connected, but was a moment ago.
    Away {
        /// Remaining wait for the agent, and time of the proof, in nanoseconds.
        proof_in_ns: u64,
    },
    /// They mark no steps, or it is not known how long one takes; or an agent stays away.
    Unknown,
}

impl Reach {
    /// Whether they can. `proof_in_ns` is the time until a remedy at their next common step is
    /// proven, none where no such step is known; `away_ns` is the longest time for which an agent
    /// has been away, none where all are there. Both are in nanoseconds.
    pub fn new(proof_in_ns: Option<u64>, away_ns: Option<u64>) -> Self {
        let Some(proof_in_ns) = proof_in_ns else { return Self::Unknown };
        let Some(away_ns) = away_ns else { return Self::Known { proof_in_ns } };
        match (TAKE_UP_SECONDS_MAX * 1_000_000_000).saturating_sub(away_ns) {
            0 => Self::Unknown,
            left_ns => Self::Away { proof_in_ns: left_ns.saturating_add(proof_in_ns) },
        }
    }
}

/// The decision that would be made now, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Line of the rule in the policy file; none where no rule has the job and the class.
    pub line: Option<usize>,
    /// How far the policy may go.
    pub mode: Mode,
    /// True if a person has to approve each restart.
    pub needs_approval: bool,
    /// The decision.
    pub decision: Decision,
    /// The remedies in the order in which they are tried, with the objection to each.
    pub remedies: Vec<(ActionKind, Option<Objection>)>,
}

impl Settings {
    /// True when some job may be restarted.
    pub fn restarts(&self) -> bool {
        let mut all = self.rules.iter().chain([&self.rest]);
        all.any(|rule| rule.acts_with(ActionKind::Restart))
    }

    /// The rule that decides for a job and a class.
    pub fn rule(&self, job: &str, class: Class) -> &Rule {
        self.rules.iter().find(|rule| rule.has(job, class)).unwrap_or(&self.rest)
    }

    /// Decides. `past` are all actions so far, oldest first. The caller adds an action that follows
    /// from the decision to `past`, where it counts against the budgets at once.
    pub fn decide(&self, now_ns: u64, facts: &Facts<'_>, past: &[Action]) -> Decision {
        let rule = self.rule(facts.job, facts.class);
        let kind = match self.chosen(now_ns, rule, facts, past) {
            Ok(kind) => kind,
            Err(objection) => return Decision::Nothing(objection),
        };
        let grounds = Grounds {
            class: facts.class,
            incident: facts.incident.to_string(),
            oom_in_ns: facts.oom_in_ns,
            urgent: facts.urgent,
        };
        match rule.mode {
            Mode::Act => Decision::Act(kind, grounds),
            Mode::DryRun | Mode::Off => Decision::WouldAct(kind, grounds),
        }
    }

    /// The decision that would be made now, and the objection to each remedy.
    pub fn explain(&self, now_ns: u64, facts: &Facts<'_>, past: &[Action]) -> Explanation {
        let rule = self.rule(facts.job, facts.class);
        let of = |kind: &ActionKind| (*kind, self.objection(now_ns, rule, facts, *kind, past));
        Explanation {
            line: Some(rule.line).filter(|line| *line > 0),
            mode: rule.mode,
            needs_approval: rule.approval,
            decision: self.decide(now_ns, facts, past),
            remedies: rule.remedies.iter().map(of).collect(),
        }
    }

    /// May a node be kept out now?
    pub fn may_keep_out(&self, now_ns: u64, node: &str, past: &[Action]) -> bool {
        let planned = Planned {
            kind: ActionKind::KeepOut,
            subject: node,
            owner: None,
            node,
            is_dry_run: self.keep_out != Mode::Act,
        };
        self.keep_out != Mode::Off && self.budgets.objection(now_ns, &planned, past).is_none()
    }

    /// The first remedy that nothing speaks against; where something does against all, what does
    /// against the last, or what asks to wait.
    fn chosen(
        &self,
        now_ns: u64,
        rule: &Rule,
        facts: &Facts<'_>,
        past: &[Action],
    ) -> Result<ActionKind, Objection> {
        if let Some(objection) = against_all(rule, facts) {
            return Err(objection);
        }
        let mut last = Objection::Off;
        for kind in &rule.remedies {
            match self.objection(now_ns, rule, facts, *kind, past) {
                None => return Ok(*kind),
                Some(objection) if objection.is_wait() && kind.is_inside() => {
                    return Err(objection);
                }
                Some(objection) => last = objection,
            }
        }
        Err(last)
    }

    /// The first objection to a remedy; none when there is none. That a budget is spent is said
    /// only where nothing else speaks against it.
    fn objection(
        &self,
        now_ns: u64,
        rule: &Rule,
        facts: &Facts<'_>,
        kind: ActionKind,
        past: &[Action],
    ) -> Option<Objection> {
        if let Some(objection) = against_all(rule, facts) {
            return Some(objection);
        }
        let Facts { job, owner, node, .. } = *facts;
        let is_dry_run = rule.mode != Mode::Act;
        let planned = Planned { kind, subject: job, owner, node, is_dry_run };
        let spent = || self.budgets.objection(now_ns, &planned, past);
        let proven = || did_not_help(facts, kind, past);
        if kind.is_inside() {
            return against_inside(facts, kind)
                .or_else(proven)
                .or_else(|| facts.observed.map(|_| Objection::Observed))
                .or_else(spent);
        }
        // What is done inside the ranks is not waited for where memory fails already.
        let observed = facts.observed.filter(|of| !(of.is_inside() && facts.urgent));
        if facts.restart.helps() != Some(true) {
            return Some(Objection::NoHelp { class: facts.class, answer: facts.restart });
        }
        too_early(rule, facts)
            .or_else(proven)
            .or_else(spent)
            .or_else(|| observed.map(|_| Objection::Observed))
            .or_else(|| (rule.approval && !facts.is_approved).then_some(Objection::NotApproved))
    }
}

/// The objection to a remedy in this attempt that it did not help before: two in a row are enough.
/// Attempts are told apart by serial numbers that are never used twice, because some orchestrators
/// give every attempt the same number.
fn did_not_help(facts: &Facts<'_>, kind: ActionKind, past: &[Action]) -> Option<Objection> {
    let is_meant = |action: &Action| action.job == facts.job && action.kind == kind;
    let mut proven = decisions(past)
        .rev()
        .filter(|past| is_meant(past.action))
        .filter_map(|past| past.proof)
        .peekable();
    let observation = proven.peek().and_then(|(last, _)| last.observation.as_ref())?;
    let is_same = [Some(observation.serial), observation.next].contains(&Some(facts.serial));
    let failures = proven.take_while(|(_, has_helped)| !has_helped).count();
    (failures >= FAILURES_MAX && is_same).then_some(Objection::DidNotHelp { kind, failures })
}

/// Objection to every remedy.
fn against_all(rule: &Rule, facts: &Facts<'_>) -> Option<Objection> {
    if rule.mode == Mode::Off || rule.remedies.is_empty() {
        return Some(Objection::Off);
    }
    if facts.ended {
        return Some(Objection::Ended { attempt: facts.attempt });
    }
    let unproved = (!facts.is_proved).then_some(Objection::Unproved);
    unproved.or((!facts.is_current).then_some(Objection::NotBack)).or(facts.objection)
}

/// Objection to a remedy inside the ranks, apart from earlier actions.
fn against_inside(facts: &Facts<'_>, kind: ActionKind) -> Option<Objection> {
    if !kind.suits(facts.class) {
        return Some(Objection::NotSuited { kind, class: facts.class });
    }
    if !kind.asked_of_ranks().is_some_and(|asked| facts.offers.has(asked.offer())) {
        return Some(Objection::NotOffered { kind });
    }
    let needed_ns = match facts.reach {
        Reach::Known { proof_in_ns } | Reach::Away { proof_in_ns } => proof_in_ns,
        Reach::Unknown => return Some(Objection::NoStep { kind }),
    };
    if facts.urgent || facts.oom_in_ns.is_some_and(|oom_in_ns| oom_in_ns <= needed_ns) {
        return Some(Objection::NoTime { kind });
    }
    matches!(facts.reach, Reach::Away { .. }).then_some(Objection::Away { kind })
}

fn too_early(rule: &Rule, facts: &Facts<'_>) -> Option<Objection> {
    if rule.always || facts.urgent {
        return None;
    }
    let horizon_ns = rule.horizon_ns;
    match facts.oom_in_ns {
        _ if facts.job_ends_first => Some(Objection::JobEndsFirst),
        Some(oom_in_ns) if oom_in_ns <= horizon_ns => None,
        Some(oom_in_ns) => Some(Objection::BeyondHorizon { oom_in_ns, horizon_ns }),
        None => Some(Objection::NoForecast),
    }
}

#[cfg(test)]
mod tests;
