//! The machine behind [`Captures`].

use alloc::collections::VecDeque;
use alloc::string::String;

use super::{Action, Answer, CaptureId, Limits, Manifest, Reason, Refusal};

/// The captures of one attempt at one job.
#[derive(Debug)]
pub struct Captures {
    #[allow(dead_code)]
    limits: Limits,
    actions: VecDeque<Action>,
}

impl Captures {
    /// A machine that knows no rank. `job` and `attempt` are written into the manifests.
    pub fn new(_job: &str, _attempt: u32, limits: Limits) -> Self {
        Self { limits, actions: VecDeque::new() }
    }

    /// Please take a capture named `id`, at `step` or at the newest step that all ranks share.
    ///
    /// Returns the name of the capture that will serve the request: one already in flight when it
    /// will do.
    pub fn request(
        &mut self,
        _now_ns: u64,
        _id: CaptureId,
        _reason: Reason,
        _step: Option<u64>,
    ) -> Result<CaptureId, Refusal> {
        Err(Refusal::NoRanks)
    }

    /// A tape of a rank was found on a node. A newer tape of the same rank takes its place.
    pub fn rank_up(&mut self, _now_ns: u64, _node: &str, _rank: u32, _tape_id: &str) {}

    /// A rank finished `step`; its tape covers the steps from `oldest_step` on (0: none).
    pub fn rank_progress(&mut self, _now_ns: u64, _tape_id: &str, _step: u64, _oldest_step: u64) {}

    /// A rank's process is gone; `step` is its last. Its tape is still asked.
    pub fn rank_down(&mut self, _now_ns: u64, _tape_id: &str, _step: u64) {}

    /// A node's agent (re)connected: what it was asked and did not answer is asked again.
    pub fn agent_back(&mut self, _now_ns: u64, _node: &str) {}

    /// The connection to a node's agent broke.
    pub fn agent_lost(&mut self, _now_ns: u64, _node: &str) {}

    /// An agent said what became of one tape.
    pub fn answer(&mut self, _now_ns: u64, _capture: &CaptureId, _tape_id: &str, _answer: Answer) {}

    /// May this body be stored? False for captures that are closed and tapes that are not in it.
    pub fn accepts_body(&self, _capture: &CaptureId, _tape_id: &str) -> bool {
        false
    }

    /// The body of one part is stored and synced.
    pub fn body_stored(
        &mut self,
        _now_ns: u64,
        _capture: &CaptureId,
        _tape_id: &str,
        _bytes: u64,
        _hash: [u8; 32],
    ) {
    }

    /// The clock moved on. Harmless if early.
    pub fn handle_timeout(&mut self, _now_ns: u64) {}

    /// What the shell must do next; call until none.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call [`Self::handle_timeout`], on the clock of `now_ns`.
    pub fn poll_timeout(&self) -> Option<u64> {
        None
    }

    /// The capture in flight as it stands, its unanswered ranks as unreachable.
    pub fn in_flight(&self) -> Option<Manifest> {
        None
    }

    /// Ends the capture in flight now with what it has: the shell is going away.
    pub fn close(&mut self, _now_ns: u64) {}

    /// Messages that were dropped because they were stale, unknown or said twice.
    pub fn dropped(&self) -> u64 {
        0
    }
}

#[allow(dead_code)]
type Name = String;
