//! Tells code objects apart when an address is used again.
//!
//! A fingerprint of a stack has its code objects by their addresses, because reading each of them
//! on every allocation would cost a cache miss a frame. But a code object can die and another one
//! get its address, with the same addresses of name and line table; a loop of `exec` does that
//! every time. So the recorder replaces the deallocator of `PyCode_Type` by a function that passes
//! every call on and counts the deaths of code objects that are on the tape. The count, the
//! *epoch*, is part of every fingerprint.
//!
//! No death is missed: a code object is noted while a frame of the noting thread holds it, so it
//! dies later; and a thread that runs its successor took the GIL after the death.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use memtape_tape::python::frame_layout::TYPE_DEALLOC;

use crate::host::libraries::{base_of, global_symbol};
use crate::stacks::python_memory::{Address, Careful};

/// Code objects whose deaths are noticed singly; beyond that, every death counts.
const WATCHED_MAX: usize = 1 << 14;

/// Entries that are tried for an address.
const PROBE_MAX: usize = 8;

type Dealloc = unsafe extern "C" fn(*mut c_void);

static EPOCH: AtomicU64 = AtomicU64::new(0);
static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static WATCHED: [AtomicUsize; WATCHED_MAX] = [const { AtomicUsize::new(0) }; WATCHED_MAX];
static HAS_OVERFLOWED: AtomicBool = AtomicBool::new(false);

/// Deaths of known code objects so far.
#[inline(always)]
pub(crate) fn epoch() -> u64 {
    EPOCH.load(Ordering::Relaxed)
}

/// Registers a code object that a frame of this thread holds.
pub(crate) fn note(code: Address) {
    let is_there = |entry: &AtomicUsize| entry.load(Ordering::Relaxed) == code.0;
    if entries(code).any(is_there) {
        return;
    }
    let take = |entry: &AtomicUsize| {
        entry.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if !entries(code).any(take) {
        HAS_OVERFLOWED.store(true, Ordering::Release);
    }
}

/// Replaces the deallocator of code objects, once. False when that is not possible.
pub(crate) fn install(code_type: Address, careful: &Careful) -> bool {
    let slot = code_type.0 + TYPE_DEALLOC;
    let Some(real) = careful.pointer(slot) else { return false };
    if real.0 == died as *const () as usize {
        return true;
    }
    let base = base_of(real.0 as *const c_void);
    let is_pythons = base.is_some() && base == base_of(global_symbol(c"Py_GetVersion"));
    if !is_pythons || !careful.is_writable(slot) {
        return false;
    }
    REAL.store(real.0 as *mut c_void, Ordering::Release);
    // SAFETY: the slot is a word of memory that can be written, and is read as a whole; its
    // readers call the function there with a code object, which `died` passes on.
    unsafe { &*(slot as *const AtomicUsize) }.store(died as *const () as usize, Ordering::Release);
    true
}

/// Called instead of `code_dealloc`.
unsafe extern "C" fn died(code: *mut c_void) {
    let address = Address(code as usize);
    let known = entries(address).find(|entry| entry.load(Ordering::Acquire) == address.0);
    if let Some(entry) = known {
        entry.store(0, Ordering::Release);
    }
    if known.is_some() || HAS_OVERFLOWED.load(Ordering::Acquire) {
        EPOCH.fetch_add(1, Ordering::Release);
    }
    let real = REAL.load(Ordering::Acquire);
    // SAFETY: set before this function was, to the deallocator that was in its place.
    unsafe { std::mem::transmute::<*mut c_void, Dealloc>(real)(code) }
}

fn entries(code: Address) -> impl Iterator<Item = &'static AtomicUsize> {
    let first = (code.0 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    (0..PROBE_MAX).filter_map(move |probe| WATCHED.get((first + probe) & (WATCHED_MAX - 1)))
}
