//! PyTorch's reports of its allocators: hook 1, and opt-in hook 4.
//!
//! PyTorch calls the two report functions through its own library's PLT, with the device's mutex
//! held, for every block handed out or taken back (`c10/core/Allocator.h`; the names are unchanged
//! since 2.0). The CPU allocator reports only while a profiler asks it to, through
//! `c10::memoryProfilingEnabled`; with `MEMTAPE_CPU=1` the answer is always yes. Profilers see the
//! same reports as without it: a CPU report is passed on only if a profiler had asked when the
//! block was made, with the totals of such blocks.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard};

use memtape_tape::snapshot::origin::Origin;
use memtape_tape::write::Totals;

use crate::hooks::program::report;
use crate::hooks::wake;
use crate::host::environment;
use crate::host::symbols::{Library, Symbol};
use crate::writer::panic_boundary::{caught, guarded};
use crate::writer::{hot_path, outside_allocator, state};

/// `c10::Device` as it travels in a register: type in the low byte, index in the next.
type Device = u16;

const CPU: u8 = 0;
const CUDA: u8 = 1;

type Report = unsafe extern "C" fn(*mut c_void, i64, usize, usize, Device);
type OutOfMemory = unsafe extern "C" fn(i64, usize, usize, Device);
type ProfilingEnabled = unsafe extern "C" fn() -> bool;

// SAFETY: the types are those of c10/core/Allocator.h since 2.0.
static REPORT: Symbol<Report> =
    unsafe { Symbol::new(&Library::C10, c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE") };
// SAFETY: as above.
static OUT_OF_MEMORY: Symbol<OutOfMemory> =
    unsafe { Symbol::new(&Library::C10, c"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE") };
// SAFETY: as above.
static PROFILING_ENABLED: Symbol<ProfilingEnabled> =
    unsafe { Symbol::new(&Library::C10, c"_ZN3c1022memoryProfilingEnabledEv") };

/// `c10::reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, Device)`: a block of `size`
/// bytes (rounded; negative when it is taken back), and the allocator's totals after it.
///
/// # Safety
/// Called by PyTorch with its own arguments.
#[unsafe(export_name = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")]
unsafe extern "C" fn report_memory_usage(
    pointer: *mut c_void,
    size: i64,
    allocated: usize,
    reserved: usize,
    device: Device,
) {
    let [kind, index] = device.to_le_bytes();
    if kind != CUDA {
        // SAFETY: PyTorch's own arguments.
        return unsafe { report_other_device(pointer, size, allocated, reserved, device) };
    }
    caught(|| report(pointer as u64, size, allocated as u64, reserved as u64, index));
    if let Some(real) = REPORT.get() {
        // SAFETY: the real function, given the arguments it was called with.
        unsafe { real(pointer, size, allocated, reserved, device) };
    }
}

/// Handles a report of memory that is not on a GPU.
///
/// # Safety
/// As for [`report_memory_usage`].
#[cold]
unsafe extern "C" fn report_other_device(
    pointer: *mut c_void,
    size: i64,
    allocated: usize,
    reserved: usize,
    device: Device,
) {
    let [kind, _] = device.to_le_bytes();
    let mut passed_on = Some(allocated);
    if kind == CPU && wants_cpu_tensors() {
        guarded(|| passed_on = cpu_report(pointer as u64, size, allocated));
    }
    if let (Some(real), Some(allocated)) = (REPORT.get(), passed_on) {
        // SAFETY: the real function, given the arguments it would have been called with.
        unsafe { real(pointer, size, allocated, reserved, device) };
    }
}

/// `c10::reportOutOfMemoryToProfiler(int64_t, size_t, size_t, Device)`: a request failed for good.
///
/// # Safety
/// Called by PyTorch with its own arguments.
#[unsafe(export_name = "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE")]
unsafe extern "C" fn report_out_of_memory(
    size: i64,
    allocated: usize,
    reserved: usize,
    device: Device,
) {
    let [kind, index] = device.to_le_bytes();
    if kind == CUDA {
        guarded(|| {
            let totals = Totals { allocated: allocated as u64, reserved: reserved as u64 };
            if let Some(recorder) = wake::awake(index) {
                hot_path::out_of_memory(recorder, size as u64, totals, index);
            }
        });
    }
    if let Some(real) = OUT_OF_MEMORY.get() {
        // SAFETY: the real function, given the arguments it was called with.
        unsafe { real(size, allocated, reserved, device) };
    }
}

/// `c10::memoryProfilingEnabled()`: whether this thread's profiler wants reports of CPU tensors.
/// The CPU allocator is the only one to ask, at each block.
///
/// # Safety
/// Called by PyTorch.
#[unsafe(export_name = "_ZN3c1022memoryProfilingEnabledEv")]
unsafe extern "C" fn memory_profiling_enabled() -> bool {
    // SAFETY: the real function; it reads the thread's own state.
    let asked = PROFILING_ENABLED.get().is_some_and(|real| unsafe { real() });
    if !wants_cpu_tensors() {
        return asked;
    }
    PROFILER_ASKED.set(Some(asked));
    true
}

/// `MEMTAPE_CPU` is on, and the recorder is not switched off.
///
/// It holds from the process's first block on, so that the CPU allocator has the size of every
/// block and logs no warning about unknown ones.
fn wants_cpu_tensors() -> bool {
    static WANTS: LazyLock<bool> = LazyLock::new(|| {
        environment::is_on("MEMTAPE_CPU") && !environment::is_on("MEMTAPE_DISABLE")
    });
    *WANTS
}

thread_local! {
    /// Whether a profiler asked for the next report on this thread. `None`: no report was
    /// announced, so one that comes is not the CPU allocator's (files mapped into tensors are
    /// always reported).
    static PROFILER_ASKED: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Blocks that were reported to a profiler: sizes by address, and the sum of sizes.
static PROFILED: Mutex<(BTreeMap<u64, u64>, usize)> = Mutex::new((BTreeMap::new(), 0));
/// True once a block was reported to a profiler. Until then the lock is not taken.
static ANY_PROFILED: AtomicBool = AtomicBool::new(false);

/// Records a report of CPU memory once the recorder is awake. CPU tensors, which are in every
/// child, launcher and worker, do not wake it. Returns the total to pass on with the report, or
/// `None` when only the recorder wanted it.
fn cpu_report(pointer: u64, size: i64, allocated: usize) -> Option<usize> {
    if size < 0 {
        outside_allocator::returned(Origin::CpuTensor, pointer);
    } else if let Some(recorder) = state::recording() {
        let bytes = size.unsigned_abs();
        outside_allocator::taken(recorder, Origin::CpuTensor, pointer, bytes, 0);
    }
    let Some(asked) = PROFILER_ASKED.take() else { return Some(allocated) };
    if asked {
        ANY_PROFILED.store(true, Ordering::Relaxed);
    } else if !ANY_PROFILED.load(Ordering::Relaxed) {
        return None;
    }
    let mut profiled = profiled()?;
    let (blocks, sum) = &mut *profiled;
    let bytes = size.unsigned_abs();
    if size >= 0 {
        if asked {
            blocks.insert(pointer, bytes);
            *sum = sum.wrapping_add(bytes as usize);
        }
        return asked.then_some(*sum);
    }
    let bytes_profiled = blocks.remove(&pointer);
    *sum = sum.wrapping_sub(bytes_profiled.unwrap_or(0) as usize);
    bytes_profiled.filter(|_| asked).map(|_| *sum)
}

/// Tries the lock a bounded number of times. Other threads hold the lock for one map access, but in
/// a child forked meanwhile it stays locked.
fn profiled() -> Option<MutexGuard<'static, (BTreeMap<u64, u64>, usize)>> {
    const ROUNDS_MAX: u32 = 10_000;
    (0..ROUNDS_MAX).find_map(|_| {
        std::hint::spin_loop();
        PROFILED.try_lock().ok()
    })
}
