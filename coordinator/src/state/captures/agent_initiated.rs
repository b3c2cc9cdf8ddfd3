//! Agent-initiated captures: an agent took them while it was disconnected.
//!
//! Each is kept as a capture of one part that is closed from its beginning: no capture machine asks
//! for it or waits for it. The announcement makes the record, durably before the report that
//! acknowledges it. The snapshot may come any time later, once. The coordinator may have a capture
//! of its own of the same death, taken later. Every message may come twice.
//!
//! An agent may be compromised: each node, and each job of it, has a rate of such captures, and
//! their cost does not grow with the number of kept captures.

use std::collections::{BTreeMap, BTreeSet};

use memtape_core::capture::{Outcome, Part, Reason};
use memtape_core::identity::ids::is_agent_capture;
use memtape_core::limits::AGENT_CAPTURES_PER_JOB_MAX;
use memtape_core::rates::{HolderRates, Rates};

use crate::quota;
use crate::state::captures::uploads::Upload;
use crate::state::captures::{CaptureState, Captures};
use crate::state::counters::Loss;
use crate::state::effects::Context;
use crate::state::jobs::Jobs;
use crate::state::messages::{AgentCapture, AgentCaptureReason};
use memtape_store::records::{CaptureRecord, snapshot_of};

/// Begins the detail of every part.
const DETAIL: &str = "taken by the agent alone while the coordinator was away";

/// Ends the detail of a part until its snapshot is stored.
const PENDING: &str = "; its snapshot is on its way";

/// Captures that agents initiated, by job, and the rates at which agents may.
#[derive(Debug)]
pub(super) struct Initiated {
    by_job: BTreeMap<String, BTreeSet<String>>,
    announced: HolderRates,
    logged: Rates,
}

impl Default for Initiated {
    fn default() -> Self {
        Self {
            by_job: BTreeMap::new(),
            announced: quota::agent_captures(),
            logged: quota::logged_refusals(),
        }
    }
}

impl Initiated {
    /// Notes a kept capture, if an agent initiated it.
    pub(super) fn add(&mut self, record: &CaptureRecord) {
        if is_agent_capture(&record.id) {
            self.by_job.entry(record.job.clone()).or_default().insert(record.id.clone());
        }
    }

    /// Forgets a capture.
    pub(super) fn remove(&mut self, record: &CaptureRecord) {
        let Some(of_job) = self.by_job.get_mut(&record.job) else { return };
        of_job.remove(&record.id);
        if of_job.is_empty() {
            self.by_job.remove(&record.job);
        }
    }

    fn of_job(&self, job: &str) -> impl Iterator<Item = &String> {
        self.by_job.get(job).into_iter().flatten()
    }

    /// May the agent of a node write something about a capture of a job?
    fn take(&mut self, context: &mut Context, node: &str, job: &str) -> bool {
        let now_ns = context.now.mono_ns;
        // A node does not use up the rate of another node, even in the same job.
        let holder = quota::holder(node, job);
        let Err(wait) = self.announced.take(now_ns, holder) else { return true };
        context.lose(Loss::AgentCapturesTooMany);
        if self.logged.take(now_ns, holder.0).is_ok() {
            tracing::warn!(
                node = ?node, job = ?job, wait_s = wait.as_secs(),
                "an agent announces too many captures: further ones are refused for a while"
            );
        }
        false
    }
}

impl Captures {
    /// An agent announces a capture that it took by itself.
    pub(crate) fn agent_capture(
        &mut self,
        context: &mut Context,
        node: &str,
        taken: &AgentCapture,
        jobs: &Jobs,
    ) {
        let found =
            jobs.rank_of(&taken.answer.tape_id).filter(|(_, rank)| rank.record.node == node);
        let Some((attempt, rank)) = found else { return context.lose(Loss::UnknownTape) };
        let number = rank.record.rank;
        let record = CaptureRecord {
            id: taken.answer.capture.clone(),
            serial: attempt.record.serial,
            job: attempt.record.job.clone(),
            attempt: attempt.record.attempt,
            reason: reason(taken.reason, number),
            step: taken.answer.step,
            before_step: taken.answer.before_step,
            // Lists are in this order: no agent's clock is ahead of the coordinator's.
            requested_wall_ns: taken.seen_wall_ns.min(context.now.wall_ns),
            closed_wall_ns: Some(context.now.wall_ns),
            closed_store_ns: Some(self.clock.at(context.now)),
            // Of all ranks of the job it shows one.
            complete: false,
            is_alone: false,
        };
        let part = part(taken, node, number);
        if self.get(&taken.answer.capture).is_some() {
            return self.announce_again(context, &record, part);
        }
        // An agent that was restarted does not know of every death that an earlier one captured.
        // A capture whose snapshot never came shows nothing, and does not count.
        let of_job = || self.initiated.of_job(&record.job).filter_map(|id| self.get(id));
        let is_known = |state: &CaptureState| {
            state.record.reason == record.reason
                && state.part_of(&taken.answer.tape_id).is_some_and(|part| part.hash.is_some())
        };
        if taken.reason == AgentCaptureReason::Death && of_job().any(is_known) {
            // Its snapshot is refused, and the agent forgets it.
            return context.lose(Loss::StaleSnapshot);
        }
        let of_node = of_job().filter(|state| state.parts.iter().any(|part| part.node == node));
        if of_node.count() >= AGENT_CAPTURES_PER_JOB_MAX {
            return context.lose(Loss::NoRoom);
        }
        if !self.initiated.take(context, node, &record.job) {
            return;
        }
        let (job, step, reason) = (&record.job, record.step, record.reason.as_str());
        tracing::info!(
            capture = %record.id, job = ?job, rank = number, step, reason,
            "an agent took a capture alone"
        );
        let subject = format!("{} by the agent of {node}", record.id);
        context.audit("capture", subject, Some(node));
        self.insert(context, CaptureState::new(record, vec![part]));
    }

    /// Handles a repeated announcement: keeps a stored snapshot, notes a lost one.
    fn announce_again(&mut self, context: &mut Context, record: &CaptureRecord, part: Part) {
        let known = self.get_mut(&record.id).and_then(|known| known.part_of_tape(&part.tape_id));
        let Some(known) = known else { return context.lose(Loss::StaleSnapshot) };
        if known.hash.is_some() || *known == part {
            return;
        }
        if !self.initiated.take(context, &part.node, &record.job) {
            return;
        }
        if let Some(known) = self.get_mut(&record.id).and_then(|of| of.part_of_tape(&part.tape_id))
        {
            context.put(&part);
            *known = part;
        }
    }
}

/// May an agent send this snapshot of an agent-initiated capture?
pub(super) fn upload_verdict(part: &Part) -> Upload {
    match snapshot_of(part) {
        Some(hash) => Upload::Stored { hash },
        None if part.bytes > 0 => Upload::Wanted { promised: Some((part.bytes, None)) },
        None => Upload::Refused,
    }
}

/// The snapshot of an agent-initiated capture is on disk; the part that is to be written.
///
/// # Errors
/// No part waits for the snapshot.
pub(super) fn take_snapshot(
    part: &mut Part,
    bytes: u64,
    hash: blake3::Hash,
) -> Result<Part, (Loss, &'static str)> {
    if part.hash.is_some() || part.bytes == 0 {
        return Err((Loss::StaleSnapshot, "the capture has this snapshot already"));
    }
    (part.bytes, part.hash) = (bytes, Some(*hash.as_bytes()));
    // An agent-initiated capture shows the state of its own moment.
    part.outcome = Outcome::Aligned;
    part.detail = part.detail.replace(PENDING, "");
    Ok(part.clone())
}

fn reason(reason: AgentCaptureReason, rank: u32) -> Reason {
    match reason {
        AgentCaptureReason::OutOfMemory => Reason::OutOfMemory { rank },
        AgentCaptureReason::Death => Reason::Death { rank },
    }
}

/// The announced part: its size is a promise until there is a hash, and only a stored part is
/// aligned.
fn part(taken: &AgentCapture, node: &str, rank: u32) -> Part {
    let mut part = Part { rank, node: node.to_string(), hash: None, ..taken.answer.clone() };
    let separator = if part.detail.is_empty() { "" } else { "; " };
    part.detail = format!("{DETAIL}{separator}{}", part.detail);
    part.outcome = Outcome::NoTape;
    if part.bytes > 0 {
        part.outcome = Outcome::Unreachable;
        part.detail += PENDING;
    }
    part
}
