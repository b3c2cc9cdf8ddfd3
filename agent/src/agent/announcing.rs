//! The order of announcements: round-robin over users, with a bound for each round.
//!
//! The owner of a tape can change its contents at every scan. A change of an announced tape waits
//! for a time after the change before, and all changes of a node have one rate; first announcements
//! wait for neither. The queue of the stream keeps slots for answers, reports and ends. Only the
//! first report of a stream waits for announcements, and for no tape that was found later.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use memtape_core::limits::{
    ANNOUNCEMENT_WAIT_SECONDS_MAX, ANNOUNCEMENTS_AGAIN_PER_MINUTE_MAX, ANNOUNCEMENTS_PER_ROUND_MAX,
    MESSAGES_WAITING_MAX, TAPES_PER_NODE_MAX,
};
use memtape_core::rates::Rates;
use memtape_core::sharing::Turns;

use crate::link::wire::{Outgoing, RankUp};
use crate::node::accounts::{self, Account};
use crate::node::clock::Now;
use crate::tapes::quota::TapeKey;

use super::{Agent, rank_up};

const SECOND_NS: u64 = 1_000_000_000;

/// Announcements so far.
#[derive(Debug)]
pub(super) struct Announcements {
    /// The last announcement of each tape on the present stream.
    said: BTreeMap<TapeKey, RankUp>,
    /// When a change of a tape was last announced, on any stream.
    changed_ns: BTreeMap<TapeKey, u64>,
    /// Tapes for which the first report of the stream waits.
    awaited: BTreeSet<TapeKey>,
    /// Ranks without tapes that were announced on the present stream, and whether they were ended.
    pub(super) tapeless: BTreeMap<String, bool>,
    /// The user whose announcements come next.
    turns: Turns<Account>,
    /// Changes of all tapes.
    changes: Rates<()>,
}

/// Progress of the announcements on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    /// All tapes that were known when the stream began were announced.
    pub(super) has_awaited: bool,
    /// All ranks known only from the spool were announced.
    pub(super) has_tapeless: bool,
}

/// A due announcement.
#[derive(Debug)]
struct Due {
    about: About,
    up: RankUp,
}

#[derive(Debug)]
enum About {
    /// A rank known only from the spool.
    Tapeless(String),
    /// A tape, for the first time on this stream.
    First(TapeKey),
    /// A tape that has changed.
    Change(TapeKey),
}

impl Default for Announcements {
    fn default() -> Self {
        let refill_ns = 60 * SECOND_NS / ANNOUNCEMENTS_AGAIN_PER_MINUTE_MAX;
        Self {
            said: BTreeMap::new(),
            changed_ns: BTreeMap::new(),
            awaited: BTreeSet::new(),
            tapeless: BTreeMap::new(),
            turns: Turns::default(),
            changes: Rates::new(refill_ns, TAPES_PER_NODE_MAX as u64, 1),
        }
    }
}

impl Announcements {
    /// Starts a new stream; `known` are the tapes that its first report covers.
    pub(super) fn start_stream(&mut self, known: BTreeSet<TapeKey>) {
        self.said.clear();
        self.tapeless.clear();
        self.awaited = known;
    }

    /// True when the tape was announced on this stream.
    pub(super) fn has_said(&self, key: TapeKey) -> bool {
        self.said.contains_key(&key)
    }

    /// Forgets a tape.
    pub(super) fn forget(&mut self, key: TapeKey) {
        self.said.remove(&key);
        self.changed_ns.remove(&key);
        self.awaited.remove(&key);
    }

    fn may_change(&self, now_ns: u64, key: TapeKey) -> bool {
        let wait_ns = ANNOUNCEMENT_WAIT_SECONDS_MAX * SECOND_NS;
        let changed_ns = self.changed_ns.get(&key);
        changed_ns.is_none_or(|at_ns| now_ns.saturating_sub(*at_ns) >= wait_ns)
    }
}

impl Agent {
    /// Announces due ranks, within the bound of a round and the capacity of the queue.
    pub(super) fn announce(&mut self, now: Now) -> Progress {
        let mut due = self.due(now);
        let mut sent = 0;
        while sent < ANNOUNCEMENTS_PER_ROUND_MAX && self.may_announce() {
            let turns = &self.announcements.turns;
            let Some(account) = due.keys().copied().min_by_key(|of| turns.last(*of)) else { break };
            let next = due.get_mut(&account).and_then(VecDeque::pop_front);
            // Changes come last: a user for whose change there is no permit has nothing else.
            let Some(next) = next.filter(|next| self.has_permit(now, next)) else {
                due.remove(&account);
                continue;
            };
            if !self.send(Outgoing::RankUp(next.up.clone())) {
                break;
            }
            sent += 1;
            self.announcements.turns.give(account);
            self.note_announced(now, next);
        }
        let is_tapeless = |due: &Due| matches!(due.about, About::Tapeless(_));
        Progress {
            has_awaited: self.announcements.awaited.is_empty(),
            has_tapeless: !due.values().flatten().any(is_tapeless),
        }
    }

    /// True when the queue has more free slots than are reserved for other messages.
    fn may_announce(&self) -> bool {
        let kept = MESSAGES_WAITING_MAX - ANNOUNCEMENTS_PER_ROUND_MAX;
        self.session.as_ref().is_some_and(|session| session.room() > kept)
    }

    fn has_permit(&mut self, now: Now, due: &Due) -> bool {
        match due.about {
            About::Tapeless(_) | About::First(_) => true,
            About::Change(_) => self.announcements.changes.take(now.mono_ns, ()).is_ok(),
        }
    }

    fn note_announced(&mut self, now: Now, Due { about, up }: Due) {
        let announcements = &mut self.announcements;
        let key = match about {
            About::Tapeless(tape_id) => {
                announcements.tapeless.insert(tape_id, false);
                return;
            }
            About::First(key) => key,
            About::Change(key) => {
                announcements.changed_ns.insert(key, now.mono_ns);
                key
            }
        };
        announcements.awaited.remove(&key);
        announcements.said.insert(key, up);
        if self.is_back(key) {
            self.deliveries.send_end_again(key);
        }
    }

    /// Due announcements of each user: ranks known only from the spool, new tapes, then changes.
    fn due(&self, now: Now) -> BTreeMap<Account, VecDeque<Due>> {
        let mut due = BTreeMap::<Account, VecDeque<Due>>::new();
        for up in self.tapeless() {
            let account = accounts::of_tape(&up.tape_id, |uid| self.node.account_of(uid));
            let of_user = due.entry(account).or_default();
            // With one more than a round has, it is known that not all were sent.
            if of_user.len() <= ANNOUNCEMENTS_PER_ROUND_MAX {
                let about = About::Tapeless(up.tape_id.clone());
                of_user.push_back(Due { about, up: up.clone() });
            }
        }
        let mut changes = Vec::new();
        for (key, known) in self.tapes.iter() {
            let Some(said) = self.announcements.said.get(&key) else {
                let first = Due { about: About::First(key), up: rank_up(known) };
                due.entry(known.account).or_default().push_back(first);
                continue;
            };
            let is_back = self.is_back(key);
            if (known.is_cut && !is_back) || !self.announcements.may_change(now.mono_ns, key) {
                continue;
            }
            let up = rank_up(known);
            if is_back || *said != up {
                changes.push((known.account, Due { about: About::Change(key), up }));
            }
        }
        for (account, change) in changes {
            due.entry(account).or_default().push_back(change);
        }
        due
    }

    /// True when a process lives although its end was sent.
    fn is_back(&self, key: TapeKey) -> bool {
        let was_ended = self.deliveries.is_down_sent(key) || self.deliveries.is_settled(key);
        let is_alive = |known: &super::KnownTape| known.life.death().is_none();
        was_ended && self.tapes.get(key).is_some_and(is_alive)
    }

    /// Ranks known only from the spool that were not announced on this stream.
    fn tapeless(&self) -> impl Iterator<Item = &RankUp> {
        let is_new = |up: &&RankUp| !self.announcements.tapeless.contains_key(&up.tape_id);
        let ups = self.spool.iter().flat_map(|spool| spool.ups());
        ups.filter(is_new).filter(|up| self.tapes.find(&up.tape_id).is_none())
    }
}
