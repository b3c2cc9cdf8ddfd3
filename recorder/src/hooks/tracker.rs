//! Hook 2: the trace tracker of PyTorch's caching allocator.
//!
//! `attachAllocatorTraceTracker` (torch 2.2 and later) calls back for everything the allocator
//! does: requested size, stream and pool of a block, segments, pending frees. It is a virtual
//! function that no library exports and whose slot moves with nearly every release, so there is no
//! table of versions here. The slot is *found*, or nothing is called:
//!
//! 1. `c10::cuda::CUDACachingAllocator::allocator`, which is exported, points to the allocator.
//! 2. The file of the loaded library (same build id) names the native allocator's table of virtual
//!    functions and the function itself among its local symbols.
//! 3. The allocator's object has that very table.
//! 4. Exactly one slot of the table, as it lies in memory, holds that very function.
//! 5. The allocator has all of its devices.
//!
//! The argument is a `std::function` of libstdc++, which the mangled name says too; it is 32 bytes
//! written by hand. Of the entry that it is called with, the first 48 bytes are the same in all
//! versions; the pool follows where the signature of `record_trace` in the same symbol table takes
//! one, and is read only then.
//!
//! There is no way to detach, so this library is never unloaded (`build.rs`). A torch that keeps
//! the names and moves the entry's fields would be believed; `cargo xtask compat` looks at that
//! with each release.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memtape_tape::layout::Tracker;

use crate::host::elf::{Loaded, Symbol, Symbols};
use crate::writer::hot_path::traced;
use crate::writer::panic_boundary::guarded;
use crate::writer::trace::Traced;

/// PyTorch's library with the allocator.
const LIBRARY: &str = "libc10_cuda.so";

/// `c10::cuda::CUDACachingAllocator::allocator`, a `std::atomic<CUDAAllocator*>`.
const ALLOCATOR: &[u8] = b"_ZN3c104cuda20CUDACachingAllocator9allocatorE";

/// Table of virtual functions of the native allocator.
const TABLE: &[u8] = b"_ZTVN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE";

/// `attachAllocatorTraceTracker(std::function<void(TraceEntry const&)>)`: up to torch 2.10, and
/// since the entry moved to a namespace of its own. Another standard library spells it otherwise.
const ATTACH: [&[u8]; 2] = [
    b"_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator\
      27attachAllocatorTraceTrackerESt8functionIFvRKNS1_10TraceEntryEEE",
    b"_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator\
      27attachAllocatorTraceTrackerESt8functionIFvRKNS_22CachingDeviceAllocator10TraceEntryEEE",
];

/// `initialized()`: whether the allocator has devices.
const INITIALIZED: &[u8] =
    b"_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator11initializedEv";

/// `DeviceCachingAllocator::record_trace`, which makes the entries, up to its parameters …
const RECORD: &[u8] =
    b"_ZN3c104cuda20CUDACachingAllocator6Native22DeviceCachingAllocator12record_traceE";

/// … the stream and the device (`int` in torch 2.2), and the pool where the next one is a pair.
const RECORD_WITH_POOL: [&[u8]; 2] = [b"P11CUstream_staSt4pairIyyE", b"P11CUstream_stiSt4pairIyyE"];

/// Bytes of a table before its first slot: offset to top and type information.
const TABLE_FRONT: usize = 16;

/// Maximum slots of a table that are searched; torch 2.15 has fewer than 100.
const SLOTS_MAX: usize = 512;

/// Most devices that an allocator is believed to have; PyTorch is built for at most 120.
const TORCH_DEVICES_MAX: usize = 128;

static PLAN: OnceLock<Result<Plan, Tracker>> = OnceLock::new();
/// State of the tracker, a [`Tracker`].
static STATE: AtomicU64 = AtomicU64::new(Tracker::NotAsked as u64);
static IS_ATTACHED: AtomicBool = AtomicBool::new(false);
/// Entries have a pool.
static HAS_POOL: AtomicBool = AtomicBool::new(false);

/// Whether the tracker is attached, or why not: a [`Tracker`], as on the tape.
pub(crate) fn state() -> u64 {
    STATE.load(Ordering::Relaxed)
}

/// Attaches the tracker, unless it is attached or can never be.
///
/// To be called from a hook, under PyTorch's device mutex or not (it is recursive), and under no
/// lock of the recorder: entries may come before this returns.
#[cold]
pub(crate) fn attach() {
    // `NoAllocator` is also the answer while the library is not loaded.
    let may_change = [Tracker::NotAsked, Tracker::NotReady, Tracker::NoAllocator];
    if may_change.iter().any(|&each| each as u64 == state()) {
        STATE.store(try_to_attach() as u64, Ordering::Relaxed);
    }
}

fn try_to_attach() -> Tracker {
    let plan = match PLAN.get() {
        Some(plan) => plan,
        None => match Plan::make(LIBRARY) {
            Err(Tracker::NoAllocator) => return Tracker::NoAllocator,
            plan => PLAN.get_or_init(|| plan),
        },
    };
    match plan.as_ref().map(|plan| plan.attach(&IS_ATTACHED)) {
        Ok(Ok(())) => Tracker::Attached,
        Ok(Err(refusal)) | Err(&refusal) => refusal,
    }
}

/// Confirmed addresses in this process.
struct Plan {
    /// Address of the pointer to the allocator.
    allocator: usize,
    /// The table of virtual functions that a native allocator starts with.
    table: usize,
    attach: usize,
    /// Offset of the vector of devices in the object.
    devices: usize,
    has_pool: bool,
    loaded: Loaded,
}

/// Addresses according to the file's symbols.
#[derive(Default)]
struct Names {
    table: Option<Symbol>,
    attach: Option<u64>,
    initialized: Option<u64>,
    has_pool: bool,
}

impl Plan {
    fn make(library: &str) -> Result<Self, Tracker> {
        let loaded = Loaded::find(library).ok_or(Tracker::NoAllocator)?;
        let file = loaded.read_file().ok_or(Tracker::Unreadable)?;
        let symbols = Symbols::parse(&file).ok_or(Tracker::Unreadable)?;
        if !symbols.are_of(&loaded) {
            return Err(Tracker::OtherFile);
        }
        let allocator = symbols.exported(ALLOCATOR).ok_or(Tracker::NoAllocator)?;
        let names = Names::read(&symbols);
        let table = names.table.ok_or(Tracker::NoSymbolTable)?;
        let attach = loaded.address(names.attach.ok_or(Tracker::NoFunction)?);
        let initialized = loaded.address(names.initialized.ok_or(Tracker::NoFunction)?);
        let first_slot = loaded.address(table.address) + TABLE_FRONT;
        let slots = (table.size as usize).saturating_sub(TABLE_FRONT) / size_of::<usize>();
        for function in [attach, initialized] {
            let holds = |slot: &usize| loaded.word(first_slot + slot * 8) == Some(function);
            match (0..slots.min(SLOTS_MAX)).filter(holds).count() {
                0 => return Err(Tracker::NoSlot),
                1 => {}
                _ => return Err(Tracker::SeveralSlots),
            }
        }
        let code = loaded.bytes(initialized).ok_or(Tracker::NoFunction)?;
        Ok(Self {
            allocator: loaded.address(allocator.address),
            table: first_slot,
            attach,
            devices: devices_offset(&code).ok_or(Tracker::UnknownBuild)?,
            has_pool: names.has_pool,
            loaded,
        })
    }

    fn attach(&self, is_attached: &AtomicBool) -> Result<(), Tracker> {
        let object = self.loaded.word(self.allocator).filter(|&object| object != 0);
        let object = object.ok_or(Tracker::NoAllocator)?;
        // SAFETY: PyTorch's pointer to its allocator, which is an object with virtual functions.
        if unsafe { *(object as *const usize) } != self.table {
            return Err(Tracker::OtherAllocator);
        }
        if !self.is_ready(object) {
            return Err(Tracker::NotReady);
        }
        if is_attached.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        HAS_POOL.store(self.has_pool, Ordering::Release);
        let mut tracker = Function { functor: [0; 2], manage: Some(manage), invoke };
        let attach = self.attach as *const ();
        // SAFETY: the function of this name, whose signature the name gives, on an object whose
        // table has it. A `std::function` is passed by address; the callee may move out of it,
        // and what is left needs no destruction.
        unsafe {
            std::mem::transmute::<*const (), Attach>(attach)(object as _, &raw mut tracker);
        }
        Ok(())
    }

    /// Whether every device is there. While the allocator makes them (and asks CUDA about each, so
    /// a hook can be called just then), the vector has null pointers, which `attach` follows.
    fn is_ready(&self, object: usize) -> bool {
        let at = object.wrapping_add(self.devices);
        let ends = (self.loaded.word(at), self.loaded.word(at.wrapping_add(size_of::<usize>())));
        let (Some(first), Some(end)) = ends else { return false };
        let count = end.saturating_sub(first) / size_of::<usize>();
        // SAFETY: the storage of a vector of pointers, from its begin to its end.
        let is_there = |index: usize| unsafe { *(first as *const usize).add(index) } != 0;
        (1..=TORCH_DEVICES_MAX).contains(&count) && (0..count).all(is_there)
    }
}

impl Names {
    fn read(symbols: &Symbols<'_>) -> Self {
        let mut names = Self::default();
        for (name, symbol) in symbols.all() {
            if name == TABLE {
                names.table = Some(symbol);
            } else if ATTACH.contains(&name) {
                names.attach = Some(symbol.address);
            } else if name == INITIALIZED {
                names.initialized = Some(symbol.address);
            } else if let Some(parameters) = name.strip_prefix(RECORD) {
                names.has_pool = takes_pool(parameters);
            }
        }
        names
    }
}

/// Offset of the vector of devices in the allocator's object, from the code of `initialized()`,
/// which tests whether that vector is empty. Compilers have made the same four instructions of it
/// since torch 2.2; other code gives none.
fn devices_offset(code: &[u8; 18]) -> Option<usize> {
    #[rustfmt::skip]
    let &[
        0x48, 0x8b, 0x87, a0, a1, a2, a3, // mov a(%rdi), %rax
        0x48, 0x39, 0x87, b0, b1, b2, b3, // cmp %rax, b(%rdi)
        0x0f, 0x95, 0xc0, //                 setne %al
        0xc3, //                             ret
    ] = code else { return None };
    let [a, b] = [[a0, a1, a2, a3], [b0, b1, b2, b3]].map(u32::from_le_bytes);
    (a.abs_diff(b) == 8).then_some(a.min(b) as usize)
}

fn takes_pool(parameters: &[u8]) -> bool {
    RECORD_WITH_POOL.iter().any(|part| parameters.windows(part.len()).any(|window| window == *part))
}

type Attach = unsafe extern "C" fn(*mut c_void, *mut Function);
type Functor = [u64; 2];

/// A `std::function<void(TraceEntry const&)>` as libstdc++ lays it out.
#[repr(C)]
struct Function {
    functor: Functor,
    manage: Option<unsafe extern "C" fn(*mut Functor, *const Functor, c_int) -> bool>,
    invoke: unsafe extern "C" fn(*const Functor, *const Entry),
}

/// libstdc++'s `_Manager_operation`.
const GET_TYPE: c_int = 0;
const GET_FUNCTOR: c_int = 1;
const CLONE: c_int = 2;

/// Manages the callable of a `std::function`. The callable here has no state: there is only one.
unsafe extern "C" fn manage(to: *mut Functor, from: *const Functor, operation: c_int) -> bool {
    match operation {
        // No type information, as in a library built without it.
        // SAFETY: the caller gives memory for the answer.
        GET_TYPE => unsafe { to.cast::<usize>().write(0) },
        // SAFETY: as above.
        GET_FUNCTOR => unsafe { to.cast::<*const Functor>().write(from) },
        // SAFETY: both are the storage of a `std::function`.
        CLONE => unsafe { to.write(from.read()) },
        _ => {} // destruction
    }
    false
}

/// The part of a `TraceEntry` that is the same in all versions.
#[repr(C)]
struct Entry {
    action: i32,
    device: i8,
    address: u64,
    _context: [u64; 2],
    stream: u64,
    size: u64,
}

/// Fields that follow the fields of `Entry` since torch 2.8.
#[repr(C)]
struct EntryWithPool {
    entry: Entry,
    pool: [u64; 2],
}

/// Takes one trace entry of the allocator. Runs under the device mutex, on any thread.
unsafe extern "C" fn invoke(_functor: *const Functor, entry: *const Entry) {
    guarded(|| {
        // SAFETY: PyTorch passes a valid entry, and one with a pool where `HAS_POOL` says so.
        let entry = unsafe { read(entry) };
        #[cfg(test)]
        tests::delivered(&entry);
        traced(&entry);
    });
}

/// # Safety
/// A valid entry, with a pool if `HAS_POOL`.
#[inline(always)]
unsafe fn read(entry: *const Entry) -> Traced {
    let pool = if HAS_POOL.load(Ordering::Relaxed) {
        // SAFETY: the caller's promise.
        Some(unsafe { (*entry.cast::<EntryWithPool>()).pool }.into())
    } else {
        None
    };
    // SAFETY: the caller's promise.
    let entry = unsafe { &*entry };
    Traced {
        action: u8::try_from(entry.action).unwrap_or(u8::MAX),
        device: entry.device as u8,
        address: entry.address,
        size: entry.size,
        stream: entry.stream,
        pool,
    }
}

#[cfg(test)]
mod tests;
