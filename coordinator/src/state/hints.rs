//! What is known of a job that hints rest on: its fullest device, its newest capture, and the
//! attempts that were started with hints. Hints become settings of the next start: what is not
//! proved to be the job's own is no part of it.
//!
//! This file gathers; what is suggested is core's ([`memtape_core::hints`]). Steps and snapshots
//! lie in the store, and are read by the handler that answers (`http/hint_routes.rs`).

use std::cmp::Reverse;

use memtape_core::action::PROOF_STEPS;
use memtape_core::hints::proof::Outcome;
use memtape_core::hints::{Config, Facts, NO_PROOF, Setting};
use memtape_core::limits::HINT_TRIALS_MAX;
use memtape_core::tape::layout::Clock;
use memtape_proto::api::Hints;

use crate::state::actions::{ended, of_row};
use crate::state::jobs::attempt::{Attempt, Rank};
use crate::state::visible::Visible;
use memtape_store::records::{SeriesKey, Totals, snapshot_of};

/// What is known of a job without its steps and snapshots.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) facts: Facts,
    /// The answer, as far as it is known.
    pub(crate) answer: Hints,
    /// The steps of the fullest device; none where no rank has reported any memory.
    pub(crate) series: Option<SeriesKey>,
    /// Its steps are training steps.
    pub(crate) has_steps: bool,
    /// The newest capture that has its rank.
    pub(crate) snapshot: Option<(String, blake3::Hash)>,
    /// The attempts that were started with hints, newest first.
    pub(crate) trials: Vec<Trial>,
    /// Settings that hints set on any rank of the attempt that shows the job.
    pub(crate) applied: Vec<Setting>,
}

/// An attempt that was started with hints.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    /// Its number, and its ordinal.
    pub(crate) attempt: (u32, u32),
    /// Settings that hints set on any of its ranks.
    pub(crate) settings: Vec<Setting>,
    /// How it has gone, without its steps.
    pub(crate) outcome: Outcome,
    /// The earlier attempts that it can be compared with, newest first.
    pub(crate) against: Vec<Against>,
}

/// An earlier attempt without some of the settings.
#[derive(Clone, Debug)]
pub(crate) struct Against {
    /// Its number, and its ordinal.
    pub(crate) attempt: (u32, u32),
    /// The device in the earlier attempt, and in the one with the settings.
    pub(crate) before: SeriesKey,
    pub(crate) after: SeriesKey,
    /// Settings that hints set on the compared rank.
    pub(crate) settings: Vec<Setting>,
    /// Those of them that the earlier attempt did not have.
    pub(crate) judged: Vec<Setting>,
    /// How the earlier attempt has gone, without its steps.
    pub(crate) outcome: Outcome,
}

/// What is known of the attempts at a job that are its own; none where there is no attempt.
pub(crate) fn gather(view: &Visible<'_>, job: &str) -> Option<Gathered> {
    let current = view.attempt(job, None)?;
    let attempts = view.own(job);
    let has_evidence =
        |of: &&&Attempt| of.proved().any(|rank| rank.step > 0 || rank.failures().0 > 0);
    let attempt = *attempts.iter().rev().find(has_evidence).unwrap_or(&current);
    let mut gathered = match attempts.as_slice() {
        [] => Gathered::default(),
        _ => of_fullest(attempt),
    };
    gathered.answer.job = job.to_string();
    (gathered.answer.attempt, gathered.answer.attempt_ordinal) = number(attempt);
    if attempts.is_empty() {
        gathered.answer.missing.push(NO_PROOF.to_string());
        return Some(gathered);
    }
    gathered.applied = applied(attempt);
    if let Some(SeriesKey { rank, .. }) = gathered.series {
        let serial = attempt.record.serial;
        let of_attempt = view.captures(|of| of.serial == serial && of.is_closed());
        let mut with_rank = of_attempt
            .into_iter()
            .filter_map(|known| Some((known.record.id.clone(), snapshot_of(known.part(rank)?)?)));
        gathered.snapshot = with_rank.next();
    }
    gathered.trials = trials(&attempts);
    Some(gathered)
}

/// The device of an attempt whose allocator holds most.
fn of_fullest(attempt: &Attempt) -> Gathered {
    let Some((rank, totals)) = fullest(attempt) else { return Gathered::default() };
    let known = |bytes: u64| Some(bytes).filter(|bytes| *bytes > 0);
    let newest = rank.newest.get(&totals.device);
    let has_steps = rank.clock() == Clock::Steps;
    let facts = Facts {
        step: newest.filter(|_| has_steps).map(of_row),
        peak_bytes: totals.peak_allocated,
        reserved_bytes: reserved(rank, totals),
        retries: totals.malloc_failures,
        ooms: totals.ooms,
        device_bytes: known(totals.device_bytes),
        beside_bytes: totals.process_bytes.map(|bytes| bytes.saturating_sub(totals.reserved)),
        config: rank.record.allocator.as_deref().map(Config::parse),
        ..Facts::default()
    };
    let answer = Hints {
        rank: Some(rank.record.rank),
        device: Some(totals.device),
        peak_bytes: facts.peak_bytes,
        device_bytes: facts.device_bytes,
        allocator_settings: rank.record.allocator.clone(),
        ..Hints::default()
    };
    let series = Some(key(attempt, rank, totals.device));
    Gathered { facts, answer, series, has_steps, ..Gathered::default() }
}

fn fullest(attempt: &Attempt) -> Option<(&Rank, &Totals)> {
    let devices =
        attempt.proved().flat_map(|rank| rank.totals.iter().map(move |totals| (rank, totals)));
    devices.max_by_key(|(rank, totals)| {
        (reserved(rank, totals), Reverse((rank.record.rank, totals.device)))
    })
}

/// Most bytes that the allocator is known to have held.
fn reserved(rank: &Rank, totals: &Totals) -> u64 {
    let newest = rank.newest.get(&totals.device).map_or(0, |row| row.peak_reserved);
    newest.max(totals.reserved)
}

fn number(attempt: &Attempt) -> (u32, u32) {
    (attempt.record.attempt, attempt.record.ordinal)
}

fn key(attempt: &Attempt, rank: &Rank, device: u8) -> SeriesKey {
    SeriesKey { serial: attempt.record.serial, rank: rank.record.rank, device }
}

/// The settings that hints set at the start of an attempt, on any of its ranks.
fn applied(attempt: &Attempt) -> Vec<Setting> {
    let mut settings: Vec<Setting> = attempt.proved().flat_map(applied_on).collect();
    settings.sort_unstable();
    settings.dedup();
    settings
}

/// The settings that hints set at the start of a rank.
fn applied_on(rank: &Rank) -> Vec<Setting> {
    Setting::listed(&rank.record.hints)
}

/// The newest attempts that were started with hints, each with earlier ones to compare with.
fn trials(attempts: &[&Attempt]) -> Vec<Trial> {
    let of = |(place, attempt): (usize, &&Attempt)| {
        let settings = applied(attempt);
        if settings.is_empty() {
            return None;
        }
        let earlier = attempts.get(..place).unwrap_or_default().iter().rev();
        let against = earlier.filter_map(|before| against(before, attempt)).collect();
        Some(Trial { attempt: number(attempt), settings, outcome: outcome(attempt), against })
    };
    attempts.iter().enumerate().rev().filter_map(of).take(HINT_TRIALS_MAX).collect()
}

/// An earlier attempt, by its fullest device; none where the same rank of the later attempt has no
/// settings of hints that are new to it.
fn against(before: &Attempt, after: &Attempt) -> Option<Against> {
    let (rank, totals) = fullest(before)?;
    let config = Config::parse(rank.record.allocator.as_deref()?);
    let next = after.proved().find(|of| of.record.rank == rank.record.rank)?;
    let settings = applied_on(next);
    let is_new = |of: &Setting| config.get(of.key()) != Some(of.value().as_str());
    let judged: Vec<Setting> = settings.iter().copied().filter(is_new).collect();
    // Fewer steps than the number of the last one is possible, more is not.
    if rank.step < PROOF_STEPS || judged.is_empty() {
        return None;
    }
    Some(Against {
        attempt: number(before),
        before: key(before, rank, totals.device),
        after: key(after, next, totals.device),
        settings,
        judged,
        outcome: outcome(before),
    })
}

/// How an attempt has gone; its steps are in the store.
fn outcome(attempt: &Attempt) -> Outcome {
    let has_failed_request = attempt.proved().any(|rank| rank.failures().0 > 0);
    Outcome { steps: 0, has_failed_request, ended: ended(attempt) }
}
