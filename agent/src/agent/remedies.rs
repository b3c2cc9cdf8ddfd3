//! Remedies that the coordinator asks for.

use memtape_core::action::remedy::{Answer, Outcome};
use memtape_core::limits::TAPES_PER_REQUEST_MAX;

use super::Agent;
use crate::link::wire::{self, RemedyRequest};

impl Agent {
    /// Answers a request for a remedy.
    pub(super) fn remedy(&mut self, request: &RemedyRequest) {
        for tape_id in request.tape_ids.iter().take(TAPES_PER_REQUEST_MAX) {
            let detail = "this agent carries out no remedies".to_string();
            let answer = Answer { outcome: Outcome::Refused, step: 0, took_ns: 0, detail };
            self.send(wire::remedy_answer(&request.action_id, tape_id, &answer));
        }
    }
}
