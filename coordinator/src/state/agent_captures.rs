//! Captures that an agent took by itself while no coordinator was there.
//!
//! Each is kept as a capture of one part that is closed from its beginning: no machine of core's
//! asks for it or waits for it. The announcement makes the record, durably before the report that
//! acknowledges it; the body may come any time later, once. Whether the coordinator has a capture
//! of its own of the same death does not matter: this one shows the moment itself. Everything may
//! be said twice.

use memtape_core::capture::{Answer, Outcome, Reason};
use memtape_core::ids::is_agent_capture;

use crate::clock::Now;
use crate::coordinator::Coordinator;
use crate::event::Upload;
use crate::records::{CaptureRecord, PartRecord};
use crate::state::captures::CaptureState;
use crate::state::jobs::Node;
use crate::state::losses::{Counters, Loss};
use crate::state::messages::{SoloCapture, SoloReason, Spool};
use crate::store::Changes;

/// Solo captures kept of one job; an agent that has more of them gives them up.
const SOLOS_PER_JOB_MAX: usize = 64;

/// What a part says of itself, whatever else there is to say.
const DETAIL: &str = "taken by the agent alone while the coordinator was away";

/// What it adds until its body is here.
const PENDING: &str = "; its body is on its way";

impl Coordinator {
    /// An agent announces a state that it took by itself.
    pub(crate) fn solo_capture(&mut self, now: Now, node: &str, solo: SoloCapture) {
        let found = self.cluster.rank_of(&solo.tape_id);
        let Some((attempt, number)) = found.filter(|(attempt, rank)| {
            attempt.ranks.get(rank).is_some_and(|rank| rank.record.node == node)
        }) else {
            self.counters.lose(Loss::UnknownTape);
            return;
        };
        let record = CaptureRecord {
            id: solo.capture.clone(),
            serial: attempt.record.serial,
            job: attempt.record.job.clone(),
            attempt: attempt.record.attempt,
            reason: reason(solo.reason, number).as_str().to_string(),
            reason_rank: Some(number),
            step: solo.answer.step,
            before_step: solo.answer.before_step,
            requested_wall_ns: solo.seen_wall_ns,
            closed_wall_ns: Some(now.wall_ns),
            // Of all ranks of the job it shows one.
            complete: false,
        };
        let part = part(&solo, node, number);
        if let Some(known) = self.captures.get_mut(&solo.capture) {
            let Some(known) = known.parts.iter_mut().find(|known| known.tape_id == solo.tape_id)
            else {
                return self.counters.lose(Loss::StaleBody);
            };
            // Said again; what is stored stays, what cannot come any more is said.
            if known.hash.is_some() || *known == part {
                return;
            }
            *known = part.clone();
            let mut changes = Changes::default();
            changes.put(&part);
            return self.write(changes);
        }
        // An agent that was started anew does not know of every death that an earlier one captured.
        // One whose body never came shows nothing, and stands in nobody's way.
        let is_known = |(id, state): (&String, &CaptureState)| {
            let parts = &state.parts;
            is_agent_capture(id)
                && state.record.reason == record.reason
                && parts.iter().any(|part| part.tape_id == solo.tape_id && part.hash.is_some())
        };
        if solo.reason == SoloReason::Death && self.captures.iter().any(is_known) {
            // Its body is refused, and the agent forgets it.
            self.counters.lose(Loss::StaleBody);
            return;
        }
        let of_job = self.captures.iter().filter(|(_, state)| state.record.job == record.job);
        if of_job.filter(|(id, _)| is_agent_capture(id)).count() >= SOLOS_PER_JOB_MAX {
            self.counters.lose(Loss::NoRoom);
            tracing::warn!(job = ?record.job, "there are too many captures by agents alone");
            return;
        }
        let (job, step, reason) = (&record.job, record.step, &record.reason);
        tracing::info!(
            capture = %record.id, job = ?job, rank = number, step, reason = %reason,
            "an agent took a capture alone"
        );
        let mut changes = Changes::default();
        changes.put(&record);
        changes.put(&part);
        self.write(changes);
        self.captures.insert(solo.capture, CaptureState::new(record, vec![part]));
    }

    /// May an agent send the body of a solo capture? None when it is no solo capture.
    pub(crate) fn solo_verdict(&self, capture: &str, tape_id: &str) -> Option<Upload> {
        let state = self.captures.get(capture).filter(|_| is_agent_capture(capture))?;
        let part = state.parts.iter().find(|part| part.tape_id == tape_id)?;
        Some(match part.hash() {
            Some(hash) => Upload::Stored { hash },
            None if part.bytes > 0 => Upload::Wanted { promised: Some((part.bytes, None)) },
            None => Upload::Refused,
        })
    }

    /// The body of a solo capture is on disk; the part that is to be written. None when it is no
    /// solo capture, `Err` when nobody waits for it.
    pub(crate) fn take_solo_body(
        &mut self,
        capture: &str,
        tape_id: &str,
        bytes: u64,
        hash: blake3::Hash,
    ) -> Option<Result<PartRecord, (Loss, &'static str)>> {
        let state = self.captures.get_mut(capture).filter(|_| is_agent_capture(capture))?;
        let part = state.parts.iter_mut().find(|part| part.tape_id == tape_id)?;
        if part.hash.is_some() || part.bytes == 0 {
            return Some(Err((Loss::StaleBody, "the capture has this body already")));
        }
        (part.bytes, part.hash) = (bytes, Some(hash.to_hex().to_string()));
        // What an agent takes alone is the state of that moment.
        part.outcome = Outcome::Aligned.as_str().to_string();
        part.detail = part.detail.replace(PENDING, "");
        let part = part.clone();
        self.counters.bodies.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.counters.body_bytes.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        Some(Ok(part))
    }
}

/// Counts what an agent has dropped from its spool since it said so last. After a restart of the
/// coordinator its counters begin at zero, and so does this comparison.
pub(crate) fn note_spool(counters: &Counters, name: &str, node: &mut Node, spool: Spool) {
    let before = std::mem::replace(&mut node.spool, spool);
    let counts = [
        (Loss::SpooledSteps, before.steps_dropped, spool.steps_dropped),
        (Loss::SpooledBodies, before.bodies_dropped, spool.bodies_dropped),
        (Loss::SpooledFacts, before.facts_dropped, spool.facts_dropped),
    ];
    let more = counts.map(|(loss, before, after)| {
        let more = after.saturating_sub(before);
        counters.lose_many(loss, more);
        more
    });
    if more.iter().any(|more| *more > 0) {
        let [steps, bodies, facts] = more;
        tracing::warn!(
            node = ?name, steps, bodies, facts,
            "an agent alone had no room on its disk: give it more with --spool-bytes-max"
        );
    }
}

fn reason(reason: SoloReason, rank: u32) -> Reason {
    match reason {
        SoloReason::OutOfMemory => Reason::OutOfMemory { rank },
        SoloReason::Death => Reason::Death { rank },
    }
}

/// The part as it is announced: its size is a promise until there is a hash, and nothing is
/// aligned that is not stored.
fn part(solo: &SoloCapture, node: &str, rank: u32) -> PartRecord {
    let Answer { step, wall_ns, wall_error_ns, dead, before_step, body_bytes, .. } = solo.answer;
    let more = &solo.answer.detail;
    let mut detail = if more.is_empty() { DETAIL.to_string() } else { format!("{DETAIL}; {more}") };
    let outcome = if body_bytes == 0 { Outcome::NoTape } else { Outcome::Unreachable };
    if body_bytes > 0 {
        detail += PENDING;
    }
    PartRecord {
        capture: solo.capture.clone(),
        rank,
        tape_id: solo.tape_id.clone(),
        node: node.to_string(),
        outcome: outcome.as_str().to_string(),
        step,
        wall_ns,
        wall_error_ns,
        dead,
        before_step,
        bytes: body_bytes,
        hash: None,
        detail,
    }
}
