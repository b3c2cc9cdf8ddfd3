//! Captures: from a request to a manifest on disk.
//!
//! Core's machine decides which agents are asked, and when a capture ends. Here its actions are
//! carried out, and every capture's record and parts are kept, in memory and in the store: a
//! request when the first agent is asked (a user gets the answer when it is written), each part
//! before its snapshot is acknowledged, the whole when it is closed. So a capture that a crash cut
//! short is taken up again with its stored parts.

use std::collections::BTreeMap;

use memtape_core::capture::{Action, CaptureId, Manifest, Outcome, Part, Reason, Refusal};
use memtape_core::identity::ids::Kind;
use memtape_core::identity::ids::{Ids, is_agent_capture};
use memtape_core::incident::NotCompared;
use memtape_core::limits::{PEERS_COMPARED_MAX, TAPES_PER_REQUEST_MAX};
use tokio::sync::oneshot;

use crate::state::captures::agent_initiated::Initiated;
use crate::state::captures::retention::Retention;
use crate::state::captures::uploads::{StoredSnapshot, Upload, UploadRefused};
use crate::state::comparison::{ComparedSnapshots, SnapshotRef};
use crate::state::counters::{Count, Loss};
use crate::state::effects::{After, Context, Effect, SnapshotRequest};
use crate::state::jobs::Jobs;
use memtape_disk::clock::Now;
use memtape_store::StoreClock;
use memtape_store::records::{CaptureRecord, snapshot_of};
use memtape_store::{Changes, Store};

pub(crate) mod agent_initiated;
pub(crate) mod retention;
pub(crate) mod uploads;

/// All captures, by name; names are in order of age.
#[derive(Debug)]
pub(crate) struct Captures {
    retention: Retention,
    /// Measures their ages.
    clock: StoreClock,
    ids: Ids,
    captures: BTreeMap<String, CaptureState>,
    /// Captures that agents initiated.
    initiated: Initiated,
}

/// A capture and its parts, in order of ranks. Only [`Captures`] changes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct CaptureState {
    pub(crate) record: CaptureRecord,
    pub(crate) parts: Vec<Part>,
    /// Index of each tape's part: a job has thousands.
    by_tape: BTreeMap<String, usize>,
    /// Answers of agents, by tape.
    answers: BTreeMap<String, Part>,
}

impl CaptureState {
    pub(super) fn new(record: CaptureRecord, mut parts: Vec<Part>) -> Self {
        parts.sort_by_key(|part| part.rank);
        let places = parts.iter().enumerate().map(|(place, part)| (part.tape_id.clone(), place));
        let by_tape = places.collect();
        Self { record, parts, by_tape, answers: BTreeMap::new() }
    }

    /// Notes an agent's answer about a tape.
    fn note(&mut self, answer: Part) {
        // Bounded by the parts: others have no place here.
        if self.by_tape.contains_key(&answer.tape_id) && !self.record.is_closed() {
            self.answers.insert(answer.tape_id.clone(), answer);
        }
    }

    pub(crate) fn part(&self, rank: u32) -> Option<&Part> {
        self.parts.iter().find(|part| part.rank == rank)
    }

    pub(crate) fn aligned(&self) -> usize {
        self.parts.iter().filter(|part| part.is_aligned()).count()
    }

    pub(super) fn part_of_tape(&mut self, tape_id: &str) -> Option<&mut Part> {
        self.by_tape.get(tape_id).and_then(|place| self.parts.get_mut(*place))
    }

    pub(super) fn part_of(&self, tape_id: &str) -> Option<&Part> {
        self.by_tape.get(tape_id).and_then(|place| self.parts.get(*place))
    }

    fn is_baseline(&self) -> bool {
        self.record.reason == Reason::Baseline
    }

    /// The snapshots to compare for a suspect: its own, and snapshots of peers at the same step,
    /// spread evenly over the ranks.
    ///
    /// # Errors
    /// The suspect has no snapshot.
    pub(crate) fn snapshots_to_compare(&self, rank: u32) -> Result<ComparedSnapshots, NotCompared> {
        let snapshot = |part: &Part| SnapshotRef { rank: part.rank, hash: snapshot_of(part) };
        match chosen_parts(self, rank, PEERS_COMPARED_MAX) {
            Some((suspect, peers)) => Ok(ComparedSnapshots {
                suspect: snapshot(suspect),
                peers: peers.into_iter().map(snapshot).collect(),
            }),
            None => Err(self.part(rank).map_or(NotCompared::UnknownRank { rank }, |part| {
                let (outcome, detail) = (part.outcome, part.detail.clone());
                NotCompared::NotInCapture { rank, outcome, detail }
            })),
        }
    }
}

impl Captures {
    /// Takes up the captures that an earlier process left. Interrupted captures go on when their
    /// agents are back.
    pub(crate) fn restore(
        now: Now,
        retention: Retention,
        (records, parts, mut ids): (Vec<CaptureRecord>, Vec<Part>, Ids),
        jobs: &mut Jobs,
        store: &Store,
    ) -> Self {
        let mut by_capture: BTreeMap<String, Vec<Part>> = BTreeMap::new();
        for part in parts {
            by_capture.entry(part.capture.clone()).or_default().push(part);
        }
        let mut captures = BTreeMap::new();
        let clock = store.clock();
        for mut record in records {
            let mut parts = by_capture.remove(&record.id).unwrap_or_default();
            for part in &parts {
                if let Some(hash) = snapshot_of(part) {
                    store.blobs().retain(hash, part.bytes);
                }
            }
            let manifest = record.manifest(&parts, now.mono_ns);
            let machine = jobs.machine(record.serial);
            let is_resumed = !record.is_closed()
                && machine.is_some_and(|machine| machine.resume(now.mono_ns, &manifest));
            if !record.is_closed() && !is_resumed {
                // Its attempt is gone, or has another one in flight: it ends with what it has.
                record.closed_wall_ns = Some(now.wall_ns);
            }
            if record.is_closed() {
                let awaited = parts.iter_mut().filter(|part| part.outcome == Outcome::Awaited);
                awaited.for_each(|part| part.outcome = Outcome::Unreachable);
            }
            if record.is_closed() && record.closed_store_ns.is_none() {
                record.closed_store_ns = Some(clock.at(now));
                store.write(Changes::of(&record), Box::new(|_| {}));
            }
            // An agent begins its own captures, beside the limits of the machine.
            let was_asked_for = record.is_closed() && !is_agent_capture(&record.id);
            if let Some(machine) = jobs.machine(record.serial).filter(|_| was_asked_for) {
                machine.closed_before(&manifest);
            }
            ids.seen(&record.id);
            captures.insert(record.id.clone(), CaptureState::new(record, parts));
        }
        let mut initiated = Initiated::default();
        captures.values().for_each(|state: &CaptureState| initiated.add(&state.record));
        Self { retention, clock, ids, captures, initiated }
    }

    pub(crate) fn get(&self, id: &str) -> Option<&CaptureState> {
        self.captures.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut CaptureState> {
        self.captures.get_mut(id)
    }

    /// All captures, in order of age.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &CaptureState> {
        self.captures.values()
    }

    pub(crate) fn count(&self) -> usize {
        self.captures.len()
    }

    /// Asks for a capture of an attempt; returns the id of the capture that will serve.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn request(
        &mut self,
        context: &mut Context,
        serial: u32,
        reason: Reason,
        step: Option<u64>,
        jobs: &mut Jobs,
    ) -> Result<String, Refusal> {
        let attempt = jobs.get(serial).ok_or(Refusal::NoRanks)?;
        let unproved = reason.claimed_by().filter(|rank| !attempt.has_proved(*rank));
        let machine = jobs.machine(serial).ok_or(Refusal::NoRanks)?;
        let id = CaptureId(self.ids.next(context.now.wall_ns, Kind::Capture));
        let (asked, now_ns) = (reason.clone(), context.now.mono_ns);
        let result = match unproved {
            None => machine.request(now_ns, id, reason, step),
            Some(rank) => machine.request_alone(now_ns, id, reason, rank),
        };
        let manifest = machine.in_flight();
        let CaptureId(id) = result.inspect_err(|_| context.count(Count::CapturesRefused))?;
        if let Some(manifest) = manifest.filter(|manifest| manifest.id.0 == id) {
            self.begin(context, serial, &manifest);
        }
        self.rename(context, &id, &asked);
        Ok(id)
    }

    /// Renames a baseline that serves another request, too: it is kept like that request's capture.
    fn rename(&mut self, context: &mut Context, id: &str, reason: &Reason) {
        let Some(state) = self.captures.get_mut(id) else { return };
        if state.is_baseline() && *reason != Reason::Baseline {
            state.record.reason = reason.clone();
            context.put(&state.record);
        }
    }

    fn begin(&mut self, context: &mut Context, serial: u32, manifest: &Manifest) {
        let id = &manifest.id.0;
        if self.captures.contains_key(id) {
            return;
        }
        let record = CaptureRecord {
            id: id.clone(),
            serial,
            job: manifest.job.clone(),
            attempt: manifest.attempt,
            reason: manifest.reason.clone(),
            step: manifest.step,
            before_step: manifest.before_step,
            requested_wall_ns: context.now.wall_ns,
            is_alone: manifest.is_alone,
            ..CaptureRecord::default()
        };
        let (job, ranks) = (&record.job, manifest.parts.len());
        let (step, reason) = (record.step, record.reason.as_str());
        tracing::info!(capture = %id, job = ?job, step, ranks, reason, "capture begins");
        self.insert(context, CaptureState::new(record, manifest.parts.clone()));
    }

    /// Keeps a new capture, in memory and in the store.
    pub(super) fn insert(&mut self, context: &mut Context, state: CaptureState) {
        let mut changes = Changes::of(&state.record);
        for part in &state.parts {
            changes.put(part);
        }
        context.write(changes);
        self.initiated.add(&state.record);
        self.captures.insert(state.record.id.clone(), state);
    }

    /// Carries out the actions of an attempt's capture machine.
    pub(crate) fn settle(&mut self, context: &mut Context, serial: u32, jobs: &mut Jobs) {
        while let Some(action) = jobs.poll_capture(serial) {
            match action {
                Action::Ask { node, capture, tapes, step, before, deadline_ns, sample_workers } => {
                    for tapes in tapes.chunks(TAPES_PER_REQUEST_MAX) {
                        let request = SnapshotRequest {
                            capture: capture.0.clone(),
                            tape_ids: tapes.to_vec(),
                            step,
                            before_step: before,
                            deadline_ns,
                            sample_workers: sample_workers.clone().filter(|it| tapes.contains(it)),
                        };
                        context.push(Effect::AskAgent { node: node.clone(), request });
                    }
                }
                Action::Close(manifest) => self.close(context, serial, &manifest),
            }
        }
    }

    fn close(&mut self, context: &mut Context, serial: u32, manifest: &Manifest) {
        let id = &manifest.id.0;
        let Some(state) = self.captures.get_mut(id) else { return };
        state.record.closed_wall_ns = Some(context.now.wall_ns);
        state.record.closed_store_ns = Some(self.clock.at(context.now));
        state.record.complete = manifest.complete;
        state.answers.clear();
        let mut changes = Changes::of(&state.record);
        for part in &manifest.parts {
            changes.put(part);
            match state.part_of_tape(&part.tape_id) {
                Some(known) => known.clone_from(part),
                // The parts of a capture are those it began with.
                None => context.lose(Loss::StaleSnapshot),
            }
        }
        let (aligned, ranks) = (manifest.aligned(), manifest.parts.len());
        let is_complete = manifest.complete;
        context.count(if is_complete { Count::CapturesComplete } else { Count::CapturesPartial });
        tracing::info!(capture = %id, aligned, ranks, step = manifest.step, "capture is closed");
        context.write(changes);
        context.push(Effect::CaptureClosed { serial, capture: id.clone() });
    }

    /// Notes an agent's answer about a tape of a capture.
    pub(crate) fn note_answer(&mut self, answer: Part) {
        if let Some(state) = self.captures.get_mut(&answer.capture) {
            state.note(answer);
        }
    }

    /// Tells an agent whether it may send a snapshot.
    pub(crate) fn upload_begun(
        &mut self,
        context: &mut Context,
        (capture, tape_id): (&str, &str),
        nodes: &[String],
        jobs: &Jobs,
        reply: oneshot::Sender<Upload>,
    ) {
        let part = self.captures.get(capture).and_then(|state| state.part_of(tape_id));
        // A node speaks of its own ranks alone.
        let verdict = match part.is_some_and(|part| nodes.contains(&part.node)) {
            true => self.upload_verdict(capture, tape_id, jobs),
            false => Upload::Refused,
        };
        if verdict == Upload::Refused {
            context.lose(Loss::StaleSnapshot);
        }
        match (verdict, part) {
            (Upload::Stored { .. }, Some(part)) => {
                // Sent again because its sender had no receipt: perhaps the store failed then.
                let changes = Changes::of(part);
                let answer = Box::new(move |result: memtape_store::Result<()>| {
                    let _ = reply.send(if result.is_ok() { verdict } else { Upload::Later });
                });
                context.push(Effect::TryWrite(changes, answer));
            }
            _ => {
                // The receiver is gone if the connection broke meanwhile.
                let _ = reply.send(verdict);
            }
        }
    }

    fn upload_verdict(&self, capture: &str, tape_id: &str, jobs: &Jobs) -> Upload {
        let Some(state) = self.captures.get(capture) else { return Upload::Refused };
        let part = state.part_of(tape_id);
        if let Some(part) = part.filter(|_| is_agent_capture(capture)) {
            return agent_initiated::upload_verdict(part);
        }
        let attempt = jobs.get(state.record.serial);
        let id = CaptureId(capture.to_string());
        if attempt.is_some_and(|attempt| attempt.captures.accepts_snapshot(&id, tape_id)) {
            let promised = state.answers.get(tape_id);
            let promised = promised.map(|answer| (answer.bytes, answer.hash));
            return Upload::Wanted { promised };
        }
        match part.and_then(snapshot_of) {
            Some(hash) => Upload::Stored { hash },
            None => Upload::Refused,
        }
    }

    /// Handles a snapshot on disk: notes it in the manifest, durably, then answers its sender.
    pub(crate) fn snapshot_stored(
        &mut self,
        context: &mut Context,
        snapshot: &StoredSnapshot,
        jobs: &mut Jobs,
        reply: oneshot::Sender<Result<(), UploadRefused>>,
    ) {
        match self.take_snapshot(context, snapshot, jobs) {
            Ok(part) => {
                context.count(Count::Snapshots);
                context.push(Effect::Count(Count::SnapshotBytes, snapshot.bytes));
                let changes = Changes::of(&part);
                let answer = Box::new(move |result: memtape_store::Result<()>| {
                    let _ = reply.send(result.map_err(|why| UploadRefused::Store(why.to_string())));
                });
                context.push(Effect::TryWrite(changes, answer));
            }
            Err((loss, why)) => {
                context.lose(loss);
                context.push(Effect::ReleaseSnapshot(snapshot.hash));
                let _ = reply.send(Err(UploadRefused::Stale(why)));
            }
        }
    }

    /// Notes in the manifest that a snapshot came and could not be kept.
    pub(crate) fn snapshot_failed(&self, capture: &str, tape_id: &str, why: &str, jobs: &mut Jobs) {
        let Some(state) = self.captures.get(capture) else { return };
        if let Some(machine) = jobs.machine(state.record.serial) {
            machine.snapshot_failed(&CaptureId(capture.to_string()), tape_id, why);
        }
    }

    fn take_snapshot(
        &mut self,
        context: &mut Context,
        snapshot: &StoredSnapshot,
        jobs: &mut Jobs,
    ) -> Result<Part, (Loss, &'static str)> {
        let StoredSnapshot { capture, tape_id, bytes, hash } = snapshot;
        let stale = (Loss::StaleSnapshot, "the capture is closed, or has this snapshot already");
        let id = CaptureId(capture.clone());
        let state = self.captures.get_mut(capture).ok_or(stale)?;
        let answer = state.answers.get(tape_id).cloned();
        let serial = state.record.serial;
        let part = state.part_of_tape(tape_id).ok_or(stale)?;
        if is_agent_capture(capture) {
            return agent_initiated::take_snapshot(part, *bytes, *hash);
        }
        let machine = jobs.machine(serial).ok_or(stale)?;
        // Its deadline may have come since the last tick: no receipt is sent for a snapshot that
        // the manifest does not have.
        machine.handle_timeout(context.now.mono_ns);
        if !machine.accepts_snapshot(&id, tape_id) {
            return Err(stale);
        }
        let promised = answer.as_ref().and_then(|answer| answer.hash);
        if promised.is_some_and(|promised| promised != *hash.as_bytes()) {
            return Err((Loss::BadSnapshot, "the snapshot is not the one that was announced"));
        }
        // A part whose snapshot came before a restart, and its answer did not, is sent again.
        if let Some(before) = snapshot_of(part) {
            context.push(Effect::ReleaseSnapshot(before));
        }
        if let Some(answer) = answer {
            *part = answered(part, answer);
        }
        (part.bytes, part.hash) = (*bytes, Some(*hash.as_bytes()));
        machine.snapshot_stored(context.now.mono_ns, &id, tape_id, *bytes, *hash.as_bytes());
        Ok(part.clone())
    }

    /// Deletes the captures of an attempt.
    pub(crate) fn forget_attempt(&mut self, context: &mut Context, serial: u32) {
        let of_attempt = self.captures.values().filter(|state| state.record.serial == serial);
        let ids: Vec<String> = of_attempt.map(|state| state.record.id.clone()).collect();
        ids.iter().for_each(|id| self.forget(context, id));
    }

    /// Deletes a capture: first the references, durably, then the snapshots.
    fn forget(&mut self, context: &mut Context, id: &str) {
        let Some(state) = self.captures.remove(id) else { return };
        self.initiated.remove(&state.record);
        let mut changes = Changes::default();
        changes.delete(&state.record);
        for part in &state.parts {
            changes.delete(part);
        }
        let hashes = state.parts.iter().filter_map(snapshot_of).collect();
        context.push(Effect::CaptureForgotten { capture: id.to_string() });
        context.write_then(changes, After::ReleaseSnapshots(hashes));
    }
}

/// A part with its agent's whole answer: a restarted coordinator needs all of it.
fn answered(part: &Part, answer: Part) -> Part {
    let (rank, node) = (part.rank, part.node.clone());
    Part { rank, node, ..answer }
}

/// A snapshot without its answer may show any step.
fn shows_its_step(part: &Part) -> bool {
    !matches!(part.outcome, Outcome::Awaited | Outcome::NoTape | Outcome::Unreachable)
}

/// The parts whose snapshots a diagnosis can use: the suspect's part, and parts of peers at the
/// same step, spread evenly over the ranks.
fn chosen_parts(
    state: &CaptureState,
    suspect: u32,
    peers_max: usize,
) -> Option<(&Part, Vec<&Part>)> {
    let suspect = state.part(suspect).filter(|part| part.hash.is_some() && shows_its_step(part))?;
    let peers: Vec<&Part> = state
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
        let part = |rank: u32, step: u64, has_snapshot: bool| Part {
            rank,
            step,
            outcome: Outcome::Aligned,
            hash: has_snapshot.then_some([0; 32]),
            ..Part::default()
        };
        let check = |parts: Vec<Part>, expected: Option<&[u32]>| {
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
