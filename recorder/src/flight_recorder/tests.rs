//! Calls of a stand-in for PyTorch's function, in C++: its string is read and freed, and its
//! exception goes nowhere. Needs g++; the tests say when it is not there.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::ffi::{CStr, CString, c_int};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::*;

/// A stand-in that is compiled and loaded; `None`, aloud, where there is no compiler.
fn load(name: &str) -> Option<*mut c_void> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/flight_recorder/recorder.cpp");
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
        crate::edge::caught(|| {
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
