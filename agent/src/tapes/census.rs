//! Censuses of this node's tapes: when each is due, which are known, and which the coordinator has.
//!
//! A tape is counted when enough steps have passed since its last count, and once after its process
//! has ended: in the state that a tape is judged by, because an exit frees what the process held.
//! One tape is counted at a time, on a thread of its own, so that the load of a node does not grow
//! with its ranks; users take turns, and a user's dead tapes come first. The end of a rank waits
//! only briefly for its last census. The coordinator gets the changes since the last census on the
//! present stream; a new stream begins with whole ones. Nothing is kept on disk: the tape can be
//! counted again.

use std::collections::BTreeMap;
use std::sync::Arc;

use memtape_core::census::changes::Changes;
use memtape_core::census::reader::CensusReader;
use memtape_core::census::{Census, INTERVAL_MIN_NS, STEPS_MIN};
use memtape_core::limits::SNAPSHOT_BYTES_MAX;
use memtape_core::sharing::{Amounts, Turns};
use memtape_core::tape::read::Tape;
use memtape_core::tape::rewind::PointInTime;

use crate::node::accounts::Account;
use crate::tapes::known::{KnownTape, Tapes};
use crate::tapes::quota::TapeKey;
use crate::tapes::source::TapeWords;

/// A tape whose steps do not move is counted again after this time: a rank that hangs, or a program
/// without steps; in nanoseconds.
const INTERVAL_MAX_NS: u64 = 60_000_000_000;

/// Time that the end of a rank waits for its last census, in nanoseconds; a later census follows.
const END_WAIT_MAX_NS: u64 = 2_000_000_000;

/// Maximum bytes of census readers kept for all tapes between two counts. A tape beyond the bound
/// is counted without a kept reader.
const READERS_BYTES_MAX: usize = 32 << 20;

/// Memory for the censuses of all tapes, in bytes. Beyond it, the largest censuses of the largest
/// user are dropped first.
const CENSUSES_BYTES_MAX: usize = 48 << 20;

/// The censuses of all tapes.
#[derive(Debug, Default)]
pub(crate) struct Censuses {
    /// Number of agents that share the bounds; 0 before it is known, for one.
    agents: u64,
    tapes: BTreeMap<TapeKey, Counted>,
    /// The tape that is being counted.
    counting: Option<TapeKey>,
    /// Round-robin order of the users whose tapes are counted.
    turns: Turns<Account>,
    /// Since when ends of ranks wait for their last censuses on the present stream.
    waiting_since_ns: BTreeMap<TapeKey, u64>,
    /// Censuses that the coordinator received on the present stream.
    sent: BTreeMap<(TapeKey, u8), Sent>,
    /// Reports that had censuses.
    reports: u64,
}

/// The census of one device that the coordinator has.
#[derive(Debug)]
struct Sent {
    census: Census,
    /// Number of the report that carried the census.
    report: u64,
}

/// State of one tape's censuses.
#[derive(Debug, Default)]
struct Counted {
    /// Reader that knows the lines of the tape's stacks; empty while a count is in progress, and
    /// after the last one.
    reader: CensusReader,
    censuses: Vec<Census>,
    /// Memory of the censuses, in bytes.
    censuses_bytes: usize,
    /// Account of the tape's user.
    account: Account,
    /// Steps finished at the last count.
    step: u64,
    counted_ns: Option<u64>,
    /// True if the count was made after the process had ended: it is the last one.
    is_final: bool,
}

/// A tape to be counted.
#[derive(Debug)]
pub(crate) struct Count {
    tape: Arc<Tape<TapeWords>>,
    reader: CensusReader,
    is_final: bool,
}

/// Result of a tape's count.
#[derive(Debug, Default)]
pub(crate) struct CountResult {
    reader: CensusReader,
    censuses: Vec<Census>,
    /// True if the process had ended: no later census follows.
    pub(crate) is_final: bool,
}

impl Count {
    /// Result to report if the count itself fails: there is no census.
    pub(crate) fn failure(&self) -> CountResult {
        CountResult { is_final: self.is_final, ..CountResult::default() }
    }

    /// Counts all devices of the tape. Blocks for as long as reading the tables takes: some
    /// milliseconds for 100,000 blocks. The last count of a rank that exited rewinds them, too.
    pub(crate) fn make(mut self) -> CountResult {
        let censuses = self.before_exit().unwrap_or_else(|| {
            let devices = self.tape.devices();
            let count = |device| self.reader.count(&self.tape, device);
            devices.into_iter().filter_map(count).collect()
        });
        CountResult { reader: self.reader, censuses, is_final: self.is_final }
    }

    /// Counts what the process held before it exited; none where it did not, or where that state
    /// is not known any more.
    fn before_exit(&self) -> Option<Vec<Census>> {
        let at = PointInTime::judged(&self.tape.status());
        if !self.is_final || at == PointInTime::Present {
            return None;
        }
        let state = self.tape.snapshot_within(at, None, 0, SNAPSHOT_BYTES_MAX as u64).ok()?;
        Some(Census::of_state(&state))
    }
}

impl Censuses {
    /// Takes the part of the bounds that each of this number of agents has.
    pub(crate) fn divide(&mut self, agents: u64) {
        self.agents = agents;
    }

    fn part(&self, bytes_max: usize) -> usize {
        bytes_max / (self.agents.max(1) as usize)
    }

    /// The next tape to be counted; none while one is being counted or none is due.
    pub(crate) fn next(&mut self, now_ns: u64, tapes: &Tapes) -> Option<(TapeKey, Count)> {
        if self.counting.is_some() {
            return None;
        }
        let due = tapes.iter().filter(|(key, known)| self.is_due(now_ns, *key, known));
        let (key, known) = due.min_by_key(|(key, known)| {
            let longest_ago = self.tapes.get(key).map(|tape| tape.counted_ns);
            (self.turns.last(known.account), known.life.death().is_none(), longest_ago)
        })?;
        self.counting = Some(key);
        self.turns.give(known.account);
        let counted = self.tapes.entry(key).or_default();
        (counted.step, counted.counted_ns) = (known.status.step, Some(now_ns));
        counted.account = known.account;
        let reader = std::mem::take(&mut counted.reader);
        let is_final = known.life.death().is_some();
        Some((key, Count { tape: Arc::clone(&known.tape), reader, is_final }))
    }

    fn is_due(&self, now_ns: u64, key: TapeKey, known: &KnownTape) -> bool {
        if known.is_cut {
            return false;
        }
        let Some(counted) = self.tapes.get(&key) else { return true };
        let since_ns = now_ns.saturating_sub(counted.counted_ns.unwrap_or(0));
        let has_moved = known.status.step >= counted.step.saturating_add(STEPS_MIN);
        let is_over = known.life.death().is_some();
        if is_over {
            return !counted.is_final;
        }
        since_ns >= if has_moved { INTERVAL_MIN_NS } else { INTERVAL_MAX_NS }
    }

    /// Takes the result of a tape's count.
    pub(crate) fn counted(&mut self, key: TapeKey, result: CountResult) {
        self.counting = None;
        // Forgotten meanwhile.
        let Some(counted) = self.tapes.get_mut(&key) else { return };
        counted.reader = if result.is_final { CensusReader::default() } else { result.reader };
        counted.censuses_bytes = result.censuses.iter().map(Census::bytes).sum();
        counted.censuses = result.censuses;
        counted.is_final = result.is_final;
        let readers_bytes: usize = self.tapes.values().map(|tape| tape.reader.bytes()).sum();
        if readers_bytes > self.part(READERS_BYTES_MAX)
            && let Some(counted) = self.tapes.get_mut(&key)
        {
            counted.reader = CensusReader::default();
        }
        self.drop_beyond(self.part(CENSUSES_BYTES_MAX));
    }

    /// Drops censuses of the users who have most, until all are within a bound.
    fn drop_beyond(&mut self, bytes_max: usize) {
        let of_tapes = self.tapes.values().map(|tape| (tape.account, tape.censuses_bytes as u64));
        let mut of_users: Amounts<Account> = of_tapes.collect();
        while of_users.sum() > bytes_max as u64 {
            let Some((user, _)) = of_users.most() else { return };
            let of_user = self.tapes.iter_mut().filter(|(_, tape)| tape.account == user);
            let largest = of_user.max_by_key(|(_, tape)| tape.censuses_bytes);
            let Some((&key, tape)) = largest else { return };
            of_users.take(user, std::mem::take(&mut tape.censuses_bytes) as u64);
            tape.censuses.clear();
            self.sent.retain(|(of, _), _| *of != key);
            tracing::warn!("censuses of user {user} take too much memory: one tape has none now");
        }
    }

    /// Forgets the sent censuses: a new stream starts with whole ones.
    pub(crate) fn start_stream(&mut self) {
        self.sent.clear();
        self.waiting_since_ns.clear();
    }

    /// Censuses that the coordinator lacks on this stream: users in turn, and of each user first
    /// the final censuses that ends of ranks wait for, then the censuses of living ranks. Devices
    /// whose last census was sent longest ago come first, because a report holds only some of them.
    pub(crate) fn unsent(&self) -> Vec<(TapeKey, &Census)> {
        let all = self.tapes.iter().flat_map(|(&key, counted)| {
            counted.censuses.iter().map(move |census| (counted, key, census))
        });
        let mut unsent: Vec<_> = all.filter(|(_, key, of)| !self.is_sent(*key, of)).collect();
        unsent.sort_by_key(|(counted, key, census)| {
            let is_awaited = self.waiting_since_ns.contains_key(key);
            let report = self.sent.get(&(*key, census.device)).map(|sent| sent.report);
            (!(counted.is_final && is_awaited), counted.is_final, report)
        });
        let mut before = Amounts::default();
        let in_turn = unsent.into_iter().map(|(counted, key, census)| {
            before.add(counted.account, 1);
            (before.of(counted.account), key, census)
        });
        let mut in_turn: Vec<_> = in_turn.collect();
        in_turn.sort_by_key(|(turn, ..)| *turn);
        in_turn.into_iter().map(|(_, key, census)| (key, census)).collect()
    }

    /// Does the coordinator lack a census of this tape on this stream?
    pub(crate) fn has_unsent(&self, key: TapeKey) -> bool {
        let counted = self.tapes.get(&key);
        counted.is_some_and(|of| of.censuses.iter().any(|census| !self.is_sent(key, census)))
    }

    /// May the end of a rank be reported? After its last census, or when that has taken too long.
    pub(crate) fn may_end(&mut self, now_ns: u64, key: TapeKey) -> bool {
        let since_ns = *self.waiting_since_ns.entry(key).or_insert(now_ns);
        self.is_complete(key) || now_ns.saturating_sub(since_ns) >= END_WAIT_MAX_NS
    }

    /// Notes that the end of a rank was reported.
    pub(crate) fn end_sent(&mut self, key: TapeKey) {
        self.waiting_since_ns.remove(&key);
    }

    fn known(&self, key: TapeKey, device: u8) -> Option<&Census> {
        self.sent.get(&(key, device)).map(|sent| &sent.census)
    }

    fn is_sent(&self, key: TapeKey, census: &Census) -> bool {
        self.known(key, census.device) == Some(census)
    }

    /// True while a tape is being counted.
    pub(crate) fn is_counting(&self) -> bool {
        self.counting.is_some()
    }

    /// Was the last census of an ended process made and sent?
    fn is_complete(&self, key: TapeKey) -> bool {
        let Some(counted) = self.tapes.get(&key) else { return false };
        counted.is_final && counted.censuses.iter().all(|census| self.is_sent(key, census))
    }

    /// Changes of this census since the last one that was sent.
    pub(crate) fn changes(&self, key: TapeKey, census: &Census) -> Changes {
        Changes::between(self.known(key, census.device), census)
    }

    /// These were sent in one report.
    pub(crate) fn sent(&mut self, censuses: Vec<(TapeKey, Census)>) {
        self.reports += 1;
        for (key, census) in censuses {
            let sent = Sent { census, report: self.reports };
            self.sent.insert((key, sent.census.device), sent);
        }
    }

    /// Forgets a tape that is gone for good.
    pub(crate) fn forget(&mut self, key: TapeKey) {
        self.tapes.remove(&key);
        self.waiting_since_ns.remove(&key);
        self.sent.retain(|(of, _), _| *of != key);
    }
}
