//! The store's one writing thread.
//!
//! It takes all jobs that wait, writes their changes to the journal with one sync, then to the
//! catalogue, then tells those who wait. In a simulation there is no thread, and the same is done
//! when it is called for. When the journal cannot be written (a full disk), changes
//! that must not be lost are kept, up to a bound, and tried again.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::journal::{Change, Journal};
use super::steps::{self, StepLog};
use super::{Done, Shared};
use crate::clock;
use crate::model::{SeriesKey, StepRow};

/// Time between two packings of steps. Longer makes fewer and better packed blocks; a machine
/// that loses power loses at most the steps of this time.
const PACK_EVERY_NS: u64 = 60_000_000_000;

/// How often the thread looks up without a job.
const IDLE: Duration = Duration::from_secs(1);

/// Changes in one group.
const GROUP_MAX: usize = 4096;

/// Changes kept while the journal cannot be written.
const KEPT_MAX: usize = 65_536;

/// Something to do.
pub(super) enum Job {
    /// Write records.
    Write { changes: Vec<Change>, done: Done, is_kept: bool },
    /// Take finished steps.
    Steps { batch: Vec<(SeriesKey, Vec<StepRow>)>, done: Done },
    /// Delete the steps of an attempt.
    Forget { serial: u32, from_wall_ns: i64, to_wall_ns: i64 },
    /// Delete old steps.
    Expire { before_wall_ns: i64 },
    /// Pack and sync everything.
    Flush { done: Done },
}

/// Changes with those who wait for them.
struct Group {
    changes: Vec<Change>,
    done: Done,
    is_kept: bool,
}

pub(super) struct Writer {
    journal: Journal,
    log: StepLog,
    shared: Arc<Shared>,
    kept: VecDeque<Group>,
    packed_ns: u64,
    is_failing: bool,
}

/// Starts the thread. It ends, with everything packed, when the last sender is gone.
///
/// # Errors
/// When there can be no more threads.
pub(super) fn start(writer: Writer) -> io::Result<Sender<Job>> {
    let (sender, jobs) = channel();
    std::thread::Builder::new().name("store".to_string()).spawn(move || writer.run(&jobs))?;
    Ok(sender)
}

impl Writer {
    pub(super) fn new(journal: Journal, log: StepLog, shared: Arc<Shared>) -> Self {
        let packed_ns = clock::now().mono_ns;
        Self { journal, log, shared, kept: VecDeque::new(), packed_ns, is_failing: false }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            let first = match jobs.recv_timeout(IDLE) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            self.group(first, jobs);
            self.look_after();
        }
        self.pack_away();
        if let Err(why) = self.shared.catalogue.flush() {
            tracing::warn!("the catalogue could not be flushed: {why}");
        }
    }

    /// Does all that waits; says whether anything did.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn turn(&mut self, jobs: &Receiver<Job>) -> bool {
        let mut any = false;
        let mut next = jobs.try_recv().ok();
        while next.is_some() || (!any && !self.kept.is_empty()) {
            any = true;
            self.group(next, jobs);
            next = jobs.try_recv().ok();
        }
        self.look_after() || any
    }

    /// Does a job with those that wait behind it, as many as fit in a group.
    fn group(&mut self, first: Option<Job>, jobs: &Receiver<Job>) {
        let mut groups = Vec::new();
        let mut next = first;
        while let Some(job) = next {
            // Whatever is no record is done in its turn, after the records before it.
            match job {
                Job::Write { changes, done, is_kept } => {
                    groups.push(Group { changes, done, is_kept });
                }
                other => {
                    self.commit(std::mem::take(&mut groups));
                    self.other(other);
                }
            }
            let is_full = groups.iter().map(|group| group.changes.len()).sum::<usize>();
            next = if is_full < GROUP_MAX { jobs.try_recv().ok() } else { None };
        }
        self.commit(groups);
    }

    fn other(&mut self, job: Job) {
        let Shared { catalogue, open, health, .. } = &*self.shared;
        match job {
            Job::Write { .. } => {}
            Job::Steps { batch, done } => {
                let logged = self.log.append(open, batch).map_err(|error| error.to_string());
                health.step_failures.fetch_add(u64::from(logged.is_err()), Relaxed);
                done(logged);
                if self.log.is_long() {
                    self.pack_away();
                }
            }
            Job::Forget { serial, from_wall_ns, to_wall_ns } => {
                let first = steps::stretch(from_wall_ns).saturating_sub(1);
                let last = steps::stretch(to_wall_ns).saturating_add(1);
                let forgotten = steps::forget(open, catalogue, serial, first..=last);
                self.note(forgotten, "old steps could not be deleted");
            }
            Job::Expire { before_wall_ns } => {
                let expired = std::iter::repeat_with(|| steps::expire(catalogue, before_wall_ns))
                    .find(|expired| !matches!(expired, Ok(false)));
                let expired = expired.unwrap_or(Ok(true)).map(|_| ());
                self.note(expired, "old steps could not be deleted");
            }
            Job::Flush { done } => {
                self.pack_away();
                done(self.shared.catalogue.flush());
            }
        }
    }

    /// Journal, catalogue, then those who wait.
    fn commit(&mut self, new: Vec<Group>) {
        // What could not be written before comes first, or it would undo what is newer.
        let groups: Vec<Group> = self.kept.drain(..).chain(new).collect();
        if groups.is_empty() {
            return;
        }
        let begin_ns = clock::now().mono_ns;
        let changes = || groups.iter().flat_map(|group| &group.changes);
        let health = &self.shared.health;
        if let Err(error) = self.journal.append(changes()) {
            health.failures.fetch_add(1, Relaxed);
            if !std::mem::replace(&mut self.is_failing, true) {
                tracing::error!("the journal cannot be written, trying again: {error}");
            }
            self.keep(groups, &error.to_string());
            return;
        }
        if std::mem::take(&mut self.is_failing) {
            tracing::info!("the journal can be written again");
        }
        // The records are safe now. A catalogue that fails is mended at the next start.
        let applied = self.shared.catalogue.apply(changes(), self.journal.sequence());
        health.commits.fetch_add(1, Relaxed);
        health.journal_bytes.store(self.journal.len_bytes(), Relaxed);
        let took_ns = clock::now().mono_ns.saturating_sub(begin_ns);
        health.commit_ns.fetch_add(took_ns, Relaxed);
        self.note(applied, "the catalogue could not be written; the journal has everything");
        for group in groups {
            (group.done)(Ok(()));
        }
        self.shared.health.waiting.store(0, Relaxed);
    }

    fn keep(&mut self, groups: Vec<Group>, why: &str) {
        let health = &self.shared.health;
        let mut waiting = 0;
        for group in groups {
            let count = group.changes.len();
            if group.is_kept && waiting + count <= KEPT_MAX {
                waiting += count;
                self.kept.push_back(group);
            } else {
                health.given_up.fetch_add(if group.is_kept { count as u64 } else { 0 }, Relaxed);
                (group.done)(Err(why.to_string()));
            }
        }
        health.waiting.store(waiting as u64, Relaxed);
    }

    /// Does what is due; says whether a body was removed.
    fn look_after(&mut self) -> bool {
        let now_ns = clock::now().mono_ns;
        if now_ns.saturating_sub(self.packed_ns) >= PACK_EVERY_NS {
            self.pack_away();
        }
        if self.journal.is_bloated() {
            let compacted = self.journal.compact().map_err(|error| error.to_string());
            self.note(compacted, "the journal could not be written anew");
        }
        self.shared.blobs.remove_released()
    }

    fn pack_away(&mut self) {
        let now = clock::now();
        self.packed_ns = now.mono_ns;
        let Shared { catalogue, open, health, .. } = &*self.shared;
        let packed = self.log.pack_away(open, catalogue, now.wall_ns);
        health.step_failures.fetch_add(u64::from(packed.is_err()), Relaxed);
        self.note(packed, "step records could not be packed");
    }

    fn note(&self, result: Result<(), String>, what: &str) {
        if let Err(why) = result {
            self.shared.health.failures.fetch_add(1, Relaxed);
            tracing::error!("{what}: {why}");
        }
    }
}
