//! NCCL's functions that take memory or give it back.
//!
//! A communicator's buffers come from a CUDA runtime inside of NCCL, or from the driver, where no
//! hook reaches them. So the device is asked how much it has before and after one is made, and the
//! difference is the communicator's (`window.rs`). `ncclMemAlloc` says itself what it takes.
//!
//! Not seen: what a communicator takes later, at its first collectives; what one that is not
//! blocking takes after the call has returned; and other devices than the current one in
//! `ncclCommInitAll`. A PyTorch with NCCL linked in makes no calls that could be seen.

use std::ffi::{c_int, c_void};

use cudarc::nccl::sys::{ncclComm_t, ncclUniqueId};
use memtape_core::origin::Origin;

use crate::background::collectives;
use crate::hooks::cudart::Outermost;
use crate::host::clock;
use crate::host::driver;
use crate::host::symbols::Symbol;
use crate::writer::free_memory::{self, Window};
use crate::writer::outside_allocator;
use crate::writer::panic_boundary::guarded;

/// `ncclConfig_t` grows with every release; it is only passed on.
type Config = c_void;

type InitRank = unsafe extern "C" fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int) -> c_int;
type InitRankConfig =
    unsafe extern "C" fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut Config) -> c_int;
type InitRankScalable = unsafe extern "C" fn(
    *mut ncclComm_t,
    c_int,
    c_int,
    c_int,
    *mut ncclUniqueId,
    *mut Config,
) -> c_int;
type InitAll = unsafe extern "C" fn(*mut ncclComm_t, c_int, *const c_int) -> c_int;
type Split = unsafe extern "C" fn(ncclComm_t, c_int, c_int, *mut ncclComm_t, *mut Config) -> c_int;
type Shrink = unsafe extern "C" fn(
    ncclComm_t,
    *mut c_int,
    c_int,
    *mut ncclComm_t,
    *mut Config,
    c_int,
) -> c_int;
type OfComm = unsafe extern "C" fn(ncclComm_t) -> c_int;
type MemAlloc = unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int;
type MemFree = unsafe extern "C" fn(*mut c_void) -> c_int;

/// NCCL's own functions.
struct Nccl {
    init_rank: Symbol<InitRank>,
    init_rank_config: Symbol<InitRankConfig>,
    init_rank_scalable: Symbol<InitRankScalable>,
    init_all: Symbol<InitAll>,
    split: Symbol<Split>,
    shrink: Symbol<Shrink>,
    destroy: Symbol<OfComm>,
    abort: Symbol<OfComm>,
    mem_alloc: Symbol<MemAlloc>,
    mem_free: Symbol<MemFree>,
}

// SAFETY: the types are those of nccl.h, as it has them in 2.28.
static REAL: Nccl = unsafe {
    Nccl {
        init_rank: Symbol::of_nccl(c"ncclCommInitRank"),
        init_rank_config: Symbol::of_nccl(c"ncclCommInitRankConfig"),
        init_rank_scalable: Symbol::of_nccl(c"ncclCommInitRankScalable"),
        init_all: Symbol::of_nccl(c"ncclCommInitAll"),
        split: Symbol::of_nccl(c"ncclCommSplit"),
        shrink: Symbol::of_nccl(c"ncclCommShrink"),
        destroy: Symbol::of_nccl(c"ncclCommDestroy"),
        abort: Symbol::of_nccl(c"ncclCommAbort"),
        mem_alloc: Symbol::of_nccl(c"ncclMemAlloc"),
        mem_free: Symbol::of_nccl(c"ncclMemFree"),
    }
};

/// `ncclSuccess`.
const SUCCESS: c_int = 0;

/// `ncclInvalidUsage`: what a function answers that the guest stands in front of and cannot find.
const NOT_THERE: c_int = 5;

/// `ncclCommInitRank`.
///
/// # Safety
/// As for NCCL's own function, like all below.
#[unsafe(export_name = "ncclCommInitRank")]
pub unsafe extern "C" fn init_rank(
    comm: *mut ncclComm_t,
    ranks: c_int,
    id: ncclUniqueId,
    rank: c_int,
) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    create(&REAL.init_rank, comm, |real| unsafe { real(comm, ranks, id, rank) })
}

/// `ncclCommInitRankConfig`: what PyTorch calls for a process group.
///
/// # Safety
/// As for NCCL's own function.
#[unsafe(export_name = "ncclCommInitRankConfig")]
pub unsafe extern "C" fn init_rank_config(
    comm: *mut ncclComm_t,
    ranks: c_int,
    id: ncclUniqueId,
    rank: c_int,
    config: *mut Config,
) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    create(&REAL.init_rank_config, comm, |real| unsafe { real(comm, ranks, id, rank, config) })
}

/// `ncclCommInitRankScalable`: what PyTorch calls for a very large one.
///
/// # Safety
/// As for NCCL's own function.
#[unsafe(export_name = "ncclCommInitRankScalable")]
pub unsafe extern "C" fn init_rank_scalable(
    comm: *mut ncclComm_t,
    ranks: c_int,
    rank: c_int,
    id_count: c_int,
    ids: *mut ncclUniqueId,
    config: *mut Config,
) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    let call = |real: InitRankScalable| unsafe { real(comm, ranks, rank, id_count, ids, config) };
    create(&REAL.init_rank_scalable, comm, call)
}

/// `ncclCommInitAll`: all devices of one process.
///
/// # Safety
/// As for NCCL's own function.
#[unsafe(export_name = "ncclCommInitAll")]
pub unsafe extern "C" fn init_all(
    comms: *mut ncclComm_t,
    count: c_int,
    devices: *const c_int,
) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    create(&REAL.init_all, comms, |real| unsafe { real(comms, count, devices) })
}

/// `ncclCommSplit`: a communicator out of another.
///
/// # Safety
/// As for NCCL's own function.
#[unsafe(export_name = "ncclCommSplit")]
pub unsafe extern "C" fn split(
    of: ncclComm_t,
    color: c_int,
    key: c_int,
    comm: *mut ncclComm_t,
    config: *mut Config,
) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    create(&REAL.split, comm, |real| unsafe { real(of, color, key, comm, config) })
}

/// `ncclCommShrink`: a communicator out of another, without some of its ranks.
///
/// # Safety
/// As for NCCL's own function.
#[unsafe(export_name = "ncclCommShrink")]
pub unsafe extern "C" fn shrink(
    of: ncclComm_t,
    without: *mut c_int,
    count: c_int,
    comm: *mut ncclComm_t,
    config: *mut Config,
    flags: c_int,
) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    let call = |real: Shrink| unsafe { real(of, without, count, comm, config, flags) };
    create(&REAL.shrink, comm, call)
}

/// `ncclCommDestroy`.
///
/// # Safety
/// As for NCCL's own function.
#[unsafe(export_name = "ncclCommDestroy")]
pub unsafe extern "C" fn destroy(comm: ncclComm_t) -> c_int {
    // SAFETY: the real function, given the argument it was called with.
    give_back(&REAL.destroy, comm.cast(), |real| unsafe { real(comm) })
}

/// `ncclCommAbort`.
///
/// # Safety
/// As for NCCL's own function.
#[unsafe(export_name = "ncclCommAbort")]
pub unsafe extern "C" fn abort(comm: ncclComm_t) -> c_int {
    // SAFETY: the real function, given the argument it was called with.
    give_back(&REAL.abort, comm.cast(), |real| unsafe { real(comm) })
}

/// `ncclMemAlloc`: device memory that NCCL can register.
///
/// # Safety
/// As for NCCL's own function.
#[unsafe(export_name = "ncclMemAlloc")]
pub unsafe extern "C" fn mem_alloc(pointer: *mut *mut c_void, size: usize) -> c_int {
    let Some(real) = REAL.mem_alloc.get() else { return NOT_THERE };
    // SAFETY: the real function, given the arguments it was called with.
    let call = || unsafe { real(pointer, size) };
    let Some(_outermost) = Outermost::enter() else { return call() };
    let asked_ns = clock::mono_ns();
    let result = call();
    let device = driver::current_device();
    if result != SUCCESS {
        let took_ns = clock::mono_ns().saturating_sub(asked_ns);
        guarded(|| outside_allocator::failed(Origin::Nccl, size as u64, took_ns, device));
    } else if !pointer.is_null() {
        // SAFETY: the function has succeeded, so it has written there.
        let address = unsafe { *pointer } as u64;
        guarded(|| {
            free_memory::taken(device, size as u64);
            outside_allocator::taken(Origin::Nccl, address, size as u64, device);
        });
    }
    result
}

/// `ncclMemFree`.
///
/// # Safety
/// As for NCCL's own function.
#[unsafe(export_name = "ncclMemFree")]
pub unsafe extern "C" fn mem_free(pointer: *mut c_void) -> c_int {
    // SAFETY: the real function, given the argument it was called with.
    give_back(&REAL.mem_free, pointer, |real| unsafe { real(pointer) })
}

/// Passes the making of a communicator on, and records what the device has lost to it.
fn create<F: Copy>(
    real: &Symbol<F>,
    comm: *mut ncclComm_t,
    call: impl FnOnce(F) -> c_int,
) -> c_int {
    let Some(real) = real.get() else { return NOT_THERE };
    let Some(_outermost) = Outermost::enter() else { return call(real) };
    let _making = collectives::Making::begin();
    let mut window = None;
    guarded(|| window = Window::open());
    let result = call(real);
    guarded(|| {
        let Some((device, bytes)) = window.take().map(Window::close) else { return };
        if bytes > 0 && !comm.is_null() {
            // SAFETY: NCCL sets it before anything else, to null where it fails.
            let name = unsafe { *comm } as u64;
            outside_allocator::taken(Origin::Nccl, name, bytes, device);
        }
    });
    result
}

fn give_back<F: Copy>(
    real: &Symbol<F>,
    pointer: *mut c_void,
    call: impl FnOnce(F) -> c_int,
) -> c_int {
    let Some(real) = real.get() else { return NOT_THERE };
    let Some(_outermost) = Outermost::enter() else { return call(real) };
    if !pointer.is_null() {
        guarded(|| outside_allocator::returned(Origin::Nccl, pointer as u64));
    }
    call(real)
}
