//! Reads a number that another library keeps for each thread, without calling that library.
//!
//! A function that returns a thread-local number costs a call into three libraries, whose code is
//! in no cache at that time: more than everything else the recorder does for a block. So the
//! recorder finds out where the number is. It calls the function and gives the answer to
//! [`ThreadWord::learn`]. Of all words that the library keeps for the thread, those that hold
//! another value are excluded. When one word is left after `PROOFS_MIN` different answers,
//! [`ThreadWord::get`] reads it where the dynamic linker says it is: in the calling thread's block
//! of the library's thread-local storage. On a thread that has no such block yet the function is
//! called, which makes one; likewise on a thread whose vector of blocks may be older than the
//! library, and may show the block of a library that is gone.
//!
//! The reading knows how glibc keeps these blocks on x86-64, and is compared with the linker's own
//! answer first. On other systems the word is never found, and the function is always called.

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::host::libraries::{self, ThreadStorage};

/// Different answers that a word must have held before it is believed.
const PROOFS_MIN: u32 = 8;

/// Different answers after which the search ends without a result.
const PROOFS_MAX: u32 = 1000;

/// Bytes of a library's block that are searched; libtorch_cpu.so has 26 KiB.
const BLOCK_BYTES_MAX: usize = 1 << 20;

/// The place of one number in thread-local storage.
pub(crate) struct ThreadWord {
    /// The library's module in the upper half, the word's offset in its block in the lower one;
    /// [`NOT_KNOWN`] or [`NEVER`].
    location: AtomicU64,
    /// The oldest state of a thread's vector that is known to have the library's block.
    generation: AtomicU64,
    search: Mutex<Search>,
}

/// Modules count from 1.
const NOT_KNOWN: u64 = 0;
/// The search has ended without a result.
const NEVER: u64 = u64::MAX;

enum Search {
    NotBegun,
    Among { block: Block, offsets: Vec<u32>, answer: u64, proofs: u32 },
}

/// A library's block of thread-local storage.
#[derive(Clone, Copy)]
struct Block {
    module: u32,
    size_bytes: usize,
}

impl ThreadWord {
    pub(crate) const fn new() -> Self {
        let (location, generation) = (AtomicU64::new(NOT_KNOWN), AtomicU64::new(u64::MAX));
        Self { location, generation, search: Mutex::new(Search::NotBegun) }
    }

    /// The calling thread's number, if its location is known.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<u64> {
        // In the order in which `learn` wrote them.
        let location = self.location.load(Ordering::Acquire);
        if location == NOT_KNOWN || location == NEVER {
            return None;
        }
        let block = start((location >> 32) as u32, self.generation.load(Ordering::Relaxed))?;
        // SAFETY: a word of the library's block, which this thread has.
        Some(unsafe { std::ptr::read((block + location as u32 as usize) as *const u64) })
    }

    /// Learns from an answer that the library's function just gave on the calling thread.
    #[cold]
    pub(crate) fn learn(&self, function: *const c_void, answer: u64) {
        match self.location.load(Ordering::Relaxed) {
            NEVER => return,
            // Zero is in most words: it proves nothing.
            NOT_KNOWN if answer == 0 => return,
            _ => {}
        }
        // The function has just brought this thread's vector up to date with its library.
        self.generation.fetch_min(generation(), Ordering::Relaxed);
        if self.location.load(Ordering::Relaxed) != NOT_KNOWN {
            return;
        }
        let Ok(mut search) = self.search.try_lock() else { return };
        match &mut *search {
            Search::NotBegun => match Block::of(function) {
                Some(block) => {
                    let words = block.size_bytes as u32 / size_of::<u64>() as u32;
                    let mut offsets: Vec<u32> = (0..words).map(|word| word * 8).collect();
                    offsets.retain(|&offset| block.holds(offset, answer));
                    *search = Search::Among { block, offsets, answer, proofs: 1 };
                }
                None => self.location.store(NEVER, Ordering::Relaxed),
            },
            Search::Among { answer: last, .. } if *last == answer => {}
            Search::Among { block, offsets, answer: last, proofs } => {
                offsets.retain(|&offset| block.holds(offset, answer));
                *last = answer;
                *proofs += 1;
                if let ([only], PROOFS_MIN..) = (offsets.as_slice(), *proofs) {
                    let location = u64::from(block.module) << 32 | u64::from(*only);
                    self.location.store(location, Ordering::Release);
                } else if offsets.is_empty() || *proofs >= PROOFS_MAX {
                    self.location.store(NEVER, Ordering::Relaxed);
                }
            }
        }
    }
}

impl Block {
    /// The block of the library that has this function, if the calling thread has one.
    fn of(function: *const c_void) -> Option<Self> {
        let storage = libraries::find(|library| {
            let holds_it = |header| library.addresses(header).contains(&(function as usize));
            let mut segments = library.headers(libc::PT_LOAD);
            segments.any(holds_it).then(|| {
                let header = library.headers(libc::PT_TLS).next()?;
                Some((library.thread_storage(), header.p_memsz as usize))
            })
        });
        let (ThreadStorage { module, block }, size_bytes) = storage.flatten()?;
        let found = Self { module: module as u32, size_bytes };
        let as_the_linker_says = !block.is_null() && start(found.module, 0) == Some(block as usize);
        (as_the_linker_says && size_bytes <= BLOCK_BYTES_MAX).then_some(found)
    }

    fn holds(self, offset: u32, answer: u64) -> bool {
        start(self.module, 0).is_some_and(|block| {
            // SAFETY: a word of the library's block, which this thread has: it has just called the
            // library's function. Other threads may write into it: words that they do not share
            // are what is looked for.
            unsafe { std::ptr::read_volatile((block + offset as usize) as *const u64) == answer }
        })
    }
}

/// Address of the calling thread's block of a module, if the thread has one and its vector is of
/// this generation or newer.
///
/// glibc on x86-64: the second word of a thread's control block points to its vector, which has a
/// pair of words for each module, the first of them the block's address. The pair of number 0 has
/// the generation, the pair before it the number of pairs. Only the thread changes its vector.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
#[inline(always)]
fn start(module: u32, generation: u64) -> Option<usize> {
    const NOT_YET: usize = usize::MAX;
    let vector = vector();
    // SAFETY: the two pairs are always there, and the module's when the vector is that long.
    unsafe {
        if (*vector)[0] < generation as usize || (*vector.sub(1))[0] < module as usize {
            return None;
        }
        let block = (*vector.add(module as usize))[0];
        (block != NOT_YET && block != 0).then_some(block)
    }
}

/// The generation of the calling thread's vector: it grows when libraries come and go.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
fn generation() -> u64 {
    // SAFETY: that pair is always there.
    unsafe { (*vector())[0] as u64 }
}

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
#[inline(always)]
fn vector() -> *const [usize; 2] {
    let vector;
    // SAFETY: every thread has a control block, which is read only.
    unsafe {
        std::arch::asm!("mov {}, fs:[8]", out(reg) vector, options(pure, readonly, nostack));
    }
    vector
}

#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
fn start(_module: u32, _generation: u64) -> Option<usize> {
    None
}

#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
fn generation() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::process::Command;

    use super::*;

    type Get = unsafe extern "C" fn() -> u64;
    type Set = unsafe extern "C" fn(u64);

    /// A library with a number for each thread, another that is often the same, and one for all.
    const SOURCE: &str = "
        static __thread unsigned long before[300], number, often, after[40];
        static unsigned long shared;
        unsigned long get(void) { return number; }
        void set(unsigned long n) {
            number = n; before[n % 300] = n; after[0] = 3;
            if (n < 20) often = n;
        }
        unsigned long get_often(void) { return often; }
        unsigned long get_shared(void) { return shared; }
    ";

    /// A library whose blocks are shorter than the word's offset.
    const SMALL: &str = "__thread long small; void touch(void) { small = 1; }";

    struct Library(usize);

    impl Library {
        fn open(folder: &std::path::Path, name: &str, code: &str) -> Self {
            let (source, library) = (folder.join("code.c"), folder.join(name));
            std::fs::write(&source, code).expect("the source");
            let mut compiler = Command::new("gcc");
            compiler.args(["-shared", "-fPIC", "-O1", "-o"]).args([&library, &source]);
            assert!(compiler.status().expect("gcc runs").success());
            let path = CString::new(library.to_str().expect("a plain path")).expect("no zeros");
            // SAFETY: a library without constructors.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            assert!(!handle.is_null());
            Self(handle as usize)
        }

        fn symbol(&self, name: &str) -> *mut c_void {
            let name = CString::new(name).expect("no zeros");
            // SAFETY: an open handle and a C string.
            unsafe { libc::dlsym(self.0 as *mut c_void, name.as_ptr()) }
        }

        fn set(&self, number: u64) {
            // SAFETY: the type of the function above.
            unsafe { std::mem::transmute::<*mut c_void, Set>(self.symbol("set"))(number) };
        }

        /// Sets the number, asks for it, and lets `word` learn from the answer.
        fn teach(&self, word: &ThreadWord, number: u64) {
            self.set(number);
            // SAFETY: the type of the function above.
            let answer = unsafe { std::mem::transmute::<*mut c_void, Get>(self.symbol("get"))() };
            word.learn(self.symbol("get"), answer);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_number_is_found_and_read_on_every_thread() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let library = Library::open(folder.path(), "number.so", SOURCE);
        let word = ThreadWord::new();
        library.teach(&word, 0);
        for number in 1..20 {
            library.teach(&word, number);
            library.teach(&word, number); // the same answer twice is one proof
            assert_eq!(word.get(), None, "another word has held all {number} answers, too");
        }
        library.teach(&word, 20);
        assert_eq!(word.get(), Some(20));
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (word, library) = (&word, &library);
                scope.spawn(move || {
                    assert_eq!(word.get(), None, "this thread has no such block yet");
                    for number in 0..1000 {
                        library.set(number << 8 | thread);
                        assert_eq!(word.get(), Some(number << 8 | thread));
                    }
                });
            }
        });
        assert_eq!(word.get(), Some(20), "other threads have their own");
    }

    /// A library whose blocks are known goes, and another takes its number: the vectors of threads
    /// that have not noticed still have the first one's.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_vector_that_is_older_than_the_library_is_not_believed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let small = Library::open(folder.path(), "small.so", SMALL);
        let (go, wait) = std::sync::mpsc::channel();
        let (say, hear) = std::sync::mpsc::channel();
        let touch = small.symbol("touch") as usize;
        let thread = std::thread::spawn(move || {
            // SAFETY: the type of the function above.
            unsafe {
                std::mem::transmute::<usize, unsafe extern "C" fn()>(touch)();
            }
            say.send(()).expect("the test waits");
            let (word, library): (std::sync::Arc<ThreadWord>, Library) =
                wait.recv().expect("the test goes on");
            let before = word.get();
            library.teach(&word, 77);
            (before, word.get())
        });
        hear.recv().expect("the thread is there");
        // SAFETY: an open handle; the library is not called any more.
        unsafe { libc::dlclose(small.0 as *mut c_void) };
        let library = Library::open(folder.path(), "number.so", SOURCE);
        let word = std::sync::Arc::new(ThreadWord::new());
        (100..100 + u64::from(PROOFS_MIN)).for_each(|number| library.teach(&word, number));
        assert!(word.get().is_some());
        go.send((word, library)).expect("the thread waits");
        assert_eq!(thread.join().expect("it did not panic"), (None, Some(77)));
    }

    #[test]
    fn thread_word_without_a_tls_slot_is_disabled() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let library = Library::open(folder.path(), "number.so", SOURCE);
        library.set(7); // gives this thread a block
        let word = ThreadWord::new();
        let function = library.symbol("get_shared");
        (1..100).for_each(|number| word.learn(function, 1_000_000 + number));
        assert_eq!((word.get(), word.location.load(Ordering::Relaxed)), (None, NEVER));
        // A function of no library at all.
        let word = ThreadWord::new();
        word.learn(std::ptr::null(), 1);
        assert_eq!((word.get(), word.location.load(Ordering::Relaxed)), (None, NEVER));
    }

    #[test]
    fn an_ambiguous_thread_word_is_disabled() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let library = Library::open(folder.path(), "number.so", SOURCE);
        let word = ThreadWord::new();
        // Two words hold all of these.
        (0..PROOFS_MAX).for_each(|turn| library.teach(&word, 1 + u64::from(turn % 19)));
        assert_eq!((word.get(), word.location.load(Ordering::Relaxed)), (None, NEVER));
    }
}
