//! The tapes of this node, found and polled once per interval.
//!
//! A tape belongs to the user who owns its file, and its lock to a process of that user. Files that
//! are no tapes, or pretend to be another one, are named in the log once, counted and left alone;
//! they disturb no other tape. `source.rs` finds and reads tapes, `quota.rs` decides whose tapes
//! are kept when there are too many.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use memtape_core::identity::owner::{Namespace, Owner, Workload, owned_tape_id};
use memtape_core::limits::TAPES_PER_NODE_MAX;
use memtape_core::placement::{JobsShard, shard_of};
use memtape_core::rates::Rates;
use memtape_core::redaction::Redaction;
use memtape_core::tape::layout::Clock;
use memtape_core::tape::read::Status;
use memtape_core::tape::read::Tape;
use memtape_proto::readings::{self, RefusedTapes};

use crate::node::accounts::Account;
use crate::node::cgroup::Cgroup;
use crate::node::clock::Now;
use crate::node::ends::State;
use crate::node::machine::Node;
use crate::node::process::{Holder, Process};
use crate::tapes::death::{Life, OomKills, Sighting};
use crate::tapes::liveness::Writer;
use crate::tapes::openings::{Budget, REJECTED_PER_USER_MAX};
use crate::tapes::others::Others;
use crate::tapes::pods::Pod;
use crate::tapes::quota::{Held, Room, Standing, TapeKey};
use crate::tapes::source::{Entry, FileId, NotATape, TapeFile, TapeSource, TapeWords};

/// Files remembered as being no tapes, of all users.
const REJECTED_MAX: usize = 16_384;

/// Maximum parts of the folders read in the first scan, which is to find every tape.
const FIRST_PARTS_MAX: usize = 64;

/// A tape from before the start of the node is deleted when it has not been changed for this long.
const OTHER_BOOT_AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// Maximum files named in the log per scan.
const LOGGED_PER_LOOK_MAX: usize = 8;

/// Tapes and rejected files of an account that the log names at once, and the time until it names
/// one more. All lines about a tape are written, or none.
const LOGGED_AT_ONCE_MAX: u64 = 64;
const LOGGED_EVERY_NS: u64 = 10_000_000_000;

/// Scans of a rejected file before it is named in the log: a tape may be in the making.
const SIGHTINGS_BEFORE_REJECTION: u32 = 3;

/// Looks between two attempts to open a file that was rejected.
const SIGHTINGS_BETWEEN_ATTEMPTS: u32 = 10;

/// A tape, and the state of its process.
#[derive(Debug)]
pub(crate) struct KnownTape {
    /// Path of the file.
    pub(crate) path: PathBuf,
    /// Id of the tape, unique among the tapes of all users.
    tape_id: String,
    /// Owner of the tape.
    pub(crate) owner: Owner,
    /// Account whose quota counts the tape: the user that the owner belongs to; in the folder of a
    /// pod the namespace, or what is not proved there.
    pub(crate) account: Account,
    /// True if the process of the tape was seen when the tape was found.
    is_proved: bool,
    /// Scheduler ids of the process.
    pub(crate) workload: Workload,
    /// The tape; shared with rewinds in progress.
    pub(crate) tape: Arc<Tape<TapeWords>>,
    /// Status at the last scan.
    pub(crate) status: Status,
    /// The life of its process.
    pub(crate) life: Life,
    /// The process, where its pid is known; none once it is gone.
    pub(crate) process: Option<Process>,
    /// The process that no longer holds the tape, until its end is known.
    ending: Option<Process>,
    /// Still in its folder.
    pub(crate) is_linked: bool,
    /// Memory it occupies.
    pub(crate) occupied_bytes: u64,
    /// True if the file was cut short since it was opened: its contents no longer count.
    pub(crate) is_cut: bool,
    /// True if the log names the tape.
    pub(crate) is_logged: bool,
    /// True if the tape could not be deleted: no further attempt is made.
    pub(crate) is_kept: bool,
    /// True if the tape counted turns, and counts steps since the last scan.
    has_new_clock: bool,
    /// True if more is known of its end since the last scan.
    has_new_end: bool,
    file: Arc<dyn TapeFile>,
    id: FileId,
    pod: Option<Arc<Pod>>,
    len_bytes: u64,
    cgroup: Option<Cgroup>,
}

/// All tapes of this node; where a cluster has several shards, the tapes of one shard.
#[derive(Debug)]
pub(crate) struct Tapes {
    source: Box<dyn TapeSource>,
    /// The shard whose tapes these are; none for all.
    jobs: Option<JobsShard>,
    others: Others,
    /// Redaction of command lines, applied to every command line that is sent.
    redaction: Redaction,
    known: BTreeMap<TapeKey, KnownTape>,
    rejected: BTreeMap<FileId, Rejected>,
    keys_given: u64,
    /// True after the first scan, which reads all folders as far as they are bounded.
    has_seen_all: bool,
    /// Rejected files that were seen since everything was seen last.
    seen_rejected: BTreeSet<FileId>,
    refused: RefusedTapes,
    /// Rate of the tapes and files of each account that the log names.
    logged: Rates<Account>,
}

#[derive(Debug)]
struct Rejected {
    /// User; in the folder of a pod, the user there.
    account: Account,
    /// True for a sound tape that exceeds the quota, or is of an earlier start of the node.
    is_tape: bool,
    looks: u32,
    is_logged: bool,
}

impl KnownTape {
    /// Opens a file as a tape.
    fn open(
        source: &dyn TapeSource,
        redaction: &Redaction,
        entry: &Entry,
        (node, jobs): (&dyn Node, Option<JobsShard>),
    ) -> Result<Self, NotATape> {
        let file = source.open(&entry.path)?;
        let len_bytes = file.state().ok_or(NotATape::Unreadable)?.len_bytes;
        let source = TapeWords::new(Arc::clone(&file), len_bytes);
        let mut tape = Tape::open(source)?;
        tape.redact(redaction);
        if let Some(JobsShard { shard, shards }) = jobs
            && let other = shard_of(&tape.identity().job, shards)
            && other != shard
        {
            return Err(NotATape::OtherShard(other));
        }
        let (of_tape, of_node) = (tape.boot_id(), node.boot_id());
        if of_tape != of_node && of_tape != [0, 0] && of_node != [0, 0] {
            return Err(NotATape::OtherBoot);
        }
        let (uid, pod) = (file.uid(), entry.pod.as_deref());
        let (of_user, tape_id) = (node.account_of(uid), &tape.identity().tape_id);
        let has_pods = pod.is_some() || node.has_pods();
        let unseen = if has_pods { Namespace::Unknown } else { Namespace::None };
        // Where processes are seen, a folder proves nothing: others may write into it.
        let trusted = pod.filter(|_| !node.sees_processes());
        let namespace = trusted.map_or(unseen, Pod::named);
        let owned = pod.map(|pod| pod.owned_tape_id(tape_id, uid));
        let of_pod = pod.map(|pod| if trusted.is_some() { pod.account } else { pod.unproved() });
        let mut known = Self {
            path: entry.path.clone(),
            tape_id: owned.unwrap_or_else(|| owned_tape_id(tape_id, uid.into())),
            owner: Owner { uid, account: Some(of_user), namespace },
            account: of_pod.unwrap_or(of_user.into()),
            is_proved: false,
            workload: trusted.map(|pod| pod.workload.clone()).unwrap_or_default(),
            status: tape.status(),
            tape: Arc::new(tape),
            life: Life::default(),
            process: None,
            ending: None,
            is_linked: true,
            occupied_bytes: 0,
            is_cut: false,
            is_logged: false,
            is_kept: false,
            has_new_clock: false,
            has_new_end: false,
            id: file.id(),
            pod: entry.pod.clone(),
            len_bytes,
            file,
            cgroup: None,
        };
        if let Some(workload) = known.look_at_process(known.file.writer(), node)? {
            known.belongs_to(workload);
        }
        known.is_proved = known.process.is_some();
        Ok(known)
    }

    /// Sets whose the tape is, by the workload of its process. What was not known when the tape was
    /// found stays unknown: a lock names a number, which another process can have later.
    fn belongs_to(&mut self, workload: Workload) {
        if let Some(pod) = &self.pod {
            self.account = pod.account;
            self.owner.namespace = pod.named();
            self.workload = pod.workload.clone();
        } else if workload.pod_uid.is_empty() {
            self.owner.namespace = Namespace::None;
            self.workload = workload;
        } else {
            self.owner.namespace = Namespace::Unknown;
        }
    }

    /// Relation of the process `pid` to the tape.
    pub(crate) fn holder(&self, pid: u32, node: &dyn Node) -> Holder {
        let made_wall_ns = self.file.made_wall_ns().unwrap_or(self.status.start_wall_ns);
        node.holder(pid, self.tape.identity().pid, self.owner.uid, made_wall_ns)
    }

    fn standing(&self) -> Standing {
        match self.file.writer() {
            _ if self.life.death().is_some() => Standing::Dead,
            Writer::Gone => Standing::Dead,
            _ if self.is_proved => Standing::Proved,
            _ => Standing::Held,
        }
    }

    /// Id of the tape, unique among the tapes of all users of this node.
    pub(crate) fn tape_id(&self) -> &str {
        &self.tape_id
    }

    /// Unix time of the last step's end; of the start of recording before the first.
    pub(crate) fn last_sign_wall_ns(&self) -> i64 {
        if self.status.step == 0 {
            return self.status.start_wall_ns;
        }
        self.tape.wall_ns(self.status.step_mono_ns)
    }

    /// The cgroup's use and limit, where it can be seen.
    pub(crate) fn cgroup_use(&self) -> Option<readings::Cgroup> {
        self.cgroup.as_ref().map(Cgroup::memory)
    }

    /// A handle for asking the lock from another thread.
    pub(crate) fn file(&self) -> Arc<dyn TapeFile> {
        Arc::clone(&self.file)
    }

    /// Reads the tape's state. The error says that the file is not the tape it seemed to be.
    fn look(
        &mut self,
        now: Now,
        node: &dyn Node,
        host_oom_kills: Option<u64>,
    ) -> Result<(), NotATape> {
        let Some(state) = self.file.state() else { return Ok(()) };
        self.is_linked = state.is_linked;
        self.occupied_bytes = state.occupied_bytes;
        if !self.is_cut && state.len_bytes < self.len_bytes {
            self.is_cut = true;
            let path = &self.path;
            if self.is_logged {
                tracing::warn!(
                    "tape {path:?} was cut short while in use: its rank is no longer reported"
                );
            }
        }
        // The lock first: what a dead process has written is then all there is.
        let writer = self.file.writer();
        let process = self.process.or(self.ending);
        if !self.is_cut {
            let clock = self.status.clock;
            self.status = self.tape.status();
            self.has_new_clock |= self.status.clock != clock && clock == Clock::Turns;
        }
        self.look_at_process(writer, node)?;
        let cgroup = self.cgroup.as_ref().and_then(Cgroup::oom_kills);
        let before = self.life.death().copied();
        self.ending = process.filter(|_| self.process.is_none() && self.life.may_change());
        self.life.note(Sighting {
            wall_ns: now.wall_ns,
            // A file system that cannot say keeps every process alive.
            held: writer != Writer::Gone,
            sealed: self.status.sealed,
            exit_status: self.status.exit_status,
            disabled: self.status.disabled.is_some(),
            last_sign_wall_ns: self.last_sign_wall_ns(),
            oom_kills: OomKills { cgroup, host: host_oom_kills },
            process: self.ending.map_or(State::Unknown, |process| node.state_of(process)),
        });
        if self.life.death().copied() != before {
            self.has_new_end = before.is_some();
            self.tell_of_end();
        }
        Ok(())
    }

    /// Looks at the process that holds the lock. Returns its workload when it was not seen before.
    fn look_at_process(
        &mut self,
        writer: Writer,
        node: &dyn Node,
    ) -> Result<Option<Workload>, NotATape> {
        let Writer::Alive(Some(pid)) = writer else {
            self.process = None;
            return Ok(None);
        };
        if self.process.is_some_and(|process| process.pid == pid) {
            return Ok(None);
        }
        self.process = match self.holder(pid, node) {
            Holder::Writer(process) => Some(process),
            // A process that lost its lock stays what it is; then the lock says nothing any more.
            Holder::Other if self.life.seen_alive() => None,
            Holder::Other => return Err(NotATape::WrongHolder(pid)),
            Holder::Unproved => None,
        };
        let Some(process) = self.process else { return Ok(None) };
        self.cgroup = node.cgroup(pid);
        let workload = node.workload(process);
        if let (Some(pod), Some(workload)) = (&self.pod, &workload)
            && !pod.has(workload)
        {
            return Err(NotATape::WrongHolder(pid));
        }
        Ok(workload)
    }

    fn entry(&self) -> Entry {
        let (path, pod) = (self.path.clone(), self.pod.clone());
        Entry { id: self.id, path, uid: self.owner.uid, pod }
    }

    fn tell_of_end(&self) {
        let Some(death) = self.life.death().filter(|_| self.is_logged) else { return };
        let identity = self.tape.identity();
        tracing::info!(
            job = ?identity.job,
            rank = identity.rank,
            tape = %self.tape_id,
            step = self.status.step,
            "rank is gone: {}",
            death.evidence
        );
    }
}

impl Tapes {
    /// Starts without tapes; [`Self::look`] finds them.
    pub(crate) fn new(
        source: Box<dyn TapeSource>,
        redaction: Redaction,
        jobs: Option<JobsShard>,
    ) -> Self {
        Self {
            source,
            jobs,
            others: Others::default(),
            redaction,
            known: BTreeMap::new(),
            rejected: BTreeMap::new(),
            keys_given: 0,
            has_seen_all: false,
            seen_rejected: BTreeSet::new(),
            refused: RefusedTapes::default(),
            logged: Rates::new(LOGGED_EVERY_NS, LOGGED_AT_ONCE_MAX, TAPES_PER_NODE_MAX),
        }
    }

    /// Counts of tapes refused since the agent started.
    pub(crate) fn refused(&self) -> RefusedTapes {
        self.refused
    }

    /// Tapes that were found and belong to other shards, and which.
    pub(crate) fn others(&self) -> impl Iterator<Item = (u16, &Entry)> {
        self.others.iter()
    }

    /// The tapes, oldest discovery first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TapeKey, &KnownTape)> {
        self.known.iter().map(|(key, tape)| (*key, tape))
    }

    /// The tape with this key.
    pub(crate) fn get(&self, key: TapeKey) -> Option<&KnownTape> {
        self.known.get(&key)
    }

    /// The tape with this id.
    pub(crate) fn find(&self, tape_id: &str) -> Option<(TapeKey, &KnownTape)> {
        self.iter().find(|(_, of)| of.tape_id() == tape_id)
    }

    /// Tapes that counted turns and count steps now; each is returned once.
    pub(crate) fn take_new_clocks(&mut self) -> Vec<TapeKey> {
        self.take_new(|known| &mut known.has_new_clock)
    }

    /// Tapes of whose ended process more is known now; each is returned once.
    pub(crate) fn take_new_ends(&mut self) -> Vec<TapeKey> {
        self.take_new(|known| &mut known.has_new_end)
    }

    fn take_new(&mut self, is_new: fn(&mut KnownTape) -> &mut bool) -> Vec<TapeKey> {
        let taken = |known: &mut KnownTape| std::mem::take(is_new(known));
        self.known.iter_mut().filter_map(|(key, known)| taken(known).then_some(*key)).collect()
    }

    /// Deletes a tape's file, if it is still in its folder, and closes it.
    /// Fails with the errors of the file system; the tape then stays, and is never chosen again.
    pub(crate) fn delete(&mut self, key: TapeKey) -> std::io::Result<()> {
        let Some(known) = self.known.get_mut(&key) else { return Ok(()) };
        if known.is_linked
            && let Err(error) = known.file.delete(&known.path)
        {
            known.is_kept = true;
            return Err(error);
        }
        self.known.remove(&key);
        Ok(())
    }

    /// Searches for tapes, and reads the state of every one; the forgotten tapes, with their names.
    pub(crate) fn look(&mut self, now: Now, node: &dyn Node) -> Vec<(TapeKey, String)> {
        let no_tapes = self.rejected.values().filter(|of| !of.is_tape).map(|of| of.account);
        let mut budget = Budget::new(now.mono_ns, !self.has_seen_all, no_tapes);
        let mut given_up = self.search(node, &mut budget);
        let host_oom_kills = node.oom_kills();
        let mut refused = Vec::new();
        for (key, known) in &mut self.known {
            if let Err(why) = known.look(now, node, host_oom_kills) {
                refused.push((*key, why));
            }
        }
        for (key, why) in refused {
            let Some(known) = self.known.remove(&key) else { continue };
            self.reject(&known.entry(), &why, &mut budget);
            given_up.push((key, known.tape_id));
        }
        let processes = self.known.values().filter_map(|known| known.process.or(known.ending));
        node.watch(processes.collect());
        given_up
    }

    /// Opens new files in the next part of the folders, at first in all parts. Returns the tapes
    /// that were given up for others.
    fn search(&mut self, node: &dyn Node, budget: &mut Budget) -> Vec<(TapeKey, String)> {
        let held = self.held();
        let mut given_up: Vec<_> =
            self.source.hold(held).into_iter().filter_map(|key| self.give_up(key)).collect();
        let mut ids: BTreeSet<FileId> = self.known.values().map(|known| known.id).collect();
        let parts = if self.has_seen_all { 1 } else { FIRST_PARTS_MAX };
        for _ in 0..parts {
            let listing = self.source.list();
            for entry in listing.entries {
                if self.others.has(&entry) {
                    continue;
                }
                if self.rejected.contains_key(&entry.id) {
                    self.seen_rejected.insert(entry.id);
                }
                if !ids.contains(&entry.id)
                    && let Some(displaced) = self.try_file(&entry, node, budget)
                {
                    ids.insert(entry.id);
                    given_up.extend(displaced);
                }
            }
            if listing.is_whole {
                let seen = std::mem::take(&mut self.seen_rejected);
                self.rejected.retain(|id, _| seen.contains(id));
                self.others.end_listing();
                break;
            }
        }
        self.has_seen_all = true;
        given_up
    }

    /// Opens a file that is not known as a tape. When it is one: the tape that was given up for it,
    /// if one was.
    fn try_file(
        &mut self,
        entry: &Entry,
        node: &dyn Node,
        budget: &mut Budget,
    ) -> Option<Option<(TapeKey, String)>> {
        if let Some(rejected) = self.rejected.get_mut(&entry.id) {
            let looks = rejected.looks;
            let is_turn = looks < SIGHTINGS_BEFORE_REJECTION
                || looks.is_multiple_of(SIGHTINGS_BETWEEN_ATTEMPTS);
            if !is_turn {
                rejected.looks = looks.wrapping_add(1);
                return None;
            }
        }
        if !budget.may_open(entry, self.rejected.contains_key(&entry.id)) {
            return None;
        }
        self.others.forget(entry.id);
        let of = (node, self.jobs);
        let opened = KnownTape::open(self.source.as_ref(), &self.redaction, entry, of);
        let placed = opened.and_then(|known| {
            let copy = self.refuse_copies(&known, budget)?;
            let displaced = if copy.is_some() { copy } else { self.room_for(&known)? };
            Ok((displaced, known))
        });
        match placed {
            Ok((displaced, known)) => {
                self.register(known, budget.now_ns);
                Some(displaced)
            }
            Err(NotATape::OtherShard(shard)) => {
                match self.others.add(shard, entry) {
                    Ok(()) => drop(self.rejected.remove(&entry.id)),
                    Err(why) => self.reject(entry, &why, budget),
                }
                None
            }
            Err(why) => {
                let is_known = self.rejected.contains_key(&entry.id);
                if !(is_known && matches!(why, NotATape::OtherBoot) && self.delete_old(entry)) {
                    self.reject(entry, &why, budget);
                }
                None
            }
        }
    }

    /// Deletes a tape from before the start of the node once it is old; true when it did. No
    /// process can write it any more.
    fn delete_old(&self, entry: &Entry) -> bool {
        let Ok(file) = self.source.open(&entry.path) else { return false };
        let is_old = file.unchanged_for().is_some_and(|time| time >= OTHER_BOOT_AGE_MAX);
        is_old && file.id() == entry.id && file.delete(&entry.path).is_ok()
    }

    /// Makes space for a tape. Returns the tape that was given up for it, if any.
    fn room_for(&mut self, known: &KnownTape) -> Result<Option<(TapeKey, String)>, NotATape> {
        let held = self.held();
        match self.source.room(held, known.account, known.standing()) {
            Room::Free => Ok(None),
            Room::InPlaceOf(key) => Ok(self.give_up(key)),
            Room::None => Err(NotATape::NoRoom(known.owner.uid)),
        }
    }

    fn held(&self) -> Vec<Held> {
        let held = |(key, known): (TapeKey, &KnownTape)| Held {
            key,
            account: known.account,
            standing: known.standing(),
        };
        self.iter().map(held).collect()
    }

    fn give_up(&mut self, key: TapeKey) -> Option<(TapeKey, String)> {
        let given_up = self.known.remove(&key)?;
        if given_up.is_logged {
            let path = &given_up.path;
            tracing::warn!("tape {path:?} is given up: there are too many of its user");
        }
        Some((key, given_up.tape_id))
    }

    /// Refuses a second file that is the same tape of the same user. A file that is more certain,
    /// by its lock or its process, displaces a known copy. Files of two users are never the same
    /// tape, even with equal ids: a copy takes nothing from its original.
    fn refuse_copies(
        &mut self,
        known: &KnownTape,
        budget: &mut Budget,
    ) -> Result<Option<(TapeKey, String)>, NotATape> {
        let is_same = |of: &KnownTape| of.tape_id() == known.tape_id();
        let Some((key, other)) = self.iter().find(|(_, of)| is_same(of)) else { return Ok(None) };
        if other.is_proved || other.standing() >= known.standing() {
            return Err(NotATape::Copy(other.path.clone()));
        }
        let Some(copy) = self.known.remove(&key) else { return Ok(None) };
        self.reject(&copy.entry(), &NotATape::Copy(known.path.clone()), budget);
        Ok(Some((key, copy.tape_id)))
    }

    fn register(&mut self, mut known: KnownTape, now_ns: u64) {
        known.is_logged = self.logged.take(now_ns, known.account).is_ok();
        if known.is_logged {
            let identity = known.tape.identity();
            tracing::info!(
                job = ?identity.job,
                rank = identity.rank,
                tape = %known.tape_id,
                path = ?known.path,
                "tape found"
            );
        }
        self.rejected.remove(&known.id);
        self.keys_given += 1;
        self.known.insert(TapeKey(self.keys_given), known);
    }

    fn reject(&mut self, entry: &Entry, why: &NotATape, budget: &mut Budget) {
        let is_new = !self.rejected.contains_key(&entry.id);
        if is_new && self.rejected.len() >= REJECTED_MAX {
            return;
        }
        let is_tape = matches!(why, NotATape::NoRoom(_) | NotATape::OtherBoot);
        if is_new {
            why.count(&mut self.refused);
            if !is_tape && budget.reject(entry.account()) {
                self.refused.no_room += 1;
                tracing::warn!(
                    "user {} has {REJECTED_PER_USER_MAX} files that are no tapes: delete them, no \
                     further file of this user is read",
                    entry.uid
                );
            }
        }
        self.seen_rejected.insert(entry.id);
        let new = Rejected { account: entry.account(), is_tape, looks: 0, is_logged: false };
        let rejected = self.rejected.entry(entry.id).or_insert(new);
        rejected.looks = rejected.looks.wrapping_add(1);
        if rejected.looks >= SIGHTINGS_BEFORE_REJECTION
            && !rejected.is_logged
            && budget.logged < LOGGED_PER_LOOK_MAX
            && self.logged.take(budget.now_ns, rejected.account).is_ok()
        {
            (rejected.is_logged, budget.logged) = (true, budget.logged + 1);
            // A name may hold anything; with `?` it is one line.
            tracing::warn!("file {:?} is left alone: {why}", entry.path);
        }
    }
}
