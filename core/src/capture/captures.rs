//! The machine behind [`Captures`]: its view of the ranks, and the one capture in flight.

use crate::limits::TAPES_PER_RANK_MAX;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use crate::capture::budget::Spent;
use crate::capture::choose::{self, Coverage};
use crate::capture::flight::Flight;
use crate::capture::manifest::{Action, CaptureId, Manifest, Part};
use crate::capture::reason::{Reason, Urgency};
use crate::capture::request::{Limits, Refusal};
use crate::tape::layout::Clock;

/// An event that a capture in flight does not show asks again after this time, in nanoseconds.
const END_WAIT_NS: u64 = 500_000_000;

/// The captures of one attempt at one job.
///
/// Getters: [`in_flight`](Self::in_flight), [`accepts_snapshot`](Self::accepts_snapshot),
/// [`dropped`](Self::dropped). What happened: `rank_up`, `rank_progress`, `rank_down`,
/// `agent_back`, `agent_lost`, `answer`, `snapshot_stored`, `handle_timeout`. Commands:
/// [`request`](Self::request), [`resume`](Self::resume), [`close`](Self::close). After any of the
/// last two kinds call [`poll`](Self::poll) until it is empty, then look at
/// [`poll_timeout`](Self::poll_timeout).
#[derive(Debug)]
pub struct Captures {
    job: String,
    attempt: u32,
    limits: Limits,
    /// Tapes of each rank, the last announced one at the end.
    ranks: BTreeMap<u32, Vec<Tape>>,
    lost_nodes: BTreeSet<String>,
    flight: Option<Flight>,
    spent: Spent,
    /// That of captures of one rank alone.
    spent_alone: Spent,
    actions: VecDeque<Action>,
    dropped: u64,
}

/// A tape as its agent reports it.
#[derive(Clone, Debug)]
struct Tape {
    id: String,
    node: String,
    step: u64,
    oldest_step: u64,
    alive: bool,
    clock: Clock,
}

impl Captures {
    /// A machine that knows no rank. `job` and `attempt` are written into the manifests.
    pub fn new(job: &str, attempt: u32, limits: Limits) -> Self {
        Self {
            job: job.to_string(),
            attempt,
            limits,
            ranks: BTreeMap::new(),
            lost_nodes: BTreeSet::new(),
            flight: None,
            spent: Spent::default(),
            spent_alone: Spent::default(),
            actions: VecDeque::new(),
            dropped: 0,
        }
    }

    /// Please take a capture named `id`, at `step` or at the newest step that all ranks share.
    ///
    /// Returns the name of the capture that will serve the request: the one already in flight
    /// when it will do. It will not do for a request that failed or a death, unless it was asked
    /// for by something as grave.
    pub fn request(
        &mut self,
        now_ns: u64,
        id: CaptureId,
        reason: Reason,
        step: Option<u64>,
    ) -> Result<CaptureId, Refusal> {
        self.begin(now_ns, id, reason, step, None)
    }

    /// As [`request`](Self::request), of this rank alone, which proves nothing: the capture takes
    /// no time and no bytes of the others, and gives way to them.
    pub fn request_alone(
        &mut self,
        now_ns: u64,
        id: CaptureId,
        reason: Reason,
        rank: u32,
    ) -> Result<CaptureId, Refusal> {
        self.begin(now_ns, id, reason, None, Some(rank))
    }

    fn begin(
        &mut self,
        now_ns: u64,
        id: CaptureId,
        reason: Reason,
        step: Option<u64>,
        alone: Option<u32>,
    ) -> Result<CaptureId, Refusal> {
        self.handle_timeout(now_ns);
        let gives_way = |flight: &&Flight| flight.is_alone && alone.is_none();
        if let Some(flight) = self.flight.as_ref().filter(|flight| !gives_way(flight)) {
            if flight.is_alone {
                return Err(Refusal::TooSoon { wait_ns: END_WAIT_NS });
            }
            // The step of the capture in flight is older than this event.
            if reason.is_end() && reason.gravity() > flight.reason().gravity() {
                return Err(Refusal::TooSoon { wait_ns: END_WAIT_NS });
            }
            return if step.is_none_or(|step| step == flight.step()) {
                Ok(flight.id().clone())
            } else {
                Err(Refusal::Busy { id: flight.id().clone(), step: flight.step() })
            };
        }
        let spent = if alone.is_some() { self.spent_alone } else { self.spent };
        let mut parts = self.comparable(&reason);
        parts.retain(|(rank, _)| alone.is_none_or(|alone| *rank == alone));
        if parts.is_empty() {
            return Err(Refusal::NoRanks);
        }
        let coverage: Vec<Coverage> = parts.iter().map(|(_, tape)| tape.coverage()).collect();
        let waited_ns = spent.last_ns.map(|last_ns| now_ns.saturating_sub(last_ns));
        if let Some(waited_ns) = waited_ns
            && waited_ns < self.limits.interval_ns_min
            && reason.urgency() == Urgency::Usual
        {
            return Err(Refusal::TooSoon { wait_ns: self.limits.interval_ns_min - waited_ns });
        }
        spent.budget.check(now_ns, &reason, &self.limits)?;
        let step = match step {
            Some(step) => choose::check(step, &coverage)?,
            // Turns of two ranks are not the same work: each shows its present state.
            None if parts.len() > 1 && parts.iter().any(|(_, tape)| tape.turns()) => 0,
            None => choose::newest_common(&coverage),
        };
        let before_step = choose::before(step, &coverage, self.limits.before_steps);
        let deadline_ns = now_ns.saturating_add(self.limits.deadline_ns);
        let is_routine = reason == Reason::Baseline;
        let mut flight = Flight::new(id.clone(), reason, step, before_step, now_ns, deadline_ns);
        flight.is_alone = alone.is_some();
        for (rank, tape) in parts {
            flight.add(rank, &tape.id, &tape.node);
        }
        self.close(now_ns);
        // A routine capture keeps no other one waiting: growth is explained while it is fresh.
        if !is_routine {
            self.spent_of(alone.is_some()).last_ns = Some(now_ns);
        }
        self.flight = Some(flight);
        self.ask_all(now_ns);
        Ok(id)
    }

    /// Takes up a capture that was in flight when the shell went away, as
    /// [`in_flight`](Self::in_flight) had it. Parts that were stored stay; the others are asked
    /// for again when their agents are back. Agents need a moment for that, so that the deadline
    /// moves, by as much as half of it, but never beyond twice the first one: a shell that dies
    /// again and again must not keep a capture open forever. Does nothing while another is in
    /// flight.
    #[must_use = "a capture that is not taken up has to be closed by the shell"]
    pub fn resume(&mut self, now_ns: u64, manifest: &Manifest) -> bool {
        if self.flight.is_some() {
            self.dropped += 1;
            return false;
        }
        let limit_ns = self.limits.deadline_ns;
        let first_ns = manifest.requested_ns.saturating_add(limit_ns);
        let moved_ns = now_ns.saturating_add(limit_ns / 2).min(first_ns.saturating_add(limit_ns));
        self.flight = Some(Flight::resume(manifest, first_ns.max(moved_ns)));
        self.spent_of(manifest.is_alone).last_ns = Some(now_ns);
        self.ask_all(now_ns);
        self.close_if_done(now_ns);
        self.handle_timeout(now_ns);
        true
    }

    /// Counts the time and the stored bytes of a capture that was closed before the shell went
    /// away.
    pub fn closed_before(&mut self, manifest: &Manifest) {
        let limits = self.limits.clone();
        let spent = self.spent_of(manifest.is_alone);
        spent.budget.spend(manifest.closed_ns, manifest, &limits);
        if manifest.reason != Reason::Baseline {
            spent.last_ns = spent.last_ns.max(Some(manifest.requested_ns));
        }
    }

    /// Continues from an earlier attempt: its stored bytes and capture times still count.
    pub fn continue_from(&mut self, earlier: &Self) {
        (self.spent, self.spent_alone) = (earlier.spent, earlier.spent_alone);
    }

    /// A tape of a rank was found on a node. A newer tape of the same rank takes its place.
    pub fn rank_up(&mut self, (rank, tape_id): (u32, &str), node: &str) {
        if let Some(tape) = self.tape((rank, tape_id)) {
            // Agents repeat all announcements after a reconnect. A dead process stays dead.
            tape.node = node.to_string();
            return;
        }
        if !self.ranks.contains_key(&rank) && self.ranks.len() >= self.limits.ranks_max {
            self.dropped += 1;
            return;
        }
        let (step, oldest_step, clock) = (0, 0, Clock::Steps);
        let (id, node) = (tape_id.to_string(), node.to_string());
        let of_rank = self.ranks.entry(rank).or_default();
        of_rank.push(Tape { id, node, step, oldest_step, alive: true, clock });
        if of_rank.len() > TAPES_PER_RANK_MAX {
            of_rank.remove(0);
        }
    }

    /// By its rank: ids of tapes are long, and much alike.
    fn tape(&mut self, (rank, tape_id): (u32, &str)) -> Option<&mut Tape> {
        self.ranks.get_mut(&rank)?.iter_mut().rev().find(|of| of.id == tape_id)
    }

    /// A rank finished `step`; its tape covers the steps from `oldest_step` on (0: none).
    pub fn rank_progress(&mut self, (rank, tape_id): (u32, &str), step: u64, oldest_step: u64) {
        match self.tape((rank, tape_id)) {
            // Reports may come out of order; a tape only moves forward.
            Some(tape) => {
                tape.step = tape.step.max(step);
                tape.oldest_step = tape.oldest_step.max(oldest_step);
            }
            None => self.dropped += 1,
        }
    }

    /// Sets the clock of a tape. A tape that changes from turns to steps counts its steps from 1.
    pub fn rank_clock(&mut self, (rank, tape_id): (u32, &str), clock: Clock) {
        let Some(tape) = self.tape((rank, tape_id)) else { return };
        if core::mem::replace(&mut tape.clock, clock) != clock {
            (tape.step, tape.oldest_step) = (0, 0);
        }
    }

    /// Notes that a rank reported as gone is alive after all.
    pub fn rank_back(&mut self, (rank, tape_id): (u32, &str)) {
        match self.tape((rank, tape_id)) {
            Some(tape) => tape.alive = true,
            None => self.dropped += 1,
        }
    }

    /// A rank's process is gone; `step` is its last. Its tape is still asked.
    pub fn rank_down(&mut self, (rank, tape_id): (u32, &str), step: u64) {
        match self.tape((rank, tape_id)) {
            Some(tape) => {
                tape.alive = false;
                tape.step = tape.step.max(step);
            }
            None => self.dropped += 1,
        }
    }

    /// A node's agent (re)connected: its unanswered requests are sent again.
    pub fn agent_back(&mut self, now_ns: u64, node: &str) {
        self.lost_nodes.remove(node);
        if let Some(flight) = &mut self.flight {
            self.actions.extend(flight.ask(now_ns, node));
        }
    }

    /// The connection to a node's agent broke. Its parts stay open until the deadline: agents
    /// come back.
    pub fn agent_lost(&mut self, _now_ns: u64, node: &str) {
        // Each node has a rank. One without tapes is asked for nothing.
        if self.lost_nodes.len() < self.limits.ranks_max {
            self.lost_nodes.insert(node.to_string());
        }
    }

    /// Takes an agent's answer about one tape.
    pub fn answer(&mut self, now_ns: u64, answer: Part) {
        self.handle_timeout(now_ns);
        let capture = CaptureId(answer.capture.clone());
        let taken = self.flight_named(&capture).is_some_and(|flight| flight.answer(answer));
        self.count(taken);
        self.close_if_done(now_ns);
    }

    /// May this snapshot be stored? False for captures that are closed, for tapes outside the
    /// capture and for parts that are stored already.
    pub fn accepts_snapshot(&self, capture: &CaptureId, tape_id: &str) -> bool {
        self.flight
            .as_ref()
            .is_some_and(|flight| flight.id() == capture && flight.wants_snapshot(tape_id))
    }

    /// Notes that the snapshot of one part came and could not be kept. If it does not come again in
    /// time, this is the part's reason, and the agent is not blamed.
    pub fn snapshot_failed(&mut self, capture: &CaptureId, tape_id: &str, why: &str) {
        if let Some(flight) = self.flight_named(capture) {
            flight.snapshot_failed(tape_id, why);
        }
    }

    /// The snapshot of one part is stored and synced. It may come before the answer.
    pub fn snapshot_stored(
        &mut self,
        now_ns: u64,
        capture: &CaptureId,
        tape_id: &str,
        bytes: u64,
        hash: [u8; 32],
    ) {
        self.handle_timeout(now_ns);
        let taken = self
            .flight_named(capture)
            .is_some_and(|flight| flight.snapshot_stored(tape_id, bytes, hash));
        self.count(taken);
        self.close_if_done(now_ns);
    }

    /// The oldest step whose end a tape still shows; 0 where none does.
    pub fn oldest_step(&self) -> u64 {
        let tapes = self.comparable(&Reason::Manual).into_iter();
        tapes.map(|(_, tape)| tape.oldest_step).filter(|&step| step > 0).min().unwrap_or(0)
    }

    /// The clock moved on. Harmless if early.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        let Some(flight) = &mut self.flight else { return };
        if now_ns >= flight.deadline_ns() {
            self.close(now_ns);
        } else if now_ns >= flight.retry_ns() {
            flight.retry_at(now_ns.saturating_add(self.limits.retry_ns));
            self.actions.extend(flight.ask_all(now_ns, &self.lost_nodes));
        }
    }

    /// The next action for the shell; call until none.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Time of the next call of [`Self::handle_timeout`], on the clock of `now_ns`.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.flight.as_ref().map(|flight| flight.deadline_ns().min(flight.retry_ns()))
    }

    /// The capture in flight as it stands.
    pub fn in_flight(&self) -> Option<Manifest> {
        let flight = self.flight.as_ref()?;
        Some(flight.manifest(&self.job, self.attempt, None))
    }

    /// Ends the capture in flight now with its present parts. All captures end here.
    pub fn close(&mut self, now_ns: u64) {
        if let Some(flight) = self.flight.take() {
            let manifest = flight.manifest(&self.job, self.attempt, Some(now_ns));
            let limits = self.limits.clone();
            self.spent_of(flight.is_alone).budget.spend(now_ns, &manifest, &limits);
            self.actions.push_back(Action::Close(manifest));
        }
    }

    fn spent_of(&mut self, is_alone: bool) -> &mut Spent {
        if is_alone { &mut self.spent_alone } else { &mut self.spent }
    }

    /// Number of messages dropped because they were stale, unknown or repeated.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The current tape of each rank: the last announced living one, else the last announced.
    fn current(&self) -> impl Iterator<Item = (u32, &Tape)> {
        self.ranks.iter().filter_map(|(&rank, of_rank)| {
            let living = of_rank.iter().rev().find(|tape| tape.alive);
            Some((rank, living.or(of_rank.last())?))
        })
    }

    /// The ranks whose states can be compared in a capture for this reason: ranks that count steps.
    /// If all ranks count turns, all of them. If the reason is about a rank that counts turns, only
    /// that rank.
    fn comparable(&self, reason: &Reason) -> Vec<(u32, &Tape)> {
        let of_rank = |rank: u32| self.current().find(|(of, _)| *of == rank);
        let own = reason.rank().and_then(of_rank).filter(|(_, tape)| tape.turns());
        if let Some(own) = own {
            return vec![own];
        }
        let all: Vec<_> = self.current().collect();
        let of_steps = all.iter().copied().filter(|(_, tape)| !tape.turns());
        let of_steps: Vec<_> = of_steps.collect();
        if of_steps.is_empty() { all } else { of_steps }
    }

    /// Asks every node whose agent is there; the others are asked when they are back.
    fn ask_all(&mut self, now_ns: u64) {
        if let Some(flight) = &mut self.flight {
            flight.retry_at(now_ns.saturating_add(self.limits.retry_ns));
            self.actions.extend(flight.ask_all(now_ns, &self.lost_nodes));
        }
    }

    /// The gate for everything that names a capture: stale names end here.
    fn flight_named(&mut self, capture: &CaptureId) -> Option<&mut Flight> {
        self.flight.as_mut().filter(|flight| flight.id() == capture)
    }

    fn count(&mut self, taken: bool) {
        self.dropped += u64::from(!taken);
    }

    fn close_if_done(&mut self, now_ns: u64) {
        if self.flight.as_ref().is_some_and(Flight::is_done) {
            self.close(now_ns);
        }
    }
}

impl Tape {
    fn turns(&self) -> bool {
        self.clock == Clock::Turns
    }

    fn coverage(&self) -> Coverage {
        Coverage { oldest_step: self.oldest_step, step: self.step, alive: self.alive }
    }
}
