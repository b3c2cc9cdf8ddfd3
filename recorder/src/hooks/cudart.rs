//! The CUDA runtime's functions that take memory or give it back: hook 3.
//!
//! A call that takes memory is passed on first and recorded when the result is known (`take`); a
//! failed request is recorded with the time it took, because a retry follows. A call that gives
//! memory back is recorded first (`give_back`), because afterwards another thread may be given the
//! same address. A runtime that reaches one of its own functions through the linker is recorded
//! once, by the outermost call.
//!
//! PyTorch's libraries import `cudaMalloc`, `cudaFree`, their `Async` forms, `cudaHostAlloc`,
//! `cudaFreeHost` and `cudaHostRegister`; the others are for other code in the process. Libraries
//! that link the runtime statically (as NCCL does) or call the driver are not seen here.
//!
//! `cudaGetDeviceProperties` takes nothing: PyTorch calls it when its allocator exists and is not
//! in use yet. The types are those of cuda_runtime_api.h, unchanged since CUDA 11.2.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::runtime::sys::{cudaError, cudaMemPool_t, cudaStream_t};
use memtape_tape::snapshot::origin::Origin;

use crate::hooks::{stand_in_front, wake};
use crate::host::symbols::{Library, Symbol};
use crate::host::{clock, driver};
use crate::writer::free_memory;
use crate::writer::outside_allocator::{self, Outermost};
use crate::writer::panic_boundary::guarded;

stand_in_front! { Library::CUDA_RUNTIME, NOT_THERE;
    /// PyTorch's native allocator takes a segment.
    fn cudaMalloc(pointer: *mut *mut c_void, size: usize)
        => take(Origin::CudaMalloc, size, Address::Written(pointer));

    /// Frees memory of any `cudaMalloc…`.
    fn cudaFree(pointer: *mut c_void) => give_back(Origin::CudaMalloc, pointer);

    /// PyTorch's `backend:cudaMallocAsync` takes a block.
    fn cudaMallocAsync(pointer: *mut *mut c_void, size: usize, stream: cudaStream_t)
        => take(Origin::CudaMallocAsync, size, Address::Written(pointer));

    /// Programs with a default stream for each thread call this one, as all `…_ptsz`.
    fn cudaMallocAsync_ptsz(pointer: *mut *mut c_void, size: usize, stream: cudaStream_t)
        => take(Origin::CudaMallocAsync, size, Address::Written(pointer));

    /// C++ compiles `cudaMallocAsync(…, pool, …)` to this, too.
    fn cudaMallocFromPoolAsync(
        pointer: *mut *mut c_void, size: usize, pool: cudaMemPool_t, stream: cudaStream_t
    ) => take(Origin::CudaMallocAsync, size, Address::Written(pointer));

    fn cudaMallocFromPoolAsync_ptsz(
        pointer: *mut *mut c_void, size: usize, pool: cudaMemPool_t, stream: cudaStream_t
    ) => take(Origin::CudaMallocAsync, size, Address::Written(pointer));

    fn cudaFreeAsync(pointer: *mut c_void, stream: cudaStream_t)
        => give_back(Origin::CudaMallocAsync, pointer);

    fn cudaFreeAsync_ptsz(pointer: *mut c_void, stream: cudaStream_t)
        => give_back(Origin::CudaMallocAsync, pointer);

    /// Managed memory, which the driver moves between device and host.
    fn cudaMallocManaged(pointer: *mut *mut c_void, size: usize, flags: c_uint)
        => take(Origin::Managed, size, Address::Written(pointer));

    /// Pinned host memory.
    fn cudaHostAlloc(pointer: *mut *mut c_void, size: usize, flags: c_uint)
        => take(Origin::HostPinned, size, Address::Written(pointer));

    /// Pinned host memory, the older name.
    fn cudaMallocHost(pointer: *mut *mut c_void, size: usize)
        => take(Origin::HostPinned, size, Address::Written(pointer));

    /// Frees pinned host memory of the two functions above.
    fn cudaFreeHost(pointer: *mut c_void) => give_back(Origin::HostPinned, pointer);

    /// Pins memory that the program allocated.
    fn cudaHostRegister(pointer: *mut c_void, size: usize, flags: c_uint)
        => take(Origin::HostRegistered, size, Address::Given(pointer));

    fn cudaHostUnregister(pointer: *mut c_void) => give_back(Origin::HostRegistered, pointer);

    /// PyTorch reads a device's properties.
    fn cudaGetDeviceProperties(properties: *mut c_void, device: c_int) => read_properties();

    /// `cudaGetDeviceProperties` since CUDA 12.
    fn cudaGetDeviceProperties_v2(properties: *mut c_void, device: c_int) => read_properties();
}

/// The result of a hooked function whose library is not loaded.
const NOT_THERE: c_int = cudaError::cudaErrorInitializationError as c_int;

/// Place of the memory's address after a successful call.
enum Address {
    /// In the variable written by the function.
    Written(*mut *mut c_void),
    /// In an argument of the call.
    Given(*mut c_void),
}

impl Address {
    /// The address after a successful call; 0 for a request of no bytes.
    fn get(&self) -> u64 {
        match *self {
            Self::Written(pointer) if pointer.is_null() => 0,
            // SAFETY: the function has succeeded, so it has written there.
            Self::Written(pointer) => unsafe { *pointer as u64 },
            Self::Given(address) => address as u64,
        }
    }
}

fn read_properties(call: impl FnOnce() -> c_int) -> c_int {
    let result = call();
    guarded(wake::device_properties_read);
    result
}

fn take(origin: Origin, size: usize, address: Address, call: impl FnOnce() -> c_int) -> c_int {
    let Some(_outermost) = Outermost::enter() else { return call() };
    let asked_ns = clock::mono_ns();
    let result = call();
    let size = size as u64;
    if result == cudaError::cudaSuccess as c_int {
        guarded(|| {
            let address = address.get();
            if address != 0 {
                wake::memory_taken(origin, address, size, driver::current_device());
            }
        });
    } else if result == cudaError::cudaErrorMemoryAllocation as c_int {
        guarded(|| wake::request_failed(origin, size, asked_ns));
    }
    result
}

fn give_back(origin: Origin, pointer: *mut c_void, call: impl FnOnce() -> c_int) -> c_int {
    let Some(_outermost) = Outermost::enter() else { return call() };
    if !pointer.is_null() {
        guarded(|| {
            if origin.is_on_device() {
                free_memory::returned(pointer as u64);
            }
            outside_allocator::returned(origin, pointer as u64);
        });
    }
    call()
}
