//! Decides whether to act on a job whose memory grows, with which remedy, and always says why.
//!
//! Detecting is not acting: the policy is off by default here, and the coordinator starts with a
//! dry run. Every decision, also the one to do nothing, is a value with its reason ([`decision`]).
//! On which terms it acts is said by [`rules`]. The remedies are tried in the order of the terms,
//! mildest first. The next one is chosen where the one before does not suit, is not offered,
//! cannot be done at one step in time, was refused twice in a row, or did not help twice.
//! Whether a restart helps is decided by the diagnosis ([`RestartAnswer`]), not here.
//! How many there may be is decided by [`budgets`]. The policy runs no command and calls no one;
//! what came of a decision is an [`Outcome`].

use alloc::string::ToString;
use alloc::vec::Vec;

use crate::diagnosis::{Class, RestartAnswer};
use crate::identity::owner::Owner;
use crate::limits::TAKE_UP_SECONDS_MAX;
use crate::tape::mailbox::Offers;

pub mod budgets;
mod decision;
pub mod keep_out;
pub mod node_check;
mod outcome;
mod proofs;
pub mod remedy;
pub mod rules;
pub mod terms;

use budgets::{Budget, Budgets, Limits, Progress, Restart};
pub(crate) use decision::Duration;
pub use decision::{Decision, Grounds, Objection};
pub use outcome::Outcome;
pub use proofs::Proof;
use proofs::Proofs;
use remedy::Remedy;
use rules::Rules;
pub use terms::Mode;
use terms::{Level, Levels, Terms};

/// When to act, on which jobs, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The terms of jobs that no rule has.
    pub terms: Terms,
    /// The rules.
    pub rules: Rules,
    /// How many restarts there may be.
    pub budgets: Limits,
    /// How many of each remedy inside the ranks there may be.
    pub inside: Limits,
    /// How far it may go with nodes whose GPU memory was not given back.
    pub keep_out: Mode,
}

const HOUR_NS: u64 = 3_600 * 1_000_000_000;

impl Default for Settings {
    fn default() -> Self {
        let budget = |restarts_max, hours: u64| Budget { restarts_max, window_ns: hours * HOUR_NS };
        Self {
            terms: Terms::default(),
            rules: Rules::default(),
            budgets: Limits {
                job: budget(3, 24),
                owner: budget(5, 1),
                cluster: budget(10, 1),
                cooldown_ns: HOUR_NS / 2,
                retry_ns: HOUR_NS / 12,
            },
            // They cost a pause of the job, not its steps.
            inside: Limits {
                job: budget(24, 24),
                owner: budget(50, 1),
                cluster: budget(100, 1),
                cooldown_ns: HOUR_NS / 60,
                retry_ns: HOUR_NS / 60,
            },
            keep_out: Mode::Off,
        }
    }
}

impl Settings {
    /// True when some job may be restarted.
    pub fn restarts(&self) -> bool {
        let mut all = self.rules.iter().map(|rule| &rule.terms).chain([&self.terms]);
        all.any(|terms| terms.mode == Mode::Act && terms.remedies.contains(&Remedy::Restart))
    }
}

/// What a decision rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts<'a> {
    /// Name of the job.
    pub job: &'a str,
    /// Whose the job is; none where that is not known.
    pub owner: Option<&'a Owner>,
    /// The node of the incident's rank; empty where that is not known.
    pub node: &'a str,
    /// The agents of the job's nodes agree on what the scheduler knows it as.
    pub is_agreed: bool,
    /// The agents of its living ranks are back since the coordinator was started, or had the time
    /// for it: before that, what is known of the job is what another coordinator knew.
    pub is_current: bool,
    /// Number of the attempt at the job.
    pub attempt: u32,
    /// Serial number of the attempt, never used twice.
    pub serial: u32,
    /// Name of the incident.
    pub incident: &'a str,
    /// Class of the incident.
    pub class: Class,
    /// What the diagnosis says of a restart.
    pub restart: RestartAnswer,
    /// Time until the device is full, in nanoseconds; none when unknown.
    pub oom_in_ns: Option<u64>,
    /// Memory already failed (an OOM, or retries).
    pub urgent: bool,
    /// The attempt is over: there is nothing to act on.
    pub ended: bool,
    /// What was done last, where it is not known yet whether it helped.
    pub observed: Option<Remedy>,
    /// Which remedies inside the ranks all ranks offer.
    pub offers: Offers,
    /// Whether all ranks can act at one step.
    pub reach: Reach,
    /// The levels of the incident's device.
    pub levels: Levels,
    /// A person has approved a restart because of this incident.
    pub is_approved: bool,
    /// Unix time, in nanoseconds.
    pub wall_ns: i64,
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
        /// The time for which it is still waited for, and that of the proof, in nanoseconds.
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

/// The policy, and what is spent of its budgets. For dry runs a dry run counts like the real thing,
/// so that a trial shows what the real thing would do.
#[derive(Debug)]
pub struct Policy {
    settings: Settings,
    restarts: Budgets,
    /// Of the remedies inside the ranks.
    inside: [(Remedy, Budgets); 2],
    proofs: Proofs,
}

/// What would be decided now, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Line of the rule in the policy file; none where no rule has the job and the class.
    pub line: Option<usize>,
    /// How far the policy may go.
    pub mode: Mode,
    /// A person has to approve each restart.
    pub needs_approval: bool,
    /// The decision.
    pub decision: Decision,
    /// The remedies in the order in which they are tried, and what speaks against each.
    pub remedies: Vec<(Remedy, Option<Objection>)>,
}

impl Policy {
    /// A policy that remembers nothing.
    pub fn new(settings: Settings) -> Self {
        let restarts = Budgets::new(settings.budgets.clone());
        let inside = [Remedy::Gc, Remedy::EmptyCache]
            .map(|remedy| (remedy, Budgets::new(settings.inside.clone())));
        Self { settings, restarts, inside, proofs: Proofs::default() }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Time for which actions are remembered, in nanoseconds.
    pub fn remembered_ns(&self) -> u64 {
        let inside = self.inside.iter().map(|(_, budgets)| budgets.remembered_ns());
        inside.fold(self.restarts.remembered_ns(), u64::max)
    }

    /// Remembers an action of an earlier process, oldest first. `at_ns` is on the clock of
    /// `now_ns`. One that is under way is settled as any other.
    pub fn restore(
        &mut self,
        (now_ns, at_ns): (u64, u64),
        remedy: Remedy,
        of: &Restart<'_>,
        progress: Progress,
    ) {
        self.budgets_mut(remedy).add(now_ns, at_ns, of, progress);
    }

    /// Says what has become of the action on a job that is under way.
    pub fn settle(&mut self, job: &str, remedy: Remedy, progress: Progress) {
        self.budgets_mut(remedy).settle(job, progress);
    }

    /// Remembers whether an action helped, oldest first.
    pub fn prove(&mut self, proof: &Proof<'_>) {
        self.proofs.add(proof);
    }

    /// Decides. A decision to act, also in a dry run, counts against the budgets at once.
    pub fn decide(&mut self, now_ns: u64, facts: &Facts<'_>) -> Decision {
        let decision = self.decision(now_ns, facts);
        let (remedy, progress) = match &decision {
            Decision::Act(remedy, _) => (*remedy, Progress::UnderWay),
            Decision::WouldAct(remedy, _) => (*remedy, Progress::Made),
            Decision::Nothing(_) => return decision,
        };
        let Facts { job, owner, node, attempt, .. } = *facts;
        let is_dry_run = matches!(decision, Decision::WouldAct(..));
        let of = Restart { job, owner, node, attempt, is_dry_run };
        self.budgets_mut(remedy).add(now_ns, now_ns, &of, progress);
        decision
    }

    /// What would be decided now; nothing is counted.
    pub fn explain(&self, now_ns: u64, facts: &Facts<'_>) -> Explanation {
        let terms = self.terms(facts);
        let of = |remedy: &Remedy| (*remedy, self.objection(now_ns, terms, facts, *remedy));
        Explanation {
            line: self.settings.rules.of(facts.job, facts.class).map(|rule| rule.line),
            mode: terms.mode,
            needs_approval: terms.needs_approval,
            decision: self.decision(now_ns, facts),
            remedies: terms.remedies.iter().map(of).collect(),
        }
    }

    /// The terms that hold for a job and its class.
    fn terms(&self, facts: &Facts<'_>) -> &Terms {
        let rule = self.settings.rules.of(facts.job, facts.class);
        rule.map_or(&self.settings.terms, |rule| &rule.terms)
    }

    /// How far it may go with a job and a class.
    pub fn mode(&self, job: &str, class: Class) -> Mode {
        let rule = self.settings.rules.of(job, class);
        rule.map_or(&self.settings.terms, |rule| &rule.terms).mode
    }

    fn decision(&self, now_ns: u64, facts: &Facts<'_>) -> Decision {
        let terms = self.terms(facts);
        let remedy = match self.chosen(now_ns, terms, facts) {
            Ok(remedy) => remedy,
            Err(objection) => return Decision::Nothing(objection),
        };
        let grounds = Grounds {
            class: facts.class,
            incident: facts.incident.to_string(),
            oom_in_ns: facts.oom_in_ns,
            urgent: facts.urgent,
            level: level(terms, facts),
        };
        match terms.mode {
            Mode::Act => Decision::Act(remedy, grounds),
            Mode::DryRun | Mode::Off => Decision::WouldAct(remedy, grounds),
        }
    }

    /// The first remedy that nothing speaks against; where something does against all, what does
    /// against the last, or what asks to wait.
    fn chosen(&self, now_ns: u64, terms: &Terms, facts: &Facts<'_>) -> Result<Remedy, Objection> {
        if let Some(objection) = against_all(terms, facts) {
            return Err(objection);
        }
        let mut last = Objection::Off;
        for remedy in &terms.remedies {
            match self.objection(now_ns, terms, facts, *remedy) {
                None => return Ok(*remedy),
                Some(objection) if objection.is_wait() && remedy.is_inside() => {
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
        terms: &Terms,
        facts: &Facts<'_>,
        remedy: Remedy,
    ) -> Option<Objection> {
        if let Some(objection) = against_all(terms, facts) {
            return Some(objection);
        }
        let Facts { job, owner, node, attempt, .. } = *facts;
        let is_dry_run = terms.mode != Mode::Act;
        let of = Restart { job, owner, node, attempt, is_dry_run };
        let spent = || self.budgets(remedy).objection(now_ns, &of);
        let proven = || self.proofs.objection(facts.job, facts.serial, remedy);
        if remedy.is_inside() {
            return against_inside(facts, remedy)
                .or_else(proven)
                .or_else(|| facts.observed.map(|_| Objection::Observed))
                .or_else(|| spent().map(|spent| spent.of_inside(remedy)));
        }
        // What is done inside the ranks is not waited for where memory fails already.
        let observed = facts.observed.filter(|of| !(of.is_inside() && facts.urgent));
        if facts.restart.helps() != Some(true) {
            return Some(Objection::NoHelp { class: facts.class, answer: facts.restart });
        }
        too_early(terms, facts)
            .or_else(proven)
            .or_else(spent)
            .or_else(|| observed.map(|_| Objection::Observed))
            .or_else(|| {
                (terms.needs_approval && !facts.is_approved).then_some(Objection::NotApproved)
            })
    }

    fn budgets(&self, remedy: Remedy) -> &Budgets {
        let inside = self.inside.iter().find(|(of, _)| *of == remedy);
        inside.map_or(&self.restarts, |(_, budgets)| budgets)
    }

    fn budgets_mut(&mut self, remedy: Remedy) -> &mut Budgets {
        let Self { restarts, inside, .. } = self;
        let inside = inside.iter_mut().find(|(of, _)| *of == remedy);
        inside.map_or(restarts, |(_, budgets)| budgets)
    }
}

/// What speaks against every remedy.
fn against_all(terms: &Terms, facts: &Facts<'_>) -> Option<Objection> {
    if terms.mode == Mode::Off || terms.remedies.is_empty() {
        return Some(Objection::Off);
    }
    if facts.ended {
        return Some(Objection::Ended { attempt: facts.attempt });
    }
    if !facts.is_agreed {
        return Some(Objection::Disputed);
    }
    if !facts.is_current {
        return Some(Objection::NotBack);
    }
    let quiet = terms.quiet.iter().find(|hours| hours.has(facts.wall_ns));
    quiet.map(|hours| Objection::Quiet { hours: *hours })
}

/// What speaks against a remedy inside the ranks, whatever was done before.
fn against_inside(facts: &Facts<'_>, remedy: Remedy) -> Option<Objection> {
    if !remedy.suits(facts.class) {
        return Some(Objection::NotSuited { remedy, class: facts.class });
    }
    if !facts.offers.has(remedy.asked_of_ranks().offer()) {
        return Some(Objection::NotOffered { remedy });
    }
    let needed_ns = match facts.reach {
        Reach::Known { proof_in_ns } | Reach::Away { proof_in_ns } => proof_in_ns,
        Reach::Unknown => return Some(Objection::NoStep { remedy }),
    };
    if facts.urgent || facts.oom_in_ns.is_some_and(|oom_in_ns| oom_in_ns <= needed_ns) {
        return Some(Objection::NoTime { remedy });
    }
    matches!(facts.reach, Reach::Away { .. }).then_some(Objection::Away { remedy })
}

fn too_early(terms: &Terms, facts: &Facts<'_>) -> Option<Objection> {
    if terms.always || facts.urgent || level(terms, facts).is_some() {
        return None;
    }
    let horizon_ns = terms.horizon_ns;
    match facts.oom_in_ns {
        Some(oom_in_ns) if oom_in_ns <= horizon_ns => None,
        Some(oom_in_ns) => Some(Objection::BeyondHorizon { oom_in_ns, horizon_ns }),
        None => Some(Objection::NoForecast),
    }
}

fn level(terms: &Terms, facts: &Facts<'_>) -> Option<Level> {
    terms.levels.reached(&facts.levels)
}

#[cfg(test)]
mod tests;
