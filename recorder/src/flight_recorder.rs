//! Asking PyTorch's NCCL flight recorder: one call of `c10d::dump_nccl_trace_json(false, false)`.
//!
//! Python's `torch._C._distributed_c10d._dump_nccl_trace_json` calls the same function, but holds
//! the GIL. Without collectives in its answer it takes no lock, asks the GPU nothing and needs no
//! Python. It is there from PyTorch 2.5 on, and with a `std::string` that can be read here in all
//! builds with the C++11 one: those of PyPI from 2.7 on. The symbol's name tells which it is.
//!
//! *Exceptions.* Rust cannot catch one of C++. So a value whose drop never returns stands between
//! the call and the thread's end: while the exception unwinds it is dropped, says so, and the
//! thread sleeps for good. Nothing else waits for that thread.
//!
//! *The string.* It comes back by value, which for its size means in memory that the caller gives.
//! Its text is on the heap, as every dump is longer than the 15 bytes it may have inside of itself,
//! and is freed by the C++ library's own destructor, so by the allocator that it came from.

use std::ffi::c_void;

use memtape_core::tape::dump::Dump;

use crate::symbols::Symbol;

/// Longest answer that is looked into. A group of 16,384 ranks takes 110 KB.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Longest text that a `std::string` has inside of itself.
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
    unsafe { Symbol::of_torch_cuda(c"_ZN4c10d20dump_nccl_trace_jsonB5cxx11Ebb") };
// SAFETY: `std::string::~string()`, also of the C++11 string.
static DESTROY: Symbol<Destroy> =
    unsafe { Symbol::of_torch_cuda(c"_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEED1Ev") };

/// What came of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It was understood.
    Dump(Dump),
    /// It was not.
    NotUnderstood,
}

/// The functions that are called.
#[derive(Clone, Copy)]
pub(crate) struct FlightRecorder {
    dump_json: DumpJson,
    destroy: Destroy,
}

impl FlightRecorder {
    /// That of the PyTorch in this process, if it can be asked.
    pub(crate) fn find() -> Option<Self> {
        Some(Self { dump_json: DUMP_JSON.get()?, destroy: DESTROY.get()? })
    }

    /// Asks. Only on a thread that nobody waits for: the call may take any time, and where it
    /// throws, `threw` is called and this never returns.
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
            // SAFETY: the string's own text, which nobody else has.
            .then(|| unsafe { std::slice::from_raw_parts(string.text, string.length) })
            .and_then(Dump::parse);
        let guard = SleepsOn(threw);
        // SAFETY: the string is used no more. That it has moved does not matter: what it points to
        // is not inside of it.
        unsafe { (self.destroy)(&raw mut string) };
        std::mem::forget(guard);
        dump.map_or(Answer::NotUnderstood, Answer::Dump)
    }
}

/// Dropped only while an exception of C++ unwinds: says so, and sleeps on.
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

#[cfg(test)]
#[path = "flight_recorder/tests.rs"]
mod tests;
