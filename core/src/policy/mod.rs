//! Decides whether to ask the orchestrator for a restart, and always says why.
//!
//! Detecting is not acting: the policy is off by default here, and the coordinator starts with a
//! dry run. Every decision, also the one to do nothing, is a value with its reason ([`decision`]).
//! Whether a restart helps is decided by the diagnosis ([`RestartAnswer`]), not here. How many
//! there may be is decided by [`budgets`]. The policy runs no command and calls no one; what came
//! of a decision is an [`Outcome`].

use alloc::string::ToString;

use crate::diagnosis::{Class, RestartAnswer};
use crate::identity::owner::Owner;

pub mod budgets;
mod decision;
mod outcome;
mod proofs;

use budgets::{Budget, Budgets, Limits, Progress, Restart};
pub(crate) use decision::Duration;
pub use decision::{Decision, Grounds, Objection};
pub use outcome::Outcome;
pub use proofs::Proof;
use proofs::Proofs;

/// How far the policy may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Mode {
    /// Never act.
    #[default]
    Off,
    /// Decide and record, but do not act.
    DryRun,
    /// Act.
    Act,
}

impl Mode {
    /// The name a user meets.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// When to ask for a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How far it may go.
    pub mode: Mode,
    /// How many restarts there may be.
    pub budgets: Limits,
    /// Act only when the device is full within this time, in nanoseconds. A restart costs the
    /// steps since the last checkpoint, so it should come late, but before the job dies.
    pub horizon_ns: u64,
    /// Act without regard to the horizon.
    pub always: bool,
}

const HOUR_NS: u64 = 3_600 * 1_000_000_000;

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::Off,
            budgets: Limits {
                job: Budget { restarts_max: 3, window_ns: 24 * HOUR_NS },
                owner: Budget { restarts_max: 5, window_ns: HOUR_NS },
                cluster: Budget { restarts_max: 10, window_ns: HOUR_NS },
                cooldown_ns: HOUR_NS / 2,
                retry_ns: HOUR_NS / 12,
            },
            horizon_ns: HOUR_NS / 2,
            always: false,
        }
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
    /// The attempt is over: there is nothing to restart.
    pub ended: bool,
    /// A restart of the job was asked for, and whether it helped is not known yet.
    pub is_observed: bool,
}

/// The policy, and what is spent of its budgets. A dry run counts like a real restart, so that a
/// trial shows what the real thing would do.
#[derive(Debug)]
pub struct Policy {
    settings: Settings,
    budgets: Budgets,
    proofs: Proofs,
}

impl Policy {
    /// A policy that remembers nothing.
    pub fn new(settings: Settings) -> Self {
        let budgets = Budgets::new(settings.budgets.clone());
        Self { settings, budgets, proofs: Proofs::default() }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Time for which restarts are remembered, in nanoseconds.
    pub fn remembered_ns(&self) -> u64 {
        self.budgets.remembered_ns()
    }

    /// Remembers a restart of an earlier process, oldest first. `at_ns` is on the clock of
    /// `now_ns`. One that is under way is settled as any other.
    pub fn restore(&mut self, now_ns: u64, at_ns: u64, restart: &Restart<'_>, progress: Progress) {
        self.budgets.add(now_ns, at_ns, restart, progress);
    }

    /// Says what has become of the restart of a job that is under way.
    pub fn settle(&mut self, job: &str, progress: Progress) {
        self.budgets.settle(job, progress);
    }

    /// Remembers whether a restart helped, oldest first.
    pub fn prove(&mut self, proof: &Proof<'_>) {
        self.proofs.add(proof);
    }

    /// Decides. A decision to restart, also in a dry run, counts against the budgets at once.
    pub fn decide(&mut self, now_ns: u64, facts: &Facts<'_>) -> Decision {
        if let Some(objection) = self.objection(now_ns, facts) {
            return Decision::Nothing(objection);
        }
        let grounds = Grounds {
            class: facts.class,
            incident: facts.incident.to_string(),
            oom_in_ns: facts.oom_in_ns,
            urgent: facts.urgent,
        };
        let (decision, progress) = match self.settings.mode {
            Mode::Act => (Decision::Restart(grounds), Progress::UnderWay),
            Mode::DryRun | Mode::Off => (Decision::WouldRestart(grounds), Progress::Made),
        };
        self.budgets.add(now_ns, now_ns, &self.restart(facts), progress);
        decision
    }

    /// The first objection to a restart; none when there is none. That a budget is spent is said
    /// only of restarts that nothing else speaks against.
    fn objection(&self, now_ns: u64, facts: &Facts<'_>) -> Option<Objection> {
        if self.settings.mode == Mode::Off {
            return Some(Objection::Off);
        }
        if facts.ended {
            return Some(Objection::Ended { attempt: facts.attempt });
        }
        if !facts.is_agreed {
            return Some(Objection::Disputed);
        }
        if facts.restart.helps() != Some(true) {
            return Some(Objection::NoHelp { class: facts.class, answer: facts.restart });
        }
        self.too_early(facts)
            .or_else(|| self.proofs.objection(facts.job, facts.serial))
            .or_else(|| self.budgets.objection(now_ns, &self.restart(facts)))
            .or_else(|| facts.is_observed.then_some(Objection::Observed))
    }

    fn restart<'a>(&self, facts: &Facts<'a>) -> Restart<'a> {
        let Facts { job, owner, node, attempt, .. } = *facts;
        Restart { job, owner, node, attempt, is_dry_run: self.settings.mode != Mode::Act }
    }

    fn too_early(&self, facts: &Facts<'_>) -> Option<Objection> {
        if self.settings.always || facts.urgent {
            return None;
        }
        let horizon_ns = self.settings.horizon_ns;
        match facts.oom_in_ns {
            Some(oom_in_ns) if oom_in_ns <= horizon_ns => None,
            Some(oom_in_ns) => Some(Objection::BeyondHorizon { oom_in_ns, horizon_ns }),
            None => Some(Objection::NoForecast),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;

    use super::*;

    const MINUTE: u64 = 60 * 1_000_000_000;

    fn leak() -> Facts<'static> {
        Facts {
            job: "job",
            owner: None,
            node: "",
            is_agreed: true,
            attempt: 0,
            serial: 0,
            incident: "inc-1",
            class: Class::Leak,
            restart: RestartAnswer::GivesBack,
            oom_in_ns: Some(10 * MINUTE),
            urgent: false,
            ended: false,
            is_observed: false,
        }
    }

    fn settings(mode: Mode) -> Settings {
        Settings { mode, ..Settings::default() }
    }

    #[test]
    fn one_decision() {
        let check = |settings: Settings, facts: Facts<'_>, act: bool, dry_run: bool, why: &str| {
            let decision = Policy::new(settings).decide(0, &facts);
            assert_eq!(decision.to_string(), why);
            assert_eq!(matches!(decision, Decision::Restart(_)), act);
            assert_eq!(matches!(decision, Decision::WouldRestart(_)), dry_run);
        };
        let (on, off) = (settings(Mode::Act), settings(Mode::Off));
        let reason = "restart: leak (inc-1), out of memory in 10 min";
        check(off, leak(), false, false, "did nothing: the restart policy is off");
        check(on.clone(), leak(), true, false, reason);
        let would = "would restart: leak (inc-1), out of memory in 10 min";
        check(settings(Mode::DryRun), leak(), false, true, would);
        let restart = RestartAnswer::NeededAgain;
        let pressure = Facts { class: Class::Pressure, restart, ..leak() };
        let why = "did nothing: a restart does not help against pressure";
        check(on.clone(), pressure, false, false, why);
        let far = Facts { oom_in_ns: Some(300 * MINUTE), ..leak() };
        let why = "did nothing: out of memory only in 5 h, beyond the horizon of 30 min";
        check(on.clone(), far.clone(), false, false, why);
        let always = Settings { always: true, ..on.clone() };
        check(always, far.clone(), true, false, "restart: leak (inc-1), out of memory in 5 h");
        let urgent = Facts { urgent: true, ..far };
        check(on.clone(), urgent, true, false, "restart: leak (inc-1), memory already fails");
        let blind = Facts { oom_in_ns: None, ..leak() };
        let why = "did nothing: it is not known when memory runs out";
        check(on.clone(), blind, false, false, why);
        let ended = Facts { ended: true, ..leak() };
        check(on.clone(), ended, false, false, "did nothing: attempt 0 is over");
        let observed = Facts { is_observed: true, ..leak() };
        let why = "did nothing: whether the last restart helped is not known yet";
        check(on, observed, false, false, why);
    }

    #[test]
    fn memory_of_other_processes_is_no_reason_for_a_restart() {
        let always = Settings { always: true, ..settings(Mode::Act) };
        let decide = |restart: RestartAnswer| {
            let non_torch = Facts { class: Class::NonTorch, restart, ..leak() };
            Policy::new(always.clone()).decide(0, &non_torch)
        };
        assert!(matches!(decide(RestartAnswer::GivesBack), Decision::Restart(_)));
        let why = "did nothing: a restart does not help against non_torch: other processes hold \
                   the memory";
        assert_eq!(decide(RestartAnswer::OtherProcesses).to_string(), why);
        let why = "did nothing: it is not known whether a restart helps against non_torch";
        assert_eq!(decide(RestartAnswer::Unknown).to_string(), why);
    }

    #[test]
    fn a_dry_run_does_not_claim_that_a_restart_was_made() {
        let mut policy = Policy::new(settings(Mode::DryRun));
        let mut why = || policy.decide(MINUTE, &leak()).to_string();
        assert_eq!(why(), "would restart: leak (inc-1), out of memory in 10 min");
        let again = "did nothing: attempt 0 would already have been asked to restart (dry run): \
                     30 min of cool-down left";
        assert_eq!(why(), again);
    }

    #[test]
    fn a_job_is_not_restarted_over_and_over() {
        let mut policy = Policy::new(settings(Mode::Act));
        let mut check = |minute: u64, attempt: u32, expected: &str| {
            let decision = policy.decide(minute * MINUTE, &Facts { attempt, ..leak() });
            assert_eq!(decision.to_string(), expected, "minute {minute}");
            assert_eq!(matches!(decision, Decision::Restart(_)), expected.starts_with("restart"));
            policy.settle("job", Progress::Made);
        };
        let restart = "restart: leak (inc-1), out of memory in 10 min";
        check(0, 0, restart);
        check(
            1,
            0,
            "did nothing: attempt 0 was already asked to restart: 29 min of cool-down left",
        );
        check(10, 1, "did nothing: the last restart is too recent: 20 min of cool-down left");
        check(31, 1, restart);
        check(90, 2, restart);
        let spent = "did nothing: the budget of the job is spent: 3 restarts within 24 h; inspect \
                     the jobs before you raise the budget";
        check(180, 3, spent);
        // A day after the first one there is room for another.
        check(24 * 60, 3, restart);
        check(24 * 60 + 30, 4, spent);
    }

    #[test]
    fn the_past_is_restored() {
        let mut policy = Policy::new(settings(Mode::Act));
        let past = Restart { job: "job", owner: None, node: "", attempt: 0, is_dry_run: false };
        policy.restore(20 * MINUTE, 5 * MINUTE, &past, Progress::Made);
        let decision = policy.decide(20 * MINUTE, &Facts { attempt: 1, ..leak() });
        let why = "did nothing: the last restart is too recent: 15 min of cool-down left";
        assert_eq!(decision.to_string(), why);
    }

    /// Settles what was decided, and gives the reasons.
    fn decided(policy: &mut Policy, minute: u64, job: &str, owner: u32, came: Progress) -> String {
        let owner = Owner { uid: owner, ..Owner::default() };
        let facts = Facts { job, owner: Some(&owner), ..leak() };
        let decision = policy.decide(minute * MINUTE, &facts);
        policy.settle(job, came);
        decision.to_string()
    }

    #[test]
    fn a_restart_that_was_refused_is_tried_again_and_costs_no_cool_down() {
        let mut policy = Policy::new(settings(Mode::Act));
        let mut check = |minute, came, expected: &str| {
            let why = decided(&mut policy, minute, "job", 0, came);
            assert_eq!(why.strip_prefix("did nothing: ").unwrap_or(&why), expected, "{minute}");
        };
        let restart = "restart: leak (inc-1), out of memory in 10 min";
        let (refused, made) = (Progress::Refused, Progress::Made);
        check(0, refused, restart);
        check(1, refused, "the restart target refused (1 tries): the next try is in 4 min");
        check(5, refused, restart);
        check(9, refused, "the restart target refused (2 tries): the next try is in 6 min");
        // One that may have restarted the job counts as one that has.
        check(15, made, restart);
        check(40, made, "attempt 0 was already asked to restart: 5 min of cool-down left");
        check(46, refused, restart);
        let spent =
            "the restart target refuses: 3 tries of the job within 24 h, a person must look";
        check(24 * 60 - 1, made, spent);
        check(24 * 60, made, restart);
    }

    #[test]
    fn two_restarts_that_did_not_help_are_the_last_of_an_attempt() {
        let settings = Settings { always: true, ..settings(Mode::Act) };
        let mut policy = Policy::new(settings);
        let mut check = |minute: u64, serial: u32, has_helped: bool, expected: &str| {
            let facts = Facts { serial, ..leak() };
            let why = policy.decide(minute * MINUTE, &facts).to_string();
            assert!(why.starts_with(expected), "{minute}: {why}");
            if why.starts_with("restart") {
                policy.settle("job", Progress::Made);
                let (next, decided_ns) = (Some(serial + 5), minute as i64);
                // By two targets.
                for _ in 0..2 {
                    policy.prove(&Proof { job: "job", serial, next, decided_ns, has_helped });
                }
            }
        };
        check(0, 1, false, "restart");
        check(31, 6, true, "restart");
        check(62, 11, false, "restart");
        // A day later, as far as the budgets are concerned.
        check(2_000, 16, false, "restart");
        let why = "did nothing: the last 2 restarts did not help";
        check(2_031, 21, false, why);
        check(4_000, 21, false, why);
        check(4_000, 16, false, why);
        // A person started the job again.
        check(4_001, 40, true, "restart");
        check(4_100, 45, true, "restart");
    }

    #[test]
    fn an_alarm_about_all_jobs_restarts_few_of_them() {
        let mut policy = Policy::new(settings(Mode::Act));
        let mut whys = Vec::new();
        for job in 0..1000_u32 {
            whys.push(decided(&mut policy, 0, &job.to_string(), job % 3, Progress::Made));
        }
        let count = |start: &str| whys.iter().filter(|why| why.starts_with(start)).count();
        // The last two are for owners who had none.
        assert_eq!(count("restart: "), 8);
        for (owner, is_made) in [(0, false), (8, true), (8, false), (9, true), (10, false)] {
            let why =
                decided(&mut policy, 0, &format!("late {owner} {is_made}"), owner, Progress::Made);
            assert_eq!(why.starts_with("restart: "), is_made, "{owner}: {why}");
        }
        let owners = "did nothing: the budget of the owner is spent: 5 restarts within 60 min; \
                      inspect the jobs before you raise the budget";
        let all = "did nothing: the budget of the cluster is spent: 8 restarts within 60 min; \
                   inspect the jobs before you raise the budget";
        assert_eq!(count(owners) + count(all), 992);
        let whys: Vec<String> = (0..7)
            .map(|job| decided(&mut policy, 61, &job.to_string(), 7, Progress::Made))
            .collect();
        assert_eq!(whys[5], owners);
    }

    /// An agent may lie about whose its ranks are, not about its node.
    #[test]
    fn one_node_causes_half_of_all_restarts_at_most() {
        let mut policy = Policy::new(settings(Mode::Act));
        let mut decide = |job: u32, node: &str| {
            let (name, owner) = (job.to_string(), Owner { uid: job, ..Owner::default() });
            let facts = Facts { job: &name, owner: Some(&owner), node, ..leak() };
            let why = policy.decide(0, &facts).to_string();
            policy.settle(&name, Progress::Made);
            why
        };
        let whys: Vec<String> = (0..20).map(|job| decide(job, "thief")).collect();
        assert_eq!(whys.iter().filter(|why| why.starts_with("restart: ")).count(), 5);
        let spent = "did nothing: the budget of the node is spent: 5 restarts within 60 min; \
                     inspect the jobs before you raise the budget";
        assert_eq!(whys[19], spent);
        assert!(decide(20, "honest").starts_with("restart: "));
        // One owner does not use up what a node has for all.
        let mut policy = Policy::new(settings(Mode::Act));
        let mut decide = |job: u32, uid: u32| {
            let (name, owner) = (job.to_string(), Owner { uid, ..Owner::default() });
            let facts = Facts { job: &name, owner: Some(&owner), node: "shared", ..leak() };
            let decision = policy.decide(0, &facts);
            policy.settle(&name, Progress::Made);
            matches!(decision, Decision::Restart(_))
        };
        assert_eq!((0..9).filter(|job| decide(*job, 1)).count(), 4);
        assert!(decide(9, 2) && !decide(10, 3));
    }

    #[test]
    fn what_agents_do_not_agree_on_is_not_restarted() {
        let decision =
            Policy::new(settings(Mode::Act)).decide(0, &Facts { is_agreed: false, ..leak() });
        let why = "did nothing: the agents of the job's nodes name different Slurm jobs: one agent \
                   may be compromised";
        assert_eq!(decision.to_string(), why);
    }

    #[test]
    fn a_target_that_refuses_everything_is_not_asked_for_every_job() {
        let mut policy = Policy::new(settings(Mode::Act));
        let whys: Vec<String> = (0..1000_u32)
            .map(|job| decided(&mut policy, 0, &job.to_string(), job, Progress::Refused))
            .collect();
        assert_eq!(whys.iter().filter(|why| why.starts_with("restart: ")).count(), 10);
        let why = "did nothing: the restart target refuses: 10 tries of the cluster within 60 min, \
                   a person must look";
        assert_eq!(whys[999], why);
    }
}
