//! Agent-initiated captures: which ranks need one while no coordinator is connected, and when.
//!
//! Two reasons: a request of a rank failed for good, or a rank was killed. The state is taken
//! shortly afterwards, so that it shows the aftermath, and only if there is still no coordinator. A
//! connected coordinator sees both by itself and asks for all ranks. Nothing here takes a capture
//! or keeps one.

use std::collections::BTreeMap;

use memtape_core::identity::ids;
use memtape_core::limits::{AGENT_CAPTURES_PER_USER_MAX, TAPES_PER_NODE_MAX};
use memtape_core::rates::Rates;

use crate::link::wire::AgentCaptureReason;
use crate::node::accounts::Account;
use crate::node::clock::Now;
use crate::tapes::death::Cause;
use crate::tapes::known::{KnownTape, Tapes};
use crate::tapes::quota::TapeKey;

/// Time between the reason and the capture.
const DELAY_NS: u64 = 1_000_000_000;

/// Least time between two captures of one tape for the same reason: a job that fails again and
/// again would otherwise be captured all the time. A process dies only once. The tapes of one user
/// have [`AGENT_CAPTURES_PER_USER_MAX`] captures at once, and as many in each such time.
const INTERVAL_NS: u64 = 30_000_000_000;

/// A capture that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Id of the capture.
    pub(crate) capture_id: String,
    /// The captured tape.
    pub(crate) tape: TapeKey,
    /// Why.
    pub(crate) reason: AgentCaptureReason,
    /// When the reason was seen.
    pub(crate) seen_wall_ns: i64,
    due_ns: u64,
}

/// The watcher.
#[derive(Debug)]
pub(crate) struct AgentInitiated {
    /// Failed requests of each rank at the last scan.
    ooms: BTreeMap<TapeKey, u64>,
    wanted: Vec<Wanted>,
    /// Captures in the making, by their names.
    making: BTreeMap<String, Wanted>,
    /// Time of the last capture wanted, by tape and reason.
    taken: BTreeMap<(String, AgentCaptureReason), u64>,
    /// Rate of captured tapes of each user.
    of_users: Rates<Account>,
}

impl Default for AgentInitiated {
    fn default() -> Self {
        let at_once = AGENT_CAPTURES_PER_USER_MAX as u64;
        Self {
            ooms: BTreeMap::new(),
            wanted: Vec::new(),
            making: BTreeMap::new(),
            taken: BTreeMap::new(),
            of_users: Rates::new(INTERVAL_NS / at_once, at_once, TAPES_PER_NODE_MAX),
        }
    }
}

impl AgentInitiated {
    /// Notes that an earlier agent process took a capture for this reason.
    pub(crate) fn note_taken(&mut self, now_ns: u64, tape_id: &str, reason: AgentCaptureReason) {
        self.taken.insert((tape_id.to_string(), reason), now_ns);
    }

    /// Scans all tapes. `is_news` tells for a dead rank whether its end is still unreported.
    pub(crate) fn watch(
        &mut self,
        now: Now,
        tapes: &Tapes,
        is_alone: bool,
        is_news: impl Fn(TapeKey, &KnownTape) -> bool,
    ) {
        for (key, known) in tapes.iter().filter(|(_, known)| !known.is_cut) {
            let ooms = known.tape.totals().iter().map(|totals| totals.ooms).sum();
            let before = self.ooms.insert(key, ooms);
            if is_alone && before.is_some_and(|before| ooms > before) {
                self.want(now, key, known, AgentCaptureReason::OutOfMemory);
            }
            let death = known.life.death();
            let has_died = death.is_some_and(|end| match end.cause() {
                Cause::Failed | Cause::Killed | Cause::OomKilled => true,
                Cause::Exited | Cause::Unknown => false,
            });
            if is_alone && has_died && is_news(key, known) {
                self.want(now, key, known, AgentCaptureReason::Death);
            }
        }
        self.ooms.retain(|key, _| tapes.get(*key).is_some());
        if !is_alone {
            self.cancel(tapes);
        }
    }

    /// Drops wanted captures that were not begun, because a coordinator is connected. The
    /// coordinator may leave before it learns of a death, which is then wanted again, so these
    /// captures do not count as taken. Captures that were begun still count: a second capture of a
    /// death is never wanted, and a second one of failed requests only when the first is old.
    fn cancel(&mut self, tapes: &Tapes) {
        for wanted in self.wanted.drain(..) {
            let Some(known) = tapes.get(wanted.tape) else { continue };
            self.taken.remove(&(known.tape_id().to_string(), wanted.reason));
        }
    }

    fn want(&mut self, now: Now, tape: TapeKey, known: &KnownTape, reason: AgentCaptureReason) {
        let key = (known.tape_id().to_string(), reason);
        let is_recent = self.taken.get(&key).is_some_and(|at_ns| {
            reason == AgentCaptureReason::Death || now.mono_ns.saturating_sub(*at_ns) < INTERVAL_NS
        });
        if is_recent {
            return;
        }
        // A death is wanted again at the next look, a failed request when the rank fails again.
        if self.of_users.take(now.mono_ns, known.account).is_err() {
            return;
        }
        let capture_id = name(now, known.tape_id(), reason);
        self.taken.insert(key, now.mono_ns);
        let due_ns = now.mono_ns.saturating_add(DELAY_NS);
        let seen_wall_ns = now.wall_ns;
        self.wanted.push(Wanted { capture_id, tape, reason, seen_wall_ns, due_ns });
    }

    /// Takes the due captures; they count as begun then.
    pub(crate) fn take_due(&mut self, now: Now) -> Vec<Wanted> {
        let (due, later) =
            self.wanted.drain(..).partition(|wanted: &Wanted| wanted.due_ns <= now.mono_ns);
        self.wanted = later;
        for wanted in &due {
            self.making.insert(wanted.capture_id.clone(), wanted.clone());
        }
        due
    }

    /// Ends the making of a capture.
    pub(crate) fn made(&mut self, capture_id: &str) -> Option<Wanted> {
        self.making.remove(capture_id)
    }

    /// When [`Self::take_due`] will have something; none when never.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.wanted.iter().map(|wanted| wanted.due_ns).min()
    }

    /// True while a capture of this tape is wanted or in the making.
    pub(crate) fn needs(&self, tape: TapeKey) -> bool {
        self.wanted.iter().chain(self.making.values()).any(|wanted| wanted.tape == tape)
    }

    /// Forgets a tape that is gone for good.
    pub(crate) fn forget(&mut self, tape_id: &str) {
        self.taken.retain(|(known, _), _| known != tape_id);
    }
}

/// A name that no other capture has.
fn name(now: Now, tape_id: &str, reason: AgentCaptureReason) -> String {
    let what = format!("{tape_id} {reason:?} {} {}", now.wall_ns, now.mono_ns);
    ids::agent_capture(now.wall_ns, &blake3::hash(what.as_bytes()).to_hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_never_a_coordinators_and_never_repeat() {
        let at = |tenths: i64| Now {
            wall_ns: 1_704_067_200_000_000_000 + tenths * 100_000_000,
            mono_ns: u64::try_from(tenths).expect("positive"),
        };
        let first = name(at(12_345), "a", AgentCaptureReason::Death);
        assert!(first.starts_with("cap-0000c1s-") && ids::is_agent_capture(&first), "{first}");
        assert_eq!(first.len(), 28);
        let others = [
            name(at(12_345), "b", AgentCaptureReason::Death),
            name(at(12_345), "a", AgentCaptureReason::OutOfMemory),
            name(at(12_346), "a", AgentCaptureReason::Death),
        ];
        assert!(others.iter().all(|other| *other != first), "{others:?}");
    }
}
