//! A job that stands still: no rank finishes a step, as where one rank leaves out a collective in
//! which the others wait.
//!
//! The detector compares steps, so a job without new steps shows it nothing. Here the time since
//! the last step counts. A job may pause: it saves, evaluates or compiles. So it stands still only
//! after twice the longest pause that it has ended by itself, and later where a rank still
//! allocates, and sooner where a rank is behind others of its role.
//!
//! The incident is about all ranks, and names the rank that is behind, as far as steps tell it.
//! The collectives in its capture tell it better.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::attempt::Attempt;
use super::machine::{Incidents, Now};
use super::record::{ClosedReason, Incident};
use super::tracked::Tracked;
use crate::detector::{Growth, GrowthKey, Layer, Scope};
use crate::paging::Urgency;

const SECOND_NS: u64 = 1_000_000_000;

/// Ranks stand still when they have finished no step for this many usual ones.
pub const STILL_STEPS: u64 = 8;

/// A rank is behind when its peers are this many steps ahead: reports of two nodes are up to an
/// interval apart.
pub const AHEAD_STEPS: u64 = 2;

/// A job in which a rank is behind stands still after no less than this, in nanoseconds.
const BEHIND_NS_MIN: u64 = 20 * SECOND_NS;

/// Any other job stands still after no less than this, in nanoseconds: it may save a checkpoint.
const STILL_NS_MIN: u64 = 60 * SECOND_NS;

/// A job in which a rank still allocates stands still after no less than this, in nanoseconds: it
/// may evaluate.
const BUSY_NS_MIN: u64 = 300 * SECOND_NS;

/// A job pauses for up to this many times as long as before.
const PAUSE_TIMES: u64 = 2;

/// A pause is remembered as this long at most, in nanoseconds: an evaluation may take 2 hours.
const PAUSE_NS_MAX: u64 = 7_200 * SECOND_NS;

/// A standstill of a job that has not paused before is certain after no less than this, in
/// nanoseconds: it may save its first checkpoint. NCCL ends it after 10 minutes.
const FIRST_NS_MIN: u64 = 480 * SECOND_NS;

/// A standstill is certain, and may page, after this many times as long as it took to be one.
const CERTAIN_TIMES: u64 = 3;

/// The usual step of a job that is known to stand still, in nanoseconds, where a restart of the
/// coordinator forgot it: the standstill is certain after no less than [`FIRST_NS_MIN`].
const UNKNOWN_STEP_NS: u64 = FIRST_NS_MIN / STILL_STEPS / CERTAIN_TIMES;

/// How long an attempt went without a finished step before it went on by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
pub struct Pauses {
    #[serde(skip)]
    moved_ns: Option<u64>,
    longest_ns: u64,
}

impl Pauses {
    /// A rank has finished a step, as was heard at this monotonic time; before that, it was heard
    /// of at `heard_ns`. True where the pause before is the longest, and is to be stored.
    pub fn moved(&mut self, now_ns: u64, heard_ns: u64) -> bool {
        // What happened while nothing was heard of the rank is not known.
        let moved_ns = self.moved_ns.replace(now_ns);
        let pause_ns = moved_ns.map_or(0, |moved_ns| heard_ns.saturating_sub(moved_ns));
        let longest_ns = self.longest_ns.max(pause_ns.min(PAUSE_NS_MAX));
        let is_longer = core::mem::replace(&mut self.longest_ns, longest_ns) < longest_ns;
        is_longer && self.has_paused()
    }

    /// The agent of a rank is connected again: what happened before is not known.
    pub fn reconnected(&mut self, now_ns: u64) {
        self.moved_ns = self.moved_ns.map(|_| now_ns);
    }

    /// Has no rank finished a step for so long that the job may stand still?
    pub fn is_pause(&self, now_ns: u64) -> bool {
        self.moved_ns.is_none_or(|moved_ns| now_ns.saturating_sub(moved_ns) >= BEHIND_NS_MIN)
    }

    /// Is a pause of the attempt known?
    fn has_paused(&self) -> bool {
        self.longest_ns >= BEHIND_NS_MIN
    }
}

/// How far one rank is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Global rank.
    pub rank: u32,
    /// Its device.
    pub device: u8,
    /// Which ranks do the same; none where it is not known.
    pub role: Option<u64>,
    /// Steps that it has finished.
    pub step: u64,
    /// Time since the last of them was seen, in nanoseconds.
    pub stood_ns: u64,
    /// Time since it was last seen to have allocated or freed anything, in nanoseconds.
    pub quiet_ns: u64,
}

/// The ranks of an attempt that live, count steps and are heard.
#[derive(Clone, Debug, Default)]
pub struct Ranks {
    /// Each of them.
    pub heard: Vec<Progress>,
    /// Ranks of the attempt, those that are not heard included.
    pub world: u32,
    /// The usual time of a step, in nanoseconds; none before it is known.
    pub step_time_ns: Option<u64>,
    /// Pauses of the attempt.
    pub pauses: Pauses,
}

impl Ranks {
    /// Newest step that any of them has finished.
    fn furthest(&self) -> u64 {
        self.heard.iter().map(|rank| rank.step).max().unwrap_or(0)
    }

    /// The rank that is furthest behind the others of its role, and by how many steps.
    fn behind(&self) -> Option<(&Progress, u64)> {
        let mut furthest: BTreeMap<Option<u64>, u64> = BTreeMap::new();
        for rank in &self.heard {
            let step = furthest.entry(rank.role).or_default();
            *step = rank.step.max(*step);
        }
        let lag = |rank: &Progress| furthest.get(&rank.role).map_or(0, |step| step - rank.step);
        let lags = self.heard.iter().map(|rank| (rank, lag(rank)));
        // Of equals the first.
        lags.rev().max_by_key(|&(_, lag)| lag)
    }

    /// The standstill of these ranks; none while the job goes on, or may pause.
    fn standstill(&self, wall_ns: i64, known: Option<&Incident>) -> Option<Growth> {
        let (of, lag) = self.behind()?;
        let [still_in_ns, sure_in_ns] = self.due_in_ns(wall_ns, known)?;
        if still_in_ns > 0 {
            return None;
        }
        let layer = Layer::Progress;
        let key = GrowthKey { rank: of.rank, device: of.device, layer, scope: Scope::AllRanks };
        let peers = self.world.saturating_sub(1);
        let standstill = Growth::still(&key, (of.step, self.furthest()), lag, peers);
        let ranks = u32::try_from(self.heard.len()).unwrap_or(u32::MAX);
        Some(Growth { ranks, is_sure: sure_in_ns == 0, ..standstill })
    }

    /// Time in nanoseconds from this Unix time until an open standstill of these ranks that is a
    /// notice is certain and pages; none where it is no such incident.
    pub fn pages_in_ns(&self, wall_ns: i64, of: &Incident) -> Option<u64> {
        let is_notice = of.is_open() && of.urgency == Urgency::Notice && of.reported_in.is_none();
        let will_be_sure = of.growth.is_standstill() && !of.growth.is_sure;
        let diagnosis = of.diagnosis.as_ref().filter(|_| is_notice && will_be_sure)?;
        let [_, sure_in_ns] = self.due_in_ns(wall_ns, Some(of)).filter(|_| diagnosis.pages())?;
        Some(sure_in_ns)
    }

    /// Times in nanoseconds until ranks that go on standing are a standstill, and until that is
    /// certain and may page; none for one rank, and where the time of a step is not known of a job
    /// without a `known` standstill. A known one has lasted since it was found, also where a new
    /// coordinator has not seen the ranks for as long; they have [`BEHIND_NS_MIN`] to move.
    pub(super) fn due_in_ns(&self, wall_ns: i64, known: Option<&Incident>) -> Option<[u64; 2]> {
        let (_, lag) = self.behind().filter(|_| self.heard.len() > 1)?;
        let step_time_ns = self.step_time_ns.or(known.map(|_| UNKNOWN_STEP_NS))?;
        let seen_ns = self.heard.iter().map(|rank| rank.stood_ns).min()?;
        // One that was about another finding before was opened earlier.
        let begun = known.filter(|of| of.former.is_empty());
        let lasted_ns = begun.map_or(0, |of| wall_ns.saturating_sub(of.opened_wall_ns).max(0));
        let stood_ns = seen_ns.max(lasted_ns.unsigned_abs());
        let moves_in_ns = begun.map_or(0, |_| BEHIND_NS_MIN.saturating_sub(seen_ns));
        let quiet_ns = self.heard.iter().map(|rank| rank.quiet_ns).min()?;
        let pause_ns = self.pauses.longest_ns.saturating_mul(PAUSE_TIMES);
        let least_ns = match (lag >= AHEAD_STEPS, quiet_ns >= STILL_NS_MIN) {
            (true, _) => BEHIND_NS_MIN,
            (false, true) => STILL_NS_MIN,
            (false, false) => BUSY_NS_MIN,
        };
        let limit_ns = least_ns.max(pause_ns).max(step_time_ns.saturating_mul(STILL_STEPS));
        let first_ns = if self.pauses.has_paused() { 0 } else { FIRST_NS_MIN };
        let sure_ns = limit_ns.saturating_mul(CERTAIN_TIMES).max(first_ns);
        let due = |due_ns: u64| due_ns.saturating_sub(stood_ns).max(moves_in_ns);
        Some([limit_ns, sure_ns].map(due))
    }

    /// Has the job gone on since this standstill of it was found?
    fn went_on(&self, known: &Growth) -> bool {
        let of_rank = self.heard.iter().find(|rank| rank.rank == known.rank);
        let is_further = of_rank.is_some_and(|rank| rank.step > known.onset_step);
        is_further || self.furthest() > known.last_step
    }
}

impl GrowthKey {
    /// Is this a standstill of the whole job, and no growth?
    pub fn is_standstill(&self) -> bool {
        self.layer == Layer::Progress && self.scope == Scope::AllRanks
    }
}

impl Growth {
    /// As [`GrowthKey::is_standstill`].
    pub fn is_standstill(&self) -> bool {
        self.key().is_standstill()
    }
}

impl Incidents {
    /// Opens an incident where an attempt stands still, and closes it when the attempt goes on.
    /// A rank that has died explains why its peers wait, and has an incident of its own.
    pub fn scan_progress(
        &mut self,
        now: Now,
        attempt: &impl Attempt,
        ranks: &Ranks,
        name: impl FnOnce() -> String,
    ) {
        let serial = attempt.serial();
        let known = self.open_of(serial).find(|known| known.incident.growth.is_standstill());
        let known = known.map(Tracked::incident);
        let found = ranks.standstill(now.wall_ns, known);
        let known = known.map(|of| (of.id.clone(), of.growth));
        if let Some((id, _)) = known.as_ref().filter(|(_, growth)| ranks.went_on(growth)) {
            let at_step = ranks.furthest();
            return self.close(now, id, ClosedReason::WentOn { at_step }, attempt.has_ended());
        }
        let Some(found) = found else { return };
        match known {
            Some((_, known)) if known.is_sure || !found.is_sure => {}
            Some((id, known)) => {
                self.grew(now, attempt, &id, &Growth { is_sure: true, ..known });
            }
            None if self.has_death(serial) => {}
            None => match self.continued(now, serial, &found) {
                Some(id) => self.grew(now, attempt, &id, &found),
                None => self.open(now, attempt, &found, None, name),
            },
        }
    }

    /// Attempts with an open incident about a standstill.
    pub fn standing(&self) -> impl Iterator<Item = u32> {
        let open = self.iter().filter(|known| known.incident.is_open());
        open.filter(|known| known.incident.growth.is_standstill()).map(|of| of.incident.serial)
    }
}
