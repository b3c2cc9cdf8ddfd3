//! Tapes in memory, and ranks that write them.
//!
//! The words are shared: a rank writes them through core's own writer, the agent reads them
//! through core's own reader. The lock is a flag. A tape that the agent deletes is no longer on
//! in the source; its words stay for those who hold them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memtape_core::identity::Identity;
use memtape_core::identity::owner::owned_tape_id;
use memtape_core::tape::event::Kind;
use memtape_core::tape::interned::InternedWriter;
use memtape_core::tape::layout::{
    ENTRY_WORDS, LaneLayout, Layout, SEGMENT_WORDS, SLOT_WORDS, STEP_WORDS, Sizes, State,
    StepSource, head, header,
};
use memtape_core::tape::mailbox::{Due, Instruction, Offers, Remedy, ReplyStatus};
use memtape_core::tape::read::identity_text;
use memtape_core::tape::write::{Grant, Lane, Totals};
use memtape_core::tape::{Birth, Words};

use super::simulated_agent::Now;
use crate::tapes::liveness::Writer;
use crate::tapes::pods::Pod;
use crate::tapes::source::{Entry, FileId, FileState, Listing, NotATape, TapeFile, TapeSource};

/// Sizes of a tape of about 100 KiB that covers 80 steps of [`MemoryRank::train`].
pub const SMALL: Sizes = Sizes {
    events: 256,
    table_entries: 512,
    step_records: 64,
    segment_entries: 64,
    interned_words: 64,
};

/// A tape source. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct MemoryTapes(Arc<Mutex<Files>>);

#[derive(Debug, Default)]
struct Files {
    by_path: BTreeMap<PathBuf, MemoryTape>,
    made: u64,
    words_read: u64,
}

/// A tape. Clones are the same tape.
#[derive(Clone, Debug)]
pub struct MemoryTape(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    words: Arc<[AtomicU64]>,
    is_held: AtomicBool,
    /// The pid of the process that holds the lock; 0 where it is not known.
    pid: AtomicU32,
    id: u64,
    uid: u32,
    source: MemoryTapes,
}

impl MemoryTapes {
    /// Adds a tape of a user, its lock held. One of the same name is replaced.
    pub fn add(&self, name: &str, uid: u32, words: Arc<[AtomicU64]>) -> MemoryTape {
        let mut files = self.files();
        files.made += 1;
        let (is_held, id, source) = (AtomicBool::new(true), files.made, self.clone());
        let inner = Inner { words, is_held, pid: AtomicU32::new(0), id, uid, source };
        let tape = MemoryTape(Arc::new(inner));
        files.by_path.insert(PathBuf::from(name), tape.clone());
        tape
    }

    /// Takes all tapes away, as a reboot does.
    pub fn clear(&self) {
        self.files().by_path.clear();
    }

    /// Words of all tapes that were read so far.
    pub fn words_read(&self) -> u64 {
        self.files().words_read
    }

    /// Number of tapes.
    pub fn len(&self) -> usize {
        self.files().by_path.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryTape {
    /// Its words, for core's writer.
    pub fn words(&self) -> Words<'_> {
        Words(&self.0.words)
    }

    /// The process has gone, and the lock with it; or has taken it again.
    pub fn hold(&self, is_held: bool) {
        self.0.is_held.store(is_held, Ordering::Relaxed);
    }
}

impl TapeSource for MemoryTapes {
    fn list(&mut self) -> Listing {
        let files = self.files();
        let entry = |(path, tape): (&PathBuf, &MemoryTape)| Entry {
            id: tape.id(),
            path: path.clone(),
            uid: tape.uid(),
            pod: path.parent().and_then(|of| Some(Pod::of_folder(of.to_str()?)?.into())),
        };
        Listing { entries: files.by_path.iter().map(entry).collect(), is_whole: true }
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn TapeFile>, NotATape> {
        let tape = self.files().by_path.get(path).cloned();
        Ok(Arc::new(tape.ok_or(NotATape::Unreadable)?))
    }
}

impl TapeFile for MemoryTape {
    fn id(&self) -> FileId {
        FileId { device: 0, inode: self.0.id }
    }

    fn uid(&self) -> u32 {
        self.0.uid
    }

    fn made_wall_ns(&self) -> Option<i64> {
        None
    }

    fn unchanged_for(&self) -> Option<Duration> {
        None
    }

    fn state(&self) -> Option<FileState> {
        let len_bytes = self.0.words.len() as u64 * 8;
        let is_linked = self.0.source.files().by_path.values().any(|of| of.0.id == self.0.id);
        Some(FileState { len_bytes, occupied_bytes: len_bytes, is_linked })
    }

    fn read(&self, first_word: usize, out: &mut [u64]) -> bool {
        self.0.source.files().words_read += out.len() as u64;
        memtape_core::tape::read::Source::read(&&*self.0.words, first_word, out)
    }

    fn writer(&self) -> Writer {
        let is_held = self.0.is_held.load(Ordering::Relaxed);
        let pid = self.0.pid.load(Ordering::Relaxed);
        if is_held { Writer::Alive((pid > 0).then_some(pid)) } else { Writer::Gone }
    }

    fn write(&self, path: &Path, word: usize, value: u64) -> io::Result<()> {
        let is_this =
            self.0.source.files().by_path.get(path).is_some_and(|of| of.0.id == self.0.id);
        if !is_this {
            return Err(io::Error::other("another tape has taken its place"));
        }
        self.words().set(word, value);
        Ok(())
    }

    fn delete(&self, path: &Path) -> io::Result<()> {
        let mut files = self.0.source.files();
        let is_this = files.by_path.get(path).is_some_and(|tape| tape.0.id == self.0.id);
        if !is_this || self.0.is_held.load(Ordering::Relaxed) {
            return Err(io::Error::other("another tape has taken its place, or it is in use"));
        }
        files.by_path.remove(path);
        Ok(())
    }
}

/// A rank with one device.
#[derive(Debug)]
pub struct MemoryRank {
    tape: MemoryTape,
    tape_id: String,
    lane: LaneLayout,
    stack: u32,
    step: u64,
    allocated: u64,
    /// The last instruction that was replied to.
    handled: u64,
}

impl MemoryRank {
    /// Starts a process that records on a new tape. `boot` and `pid` make the tape's name unique
    /// together with the time.
    pub fn start(
        tapes: &MemoryTapes,
        now: Now,
        (boot, pid): (u32, u32),
        identity: &Identity,
        sizes: Sizes,
    ) -> Self {
        Self::start_of(tapes, 0, now, (boot, pid), identity, sizes)
    }

    /// As [`Self::start`], of another user than root.
    pub fn start_of(
        tapes: &MemoryTapes,
        uid: u32,
        now: Now,
        (boot, pid): (u32, u32),
        identity: &Identity,
        sizes: Sizes,
    ) -> Self {
        let name = format!("{boot:x}-{pid}-{}.tape", now.mono_ns);
        Self::start_at(tapes, (&name, uid), now, (boot, pid), identity, sizes)
    }

    /// As [`Self::start_of`], on a file of this name: two files can be the same tape.
    pub fn start_at(
        tapes: &MemoryTapes,
        (name, uid): (&str, u32),
        now: Now,
        (boot, pid): (u32, u32),
        identity: &Identity,
        sizes: Sizes,
    ) -> Self {
        let layout = compact_layout(sizes);
        let words: Arc<[AtomicU64]> =
            std::iter::repeat_with(AtomicU64::default).take(layout.file_words).collect();
        let writer = Words(&words);
        writer.format(
            &layout,
            &Birth {
                boot_id: [u64::from(boot) << 32, 0],
                pid: u64::from(pid),
                mono_ns: now.mono_ns,
                wall_ns: u64::try_from(now.wall_ns).unwrap_or(0),
                clock_error_ns: 100,
                identity: identity_text(identity),
                ..Birth::default()
            },
        );
        writer.open_lane(0, &layout);
        let entries = InternedWriter(writer);
        let frame = entries
            .string(b"/app/train.py")
            .zip(entries.string(b"train_step"))
            .and_then(|(file, function)| entries.frame(file, function, 36));
        let stack = frame.and_then(|frame| entries.stack(&[frame])).unwrap_or(0);
        let tape = tapes.add(name, uid, words);
        let tape_id = memtape_core::tape::read::Tape::open(&*tape.0.words)
            .map(|opened| owned_tape_id(&opened.identity().tape_id, tape.uid().into()))
            .unwrap_or_default();
        Self { tape, tape_id, lane: layout.lanes[0], stack, step: 0, allocated: 0, handled: 0 }
    }

    /// As the agent names it.
    pub fn tape_id(&self) -> &str {
        &self.tape_id
    }

    /// Says something of the lane in its head, true or not.
    pub fn set_head(&self, word: usize, value: u64) {
        self.tape.words().set(self.lane.head + word, value);
    }

    /// Says something of the device, true or not.
    pub fn set_device(&self, word: usize, value: u64) {
        self.tape.words().set(header::DEVICES + word, value);
    }

    /// Takes the lock again.
    pub fn come_back(&mut self) {
        self.tape.hold(true);
    }

    /// Says how many steps are finished, true or not.
    pub fn set_step(&self, step: u64) {
        self.tape.words().set(header::STEP, step);
    }

    /// Finished steps.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Allocates a block.
    pub fn alloc(&mut self, now: Now, address: u64, size: u64) {
        self.allocated += size;
        let grant = Grant { address, size, stack: self.stack, ..Grant::default() };
        self.lane().alloc(now.mono_ns, grant, self.totals());
    }

    /// Takes a block back.
    pub fn free(&mut self, now: Now, address: u64, size: u64) {
        self.allocated = self.allocated.saturating_sub(size);
        self.lane().free(now.mono_ns, address, size, self.totals());
    }

    /// A request that failed for good.
    pub fn out_of_memory(&mut self, now: Now, size: u64) {
        let grant = Grant { size, stack: self.stack, ..Grant::default() };
        self.lane().failure(now.mono_ns, Kind::Oom, grant, self.totals());
    }

    /// Ends a step with one block that stays (at 0x10000 times the step) and one that goes: three
    /// events. Both are 512 bytes and more.
    pub fn train(&mut self, now: Now, kept_bytes: u64) {
        self.alloc(now, (self.step + 1) << 16, kept_bytes);
        self.alloc(now, 0x100, 512);
        self.free(now, 0x100, 512);
        self.end_step(now);
    }

    /// Ends a step.
    pub fn end_step(&mut self, now: Now) {
        self.step += 1;
        self.tape.words().mark_step(now.mono_ns, self.step);
    }

    /// From now on its job lets this be asked, and its steps end in the hook that reads it.
    pub fn offer(&self, offers: Offers) {
        self.tape.words().set(header::OFFERED, offers.word());
        self.tape.words().set(header::STEP_SOURCE, StepSource::OptimizerHook as u64);
    }

    /// From now on the kernel shows its pid.
    pub fn show_pid(&self, pid: u32) {
        self.tape.0.pid.store(pid, Ordering::Relaxed);
    }

    /// Does what it is asked for after the step that ended last, as the recorder's hook does;
    /// answers what it has done.
    pub fn follow(&mut self) -> Option<Remedy> {
        let words = self.tape.words();
        let word = words.get(header::MAILBOX);
        let instruction = Instruction::from_word(word).filter(|_| word != self.handled)?;
        let is_offered =
            Offers::from_word(words.get(header::OFFERED)).has(instruction.remedy().offer());
        let status = match instruction.due(self.step) {
            Due::NotYet => return None,
            Due::Late => ReplyStatus::Late,
            Due::Now if !is_offered => ReplyStatus::NotOffered,
            Due::Now => ReplyStatus::Done,
        };
        self.handled = word;
        words.set(header::REPLY, instruction.reply(status, self.step).word());
        (status == ReplyStatus::Done).then_some(instruction.remedy())
    }

    /// Exits in an orderly way.
    pub fn exit(&mut self) {
        self.tape.words().set(header::STATE, State::Sealed as u64);
        self.kill();
    }

    /// Vanishes.
    pub fn kill(&mut self) {
        self.tape.hold(false);
    }

    fn lane(&self) -> Lane<'_> {
        Lane::new(self.tape.words(), self.lane, 0)
    }

    fn totals(&self) -> Totals {
        Totals { allocated: self.allocated, reserved: self.allocated.next_multiple_of(2 << 20) }
    }
}

/// A layout without the space between regions, and with the smallest lanes but the first: the
/// layout's own sizes are made for files whose empty pages cost nothing.
fn compact_layout(sizes: Sizes) -> Layout {
    let mut layout = Layout::new(sizes);
    let first = layout.lanes[0];
    layout.interned_words = sizes.interned_words;
    let mut next = layout.interned + layout.interned_words;
    for (index, lane) in layout.lanes.iter_mut().enumerate() {
        let of_first = |count: usize| if index == 0 { count } else { 1 };
        let head = next;
        let ring = head + head::WORDS;
        let ring_slots = of_first(first.ring_slots);
        let table = ring + ring_slots * SLOT_WORDS;
        let table_entries = of_first(first.table_entries);
        let segments = table + table_entries * ENTRY_WORDS;
        let segment_entries = of_first(first.segment_entries);
        let steps = segments + segment_entries * SEGMENT_WORDS;
        let step_records = of_first(first.step_records);
        next = steps + step_records * STEP_WORDS;
        *lane = LaneLayout {
            head,
            ring,
            ring_slots,
            table,
            table_entries,
            segments,
            segment_entries,
            steps,
            step_records,
            end: next,
        };
    }
    layout.file_words = next;
    layout
}
