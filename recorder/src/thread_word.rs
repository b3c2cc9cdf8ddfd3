//! A number that another library keeps for each thread, read without calling that library.
//!
//! A function that returns a thread-local number costs a call into three libraries, whose code is
//! in no cache at that moment: more than all the rest that the recorder does for a block. So the
//! recorder finds out where the number is. Whoever has called the function brings its answer
//! ([`ThreadWord::learn`]); of all words that the library keeps for the thread, those that hold
//! something else are out. A word that is alone left over after [`PROOFS_MIN`] different answers is
//! the one, and from then on [`ThreadWord::get`] reads it where the dynamic linker says it is: in
//! the calling thread's block of the library's thread-local storage. On a thread that has no such
//! block yet the function is called as before, which makes one.
//!
//! It knows how glibc keeps those blocks on x86-64, and compares that with what the linker itself
//! says before it believes it. Elsewhere nothing is ever known, and the function is always called.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Different answers that a word must have held.
const PROOFS_MIN: u32 = 8;

/// Different answers after which the search ends without a result.
const PROOFS_MAX: u32 = 1000;

/// Bytes of a library's block that are looked through; libtorch_cpu.so has 26 KiB.
const BLOCK_BYTES_MAX: usize = 1 << 20;

/// One such number.
pub(crate) struct ThreadWord {
    /// The library's module in the upper half, the word's offset in its block in the lower one;
    /// 0 while it is not known (modules count from 1).
    place: AtomicU64,
    search: Mutex<Search>,
}

enum Search {
    NotBegun,
    Among { block: Block, offsets: Vec<u32>, answer: u64, proofs: u32 },
    Over,
}

/// A library's thread-local storage.
#[derive(Clone, Copy)]
struct Block {
    module: u32,
    size_bytes: usize,
}

impl ThreadWord {
    pub(crate) const fn new() -> Self {
        Self { place: AtomicU64::new(0), search: Mutex::new(Search::NotBegun) }
    }

    /// The calling thread's number, if it is known where to look.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<u64> {
        let place = self.place.load(Ordering::Relaxed);
        if place == 0 {
            return None;
        }
        let block = start((place >> 32) as u32)?;
        // SAFETY: a word of the library's block, which this thread has.
        Some(unsafe { std::ptr::read((block + place as u32 as usize) as *const u64) })
    }

    /// The calling thread has just been given this answer by the library's function.
    #[cold]
    pub(crate) fn learn(&self, function: *const c_void, answer: u64) {
        // Zero is in most words: it proves nothing.
        if answer == 0 {
            return;
        }
        let Ok(mut search) = self.search.try_lock() else { return };
        match &mut *search {
            Search::Over => {}
            Search::NotBegun => {
                *search = Block::of(function).map_or(Search::Over, |block| {
                    let words = block.size_bytes as u32 / size_of::<u64>() as u32;
                    let mut offsets: Vec<u32> = (0..words).map(|word| word * 8).collect();
                    offsets.retain(|&offset| block.holds(offset, answer));
                    Search::Among { block, offsets, answer, proofs: 1 }
                });
            }
            Search::Among { answer: last, .. } if *last == answer => {}
            Search::Among { block, offsets, answer: last, proofs } => {
                offsets.retain(|&offset| block.holds(offset, answer));
                *last = answer;
                *proofs += 1;
                if let ([only], PROOFS_MIN..) = (offsets.as_slice(), *proofs) {
                    let place = u64::from(block.module) << 32 | u64::from(*only);
                    self.place.store(place, Ordering::Relaxed);
                    *search = Search::Over;
                } else if offsets.is_empty() || *proofs > PROOFS_MAX {
                    *search = Search::Over;
                }
            }
        }
    }
}

impl Block {
    /// That of the library with this function, if the calling thread has one where it must be.
    fn of(function: *const c_void) -> Option<Self> {
        let mut look = Look { address: function as usize, found: None };
        // SAFETY: the callback gets this very value, only during the call.
        unsafe { libc::dl_iterate_phdr(Some(look_at), (&raw mut look).cast()) };
        let (block, here) = look.found?;
        let as_the_linker_says = start(block.module) == Some(here);
        (as_the_linker_says && block.size_bytes <= BLOCK_BYTES_MAX).then_some(block)
    }

    fn holds(self, offset: u32, answer: u64) -> bool {
        start(self.module).is_some_and(|block| {
            // SAFETY: a word of the library's block, which this thread has. Other threads may
            // write into it: words that they do not share are what is looked for.
            unsafe { std::ptr::read_volatile((block + offset as usize) as *const u64) == answer }
        })
    }
}

/// A search for the library that an address lies in, and where the calling thread has its block.
struct Look {
    address: usize,
    found: Option<(Block, usize)>,
}

unsafe extern "C" fn look_at(
    info: *mut libc::dl_phdr_info,
    size: usize,
    look: *mut c_void,
) -> c_int {
    if size < size_of::<libc::dl_phdr_info>() {
        return 1; // a linker that says nothing of thread-local storage
    }
    // SAFETY: `Block::of` passes its own `Look`, and the linker a valid description.
    let (look, info) = unsafe { (&mut *look.cast::<Look>(), &*info) };
    // SAFETY: the linker's own array.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let is_inside = headers.iter().any(|header| {
        let from = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        header.p_type == libc::PT_LOAD
            && (from..from.saturating_add(header.p_memsz as usize)).contains(&look.address)
    });
    if !is_inside {
        return 0;
    }
    let storage = headers.iter().find(|header| header.p_type == libc::PT_TLS);
    if let Some(storage) = storage
        && !info.dlpi_tls_data.is_null()
    {
        let module = info.dlpi_tls_modid as u32;
        let block = Block { module, size_bytes: storage.p_memsz as usize };
        look.found = Some((block, info.dlpi_tls_data as usize));
    }
    1
}

/// Where the calling thread has its block of a module, if it has one.
///
/// glibc on x86-64: the second word of a thread's control block points to its vector, which has a
/// pair of words for each module, the first of them the block's address. The pair before those
/// says how many there are. Only the thread itself changes its vector.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
#[inline(always)]
fn start(module: u32) -> Option<usize> {
    let vector: *const [usize; 2];
    // SAFETY: every thread has a control block and a vector; both are read only.
    let (modules, block) = unsafe {
        std::arch::asm!("mov {}, fs:[8]", out(reg) vector, options(pure, readonly, nostack));
        let modules = (*vector.sub(1))[0];
        if module as usize > modules {
            return None;
        }
        (modules, (*vector.add(module as usize))[0])
    };
    const NOT_YET: usize = usize::MAX;
    (modules != 0 && block != NOT_YET && block != 0).then_some(block)
}

#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
fn start(_module: u32) -> Option<usize> {
    None
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
            if (n < 5) often = n;
        }
        unsigned long get_shared(void) { return shared; }
        void set_shared(unsigned long n) { shared = n; }
    ";

    fn library(folder: &std::path::Path) -> impl Fn(&str) -> *mut c_void {
        let (source, library) = (folder.join("number.c"), folder.join("libnumber.so"));
        std::fs::write(&source, SOURCE).expect("the source");
        let mut compiler = Command::new("gcc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).args([&library, &source]);
        assert!(compiler.status().expect("gcc runs").success());
        let path = CString::new(library.to_str().expect("a plain path")).expect("no zeros");
        // SAFETY: a library without constructors.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null());
        let handle = handle as usize;
        move |name| {
            let name = CString::new(name).expect("no zeros");
            // SAFETY: an open handle and a C string.
            unsafe { libc::dlsym(handle as *mut c_void, name.as_ptr()) }
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_number_is_found_and_read_on_every_thread() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let symbol = library(folder.path());
        let function = symbol("get") as usize;
        // SAFETY: the types of the functions above.
        let (get, set) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Get>(symbol("get")),
                std::mem::transmute::<*mut c_void, Set>(symbol("set")),
            )
        };
        let word = ThreadWord::new();
        // SAFETY: plain functions.
        let ask = |number: u64| unsafe {
            set(number);
            word.learn(function as *const c_void, get());
        };
        ask(0);
        for number in 1..u64::from(PROOFS_MIN) {
            ask(number);
            ask(number); // the same answer twice is one proof
            assert_eq!(word.get(), None, "after {number} answers");
        }
        ask(u64::from(PROOFS_MIN));
        assert_eq!(word.get(), Some(u64::from(PROOFS_MIN)));
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let word = &word;
                scope.spawn(move || {
                    assert_eq!(word.get(), None, "this thread has no such block yet");
                    for number in 0..1000 {
                        // SAFETY: a plain function.
                        unsafe { set(number << 8 | thread) };
                        assert_eq!(word.get(), Some(number << 8 | thread));
                    }
                });
            }
        });
        assert_eq!(word.get(), Some(u64::from(PROOFS_MIN)), "other threads have their own");
    }

    #[test]
    fn a_number_that_is_no_threads_own_is_given_up() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let symbol = library(folder.path());
        let function = symbol("get_shared");
        // SAFETY: the type of the function above, which gives this thread a block.
        unsafe { std::mem::transmute::<*mut c_void, Set>(symbol("set"))(7) };
        let word = ThreadWord::new();
        (1..100).for_each(|number| word.learn(function, 1_000_000 + number));
        assert_eq!(word.get(), None);
        assert!(matches!(*word.search.lock().expect("not poisoned"), Search::Over));
        // A function of a library that keeps nothing for threads, or of none at all.
        for function in [std::ptr::null(), library as *const c_void] {
            let word = ThreadWord::new();
            (1..100).for_each(|number| word.learn(function, number));
            assert_eq!(word.get(), None);
        }
    }
}
