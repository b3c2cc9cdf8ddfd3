//! The audit: who did what, when, and from where.
//!
//! Entries are only ever added. Each holds the hash of the one before, so that a changed or missing
//! one shows itself. The oldest go when there are too many. An entry is in the store before the
//! work begins where the file of roles asks for it; else the work goes on, and the loss is counted.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memtape_core::limits::AUDIT_ENTRIES_MAX;
use tokio::sync::oneshot;

use crate::clock::Now;
use crate::records::AuditRecord;
use crate::state::counters::{Counters, Loss};
use crate::store::writer::shared::Done;
use crate::store::{Changes, Store};

/// Time in which the same read by the same caller is one entry.
const READ_ONCE_NS: u64 = 60_000_000_000;

/// The audit.
#[derive(Clone, Debug)]
pub(crate) struct Audit {
    store: Store,
    counters: Arc<Counters>,
    kept: Arc<Mutex<VecDeque<Arc<AuditRecord>>>>,
    /// Reads that were written down lately, and when.
    reads: Arc<Mutex<HashMap<Read, u64>>>,
}

/// Who read what.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Read {
    who: String,
    action: &'static str,
    subject: String,
}

impl Read {
    fn of(entry: &Entry) -> Self {
        let (who, subject) = (entry.who.clone(), entry.subject.clone());
        Self { who, action: entry.action, subject }
    }
}

/// Something to be written down.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) who: String,
    pub(crate) from: Option<SocketAddr>,
    pub(crate) request: u64,
    pub(crate) action: &'static str,
    pub(crate) subject: String,
    pub(crate) wall_ns: i64,
}

impl Entry {
    /// What the coordinator does without being asked.
    pub(crate) fn own(now: Now, action: &'static str, subject: String) -> Self {
        let who = "coordinator".to_string();
        Self { who, action, subject, wall_ns: now.wall_ns, ..Self::default() }
    }
}

/// An entry could not be written.
#[derive(Debug, thiserror::Error)]
#[error("the audit cannot be written, and audit = \"required\" refuses the request: {0}")]
pub(crate) struct NotWritten(String);

impl Audit {
    /// Takes up the audit of an earlier process.
    pub(crate) fn new(store: Store, counters: Arc<Counters>, records: Vec<AuditRecord>) -> Self {
        let kept = records.into_iter().map(Arc::new).collect();
        Self { store, counters, kept: Arc::new(Mutex::new(kept)), reads: Arc::default() }
    }

    /// Adds an entry, and waits until it is stored.
    ///
    /// # Errors
    /// It could not be stored; that is counted.
    pub(crate) async fn write(&self, entry: Entry) -> Result<(), NotWritten> {
        let (reply, written) = oneshot::channel();
        self.add(entry, Box::new(move |result| drop(reply.send(result))));
        let written = match written.await {
            Ok(written) => written.map_err(|error| error.to_string()),
            Err(_) => Err("the coordinator is stopping".to_string()),
        };
        written.map_err(|why| {
            self.counters.lose(Loss::AuditEntry, 1);
            NotWritten(why)
        })
    }

    /// Has the caller read the same within a minute? Then it is written down already: one who reads
    /// the ranks of a capture in turn is one entry.
    pub(crate) fn has_read(&self, now_ns: u64, entry: &Entry) -> bool {
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        reads.retain(|_, at_ns| now_ns.saturating_sub(*at_ns) < READ_ONCE_NS);
        reads.contains_key(&Read::of(entry))
    }

    /// Adds an entry about a read.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(crate) async fn write_read(&self, now_ns: u64, entry: Entry) -> Result<(), NotWritten> {
        let read = Read::of(&entry);
        self.write(entry).await?;
        self.reads.lock().unwrap_or_else(PoisonError::into_inner).insert(read, now_ns);
        Ok(())
    }

    /// Adds an entry about what the coordinator itself does.
    pub(crate) fn note(&self, entry: Entry) {
        let counters = self.counters.clone();
        self.add(
            entry,
            Box::new(move |result| {
                if result.is_err() {
                    counters.lose(Loss::AuditEntry, 1);
                }
            }),
        );
    }

    /// Entries with greater numbers than `after`, oldest first, and the first of all that are kept
    /// that does not fit the one before it.
    pub(crate) fn read(&self, after: u64, max: usize) -> (Vec<AuditRecord>, Option<u64>) {
        // Copied: the loop may want to add one while all of them are hashed.
        let kept: Vec<Arc<AuditRecord>> = self.kept().iter().cloned().collect();
        let newer = kept.iter().filter(|record| record.number > after);
        let pairs = kept.iter().zip(kept.iter().skip(1));
        let broken = pairs.into_iter().find(|(before, record)| record.before != hash(before));
        let newer = newer.take(max).map(|record| AuditRecord::clone(record));
        (newer.collect(), broken.map(|(_, record)| record.number))
    }

    fn add(&self, entry: Entry, done: Done) {
        // Held until it is handed over: entries are stored in the order of their numbers.
        let mut kept = self.kept();
        let record = AuditRecord {
            number: kept.back().map_or(1, |last| last.number + 1),
            wall_ns: entry.wall_ns,
            who: entry.who,
            from: entry.from.map(|from| from.to_string()).unwrap_or_default(),
            request: entry.request,
            action: entry.action.to_string(),
            subject: entry.subject,
            before: kept.back().map(|last| hash(last)).unwrap_or_default(),
        };
        tracing::info!(
            target: "memtape_audit",
            number = record.number,
            who = ?record.who,
            from = record.from,
            subject = ?record.subject,
            "{}", record.action
        );
        let mut changes = Changes::of(&record);
        if kept.len() >= AUDIT_ENTRIES_MAX
            && let Some(oldest) = kept.pop_front()
        {
            changes.delete(&*oldest);
        }
        kept.push_back(Arc::new(record));
        self.store.try_write(changes, done);
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Arc<AuditRecord>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hash(record: &AuditRecord) -> String {
    // A plain struct of texts and numbers; its JSON cannot fail.
    let json = serde_json::to_vec(record).unwrap_or_default();
    blake3::hash(&json).to_hex().to_string()
}
