//! What changes the thread of an incident: requests of people, with their bounds, harmless text and
//! refusals, and the early ends of silences.
//!
//! [`Incident::thread_after`] carries a request out on a copy of the thread: all of it or nothing.
//! Sent again, it changes nothing more. A silence is of one incident and hides no other: it ends
//! once the incident is more than what was silenced, or another one is reported in it.

use alloc::string::{String, ToString};
use core::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use super::machine::{Change, Incidents, Now};
use super::record::Incident;
use super::thread::{Acknowledged, Deed, Entry, SILENCE_NS_MAX, Silence, Thread, Until};
use crate::identity::cut;
use crate::limits::{
    NOTES_PER_INCIDENT_MAX, PERSON_BYTES_MAX, SILENCE_SECONDS_MAX, THREAD_NOTE_BYTES_MAX,
};
use crate::visible::escaped;

/// What a person asks to do about an incident. What is null or absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ThreadRequest {
    /// True acknowledges the incident; the first acknowledgement stays. False takes it back.
    pub acknowledge: Option<bool>,
    /// Silences the incident until this time, in nanoseconds of Unix time.
    pub silence_until_wall_ns: Option<i64>,
    /// Silences the incident until this step is judged, and for 30 days at most.
    pub silence_until_step: Option<u64>,
    /// Ends the silence.
    pub end_silence: bool,
    /// Assigns the incident to this name; an empty one to no one.
    pub assignee: Option<String>,
    /// Adds a note. The same note of the same caller is not added twice in a row.
    pub note: Option<String>,
}

/// Why a request about a thread is refused, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThreadRefused {
    /// The incident is not known any more.
    #[error("the incident is not known any more")]
    Unknown,
    /// The request changes nothing.
    #[error("nothing is asked for: acknowledge, silence or assign the incident, or add a note")]
    Nothing,
    /// The request names more than one end of a silence.
    #[error("a silence has one end: name a time, a step, or end_silence")]
    SeveralEnds,
    /// The silence would be over.
    #[error("the silence would be over at once: name a later time")]
    TimeIsOver,
    /// The silence would be over.
    #[error("the silence would be over at once: name a step after {0}, the last that was judged")]
    StepIsOver(u64),
    /// The incident judges no further steps.
    #[error("the incident is about a failure, and judges no further steps: name a time")]
    NoSteps,
    /// The silence would be too long.
    #[error("a silence lasts {} days at most: name an earlier time", SILENCE_SECONDS_MAX / 86_400)]
    TooLong,
    /// The incident raises no alert.
    #[error("the incident is closed and raises no alert: there is nothing to silence")]
    Closed,
    /// The assignee's name is too long.
    #[error("the name of an assignee has {PERSON_BYTES_MAX} bytes at most: shorten it")]
    LongName,
    /// The note has no text.
    #[error("the note is empty: write a text")]
    EmptyNote,
    /// The note is too long.
    #[error(
        "a note has {THREAD_NOTE_BYTES_MAX} bytes at most: shorten it, or name where the text is"
    )]
    LongNote,
    /// The incident has as many notes as it may have.
    #[error("an incident has {NOTES_PER_INCIDENT_MAX} notes at most: go on in your ticket system")]
    ManyNotes,
}

impl Incident {
    /// Is the incident silenced at this Unix time?
    pub fn is_silenced(&self, wall_ns: i64) -> bool {
        let holds = |silence: &Silence| {
            silence.holds(wall_ns, self.growth.last_step)
                && silence.outgrown_by(self.class(), self.urgency).is_none()
        };
        self.is_open() && self.thread.silence.as_ref().is_some_and(holds)
    }

    /// Ends a silence for good once the incident is more than what was silenced.
    pub(super) fn end_outgrown_silence(&mut self) {
        let silence = self.thread.silence.as_ref();
        let why = silence.and_then(|of| of.outgrown_by(self.class(), self.urgency));
        if let Some(why) = why {
            self.end_silence(why);
        }
    }

    /// Ends the silence for good, at the time of the last change. The thread lists one that held.
    fn end_silence(&mut self, why: Deed) {
        let (wall_ns, step) = (self.updated_wall_ns, self.growth.last_step);
        let Some(silence) = &mut self.thread.silence else { return };
        let held = silence.holds(wall_ns, step);
        silence.is_over = true;
        if held {
            self.thread.add(Entry::of("", wall_ns, why));
        }
    }

    /// The thread after a request of a person: all of it is done, or nothing.
    ///
    /// # Errors
    /// The request is not sound, or a limit is reached.
    pub fn thread_after(
        &self,
        wall_ns: i64,
        who: &str,
        request: &ThreadRequest,
    ) -> Result<Thread, ThreadRefused> {
        if *request == ThreadRequest::default() {
            return Err(ThreadRefused::Nothing);
        }
        let who = cut(&plain(who, false), PERSON_BYTES_MAX).to_string();
        let entry = |deed| Entry::of(&who, wall_ns, deed);
        let mut thread = self.thread.clone();
        match request.acknowledge {
            Some(true) if thread.acknowledged.is_none() => {
                thread.acknowledged = Some(Acknowledged { who: who.clone(), wall_ns });
                thread.add(entry(Deed::Acknowledged));
            }
            Some(false) if thread.acknowledged.is_some() => {
                thread.acknowledged = None;
                thread.add(entry(Deed::Unacknowledged));
            }
            Some(_) | None => {}
        }
        let is_silenced = self.is_silenced(wall_ns);
        if let Some(until) = request.until()? {
            self.check(wall_ns, until)?;
            if !is_silenced || thread.silence.as_ref().is_none_or(|known| known.until != until) {
                thread.silence = Some(Silence {
                    until,
                    who: who.clone(),
                    since_wall_ns: wall_ns,
                    class: self.class(),
                    urgency: self.urgency,
                    is_over: false,
                });
                thread.add(Entry { until: Some(until), ..entry(Deed::Silenced) });
            }
        } else if request.end_silence {
            thread.silence = None;
            if is_silenced {
                thread.add(entry(Deed::SilenceEnded));
            }
        }
        if let Some(name) = &request.assignee {
            let name = bounded(name, PERSON_BYTES_MAX, false).ok_or(ThreadRefused::LongName)?;
            if name != thread.assignee {
                thread.assignee.clone_from(&name);
                thread.add(Entry { text: name, ..entry(Deed::Assigned) });
            }
        }
        if let Some(note) = &request.note {
            let text = bounded(note, THREAD_NOTE_BYTES_MAX, true).ok_or(ThreadRefused::LongNote)?;
            thread.add_note(Entry { text, ..entry(Deed::Noted) })?;
        }
        Ok(thread)
    }

    /// Checks the end of a silence that begins now.
    fn check(&self, wall_ns: i64, until: Until) -> Result<(), ThreadRefused> {
        let last_step = self.growth.last_step;
        match until {
            _ if !self.is_open() => Err(ThreadRefused::Closed),
            Until::WallNs(end) if end <= wall_ns => Err(ThreadRefused::TimeIsOver),
            Until::WallNs(end) if end.abs_diff(wall_ns) > SILENCE_NS_MAX => {
                Err(ThreadRefused::TooLong)
            }
            Until::Step(_) if self.failure.is_some() => Err(ThreadRefused::NoSteps),
            Until::Step(end) if end <= last_step => Err(ThreadRefused::StepIsOver(last_step)),
            Until::WallNs(_) | Until::Step(_) => Ok(()),
        }
    }
}

impl Thread {
    /// Adds a note. One that is repeated, as by a client that got no answer, is there already.
    fn add_note(&mut self, note: Entry) -> Result<(), ThreadRefused> {
        if note.text.is_empty() {
            return Err(ThreadRefused::EmptyNote);
        }
        let is_same = |last: &Entry| (&last.who, &last.text) == (&note.who, &note.text);
        if self.notes().next_back().is_some_and(is_same) {
            return Ok(());
        }
        if self.notes().count() >= NOTES_PER_INCIDENT_MAX {
            return Err(ThreadRefused::ManyNotes);
        }
        self.add(note);
        Ok(())
    }
}

impl ThreadRequest {
    /// The end of the silence that is asked for.
    fn until(&self) -> Result<Option<Until>, ThreadRefused> {
        match (self.silence_until_wall_ns, self.silence_until_step, self.end_silence) {
            (None, None, _) => Ok(None),
            (Some(end), None, false) => Ok(Some(Until::WallNs(end))),
            (None, Some(end), false) => Ok(Some(Until::Step(end))),
            (Some(_), Some(_), _) | (_, _, true) => Err(ThreadRefused::SeveralEnds),
        }
    }
}

impl Display for ThreadRequest {
    /// What is asked for, without the text of the note.
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        let mut before = "";
        let mut say = |words: fmt::Arguments<'_>| {
            let said = write!(to, "{before}{words}");
            before = ", ";
            said
        };
        match self.acknowledge {
            Some(true) => say(format_args!("acknowledge"))?,
            Some(false) => say(format_args!("take the acknowledgement back"))?,
            None => {}
        }
        if let Some(end) = self.silence_until_wall_ns {
            say(format_args!("silence until Unix time {}", end / 1_000_000_000))?;
        }
        if let Some(step) = self.silence_until_step {
            say(format_args!("silence until step {step}"))?;
        }
        if self.end_silence {
            say(format_args!("end the silence"))?;
        }
        match self.assignee.as_ref().map(|name| plain(name, false)) {
            Some(name) if name.is_empty() => say(format_args!("assign to no one"))?,
            Some(name) => say(format_args!("assign to {name}"))?,
            None => {}
        }
        match &self.note {
            Some(note) => say(format_args!("add a note of {} bytes", plain(note, true).len())),
            None => Ok(()),
        }
    }
}

impl Incidents {
    /// Carries out a request of a person about an incident. A request that changes nothing stores
    /// nothing.
    ///
    /// # Errors
    /// As [`Incident::thread_after`], or the incident is not known.
    pub fn change_thread(
        &mut self,
        now: Now,
        id: &str,
        who: &str,
        request: &ThreadRequest,
    ) -> Result<(), ThreadRefused> {
        let tracked = self.known.get_mut(id).ok_or(ThreadRefused::Unknown)?;
        let changed = tracked.incident.thread_after(now.wall_ns, who, request)?;
        if changed != tracked.incident.thread {
            tracked.incident.thread = changed;
            tracked.incident.updated_wall_ns = now.wall_ns;
            self.store(id, Change::Updated);
        }
        Ok(())
    }

    /// Ends the silence of an incident in which another one is reported from now on: the other one
    /// would be hidden by it.
    pub(super) fn end_silence(&mut self, now: Now, id: &str) {
        let Some(tracked) = self.known.get_mut(id) else { return };
        let incident = &mut tracked.incident;
        if incident.thread.silence.as_ref().is_some_and(|silence| !silence.is_over) {
            incident.updated_wall_ns = now.wall_ns;
            incident.end_silence(Deed::SilenceEndedByIncident);
            self.store(id, Change::Updated);
        }
    }
}

/// A text of a person as it is kept; none where it is longer.
fn bounded(text: &str, bytes_max: usize, keeps_lines: bool) -> Option<String> {
    // A text far beyond the bound is not made harmless first.
    let plain = (text.trim().len() <= 2 * bytes_max).then(|| plain(text, keeps_lines))?;
    (plain.len() <= bytes_max).then_some(plain)
}

/// A text without control characters and with hidden characters written out; of white space only
/// blanks are left, and the ends of lines where they are kept.
fn plain(text: &str, keeps_lines: bool) -> String {
    let text = text.trim().replace("\r\n", "\n");
    let mut plain = String::with_capacity(text.len());
    for mark in escaped(&text).chars() {
        match mark {
            '\n' if keeps_lines => plain.push(mark),
            mark if mark.is_whitespace() => plain.push(' '),
            mark if mark.is_control() => plain.extend(mark.escape_unicode()),
            mark => plain.push(mark),
        }
    }
    plain
}
