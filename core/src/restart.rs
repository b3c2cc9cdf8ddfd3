//! Decides whether to ask the orchestrator for a restart, and always says why.
//!
//! Detecting is not acting: the policy is off by default, and every decision, also the one to do
//! nothing, is a value with its reason. It runs no command and calls no one.

use alloc::string::String;

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
    /// Least time between two restarts of one job, in nanoseconds.
    pub cooldown_ns: u64,
    /// At most this many restarts of one job within [`Self::window_ns`].
    pub budget: u32,
    /// Length of the budget's window, in nanoseconds.
    pub window_ns: u64,
    /// Act only when the device is full within this time, in nanoseconds.
    pub horizon_ns: u64,
    /// Act without regard to the horizon.
    pub always: bool,
    /// Jobs remembered at most; the one that was quiet longest is forgotten first.
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
}

impl Policy {
    /// A policy that remembers nothing.
    pub fn new(settings: Settings) -> Self {
        Self { settings }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Remembers a restart that was made before this process started, from the audit.
    pub fn restore(&mut self, _now_ns: u64, _job: &str, _attempt: u32, _acted_ns: u64) {}

    /// Decides. A decision to act (or to act in a dry run) counts against the budget at once.
    pub fn decide(&mut self, _now_ns: u64, _facts: &Facts<'_>) -> Decision {
        Decision { act: false, dry_run: false, why: "the restart policy is off".into() }
    }
}
