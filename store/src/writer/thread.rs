//! The store's one writing thread.
//!
//! It takes all jobs that wait, writes their changes to the journal with one sync, then to the
//! catalogue, then calls the waiting callbacks. In a simulation there is no thread, and the caller
//! runs the same work. When the journal cannot be written (a full disk), changes that must not be
//! lost are kept, up to a bound, and tried again.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use memtape_core::limits::CHANGES_WAITING_MAX;
use memtape_core::placement::Proof;

use crate::clock::{ClockWatch, Jump};
use crate::encoding::Changes;
use crate::error::{During, Error, Result};
use crate::inventory::{Extent, Part};
use crate::journal::Journal;
use crate::last_errors::Written;
use crate::records::{Source, StepRecord};
use crate::recovery::losses;
use crate::steps::packer::{StepLimits, Steps};
use crate::writer::point::{Pin, Point, Taken};
use crate::writer::shared::{Done, Proved, Shared};
use memtape_disk::clock::{self, Now};
use memtape_disk::tree::Change;

/// Time between two packings of steps. Longer makes fewer and better packed blocks, and needs more
/// memory for waiting rows.
const PACK_EVERY_NS: u64 = 60_000_000_000;

/// Time until a packing that failed is tried again.
const PACK_AGAIN_NS: u64 = 1_000_000_000;

/// Least time between two syncs of the log of steps. Agents wait so much longer for their answer,
/// and the disk is left in peace.
const LOG_SYNC_EVERY_NS: u64 = 50_000_000;

/// Time between two checks of the files' presence.
const FILES_LOOK_EVERY_NS: u64 = 10_000_000_000;

/// Time between two slices of a merging, which nothing waits for.
const MERGE_EVERY: Duration = Duration::from_millis(10);

/// Interval of the thread's checks while it has no job.
const IDLE: Duration = Duration::from_secs(1);

/// Jobs in one group, with their changes and steps. Then the due work is done.
const GROUP_MAX: u64 = 4096;

/// Something to do.
pub(crate) enum Job {
    /// Write records.
    Write { changes: Vec<Change>, done: Done, is_kept: bool },
    /// Take finished steps.
    Steps { batch: Vec<(Source, Vec<StepRecord>)>, done: Done },
    /// Prove that the store is still owned.
    Prove { proved: Proved },
    /// Delete the steps of an attempt.
    Forget { serial: u32 },
    /// Pack and sync everything.
    Flush { done: Done },
    /// List the files with their lengths, covering everything acknowledged until now.
    Point { pin: Pin, taken: Taken },
}

impl Job {
    /// Numbers of changes of records, and of step records, in the job.
    pub(crate) fn sizes(&self) -> (u64, u64) {
        match self {
            Self::Write { changes, .. } => (changes.len() as u64, 0),
            Self::Steps { batch, .. } => (0, batch.iter().map(|(_, rows)| rows.len() as u64).sum()),
            Self::Prove { .. } | Self::Forget { .. } | Self::Flush { .. } | Self::Point { .. } => {
                (0, 0)
            }
        }
    }
}

/// Changes with the callbacks that wait for them.
struct Group {
    changes: Vec<Change>,
    done: Done,
    is_kept: bool,
}

pub(crate) struct Writer {
    journal: Journal,
    steps: Steps,
    shared: Arc<Shared>,
    kept: VecDeque<Group>,
    /// Callbacks that wait for logged steps to be durable.
    logged: Vec<Done>,
    /// Callbacks whose steps are not in the log, and later ones: they wait until all open steps are
    /// packed. An acknowledgement speaks for all reports before it.
    unlogged: Vec<Done>,
    /// The same, for the rows being packed.
    frozen: Vec<Done>,
    /// Callbacks whose steps are durable; they wait for the records before them.
    safe: Vec<Done>,
    log_synced_ns: u64,
    packed_ns: u64,
    looked_ns: u64,
    clock: ClockWatch,
}

/// Starts the thread. It ends, with everything packed, when the last sender is gone.
pub(crate) fn start(writer: Writer) -> io::Result<Sender<Job>> {
    let (sender, jobs) = channel();
    std::thread::Builder::new().name("store".to_string()).spawn(move || writer.run(&jobs))?;
    Ok(sender)
}

impl Writer {
    pub(crate) fn new(
        journal: Journal,
        steps: Steps,
        shared: Arc<Shared>,
        clock: ClockWatch,
    ) -> Self {
        Self {
            journal,
            steps,
            shared,
            kept: VecDeque::new(),
            logged: Vec::new(),
            unlogged: Vec::new(),
            frozen: Vec::new(),
            safe: Vec::new(),
            log_synced_ns: 0,
            packed_ns: clock::now().mono_ns,
            looked_ns: clock::now().mono_ns,
            clock,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            let first = match jobs.recv_timeout(self.idle()) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            self.group(first, jobs);
            self.look_after();
        }
        self.sync_log();
        let packed = self.pack_all();
        self.step_failed(&packed);
        self.upkeep("the catalogue is not flushed", self.shared.catalogue.flush());
    }

    /// Time for which there is no work but jobs.
    fn idle(&self) -> Duration {
        if self.steps.is_packing() {
            return Duration::ZERO;
        }
        let idle = if self.steps.is_merging() { MERGE_EVERY } else { IDLE };
        if self.logged.is_empty() {
            return idle;
        }
        let passed_ns = clock::now().mono_ns.saturating_sub(self.log_synced_ns);
        idle.min(Duration::from_nanos(LOG_SYNC_EVERY_NS.saturating_sub(passed_ns)))
    }

    /// Does all waiting work; true if there was any.
    pub(crate) fn turn(&mut self, jobs: &Receiver<Job>) -> bool {
        let mut any = false;
        let mut next = jobs.try_recv().ok();
        while next.is_some() || (!any && !self.kept.is_empty()) {
            any = true;
            self.group(next, jobs);
            next = jobs.try_recv().ok();
        }
        self.sync_log();
        any |= self.look_after();
        while self.steps.is_packing() {
            any = true;
            self.pack_slice();
        }
        while self.steps.is_merging() && !self.is_backed_up() {
            any = true;
            self.merge_slice();
        }
        any
    }

    /// Does a job with the jobs waiting behind it, as many as fit in a group.
    fn group(&mut self, first: Option<Job>, jobs: &Receiver<Job>) {
        let (mut groups, mut others, mut proofs) = (Vec::new(), Vec::new(), Vec::new());
        let (mut next, mut size) = (first, 0);
        while let Some(job) = next {
            let (changes, steps) = job.sizes();
            size += 1 + changes + steps;
            self.shared.health.queued.fetch_sub(changes, Relaxed);
            match job {
                Job::Write { changes, done, is_kept } => {
                    groups.push(Group { changes, done, is_kept });
                }
                Job::Prove { proved } => proofs.push(proved),
                other => others.push(other),
            }
            next = if size < GROUP_MAX { jobs.try_recv().ok() } else { None };
        }
        // Records come first, with one sync for all: an acknowledgement of steps covers the records
        // before it.
        self.commit(groups);
        others.into_iter().for_each(|job| self.other(job));
        if !proofs.is_empty() {
            self.prove(proofs);
        }
    }

    /// Proves once, for all who wait for it, that the store is still owned.
    fn prove(&self, waiting: Vec<Proved>) {
        let proof = Proof::new(clock::now().mono_ns);
        let is_owned = self.shared.lock.prove().map_err(Error::from);
        waiting.into_iter().for_each(|proved| proved(is_owned.clone().map(|()| proof)));
    }

    fn other(&mut self, job: Job) {
        let shared = self.shared.clone();
        let Shared { open, health, .. } = &*shared;
        let (_, rows) = job.sizes();
        match job {
            Job::Write { .. } | Job::Prove { .. } => {}
            Job::Steps { batch, done } if !open.admits(&batch) => {
                health.steps_given_up.fetch_add(rows, Relaxed);
                self.pack_soon();
                done(Err(Error::io("too many steps of the node wait to be packed")));
            }
            Job::Steps { batch, done } => {
                let appended = self.steps.append(open, batch).map_err(Error::from);
                self.step_failed(&appended);
                if appended.is_ok() && self.is_all_logged() {
                    self.logged.push(done);
                } else {
                    self.unlogged.push(done);
                }
                if appended.is_err() {
                    // What is open and not logged is safe when it is packed.
                    self.pack_soon();
                }
                if self.steps.is_long(self.limits().bytes_max) {
                    self.begin_packing();
                }
            }
            Job::Point { pin, taken } => taken(self.point(pin)),
            Job::Forget { serial } => self.steps.forget(open, serial),
            Job::Flush { done } => {
                self.sync_log();
                let packed = self.pack_all();
                // What is not in the index then is caught up with at the next start.
                self.upkeep("the catalogue is not flushed", self.shared.catalogue.flush());
                done(packed);
            }
        }
    }

    /// True if no steps wait for a packing: logged steps may be acknowledged once they are synced.
    fn is_all_logged(&self) -> bool {
        self.unlogged.is_empty() && self.frozen.is_empty()
    }

    /// Notes a failed write of steps. Only when all that waits is packed is it over.
    fn step_failed<T>(&self, result: &Result<T>) {
        if result.is_err() {
            self.note(Written::Steps, result);
            self.shared.health.step_failures.fetch_add(1, Relaxed);
        }
    }

    /// Makes the log of steps durable, and calls the waiting callbacks.
    fn sync_log(&mut self) {
        self.log_synced_ns = clock::now().mono_ns;
        if self.logged.is_empty() {
            return;
        }
        let synced = self.steps.sync_log().map_err(Error::from);
        let logged = std::mem::take(&mut self.logged);
        self.step_failed(&synced);
        if synced.is_err() {
            self.unlogged.splice(..0, logged);
            self.pack_soon();
        } else {
            self.safe.extend(logged);
            self.tell_safe();
        }
    }

    /// Writes the journal, then the catalogue, then calls the waiting callbacks.
    fn commit(&mut self, new: Vec<Group>) {
        // What could not be written before comes first, or it would undo what is newer.
        let groups: Vec<Group> = self.kept.drain(..).chain(new).collect();
        if groups.is_empty() {
            return;
        }
        let begin_ns = clock::now().mono_ns;
        let changes = || groups.iter().flat_map(|group| &group.changes);
        let health = &self.shared.health;
        let appended = self.shared.lock.check().and_then(|()| self.journal.append(changes()));
        let appended = appended.map_err(Error::from);
        // Where there was nothing to write, it succeeds on a full disk, too.
        if changes().next().is_some() && self.note(Written::Records, &appended) {
            // The journal may be gone, and is put back then.
            self.looked_ns = 0;
        }
        if let Err(error) = appended {
            self.keep(groups, &error);
            return;
        }
        // The records are safe now. A catalogue that fails is filled again at the next start.
        let extent = Extent { bytes: self.journal.sequence(), rows: 0 };
        self.shared.inventory.durable(Part::Journal, extent);
        let applied = self.shared.catalogue.write(changes());
        health.commits.fetch_add(1, Relaxed);
        health.journal_bytes.store(self.journal.len_bytes(), Relaxed);
        let took_ns = clock::now().mono_ns.saturating_sub(begin_ns);
        health.commit_ns.fetch_add(took_ns, Relaxed);
        self.upkeep("the catalogue is not written; the journal has everything", applied);
        for group in groups {
            (group.done)(Ok(()));
        }
        self.shared.health.waiting.store(0, Relaxed);
    }

    fn keep(&mut self, groups: Vec<Group>, why: &Error) {
        let shared = self.shared.clone();
        let health = &shared.health;
        let mut waiting = 0;
        let mut is_given_up = false;
        for group in groups {
            let count = group.changes.len();
            if group.is_kept && waiting + count <= CHANGES_WAITING_MAX {
                waiting += count;
                self.kept.push_back(group);
            } else {
                health.given_up.fetch_add(if group.is_kept { count as u64 } else { 0 }, Relaxed);
                is_given_up |= group.is_kept;
                (group.done)(Err(why.clone()));
            }
        }
        health.waiting.store(waiting as u64, Relaxed);
        if is_given_up {
            // Agents have to say all of it again.
            let waiting = [&mut self.logged, &mut self.unlogged, &mut self.frozen, &mut self.safe];
            let waiting = waiting.into_iter().flat_map(std::mem::take);
            waiting.for_each(|done| done(Err(why.clone())));
        }
    }

    fn store_ns(&self) -> i64 {
        self.shared.clock.at(clock::now())
    }

    /// Reports a jump of the wall clock, and notes the store's clock when that is due.
    fn look_at_clock(&mut self, now: Now) {
        if let Some(jump) = self.clock.look(now) {
            self.jumped(jump);
        }
        if let Some(record) = self.clock.due(now) {
            let changes = Changes::of(record).into_inner();
            // What cannot be written now is written at its next time.
            self.commit(vec![Group { changes, done: Box::new(|_| {}), is_kept: false }]);
        }
    }

    /// Tells a jump of the wall clock.
    pub(crate) fn jumped(&self, jump: Jump) {
        self.shared.health.clock_jumps.fetch_add(1, Relaxed);
        tracing::warn!(
            "the machine's wall clock jumped {jump}: times shown are off, nothing stored is hidden \
             or deleted by it; check NTP"
        );
    }

    /// Does the due work; returns whether a snapshot was removed.
    fn look_after(&mut self) -> bool {
        let now = clock::now();
        self.look_at_clock(now);
        let now_ns = now.mono_ns;
        if now_ns.saturating_sub(self.log_synced_ns) >= LOG_SYNC_EVERY_NS {
            self.sync_log();
        }
        if now_ns.saturating_sub(self.packed_ns) >= PACK_EVERY_NS {
            self.begin_packing();
        }
        self.pack_slice();
        self.tell_safe();
        if now_ns.saturating_sub(self.looked_ns) >= FILES_LOOK_EVERY_NS {
            self.looked_ns = now_ns;
            self.look_at_files(now);
        }
        if self.journal.is_bloated() {
            let rewritten = self.rewrite_journal();
            self.upkeep("the journal is not shortened", rewritten);
        }
        !self.is_backed_up() && self.shared.blobs.remove_released()
    }

    fn is_backed_up(&self) -> bool {
        self.shared.backups.load(Relaxed) > 0
    }

    /// Checks that all files exist. Rewrites files whose contents are in memory; others are lost.
    fn look_at_files(&mut self, now: Now) {
        let shared = self.shared.clone();
        if let Err(why) = shared.lock.check() {
            self.note::<()>(Written::Records, &Err(why.into()));
            return;
        }
        match self.journal.is_there() {
            Ok(false) => self.save_journal(),
            there => self.upkeep("the journal is not seen", there),
        }
        let found = losses::find(&*shared.reader.disk, &shared.inventory.expected());
        let found = found.during(|| "the files of the store cannot be listed".to_string());
        self.step_failed(&found);
        let mut found = found.unwrap_or_default();
        if found.is_empty() {
            return;
        }
        match self.steps.go_on_without(&found) {
            Ok(true) => {
                // They wait until what the log held is packed.
                let logged = std::mem::take(&mut self.logged);
                self.unlogged.splice(..0, logged);
                self.begin_packing();
            }
            Ok(false) => {}
            Err(why) => {
                self.step_failed::<()>(&Err(why.into()));
                self.pack_soon();
            }
        }
        found.retain(|loss| match loss.part {
            Part::Log(_) => {
                shared.health.put_back.fetch_add(1, Relaxed);
                tracing::error!("{} is gone: the steps in it are packed from memory", loss.part);
                false
            }
            _ => true,
        });
        for loss in &mut found {
            loss.found_wall_ns = now.wall_ns;
            tracing::error!("{} {}", loss.part, loss.what());
        }
        if !found.is_empty() {
            let settled = shared
                .inventory
                .lost(|expected| found.into_iter().for_each(|loss| expected.settle(loss)));
            self.upkeep("the inventory is not written", settled);
        }
    }

    /// Writes the journal again from its open file; from the catalogue if that was cut or damaged.
    fn rewrite_journal(&mut self) -> Result<()> {
        let (live, is_damaged) = match self.journal.contents() {
            Ok(contents) => (contents.live, false),
            Err(why) => (self.shared.catalogue.records().map_err(|_| Error::from(why))?, true),
        };
        Ok(self.journal.rewrite(&live, is_damaged)?)
    }

    /// Writes the journal again, because it is gone or cut.
    fn save_journal(&mut self) {
        let saved = self.rewrite_journal();
        self.note(Written::Journal, &saved);
        if saved.is_ok() {
            self.shared.health.put_back.fetch_add(1, Relaxed);
            tracing::error!("the journal was gone or cut: it is written again, nothing is lost");
        }
    }

    fn point(&mut self, pin: Pin) -> Result<Point> {
        self.sync_log();
        let table = self.steps.table().lock();
        let steps = table.iter().map(|(number, known)| (*number, known.bytes)).collect();
        drop(table);
        let newest = self.steps.newest_log();
        let (disk, bytes) = (&*self.shared.reader.disk, self.journal.len_bytes());
        Ok(Point::take(disk, bytes, newest, steps, pin)?)
    }

    fn begin_packing(&mut self) {
        // What is in the log so far is synced; the next sync is of another file.
        self.sync_log();
        self.packed_ns = clock::now().mono_ns;
        let begun = self.freeze();
        self.packed(begun);
    }

    /// Begins to pack all open steps, with the callbacks that wait for them.
    fn freeze(&mut self) -> Result<()> {
        let was_frozen = self.steps.is_frozen();
        let Shared { catalogue, open, .. } = &*self.shared;
        let begun = self.steps.begin_packing(open, catalogue, self.store_ns());
        if !was_frozen && (begun.is_ok() || self.steps.is_frozen()) {
            self.frozen.append(&mut self.unlogged);
        }
        begun
    }

    /// Calls the callbacks whose steps are durable. An acknowledgement speaks for the records
    /// before it, too: while these wait for the journal, it waits; and while the folder is gone.
    fn tell_safe(&mut self) {
        if self.kept.is_empty() && self.shared.lock.check().is_ok() {
            std::mem::take(&mut self.safe).into_iter().for_each(|done| done(Ok(())));
        }
    }

    /// Handles that all frozen steps are packed and durable.
    fn tell_frozen(&mut self) {
        self.safe.append(&mut self.frozen);
        self.tell_safe();
        if !self.unlogged.is_empty() {
            self.pack_soon();
        }
    }

    fn pack_slice(&mut self) {
        if self.steps.is_packing() {
            let packed = self.steps.pack_slice(&self.shared.open, &self.shared.catalogue);
            self.packed(packed);
        }
        if !self.steps.is_packing() {
            let store_ns = self.store_ns();
            let forgotten = self.steps.forget_packed(&self.shared.catalogue, store_ns);
            self.upkeep("steps are not deleted", forgotten);
            self.merge_slice();
        }
    }

    fn merge_slice(&mut self) {
        if !self.is_backed_up() {
            let merged = self.steps.merge_slice(&self.shared.catalogue);
            self.upkeep("blocks of steps are not merged", merged);
        }
    }

    fn packed(&mut self, packed: Result<()>) {
        self.step_failed(&packed);
        if packed.is_err() {
            self.pack_soon();
        } else if !self.steps.is_packing() {
            self.note(Written::Steps, &packed);
            self.tell_frozen();
            self.expire();
            let merging = self.steps.begin_merging(&self.shared.catalogue);
            self.upkeep("blocks of steps are not merged", merging);
        }
    }

    /// Packs as soon as it runs: the log is damaged, and goes then.
    pub(crate) fn pack_now(&mut self) {
        self.packed_ns = 0;
    }

    /// Schedules a packing soon: some steps may not be in the log.
    fn pack_soon(&mut self) {
        let soon_ns = clock::now().mono_ns + PACK_AGAIN_NS;
        self.packed_ns = self.packed_ns.min(soon_ns.saturating_sub(PACK_EVERY_NS));
    }

    /// Packs everything, at once.
    fn pack_all(&mut self) -> Result<()> {
        // The second time for what came after the beginning of one that was under way.
        for _ in 0..2 {
            self.freeze()?;
            while self.steps.is_packing() {
                self.steps.pack_slice(&self.shared.open, &self.shared.catalogue)?;
            }
            self.tell_frozen();
        }
        let store_ns = self.store_ns();
        let forgotten = self.steps.forget_packed(&self.shared.catalogue, store_ns);
        self.expire();
        forgotten
    }

    fn limits(&self) -> StepLimits {
        *self.shared.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deletes steps beyond their limits.
    fn expire(&mut self) {
        if self.is_backed_up() {
            return;
        }
        let health = &self.shared.health;
        let (store_ns, limits) = (self.store_ns(), self.limits());
        let expired = self.steps.expire(&self.shared.catalogue, store_ns, limits);
        if let Ok(expired) = &expired {
            health.steps_expired_by_age.fetch_add(expired.by_age, Relaxed);
            health.steps_expired_by_bytes.fetch_add(expired.by_bytes, Relaxed);
            health.steps_expired_bytes.fetch_add(expired.bytes, Relaxed);
        }
        self.upkeep("old steps are not deleted", expired);
    }

    /// Notes the result of a write; true if its kind begins to fail.
    fn note<T>(&self, what: Written, result: &Result<T>) -> bool {
        self.shared.health.failures.fetch_add(u64::from(result.is_err()), Relaxed);
        self.shared.errors.note(what, result)
    }

    /// Notes failed upkeep. One kind says nothing of another: none of them ends a failure.
    fn upkeep<T, E: Into<Error>>(&self, what: &str, result: Result<T, E>) {
        if result.is_err() {
            self.note(Written::Upkeep, &result.during(|| what.to_string()));
        }
    }
}
