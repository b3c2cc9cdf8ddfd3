//! Turns stacks into numbers: each distinct stack is written onto the tape once, as an interned
//! entry, and its number stands in every event.
//!
//! The hot path calls [`Interner::current`]. Two tables, private to the process, map fingerprints
//! to numbers: one for stacks, one for frames. Looking up takes no lock. A new stack is written
//! under a lock that is tried a bounded number of times; a thread that does not get it records its
//! event with an unknown stack, and the loss is counted.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use memtape_tape::Words;
use memtape_tape::interned::{InternedWriter, StreamPoolWriter};
use memtape_tape::layout::{Stacks, header, hooks};
use memtape_tape::limits::STACK_FRAMES_MAX;

use crate::host::errno::keeping_errno;
use crate::host::threads::ThreadName;
use crate::stacks::availability::{self, Availability};
use crate::stacks::index::Index;
use crate::stacks::python_frames::{PythonFrames, RawFrame, TextBuffer};
use crate::stacks::{autograd, code_objects};

/// A frame given by the program itself.
#[derive(Clone, Copy, Debug)]
pub struct FrameRef {
    /// File name.
    pub file: &'static str,
    /// Line, from 1.
    pub line: u32,
    /// Function name.
    pub function: &'static str,
}

/// True once the program gave frames. Reading thread-local storage costs a call.
static IS_GIVEN: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Frames that the program gave for this thread.
    static GIVEN: Cell<&'static [FrameRef]> = const { Cell::new(&[]) };
    /// The stack used for this thread without Python frames; 0 is not known.
    static THREAD_LABEL: Cell<u32> = const { Cell::new(0) };
}

/// Runs `work` with these frames, innermost first: for programs without an interpreter. An
/// interpreter's own frames come first.
pub fn with_frames<R>(frames: &'static [FrameRef], work: impl FnOnce() -> R) -> R {
    IS_GIVEN.store(true, Ordering::Relaxed);
    let before = GIVEN.replace(frames);
    let result = work();
    GIVEN.set(before);
    result
}

/// Interns stacks onto one tape.
pub(crate) struct Interner {
    words: Words<'static>,
    stacks: Index,
    frames: Index,
    /// Strings, frames and stacks by their contents, which survive the end of an epoch.
    contents: Index,
    /// Epoch of the last check of the two tables for dead entries.
    epoch: AtomicU64,
    lock: AtomicU32,
}

impl Interner {
    pub(crate) fn new(words: Words<'static>) -> Self {
        Self {
            words,
            stacks: Index::new(),
            frames: Index::new(),
            contents: Index::new(),
            epoch: AtomicU64::new(code_objects::epoch()),
            lock: AtomicU32::new(0),
        }
    }

    /// The calling thread's stack; 0 when it is not known.
    #[inline(always)]
    pub(crate) fn current(&self) -> u32 {
        match availability::checked() {
            Some(python) => self.of_python(python),
            None => self.unchecked(),
        }
    }

    #[inline(always)]
    fn of_python(&self, python: PythonFrames) -> u32 {
        let fingerprint = python.fingerprint();
        if fingerprint == 0 {
            return self.without_frames();
        }
        let number = match self.stacks.find(fingerprint) {
            Some(number) => number,
            None => self.learn_python(fingerprint, python),
        };
        autograd::note_forward(number);
        number
    }

    /// The stack of a thread whose Python frames cannot be read.
    #[cold]
    fn unchecked(&self) -> u32 {
        if IS_GIVEN.load(Ordering::Relaxed) {
            let given = GIVEN.get();
            if !given.is_empty() {
                return self.given(given);
            }
        }
        match keeping_errno(availability::availability) {
            Availability::Frames(python) => self.of_python(python),
            Availability::NoFrames => self.without_frames(),
            Availability::Unavailable(why) => {
                self.words.set(header::STACKS, why as u64);
                0
            }
        }
    }

    #[cold]
    fn learn_python(&self, fingerprint: u64, python: PythonFrames) -> u32 {
        self.learn(fingerprint, |this| this.write_python(python))
    }

    /// The stack of a thread without Python frames: in a backward pass, that of the forward line.
    #[inline(never)]
    fn without_frames(&self) -> u32 {
        let Some(node) = keeping_errno(autograd::current_node) else { return self.thread_label() };
        let key = mix(mix(0x1f83_d9ab_fb41_bd6b, node.kind), node.forward.into()) | 1;
        match self.stacks.find(key) {
            Some(number) => number,
            None => self.learn(key, |this| {
                let mut numbers = [0; STACK_FRAMES_MAX];
                let [first, rest @ ..] = &mut numbers;
                *first = this.frame(b"<autograd>", node.name(), 0)?;
                let depth = 1 + InternedWriter(this.words).frames_of(node.forward, rest);
                this.stack(numbers.get(..depth)?)
            }),
        }
    }

    /// Number of a text that the program gave; 0 when the table is full.
    pub(crate) fn text(&self, bytes: &[u8]) -> u32 {
        self.locked(|this| this.string(bytes)).flatten().unwrap_or(0)
    }

    /// Index of a stream and pool; 0 when the table is full.
    pub(crate) fn stream_pool(&self, stream: u64, pool: Option<(u64, u64)>) -> u16 {
        self.locked(|this| StreamPoolWriter(this.words).index(stream, pool)).unwrap_or(0)
    }

    fn given(&self, given: &[FrameRef]) -> u32 {
        let mut fingerprint: u64 = 0x51_7c_c1_b7_27_22_0a_95;
        for frame in given {
            let address = frame.function.as_ptr() as u64 ^ (frame.file.as_ptr() as u64) << 20;
            fingerprint = mix(mix(fingerprint, address), u64::from(frame.line));
        }
        match self.stacks.find(fingerprint | 1) {
            Some(number) => number,
            None => self.learn(fingerprint | 1, |this| {
                this.words.at(header::HOOKS).fetch_or(hooks::GIVEN_FRAMES, Ordering::Relaxed);
                let mut numbers = [0; STACK_FRAMES_MAX];
                let mut depth = 0;
                for (slot, frame) in numbers.iter_mut().zip(given) {
                    *slot =
                        this.frame(frame.file.as_bytes(), frame.function.as_bytes(), frame.line)?;
                    depth += 1;
                }
                InternedWriter(this.words).stack(numbers.get(..depth)?)
            }),
        }
    }

    /// A stack of one frame that names the thread, for threads that run no Python.
    fn thread_label(&self) -> u32 {
        match THREAD_LABEL.get() {
            0 => self.new_thread_label(),
            known => known,
        }
    }

    #[cold]
    fn new_thread_label(&self) -> u32 {
        let name = keeping_errno(ThreadName::current);
        let name = name.as_bytes();
        let backward = name.starts_with(b"pt_autograd");
        let fingerprint =
            name.iter().fold(0x6c62_272e_07bb_0142, |hash, &b| mix(hash, b.into())) | 1;
        let number = self.stacks.find(fingerprint).unwrap_or_else(|| {
            self.learn(fingerprint, |this| {
                let function: &[u8] = if backward { b"backward" } else { name };
                let file: &[u8] = if backward { b"<autograd>" } else { b"<thread>" };
                let frame = this.frame(file, function, 0)?;
                InternedWriter(this.words).stack(&[frame])
            })
        });
        THREAD_LABEL.set(number);
        number
    }

    /// Writes a new stack under the lock; 0 when the lock is taken or the table is full.
    #[cold]
    fn learn(&self, fingerprint: u64, write: impl FnOnce(&Self) -> Option<u32>) -> u32 {
        keeping_errno(|| self.try_to_learn(fingerprint, write))
    }

    fn try_to_learn(&self, fingerprint: u64, write: impl FnOnce(&Self) -> Option<u32>) -> u32 {
        // Without space the lock is not taken.
        let learnt = self.has_space().then(|| {
            self.locked(|this| {
                this.stacks.find(fingerprint).or_else(|| {
                    // Room first: a stack that cannot be found again would be written every time.
                    this.stacks.has_room(fingerprint).then_some(())?;
                    let number = write(this)?;
                    this.stacks.insert(fingerprint, number).then_some(number)
                })
            })
        });
        learnt.flatten().flatten().unwrap_or_else(|| {
            self.words.count(header::LOST_STACKS);
            0
        })
    }

    /// True when one more stack of the greatest depth fits on the tape, its frames known.
    fn has_space(&self) -> bool {
        InternedWriter(self.words).has_room(STACK_FRAMES_MAX)
    }

    /// Runs `work` under the lock, if it can be had in a bounded number of rounds.
    fn locked<R>(&self, work: impl FnOnce(&Self) -> R) -> Option<R> {
        const ROUNDS_MAX: u32 = 20_000;
        let mut rounds = 0;
        while self.lock.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            rounds += 1;
            if rounds > ROUNDS_MAX {
                return None;
            }
            std::hint::spin_loop();
        }
        let result = work(self);
        self.lock.store(0, Ordering::Release);
        Some(result)
    }

    fn write_python(&self, python: PythonFrames) -> Option<u32> {
        self.forget_the_dead();
        let stack = python.collect();
        let mut numbers = [0; STACK_FRAMES_MAX];
        let mut buffer = TextBuffer::default();
        for (slot, &frame) in numbers.iter_mut().zip(stack.frames()) {
            *slot = self.python_frame(python, frame, &mut buffer)?;
        }
        if stack.cut {
            self.words.count(header::CUT_STACKS);
        }
        self.stack(numbers.get(..stack.frames().len())?)
    }

    /// Frees entries of the tables: fingerprints of an epoch that has ended are not found again.
    /// The entries themselves are still in the table of contents.
    fn forget_the_dead(&self) {
        let epoch = code_objects::epoch();
        if self.epoch.swap(epoch, Ordering::Relaxed) != epoch {
            self.stacks.make_room();
            self.frames.make_room();
        }
    }

    fn python_frame(
        &self,
        python: PythonFrames,
        frame: RawFrame,
        buffer: &mut TextBuffer,
    ) -> Option<u32> {
        let fingerprint = frame.fingerprint();
        if let Some(number) = self.frames.find(fingerprint) {
            return Some(number);
        }
        self.frames.has_room(fingerprint).then_some(())?;
        let Some(line) = python.describe(frame, buffer) else {
            // No code object where one must be: the layout is wrong for this interpreter.
            availability::give_up();
            self.words.set(header::STACKS, Stacks::SelfTestFailed as u64);
            return None;
        };
        let number = self.frame(buffer.file.as_bytes(), buffer.function.as_bytes(), line)?;
        self.frames.insert(fingerprint, number).then_some(number)
    }

    /// Number of a stack, from its frames: equal frames have the same number for any fingerprints.
    fn stack(&self, frames: &[u32]) -> Option<u32> {
        let seed = mix(0x5bd1_e995_7b93_c1a3, frames.len() as u64);
        let key = frames.iter().fold(seed, |hash, &frame| mix(hash, frame.into()));
        self.once(key, || InternedWriter(self.words).stack(frames))
    }

    fn frame(&self, file: &[u8], function: &[u8], line: u32) -> Option<u32> {
        let (file, function) = (self.string(file)?, self.string(function)?);
        let names = u64::from(file) << 32 | u64::from(function);
        let key = mix(mix(0x3c6e_f372_fe94_f82b, names), line.into());
        self.once(key, || InternedWriter(self.words).frame(file, function, line))
    }

    fn string(&self, bytes: &[u8]) -> Option<u32> {
        let key = bytes.iter().fold(bytes.len() as u64, |hash, &byte| mix(hash, byte.into()));
        self.once(key, || InternedWriter(self.words).string(bytes))
    }

    /// The number of this content, which is written if it is not on the tape yet.
    fn once(&self, key: u64, write: impl FnOnce() -> Option<u32>) -> Option<u32> {
        if let Some(number) = self.contents.find(key | 1) {
            return Some(number);
        }
        self.contents.has_room(key | 1).then_some(())?;
        let number = write()?;
        self.contents.insert(key | 1, number).then_some(number)
    }
}

fn mix(hash: u64, value: u64) -> u64 {
    let hash = (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 32
}
