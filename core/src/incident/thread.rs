//! What people did about an incident: they acknowledge, silence and assign it, and write notes.
//!
//! What is kept of it, whether a silence holds ([`Silence::holds`]), and what it is outgrown by
//! ([`Silence::outgrown_by`]). Requests, their bounds and the end of a silence are in
//! `thread_request.rs`; `access.rs` decides who may change a thread, and the metrics of the
//! coordinator which alerts a silence stops.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::diagnosis::Class;
use crate::limits::{DEEDS_PER_INCIDENT_MAX, SILENCE_SECONDS_MAX};
use crate::paging::Urgency;

/// The longest silence, in nanoseconds.
pub(super) const SILENCE_NS_MAX: u64 = SILENCE_SECONDS_MAX * 1_000_000_000;

/// What people did about an incident.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Thread {
    /// The first who acknowledged it.
    pub acknowledged: Option<Acknowledged>,
    /// The last silence, also when it is over.
    pub silence: Option<Silence>,
    /// Name of the person or team that it is assigned to; empty where it is not assigned.
    pub assignee: String,
    /// What was done, oldest first: every note, and the newest of all else.
    pub entries: Vec<Entry>,
    /// Older entries that are left out.
    pub entries_left_out: u32,
}

/// Who has acknowledged an incident.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Acknowledged {
    /// Name of the caller.
    pub who: String,
    /// When, in nanoseconds of Unix time.
    pub wall_ns: i64,
}

/// Something that was done about an incident.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Entry {
    /// Name of the caller; empty where a silence ended by itself.
    pub who: String,
    /// When, in nanoseconds of Unix time.
    pub wall_ns: i64,
    /// What was done.
    pub deed: Deed,
    /// End of a silence that began.
    pub until: Option<Until>,
    /// The text of a note, of one or more lines, or the name of an assignee.
    pub text: String,
}

crate::tape::names! {
    /// What was done about an incident.
    pub enum Deed in "snake_case" {
        /// It was acknowledged.
        Acknowledged,
        /// The acknowledgement was taken back.
        Unacknowledged,
        /// A silence began.
        Silenced,
        /// A person ended the silence.
        SilenceEnded,
        /// The silence ended because the incident became more urgent.
        SilenceEndedByUrgency,
        /// The silence ended because the incident got another class.
        SilenceEndedByClass,
        /// The silence ended because another incident is reported in this one.
        SilenceEndedByIncident,
        /// It was assigned to a person or a team, or to no one.
        Assigned,
        /// A note was written.
        Noted,
    }
}

/// A silence, and what the incident was when it began.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Silence {
    /// Its end.
    pub until: Until,
    /// Who silenced the incident.
    pub who: String,
    /// Begin, in nanoseconds of Unix time.
    pub since_wall_ns: i64,
    /// Class of the incident at the begin.
    pub class: Class,
    /// Urgency of the incident at the begin.
    pub urgency: Urgency,
    /// True if it ended early, for good.
    pub is_over: bool,
}

/// End of a silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Until {
    /// Unix time, in nanoseconds.
    WallNs(i64),
    /// The silence ends when this step has been judged.
    Step(u64),
}

impl Silence {
    /// Does the silence hold at this Unix time, when this step is the last that was judged? A clock
    /// that is set back by more than the length of the silence ends it.
    pub fn holds(&self, wall_ns: i64, step: u64) -> bool {
        let (length_ns, is_before) = match self.until {
            Until::WallNs(end) => {
                let length = end.saturating_sub(self.since_wall_ns);
                (u64::try_from(length).unwrap_or(0).min(SILENCE_NS_MAX), true)
            }
            Until::Step(end) => (SILENCE_NS_MAX, step < end),
        };
        !self.is_over && is_before && wall_ns.abs_diff(self.since_wall_ns) < length_ns
    }

    /// By what an incident of this class and urgency is more than what was silenced; none where it
    /// is not. An unknown class is no other one, before or after: the incident may be without a
    /// diagnosis for a while, and was perhaps silenced before its first one.
    pub fn outgrown_by(&self, class: Class, urgency: Urgency) -> Option<Deed> {
        if urgency > self.urgency {
            return Some(Deed::SilenceEndedByUrgency);
        }
        let is_known = |class: Class| !matches!(class, Class::Unknown);
        let is_other = is_known(class) && is_known(self.class) && class != self.class;
        is_other.then_some(Deed::SilenceEndedByClass)
    }
}

impl Entry {
    /// An entry without a text.
    pub(super) fn of(who: &str, wall_ns: i64, deed: Deed) -> Self {
        Self { who: who.into(), wall_ns, deed, until: None, text: String::new() }
    }

    fn is_note(&self) -> bool {
        self.deed == Deed::Noted
    }
}

impl Thread {
    /// The notes, oldest first.
    pub fn notes(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.is_note())
    }

    /// Adds an entry. Beyond their limit the oldest one that is no note is left out.
    pub(super) fn add(&mut self, entry: Entry) {
        self.entries.push(entry);
        if self.entries.len() - self.notes().count() > DEEDS_PER_INCIDENT_MAX
            && let Some(oldest) = self.entries.iter().position(|entry| !entry.is_note())
        {
            self.entries.remove(oldest);
            self.entries_left_out = self.entries_left_out.saturating_add(1);
        }
    }
}
