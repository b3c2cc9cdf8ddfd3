//! Asks PyTorch's NCCL flight recorder: one call of `c10d::dump_nccl_trace_json(false, false)`.
//!
//! Python's `torch._C._distributed_c10d._dump_nccl_trace_json` calls the same function, but holds
//! the GIL. Without collectives in its answer the function takes no lock, does not call the GPU and
//! needs no Python. It exists since PyTorch 2.5. Its `std::string` can be read here in all builds
//! with the C++11 string, those of PyPI since 2.7; the symbol's name tells which string it is. The
//! flight recorder is on by default since 2.11. One that is off has no process group, and neither
//! has this one in 2.15, whose default backend keeps its numbers in another flight recorder.
//!
//! *Exceptions.* Rust cannot catch an exception of C++. So a value whose drop never returns is held
//! during the call: while the exception unwinds it is dropped, reports that, and the thread sleeps
//! for ever. No other thread waits for that thread.
//!
//! *The string* is returned by value, which for its size means in memory that the caller gives. Its
//! text is on the heap, because every dump is longer than the 15 bytes that the string may hold
//! itself. The C++ library's own destructor frees it, so by the allocator that it came from.

use std::ffi::c_void;

use memtape_tape::collective::dump::Dump;

use crate::background::dump_json;
use crate::host::symbols::{Library, Symbol};

/// Longest answer that is parsed. A group of 16,384 ranks takes 110 KB.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Longest text that a `std::string` holds itself.
const INSIDE_BYTES_MAX: usize = 15;

/// libstdc++'s `std::string` since GCC 5.
#[repr(C)]
struct CxxString {
    text: *const u8,
    length: usize,
    inside: [u64; 2],
}

type DumpJson = unsafe extern "C-unwind" fn(bool, bool) -> CxxString;
type Destroy = unsafe extern "C-unwind" fn(*mut CxxString);

// SAFETY: `std::string c10d::dump_nccl_trace_json(bool includeCollectives, bool onlyActive)`; the
// name says that it is the C++11 string.
static DUMP_JSON: Symbol<DumpJson> =
    unsafe { Symbol::new(&Library::TORCH_CUDA, c"_ZN4c10d20dump_nccl_trace_jsonB5cxx11Ebb") };
// SAFETY: `std::string::~string()`, also of the C++11 string.
static DESTROY: Symbol<Destroy> = unsafe {
    Symbol::new(&Library::TORCH_CUDA, c"_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEED1Ev")
};

/// Answer of the flight recorder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The dump.
    Dump(Dump),
    /// An answer that is not a dump.
    NotUnderstood,
}

/// PyTorch's function and its C library's.
#[derive(Clone, Copy)]
pub(crate) struct FlightRecorder {
    dump_json: DumpJson,
    destroy: Destroy,
}

impl FlightRecorder {
    /// The flight recorder of this process's PyTorch, if it can be asked.
    pub(crate) fn find() -> Option<Self> {
        Some(Self { dump_json: DUMP_JSON.get()?, destroy: DESTROY.get()? })
    }

    /// Asks. Only on a thread that no other thread waits for: the call may take any time, and where
    /// it throws, `threw` is called and this never returns.
    pub(crate) fn ask(self, threw: fn()) -> Answer {
        let mut string = {
            let guard = SleepsOn(threw);
            // SAFETY: the function's type; no collectives, active or not.
            let string = unsafe { (self.dump_json)(false, false) };
            std::mem::forget(guard);
            string
        };
        if string.length <= INSIDE_BYTES_MAX || string.text.is_null() {
            return Answer::NotUnderstood; // nothing is on the heap
        }
        let dump = (string.length <= ANSWER_BYTES_MAX)
            // SAFETY: the string's own text, which has no other owner.
            .then(|| unsafe { std::slice::from_raw_parts(string.text, string.length) })
            .and_then(dump_json::parse);
        let guard = SleepsOn(threw);
        // SAFETY: the string is used no more. That it has moved does not matter: what it points to
        // is not inside of it.
        unsafe { (self.destroy)(&raw mut string) };
        std::mem::forget(guard);
        dump.map_or(Answer::NotUnderstood, Answer::Dump)
    }
}

/// Dropped only while an exception of C++ unwinds: calls the function, and sleeps for ever.
struct SleepsOn(fn());

impl Drop for SleepsOn {
    fn drop(&mut self) {
        (self.0)();
        loop {
            // SAFETY: it sleeps until a signal comes, and this thread takes none.
            unsafe { libc::pause() };
        }
    }
}

const _: () = assert!(size_of::<CxxString>() == 32 && size_of::<*mut c_void>() == 8);

/// Calls of a stand-in for PyTorch's function, in C++: its string is read and freed, and its
/// exception stops its thread only. Needs g++; the tests say when it is not there.
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]
mod tests {
    use std::ffi::{CStr, CString, c_int};
    use std::path::Path;
    use std::process::Command;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    /// A stand-in that is compiled and loaded; `None`, with a line that says so, where there is no
    /// compiler.
    fn load(name: &str) -> Option<*mut c_void> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("src/background/flight_recorder.cpp");
        let mut compiler = Command::new("g++");
        compiler.args(["-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden"]);
        // With a C++ library inside of it, whose strings then come from the heap that is counted.
        compiler.args(["-static-libstdc++", "-o"]);
        let Ok(output) = compiler.args([&path, &source]).output() else {
            println!("skipped: there is no g++ on this machine");
            return None;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a library of our own, never unloaded.
        let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null());
        Some(handle)
    }

    fn function(library: *mut c_void, name: &CStr) -> *mut c_void {
        // SAFETY: the library is loaded.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found
    }

    fn answer(library: *mut c_void, how: c_int) {
        let set = function(library, c"answer");
        // SAFETY: the stand-in's own function.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int)>(set)(how) };
    }

    fn count(library: *mut c_void, name: &CStr) -> c_int {
        let get = function(library, name);
        // SAFETY: the stand-in's own function.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(get)() }
    }

    fn recorder(library: *mut c_void) -> FlightRecorder {
        let dump_json = function(library, c"_ZN4c10d20dump_nccl_trace_jsonB5cxx11Ebb");
        let destroy = function(library, c"destroy");
        // SAFETY: the types of what the stand-in defines.
        unsafe {
            FlightRecorder {
                dump_json: std::mem::transmute::<*mut c_void, DumpJson>(dump_json),
                destroy: std::mem::transmute::<*mut c_void, Destroy>(destroy),
            }
        }
    }

    fn never() {
        panic!("nothing was thrown");
    }

    #[test]
    fn an_answer_is_read_and_freed() {
        let Some(library) = load("libanswers.so") else { return };
        let flight_recorder = recorder(library);
        for _ in 0..100 {
            let Answer::Dump(dump) = flight_recorder.ask(never) else { panic!("it is a dump") };
            let [status] = dump.statuses.as_slice() else { panic!("one group: {dump:?}") };
            assert_eq!((status.id, status.enqueued), (3, Some(812)));
        }
        // Shorter than a string has inside of itself, no dump, longer than any.
        for how in 1..=3 {
            answer(library, how);
            assert_eq!(flight_recorder.ask(never), Answer::NotUnderstood, "{how}");
        }
        assert_eq!(count(library, c"asked_so_often"), 103 * 101);
        assert_eq!(count(library, c"on_the_heap"), 0, "all is freed");
    }

    #[test]
    fn an_exception_costs_its_thread_and_nothing_else() {
        static THREW: AtomicU32 = AtomicU32::new(0);
        let Some(library) = load("libthrows.so") else { return };
        answer(library, 9);
        let flight_recorder = recorder(library);
        let thread = std::thread::spawn(move || {
            crate::writer::panic_boundary::caught(|| {
                flight_recorder.ask(|| THREW.store(1, Ordering::SeqCst));
            });
        });
        let begun = Instant::now();
        while THREW.load(Ordering::SeqCst) == 0 && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(THREW.load(Ordering::SeqCst), 1);
        assert_eq!(count(library, c"asked_so_often"), 101, "C++ has unwound its own frames");
        assert!(!thread.is_finished(), "it sleeps");
    }
}
