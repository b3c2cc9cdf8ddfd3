//! The tracker against a stand-in for PyTorch's library, with one thing wrong at a time.
//!
//! The real libraries are tried by `cargo xtask compat`. Needs g++; the tests say when it is not
//! there.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::path::Path;
use std::process::Command;

use super::*;

thread_local! {
    static DELIVERED: RefCell<Vec<Traced>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn delivered(traced: &Traced) {
    let Traced { action, device, address, size, stream, pool } = *traced;
    DELIVERED.with_borrow_mut(|all| {
        all.push(Traced { action, device, address, size, stream, pool });
    });
}

/// A stand-in that is compiled and loaded.
struct StandIn {
    name: String,
    folder: tempfile::TempDir,
    handle: *mut c_void,
}

type Init = unsafe extern "C" fn();
type Happen = unsafe extern "C" fn(c_int, usize, usize, usize);

impl StandIn {
    /// `None`, and a line that says so, where there is no compiler.
    fn load(case: &str, flags: &[&str]) -> Option<Self> {
        let name = format!("libc10_cuda_{case}.so");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(&name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/hooks/tracker/allocator.cpp");
        let compiled = Command::new("g++")
            .args(["-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden"])
            .args(["-Wl,--build-id=sha1", "-o"])
            .args([&path, &source])
            .args(flags)
            .output();
        let Ok(output) = compiled else {
            println!("skipped: there is no g++ on this machine");
            return None;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a library of our own, never unloaded.
        let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} loads", path.display());
        let library = Self { name, folder, handle };
        // SAFETY: the stand-in's own function.
        unsafe { std::mem::transmute::<*mut c_void, Init>(library.function(c"init"))() };
        Some(library)
    }

    fn function(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is open and the name is a C string.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!found.is_null(), "the stand-in exports {name:?}");
        found
    }

    fn attach(&self) -> Result<(), Tracker> {
        Plan::make(&self.name)?.attach(&AtomicBool::new(false))
    }

    /// Makes the allocator report an event, and returns the delivered entries.
    fn happen(&self, action: c_int, address: usize, size: usize, stream: usize) -> Vec<Traced> {
        // SAFETY: the stand-in's own function.
        unsafe {
            let happen = std::mem::transmute::<*mut c_void, Happen>(self.function(c"happen"));
            happen(action, address, size, stream);
        }
        DELIVERED.take()
    }
}

fn check_refused(case: &str, flags: &[&str], expected: Tracker) {
    let Some(library) = StandIn::load(case, flags) else { return };
    assert_eq!(library.attach(), Err(expected), "{case}");
    assert!(library.happen(0, 1, 1, 1).is_empty(), "{case}: nothing was attached");
}

fn check_attached(case: &str, flags: &[&str], pool: Option<(u64, u64)>) {
    let Some(library) = StandIn::load(case, flags) else { return };
    assert_eq!(library.attach(), Ok(()), "{case}");
    let all = library.happen(3, 0x7f00_1234_5600, 1000, 0xabcd);
    let [one] = all.as_slice() else { panic!("{case}: one entry, not {}", all.len()) };
    let found = (one.action, one.device, one.address, one.size, one.stream, one.pool);
    assert_eq!(found, (3, 1, 0x7f00_1234_5600, 1000, 0xabcd, pool), "{case}");
}

/// In one test, because whether entries have a pool is a fact about the one library of a process.
#[test]
fn entries_are_read() {
    check_attached("first", &[], None);
    check_attached("pool", &["-DPOOL"], Some((7, 9)));
    check_attached("renamed", &["-DRENAMED", "-DPOOL"], Some((7, 9)));
}

#[test]
fn an_unconfirmed_slot_is_refused() {
    check_refused("old", &["-DOLD"], Tracker::NoFunction);
    check_refused("stripped", &["-s"], Tracker::NoSymbolTable);
    check_refused("no_slot", &["-DNO_SLOT"], Tracker::NoSlot);
    check_refused("twice", &["-DTWICE"], Tracker::SeveralSlots);
    check_refused("other", &["-DOTHER"], Tracker::OtherAllocator);
    check_refused("empty", &["-DEMPTY"], Tracker::NotReady);
    check_refused("half", &["-DHALF"], Tracker::NotReady);
    check_refused("odd", &["-DODD"], Tracker::UnknownBuild);
    check_refused("no_id", &["-Wl,--build-id=none"], Tracker::OtherFile);
    assert_eq!(Plan::make("libc10_cuda_absent.so").err(), Some(Tracker::NoAllocator));
    // A library that is loaded, and has nothing of PyTorch's.
    assert_eq!(Plan::make("libc.so.6").err(), Some(Tracker::NoAllocator));
}

#[test]
fn a_file_that_was_replaced_is_not_believed() {
    let Some(library) = StandIn::load("replaced", &[]) else { return };
    let Some(other) = StandIn::load("replacement", &["-DPOOL"]) else { return };
    let path = library.folder.path().join(&library.name);
    std::fs::rename(other.folder.path().join(&other.name), &path).unwrap();
    assert_eq!(library.attach(), Err(Tracker::OtherFile));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(library.attach(), Err(Tracker::Unreadable));
    std::fs::write(&path, b"\x7fELF, and no more").unwrap();
    assert_eq!(library.attach(), Err(Tracker::Unreadable));
}

#[test]
fn it_is_attached_once() {
    let Some(library) = StandIn::load("once", &[]) else { return };
    let plan = Plan::make(&library.name).ok().unwrap();
    let is_attached = AtomicBool::new(false);
    assert_eq!((plan.attach(&is_attached), plan.attach(&is_attached)), (Ok(()), Ok(())));
    assert_eq!(library.happen(1, 2, 3, 4).len(), 1);
}
