//! The remedies that an agent knows: remedies under way in ranks, and the last finished ones, so
//! that a repeated request is carried out once.
//!
//! Each answer is sent on every stream: a coordinator that has it ignores it. This file holds the
//! records; `agent/remedying.rs` writes onto tapes and sends signals.

use std::collections::{BTreeMap, VecDeque};

use memtape_core::action::remedy::{Answer, Ask, Outcome};
use memtape_core::limits::REMEDIES_KNOWN_MAX;
use memtape_core::tape::mailbox::Remedy;

/// Identity of one remedy of one rank.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RemedyKey {
    /// Id of the call.
    pub(crate) call_id: String,
    /// Id of the tape.
    pub(crate) tape_id: String,
}

/// An instruction on a tape, as its agent remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Armed {
    /// Number of the instruction.
    pub(crate) number: u8,
    pub(crate) remedy: Remedy,
    /// Step after which the remedy is carried out.
    pub(crate) step: u64,
    /// True if the word was taken back, and it is not known yet whether in time.
    pub(crate) is_withdrawn: bool,
}

impl Armed {
    pub(crate) fn ask(self) -> Ask {
        Ask::Remedy { remedy: self.remedy, step: self.step }
    }
}

#[derive(Debug)]
struct Entry {
    /// The requested remedy.
    ask: Ask,
    /// The instruction; none once the remedy is over.
    armed: Option<Armed>,
    /// Answer to send; none while it is unknown whether a withdrawal was in time.
    answer: Option<Answer>,
    /// True if the answer was sent on the present stream.
    is_sent: bool,
}

/// All known remedies.
#[derive(Debug, Default)]
pub(crate) struct Remedies {
    entries: BTreeMap<RemedyKey, Entry>,
    /// Finished remedies, oldest first.
    over: VecDeque<RemedyKey>,
}

impl Remedies {
    /// True while this number of further remedies fits.
    pub(crate) fn have_room(&self, more: usize) -> bool {
        let under_way = self.entries.len() - self.over.len();
        under_way.saturating_add(more) <= REMEDIES_KNOWN_MAX
    }

    /// The request of a known remedy.
    pub(crate) fn asked(&self, key: &RemedyKey) -> Option<Ask> {
        self.entries.get(key).map(|entry| entry.ask)
    }

    /// Marks the answer of a known remedy to be sent again.
    pub(crate) fn repeat(&mut self, key: &RemedyKey) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.is_sent = false;
        }
    }

    /// Adds a remedy under way, in place of an earlier entry of its key.
    pub(crate) fn begin(&mut self, key: RemedyKey, armed: Armed) {
        let answer =
            Answer { outcome: Outcome::Armed, step: armed.step, took_ns: 0, detail: String::new() };
        self.set(key, armed.ask(), Some(armed), Some(answer));
    }

    /// Ends a remedy with this answer.
    pub(crate) fn end(&mut self, key: RemedyKey, ask: Ask, answer: Answer) {
        self.set(key, ask, None, Some(answer));
    }

    /// Ends a remedy under way with this answer.
    pub(crate) fn end_armed(&mut self, key: RemedyKey, armed: Armed, answer: Answer) {
        self.end(key, armed.ask(), answer);
    }

    /// Notes that a remedy's word was taken back, and that it is not known yet whether in time.
    pub(crate) fn doubt(&mut self, key: RemedyKey, armed: Armed) {
        self.set(key, armed.ask(), Some(Armed { is_withdrawn: true, ..armed }), None);
    }

    fn set(&mut self, key: RemedyKey, ask: Ask, armed: Option<Armed>, answer: Option<Answer>) {
        self.over.retain(|over| *over != key);
        if armed.is_none() {
            self.over.push_back(key.clone());
        }
        let entry = Entry { ask, armed, answer, is_sent: false };
        self.entries.insert(key, entry);
        while self.entries.len() > REMEDIES_KNOWN_MAX
            && let Some(oldest) = self.over.pop_front()
        {
            self.entries.remove(&oldest);
        }
    }

    /// Remedies under way.
    pub(crate) fn armed(&self) -> impl Iterator<Item = (&RemedyKey, Armed)> {
        self.entries.iter().filter_map(|(key, entry)| Some((key, entry.armed?)))
    }

    /// The remedy under way on a tape.
    pub(crate) fn on(&self, tape_id: &str) -> Option<(&RemedyKey, Armed)> {
        self.armed().find(|(key, _)| key.tape_id == tape_id)
    }

    /// Starts a new stream: answers may have been lost with the previous one, and are sent again.
    pub(crate) fn start_stream(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.is_sent = false);
    }

    /// Answers to be sent on this stream.
    pub(crate) fn unsent(&self) -> Vec<(RemedyKey, Answer)> {
        let unsent = self.entries.iter().filter(|(_, entry)| !entry.is_sent);
        unsent.filter_map(|(key, entry)| Some((key.clone(), entry.answer.clone()?))).collect()
    }

    /// Notes that an answer was sent on this stream.
    pub(crate) fn sent(&mut self, key: &RemedyKey) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.is_sent = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> RemedyKey {
        RemedyKey { call_id: format!("act-{number}"), tape_id: "t".to_string() }
    }

    const ARMED: Armed = Armed { number: 1, remedy: Remedy::Gc, step: 9, is_withdrawn: false };

    fn done() -> Answer {
        Answer { outcome: Outcome::Done, step: 9, took_ns: 5, detail: String::new() }
    }

    #[test]
    fn an_answer_is_sent_once_on_each_stream() {
        let mut remedies = Remedies::default();
        remedies.begin(key(1), ARMED);
        assert_eq!(remedies.unsent()[0].1.outcome, Outcome::Armed);
        remedies.sent(&key(1));
        assert!(remedies.unsent().is_empty());
        remedies.start_stream();
        assert_eq!(remedies.unsent().len(), 1);
        remedies.sent(&key(1));
        // What comes of it is another answer, which a second request gets, too.
        remedies.end_armed(key(1), ARMED, done());
        assert_eq!(remedies.unsent(), [(key(1), done())]);
        remedies.sent(&key(1));
        assert!(remedies.unsent().is_empty() && remedies.armed().next().is_none());
        remedies.repeat(&key(1));
        assert_eq!(remedies.unsent(), [(key(1), done())]);
    }

    #[test]
    fn the_oldest_finished_remedy_gives_way_and_a_running_one_never() {
        let mut remedies = Remedies::default();
        remedies.begin(key(0), ARMED);
        for number in 1..2 * REMEDIES_KNOWN_MAX {
            assert!(remedies.have_room(1));
            remedies.begin(key(number), ARMED);
            remedies.end_armed(key(number), ARMED, done());
        }
        assert_eq!(remedies.entries.len(), REMEDIES_KNOWN_MAX);
        assert!(remedies.asked(&key(0)).is_some() && remedies.asked(&key(1)).is_none());
        assert!(remedies.asked(&key(2 * REMEDIES_KNOWN_MAX - 1)).is_some());
        assert!(!remedies.have_room(REMEDIES_KNOWN_MAX));
    }
}
