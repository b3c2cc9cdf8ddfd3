//! Captures: from a request to a manifest on disk.
//!
//! What is asked of whom, and when it is over, core's machine decides. Here its actions are
//! carried out, and every capture's record and parts are kept, in memory and in the store: a
//! request when the first agent is asked (a person is told when it is written), each part before
//! its body is acknowledged, the whole when it is closed. So a capture that a crash cut short is
//! taken up again with what it had.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use memtape_core::capture::{Action, Answer, CaptureId, Manifest, Outcome, Reason, Refusal};
use tokio::sync::oneshot;

use crate::clock::Now;
use crate::coordinator::Coordinator;
use crate::event::{BodyRefused, Upload};
use crate::ingest::wire;
use crate::records::{CaptureRecord, PartRecord, rank_of};
use crate::state::losses::Loss;
use crate::store::Changes;

/// Captures remembered of one job; the oldest that no open incident needs is forgotten.
const CAPTURES_PER_JOB_MAX: usize = 64;

/// Healthy states kept of one job, of those captures: enough to compare with, and not so many
/// that they push out what was taken for a reason.
const BASELINES_PER_JOB_MAX: usize = 4;

/// Parts remembered, all captures together; the oldest capture is forgotten.
const PARTS_MAX: usize = 1_000_000;

/// Tapes in one request to an agent; a node has fewer ranks than this but for tests.
const TAPES_PER_REQUEST_MAX: usize = 512;

/// A capture and its parts, in order of ranks.
#[derive(Clone, Debug, Default)]
pub(crate) struct CaptureState {
    pub(crate) record: CaptureRecord,
    pub(crate) parts: Vec<PartRecord>,
    /// Where each tape's part is: a job has thousands.
    by_tape: BTreeMap<String, usize>,
    /// What agents have said of their tapes.
    answers: BTreeMap<String, Answer>,
}

impl CaptureState {
    pub(crate) fn new(record: CaptureRecord, mut parts: Vec<PartRecord>) -> Self {
        parts.sort_by_key(|part| part.rank);
        let places = parts.iter().enumerate().map(|(place, part)| (part.tape_id.clone(), place));
        let by_tape = places.collect();
        Self { record, parts, by_tape, answers: BTreeMap::new() }
    }

    /// An agent said what became of a tape.
    pub(crate) fn note(&mut self, tape_id: &str, answer: &Answer) {
        // Bounded by the parts: others have no place here.
        if self.by_tape.contains_key(tape_id) && !self.record.is_closed() {
            self.answers.insert(tape_id.to_string(), answer.clone());
        }
    }

    pub(crate) fn part(&self, rank: u32) -> Option<&PartRecord> {
        self.parts.iter().find(|part| part.rank == rank)
    }

    pub(crate) fn aligned(&self) -> usize {
        self.parts.iter().filter(|part| part.is_aligned()).count()
    }

    fn part_of_tape(&mut self, tape_id: &str) -> Option<&mut PartRecord> {
        self.by_tape.get(tape_id).and_then(|place| self.parts.get_mut(*place))
    }
}

impl Coordinator {
    /// Asks for a capture of an attempt; answers the one that will serve.
    pub(crate) fn request_capture(
        &mut self,
        now: Now,
        serial: u32,
        reason: Reason,
        step: Option<u64>,
    ) -> Result<String, Refusal> {
        let Some(attempt) = self.cluster.attempts.get_mut(&serial) else {
            return Err(Refusal::NoRanks);
        };
        let id = self.ids.next(now.wall_ns, "cap");
        let asked = reason.clone();
        let result = attempt.captures.request(now.mono_ns, CaptureId(id), reason, step);
        self.touched.insert(serial);
        match result {
            Ok(CaptureId(id)) => {
                self.begin_capture(now, serial, &id);
                self.rename_capture(&id, &asked);
                Ok(id)
            }
            Err(refusal) => {
                self.counters.captures_refused.fetch_add(1, Relaxed);
                Err(refusal)
            }
        }
    }

    /// A healthy state that serves another request too is no longer one of those of which only the
    /// newest are kept.
    fn rename_capture(&mut self, id: &str, reason: &Reason) {
        let Some(state) = self.captures.get_mut(id) else { return };
        if is_baseline(state) && *reason != Reason::Baseline {
            state.record.reason = reason.as_str().to_string();
            state.record.reason_rank = rank_of(reason);
            let mut changes = Changes::default();
            changes.put(&state.record);
            self.write(changes);
        }
    }

    fn begin_capture(&mut self, now: Now, serial: u32, id: &str) {
        let attempt = self.cluster.attempts.get(&serial);
        let Some(manifest) = attempt.and_then(|attempt| attempt.captures.in_flight()) else {
            return;
        };
        if self.captures.contains_key(id) || manifest.id.0 != id {
            return;
        }
        let record = CaptureRecord {
            id: id.to_string(),
            serial,
            job: manifest.job.clone(),
            attempt: manifest.attempt,
            reason: manifest.reason.as_str().to_string(),
            reason_rank: rank_of(&manifest.reason),
            step: manifest.step,
            before_step: manifest.before_step,
            requested_wall_ns: now.wall_ns,
            closed_wall_ns: None,
            complete: false,
        };
        let (job, ranks) = (&record.job, manifest.parts.len());
        let (step, reason) = (record.step, &record.reason);
        tracing::info!(capture = %id, job = ?job, step, ranks, reason = %reason, "capture begins");
        let waiting = |part| PartRecord { detail: String::new(), ..PartRecord::new(id, part) };
        let parts: Vec<PartRecord> = manifest.parts.iter().map(waiting).collect();
        let mut changes = Changes::default();
        changes.put(&record);
        for part in &parts {
            changes.put(part);
        }
        self.write(changes);
        self.captures.insert(id.to_string(), CaptureState::new(record, parts));
    }

    /// Carries out what an attempt's machine wants.
    pub(crate) fn settle_captures(&mut self, now: Now, serial: u32) {
        loop {
            let attempt = self.cluster.attempts.get_mut(&serial);
            match attempt.and_then(|attempt| attempt.captures.poll()) {
                Some(Action::Ask { node, capture, tapes, step, before, deadline_ns }) => {
                    let deadline = Duration::from_nanos(deadline_ns);
                    for tapes in tapes.chunks(TAPES_PER_REQUEST_MAX) {
                        let request =
                            wire::capture_request(&capture.0, tapes, step, before, deadline);
                        self.send(now, &node, request);
                    }
                }
                Some(Action::Close(manifest)) => self.close_capture(now, serial, &manifest),
                None => return,
            }
        }
    }

    fn close_capture(&mut self, now: Now, serial: u32, manifest: &Manifest) {
        let id = &manifest.id.0;
        let Some(state) = self.captures.get_mut(id) else { return };
        state.record.closed_wall_ns = Some(now.wall_ns);
        state.record.complete = manifest.complete;
        state.answers.clear();
        let mut changes = Changes::default();
        changes.put(&state.record);
        for part in &manifest.parts {
            let part = PartRecord::new(id, part);
            changes.put(&part);
            match state.part_of_tape(&part.tape_id) {
                Some(known) => *known = part,
                // The parts of a capture are those it began with.
                None => self.counters.lose(Loss::StaleBody),
            }
        }
        let (aligned, ranks) = (manifest.aligned(), manifest.parts.len());
        let counter = if manifest.complete {
            &self.counters.captures_complete
        } else {
            &self.counters.captures_partial
        };
        counter.fetch_add(1, Relaxed);
        tracing::info!(capture = %id, aligned, ranks, step = manifest.step, "capture is closed");
        self.telemetry.capture(&state.record, &state.parts);
        self.write(changes);
        if let Some(attempt) = self.cluster.attempts.get_mut(&serial) {
            attempt.triggers.captured(now.mono_ns);
        }
        self.capture_closed(serial, id);
        self.run_restarts_after(id);
    }

    /// May an agent send this body?
    pub(crate) fn upload_begun(
        &mut self,
        capture: &str,
        tape_id: &str,
        reply: oneshot::Sender<Upload>,
    ) {
        let verdict = self.upload_verdict(capture, tape_id);
        let part = self.captures.get_mut(capture).and_then(|state| state.part_of_tape(tape_id));
        match (verdict, part) {
            (Upload::Stored { .. }, Some(part)) => {
                // Sent again because its sender had no receipt: perhaps the store failed then.
                let mut changes = Changes::default();
                changes.put(part);
                let answer = move |result: Result<(), String>| {
                    let _ = reply.send(if result.is_ok() { verdict } else { Upload::Later });
                };
                self.store.try_write(changes, Box::new(answer));
            }
            _ => {
                // Nobody waits any more if the connection broke meanwhile.
                let _ = reply.send(verdict);
            }
        }
    }

    fn upload_verdict(&mut self, capture: &str, tape_id: &str) -> Upload {
        if let Some(verdict) = self.solo_verdict(capture, tape_id) {
            return verdict;
        }
        if let Some(state) = self.captures.get_mut(capture) {
            let promised = state.answers.get(tape_id);
            let promised = promised.map(|answer| (answer.body_bytes, answer.body_hash));
            let attempt = self.cluster.attempts.get(&state.record.serial);
            let id = CaptureId(capture.to_string());
            if attempt.is_some_and(|attempt| attempt.captures.accepts_body(&id, tape_id)) {
                return Upload::Wanted { promised };
            }
            if let Some(hash) = state.part_of_tape(tape_id).and_then(|part| part.hash()) {
                return Upload::Stored { hash };
            }
        }
        self.counters.lose(Loss::StaleBody);
        Upload::Refused
    }

    /// A body is on disk: the manifest learns of it, durably, and only then its sender.
    pub(crate) fn body_stored(
        &mut self,
        now: Now,
        capture: &str,
        tape_id: &str,
        (bytes, hash): (u64, blake3::Hash),
        reply: oneshot::Sender<Result<(), BodyRefused>>,
    ) {
        match self.take_body(now, capture, tape_id, bytes, hash) {
            Ok(part) => {
                let mut changes = Changes::default();
                changes.put(&part);
                let answer = move |result: Result<(), String>| {
                    let _ = reply.send(result.map_err(BodyRefused::Store));
                };
                self.store.try_write(changes, Box::new(answer));
            }
            Err((loss, why)) => {
                self.counters.lose(loss);
                self.store.blobs().release(hash);
                let _ = reply.send(Err(BodyRefused::Stale(why)));
            }
        }
    }

    /// A body came and could not be kept: the manifest will say so.
    pub(crate) fn body_failed(&mut self, capture: &str, tape_id: &str, why: &str) {
        let Some(state) = self.captures.get(capture) else { return };
        let attempt = self.cluster.attempts.get_mut(&state.record.serial);
        if let Some(attempt) = attempt {
            attempt.captures.body_failed(&CaptureId(capture.to_string()), tape_id, why);
        }
    }

    fn take_body(
        &mut self,
        now: Now,
        capture: &str,
        tape_id: &str,
        bytes: u64,
        hash: blake3::Hash,
    ) -> Result<PartRecord, (Loss, &'static str)> {
        if let Some(taken) = self.take_solo_body(capture, tape_id, bytes, hash) {
            return taken;
        }
        let stale = (Loss::StaleBody, "the capture is closed, or has this body already");
        let id = CaptureId(capture.to_string());
        let state = self.captures.get_mut(capture).ok_or(stale)?;
        let serial = state.record.serial;
        let answer = state.answers.get(tape_id).cloned();
        let attempt = self.cluster.attempts.get_mut(&serial).ok_or(stale)?;
        // Its deadline may have come since the last tick: nobody gets a receipt for a body that
        // the manifest does not have.
        attempt.captures.handle_timeout(now.mono_ns);
        self.touched.insert(serial);
        if !attempt.captures.accepts_body(&id, tape_id) {
            return Err(stale);
        }
        let part = state.part_of_tape(tape_id).ok_or(stale)?;
        let promised = answer.as_ref().and_then(|answer| answer.body_hash);
        if promised.is_some_and(|promised| promised != *hash.as_bytes()) {
            return Err((Loss::BadBody, "the body is not the one that was announced"));
        }
        // A part whose body came before a restart, and its answer did not, is sent again.
        if let Some(before) = part.hash() {
            self.store.blobs().release(before);
        }
        part.bytes = bytes;
        part.hash = Some(hash.to_hex().to_string());
        if let Some(answer) = answer {
            part.answered(&answer);
        }
        let part = part.clone();
        self.counters.bodies.fetch_add(1, Relaxed);
        self.counters.body_bytes.fetch_add(bytes, Relaxed);
        attempt.captures.body_stored(now.mono_ns, &id, tape_id, bytes, *hash.as_bytes());
        self.touched.insert(serial);
        Ok(part)
    }

    /// Asks for the captures whose moment has come.
    pub(crate) fn pull_triggers(&mut self, now: Now) {
        let attempts = self.cluster.attempts.iter_mut();
        let due: Vec<(u32, Reason)> = attempts
            .filter_map(|(serial, attempt)| Some((*serial, attempt.triggers.poll(now.mono_ns)?)))
            .collect();
        for (serial, reason) in due {
            let asked = self.request_capture(now, serial, reason.clone(), None);
            let Some(attempt) = self.cluster.attempts.get_mut(&serial) else { continue };
            match asked {
                Ok(_) => attempt.triggers.taken(now.mono_ns, &reason),
                Err(Refusal::TooSoon { wait_ns } | Refusal::OverBudget { wait_ns, .. }) => {
                    attempt.triggers.put_off(now.mono_ns, reason, wait_ns);
                }
                Err(refusal) => tracing::warn!("no capture could be taken: {refusal}"),
            }
        }
    }

    /// Keeps captures within their bounds.
    pub(crate) fn make_room_for_captures(&mut self, now: Now) {
        let (mut per_job, mut baselines) = (BTreeMap::new(), BTreeMap::new());
        for state in self.captures.values() {
            *per_job.entry(state.record.job.as_str()).or_default() += 1_usize;
            if is_baseline(state) {
                *baselines.entry(state.record.job.as_str()).or_default() += 1_usize;
            }
        }
        let all = || self.captures.values().flat_map(|state| &state.parts);
        let parts = all().count();
        // Of what is remembered, not of what is on disk: what was forgotten goes from there later.
        let stored = all().filter(|part| part.hash.is_some());
        let bytes = stored.fold(0_u64, |sum, part| sum.saturating_add(part.bytes));
        let is_too_large = bytes > self.config.bodies_bytes_max;
        let age_ns = i64::try_from(self.config.captures_age_max.as_nanos()).unwrap_or(i64::MAX);
        let before_wall_ns = now.wall_ns.saturating_sub(age_ns);
        let is_old = |state: &CaptureState| {
            state
                .record
                .closed_wall_ns
                .is_some_and(|closed_wall_ns| closed_wall_ns < before_wall_ns)
        };
        let needed: Vec<&String> = self
            .incidents
            .values()
            .filter(|incident| incident.record.is_open())
            .flat_map(|incident| incident.record.capture_id.iter().chain(&incident.waits_for))
            .collect();
        let count = |of: &BTreeMap<&str, usize>, state: &CaptureState| {
            of.get(state.record.job.as_str()).copied().unwrap_or(0)
        };
        // Names are in order of age.
        let victim = self.captures.iter().find(|(id, state)| {
            let is_crowded = count(&per_job, state) > CAPTURES_PER_JOB_MAX
                || is_baseline(state) && count(&baselines, state) > BASELINES_PER_JOB_MAX;
            let is_too_much = parts > PARTS_MAX || is_too_large || is_crowded;
            let is_free = state.record.is_closed() && !needed.contains(id);
            (is_too_much || is_old(state)) && is_free
        });
        if let Some((id, state)) = victim {
            let counters = &self.counters;
            let count = match (is_old(state), is_too_large) {
                (true, _) => &counters.captures_by_age,
                (_, true) => &counters.captures_by_bytes,
                _ => &counters.captures_by_count,
            };
            count.fetch_add(1, Relaxed);
            let id = id.clone();
            tracing::info!(capture = %id, "an old capture is forgotten");
            self.forget_capture(&id);
        }
    }

    /// Forgets a capture: first the references, durably, then the bodies.
    pub(crate) fn forget_capture(&mut self, id: &str) {
        let Some(state) = self.captures.remove(id) else { return };
        self.run_restarts_after(id);
        let mut changes = Changes::default();
        changes.delete(&state.record);
        for part in &state.parts {
            changes.delete(part);
        }
        let hashes: Vec<blake3::Hash> = state.parts.iter().filter_map(PartRecord::hash).collect();
        let blobs = self.store.blobs().clone();
        let release = move |result: Result<(), String>| {
            if result.is_ok() {
                hashes.into_iter().for_each(|hash| blobs.release(hash));
            }
        };
        self.store.write(changes, Box::new(release));
    }
}

/// A body without its answer may show any step.
fn shows_its_step(part: &PartRecord) -> bool {
    let blind = [Outcome::NoTape, Outcome::Unreachable];
    !blind.iter().any(|outcome| part.outcome == outcome.as_str())
}

fn is_baseline(state: &CaptureState) -> bool {
    state.record.reason == Reason::Baseline.as_str()
}

/// The parts whose bodies a diagnosis can use: the suspect's, and those of peers at the same
/// step, spread evenly over the ranks.
pub(crate) fn chosen_parts(
    state: &CaptureState,
    suspect: u32,
    peers_max: usize,
) -> Option<(&PartRecord, Vec<&PartRecord>)> {
    let suspect = state.part(suspect).filter(|part| part.hash.is_some() && shows_its_step(part))?;
    let peers: Vec<&PartRecord> = state
        .parts
        .iter()
        .filter(|part| part.rank != suspect.rank && part.hash.is_some())
        .filter(|part| part.step == suspect.step && shows_its_step(part))
        .collect();
    let count = peers.len().min(peers_max);
    let chosen = (0..count).map(|index| peers[index * peers.len() / count.max(1)]).collect();
    Some((suspect, chosen))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_spread_and_at_the_same_step() {
        let part = |rank: u32, step: u64, has_body: bool| PartRecord {
            rank,
            step,
            hash: has_body.then(|| "00".repeat(32)),
            ..PartRecord::default()
        };
        let check = |parts: Vec<PartRecord>, expected: Option<&[u32]>| {
            let state = CaptureState::new(CaptureRecord::default(), parts);
            let chosen = chosen_parts(&state, 2, 3)
                .map(|(_, peers)| peers.into_iter().map(|part| part.rank).collect::<Vec<_>>());
            assert_eq!(chosen.as_deref(), expected);
        };
        check((0..4).map(|rank| part(rank, 9, true)).collect(), Some(&[0, 1, 3]));
        check((0..13).map(|rank| part(rank, 9, true)).collect(), Some(&[0, 5, 9]));
        check(vec![part(0, 9, true), part(2, 9, false)], None);
        check(vec![part(0, 8, true), part(1, 9, false), part(2, 9, true)], Some(&[]));
        check(vec![part(0, 9, true)], None);
    }
}
