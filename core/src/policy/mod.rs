//! Decides whether to ask the orchestrator for a restart, and always says why.
//!
//! Detecting is not acting: the policy is off by default, and every decision, also the one to do
//! nothing, is a value with its reason. It runs no command and calls no one.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::{String, ToString};

use crate::diagnosis::Class;

/// How far the policy may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
        match self {
            Self::Off => "off",
            Self::DryRun => "dry-run",
            Self::Act => "act",
        }
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
    /// Which attempt at it.
    pub attempt: u32,
    /// Name of the incident.
    pub incident: &'a str,
    /// What kind of trouble it is.
    pub class: Class,
    /// Time until the device is full, in nanoseconds; none when unknown.
    pub oom_in_ns: Option<u64>,
    /// Memory already failed (an OOM, or retries).
    pub urgent: bool,
    /// The attempt is over: there is nothing to restart.
    pub ended: bool,
}

/// What to do, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Run the hook now.
    pub act: bool,
    /// The hook would run, were the mode `act`.
    pub dry_run: bool,
    /// One line on the reason.
    pub why: String,
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
    /// The attempt that was last told to restart.
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

    /// Decides. A decision to act (or to act in a dry run) counts against the budget at once.
    pub fn decide(&mut self, now_ns: u64, facts: &Facts<'_>) -> Decision {
        let why_not = self.objection(now_ns, facts);
        let reason = why_not.clone().unwrap_or_else(|| self.reason(facts));
        if why_not.is_some() || self.settings.mode == Mode::Off {
            return Decision { act: false, dry_run: false, why: format!("did nothing: {reason}") };
        }
        self.remember(now_ns, facts.job, facts.attempt, now_ns);
        match self.settings.mode {
            Mode::Act => Decision { act: true, dry_run: false, why: format!("restart: {reason}") },
            _ => Decision { act: false, dry_run: true, why: format!("would restart: {reason}") },
        }
    }

    /// The first thing that speaks against a restart; none when nothing does.
    fn objection(&self, now_ns: u64, facts: &Facts<'_>) -> Option<String> {
        if self.settings.mode == Mode::Off {
            return Some("the restart policy is off".to_string());
        }
        if facts.ended {
            return Some(format!("attempt {} is over", facts.attempt));
        }
        if !helps(facts.class) {
            return Some(format!("a restart does not help against {}", facts.class.as_str()));
        }
        if let Some(objection) = self.history_objection(now_ns, facts) {
            return Some(objection);
        }
        if self.settings.always || facts.urgent {
            return None;
        }
        let horizon = Duration(self.settings.horizon_ns);
        match facts.oom_in_ns {
            Some(oom_in_ns) if oom_in_ns <= self.settings.horizon_ns => None,
            Some(oom_in_ns) => Some(format!(
                "out of memory only in {}, beyond the horizon of {horizon}",
                Duration(oom_in_ns)
            )),
            None => Some("it is not known when memory runs out".to_string()),
        }
    }

    /// What the job's past has to say against it.
    fn history_objection(&self, now_ns: u64, facts: &Facts<'_>) -> Option<String> {
        let history = self.jobs.get(facts.job)?;
        let since_ns = history.acted_ns.back().map(|&last_ns| now_ns.saturating_sub(last_ns));
        if let Some(since_ns) = since_ns
            && since_ns < self.settings.cooldown_ns
        {
            let left = Duration(self.settings.cooldown_ns - since_ns);
            // Only a better sentence: some orchestrators give every attempt the same number, so
            // the number must not decide.
            return Some(if history.attempt == Some(facts.attempt) {
                let attempt = facts.attempt;
                let was = match self.settings.mode {
                    Mode::Act => "was already told to restart",
                    _ => "would have been told to restart already (dry run)",
                };
                format!("attempt {attempt} {was}: {left} of cool-down left")
            } else {
                format!("the last restart is too recent: {left} of cool-down left")
            });
        }
        let spent = within(&history.acted_ns, now_ns, self.settings.window_ns);
        (spent >= self.settings.budget as usize).then(|| {
            let window = Duration(self.settings.window_ns);
            format!("the budget is spent: {spent} restarts within {window}, a person must look")
        })
    }

    fn reason(&self, facts: &Facts<'_>) -> String {
        let class = facts.class.as_str();
        match facts.oom_in_ns {
            _ if facts.urgent => format!("{class} ({}), memory already fails", facts.incident),
            Some(oom_in_ns) => {
                format!("{class} ({}), out of memory in {}", facts.incident, Duration(oom_in_ns))
            }
            None => format!("{class} ({})", facts.incident),
        }
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

/// Does a restart give the memory back for a while? Not when the job simply needs it, and not
/// when nobody knows what it is.
fn helps(class: Class) -> bool {
    match class {
        Class::Leak
        | Class::ReferenceCycles
        | Class::DeferredFrees
        | Class::Fragmentation
        | Class::CompilePools
        | Class::NonTorch
        | Class::Host => true,
        Class::Pressure
        | Class::Imbalance
        | Class::CacheThrash
        | Class::Desynchronised
        | Class::Telemetry
        | Class::Unknown => false,
    }
}

fn within(times_ns: &VecDeque<u64>, now_ns: u64, window_ns: u64) -> usize {
    times_ns.iter().filter(|&&at_ns| now_ns.saturating_sub(at_ns) < window_ns).count()
}

/// A duration as people say it.
struct Duration(u64);

impl core::fmt::Display for Duration {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let seconds = self.0 / 1_000_000_000;
        match seconds {
            0..=119 => write!(formatter, "{seconds} s"),
            120..=7_199 => write!(formatter, "{} min", seconds / 60),
            _ => write!(formatter, "{} h", seconds / 3_600),
        }
    }
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
            assert_eq!(decision, Decision { act, dry_run, why: why.to_string() });
        };
        let (on, off) = (settings(Mode::Act), settings(Mode::Off));
        let reason = "restart: leak (inc-1), out of memory in 10 min";
        check(off, leak(), false, false, "did nothing: the restart policy is off");
        check(on.clone(), leak(), true, false, reason);
        let would = "would restart: leak (inc-1), out of memory in 10 min";
        check(settings(Mode::DryRun), leak(), false, true, would);
        let pressure = Facts { class: Class::Pressure, ..leak() };
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
    fn a_dry_run_says_of_nobody_that_he_was_told() {
        let mut policy = Policy::new(settings(Mode::DryRun));
        let mut why = || policy.decide(MINUTE, &leak()).why;
        assert_eq!(why(), "would restart: leak (inc-1), out of memory in 10 min");
        let again = "did nothing: attempt 0 would have been told to restart already (dry run): \
                     30 min of cool-down left";
        assert_eq!(why(), again);
    }

    #[test]
    fn a_job_is_not_restarted_over_and_over() {
        let mut policy = Policy::new(settings(Mode::Act));
        let mut check = |minute: u64, attempt: u32, expected: &str| {
            let decision = policy.decide(minute * MINUTE, &Facts { attempt, ..leak() });
            assert_eq!(decision.why, expected, "minute {minute}");
            assert_eq!(decision.act, expected.starts_with("restart"));
        };
        let restart = "restart: leak (inc-1), out of memory in 10 min";
        check(0, 0, restart);
        check(1, 0, "did nothing: attempt 0 was already told to restart: 29 min of cool-down left");
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
        assert_eq!(decision.why, why);
        policy.restore(21 * MINUTE, "second", 0, 21 * MINUTE);
        policy.restore(22 * MINUTE, "third", 0, 22 * MINUTE);
        assert_eq!(policy.jobs.len(), 2);
        assert!(policy.decide(23 * MINUTE, &Facts { attempt: 1, ..leak() }).act);
    }
}
