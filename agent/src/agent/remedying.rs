//! Remedies requested by the coordinator: checks them, writes the instruction, polls the result.
//!
//! The agent writes one word of a tape, and only of a rank whose job offers the remedy. The rank's
//! reply is read in the usual polls. A request is prepared as a whole: if one of its ranks cannot
//! be asked, no rank is asked.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{Ordering, fence};

use memtape_core::action::remedy::{Answer, Ask, Outcome, Signal};
use memtape_core::limits::{ID_BYTES_MAX, REMEDIES_KNOWN_MAX, TAPES_PER_REQUEST_MAX};
use memtape_core::tape::layout::{Clock, header};
use memtape_core::tape::mailbox::{Instruction, Offer, Remedy, ReplyStatus};

use super::Agent;
use crate::link::wire::{self, BadAsk, RemedyRequest};
use crate::node::clock::Now;
use crate::node::fence::{Hold, NotFenced};
use crate::node::process::Holder;
use crate::remedies::{Armed, RemedyKey};
use crate::tapes::known::KnownTape;
use crate::tapes::liveness::Writer;
use crate::tapes::quota::TapeKey;

/// Steps beyond that of an instruction after which a rank that has not replied never will.
const STEPS_UNTIL_GIVEN_UP: u64 = 2;

/// Why a rank is not asked.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Ask(#[from] BadAsk),
    #[error("the request came too late")]
    TooOld,
    #[error("the request names no call of at most {ID_BYTES_MAX} bytes")]
    NoAction,
    #[error("another rank of the request cannot be asked")]
    OtherRank,
    #[error("the agent has {REMEDIES_KNOWN_MAX} remedies under way: ask again later")]
    NoRoom,
    #[error("this node has no such tape")]
    NoTape,
    #[error("the tape was cut short")]
    Cut,
    #[error("its process has ended")]
    Ended,
    #[error("its recorder is off")]
    Disabled,
    #[error("its job does not offer {}", .0.as_str())]
    NotOffered(Offer),
    #[error("its program marks no steps")]
    Turns,
    #[error("its steps do not end in PyTorch's optimizer hook, which alone reads instructions")]
    NoHook,
    #[error("step {step} has passed: {finished} steps have ended")]
    Passed { step: u64, finished: u64 },
    #[error("another remedy waits for its step: {0}")]
    Busy(String),
    #[error("its tape cannot be written: {0}")]
    Write(#[source] io::Error),
    #[error("the pid of its process is not known here")]
    NoPid,
    #[error("the lock of its tape is held by another process than before")]
    OtherHolder,
    #[error(transparent)]
    Fence(#[from] NotFenced),
    #[error("the signal cannot be sent: {0}")]
    Send(#[source] io::Error),
    #[error("the call asked for something else before")]
    OtherAsk,
    #[error("nothing of this call is under way")]
    NothingToWithdraw,
}

/// A rank that can be asked.
#[derive(Debug)]
enum Prepared {
    /// The instruction that is to be written.
    Write(TapeKey, Instruction),
    Signal(Box<dyn Hold>, Signal),
}

impl Agent {
    /// Follows a request for a remedy, or answers why it does not.
    pub(super) fn remedy(&mut self, now: Now, request: RemedyRequest) {
        let mut named = BTreeSet::new();
        let mut keys = Vec::new();
        for tape_id in request.tape_ids.into_iter().take(TAPES_PER_REQUEST_MAX) {
            if named.insert(tape_id.clone()) {
                keys.push(RemedyKey { call_id: request.call_id.clone(), tape_id });
            }
        }
        let valid_ns = u64::try_from(request.valid.as_nanos()).unwrap_or(u64::MAX);
        let age_ns = request.read_ns.map_or(0, |read_ns| now.mono_ns.saturating_sub(read_ns));
        let is_too_old = valid_ns == 0 || age_ns > valid_ns;
        let is_sound = (1..=ID_BYTES_MAX).contains(&request.call_id.len());
        match request.ask {
            _ if !is_sound => self.refuse(keys, &Refusal::NoAction),
            Err(why) => self.refuse(keys, &why.into()),
            // Never too late: a refusal would say that the rank is not armed.
            Ok(Ask::Withdraw) => keys.into_iter().for_each(|key| self.withdraw(key)),
            Ok(ask) => self.ask(ask, keys, is_too_old),
        }
        self.send_remedies();
    }

    fn refuse(&self, keys: Vec<RemedyKey>, why: &Refusal) {
        keys.iter().for_each(|key| self.refuse_one(key, why));
    }

    /// Answers a refused request, and keeps nothing of it: a later request is checked again.
    fn refuse_one(&self, key: &RemedyKey, why: &Refusal) {
        let answer = answer(Outcome::Refused, 0, &why.to_string());
        self.send(wire::remedy_answer(&key.call_id, &key.tape_id, &answer));
    }

    /// Asks ranks, all or none of them. A rank whose call is known gets its answer again, however
    /// late the request is.
    fn ask(&mut self, ask: Ask, keys: Vec<RemedyKey>, is_too_old: bool) {
        let mut new = Vec::new();
        for key in keys {
            match self.remedies.asked(&key) {
                None => match self.found(ask, &key) {
                    Some(armed) => self.remedies.begin(key, armed),
                    None => new.push(key),
                },
                Some(before) if before == ask => self.remedies.repeat(&key),
                Some(_) => self.refuse_one(&key, &Refusal::OtherAsk),
            }
        }
        if is_too_old {
            return self.refuse(new, &Refusal::TooOld);
        }
        if !self.remedies.have_room(new.len()) {
            return self.refuse(new, &Refusal::NoRoom);
        }
        let checked: Vec<_> = new.iter().map(|key| self.prepare(ask, key)).collect();
        if checked.iter().any(Result::is_err) {
            for (key, checked) in new.iter().zip(checked) {
                self.refuse_one(key, &checked.err().unwrap_or(Refusal::OtherRank));
            }
            return;
        }
        for (key, prepared) in new.into_iter().zip(checked.into_iter().flatten()) {
            if let Err(why) = self.begin(&key, prepared) {
                self.refuse_one(&key, &why);
            }
        }
    }

    /// The instruction of an earlier agent process, if it asks for the same as `ask`.
    fn found(&self, ask: Ask, key: &RemedyKey) -> Option<Armed> {
        let (_, known) = self.tapes.find(&key.tape_id)?;
        let written = armed(known.tape.instruction()?);
        let is_free = self.remedies.on(known.tape_id()).is_none();
        (is_free && written.ask() == ask).then_some(written)
    }

    fn prepare(&self, ask: Ask, key: &RemedyKey) -> Result<Prepared, Refusal> {
        let (tape, known) = self.tapes.find(&key.tape_id).ok_or(Refusal::NoTape)?;
        if known.is_cut {
            return Err(Refusal::Cut);
        }
        if known.life.death().is_some() || known.file().writer() == Writer::Gone {
            return Err(Refusal::Ended);
        }
        if known.tape.status().disabled.is_some() {
            return Err(Refusal::Disabled);
        }
        if let Some(offer) = ask.offer()
            && !known.tape.offered().has(offer)
        {
            return Err(Refusal::NotOffered(offer));
        }
        match ask {
            Ask::Remedy { remedy, step } => self.prepare_remedy(tape, known, remedy, step),
            Ask::Signal(signal) => Ok(Prepared::Signal(self.fenced(known)?, signal)),
            Ask::Withdraw => Err(Refusal::NothingToWithdraw),
        }
    }

    fn prepare_remedy(
        &self,
        tape: TapeKey,
        known: &KnownTape,
        remedy: Remedy,
        step: u64,
    ) -> Result<Prepared, Refusal> {
        if known.tape.clock() != Clock::Steps {
            return Err(Refusal::Turns);
        }
        if !known.tape.reads_instructions() {
            return Err(Refusal::NoHook);
        }
        if let Some((other, _)) = self.remedies.on(known.tape_id()) {
            return Err(Refusal::Busy(other.call_id.clone()));
        }
        let finished = known.tape.finished();
        if finished >= step {
            return Err(Refusal::Passed { step, finished });
        }
        let instruction = Instruction::new(known.tape.next_number(), remedy, step);
        Ok(Prepared::Write(tape, instruction.ok_or(BadAsk::Step)?))
    }

    /// Takes hold of the process that holds the lock of a tape, and checks afterwards that it still
    /// does, and is the process that was seen there before.
    fn fenced(&self, known: &KnownTape) -> Result<Box<dyn Hold>, Refusal> {
        let process = known.process.ok_or(Refusal::NoPid)?;
        let fence = self.node.fence(process)?;
        if known.file().writer() != Writer::Alive(Some(process.pid)) {
            return Err(Refusal::OtherHolder);
        }
        match known.holder(process.pid, self.node.as_ref()) {
            Holder::Writer(now) if now == process => Ok(fence),
            Holder::Writer(_) | Holder::Other => Err(Refusal::OtherHolder),
            Holder::Unproved => Err(Refusal::Ended),
        }
    }

    fn begin(&mut self, key: &RemedyKey, prepared: Prepared) -> Result<(), Refusal> {
        let armed = match prepared {
            Prepared::Signal(fence, signal) => {
                fence.send(signal).map_err(Refusal::Send)?;
                let (call, tape) = (&key.call_id, &key.tape_id);
                tracing::info!(?call, ?tape, "rank was sent {}", signal.as_str());
                let answer = answer(Outcome::Signalled, 0, signal.as_str());
                self.remedies.end(key.clone(), Ask::Signal(signal), answer);
                return Ok(());
            }
            Prepared::Write(tape, instruction) => {
                let known = self.tapes.get(tape).ok_or(Refusal::NoTape)?;
                let written = known.file().write(&known.path, header::MAILBOX, instruction.word());
                written.map_err(Refusal::Write)?;
                armed(instruction)
            }
        };
        self.remedies.begin(key.clone(), armed);
        Ok(())
    }

    /// Withdraws an instruction, if the rank has not begun it. Where the rank stays armed, no
    /// refusal is sent, because a refusal is final: the outcome is reported.
    fn withdraw(&mut self, key: RemedyKey) {
        let is_known = self.remedies.asked(&key).is_some();
        let Some((_, known)) = self.tapes.find(&key.tape_id) else {
            return self.leave(&key, is_known, &Refusal::NoTape);
        };
        let armed = match self.remedies.on(known.tape_id()) {
            Some((on, armed)) if on.call_id == key.call_id => Some(armed),
            // What an agent before this one wrote may be of this call.
            None if !is_known => unreplied(known),
            Some(_) | None => None,
        };
        let Some(armed) = armed else {
            return self.leave(&key, is_known, &Refusal::NothingToWithdraw);
        };
        if let Err(error) = known.file().write(&known.path, header::MAILBOX, 0) {
            let (call, tape) = (&key.call_id, &key.tape_id);
            tracing::warn!(?call, ?tape, "rank stays armed: {}", Refusal::Write(error));
            return self.remedies.begin(key, armed);
        }
        // The rank writes its steps, then reads the word again before it begins.
        fence(Ordering::SeqCst);
        match ended(known, Armed { is_withdrawn: true, ..armed }) {
            Some(answer) => self.remedies.end_armed(key, armed, answer),
            None => self.remedies.doubt(key, armed),
        }
    }

    /// Leaves a call that cannot be withdrawn: repeats the answer of a known call, else refuses.
    fn leave(&mut self, key: &RemedyKey, is_known: bool, why: &Refusal) {
        match is_known {
            true => self.remedies.repeat(key),
            false => self.refuse_one(key, why),
        }
    }

    /// Polls the tapes for the outcomes of remedies under way.
    pub(super) fn watch_remedies(&mut self) {
        let mut over = Vec::new();
        for (key, armed) in self.remedies.armed() {
            let found = self.tapes.find(&key.tape_id);
            let answer = match found {
                Some((_, known)) => ended(known, armed),
                None => Some(answer(Outcome::Failed, 0, "its tape is gone")),
            };
            if let Some(answer) = answer {
                over.push((key.clone(), armed, answer));
            }
        }
        for (key, armed, answer) in over {
            let RemedyKey { call_id: call, tape_id: tape } = &key;
            let outcome = answer.outcome.as_str();
            tracing::info!(?call, ?tape, outcome, step = answer.step, "remedy is over");
            self.remedies.end_armed(key, armed, answer);
        }
    }

    /// Sends the answers that are not sent yet.
    pub(super) fn send_remedies(&mut self) {
        for (key, answer) in self.remedies.unsent() {
            if self.send(wire::remedy_answer(&key.call_id, &key.tape_id, &answer)) {
                self.remedies.sent(&key);
            }
        }
    }
}

/// The instruction on a tape to which its rank has not replied.
fn unreplied(known: &KnownTape) -> Option<Armed> {
    let instruction = known.tape.instruction()?;
    let number = instruction.number();
    let is_open = known.tape.reply().is_none_or(|(reply, _)| reply.number() != number);
    is_open.then(|| armed(instruction))
}

fn armed(instruction: Instruction) -> Armed {
    Armed {
        number: instruction.number(),
        remedy: instruction.remedy(),
        step: instruction.step(),
        is_withdrawn: false,
    }
}

/// The final answer of an instruction; none while the rank may still carry it out.
fn ended(known: &KnownTape, armed: Armed) -> Option<Answer> {
    // In this order: a rank that has begun replies before it ends a further step.
    let is_dead = known.is_cut || known.life.death().is_some();
    let finished = known.tape.finished();
    if let Some((reply, took_ns)) = known.tape.reply().filter(|(of, _)| of.number() == armed.number)
    {
        let (outcome, detail) = match reply.status() {
            ReplyStatus::Done => (Outcome::Done, ""),
            ReplyStatus::Late => (Outcome::Late, ""),
            ReplyStatus::Failed => (Outcome::Failed, "the rank could not do it"),
            ReplyStatus::NotOffered => (Outcome::Refused, "the job offers it no more"),
        };
        return Some(Answer { took_ns, ..answer(outcome, reply.step(), detail) });
    }
    if armed.is_withdrawn && finished != armed.step {
        return Some(answer(Outcome::Withdrawn, finished, ""));
    }
    if is_dead {
        return Some(answer(Outcome::Failed, finished, "its process ended before"));
    }
    let is_passed = finished >= armed.step.saturating_add(STEPS_UNTIL_GIVEN_UP);
    is_passed.then(|| answer(Outcome::Failed, finished, "the rank did not read the instruction"))
}

fn answer(outcome: Outcome, step: u64, detail: &str) -> Answer {
    Answer { outcome, step, took_ns: 0, detail: detail.to_string() }
}
