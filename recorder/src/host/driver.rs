//! Questions to CUDA: the current device, and the identity, size and free bytes of devices. No
//! call here creates a context, allocates or synchronizes.
//!
//! cudarc has the types. Its own loader is not asked: it takes the first `libcuda.so` on the path,
//! which may be the toolkit's stub, and a second driver knows no device. The functions are those of
//! the driver that PyTorch has loaded.

use std::ffi::{c_char, c_int};

use cudarc::driver::sys;
use memtape_tape::Words;
use memtape_tape::layout::{device, header, hooks};
use memtape_tape::limits::DEVICES_MAX;
use std::sync::atomic::Ordering;

use crate::host::symbols::{Library, Symbol};

// Results are read as integers: a newer driver may return a value that cudarc's enum lacks.
type GetDevice = unsafe extern "C" fn(*mut c_int) -> c_int;
type CurrentContext = unsafe extern "C" fn(*mut sys::CUcontext) -> c_int;
type MemoryInfo = unsafe extern "C" fn(*mut usize, *mut usize) -> c_int;
type AddressRange =
    unsafe extern "C" fn(*mut sys::CUdeviceptr, *mut usize, sys::CUdeviceptr) -> c_int;
type DeviceGet = unsafe extern "C" fn(*mut sys::CUdevice, c_int) -> c_int;
type DeviceUuid = unsafe extern "C" fn(*mut sys::CUuuid, sys::CUdevice) -> c_int;
type DeviceBytes = unsafe extern "C" fn(*mut usize, sys::CUdevice) -> c_int;

// SAFETY: the types are those of cuda_runtime_api.h and cuda.h.
static GET_DEVICE: Symbol<GetDevice> =
    unsafe { Symbol::new(&Library::CUDA_RUNTIME, c"cudaGetDevice") };
// SAFETY: as above.
static CURRENT_CONTEXT: Symbol<CurrentContext> =
    unsafe { Symbol::new(&Library::DRIVER, c"cuCtxGetCurrent") };
// SAFETY: as above.
static MEMORY_INFO: Symbol<MemoryInfo> =
    unsafe { Symbol::new(&Library::DRIVER, c"cuMemGetInfo_v2") };
// SAFETY: as above.
static ADDRESS_RANGE: Symbol<AddressRange> =
    unsafe { Symbol::new(&Library::DRIVER, c"cuMemGetAddressRange_v2") };
// SAFETY: as above.
static DEVICE_GET: Symbol<DeviceGet> = unsafe { Symbol::new(&Library::DRIVER, c"cuDeviceGet") };
// SAFETY: as above.
static DEVICE_UUID: Symbol<DeviceUuid> =
    unsafe { Symbol::new(&Library::DRIVER, c"cuDeviceGetUuid_v2") };
/// Of drivers before CUDA 11.4, which lack the other.
// SAFETY: as above.
static OLDER_DEVICE_UUID: Symbol<DeviceUuid> =
    unsafe { Symbol::new(&Library::DRIVER, c"cuDeviceGetUuid") };
// SAFETY: as above.
static DEVICE_BYTES: Symbol<DeviceBytes> =
    unsafe { Symbol::new(&Library::DRIVER, c"cuDeviceTotalMem_v2") };

/// The calling thread's current device; 0 where the runtime does not say.
pub(crate) fn current_device() -> u8 {
    let Some(real) = GET_DEVICE.get() else { return 0 };
    let mut index: c_int = 0;
    // SAFETY: `cudaGetDevice` writes one int; it reads thread-local state.
    let result = unsafe { real(&raw mut index) };
    if result == 0 { u8::try_from(index).unwrap_or(0) } else { 0 }
}

/// Bytes free on the device of the thread's context; `None` where it has no context.
pub(crate) fn free_bytes() -> Option<u64> {
    let (context_of, info) = (CURRENT_CONTEXT.get()?, MEMORY_INFO.get()?);
    let mut context: sys::CUcontext = std::ptr::null_mut();
    let (mut free, mut total) = (0usize, 0usize);
    // SAFETY: each call writes to what it is given; none makes a context, and the second is not
    // made where there is none.
    let known = unsafe {
        context_of(&raw mut context) == 0
            && !context.is_null()
            && info(&raw mut free, &raw mut total) == 0
    };
    known.then_some(free as u64)
}

/// Bytes of the allocation that starts at an address of a device.
pub(crate) fn allocation_bytes(pointer: u64) -> Option<u64> {
    let range = ADDRESS_RANGE.get()?;
    let (mut start, mut bytes) = (0, 0usize);
    // SAFETY: the call writes two values and looks the address up, without touching it.
    let result = unsafe { range(&raw mut start, &raw mut bytes, pointer) };
    (result == 0 && start == pointer).then_some(bytes as u64)
}

/// Writes UUID and size of every device that has a lane and is not described yet. Returns false
/// while no device is in use or its driver is not found.
pub(crate) fn describe_devices(tape: Words<'_>, has_lane: impl Fn(u8) -> bool) -> bool {
    let mut in_use = (0..DEVICES_MAX as u8).filter(|&index| has_lane(index)).peekable();
    // A symbol that is not found is looked for ever more rarely: so not before it can be there.
    if in_use.peek().is_none() {
        return false;
    }
    let uuid = DEVICE_UUID.get().or_else(|| OLDER_DEVICE_UUID.get());
    let (Some(get), Some(uuid), Some(bytes)) = (DEVICE_GET.get(), uuid, DEVICE_BYTES.get()) else {
        return false;
    };
    tape.at(header::HOOKS).fetch_or(hooks::DRIVER, Ordering::Relaxed);
    for index in in_use {
        let word = |name| Words::device_word(index, name);
        if tape.get(word(device::TOTAL_BYTES)) != 0 {
            continue;
        }
        let mut handle: sys::CUdevice = 0;
        let mut id = sys::CUuuid { bytes: [0 as c_char; 16] };
        let mut total = 0usize;
        // SAFETY: each call writes one value of its own type; none needs or makes a context.
        let known = unsafe {
            get(&raw mut handle, c_int::from(index)) == 0
                && uuid(&raw mut id, handle) == 0
                && bytes(&raw mut total, handle) == 0
        };
        if known {
            let [low, high] = uuid_words(id.bytes);
            tape.set(word(device::UUID), low);
            tape.set(word(device::UUID + 1), high);
            tape.set(word(device::TOTAL_BYTES), total as u64);
        }
    }
    true
}

/// The bytes as two little-endian words.
fn uuid_words(bytes: [c_char; 16]) -> [u64; 2] {
    let number = u128::from_le_bytes(bytes.map(|byte| byte as u8));
    [number as u64, (number >> 64) as u64]
}
