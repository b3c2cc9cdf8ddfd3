//! The tapes of this node: finding them, opening them as what they are (files of a less trusted
//! process), and looking at each once per interval.
//!
//! A tape is read with `pread`, never mapped: a file that is cut short then gives a short read and
//! not a signal that kills the agent. Files that are no tapes are named in the log once and left
//! alone; they disturb no other tape. A tape's file is kept open, so that it can be read even
//! after somebody has deleted it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memtape_core::tape::reader::Tape;
use memtape_core::tape::source::Source;
use memtape_core::tape::status::Status;

use crate::cgroup::Cgroup;
use crate::clock::Now;
use crate::host::Host;
use crate::liveness::{self, Holder, Life, OomKills, Sighting};
use crate::process::Process;

/// Tapes known at the same time, dead ones included; files beyond are refused.
const TAPES_MAX: usize = 1024;

/// Largest file taken for a tape, in bytes. Tapes are sparse: the default sizes make 0.7 GiB, of
/// which a process with one device occupies 50 MiB. A rewind copies at most one live table.
const FILE_BYTES_MAX: u64 = 8 << 30;

/// Directory entries looked at in one folder.
const ENTRIES_MAX: usize = 65_536;

/// Files remembered as being no tapes.
const REJECTED_MAX: usize = 4096;

/// Looks at a rejected file before it is named in the log: a tape may be in the making.
const LOOKS_BEFORE_REJECTION: u32 = 3;

/// Looks between two attempts to open a file that was rejected.
const LOOKS_BETWEEN_ATTEMPTS: u32 = 10;

/// Name of a tape inside the agent, in the order of discovery; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TapeKey(pub(crate) u64);

/// A file, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

/// The words of a tape's file.
#[derive(Clone, Debug)]
pub(crate) struct FileSource {
    file: Arc<File>,
    len_bytes: u64,
}

/// A tape and what is known about its process.
#[derive(Debug)]
pub(crate) struct KnownTape {
    /// Where it was found.
    pub(crate) path: PathBuf,
    /// The tape; shared with rewinds in progress.
    pub(crate) tape: Arc<Tape<FileSource>>,
    /// What it said at the last look.
    pub(crate) status: Status,
    /// The life of its process.
    pub(crate) life: Life,
    /// The process, where its pid can be told; none once it is gone.
    pub(crate) process: Option<Process>,
    /// Still in its folder.
    pub(crate) is_linked: bool,
    /// Memory it occupies.
    pub(crate) occupied_bytes: u64,
    /// Cut short since it was opened: nothing on it counts any more.
    pub(crate) is_cut: bool,
    /// It could not be deleted: not tried again.
    pub(crate) is_kept: bool,
    file: Arc<File>,
    id: FileId,
    len_bytes: u64,
    cgroup: Option<Cgroup>,
}

/// All tapes of this node.
#[derive(Debug)]
pub(crate) struct Tapes {
    dirs: Vec<PathBuf>,
    known: BTreeMap<TapeKey, KnownTape>,
    rejected: BTreeMap<FileId, Rejected>,
    keys_given: u64,
    is_full: bool,
    unreadable: BTreeSet<PathBuf>,
}

#[derive(Debug, Default)]
struct Rejected {
    looks: u32,
    told: bool,
}

impl FileId {
    fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

impl Source for FileSource {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read(&self, first_word: usize, out: &mut [u64]) -> bool {
        // Most reads are a few words of the header or of a lane's head.
        const SMALL_WORDS: usize = 64;
        if out.len() <= SMALL_WORDS {
            return self.read_by(&mut [0; SMALL_WORDS * 8], first_word, out);
        }
        const LARGE_WORDS: usize = 8192;
        self.read_by(&mut vec![0; LARGE_WORDS.min(out.len()) * 8], first_word, out)
    }
}

impl FileSource {
    /// Reads in pieces of the buffer's size.
    fn read_by(&self, buffer: &mut [u8], first_word: usize, out: &mut [u64]) -> bool {
        let mut offset = (first_word as u64).saturating_mul(8);
        for piece in out.chunks_mut(buffer.len() / 8) {
            let bytes = &mut buffer[..piece.len() * 8];
            if self.file.read_exact_at(bytes, offset).is_err() {
                return false;
            }
            for (word, bytes) in piece.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *word = u64::from_le_bytes(*bytes);
            }
            offset = offset.saturating_add(bytes.len() as u64);
        }
        true
    }
}

impl KnownTape {
    /// Opens a file as a tape; the error is one line.
    fn open(path: &Path) -> Result<Self, String> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file = Arc::new(file.map_err(|error| format!("it cannot be opened: {error}"))?);
        let metadata = file.metadata().map_err(|error| format!("it cannot be read: {error}"))?;
        if !metadata.is_file() {
            return Err("it is not a regular file".to_string());
        }
        if metadata.len() > FILE_BYTES_MAX {
            let (have, most) = (metadata.len(), FILE_BYTES_MAX);
            return Err(format!("it is larger than a tape may be: {have} of {most} bytes"));
        }
        let source = FileSource { file: Arc::clone(&file), len_bytes: metadata.len() };
        let tape = Tape::open(source).map_err(|error| error.to_string())?;
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
            id: FileId::of(&metadata),
            len_bytes: metadata.len(),
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

    /// True when nobody holds its lock at this moment.
    fn is_dead_now(&self) -> bool {
        matches!(liveness::holder(&self.file), Ok(Holder::Nobody))
    }

    /// A handle for asking the lock from another thread.
    pub(crate) fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// Deletes the file, if it is still this one and its process is still gone.
    fn delete_file(&self) -> std::io::Result<()> {
        let metadata = std::fs::symlink_metadata(&self.path)?;
        if FileId::of(&metadata) != self.id || !self.is_dead_now() {
            return Err(std::io::Error::other("another file has taken its place, or it is in use"));
        }
        std::fs::remove_file(&self.path)
    }

    fn look(&mut self, now: Now, host: &Host, host_oom_kills: Option<u64>) {
        let Ok(metadata) = self.file.metadata() else { return };
        self.occupied_bytes = metadata.blocks().saturating_mul(512);
        if !self.is_cut && metadata.len() < self.len_bytes {
            self.is_cut = true;
            let path = self.path.display();
            tracing::warn!(
                "tape {path} was cut short while in use: its rank is no longer reported"
            );
        }
        // The lock first: what a dead process has written is then all there is.
        let holder = match liveness::holder(&self.file) {
            Ok(holder) => holder,
            // A file system that cannot say keeps every process alive.
            Err(_) => Holder::Hidden,
        };
        if !self.is_cut {
            self.status = self.tape.status();
        }
        self.look_at_process(holder, host);
        let cgroup = self.cgroup.as_ref().and_then(Cgroup::oom_kills);
        let was_dead = self.life.death().is_some();
        self.life.sight(Sighting {
            wall_ns: now.wall_ns,
            held: holder != Holder::Nobody,
            sealed: self.status.sealed,
            disabled: self.status.disabled.is_some(),
            last_sign_wall_ns: self.last_sign_wall_ns(),
            oom_kills: OomKills { cgroup, host: host_oom_kills },
        });
        self.tell_of_end(was_dead);
    }

    fn look_at_process(&mut self, holder: Holder, host: &Host) {
        match holder {
            Holder::Process(pid) if self.process.is_none_or(|process| process.pid != pid) => {
                self.process = Process::find(host.root(), pid, self.tape.identity().pid);
                if self.process.is_some() {
                    self.cgroup = Cgroup::of_process(host.root(), pid);
                }
            }
            Holder::Process(_) => {}
            Holder::Hidden | Holder::Nobody => self.process = None,
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
            death.detail
        );
    }
}

impl Tapes {
    /// Knows nothing yet; [`Self::look`] does.
    pub(crate) fn new(dirs: Vec<PathBuf>) -> Self {
        Self {
            dirs,
            known: BTreeMap::new(),
            rejected: BTreeMap::new(),
            keys_given: 0,
            is_full: false,
            unreadable: BTreeSet::new(),
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

    /// Deletes a tape's file, if it is still in its folder, and closes it.
    ///
    /// # Errors
    /// Those of the file system; the tape then stays, and is never chosen again.
    pub(crate) fn delete(&mut self, key: TapeKey) -> std::io::Result<()> {
        let Some(known) = self.known.get_mut(&key) else { return Ok(()) };
        if known.is_linked
            && let Err(error) = known.delete_file()
        {
            known.is_kept = true;
            return Err(error);
        }
        self.known.remove(&key);
        Ok(())
    }

    /// Searches the folders and looks at every tape.
    pub(crate) fn look(&mut self, now: Now, host: &Host) {
        let present = self.search();
        for known in self.known.values_mut() {
            known.is_linked = present.contains(&known.id);
        }
        self.rejected.retain(|id, _| present.contains(id));
        let host_oom_kills = host.oom_kills();
        for known in self.known.values_mut() {
            known.look(now, host, host_oom_kills);
        }
    }

    fn search(&mut self) -> BTreeSet<FileId> {
        let mut present = BTreeSet::new();
        for dir in self.dirs.clone() {
            let entries = match std::fs::read_dir(&dir) {
                Ok(entries) => entries,
                Err(error) => {
                    if self.unreadable.insert(dir.clone()) {
                        let path = dir.display();
                        match error.kind() {
                            // The first recorder makes it; but it may also be a slip of the pen.
                            std::io::ErrorKind::NotFound => {
                                tracing::info!(
                                    "folder {path} is not there yet: no tapes until it is"
                                );
                            }
                            _ => tracing::warn!("folder {path} cannot be searched: {error}"),
                        }
                    }
                    continue;
                }
            };
            self.unreadable.remove(&dir);
            for entry in entries.take(ENTRIES_MAX).flatten() {
                let path = entry.path();
                if path.extension().is_none_or(|extension| extension != "tape") {
                    continue;
                }
                let Ok(metadata) = entry.metadata() else { continue };
                let id = FileId::of(&metadata);
                present.insert(id);
                if !self.known.values().any(|known| known.id == id) {
                    self.meet(&path, id);
                }
            }
        }
        present
    }

    /// Meets a file that is not known as a tape.
    fn meet(&mut self, path: &Path, id: FileId) {
        let looks = self.rejected.get(&id).map_or(0, |rejected| rejected.looks);
        let is_turn =
            looks < LOOKS_BEFORE_REJECTION || looks.is_multiple_of(LOOKS_BETWEEN_ATTEMPTS);
        if let Some(rejected) = self.rejected.get_mut(&id).filter(|_| !is_turn) {
            rejected.looks = rejected.looks.wrapping_add(1);
            return;
        }
        if self.known.len() >= TAPES_MAX {
            if !std::mem::replace(&mut self.is_full, true) {
                tracing::warn!(
                    "there are more than {TAPES_MAX} tapes: delete those of dead processes"
                );
            }
            return;
        }
        match KnownTape::open(path).and_then(|known| self.unlike_others(known)) {
            Ok(known) => self.welcome(known),
            Err(why) => self.reject(path, id, &why),
        }
    }

    fn unlike_others(&self, known: KnownTape) -> Result<KnownTape, String> {
        match self.find(known.tape_id()) {
            Some((_, other)) => {
                Err(format!("it says it is the same tape as {}", other.path.display()))
            }
            None => Ok(known),
        }
    }

    fn welcome(&mut self, known: KnownTape) {
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

    fn reject(&mut self, path: &Path, id: FileId, why: &str) {
        if self.rejected.len() >= REJECTED_MAX && !self.rejected.contains_key(&id) {
            return;
        }
        let rejected = self.rejected.entry(id).or_default();
        rejected.looks = rejected.looks.wrapping_add(1);
        if rejected.looks >= LOOKS_BEFORE_REJECTION && !std::mem::replace(&mut rejected.told, true)
        {
            tracing::warn!("file {} is left alone: {why}", path.display());
        }
    }
}
