//! NCCL's functions that take memory or give it back.
//!
//! A communicator's buffers come from a CUDA runtime inside of NCCL, or from the driver, where no
//! hook reaches them. So the device's free memory before and after its making gives its size
//! (`free_memory.rs`). `ncclMemAlloc` states its size itself.
//!
//! Not seen: memory that a communicator takes later, at its first collectives; memory that a
//! non-blocking one takes after the call has returned; and devices other than the current one in
//! `ncclCommInitAll`. A PyTorch with NCCL linked in makes no calls that could be seen.
//!
//! The types are those of nccl.h in 2.28.

use std::ffi::{c_int, c_void};

use cudarc::nccl::sys::{ncclComm_t, ncclUniqueId};
use memtape_tape::snapshot::origin::Origin;

use crate::background::collectives;
use crate::hooks::{stand_in_front, wake};
use crate::host::symbols::{Library, Symbol};
use crate::host::{clock, driver};
use crate::writer::free_memory::FreeMemoryWindow;
use crate::writer::outside_allocator::{self, Outermost};
use crate::writer::panic_boundary::guarded;

/// `ncclConfig_t` grows with every release; it is only passed on.
type Config = c_void;

/// `ncclSuccess`.
const SUCCESS: c_int = 0;

/// `ncclInvalidUsage`: the result of a hooked function whose library is not loaded.
const NOT_THERE: c_int = 5;

stand_in_front! { Library::NCCL, NOT_THERE;
    fn ncclCommInitRank(comm: *mut ncclComm_t, ranks: c_int, id: ncclUniqueId, rank: c_int)
        => create(comm);

    /// PyTorch calls this for a process group.
    fn ncclCommInitRankConfig(
        comm: *mut ncclComm_t, ranks: c_int, id: ncclUniqueId, rank: c_int, config: *mut Config
    ) => create(comm);

    /// PyTorch calls this for a very large process group.
    fn ncclCommInitRankScalable(
        comm: *mut ncclComm_t, ranks: c_int, rank: c_int, id_count: c_int, ids: *mut ncclUniqueId,
        config: *mut Config
    ) => create(comm);

    /// Makes one communicator for each device of one process.
    fn ncclCommInitAll(comms: *mut ncclComm_t, count: c_int, devices: *const c_int)
        => create(comms);

    /// Splits a communicator.
    fn ncclCommSplit(
        of: ncclComm_t, color: c_int, key: c_int, comm: *mut ncclComm_t, config: *mut Config
    ) => create(comm);

    /// Shrinks a communicator by some of its ranks.
    fn ncclCommShrink(
        of: ncclComm_t, without: *mut c_int, count: c_int, comm: *mut ncclComm_t,
        config: *mut Config, flags: c_int
    ) => create(comm);

    fn ncclCommDestroy(comm: ncclComm_t) => give_back(comm.cast());

    fn ncclCommAbort(comm: ncclComm_t) => give_back(comm.cast());

    /// Allocates device memory that NCCL can register.
    fn ncclMemAlloc(pointer: *mut *mut c_void, size: usize) => take(pointer, size);

    fn ncclMemFree(pointer: *mut c_void) => give_back(pointer);
}

fn take(pointer: *mut *mut c_void, size: usize, call: impl FnOnce() -> c_int) -> c_int {
    let Some(_outermost) = Outermost::enter() else { return call() };
    let asked_ns = clock::mono_ns();
    let result = call();
    if result != SUCCESS {
        guarded(|| wake::request_failed(Origin::Nccl, size as u64, asked_ns));
    } else if !pointer.is_null() {
        // SAFETY: the function has succeeded, so it has written there.
        let address = unsafe { *pointer } as u64;
        guarded(|| {
            wake::memory_taken(Origin::Nccl, address, size as u64, driver::current_device());
        });
    }
    result
}

/// Calls NCCL's own function, and records by how much the device's free memory fell.
fn create(comm: *mut ncclComm_t, call: impl FnOnce() -> c_int) -> c_int {
    let Some(_outermost) = Outermost::enter() else { return call() };
    let _making = collectives::Making::begin();
    let mut window = None;
    guarded(|| window = FreeMemoryWindow::open());
    let result = call();
    guarded(|| {
        let Some((device, bytes)) = window.take().map(FreeMemoryWindow::close) else { return };
        if bytes > 0 && !comm.is_null() {
            // SAFETY: NCCL sets it before anything else, to null where it fails.
            let handle = unsafe { *comm } as u64;
            wake::memory_taken(Origin::Nccl, handle, bytes, device);
        }
    });
    result
}

fn give_back(pointer: *mut c_void, call: impl FnOnce() -> c_int) -> c_int {
    let Some(_outermost) = Outermost::enter() else { return call() };
    if !pointer.is_null() {
        guarded(|| outside_allocator::returned(Origin::Nccl, pointer as u64));
    }
    call()
}
