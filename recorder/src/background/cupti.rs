//! Device memory that is taken from the driver past every other hook: hook 5, for
//! `MEMTAPE_CUPTI=1`.
//!
//! CUPTI calls `on_call` on the thread that makes a driver call, as the call begins and as it
//! ends. A call that takes memory is recorded when it has succeeded, a call that gives memory back
//! when it begins. A call inside of another hook's function is that hook's ([`Outermost`]);
//! PyTorch's expandable segments are recorded here as well, and the ledger subtracts them. Only
//! the calls in `CALLS` are called back for.
//!
//! CUPTI has one subscriber in a process: where a profiler was first, this hook is not there and
//! the tape says so; where this hook was first, profilers see no kernels. So it must be asked for.
//! It subscribes when PyTorch reads the devices' properties, which is before it takes memory, or
//! else from the control thread. It loads no library: PyTorch has loaded CUPTI.
//!
//! Memory of `cuMemCreate` goes by its handle, and counts until the handle is released, even
//! where a mapping keeps it longer. Not recorded: requests that fail, memory of the host, and
//! memory that is imported from another process, which counts there.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cudarc::cupti::sys::{
    CUpti_ApiCallbackSite, CUpti_CallbackData, CUpti_CallbackDomain, CUpti_SubscriberHandle,
    CUpti_driver_api_trace_cbid as Call, CUptiResult, cuMemAlloc_v2_params,
    cuMemAllocPitch_v2_params, cuMemCreate_params, cuMemRetainAllocationHandle_params,
};
use cudarc::driver::sys::CUmemLocationType;
use memtape_tape::layout::Cupti;
use memtape_tape::layout::header;
use memtape_tape::snapshot::origin::Origin;

use crate::host::symbols::{Library, Symbol};
use crate::host::{driver, environment};
use crate::writer::outside_allocator::{self, Outermost};
use crate::writer::panic_boundary::guarded;
use crate::writer::{free_memory, state};

// Domains and results are integers here: a newer CUPTI may have values that cudarc's enums lack.
type Callback = unsafe extern "C" fn(*mut c_void, c_uint, c_uint, *const c_void);
type Subscribe = unsafe extern "C" fn(*mut CUpti_SubscriberHandle, Callback, *mut c_void) -> c_int;
type Unsubscribe = unsafe extern "C" fn(CUpti_SubscriberHandle) -> c_int;
type Enable = unsafe extern "C" fn(c_uint, CUpti_SubscriberHandle, c_uint, c_uint) -> c_int;

// SAFETY: the types are those of cupti_callbacks.h, unchanged since CUDA 11.
static SUBSCRIBE: Symbol<Subscribe> = unsafe { Symbol::new(&Library::CUPTI, c"cuptiSubscribe") };
// SAFETY: as above.
static UNSUBSCRIBE: Symbol<Unsubscribe> =
    unsafe { Symbol::new(&Library::CUPTI, c"cuptiUnsubscribe") };
// SAFETY: as above.
static ENABLE: Symbol<Enable> = unsafe { Symbol::new(&Library::CUPTI, c"cuptiEnableCallback") };

const SUCCESS: c_int = 0;
const SEVERAL_SUBSCRIBERS: c_int =
    CUptiResult::CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED as c_int;
const DRIVER_API: c_uint = CUpti_CallbackDomain::CUPTI_CB_DOMAIN_DRIVER_API as c_uint;

const ALLOC: c_uint = Call::CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2 as c_uint;
const ALLOC_PITCH: c_uint = Call::CUPTI_DRIVER_TRACE_CBID_cuMemAllocPitch_v2 as c_uint;
const ALLOC_MANAGED: c_uint = Call::CUPTI_DRIVER_TRACE_CBID_cuMemAllocManaged as c_uint;
const ALLOC_ASYNC: c_uint = Call::CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync as c_uint;
const ALLOC_ASYNC_PTSZ: c_uint = Call::CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync_ptsz as c_uint;
const FROM_POOL: c_uint = Call::CUPTI_DRIVER_TRACE_CBID_cuMemAllocFromPoolAsync as c_uint;
const FROM_POOL_PTSZ: c_uint = Call::CUPTI_DRIVER_TRACE_CBID_cuMemAllocFromPoolAsync_ptsz as c_uint;
const CREATE: c_uint = Call::CUPTI_DRIVER_TRACE_CBID_cuMemCreate as c_uint;
const RETAIN: c_uint = Call::CUPTI_DRIVER_TRACE_CBID_cuMemRetainAllocationHandle as c_uint;
const FREE: c_uint = Call::CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2 as c_uint;
const FREE_ASYNC: c_uint = Call::CUPTI_DRIVER_TRACE_CBID_cuMemFreeAsync as c_uint;
const FREE_ASYNC_PTSZ: c_uint = Call::CUPTI_DRIVER_TRACE_CBID_cuMemFreeAsync_ptsz as c_uint;
const RELEASE: c_uint = Call::CUPTI_DRIVER_TRACE_CBID_cuMemRelease as c_uint;

/// The driver's functions with callbacks to this hook.
const CALLS: [c_uint; 13] = [
    ALLOC,
    ALLOC_PITCH,
    ALLOC_MANAGED,
    ALLOC_ASYNC,
    ALLOC_ASYNC_PTSZ,
    FROM_POOL,
    FROM_POOL_PTSZ,
    CREATE,
    RETAIN,
    FREE,
    FREE_ASYNC,
    FREE_ASYNC_PTSZ,
    RELEASE,
];

static TRIED: AtomicBool = AtomicBool::new(false);
/// State of the subscription, a [`Cupti`].
static STATE: AtomicU64 = AtomicU64::new(Cupti::NotAsked as u64);

/// Called for each allocation: origin, address or handle, bytes, device.
pub(crate) type Taken = fn(Origin, u64, u64, u8);

/// Subscribes, where the program asked for it, at the first call.
pub(crate) fn subscribe(taken: Taken) {
    if TRIED.load(Ordering::Relaxed) || TRIED.swap(true, Ordering::AcqRel) {
        return;
    }
    if environment::is_on("MEMTAPE_CUPTI") && !environment::is_on("MEMTAPE_DISABLE") {
        guarded(|| STATE.store(try_to_subscribe(taken) as u64, Ordering::Release));
    }
}

/// Writes the state of the subscription to the tape.
pub(crate) fn report() {
    if let Some(recorder) = state::recording() {
        recorder.words().set(header::CUPTI, STATE.load(Ordering::Acquire));
    }
}

fn try_to_subscribe(taken: Taken) -> Cupti {
    let Some(subscribe) = SUBSCRIBE.get() else { return Cupti::NoLibrary };
    let (Some(unsubscribe), Some(enable)) = (UNSUBSCRIBE.get(), ENABLE.get()) else {
        return Cupti::NoFunction;
    };
    let mut subscriber: CUpti_SubscriberHandle = std::ptr::null_mut();
    // SAFETY: CUPTI writes the subscriber; the callback is there as long as the process.
    match unsafe { subscribe(&raw mut subscriber, on_call, taken as *mut c_void) } {
        SUCCESS => {}
        SEVERAL_SUBSCRIBERS => return Cupti::ProfilerAttached,
        _ => return Cupti::Failed,
    }
    // SAFETY: CUPTI gave the subscriber just now.
    let enabled = |call| unsafe { enable(1, subscriber, DRIVER_API, call) } == SUCCESS;
    if CALLS.into_iter().all(enabled) {
        return Cupti::Subscribed;
    }
    // SAFETY: as above; it is not used any more.
    unsafe { unsubscribe(subscriber) };
    Cupti::Failed
}

/// A driver call begins or ends.
unsafe extern "C" fn on_call(
    taken: *mut c_void,
    domain: c_uint,
    call: c_uint,
    data: *const c_void,
) {
    if domain != DRIVER_API || data.is_null() {
        return;
    }
    let Some(_outermost) = Outermost::enter() else { return };
    // SAFETY: that is what CUPTI gives for this domain, and it lives as long as this call.
    let data = unsafe { &*data.cast::<CUpti_CallbackData>() };
    // SAFETY: what `try_to_subscribe` gave to CUPTI with this function.
    let taken = unsafe { std::mem::transmute::<*mut c_void, Taken>(taken) };
    guarded(|| match data.callbackSite {
        CUpti_ApiCallbackSite::CUPTI_API_ENTER => give_back(call, data),
        CUpti_ApiCallbackSite::CUPTI_API_EXIT => take(call, data, taken),
        _ => {}
    });
}

/// A piece of memory that a call has taken.
struct Piece {
    /// Address or handle.
    key: u64,
    bytes: u64,
    device: u8,
}

fn take(call: c_uint, data: &CUpti_CallbackData, taken: Taken) {
    // SAFETY: a driver call that has ended has a result.
    let result = unsafe { *data.functionReturnValue.cast::<c_int>() };
    // SAFETY: the call is this one, and it succeeded.
    let piece = || unsafe { piece(call, data.functionParams) };
    let Some(piece) = (result == SUCCESS).then(piece).flatten() else { return };
    let origin = if call == ALLOC_MANAGED { Origin::Managed } else { Origin::DriverVmm };
    taken(origin, piece.key, piece.bytes, piece.device);
}

/// The memory taken by a successful call.
///
/// # Safety
/// `params` must be the parameters of this call, and what they point to still there.
unsafe fn piece(call: c_uint, params: *const c_void) -> Option<Piece> {
    match call {
        RETAIN => {
            // SAFETY: the caller's promise, like all below.
            let of = unsafe { &*params.cast::<cuMemRetainAllocationHandle_params>() };
            // SAFETY: the function has succeeded, so it has written there, like all below.
            RETAINED.add(unsafe { *of.handle });
            None
        }
        CREATE => {
            // SAFETY: as above.
            let of = unsafe { &*params.cast::<cuMemCreate_params>() };
            // SAFETY: as above; the function has read what it was given.
            let (key, location) = unsafe { (*of.handle, (*of.prop).location) };
            let on_device = location.type_ == CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
            let device = u8::try_from(location.id).ok().filter(|_| on_device)?;
            Some(Piece { key, bytes: of.size as u64, device })
        }
        ALLOC_PITCH => {
            // SAFETY: as above.
            let of = unsafe { &*params.cast::<cuMemAllocPitch_v2_params>() };
            // SAFETY: as above.
            let (key, row) = unsafe { (*of.dptr, *of.pPitch) };
            let bytes = row.saturating_mul(of.Height) as u64;
            Some(Piece { key, bytes, device: driver::current_device() })
        }
        ALLOC | ALLOC_MANAGED | ALLOC_ASYNC | ALLOC_ASYNC_PTSZ | FROM_POOL | FROM_POOL_PTSZ => {
            // SAFETY: as above: the parameters of all of these begin with the same two.
            let of = unsafe { &*params.cast::<cuMemAlloc_v2_params>() };
            // SAFETY: as above.
            let key = unsafe { *of.dptr };
            Some(Piece { key, bytes: of.bytesize as u64, device: driver::current_device() })
        }
        _ => None,
    }
}

fn give_back(call: c_uint, data: &CUpti_CallbackData) {
    if !matches!(call, FREE | FREE_ASYNC | FREE_ASYNC_PTSZ | RELEASE) {
        return;
    }
    // SAFETY: the parameters of all of these begin with an address or a handle.
    let key = unsafe { *data.functionParams.cast::<u64>() };
    if call != RELEASE {
        free_memory::returned(key);
    } else if RETAINED.remove(key) {
        return;
    }
    outside_allocator::returned(Origin::DriverVmm, key);
}

/// Handles that were retained after they were made, once for each time: NCCL retains a handle to
/// find it, and releases it at once. Memory whose handle finds no slot here counts as given back
/// too early.
struct Retained([AtomicU64; 256]);

static RETAINED: Retained = Retained([const { AtomicU64::new(0) }; 256]);

impl Retained {
    fn add(&self, handle: u64) {
        if !self.change(0, handle)
            && let Some(recorder) = state::recording()
        {
            recorder.words().count(header::LOST_HOST_EVENTS);
        }
    }

    /// Removes a handle. True when the handle was there.
    fn remove(&self, handle: u64) -> bool {
        handle != 0 && self.change(handle, 0)
    }

    fn change(&self, from: u64, to: u64) -> bool {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        self.0.iter().any(|slot| slot.compare_exchange(from, to, order.0, order.1).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retained_handle_is_released_once_for_each_time() {
        let retained = Retained([const { AtomicU64::new(0) }; 256]);
        for handle in [7, 9, 7] {
            retained.add(handle);
        }
        let released = [7, 7, 7, 9, 9, 0].map(|handle| retained.remove(handle));
        assert_eq!(released, [true, true, false, true, false, false]);
    }
}
