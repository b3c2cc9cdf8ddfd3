//! Observes jobs after they were acted on, and gives each action its verdict.
//!
//! Core defines the verdict ([`memtape_core::action`]); this file supplies the state of jobs and
//! stores observations. Times are of the store's clock, which stands while no coordinator runs.

use std::cell::LazyCell;
use std::collections::BTreeSet;

use memtape_core::action::{self, Action, Ended, LineSeen, Measure, Memory};
use memtape_core::action::{Observation, Seen, Subject};
use memtape_core::incident::Incident;
use memtape_core::snapshot::Frame;

use crate::state::actions::Actions;
use crate::state::counters::Count;
use crate::state::effects::{Context, Effect};
use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::{Attempt, Rank};
use memtape_disk::clock::Now;
use memtape_store::Changes;
use memtape_store::StoreClock;
use memtape_store::records::StepRecord;

const SECOND_NS: u64 = 1_000_000_000;

/// A job, as an observation sees it, and the attempts that are its own.
struct Observed<'a, F> {
    jobs: &'a Jobs,
    job: &'a str,
    own: LazyCell<BTreeSet<u32>, F>,
}

impl Actions {
    /// Looks at the jobs whose actions have no verdict yet.
    pub(crate) fn observe(&mut self, context: &mut Context, jobs: &Jobs) {
        let now_ns = now_ns(self.clock, context.now);
        let mut changes = Changes::default();
        // A restart by several targets has a verdict for each, and saved its training once.
        let saved = |action: &Action| action.gain()?.saved_ns;
        let key = |action: &Action| (action.incident_id.clone(), action.wall_ns);
        let mut counted: BTreeSet<(String, i64)> =
            self.actions.iter().filter(|action| saved(action).is_some()).map(key).collect();
        for action in self.actions.iter_mut().filter(|action| action.is_observed()) {
            let (before, job) = (action.observation.clone(), action.job.clone());
            let own = LazyCell::new(|| jobs.own(&job));
            action.look(now_ns, &Observed { jobs, job: &job, own });
            if let Some(verdict) = &action.verdict {
                action.verdict_wall_ns = Some(context.now.wall_ns);
                let (target, kind) = (action.target, verdict.into());
                context.push(Effect::Prove { target, verdict: kind });
                if let Some(saved_ns) = saved(action)
                    && counted.insert(key(action))
                {
                    context.push(Effect::Count(Count::TrainingSecondsSaved, saved_ns / SECOND_NS));
                }
                let said = action.proof().unwrap_or_default();
                let said = format!("{}: {said}", verdict.as_str());
                tracing::info!(action = %action.id, job = ?action.job, "{said}");
                let subject = format!("{} {}: {said}", action.job, action.id);
                context.audit("verdict", subject, None);
            } else if before == action.observation {
                continue;
            }
            changes.put(&*action);
        }
        context.write(changes);
    }
}

impl<F: FnOnce() -> BTreeSet<u32>> action::Job for Observed<'_, F> {
    fn is_over(&self, serial: u32) -> bool {
        self.jobs.is_over(&self.own, serial)
    }

    fn attempt(&self, serial: u32, of: Subject<'_>) -> Option<Seen> {
        let attempt = self.jobs.get(serial)?;
        let of_rank = attempt.ranks.get(&of.rank);
        Some(Seen {
            serial,
            step: of_rank.map_or(0, |rank| rank.step),
            memory: of_rank.and_then(|rank| memory(rank, of.device)),
            line: of_rank.zip(of.line).and_then(|(rank, line)| held(rank, of.device, line)),
            has_failed_request: attempt.has_failed_request(),
            ended: ended(attempt),
        })
    }

    fn successor(&self, serial: u32, of: Subject<'_>) -> Option<Seen> {
        let serials = self.jobs.serials(self.job);
        // An attempt that was forgotten is older than all that are known.
        let next = serials.iter().position(|known| *known == serial).map_or(0, |at| at + 1);
        let mut later = serials.get(next..)?.iter().copied();
        self.attempt(later.find(|later| self.jobs.is_replaced(&self.own, serial, *later))?, of)
    }
}

/// The observation of an action that an incident asks for.
pub(super) fn begin(incident: &Incident, attempt: Option<&Attempt>) -> Observation {
    let growth = &incident.growth;
    let rank = attempt.and_then(|attempt| attempt.ranks.get(&growth.rank));
    let culprit = incident.diagnosis.as_ref().and_then(|known| known.culprit.clone());
    let line = culprit.map(|frame| LineSeen {
        before_bytes: rank.and_then(|rank| held(rank, growth.device, &frame)).map(|(_, held)| held),
        after_bytes: None,
        frame,
    });
    Observation {
        serial: incident.serial,
        rank: growth.rank,
        device: growth.device,
        measure: Measure::of(growth.layer),
        before: rank.and_then(|rank| memory(rank, growth.device)),
        grown_bytes: growth.bytes().map(|(_, grown)| grown),
        bytes_per_step: growth.bytes().map_or(0, |(rate, _)| rate),
        step_ns: attempt.and_then(|attempt| attempt.detectors.step_time_ns()),
        oom_in_ns: incident.seconds_to_oom.map(|seconds| seconds.saturating_mul(SECOND_NS)),
        line,
        last_step: rank.map_or(0, |rank| rank.step),
        ..Observation::default()
    }
}

/// Time on the clock of observations, in nanoseconds.
pub(super) fn now_ns(clock: StoreClock, now: Now) -> u64 {
    u64::try_from(clock.at(now)).unwrap_or(0)
}

fn memory(rank: &Rank, device: u8) -> Option<Memory> {
    rank.newest.get(&device).map(of_row)
}

/// The memory of a step.
pub(crate) fn of_row(row: &StepRecord) -> Memory {
    Memory {
        step: row.last_step,
        min_bytes: row.floor_allocated,
        peak_bytes: row.peak_allocated,
        reserved_bytes: row.peak_reserved.max(row.end_reserved),
        retries: row.malloc_failures,
    }
}

/// The step of the newest census of a device, and the bytes of a line in it.
fn held(rank: &Rank, device: u8, line: &Frame) -> Option<(u64, u64)> {
    let census = rank.censuses.get(device)?;
    let is_line = |frames: &[Frame]| {
        frames.first().is_some_and(|of| (&of.file, of.line) == (&line.file, line.line))
    };
    let of_line = census.lines.values().filter(|known| is_line(&known.frames));
    Some((census.step, of_line.map(|known| known.held().bytes).sum()))
}

/// End of an attempt; none while it runs.
pub(crate) fn ended(attempt: &Attempt) -> Option<Ended> {
    let has_died = attempt.ranks.values().any(Rank::has_died);
    match (attempt.has_ended(), has_died) {
        (_, true) => Some(Ended::Died),
        (true, false) => Some(Ended::Finished),
        (false, false) => None,
    }
}
