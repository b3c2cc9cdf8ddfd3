//! The tapes of this node: which there are, and one look at each per interval.
//!
//! Files that are no tapes are named in the log once and left alone; they disturb no other tape.
//! `source.rs` knows where tapes are and how they are read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memtape_core::limits::TAPES_PER_NODE_MAX;
use memtape_core::tape::layout::Clock;
use memtape_core::tape::read::Status;
use memtape_core::tape::read::Tape;

use crate::node::cgroup::{self, Cgroup};
use crate::node::clock::Now;
use crate::node::machine::Node;
use crate::node::process::Process;
use crate::tapes::death::{Life, OomKills, Sighting};
use crate::tapes::liveness::Writer;
use crate::tapes::source::{FileId, NotATape, TapeFile, TapeSource, TapeWords};

/// Files remembered as being no tapes.
const REJECTED_MAX: usize = 4096;

/// Looks at a rejected file before it is named in the log: a tape may be in the making.
const SIGHTINGS_BEFORE_REJECTION: u32 = 3;

/// Looks between two attempts to open a file that was rejected.
const SIGHTINGS_BETWEEN_ATTEMPTS: u32 = 10;

/// Name of a tape inside the agent, in the order of discovery; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TapeKey(pub(crate) u64);

/// A tape and what is known about its process.
#[derive(Debug)]
pub(crate) struct KnownTape {
    /// Where it was found.
    pub(crate) path: PathBuf,
    /// The tape; shared with rewinds in progress.
    pub(crate) tape: Arc<Tape<TapeWords>>,
    /// What it said at the last look.
    pub(crate) status: Status,
    /// The life of its process.
    pub(crate) life: Life,
    /// The process, where its pid is known; none once it is gone.
    pub(crate) process: Option<Process>,
    /// Still in its folder.
    pub(crate) is_linked: bool,
    /// Memory it occupies.
    pub(crate) occupied_bytes: u64,
    /// Cut short since it was opened: nothing on it counts any more.
    pub(crate) is_cut: bool,
    /// It could not be deleted: not tried again.
    pub(crate) is_kept: bool,
    /// It counted turns, and counts steps since the last look.
    has_new_clock: bool,
    file: Arc<dyn TapeFile>,
    id: FileId,
    len_bytes: u64,
    cgroup: Option<Cgroup>,
}

/// All tapes of this node.
#[derive(Debug)]
pub(crate) struct Tapes {
    source: Box<dyn TapeSource>,
    known: BTreeMap<TapeKey, KnownTape>,
    rejected: BTreeMap<FileId, Rejected>,
    keys_given: u64,
    is_full: bool,
}

#[derive(Debug, Default)]
struct Rejected {
    looks: u32,
    is_logged: bool,
}

impl KnownTape {
    /// Opens a file as a tape.
    fn open(source: &dyn TapeSource, path: &Path) -> Result<Self, NotATape> {
        let file = source.open(path)?;
        let len_bytes = file.size().ok_or(NotATape::Unreadable)?.len_bytes;
        let source = TapeWords::new(Arc::clone(&file), len_bytes);
        let tape = Tape::open(source)?;
        Ok(Self {
            path: path.to_path_buf(),
            status: tape.status(),
            tape: Arc::new(tape),
            life: Life::default(),
            process: None,
            is_linked: true,
            occupied_bytes: 0,
            is_cut: false,
            is_kept: false,
            has_new_clock: false,
            id: file.id(),
            len_bytes,
            file,
            cgroup: None,
        })
    }

    /// Identity of the tape.
    pub(crate) fn tape_id(&self) -> &str {
        &self.tape.identity().tape_id
    }

    /// Unix time of the last step's end; of the start of recording before the first.
    pub(crate) fn last_sign_wall_ns(&self) -> i64 {
        if self.status.step == 0 {
            return self.status.start_wall_ns;
        }
        self.tape.wall_ns(self.status.step_mono_ns)
    }

    /// The cgroup's use and limit, where it can be seen.
    pub(crate) fn cgroup_use(&self) -> Option<cgroup::Use> {
        self.cgroup.as_ref().map(Cgroup::memory)
    }

    /// A handle for asking the lock from another thread.
    pub(crate) fn file(&self) -> Arc<dyn TapeFile> {
        Arc::clone(&self.file)
    }

    fn look(&mut self, now: Now, node: &dyn Node, host_oom_kills: Option<u64>) {
        let Some(size) = self.file.size() else { return };
        self.occupied_bytes = size.occupied_bytes;
        if !self.is_cut && size.len_bytes < self.len_bytes {
            self.is_cut = true;
            let path = self.path.display();
            tracing::warn!(
                "tape {path} was cut short while in use: its rank is no longer reported"
            );
        }
        // The lock first: what a dead process has written is then all there is.
        let writer = self.file.writer();
        if !self.is_cut {
            let clock = self.status.clock;
            self.status = self.tape.status();
            self.has_new_clock |= self.status.clock != clock && clock == Clock::Turns;
        }
        self.look_at_process(writer, node);
        let cgroup = self.cgroup.as_ref().and_then(Cgroup::oom_kills);
        let was_dead = self.life.death().is_some();
        self.life.note(Sighting {
            wall_ns: now.wall_ns,
            // A file system that cannot say keeps every process alive.
            held: writer != Writer::Gone,
            sealed: self.status.sealed,
            exit_status: self.status.exit_status,
            disabled: self.status.disabled.is_some(),
            last_sign_wall_ns: self.last_sign_wall_ns(),
            oom_kills: OomKills { cgroup, host: host_oom_kills },
        });
        self.tell_of_end(was_dead);
    }

    fn look_at_process(&mut self, writer: Writer, node: &dyn Node) {
        match writer {
            Writer::Alive(Some(pid)) if self.process.is_none_or(|process| process.pid != pid) => {
                self.process = node.process(pid, self.tape.identity().pid);
                if self.process.is_some() {
                    self.cgroup = node.cgroup(pid);
                }
            }
            Writer::Alive(Some(_)) => {}
            Writer::Alive(None) | Writer::Gone | Writer::Unknown => self.process = None,
        }
    }

    fn tell_of_end(&self, was_dead: bool) {
        let Some(death) = self.life.death().filter(|_| !was_dead) else { return };
        let identity = self.tape.identity();
        tracing::info!(
            job = ?identity.job,
            rank = identity.rank,
            tape = %identity.tape_id,
            step = self.status.step,
            "rank is gone: {}",
            death.evidence
        );
    }
}

impl Tapes {
    /// Knows nothing yet; [`Self::look`] does.
    pub(crate) fn new(source: Box<dyn TapeSource>) -> Self {
        Self {
            source,
            known: BTreeMap::new(),
            rejected: BTreeMap::new(),
            keys_given: 0,
            is_full: false,
        }
    }

    /// The tapes, oldest discovery first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TapeKey, &KnownTape)> {
        self.known.iter().map(|(key, tape)| (*key, tape))
    }

    /// One of them.
    pub(crate) fn get(&self, key: TapeKey) -> Option<&KnownTape> {
        self.known.get(&key)
    }

    /// The one with this identity.
    pub(crate) fn find(&self, tape_id: &str) -> Option<(TapeKey, &KnownTape)> {
        self.iter().find(|(_, known)| known.tape_id() == tape_id)
    }

    /// The tapes that counted turns and count steps now; each is named once.
    pub(crate) fn take_new_clocks(&mut self) -> Vec<TapeKey> {
        let new = self.known.iter_mut().filter(|(_, known)| known.has_new_clock);
        new.map(|(key, known)| {
            known.has_new_clock = false;
            *key
        })
        .collect()
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

    /// Searches for tapes, and reads the state of every one.
    pub(crate) fn look(&mut self, now: Now, node: &dyn Node) {
        let present = self.search();
        for known in self.known.values_mut() {
            known.is_linked = present.contains(&known.id);
        }
        self.rejected.retain(|id, _| present.contains(id));
        let host_oom_kills = node.oom_kills();
        for known in self.known.values_mut() {
            known.look(now, node, host_oom_kills);
        }
        node.watch_below(self.known.values().filter_map(|known| known.process).collect());
    }

    fn search(&mut self) -> BTreeSet<FileId> {
        let mut present = BTreeSet::new();
        let mut ids: BTreeSet<FileId> = self.known.values().map(|known| known.id).collect();
        for (id, path) in self.source.list() {
            present.insert(id);
            if !ids.contains(&id) && self.try_file(&path, id) {
                ids.insert(id);
            }
        }
        present
    }

    /// Opens a file that is not known as a tape; true when it is one.
    fn try_file(&mut self, path: &Path, id: FileId) -> bool {
        let looks = self.rejected.get(&id).map_or(0, |rejected| rejected.looks);
        let is_turn =
            looks < SIGHTINGS_BEFORE_REJECTION || looks.is_multiple_of(SIGHTINGS_BETWEEN_ATTEMPTS);
        if let Some(rejected) = self.rejected.get_mut(&id).filter(|_| !is_turn) {
            rejected.looks = rejected.looks.wrapping_add(1);
            return false;
        }
        if self.known.len() >= TAPES_PER_NODE_MAX {
            if !std::mem::replace(&mut self.is_full, true) {
                tracing::warn!(
                    "there are more than {TAPES_PER_NODE_MAX} tapes: delete those of dead processes"
                );
            }
            return false;
        }
        let opened = KnownTape::open(self.source.as_ref(), path);
        match opened.and_then(|known| self.unlike_others(known)) {
            Ok(known) => self.register(known),
            Err(why) => {
                self.reject(path, id, &why);
                return false;
            }
        }
        true
    }

    fn unlike_others(&self, known: KnownTape) -> Result<KnownTape, NotATape> {
        match self.find(known.tape_id()) {
            Some((_, other)) => Err(NotATape::Copy(other.path.clone())),
            None => Ok(known),
        }
    }

    fn register(&mut self, known: KnownTape) {
        let identity = known.tape.identity();
        tracing::info!(
            job = ?identity.job,
            rank = identity.rank,
            tape = %identity.tape_id,
            path = %known.path.display(),
            "tape found"
        );
        self.rejected.remove(&known.id);
        self.keys_given += 1;
        self.is_full = false;
        self.known.insert(TapeKey(self.keys_given), known);
    }

    fn reject(&mut self, path: &Path, id: FileId, why: &NotATape) {
        if self.rejected.len() >= REJECTED_MAX && !self.rejected.contains_key(&id) {
            return;
        }
        let rejected = self.rejected.entry(id).or_default();
        rejected.looks = rejected.looks.wrapping_add(1);
        if rejected.looks >= SIGHTINGS_BEFORE_REJECTION
            && !std::mem::replace(&mut rejected.is_logged, true)
        {
            tracing::warn!("file {} is left alone: {why}", path.display());
        }
    }
}
