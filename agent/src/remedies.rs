//! The remedies that an agent knows: those under way in ranks, and the last that are over, so that
//! a request that is said twice is carried out once.
//!
//! Each has one answer that is sent until it is known to have arrived, on every stream. This file
//! keeps the books; `agent/remedying.rs` writes onto tapes and sends signals.

use std::collections::{BTreeMap, VecDeque};

use memtape_core::action::remedy::{Answer, Outcome};
use memtape_core::limits::REMEDIES_KNOWN_MAX;

/// One remedy of one rank.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RemedyKey {
    /// Of which action.
    pub(crate) action_id: String,
    /// For which tape.
    pub(crate) tape_id: String,
}

/// An instruction on a tape, as its agent remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Armed {
    /// Number of the instruction.
    pub(crate) number: u8,
    /// The step after which it is carried out.
    pub(crate) step: u64,
    /// The word was taken back; whether in time is not known yet.
    pub(crate) is_withdrawn: bool,
}

#[derive(Debug)]
struct Entry {
    /// None once it is over.
    armed: Option<Armed>,
    /// What is to be sent; none while a word was taken back and it is not known whether in time.
    answer: Option<Answer>,
    /// The report of the present stream whose acknowledgement says that the answer has arrived.
    arrives_with: Option<u64>,
    has_arrived: bool,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Remedies {
    entries: BTreeMap<RemedyKey, Entry>,
    /// Those that are over, oldest first.
    over: VecDeque<RemedyKey>,
}

impl Remedies {
    /// True while this number of further ones has room.
    pub(crate) fn have_room(&self, more: usize) -> bool {
        let under_way = self.entries.len() - self.over.len();
        under_way.saturating_add(more) <= REMEDIES_KNOWN_MAX
    }

    /// True when it is known.
    pub(crate) fn knows(&self, key: &RemedyKey) -> bool {
        self.entries.contains_key(key)
    }

    /// Has the answer to a known one sent again.
    pub(crate) fn repeat(&mut self, key: &RemedyKey) {
        if let Some(entry) = self.entries.get_mut(key) {
            (entry.arrives_with, entry.has_arrived) = (None, false);
        }
    }

    /// Adds one that is under way, in place of what was known of it.
    pub(crate) fn begin(&mut self, key: RemedyKey, armed: Armed) {
        let answer =
            Answer { outcome: Outcome::Armed, step: armed.step, took_ns: 0, detail: String::new() };
        self.set(key, Some(armed), Some(answer));
    }

    /// One is over with this answer.
    pub(crate) fn end(&mut self, key: RemedyKey, answer: Answer) {
        self.set(key, None, Some(answer));
    }

    /// The word of one was taken back, and whether in time is not known yet.
    pub(crate) fn doubt(&mut self, key: RemedyKey, armed: Armed) {
        self.set(key, Some(Armed { is_withdrawn: true, ..armed }), None);
    }

    fn set(&mut self, key: RemedyKey, armed: Option<Armed>, answer: Option<Answer>) {
        self.over.retain(|over| *over != key);
        if armed.is_none() {
            self.over.push_back(key.clone());
        }
        self.entries.insert(key, Entry { armed, answer, arrives_with: None, has_arrived: false });
        while self.entries.len() > REMEDIES_KNOWN_MAX
            && let Some(oldest) = self.over.pop_front()
        {
            self.entries.remove(&oldest);
        }
    }

    /// Those under way.
    pub(crate) fn armed(&self) -> impl Iterator<Item = (&RemedyKey, Armed)> {
        self.entries.iter().filter_map(|(key, entry)| Some((key, entry.armed?)))
    }

    /// The one under way on a tape.
    pub(crate) fn on(&self, tape_id: &str) -> Option<(&RemedyKey, Armed)> {
        self.armed().find(|(key, _)| key.tape_id == tape_id)
    }

    /// A new stream: answers that are not known to have arrived are sent again.
    pub(crate) fn start_stream(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.arrives_with = None);
    }

    /// Answers to be sent on this stream.
    pub(crate) fn unsent(&self) -> Vec<(RemedyKey, Answer)> {
        let unsent = self
            .entries
            .iter()
            .filter(|(_, entry)| !entry.has_arrived && entry.arrives_with.is_none());
        unsent.filter_map(|(key, entry)| Some((key.clone(), entry.answer.clone()?))).collect()
    }

    /// An answer was sent; the acknowledgement of this report will say that it has arrived.
    pub(crate) fn sent(&mut self, key: &RemedyKey, report: u64) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.arrives_with = Some(report);
        }
    }

    /// Everything up to this report has arrived.
    pub(crate) fn acked(&mut self, report: u64) {
        for entry in self.entries.values_mut() {
            entry.has_arrived |= entry.arrives_with.is_some_and(|number| number <= report);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> RemedyKey {
        RemedyKey { action_id: format!("act-{number}"), tape_id: "t".to_string() }
    }

    const ARMED: Armed = Armed { number: 1, step: 9, is_withdrawn: false };

    fn done() -> Answer {
        Answer { outcome: Outcome::Done, step: 9, took_ns: 5, detail: String::new() }
    }

    #[test]
    fn an_answer_is_sent_until_it_has_arrived() {
        let mut remedies = Remedies::default();
        remedies.begin(key(1), ARMED);
        assert_eq!(remedies.unsent()[0].1.outcome, Outcome::Armed);
        remedies.sent(&key(1), 3);
        assert!(remedies.unsent().is_empty());
        remedies.start_stream();
        assert_eq!(remedies.unsent().len(), 1);
        remedies.sent(&key(1), 1);
        remedies.acked(1);
        remedies.start_stream();
        assert!(remedies.unsent().is_empty());
        // What comes of it is another answer, which a second request gets, too.
        remedies.end(key(1), done());
        assert_eq!(remedies.unsent(), [(key(1), done())]);
        remedies.sent(&key(1), 2);
        remedies.acked(2);
        assert!(remedies.unsent().is_empty() && remedies.armed().next().is_none());
        remedies.repeat(&key(1));
        assert_eq!(remedies.unsent(), [(key(1), done())]);
    }

    #[test]
    fn what_is_over_longest_gives_way_and_what_is_under_way_never() {
        let mut remedies = Remedies::default();
        remedies.begin(key(0), ARMED);
        for number in 1..2 * REMEDIES_KNOWN_MAX {
            assert!(remedies.have_room(1));
            remedies.begin(key(number), ARMED);
            remedies.end(key(number), done());
        }
        assert_eq!(remedies.entries.len(), REMEDIES_KNOWN_MAX);
        assert!(remedies.knows(&key(0)) && !remedies.knows(&key(1)));
        assert!(remedies.knows(&key(2 * REMEDIES_KNOWN_MAX - 1)));
        assert!(!remedies.have_room(REMEDIES_KNOWN_MAX));
    }
}
