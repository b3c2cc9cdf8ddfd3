//! One incident as it is stored and shown.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::{self, Display, Formatter};

use super::failure::{Failure, FailureKind};
use super::thread::Thread;
use crate::capture::Outcome;
use crate::detector::{Forecast, Growth, GrowthKey};
use crate::diagnosis::{Aftermath, Class, Diagnosis, Fate, alike, count, duration, first_sentence};
use crate::identity::cut;
use crate::limits::FAILURE_AGE_SECONDS_MAX;
use crate::paging::{End, Horizons, Urgency};
use crate::policy::Objection;
use crate::snapshot::Frame;
use crate::tape::layout::Clock;

/// Frames of a stack that are kept, the innermost.
const FRAMES_KEPT_MAX: usize = 48;

/// Bytes of a file name or a sentence that are kept.
const TEXT_BYTES_MAX: usize = 1024;

/// An incident: growth or a failed rank, with its diagnosis and its end.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Incident {
    /// Name, in order of age.
    pub id: String,
    /// Attempt it belongs to, as the coordinator counts them.
    pub serial: u32,
    /// Name of the job.
    pub job: String,
    /// Attempt, as the launcher counts them.
    pub attempt: u32,
    /// The growth, with the newest figures; onset and detection are of the first finding.
    pub growth: Growth,
    /// Unit of the rank's step numbers.
    #[serde(default)]
    pub clock: Clock,
    /// Keys of the findings it was about before, and of those that had its cause and are over.
    #[serde(default)]
    pub former: Vec<GrowthKey>,
    /// Other findings with the same cause, as they were last reported: on other devices, ranks, or
    /// accounts of the memory.
    #[serde(default)]
    pub joined: Vec<Growth>,
    /// The incident about the growth or the standstill that ended in this failure, or about the
    /// failure that this growth or standstill ended in.
    #[serde(default)]
    pub related: Option<String>,
    /// What happened to its rank, where it is not about growth; its `growth` names the rank and the
    /// step then.
    #[serde(default)]
    pub failure: Option<Failure>,
    /// Time until memory is full at the last finding, in seconds.
    pub seconds_to_oom: Option<u64>,
    /// Time until the job itself ends at the last finding, in seconds, where it is known.
    #[serde(default)]
    pub seconds_to_job_end: Option<u64>,
    /// Diagnosis from the newest capture that could be compared.
    pub diagnosis: Option<Box<Diagnosis>>,
    /// How urgent the incident is.
    #[serde(default)]
    pub urgency: Urgency,
    /// The open incident that reports the same cause, no less urgent; this one is a notice.
    #[serde(default)]
    pub reported_in: Option<String>,
    /// What people did about it.
    #[serde(default)]
    pub thread: Thread,
    /// The capture of the diagnosis; without one, the newest closed capture for this incident.
    pub capture_id: Option<String>,
    /// Captures that were granted to it since its growth began, returned, or moved to another
    /// layer.
    #[serde(default)]
    pub tries: u32,
    /// Why the newest capture could not be compared.
    pub not_compared: Option<NotCompared>,
    /// Unix time, in nanoseconds.
    pub opened_wall_ns: i64,
    /// Unix time of the last change, in nanoseconds.
    pub updated_wall_ns: i64,
    /// End of the incident; none while it is open.
    pub closed: Option<Closed>,
}

/// Times of a rank and its job, where they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Duration of a step, or a turn, in nanoseconds.
    pub step_ns: Option<u64>,
    /// Time until the job itself ends, in seconds.
    pub seconds_to_job_end: Option<u64>,
}

/// End of an incident.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Closed {
    /// Unix time, in nanoseconds.
    pub wall_ns: i64,
    /// Why.
    pub reason: ClosedReason,
}

/// Why an incident was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClosedReason {
    /// The detector closed its finding.
    GrowthEnded {
        /// Step at which the growth counts as over.
        at_step: u64,
    },
    /// The attempt ended.
    AttemptEnded,
    /// No rank of the attempt was heard any more.
    NotHeard,
    /// The rank's process ended.
    RankEnded,
    /// The rank went on after a request of it had failed.
    WentOn {
        /// Step that it has finished since.
        at_step: u64,
    },
    /// A newer attempt of the job runs.
    NewAttempt,
    /// The failure is long ago.
    NoNews,
    /// The detector did not find the growth again after the coordinator was restarted.
    NotFoundAgain,
}

/// Why a capture could not be compared.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NotCompared {
    /// The rank's part holds no snapshot.
    NotInCapture {
        /// Global rank.
        rank: u32,
        /// Outcome of the rank's part.
        outcome: Outcome,
        /// One line with the cause.
        detail: String,
    },
    /// The rank was not known when the capture was taken.
    UnknownRank {
        /// Global rank.
        rank: u32,
    },
    /// The rank's snapshot is not stored, or cannot be read.
    Unreadable {
        /// Global rank.
        rank: u32,
        /// Why.
        why: String,
    },
    /// The comparison broke off.
    Failed {
        /// Why.
        why: String,
    },
}

impl Incident {
    /// Is the incident open?
    pub fn is_open(&self) -> bool {
        self.closed.is_none()
    }

    /// Is it open, or was it until its rank or its attempt ended, or was not heard any more?
    pub fn lasted(&self) -> bool {
        use ClosedReason::{AttemptEnded, NotHeard, RankEnded};
        let lasts = |closed: Closed| matches!(closed.reason, AttemptEnded | NotHeard | RankEnded);
        self.closed.is_none_or(lasts)
    }

    /// Urgency that the growth can have, before its diagnosis.
    pub(super) fn urgency_of_growth(&self, horizons: Horizons) -> Urgency {
        urgency_of(&self.growth, self.end(), horizons)
    }

    /// Does the job end as planned before memory is full?
    pub fn job_ends_first(&self) -> bool {
        self.end() == End::AfterJob
    }

    /// The end that the growth leads to.
    fn end(&self) -> End {
        end_of(&self.growth, self.seconds_to_oom, self.seconds_to_job_end)
    }

    /// Is the growth, in its newest figures, more urgent than in those of the last report?
    pub(super) fn rises_with(&self, newest: &Growth, times: Times, horizons: Horizons) -> bool {
        let seconds_to_oom = seconds_to_oom(newest, times.step_ns);
        let end = end_of(newest, seconds_to_oom, times.seconds_to_job_end);
        !self.pauses_in(newest)
            && urgency_of(newest, end, horizons) > self.urgency_of_growth(horizons)
    }

    /// Class of the incident; before a diagnosis that of its failure, and [`Class::Unknown`] for
    /// growth.
    pub fn class(&self) -> Class {
        let first = self.failure.map_or(Class::Unknown, |failure| failure.class());
        self.diagnosis.as_ref().map_or(first, |diagnosis| diagnosis.class)
    }

    /// What speaks against acting on the job because of this incident, whatever its class.
    pub fn objection(&self) -> Option<Objection> {
        let is_notice = !self.growth.is_sure;
        self.failure.map(|_| Objection::Failed).or(is_notice.then_some(Objection::NotCertain))
    }

    /// The diagnosis of a closed incident, where the new one has less evidence: the peers may have
    /// ended or gone on since.
    pub(super) fn kept_over(&self, new: &Diagnosis) -> Option<&Diagnosis> {
        let known = self.diagnosis.as_deref().filter(|_| !self.is_open());
        known.filter(|known| new.has_less_evidence_than(known))
    }

    /// Does no diagnosis explain the incident?
    pub(super) fn is_unexplained(&self) -> bool {
        self.diagnosis.as_ref().is_none_or(|diagnosis| diagnosis.class == Class::Unknown)
    }

    /// The step in which the growth began: that of the first block that is kept, where a capture
    /// shows it.
    pub fn onset_step(&self) -> u64 {
        let parts = self.diagnosis.as_ref().and_then(|known| known.parts.as_ref());
        parts.map_or(self.growth.onset_step, |parts| parts.onset_step(&self.growth))
    }

    /// The incident in one sentence.
    pub fn sentence(&self) -> String {
        self.clock.in_words(&match (&self.diagnosis, &self.failure) {
            (Some(diagnosis), Some(failure)) => {
                let again = diagnosis.seen.filter(|seen| {
                    let is_request = failure.kind == FailureKind::OutOfMemory;
                    is_request && seen.rank == failure.rank && seen.last_step < failure.step
                });
                let again = again.map_or(String::new(), |_| {
                    format!("; it failed again after step {}", failure.step)
                });
                format!("{}{again}", diagnosis.sentence)
            }
            (None, Some(failure)) => failure.sentence(),
            (known, None) => {
                let is_open = self.is_open();
                let said = match known {
                    Some(diagnosis) => diagnosis.sentence_now(&self.growth, is_open),
                    None => first_sentence(&self.growth, is_open),
                };
                let alike = alike(&self.growth, &self.joined, &self.former, is_open);
                format!("{said}{alike}{}", self.job_end())
            }
        })
    }

    /// Whether memory or the job ends first, where that decides how urgent the growth is.
    fn job_end(&self) -> String {
        let decides = self.is_open() && self.growth.is_sure;
        let is_ahead = |seconds: &u64| decides && *seconds > 0;
        let Some(seconds) = self.seconds_to_job_end.filter(is_ahead) else {
            return String::new();
        };
        let time = duration(seconds.saturating_mul(1_000_000_000));
        match self.end() {
            End::AfterJob => format!("; the job ends as planned in {time}, before memory is full"),
            End::BeforeJob(_) => {
                format!("; memory is full before the job's planned end, which is in {time}")
            }
            End::Reached | End::InSeconds(_) | End::Unknown => String::new(),
        }
    }

    /// The sentence, with the fates of the other ranks since the rank failed; for growth without
    /// them.
    pub fn sentence_with(&self, fates: &[Fate]) -> String {
        let after = self.failure.map_or(String::new(), |Failure { rank, step, .. }| {
            let after = Aftermath { rank, step, fates }.sentence();
            self.clock.in_words(&after)
        });
        format!("{}{after}", self.sentence())
    }

    /// Why it was closed; empty while it is open.
    pub fn closed_reason(&self) -> String {
        let Some(closed) = self.closed else { return String::new() };
        let related = self.related.as_ref().filter(|_| self.failure.is_none());
        let related = related.map_or(String::new(), |id| format!("; {id} reports how"));
        self.clock.in_words(&format!("{}{related}", closed.reason))
    }

    /// Evidence for the class, a sentence each.
    pub fn evidence(&self) -> Vec<String> {
        let known = self.diagnosis.iter().flat_map(|known| &known.evidence);
        let mut lines: Vec<String> = known.map(|line| self.clock.in_words(line)).collect();
        let others = self.joined.iter().filter(|of| of.layer != self.growth.layer);
        lines.extend(others.map(|of| {
            // This growth is newer than the capture that the other evidence is of.
            let (unit, step) = (self.clock.unit(), count(of.last_step));
            let said = first_sentence(of, self.is_open());
            format!("growth with the same cause (at {unit} {step}): {said}")
        }));
        lines
    }

    /// Evidence against the class, a sentence each.
    pub fn against(&self) -> Vec<String> {
        match (&self.not_compared, &self.capture_id, &self.diagnosis) {
            (.., Some(diagnosis)) => {
                diagnosis.against.iter().map(|line| self.clock.in_words(line)).collect()
            }
            (Some(why), Some(id), None) => {
                vec![format!("capture {id} could not be compared: {why}")]
            }
            _ => Vec::new(),
        }
    }

    /// Is the incident about the finding that this key names?
    pub(super) fn is_about(&self, key: &GrowthKey) -> bool {
        self.growth.key().names(key)
    }

    /// Was the incident about the finding that this key names before?
    pub(super) fn was_about(&self, key: &GrowthKey) -> bool {
        self.former.iter().any(|former| former.names(key))
    }

    /// A copy with the newest figures of its growth.
    pub fn with_newest(&self, growth: &Growth, times: Times) -> Self {
        let mut newest = self.clone();
        newest.measure(growth, times);
        if self.pauses_in(growth) {
            newest.forget_forecast();
            newest.growth.paused_since_step = growth.paused_since_step;
        }
        newest
    }

    /// Does all that the incident is about pause, in these newest figures of its growth?
    pub fn pauses_in(&self, newest: &Growth) -> bool {
        newest.paused_since_step.is_some() && self.joined.is_empty()
    }

    /// Removes the forecast: nothing is heard of its rank.
    pub fn forget_forecast(&mut self) {
        (self.growth.steps_to_oom, self.growth.forecast) = (None, None);
        self.seconds_to_oom = None;
    }

    /// Updates the figures. The facts of the onset stay.
    pub(super) fn measure(&mut self, growth: &Growth, times: Times) {
        let known = self.growth;
        self.growth = Growth {
            rank: known.rank,
            device: known.device,
            layer: known.layer,
            scope: known.scope,
            detected_step: known.detected_step,
            returns: known.returns.max(growth.returns),
            give_backs: known.give_backs.max(growth.give_backs),
            is_sure: known.is_sure || growth.is_sure,
            paused_since_step: None,
            ..growth.continuing(&known)
        };
        self.seconds_to_oom = seconds_to_oom(growth, times.step_ns);
        self.seconds_to_job_end = times.seconds_to_job_end;
    }
}

/// Time until memory is full, in seconds.
fn seconds_to_oom(growth: &Growth, step_ns: Option<u64>) -> Option<u64> {
    let (steps, step_ns) = growth.steps_to_oom.zip(step_ns)?;
    Some(steps.saturating_mul(step_ns) / 1_000_000_000)
}

/// The end that growth leads to when memory is full, and the job ends, in these times.
fn end_of(growth: &Growth, seconds_to_oom: Option<u64>, seconds_to_job_end: Option<u64>) -> End {
    match seconds_to_oom {
        Some(likely) => {
            let early = |of: Forecast| likely.saturating_mul(of.p10) / of.p50.max(1);
            End::of_memory((growth.forecast.map(early), likely), seconds_to_job_end)
        }
        None if growth.bytes_per_step > 0 => End::Unknown,
        None => End::Reached,
    }
}

/// Urgency that growth can have, before its diagnosis, when it leads to this end.
fn urgency_of(growth: &Growth, end: End, horizons: Horizons) -> Urgency {
    // The ranks of a node share its memory.
    let is_own = growth.is_own() && !growth.layer.is_host();
    horizons.urgency((growth.is_sure, is_own), end)
}

impl Display for ClosedReason {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::GrowthEnded { at_step } => {
                write!(formatter, "the growth ended at step {at_step}")
            }
            Self::AttemptEnded => formatter.write_str("the attempt is over"),
            Self::NotHeard => {
                let minutes = FAILURE_AGE_SECONDS_MAX / 60;
                write!(formatter, "no rank of the job has been heard for {minutes} min")
            }
            Self::RankEnded => formatter.write_str("the process of its rank has ended"),
            Self::WentOn { at_step } => {
                write!(formatter, "the rank went on, and has finished step {at_step}")
            }
            Self::NewAttempt => formatter.write_str("a newer attempt of the job runs"),
            Self::NoNews => formatter.write_str("the failure is more than a day old"),
            Self::NotFoundAgain => {
                formatter.write_str("the growth was not found again after a restart")
            }
        }
    }
}

impl Display for NotCompared {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInCapture { rank, outcome, detail } => {
                let outcome = outcome.as_str();
                write!(formatter, "rank {rank} is not in it ({outcome}: {detail})")
            }
            Self::UnknownRank { rank } => {
                write!(formatter, "rank {rank} was not known when it was taken")
            }
            Self::Unreadable { rank, why } => write!(formatter, "rank {rank}: {why}"),
            Self::Failed { why } => formatter.write_str(why),
        }
    }
}

/// Cuts the texts of a diagnosis to a size that can be stored with every change.
pub(super) fn bounded(mut diagnosis: Box<Diagnosis>) -> Box<Diagnosis> {
    let text = |text: &mut String| *text = cut(text, TEXT_BYTES_MAX).to_string();
    let stack = |frames: &mut Vec<Frame>| {
        frames.truncate(FRAMES_KEPT_MAX);
        frames.iter_mut().for_each(|frame| text(&mut frame.file));
    };
    let said = &mut *diagnosis;
    text(&mut said.sentence);
    text(&mut said.advice);
    said.culprit.iter_mut().for_each(|frame| text(&mut frame.file));
    stack(&mut said.stack);
    said.evidence.iter_mut().chain(&mut said.against).for_each(text);
    for suspect in &mut said.suspects {
        text(&mut suspect.frame.file);
        stack(&mut suspect.stack);
    }
    for other in &mut said.alternatives {
        other.evidence.iter_mut().chain(&mut other.against).for_each(text);
    }
    diagnosis
}
