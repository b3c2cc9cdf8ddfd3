//! The CUDA runtime's functions that take memory or give it back: hook 3.
//!
//! Two patterns cover them all. What takes memory is passed on first and recorded when it is known
//! what came of it ([`take`]); a request that failed is a retry to come, recorded with the time it
//! took. What gives memory back is recorded first ([`give_back`]), because afterwards another
//! thread may be given the same address. A runtime that reaches one of its own functions through
//! the linker is recorded once, by the outermost call.
//!
//! PyTorch's libraries import `cudaMalloc`, `cudaFree`, their `Async` forms, `cudaHostAlloc`,
//! `cudaFreeHost` and `cudaHostRegister`; the rest is for what else lives in the process. What
//! links the runtime statically (NCCL does) or goes to the driver is not seen here.
//!
//! `cudaGetDeviceProperties` takes nothing; PyTorch's call of it is the moment at which its
//! allocator is there and not yet in use.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};

use cudarc::runtime::sys::{cudaError, cudaMemPool_t, cudaStream_t};
use memtape_core::origin::Origin;

use crate::host::clock;
use crate::host::driver;
use crate::host::symbols::Symbol;
use crate::writer::free_memory;
use crate::writer::outside_allocator;
use crate::writer::panic_boundary::guarded;
use crate::writer::state;

type Malloc = unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int;
type MallocFlags = unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> c_int;
type MallocAsync = unsafe extern "C" fn(*mut *mut c_void, usize, cudaStream_t) -> c_int;
type MallocFromPool =
    unsafe extern "C" fn(*mut *mut c_void, usize, cudaMemPool_t, cudaStream_t) -> c_int;
type Free = unsafe extern "C" fn(*mut c_void) -> c_int;
type FreeAsync = unsafe extern "C" fn(*mut c_void, cudaStream_t) -> c_int;
type Register = unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int;
type Properties = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;

/// The runtime's own functions. `…_ptsz` are those of programs built with a default stream for
/// each thread.
struct Runtime {
    malloc: Symbol<Malloc>,
    free: Symbol<Free>,
    malloc_async: Symbol<MallocAsync>,
    malloc_async_ptsz: Symbol<MallocAsync>,
    malloc_from_pool: Symbol<MallocFromPool>,
    malloc_from_pool_ptsz: Symbol<MallocFromPool>,
    free_async: Symbol<FreeAsync>,
    free_async_ptsz: Symbol<FreeAsync>,
    malloc_managed: Symbol<MallocFlags>,
    host_alloc: Symbol<MallocFlags>,
    malloc_host: Symbol<Malloc>,
    free_host: Symbol<Free>,
    host_register: Symbol<Register>,
    host_unregister: Symbol<Free>,
    properties: Symbol<Properties>,
    properties_v2: Symbol<Properties>,
}

// SAFETY: the types are those of cuda_runtime_api.h, unchanged since CUDA 11.2.
static REAL: Runtime = unsafe {
    Runtime {
        malloc: Symbol::of_cuda(c"cudaMalloc"),
        free: Symbol::of_cuda(c"cudaFree"),
        malloc_async: Symbol::of_cuda(c"cudaMallocAsync"),
        malloc_async_ptsz: Symbol::of_cuda(c"cudaMallocAsync_ptsz"),
        malloc_from_pool: Symbol::of_cuda(c"cudaMallocFromPoolAsync"),
        malloc_from_pool_ptsz: Symbol::of_cuda(c"cudaMallocFromPoolAsync_ptsz"),
        free_async: Symbol::of_cuda(c"cudaFreeAsync"),
        free_async_ptsz: Symbol::of_cuda(c"cudaFreeAsync_ptsz"),
        malloc_managed: Symbol::of_cuda(c"cudaMallocManaged"),
        host_alloc: Symbol::of_cuda(c"cudaHostAlloc"),
        malloc_host: Symbol::of_cuda(c"cudaMallocHost"),
        free_host: Symbol::of_cuda(c"cudaFreeHost"),
        host_register: Symbol::of_cuda(c"cudaHostRegister"),
        host_unregister: Symbol::of_cuda(c"cudaHostUnregister"),
        properties: Symbol::of_cuda(c"cudaGetDeviceProperties"),
        properties_v2: Symbol::of_cuda(c"cudaGetDeviceProperties_v2"),
    }
};

/// `cudaMalloc`: of PyTorch's native allocator, a segment.
///
/// # Safety
/// As for CUDA's own function, like all below.
#[unsafe(export_name = "cudaMalloc")]
pub unsafe extern "C" fn malloc(pointer: *mut *mut c_void, size: usize) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    let call = |real: Malloc| unsafe { real(pointer, size) };
    take(&REAL.malloc, Origin::CudaMalloc, size, Address::Written(pointer), call)
}

/// `cudaFree`: of whatever `cudaMalloc…` gave.
///
/// # Safety
/// As for CUDA's own function.
#[unsafe(export_name = "cudaFree")]
pub unsafe extern "C" fn free(pointer: *mut c_void) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    give_back(&REAL.free, Origin::CudaMalloc, pointer, |real| unsafe { real(pointer) })
}

/// `cudaMallocAsync`: of PyTorch's `backend:cudaMallocAsync`, a block.
///
/// # Safety
/// As for CUDA's own function.
#[unsafe(export_name = "cudaMallocAsync")]
pub unsafe extern "C" fn malloc_async(
    pointer: *mut *mut c_void,
    size: usize,
    stream: cudaStream_t,
) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    let call = |real: MallocAsync| unsafe { real(pointer, size, stream) };
    take(&REAL.malloc_async, Origin::CudaMallocAsync, size, Address::Written(pointer), call)
}

/// `cudaMallocAsync` with a default stream for each thread.
///
/// # Safety
/// As for CUDA's own function.
#[unsafe(export_name = "cudaMallocAsync_ptsz")]
pub unsafe extern "C" fn malloc_async_ptsz(
    pointer: *mut *mut c_void,
    size: usize,
    stream: cudaStream_t,
) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    let call = |real: MallocAsync| unsafe { real(pointer, size, stream) };
    take(&REAL.malloc_async_ptsz, Origin::CudaMallocAsync, size, Address::Written(pointer), call)
}

/// `cudaMallocFromPoolAsync`, also what `cudaMallocAsync(…, pool, …)` of C++ becomes.
///
/// # Safety
/// As for CUDA's own function.
#[unsafe(export_name = "cudaMallocFromPoolAsync")]
pub unsafe extern "C" fn malloc_from_pool(
    pointer: *mut *mut c_void,
    size: usize,
    pool: cudaMemPool_t,
    stream: cudaStream_t,
) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    let call = |real: MallocFromPool| unsafe { real(pointer, size, pool, stream) };
    take(&REAL.malloc_from_pool, Origin::CudaMallocAsync, size, Address::Written(pointer), call)
}

/// `cudaMallocFromPoolAsync` with a default stream for each thread.
///
/// # Safety
/// As for CUDA's own function.
#[unsafe(export_name = "cudaMallocFromPoolAsync_ptsz")]
pub unsafe extern "C" fn malloc_from_pool_ptsz(
    pointer: *mut *mut c_void,
    size: usize,
    pool: cudaMemPool_t,
    stream: cudaStream_t,
) -> c_int {
    let real = &REAL.malloc_from_pool_ptsz;
    // SAFETY: the real function, given the arguments it was called with.
    let call = |real: MallocFromPool| unsafe { real(pointer, size, pool, stream) };
    take(real, Origin::CudaMallocAsync, size, Address::Written(pointer), call)
}

/// `cudaFreeAsync`.
///
/// # Safety
/// As for CUDA's own function.
#[unsafe(export_name = "cudaFreeAsync")]
pub unsafe extern "C" fn free_async(pointer: *mut c_void, stream: cudaStream_t) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    let call = |real: FreeAsync| unsafe { real(pointer, stream) };
    give_back(&REAL.free_async, Origin::CudaMallocAsync, pointer, call)
}

/// `cudaFreeAsync` with a default stream for each thread.
///
/// # Safety
/// As for CUDA's own function.
#[unsafe(export_name = "cudaFreeAsync_ptsz")]
pub unsafe extern "C" fn free_async_ptsz(pointer: *mut c_void, stream: cudaStream_t) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    let call = |real: FreeAsync| unsafe { real(pointer, stream) };
    give_back(&REAL.free_async_ptsz, Origin::CudaMallocAsync, pointer, call)
}

/// `cudaMallocManaged`: memory that moves between device and host by itself.
///
/// # Safety
/// As for CUDA's own function.
#[unsafe(export_name = "cudaMallocManaged")]
pub unsafe extern "C" fn malloc_managed(
    pointer: *mut *mut c_void,
    size: usize,
    flags: c_uint,
) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    let call = |real: MallocFlags| unsafe { real(pointer, size, flags) };
    take(&REAL.malloc_managed, Origin::Managed, size, Address::Written(pointer), call)
}

/// `cudaHostAlloc`: pinned host memory.
///
/// # Safety
/// As for CUDA's own function.
#[unsafe(export_name = "cudaHostAlloc")]
pub unsafe extern "C" fn host_alloc(
    pointer: *mut *mut c_void,
    size: usize,
    flags: c_uint,
) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    let call = |real: MallocFlags| unsafe { real(pointer, size, flags) };
    take(&REAL.host_alloc, Origin::HostPinned, size, Address::Written(pointer), call)
}

/// `cudaMallocHost`: pinned host memory, the older name.
///
/// # Safety
/// As for CUDA's own function.
#[unsafe(export_name = "cudaMallocHost")]
pub unsafe extern "C" fn malloc_host(pointer: *mut *mut c_void, size: usize) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    let call = |real: Malloc| unsafe { real(pointer, size) };
    take(&REAL.malloc_host, Origin::HostPinned, size, Address::Written(pointer), call)
}

/// `cudaFreeHost`: of whatever the two gave.
///
/// # Safety
/// As for CUDA's own function.
#[unsafe(export_name = "cudaFreeHost")]
pub unsafe extern "C" fn free_host(pointer: *mut c_void) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    give_back(&REAL.free_host, Origin::HostPinned, pointer, |real| unsafe { real(pointer) })
}

/// `cudaHostRegister`: memory of the program's own is pinned.
///
/// # Safety
/// As for CUDA's own function.
#[unsafe(export_name = "cudaHostRegister")]
pub unsafe extern "C" fn host_register(pointer: *mut c_void, size: usize, flags: c_uint) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    let call = |real: Register| unsafe { real(pointer, size, flags) };
    take(&REAL.host_register, Origin::HostRegistered, size, Address::Given(pointer), call)
}

/// `cudaHostUnregister`.
///
/// # Safety
/// As for CUDA's own function.
#[unsafe(export_name = "cudaHostUnregister")]
pub unsafe extern "C" fn host_unregister(pointer: *mut c_void) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    let call = |real: Free| unsafe { real(pointer) };
    give_back(&REAL.host_unregister, Origin::HostRegistered, pointer, call)
}

/// `cudaGetDeviceProperties` of CUDA 11 and 13.
///
/// # Safety
/// As for CUDA's own function.
#[unsafe(export_name = "cudaGetDeviceProperties")]
pub unsafe extern "C" fn device_properties(properties: *mut c_void, device: c_int) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    look_at_device(&REAL.properties, |real| unsafe { real(properties, device) })
}

/// `cudaGetDeviceProperties` of CUDA 12.
///
/// # Safety
/// As for CUDA's own function.
#[unsafe(export_name = "cudaGetDeviceProperties_v2")]
pub unsafe extern "C" fn device_properties_v2(properties: *mut c_void, device: c_int) -> c_int {
    // SAFETY: the real function, given the arguments it was called with.
    look_at_device(&REAL.properties_v2, |real| unsafe { real(properties, device) })
}

fn look_at_device<F: Copy>(real: &Symbol<F>, call: impl FnOnce(F) -> c_int) -> c_int {
    let Some(real) = real.get() else { return NOT_THERE };
    let result = call(real);
    guarded(state::device_looked_at);
    result
}

/// Where the address of a piece of memory is to be found after a successful call.
enum Address {
    /// Where the function was told to write it.
    Written(*mut *mut c_void),
    /// The program knew it before.
    Given(*mut c_void),
}

impl Address {
    /// After a success; 0 for a request of no bytes.
    fn get(&self) -> u64 {
        match *self {
            Self::Written(place) if place.is_null() => 0,
            // SAFETY: the function has succeeded, so it has written there.
            Self::Written(place) => unsafe { *place as u64 },
            Self::Given(address) => address as u64,
        }
    }
}

/// What a function answers that the guest stands in front of and cannot find.
const NOT_THERE: c_int = cudaError::cudaErrorInitializationError as c_int;

fn take<F: Copy>(
    real: &Symbol<F>,
    origin: Origin,
    size: usize,
    address: Address,
    call: impl FnOnce(F) -> c_int,
) -> c_int {
    let Some(real) = real.get() else { return NOT_THERE };
    let Some(_outermost) = Outermost::enter() else { return call(real) };
    let asked_ns = clock::mono_ns();
    let result = call(real);
    let size = size as u64;
    if result == cudaError::cudaSuccess as c_int {
        guarded(|| match address.get() {
            0 => {}
            address => {
                let device = driver::current_device();
                if origin.is_on_device() {
                    free_memory::taken(device, size);
                }
                outside_allocator::taken(origin, address, size, device);
            }
        });
    } else if result == cudaError::cudaErrorMemoryAllocation as c_int {
        let took_ns = clock::mono_ns().saturating_sub(asked_ns);
        guarded(|| outside_allocator::failed(origin, size, took_ns, driver::current_device()));
    }
    result
}

fn give_back<F: Copy>(
    real: &Symbol<F>,
    origin: Origin,
    pointer: *mut c_void,
    call: impl FnOnce(F) -> c_int,
) -> c_int {
    let Some(real) = real.get() else { return NOT_THERE };
    let Some(_outermost) = Outermost::enter() else { return call(real) };
    if !pointer.is_null() {
        guarded(|| {
            if origin.is_on_device() {
                free_memory::returned(pointer as u64);
            }
            outside_allocator::returned(origin, pointer as u64);
        });
    }
    call(real)
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// This thread is inside a function that records what it takes: calls further in do not.
pub(crate) struct Outermost(());

impl Outermost {
    /// `None` when the thread is inside already.
    pub(crate) fn enter() -> Option<Self> {
        // Made only where it is given: dropping it would say that the thread has left.
        (!INSIDE.replace(true)).then(|| Self(()))
    }
}

impl Drop for Outermost {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}
