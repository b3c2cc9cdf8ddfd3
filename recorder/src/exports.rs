//! Everything this library puts in front of others, on one screen.
//!
//! PyTorch calls the first two through its own library's PLT, with the device's mutex held, on
//! every block handed out or taken back (`c10/core/Allocator.h`; the names are unchanged from 2.0
//! on). The CUDA runtime's two give the segments. Each passes the call on, whatever happens inside.

use std::ffi::{c_int, c_void};

use cudarc::runtime::sys::cudaError;

use crate::edge::guarded;
use crate::guest;
use crate::symbols::Symbol;

/// `c10::Device` as it travels in a register: type in the low byte, index in the next.
type Device = u16;

const CUDA: u8 = 1;

type Report = unsafe extern "C" fn(*mut c_void, i64, usize, usize, Device);
type OutOfMemory = unsafe extern "C" fn(i64, usize, usize, Device);
type Malloc = unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int;
type Free = unsafe extern "C" fn(*mut c_void) -> c_int;

static REPORT: Symbol = Symbol::of_c10(c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
static OUT_OF_MEMORY: Symbol =
    Symbol::of_c10(c"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE");
static MALLOC: Symbol = Symbol::of_cuda(c"cudaMalloc");
static FREE: Symbol = Symbol::of_cuda(c"cudaFree");

/// `c10::reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, Device)`: a block of `size`
/// bytes (rounded; negative when it is taken back), and the allocator's totals after it.
///
/// # Safety
/// Called by PyTorch with its own arguments.
#[unsafe(export_name = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")]
pub unsafe extern "C" fn report_memory_usage(
    pointer: *mut c_void,
    size: i64,
    allocated: usize,
    reserved: usize,
    device: Device,
) {
    let [kind, index] = device.to_le_bytes();
    if kind == CUDA {
        guarded(|| {
            guest::hooked_report(pointer as u64, size, allocated as u64, reserved as u64, index)
        });
    }
    let real = REPORT.get();
    if !real.is_null() {
        // SAFETY: the function of this very name, given the arguments it was called with.
        unsafe {
            std::mem::transmute::<*mut c_void, Report>(real)(
                pointer, size, allocated, reserved, device,
            );
        }
    }
}

/// `c10::reportOutOfMemoryToProfiler(int64_t, size_t, size_t, Device)`: a request failed for good.
///
/// # Safety
/// Called by PyTorch with its own arguments.
#[unsafe(export_name = "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE")]
pub unsafe extern "C" fn report_out_of_memory(
    size: i64,
    allocated: usize,
    reserved: usize,
    device: Device,
) {
    let [kind, index] = device.to_le_bytes();
    if kind == CUDA {
        guarded(|| guest::out_of_memory(size as u64, allocated as u64, reserved as u64, index));
    }
    let real = OUT_OF_MEMORY.get();
    if !real.is_null() {
        // SAFETY: the function of this very name, given the arguments it was called with.
        unsafe {
            std::mem::transmute::<*mut c_void, OutOfMemory>(real)(
                size, allocated, reserved, device,
            );
        }
    }
}

/// `cudaMalloc`: a segment is taken from the device, or could not be.
///
/// # Safety
/// As for CUDA's own function.
#[unsafe(export_name = "cudaMalloc")]
pub unsafe extern "C" fn cuda_malloc(pointer: *mut *mut c_void, size: usize) -> c_int {
    let real = MALLOC.get();
    if real.is_null() {
        return cudaError::cudaErrorInitializationError as c_int;
    }
    // SAFETY: the function of this very name, given the arguments it was called with.
    let result = unsafe { std::mem::transmute::<*mut c_void, Malloc>(real)(pointer, size) };
    if result == cudaError::cudaSuccess as c_int && !pointer.is_null() {
        // SAFETY: CUDA has just written the address there.
        let address = unsafe { *pointer } as u64;
        guarded(|| guest::hooked_segment(address, size as u64));
    } else if result == cudaError::cudaErrorMemoryAllocation as c_int {
        guarded(|| guest::malloc_failed(size as u64));
    }
    result
}

/// `cudaFree`: a segment goes back. Recorded before it happens: afterwards the address may be
/// given out again by another thread.
///
/// # Safety
/// As for CUDA's own function.
#[unsafe(export_name = "cudaFree")]
pub unsafe extern "C" fn cuda_free(pointer: *mut c_void) -> c_int {
    let real = FREE.get();
    if real.is_null() {
        return cudaError::cudaErrorInitializationError as c_int;
    }
    guarded(|| guest::segment_freed(pointer as u64));
    // SAFETY: the function of this very name, given the argument it was called with.
    unsafe { std::mem::transmute::<*mut c_void, Free>(real)(pointer) }
}

/// Marks the end of a training step by hand, for programs without PyTorch optimizers.
#[unsafe(no_mangle)]
pub extern "C" fn memtape_step() {
    guarded(guest::step);
}
