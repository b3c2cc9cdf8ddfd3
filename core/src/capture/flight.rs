//! One capture in flight: the ranks asked, their answers and stored snapshots.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::identity::cut;

use crate::capture::manifest::{Action, CaptureId, Manifest, Part};
use crate::capture::outcome::Outcome;
use crate::capture::reason::Reason;

/// Bytes of the reason for a snapshot that is not kept.
const FAILURE_BYTES_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct Flight {
    id: CaptureId,
    reason: Reason,
    step: u64,
    before_step: u64,
    requested_ns: u64,
    deadline_ns: u64,
    /// Of one rank alone, which proves nothing.
    pub(super) is_alone: bool,
    /// Time at which silent agents are asked again.
    retry_ns: u64,
    /// Keyed by tape.
    parts: BTreeMap<String, Progress>,
    /// Parts that are not over yet.
    open: usize,
}

/// Progress of a part. It is over when its answer, and the snapshot if promised, have come.
#[derive(Debug)]
struct Progress {
    rank: u32,
    node: String,
    answer: Option<Part>,
    snapshot: Option<(u64, [u8; 32])>,
    /// Why a snapshot that came could not be kept; empty when none was refused.
    snapshot_failure: String,
}

impl Progress {
    fn is_over(&self) -> bool {
        match &self.answer {
            Some(answer) => answer.bytes == 0 || self.has_promised_snapshot(answer),
            None => false,
        }
    }

    fn why_unreachable(&self) -> String {
        if !self.snapshot_failure.is_empty() {
            return format!("its snapshot came and could not be stored: {}", self.snapshot_failure);
        }
        let why = match self.answer {
            Some(_) => "its snapshot did not arrive in time",
            None => "its agent did not answer in time",
        };
        why.to_string()
    }

    /// True if the answer names the stored snapshot. A restarted agent has rewound again, so its
    /// answer may name another one.
    fn has_promised_snapshot(&self, answer: &Part) -> bool {
        let stored = self.snapshot.map(|(_, hash)| hash);
        stored.is_some_and(|hash| answer.hash.is_none_or(|promised| promised == hash))
    }
}

impl Flight {
    pub(super) fn new(
        id: CaptureId,
        reason: Reason,
        step: u64,
        before_step: u64,
        requested_ns: u64,
        deadline_ns: u64,
    ) -> Self {
        Self {
            id,
            reason,
            step,
            before_step,
            requested_ns,
            deadline_ns,
            is_alone: false,
            retry_ns: u64::MAX,
            parts: BTreeMap::new(),
            open: 0,
        }
    }

    /// Resumes an interrupted capture; stored snapshots count.
    pub(super) fn resume(manifest: &Manifest, deadline_ns: u64) -> Self {
        let (id, reason) = (manifest.id.clone(), manifest.reason.clone());
        let (step, before_step) = (manifest.step, manifest.before_step);
        let requested_ns = manifest.requested_ns;
        let mut flight = Self::new(id, reason, step, before_step, requested_ns, deadline_ns);
        flight.is_alone = manifest.is_alone;
        for part in &manifest.parts {
            flight.add(part.rank, &part.tape_id, &part.node);
            let Some(hash) = part.hash else { continue };
            if part.outcome != Outcome::Awaited {
                flight.answer(part.clone());
            }
            // Without its answer too: the agent knows that it is stored, and does not send it
            // again.
            flight.snapshot_stored(&part.tape_id, part.bytes, hash);
        }
        flight
    }

    pub(super) fn id(&self) -> &CaptureId {
        &self.id
    }

    pub(super) fn reason(&self) -> &Reason {
        &self.reason
    }

    pub(super) fn step(&self) -> u64 {
        self.step
    }

    pub(super) fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    pub(super) fn retry_ns(&self) -> u64 {
        self.retry_ns
    }

    pub(super) fn retry_at(&mut self, at_ns: u64) {
        self.retry_ns = at_ns;
    }

    pub(super) fn is_done(&self) -> bool {
        self.open == 0
    }

    pub(super) fn add(&mut self, rank: u32, tape_id: &str, node: &str) {
        let node = node.to_string();
        let part =
            Progress { rank, node, answer: None, snapshot: None, snapshot_failure: String::new() };
        if self.parts.insert(tape_id.to_string(), part).is_none() {
            self.open += 1;
        }
    }

    /// Asks a node for its open parts; none when it has none. A promise of a snapshot that was made
    /// before the agent went away may never be kept, so it does not count. A snapshot that is
    /// stored does: it lacks its answer only.
    pub(super) fn ask(&mut self, now_ns: u64, node: &str) -> Option<Action> {
        for part in self.parts.values_mut().filter(|part| part.node == node && !part.is_over()) {
            part.answer = None;
        }
        self.ask_silent(now_ns, node)
    }

    /// Asks all nodes but the lost ones for their unanswered parts.
    pub(super) fn ask_all(&self, now_ns: u64, lost: &BTreeSet<String>) -> Vec<Action> {
        let mut silent: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (tape_id, part) in self.parts.iter().filter(|(_, part)| part.answer.is_none()) {
            silent.entry(&part.node).or_default().push(tape_id.clone());
        }
        let there = silent.into_iter().filter(|(node, _)| !lost.contains(*node));
        there.filter_map(|(node, tapes)| self.question(now_ns, node, tapes)).collect()
    }

    /// Asks a node for its unanswered parts; none when all are answered.
    fn ask_silent(&self, now_ns: u64, node: &str) -> Option<Action> {
        let silent =
            self.parts.iter().filter(|(_, part)| part.node == node && part.answer.is_none());
        let tapes = silent.map(|(tape_id, _)| tape_id.clone()).collect();
        self.question(now_ns, node, tapes)
    }

    fn question(&self, now_ns: u64, node: &str, tapes: Vec<String>) -> Option<Action> {
        (!tapes.is_empty()).then(|| Action::Ask {
            node: node.to_string(),
            capture: self.id.clone(),
            sample_workers: tapes.iter().find(|tape| self.has_growing_workers(tape)).cloned(),
            tapes,
            step: self.step,
            before: self.before_step,
            deadline_ns: self.deadline_ns.saturating_sub(now_ns),
        })
    }

    /// Is this the tape of the rank whose workers are the reason for the capture?
    fn has_growing_workers(&self, tape_id: &str) -> bool {
        let Reason::WorkerGrowth { rank } = self.reason else { return false };
        self.parts.get(tape_id).is_some_and(|part| part.rank == rank)
    }

    /// Takes an answer for a tape; false for strangers and repetitions.
    pub(super) fn answer(&mut self, mut answer: Part) -> bool {
        let (step, open) = (self.step, &mut self.open);
        let Some(part) = self.parts.get_mut(&answer.tape_id) else { return false };
        // A repetition; or, while its snapshot is not stored, the answer of a restarted agent,
        // which announces another snapshot.
        let known_hash = part.answer.as_ref().map(|known| known.hash);
        if part.is_over() || known_hash.is_some_and(|known| known == answer.hash) {
            return false;
        }
        // Aligned means exactly T, with a snapshot: an agent's word is not enough.
        if answer.is_aligned() {
            answer.outcome = Outcome::of(Some(step), Ok(answer.step), answer.dead);
        }
        if answer.is_aligned() && answer.bytes == 0 && part.snapshot.is_none() {
            answer.outcome = Outcome::NoTape;
            answer.detail = "the agent sent no snapshot".to_string();
        }
        part.answer = Some(answer);
        *open -= usize::from(part.is_over());
        true
    }

    pub(super) fn wants_snapshot(&self, tape_id: &str) -> bool {
        // With an answer and not over: its snapshot is not here. Without one any snapshot will do.
        self.parts.get(tape_id).is_some_and(|part| match part.answer {
            Some(_) => !part.is_over(),
            None => part.snapshot.is_none(),
        })
    }

    /// Takes the first snapshot of a tape; false for strangers and repetitions.
    pub(super) fn snapshot_stored(&mut self, tape_id: &str, bytes: u64, hash: [u8; 32]) -> bool {
        if !self.wants_snapshot(tape_id) {
            return false;
        }
        let Some(part) = self.parts.get_mut(tape_id) else { return false };
        let promised = part.answer.as_ref().and_then(|answer| answer.hash);
        if promised.is_some_and(|promised| promised != hash) {
            return false;
        }
        part.snapshot = Some((bytes, hash));
        self.open -= usize::from(part.is_over());
        true
    }

    /// Notes that a snapshot came and could not be kept; it may be sent again.
    pub(super) fn snapshot_failed(&mut self, tape_id: &str, why: &str) {
        if let Some(part) = self.parts.get_mut(tape_id) {
            part.snapshot_failure = cut(why, FAILURE_BYTES_MAX).to_string();
        }
    }

    /// The present manifest of the capture; `closed_ns` is none while parts are awaited.
    pub(super) fn manifest(&self, job: &str, attempt: u32, closed_ns: Option<u64>) -> Manifest {
        let is_closed = closed_ns.is_some();
        let parts = self.parts.iter().map(|(tape_id, part)| self.part(tape_id, part, is_closed));
        let mut parts: Vec<Part> = parts.collect();
        parts.sort_by(|a, b| (a.rank, &a.tape_id).cmp(&(b.rank, &b.tape_id)));
        Manifest {
            id: self.id.clone(),
            job: job.to_string(),
            attempt,
            reason: self.reason.clone(),
            step: self.step,
            before_step: self.before_step,
            requested_ns: self.requested_ns,
            closed_ns: closed_ns.unwrap_or(self.requested_ns),
            complete: parts.iter().all(Part::is_aligned),
            is_alone: self.is_alone,
            parts,
        }
    }

    /// A part as the manifest has it. When the capture is closed, a rank without an answer, or
    /// with a snapshot that did not come, counts as unreachable.
    fn part(&self, tape_id: &str, of: &Progress, is_closed: bool) -> Part {
        let answer = of.answer.clone().unwrap_or_default();
        let (outcome, detail) = match (of.is_over(), is_closed) {
            (true, _) => (answer.outcome, answer.detail),
            (false, false) => (Outcome::Awaited, String::new()),
            (false, true) => (Outcome::Unreachable, of.why_unreachable()),
        };
        Part {
            capture: self.id.0.clone(),
            rank: of.rank,
            tape_id: tape_id.to_string(),
            node: of.node.clone(),
            bytes: of.snapshot.map_or(0, |(bytes, _)| bytes),
            hash: of.snapshot.map(|(_, hash)| hash),
            outcome,
            detail,
            ..answer
        }
    }
}
