//! Calls to the ranks of a job through their agents: remedies inside the ranks, the checkpoint that
//! a restart waits for, and signals.
//!
//! A call that several actions need, because a restart has several targets, is made once. When a
//! call is over is decided in core ([`memtape_core::action::call`]). Agents tell calls apart by
//! their names, and follow each once: a coordinator that is started again repeats a call under its
//! name.

use std::collections::BTreeMap;

use memtape_core::action::call::{self, Call, Look, Tally};
use memtape_core::action::remedy::Ask;
use memtape_core::action::{ActionKind, Event, Next, Outcome, PROOF_STEPS};
use memtape_core::limits::{CALL_ANSWER_SECONDS_MAX, TAPES_PER_REQUEST_MAX};
use memtape_core::policy::Reach;
use memtape_core::tape::mailbox;
use memtape_proto::remedies::{self, RemedyRequest};

use crate::state::actions::{Actions, is_due};
use crate::state::effects::{Context, Effect};
use crate::state::incidents::Incidents;
use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::{Attempt, Presence, Rank};
use crate::state::messages::RemedyAnswer;
use memtape_disk::clock::Now;

/// A call under way. Bounded by the policy: each belongs to an action that it allowed.
#[derive(Debug)]
pub(super) struct RankCall {
    /// Id of the call, from the first of the actions.
    name: String,
    /// The actions that wait for it.
    actions: Vec<String>,
    serial: u32,
    ask: Ask,
    /// Node and tape of each rank.
    tapes: BTreeMap<u32, (String, String)>,
    call: Call,
}

impl Actions {
    /// The step at which all living ranks of an attempt can act; none where one does not offer the
    /// remedy, or no such step is known.
    pub(super) fn step_for(&self, jobs: &Jobs, serial: u32, kind: ActionKind) -> Option<u64> {
        let (attempt, offer) = (jobs.get(serial)?, kind.asked_of_ranks()?.offer());
        let offers = living_ranks(attempt).all(|(_, rank)| rank.offered.has(offer));
        self.next_step(attempt).map(|(step, _)| step).filter(|_| offers)
    }

    /// Whether all living ranks of an attempt can act at one step.
    pub(super) fn reach(&self, now: Now, attempt: &Attempt) -> Reach {
        let away = living_ranks(attempt).filter(|(_, rank)| rank.presence != Presence::Here);
        let away_ns = away.map(|(_, rank)| now.mono_ns.saturating_sub(rank.reported_ns)).max();
        Reach::new(self.next_step(attempt).map(|(_, proof_in_ns)| proof_in_ns), away_ns)
    }

    /// The next step at which all living ranks can act, and the time in nanoseconds until the steps
    /// that prove the effect have ended; none while the step time is unknown.
    fn next_step(&self, attempt: &Attempt) -> Option<(u64, u64)> {
        let newest = living_ranks(attempt).map(|(_, rank)| rank.step).max()?;
        let step_time_ns = attempt.detectors.step_time_ns()?;
        let ahead = call::steps_ahead(step_time_ns, self.report_interval_ns);
        let step = newest.saturating_add(ahead);
        let proof_in_ns = step_time_ns.saturating_mul(ahead.saturating_add(PROOF_STEPS));
        (step <= mailbox::STEP_MAX).then_some((step, proof_in_ns))
    }

    /// Calls the ranks for an action that is stored.
    pub(super) fn call_ranks(&mut self, context: &mut Context, id: &str, next: Next, jobs: &Jobs) {
        let Some(action) = self.get(id) else { return };
        let name = action.call_name();
        let serial = action.observation.as_ref().map(|observation| observation.serial);
        let ask = match next {
            Next::CallRanks { step } => {
                action.kind.asked_of_ranks().map(|remedy| Ask::Remedy { remedy, step })
            }
            Next::AskTarget => self.signal.map(Ask::Signal),
            Next::Nothing => None,
        };
        let (Some(serial), Some(ask)) = (serial, ask) else { return };
        let same = |known: &&mut RankCall| known.serial == serial && known.ask == ask;
        if let Some(known) = self.calls.iter_mut().find(same) {
            known.actions.push(id.to_string());
            return;
        }
        let Some(attempt) = jobs.get(serial) else {
            // It was forgotten: there is no one to call.
            return self.advance(context, id, Event::Abandoned);
        };
        let tapes: BTreeMap<u32, (String, String)> = living_ranks(attempt)
            .map(|(rank, known)| (rank, (known.record.node.clone(), known.record.tape_id.clone())))
            .collect();
        let step = match ask {
            Ask::Remedy { step, .. } => Some(step),
            Ask::Signal(_) | Ask::Withdraw => None,
        };
        let call = Call::new(context.now.mono_ns, step, tapes.keys().copied());
        let actions = vec![id.to_string()];
        let call = RankCall { name, actions, serial, ask, tapes, call };
        call.send(context, ask, call.tapes.values());
        self.calls.push(call);
    }

    /// Takes an agent's answer about one of its ranks; an answer about a tape of another node is
    /// counted as a loss.
    pub(crate) fn answered(
        &mut self,
        context: &mut Context,
        node: &str,
        said: &RemedyAnswer,
        jobs: &Jobs,
    ) {
        let Some((serial, rank)) = jobs.tape_on(context, node, &said.tape_id) else { return };
        let is_meant = |known: &&mut RankCall| known.serial == serial && known.name == said.call;
        if let Some(known) = self.calls.iter_mut().find(is_meant) {
            known.call.answered(rank, &said.answer);
        }
    }

    /// Repeats calls to an announced rank: each stream of an agent announces all ranks, and a
    /// request may have been lost with the stream before. Signals are not repeated: an agent that
    /// was restarted would send a second one.
    pub(crate) fn announced(&self, context: &mut Context, tape_id: &str, jobs: &Jobs) {
        let Some((attempt, rank)) = jobs.rank_of(tape_id) else { return };
        let (serial, number) = (attempt.record.serial, rank.record.rank);
        for known in self.calls.iter().filter(|known| known.serial == serial) {
            let ask = if known.call.is_withdrawn() { Ask::Withdraw } else { known.ask };
            if !matches!(ask, Ask::Signal(_)) {
                known.send(context, ask, known.tapes.get(&number));
            }
        }
    }

    /// Looks at the calls under way.
    pub(crate) fn look_at_calls(
        &mut self,
        context: &mut Context,
        incidents: &Incidents,
        jobs: &Jobs,
    ) {
        let mut over = Vec::new();
        for (at, known) in self.calls.iter_mut().enumerate() {
            let attempt = jobs.get(known.serial);
            let rank_of = |rank: &u32| attempt.and_then(|attempt| attempt.ranks.get(rank));
            let mut newest = 0;
            for rank in known.tapes.keys() {
                let state = rank_of(rank);
                newest = state.map_or(0, |state| state.step).max(newest);
                if state.is_none_or(|state| state.presence == Presence::Ended) {
                    known.call.gone(*rank);
                }
            }
            match known.call.look(context.now.mono_ns, newest) {
                Look::Wait => {}
                Look::Withdraw => known.send(context, Ask::Withdraw, known.tapes.values()),
                Look::Over(tally) => over.push((at, tally)),
            }
        }
        for (at, tally) in over.into_iter().rev() {
            let call = self.calls.remove(at);
            self.called(context, &call, &tally, incidents, jobs);
        }
    }

    /// Handles the end of a call: its actions go on.
    fn called(
        &mut self,
        context: &mut Context,
        call: &RankCall,
        tally: &Tally,
        incidents: &Incidents,
        jobs: &Jobs,
    ) {
        let outcome = outcome(call.ask, tally);
        context.audit("ranks called", format!("{}: {outcome}", call.actions.join(" ")), None);
        for id in &call.actions {
            let is_overtaken =
                self.get(id).is_none_or(|action| is_due(action, incidents, jobs).is_none());
            let event = match call.ask {
                Ask::Signal(_) => Event::Answered(outcome.clone()),
                // The growth may have ended meanwhile, or the attempt. What was done inside the
                // ranks was done all the same.
                Ask::Remedy { remedy: mailbox::Remedy::Checkpoint, .. } if is_overtaken => {
                    Event::Overtaken
                }
                Ask::Remedy { .. } | Ask::Withdraw => Event::Called {
                    outcome: outcome.clone(),
                    step: self.step_for(jobs, call.serial, ActionKind::Restart),
                },
            };
            self.advance(context, id, event);
        }
    }
}

impl RankCall {
    /// Sends requests to the agents of these ranks.
    fn send<'a>(
        &self,
        context: &mut Context,
        ask: Ask,
        tapes: impl IntoIterator<Item = &'a (String, String)>,
    ) {
        let mut of_node: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (node, tape_id) in tapes {
            of_node.entry(node).or_default().push(tape_id.clone());
        }
        for (node, tapes) in of_node {
            for tape_ids in tapes.chunks(TAPES_PER_REQUEST_MAX) {
                let request = RemedyRequest {
                    call_id: self.name.clone(),
                    tape_ids: tape_ids.to_vec(),
                    valid_ms: u32::try_from(CALL_ANSWER_SECONDS_MAX * 1000).unwrap_or(u32::MAX),
                    ..remedies::request(ask)
                };
                let (node, begins) = (node.to_string(), ask != Ask::Withdraw);
                context.push(Effect::CallRanks { node, request, begins });
            }
        }
    }
}

/// Outcome of a call, for the actions that wait for it.
fn outcome(ask: Ask, tally: &Tally) -> Outcome {
    let said = match ask {
        Ask::Remedy { remedy: mailbox::Remedy::Gc, step } => {
            format!("garbage collected at step {step}, {tally}")
        }
        Ask::Remedy { remedy: mailbox::Remedy::EmptyCache, step } => {
            format!("cache emptied at step {step}, {tally}")
        }
        Ask::Remedy { remedy: mailbox::Remedy::Checkpoint, step } => {
            format!("checkpoint at step {step}, {tally}")
        }
        Ask::Signal(signal) => format!("{}: {tally}", signal.as_str()),
        Ask::Withdraw => tally.to_string(),
    };
    match (tally.is_done(), tally.is_surely_not_done()) {
        (true, _) => Outcome::Finished { said },
        (false, true) => Outcome::Refused { why: said },
        (false, false) => Outcome::Failed { why: said },
    }
}

/// The ranks of an attempt whose processes have not ended, as far as is known.
pub(super) fn living_ranks(attempt: &Attempt) -> impl Iterator<Item = (u32, &Rank)> {
    let living = attempt.proved().filter(|rank| rank.presence != Presence::Ended);
    living.map(|rank| (rank.record.rank, rank))
}
