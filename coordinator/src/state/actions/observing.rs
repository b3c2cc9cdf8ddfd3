//! Observes jobs after they were acted on, and gives each action its verdict.
//!
//! What the verdict rests on is core's ([`memtape_core::action`]); this file says what jobs are and
//! stores what was seen. Times are of the store's clock, which stands while no coordinator runs.

use memtape_core::action::{self, Ended, Lifecycle, Measure, Memory, Observation, Seen, Verdict};
use memtape_core::incident::Incident;
use memtape_core::policy::Proof;

use crate::clock::Now;
use crate::records::{ActionRecord, Cause, StepRow};
use crate::state::actions::Actions;
use crate::state::counters::Count;
use crate::state::effects::{Context, Effect};
use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::{Attempt, Rank};
use crate::store::Changes;
use crate::store::clock::StoreClock;

/// A job, as an observation sees it.
struct Observed<'a> {
    jobs: &'a Jobs,
    job: &'a str,
}

impl Actions {
    /// Looks at the jobs whose actions have no verdict yet.
    pub(crate) fn observe(&mut self, context: &mut Context, jobs: &Jobs) {
        let now_ns = now_ns(self.clock, context.now);
        let mut changes = Changes::default();
        for record in self.actions.iter_mut().filter(|record| record.lifecycle.verdict.is_none()) {
            let Some(observation) = &mut record.lifecycle.observation else { continue };
            let before = observation.clone();
            let job = Observed { jobs, job: &record.job };
            record.lifecycle.verdict = observation.look(now_ns, &job);
            if let Some(verdict) = &record.lifecycle.verdict {
                context.count(count(verdict));
                tracing::info!(action = %record.id, job = ?record.job, "{verdict}");
                let subject = format!("{} {}: {verdict}", record.job, record.id);
                context.push(Effect::Audit { action: "verdict", subject, cause: Cause::User });
                if let Some(proof) = record.proof() {
                    self.policy.prove(&proof);
                }
            } else if before == *observation {
                continue;
            }
            changes.put(&*record);
        }
        context.write(changes);
    }
}

impl ActionRecord {
    /// What the policy learns of it.
    pub(super) fn proof(&self) -> Option<Proof<'_>> {
        let Lifecycle { verdict, observation, .. } = &self.lifecycle;
        let (verdict, observation) = (verdict.as_ref()?, observation.as_ref()?);
        let has_helped = match verdict {
            Verdict::Helped(_) => true,
            Verdict::NoEffect(_) | Verdict::Worse(_) => false,
            Verdict::Unknown(_) => return None,
        };
        let Observation { serial, next, .. } = *observation;
        let remedy = self.lifecycle.remedy;
        Some(Proof { job: &self.job, remedy, serial, next, decided_ns: self.wall_ns, has_helped })
    }
}

impl action::Job for Observed<'_> {
    fn is_over(&self, serial: u32) -> bool {
        self.jobs.is_over(serial)
    }

    fn attempt(&self, serial: u32, rank: u32, device: u8) -> Option<Seen> {
        let attempt = self.jobs.get(serial)?;
        let of_rank = attempt.ranks.get(&rank);
        Some(Seen {
            serial,
            step: of_rank.map_or(0, |rank| rank.step),
            memory: of_rank.and_then(|rank| memory(rank, device)),
            has_failed_request: attempt.ranks.values().any(|rank| rank.failed_ns.is_some()),
            ended: ended(attempt),
        })
    }

    fn successor(&self, serial: u32, rank: u32, device: u8) -> Option<Seen> {
        let serials = self.jobs.serials(self.job);
        // An attempt that was forgotten is older than all that are known.
        let next = serials.iter().position(|known| *known == serial).map_or(0, |at| at + 1);
        self.attempt(*serials.get(next)?, rank, device)
    }
}

/// The observation of an action that an incident asks for.
pub(super) fn begin(incident: &Incident, attempt: Option<&Attempt>) -> Observation {
    let growth = &incident.growth;
    let rank = attempt.and_then(|attempt| attempt.ranks.get(&growth.rank));
    Observation {
        serial: incident.serial,
        rank: growth.rank,
        device: growth.device,
        measure: Measure::of(growth.layer),
        before: rank.and_then(|rank| memory(rank, growth.device)),
        grown_bytes: growth.grown_bytes,
        ..Observation::default()
    }
}

/// The time by which observations are measured, in nanoseconds.
pub(super) fn now_ns(clock: StoreClock, now: Now) -> u64 {
    u64::try_from(clock.at(now)).unwrap_or(0)
}

fn memory(rank: &Rank, device: u8) -> Option<Memory> {
    rank.newest.get(&device).map(of_row)
}

/// The memory of a step.
pub(crate) fn of_row(row: &StepRow) -> Memory {
    Memory {
        step: row.last_step,
        min_bytes: row.floor_allocated,
        peak_bytes: row.peak_allocated,
        reserved_bytes: row.peak_reserved.max(row.end_reserved),
    }
}

/// How an attempt has ended; none while it runs.
pub(crate) fn ended(attempt: &Attempt) -> Option<Ended> {
    let has_died = attempt.ranks.values().any(Rank::has_died);
    match (attempt.has_ended(), has_died) {
        (_, true) => Some(Ended::Died),
        (true, false) => Some(Ended::Finished),
        (false, false) => None,
    }
}

fn count(verdict: &Verdict) -> Count {
    match verdict {
        Verdict::Helped(_) => Count::ActionsHelped,
        Verdict::NoEffect(_) => Count::ActionsNoEffect,
        Verdict::Worse(_) => Count::ActionsWorse,
        Verdict::Unknown(_) => Count::ActionsUnknown,
    }
}
