//! The audit: who did what, when, and from where.
//!
//! Entries are only ever added. Each holds the hash of the one before, so that a changed or missing
//! one shows itself. Each cause has a number of entries, so that agents, reads and refusals push
//! out nothing that users changed. All that users changed is one chain, so that no one's entries
//! can be missing. Of the other causes every name has a chain: of too many entries, the oldest of
//! the longest chain goes. An entry is in the store before the work begins where a request changes
//! something or the file of roles asks for it; else the work goes on, and the loss is counted. An
//! entry has a number, is listed and is logged once it is stored: entries that come meanwhile wait,
//! and are stored together.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memtape_core::limits::{AUDIT_AGENT_ENTRIES_MAX, AUDIT_ENTRIES_MAX};
use tokio::sync::{OnceCell, oneshot};

use crate::state::counters::{Counters, Loss};
use memtape_disk::clock::Now;
use memtape_store::records::{AuditRecord, Cause};
use memtape_store::{Changes, Done, Error, Kind, Store};

/// Time in which the same read by the same caller is one entry.
const READ_ONCE_NS: u64 = 60_000_000_000;

/// The audit.
#[derive(Clone, Debug)]
pub(crate) struct Audit {
    pub(super) store: Store,
    pub(super) counters: Arc<Counters>,
    kept: Arc<Mutex<Kept>>,
}

/// The kept entries, oldest first.
#[derive(Debug, Default)]
struct Kept {
    last_number: u64,
    chains: BTreeMap<Chain, VecDeque<Arc<AuditRecord>>>,
    /// Entries of each cause.
    counts: BTreeMap<Cause, usize>,
    /// Callers, actions and subjects of the reads of the last minute: when they began, and whether
    /// they are written down.
    reads: HashMap<[String; 3], (u64, Arc<OnceCell<()>>)>,
    /// Entries that wait until those before them are stored, or not.
    waiting: Vec<Waiting>,
    is_writing: bool,
    /// Entries that are not kept any more, to be deleted with the next change.
    gone: Vec<Arc<AuditRecord>>,
}

/// An entry that has no number yet, and changes that are stored with it.
struct Waiting {
    entry: AuditRecord,
    changes: Changes,
    done: Done,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { entry, changes, done: _ } = self;
        to.debug_struct("Waiting")
            .field("entry", entry)
            .field("changes", changes)
            .finish_non_exhaustive()
    }
}

/// Entries that are being stored. They are kept, logged and numbered for good when they are.
struct Writing {
    audit: Audit,
    records: Vec<Arc<AuditRecord>>,
    waiting: Vec<Done>,
    /// Number of the entries that are deleted with them.
    deleted: usize,
}

impl Writing {
    fn finish(&mut self, result: &memtape_store::Result<()>) {
        let mut kept = self.audit.kept();
        kept.is_writing = false;
        if result.is_ok() {
            kept.gone.drain(..self.deleted);
            for record in self.records.drain(..) {
                log(&record);
                kept.add(record);
            }
        }
        drop(kept);
        self.audit.counters.lose(Loss::AuditEntry, self.records.len() as u64);
        self.records.clear();
        for done in self.waiting.drain(..) {
            done(result.clone());
        }
        self.audit.write_waiting();
    }
}

impl Drop for Writing {
    /// The thread of the store is gone.
    fn drop(&mut self) {
        if !self.waiting.is_empty() {
            self.finish(&Err(Error::new(Kind::Io, "the coordinator is stopping")));
        }
    }
}

fn log(record: &AuditRecord) {
    tracing::info!(
        target: "memtape_audit",
        number = record.number,
        who = ?record.who,
        from = record.from,
        subject = ?record.subject,
        "{}", record.action
    );
}

/// A cause, and a name where names share its entries.
type Chain = (Cause, String);

/// The chain of an entry.
fn chain(cause: Cause, who: &str) -> Chain {
    let has_names = cause != Cause::User;
    (cause, if has_names { who.to_string() } else { String::new() })
}

/// Entries of one cause that are kept.
fn entries_max(cause: Cause) -> usize {
    match cause {
        Cause::User | Cause::Read => AUDIT_ENTRIES_MAX,
        Cause::Agent | Cause::Refusal | Cause::Unproven => AUDIT_AGENT_ENTRIES_MAX,
    }
}

impl Kept {
    /// Takes up a stored entry.
    fn add(&mut self, record: Arc<AuditRecord>) {
        self.last_number = self.last_number.max(record.number);
        let gone = self.keep(record);
        self.gone.extend(gone);
    }

    /// The waiting entries with the numbers and hashes that they have if they are stored, and the
    /// change that stores them.
    fn numbered(&mut self) -> (Changes, Vec<Arc<AuditRecord>>, Vec<Done>) {
        let (mut changes, mut dones) = (Changes::default(), Vec::new());
        self.gone.iter().for_each(|gone| changes.delete(&**gone));
        let mut records: Vec<Arc<AuditRecord>> = Vec::new();
        // The newest entry of each chain.
        let mut last: BTreeMap<Chain, String> = BTreeMap::new();
        for (number, Waiting { entry, changes: more, done }) in
            (self.last_number + 1..).zip(std::mem::take(&mut self.waiting))
        {
            let chain = chain(entry.cause, &entry.who);
            let stored = self.chains.get(&chain).and_then(VecDeque::back);
            let before = last.get(&chain).cloned().or_else(|| stored.map(|last| hash(last)));
            let record = AuditRecord { number, before: before.unwrap_or_default(), ..entry };
            last.insert(chain, hash(&record));
            changes.put(&record);
            changes.extend(more);
            records.push(Arc::new(record));
            dones.push(done);
        }
        (changes, records, dones)
    }

    /// Keeps an entry. Returns the entry to delete, where the cause has too many.
    fn keep(&mut self, record: Arc<AuditRecord>) -> Option<Arc<AuditRecord>> {
        let cause = record.cause;
        self.chains.entry(chain(cause, &record.who)).or_default().push_back(record);
        let count = self.counts.entry(cause).or_default();
        *count += 1;
        if *count <= entries_max(cause) {
            return None;
        }
        *count -= 1;
        let of_cause = self.chains.iter_mut().filter(|((of, _), _)| *of == cause);
        // Of several the one whose first entry is oldest.
        let order = |chain: &VecDeque<Arc<AuditRecord>>| {
            (chain.len(), Reverse(chain.front().map(|first| first.number)))
        };
        let (_, longest) = of_cause.max_by_key(|(_, chain)| order(chain))?;
        let gone = longest.pop_front();
        self.chains.retain(|_, chain| !chain.is_empty());
        gone
    }
}

/// An entry about an action that the coordinator takes by itself, or that the agent of this node
/// caused.
pub(crate) fn entry(now: Now, node: Option<String>, action: &str, subject: String) -> AuditRecord {
    let (who, cause) = match node {
        Some(node) => (format!("agent of {node}"), Cause::Agent),
        None => ("coordinator".to_string(), Cause::User),
    };
    let (action, wall_ns) = (action.to_string(), now.wall_ns);
    AuditRecord { cause, who, action, subject, wall_ns, ..AuditRecord::default() }
}

/// An entry could not be written.
#[derive(Debug, thiserror::Error)]
#[error("the audit cannot be written: {0}")]
pub(crate) struct NotWritten(String);

impl Audit {
    /// Takes up the audit of an earlier process.
    pub(crate) fn new(store: Store, counters: Arc<Counters>, records: Vec<AuditRecord>) -> Self {
        let mut kept = Kept::default();
        records.into_iter().for_each(|record| kept.add(Arc::new(record)));
        Self { store, counters, kept: Arc::new(Mutex::new(kept)) }
    }

    /// Adds an entry, and waits until it is stored.
    ///
    /// # Errors
    /// It could not be stored; that is counted.
    pub(crate) async fn write(&self, entry: AuditRecord) -> Result<(), NotWritten> {
        let stopping = |_| Err(NotWritten("the coordinator is stopping".to_string()));
        self.note(entry).await.unwrap_or_else(stopping)
    }

    /// Adds an entry about a read, unless the caller has read the same within a minute.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(crate) async fn write_read(
        &self,
        now_ns: u64,
        entry: AuditRecord,
    ) -> Result<(), NotWritten> {
        let read = [&entry.who, &entry.action, &entry.subject].map(String::clone);
        let written = {
            let mut kept = self.kept();
            kept.reads.retain(|_, (at_ns, _)| now_ns.saturating_sub(*at_ns) < READ_ONCE_NS);
            kept.reads.entry(read).or_insert_with(|| (now_ns, Arc::default())).1.clone()
        };
        written.get_or_try_init(|| self.write(entry)).await.copied()
    }

    /// Entries with greater numbers than `after`, oldest first, and the first kept entry whose hash
    /// does not match its predecessor.
    pub(crate) fn read(&self, after: u64, max: usize) -> (Vec<AuditRecord>, Option<u64>) {
        // Copied: the loop may want to add one while all of them are hashed.
        let chains: Vec<_> = self.kept().chains.values().cloned().map(Vec::from_iter).collect();
        let broken = chains.iter().filter_map(|chain| broken_at(chain)).min();
        let all = chains.iter().flatten();
        let mut newer: Vec<_> = all.filter(|record| record.number > after).collect();
        newer.sort_by_key(|record| record.number);
        (newer.into_iter().take(max).map(|record| AuditRecord::clone(record)).collect(), broken)
    }

    /// Adds an entry. Returns what comes of it; an entry that is not stored is counted.
    pub(crate) fn note(&self, entry: AuditRecord) -> oneshot::Receiver<Result<(), NotWritten>> {
        let (reply, written) = oneshot::channel();
        let done = move |result: memtape_store::Result<()>| {
            drop(reply.send(result.map_err(|error| NotWritten(error.to_string()))));
        };
        self.note_with(entry, Changes::default(), Box::new(done));
        written
    }

    /// Adds an entry with changes that it is about: both are stored, or neither.
    pub(crate) fn note_with(&self, entry: AuditRecord, changes: Changes, done: Done) {
        self.kept().waiting.push(Waiting { entry, changes, done });
        self.write_waiting();
    }

    /// Stores all waiting entries as one change, unless others are being stored.
    fn write_waiting(&self) {
        let mut kept = self.kept();
        if kept.is_writing || kept.waiting.is_empty() {
            return;
        }
        kept.is_writing = true;
        let (changes, records, waiting) = kept.numbered();
        let deleted = kept.gone.len();
        drop(kept);
        let mut writing = Writing { audit: self.clone(), records, waiting, deleted };
        self.store.try_write(changes, Box::new(move |result| writing.finish(&result)));
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first entry of a chain whose hash does not match its predecessor.
fn broken_at(chain: &[Arc<AuditRecord>]) -> Option<u64> {
    let mut pairs = chain.iter().zip(chain.iter().skip(1));
    let broken = pairs.find(|(before, record)| record.before != hash(before));
    broken.map(|(_, record)| record.number)
}

fn hash(record: &AuditRecord) -> String {
    // A plain struct of texts and numbers; its JSON cannot fail.
    let json = serde_json::to_vec(record).unwrap_or_default();
    blake3::hash(&json).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use memtape_simulated_disk::SimulatedDisk;

    use super::*;

    impl Audit {
        /// All entries, once no entry waits for the store.
        pub(crate) fn settled(&self) -> Vec<AuditRecord> {
            while self.kept().is_writing {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            self.read(0, usize::MAX).0
        }
    }

    #[test]
    fn what_agents_cause_pushes_out_nothing_that_users_did() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _, _) = Store::open(folder.path()).unwrap();
        let audit = Audit::new(store.clone(), Arc::default(), Vec::new());
        let now = Now { mono_ns: 1, wall_ns: 1 };
        let note = |cause, subject: &str| {
            let own = entry(now, None, "act", subject.to_string());
            audit.note(AuditRecord { cause, ..own }).blocking_recv().unwrap().unwrap();
        };
        note(Cause::User, "first");
        note(Cause::Agent, "first of agents");
        for _ in 0..AUDIT_AGENT_ENTRIES_MAX + 10 {
            note(Cause::Refusal, "flood");
        }
        note(Cause::User, "last");
        let (entries, broken) = audit.read(0, usize::MAX);
        assert_eq!(broken, None);
        assert_eq!(entries.len(), AUDIT_AGENT_ENTRIES_MAX + 3);
        let first = entries[..2].iter().map(|of| of.subject.as_str());
        assert!(first.eq(["first", "first of agents"]));
        assert_eq!(entries.last().map(|of| of.subject.as_str()), Some("last"));
        assert!(entries.is_sorted_by(|a, b| a.number < b.number));
        // As an earlier process left it, the chains go on; a change shows itself in either.
        let mut records = entries.clone();
        records[7].subject.clear();
        let next = records[8].number;
        assert_eq!(Audit::new(store.clone(), Arc::default(), records).read(0, 1).1, Some(next));
        let again = Audit::new(store.clone(), Arc::default(), entries.clone());
        let more = again.note(entry(now, None, "act", "more".to_string()));
        more.blocking_recv().unwrap().unwrap();
        assert_eq!(again.read(0, 1).1, None);
        let mut records = entries.clone();
        records[0].subject.clear();
        let last = records[records.len() - 1].number;
        assert_eq!(Audit::new(store.clone(), Arc::default(), records).read(0, 1).1, Some(last));
    }

    /// One viewer's reads, and what the agent of one node causes, push out none of another.
    #[test]
    fn each_caller_has_a_share_of_the_audit() {
        for (cause, max) in
            [(Cause::Read, AUDIT_ENTRIES_MAX), (Cause::Agent, AUDIT_AGENT_ENTRIES_MAX)]
        {
            let (mut kept, mut gone) = (Kept::default(), Vec::new());
            for number in 0..max as u64 + 10 {
                let who = if number < 2 { "alice" } else { "mallory" }.to_string();
                let record = AuditRecord { cause, number, who, ..AuditRecord::default() };
                gone.extend(kept.keep(Arc::new(record)).map(|record| record.number));
            }
            assert!(gone.into_iter().eq(2..12), "{cause:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let (store, _, _) = Store::open(folder.path()).unwrap();
        let audit = Audit::new(store.clone(), Arc::default(), Vec::new());
        for node in ["a", "b", "a", "b"] {
            let node = Some(node.to_string());
            let noted = audit.note(entry(Now::default(), node, "act", String::new()));
            noted.blocking_recv().unwrap().unwrap();
        }
        let (mut entries, broken) = audit.read(0, usize::MAX);
        assert_eq!((entries.len(), broken), (4, None));
        entries[0].subject = "other".to_string();
        assert_eq!(Audit::new(store, Arc::default(), entries).read(0, 1).1, Some(3));
    }

    #[tokio::test]
    async fn equal_reads_at_once_are_one_entry() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _, _) = Store::open(folder.path()).unwrap();
        let audit = Audit::new(store, Arc::default(), Vec::new());
        let read = || audit.write_read(1, entry(Now::default(), None, "read", "one".to_string()));
        let (first, second) = tokio::join!(read(), read());
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(audit.read(0, usize::MAX).0.len(), 1);
    }

    /// Neither a number nor a link of the chain goes to an entry that is not stored.
    #[test]
    fn what_is_not_stored_is_not_in_the_audit() {
        let disk = SimulatedDisk::new(1);
        let (store, _, _) = Store::open_in_turns(&disk.process()).unwrap();
        let audit = Audit::new(store.clone(), Arc::default(), Vec::new());
        let note = |subject: &str| audit.note(entry(Now::default(), None, "act", subject.into()));
        let subjects = |audit: &Audit| {
            let (entries, broken) = audit.read(0, usize::MAX);
            assert_eq!(broken, None);
            let shown = |of: AuditRecord| (of.number, of.subject);
            entries.into_iter().map(shown).collect::<Vec<_>>()
        };
        drop(note("first"));
        // They wait for the first, and are stored with each other.
        let (mut second, mut third) = (note("second"), note("third"));
        assert_eq!(subjects(&audit), []);
        while store.turn() {}
        assert!(second.try_recv().unwrap().is_ok() && third.try_recv().unwrap().is_ok());
        disk.fail_writes(1 << 20);
        let mut refused = note("refused");
        while store.turn() {}
        assert!(refused.try_recv().unwrap().is_err());
        disk.fail_writes(0);
        drop(note("fourth"));
        while store.turn() {}
        let of = |number: u64, subject: &str| (number, subject.to_string());
        let expected = [of(1, "first"), of(2, "second"), of(3, "third"), of(4, "fourth")];
        assert_eq!(subjects(&audit), expected);
        drop((audit, store));
        let (store, loaded, _) = Store::open_in_turns(&disk.process()).unwrap();
        assert_eq!(subjects(&Audit::new(store, Arc::default(), loaded.audit)), expected);
    }
}
