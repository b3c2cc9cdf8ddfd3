//! Decides whether to ask the orchestrator for a restart, and always says why.
//!
//! Detecting is not acting: the policy is off by default here, and the coordinator starts with a
//! dry run. Every decision, also the one to do nothing, is a value with its reason ([`decision`]).
//! Whether a restart helps is decided by the diagnosis ([`RestartAnswer`]), not here. The policy
//! runs no command and calls no one; what came of a decision is an [`Outcome`].

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::{String, ToString};

use crate::diagnosis::{Class, RestartAnswer};

mod decision;
mod outcome;

pub use decision::{Decision, Grounds, Objection};
pub use outcome::Outcome;

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
    /// Least time between two restarts of one job, in nanoseconds. Too short restarts a job that
    /// is still loading its checkpoint.
    pub cooldown_ns: u64,
    /// At most this many restarts of one job within [`Self::window_ns`]: a leak that comes back
    /// needs a person, not another restart.
    pub budget: u32,
    /// Length of the budget's window, in nanoseconds.
    pub window_ns: u64,
    /// Act only when the device is full within this time, in nanoseconds. A restart costs the
    /// steps since the last checkpoint, so it should come late, but before the job dies.
    pub horizon_ns: u64,
    /// Act without regard to the horizon.
    pub always: bool,
    /// Jobs remembered at most. When a job more comes, the one that acted longest ago is
    /// forgotten, and with it its cool-down.
    pub jobs_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::Off,
            cooldown_ns: 30 * 60 * 1_000_000_000,
            budget: 3,
            window_ns: 24 * 3_600 * 1_000_000_000,
            horizon_ns: 30 * 60 * 1_000_000_000,
            always: false,
            jobs_max: 10_000,
        }
    }
}

/// What a decision rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts<'a> {
    /// Name of the job.
    pub job: &'a str,
    /// Number of the attempt at the job.
    pub attempt: u32,
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
}

/// The policy and what it remembers of each job.
#[derive(Debug)]
pub struct Policy {
    settings: Settings,
    jobs: BTreeMap<String, History>,
}

/// The restarts of one job. A dry run is remembered like a real one, so that a trial shows what
/// the real thing would do.
#[derive(Debug, Default)]
struct History {
    /// Times of the restarts within the window, oldest first; at most `budget` of them.
    acted_ns: VecDeque<u64>,
    /// The attempt that was last asked to restart.
    attempt: Option<u32>,
}

impl Policy {
    /// A policy that remembers nothing.
    pub fn new(settings: Settings) -> Self {
        Self { settings, jobs: BTreeMap::new() }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Remembers a restart that was made before this process started, from the audit; oldest
    /// first. `acted_ns` is on the clock of `now_ns`.
    pub fn restore(&mut self, now_ns: u64, job: &str, attempt: u32, acted_ns: u64) {
        self.remember(now_ns, job, attempt, acted_ns.min(now_ns));
    }

    /// Decides. A decision to restart, also in a dry run, counts against the budget at once.
    pub fn decide(&mut self, now_ns: u64, facts: &Facts<'_>) -> Decision {
        if let Some(objection) = self.objection(now_ns, facts) {
            return Decision::Nothing(objection);
        }
        self.remember(now_ns, facts.job, facts.attempt, now_ns);
        let grounds = Grounds {
            class: facts.class,
            incident: facts.incident.to_string(),
            oom_in_ns: facts.oom_in_ns,
            urgent: facts.urgent,
        };
        match self.settings.mode {
            Mode::Act => Decision::Restart(grounds),
            Mode::DryRun | Mode::Off => Decision::WouldRestart(grounds),
        }
    }

    /// The first objection to a restart; none when there is none.
    fn objection(&self, now_ns: u64, facts: &Facts<'_>) -> Option<Objection> {
        if self.settings.mode == Mode::Off {
            return Some(Objection::Off);
        }
        if facts.ended {
            return Some(Objection::Ended { attempt: facts.attempt });
        }
        if facts.restart.helps() != Some(true) {
            return Some(Objection::NoHelp { class: facts.class, answer: facts.restart });
        }
        if let Some(objection) = self.history_objection(now_ns, facts) {
            return Some(objection);
        }
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

    /// The objection that follows from earlier restarts of the job.
    fn history_objection(&self, now_ns: u64, facts: &Facts<'_>) -> Option<Objection> {
        let history = self.jobs.get(facts.job)?;
        let since_ns = history.acted_ns.back().map(|&last_ns| now_ns.saturating_sub(last_ns));
        if let Some(since_ns) = since_ns
            && since_ns < self.settings.cooldown_ns
        {
            let left_ns = self.settings.cooldown_ns - since_ns;
            // Only a better sentence: some orchestrators give every attempt the same number, so
            // the number must not decide.
            let same_attempt = (history.attempt == Some(facts.attempt)).then_some(facts.attempt);
            let is_dry_run = self.settings.mode != Mode::Act;
            return Some(Objection::CoolDown { left_ns, same_attempt, is_dry_run });
        }
        let restarts = within(&history.acted_ns, now_ns, self.settings.window_ns);
        let window_ns = self.settings.window_ns;
        (restarts >= self.settings.budget as usize)
            .then_some(Objection::BudgetSpent { restarts, window_ns })
    }

    fn remember(&mut self, now_ns: u64, job: &str, attempt: u32, acted_ns: u64) {
        if !self.jobs.contains_key(job) && self.jobs.len() >= self.settings.jobs_max {
            let quietest = self.jobs.iter().min_by_key(|(_, history)| history.acted_ns.back());
            if let Some(quietest) = quietest.map(|(job, _)| job.clone()) {
                self.jobs.remove(&quietest);
            }
        }
        let history = self.jobs.entry(job.to_string()).or_default();
        history.attempt = Some(attempt);
        history.acted_ns.push_back(acted_ns);
        let kept = within(&history.acted_ns, now_ns, self.settings.window_ns)
            .min(self.settings.budget as usize)
            .max(1);
        while history.acted_ns.len() > kept {
            history.acted_ns.pop_front();
        }
    }
}

fn within(times_ns: &VecDeque<u64>, now_ns: u64, window_ns: u64) -> usize {
    times_ns.iter().filter(|&&at_ns| now_ns.saturating_sub(at_ns) < window_ns).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60 * 1_000_000_000;

    fn leak() -> Facts<'static> {
        Facts {
            job: "job",
            attempt: 0,
            incident: "inc-1",
            class: Class::Leak,
            restart: RestartAnswer::GivesBack,
            oom_in_ns: Some(10 * MINUTE),
            urgent: false,
            ended: false,
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
        check(on, ended, false, false, "did nothing: attempt 0 is over");
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
        let spent = "did nothing: the budget is spent: 3 restarts within 24 h, a person must look";
        check(180, 3, spent);
        // A day after the first one there is room for another.
        check(24 * 60, 3, restart);
        check(24 * 60 + 30, 4, spent);
    }

    #[test]
    fn the_past_is_restored_and_bounded() {
        let limits = Settings { jobs_max: 2, ..settings(Mode::Act) };
        let mut policy = Policy::new(limits);
        policy.restore(20 * MINUTE, "job", 0, 5 * MINUTE);
        let decision = policy.decide(20 * MINUTE, &Facts { attempt: 1, ..leak() });
        let why = "did nothing: the last restart is too recent: 15 min of cool-down left";
        assert_eq!(decision.to_string(), why);
        policy.restore(21 * MINUTE, "second", 0, 21 * MINUTE);
        policy.restore(22 * MINUTE, "third", 0, 22 * MINUTE);
        assert_eq!(policy.jobs.len(), 2);
        let decision = policy.decide(23 * MINUTE, &Facts { attempt: 1, ..leak() });
        assert!(matches!(decision, Decision::Restart(_)));
    }
}
