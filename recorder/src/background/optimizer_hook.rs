//! Registers PyTorch's optimizer hook, without waiting for the interpreter.
//!
//! The main thread is asked to do it between two of its bytecodes (`Py_AddPendingCall`, which
//! needs no GIL). So the hook is there before the first `optimizer.step()` after the first
//! allocation, on every rank alike, and no rank misses a step. Where the main thread runs no Python
//! (it waits for a thread that trains), a thread started for this takes the GIL once. The functions
//! are found by name; in a process without them nothing is done.
//!
//! The interpreter is also asked to call back when it ends: its frames must not be read afterwards.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use memtape_tape::layout::{StepSource, header};

use crate::background::python_api::{Api, MethodDef, Object};
use crate::background::remedies;
use crate::stacks::availability;
use crate::writer::panic_boundary::guarded;
use crate::writer::{state, steps};

/// `METH_VARARGS`.
const VARARGS: c_int = 1;

static STEPPED: MethodDef = MethodDef {
    name: c"memtape_step".as_ptr(),
    function: on_step,
    flags: VARARGS,
    doc: c"Counts a training step for memtape.".as_ptr(),
};

static ENDS: MethodDef = MethodDef {
    name: c"memtape_end".as_ptr(),
    function: on_end,
    flags: VARARGS,
    doc: c"Tells memtape that the interpreter ends.".as_ptr(),
};

/// Stack of the thread that takes the GIL: it runs a few lines of PyTorch's Python.
const STACK_BYTES: usize = 1 << 20;

unsafe extern "C" {
    /// The C library's function; the libc crate declares it for functions that do not unwind.
    fn pthread_create(
        thread: *mut libc::pthread_t,
        attributes: *const libc::pthread_attr_t,
        start: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
        argument: *mut c_void,
    ) -> c_int;
}

/// True while a request to the main thread is pending.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Asks the main thread to register the hook. Cheap, needs no GIL, may be called again.
pub(crate) fn ask_main_thread() {
    let Some(api) = Api::find() else { return };
    if ASKED.swap(true, Ordering::AcqRel) {
        return;
    }
    // SAFETY: both functions may be called from any thread without the GIL.
    unsafe {
        if (api.is_initialized)() == 0
            || (api.add_pending_call)(in_main_thread, std::ptr::null_mut()) != 0
        {
            ASKED.store(false, Ordering::Release);
        }
    }
}

/// Registers the hook from a thread of its own, once in a process.
pub(crate) fn register_on_own_thread() {
    static TRIED: AtomicBool = AtomicBool::new(false);
    if Api::find().is_none() || TRIED.swap(true, Ordering::AcqRel) {
        return;
    }
    // SAFETY: all-zero is a valid place for both; the thread needs nothing of this one.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        let mut thread: libc::pthread_t = std::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(&raw mut attributes, STACK_BYTES);
        let null = std::ptr::null_mut();
        pthread_create(&raw mut thread, &raw const attributes, register_with_gil, null);
        libc::pthread_attr_destroy(&raw mut attributes);
    }
}

/// Takes the GIL. If the interpreter began to end meanwhile, this thread ends right there. So it
/// has nothing to drop and catches nothing: Rust could do neither in such an end.
extern "C-unwind" fn register_with_gil(_: *mut c_void) -> *mut c_void {
    if let Some(api) = Api::find() {
        // SAFETY: the interpreter is initialized and not ending, and this thread holds no lock the
        // GIL's holder could wait for.
        unsafe {
            if (api.is_initialized)() != 0 && !api.is_ending() {
                let state = (api.gil_ensure)();
                guarded(|| register(api));
                (api.gil_release)(state);
            }
        }
    }
    std::ptr::null_mut()
}

extern "C" fn in_main_thread(_: *mut c_void) -> c_int {
    guarded(|| {
        if let Some(api) = Api::find() {
            // SAFETY: a pending call runs with the GIL.
            unsafe { register(api) };
        }
        ASKED.store(false, Ordering::Release);
    });
    0
}

/// Registers the hook, if PyTorch's optimizers are imported and it is not registered yet.
///
/// # Safety
/// The calling thread must hold the GIL.
unsafe fn register(api: &Api) {
    let Some(recorder) = state::recording() else { return };
    // SAFETY: the caller's promise.
    unsafe { ask_for_the_end(api) };
    if recorder.words().get(header::STEP_SOURCE) != StepSource::None as u64 {
        return;
    }
    // SAFETY: the GIL is held; `dict_get` gives a borrowed reference, the others new ones, and
    // whatever was raised is cleared before the program goes on.
    unsafe {
        // Only looked up, never imported: an import from here could deadlock with the program's.
        let module = (api.dict_get)((api.modules)(), c"torch.optim.optimizer".as_ptr());
        if module.is_null() {
            (api.clear_error)();
            return;
        }
        let register = (api.attribute)(module, c"register_optimizer_step_post_hook".as_ptr());
        if register.is_null() {
            (api.clear_error)();
            // Half imported modules get it a moment later; a finished one never.
            if !(api.dict_get)((api.modules)(), c"torch.optim.sgd".as_ptr()).is_null() {
                recorder.words().set(header::STEP_SOURCE, StepSource::Unavailable as u64);
            }
            return;
        }
        let null: Object = std::ptr::null_mut();
        let hook = (api.function)(&raw const STEPPED, null, null);
        let handle = if hook.is_null() { null } else { (api.call)(register, hook, null) };
        if handle.is_null() {
            (api.clear_error)();
            recorder.words().set(header::STEP_SOURCE, StepSource::Unavailable as u64);
        } else {
            recorder.words().set(header::STEP_SOURCE, StepSource::OptimizerHook as u64);
        }
        for object in [register, hook, handle].into_iter().filter(|object| !object.is_null()) {
            (api.decrement)(object);
        }
    }
}

/// Has [`availability::end`] called by the interpreter's own `atexit`, once. Its handlers run after
/// the threads that Python waits for have ended, and before any state of the others is freed.
///
/// # Safety
/// The calling thread must hold the GIL.
unsafe fn ask_for_the_end(api: &Api) {
    static IS_ASKED: AtomicBool = AtomicBool::new(false);
    if IS_ASKED.load(Ordering::Relaxed) {
        return;
    }
    let null: Object = std::ptr::null_mut();
    // SAFETY: the GIL is held; `dict_get` gives a borrowed reference, the others new ones, and
    // whatever was raised is cleared before the program goes on.
    unsafe {
        // Looked up only, as below: `logging` imports it, and PyTorch imports that.
        let module = (api.dict_get)((api.modules)(), c"atexit".as_ptr());
        if module.is_null() {
            (api.clear_error)();
            return;
        }
        let register = (api.attribute)(module, c"register".as_ptr());
        let handler = (api.function)(&raw const ENDS, null, null);
        let mut done = null;
        if !register.is_null() && !handler.is_null() {
            done = (api.call)(register, handler, null);
        }
        if done.is_null() {
            (api.clear_error)();
        } else {
            IS_ASKED.store(true, Ordering::Relaxed);
        }
        for object in [register, handler, done].into_iter().filter(|object| !object.is_null()) {
            (api.decrement)(object);
        }
    }
}

/// Called by `atexit`: stops reading Python's frames.
unsafe extern "C-unwind" fn on_end(_: Object, _: Object) -> Object {
    guarded(availability::end);
    none()
}

/// The hook: PyTorch calls it with the optimizer, its arguments and its keyword arguments.
///
/// A remedy runs outside of the panic boundary, as a call of the program's own would: what it frees
/// is recorded, and an interrupt of the user goes on to the training loop.
unsafe extern "C-unwind" fn on_step(_: Object, arguments: Object) -> Object {
    let Some(api) = Api::find() else { return std::ptr::null_mut() };
    let mut ended = None;
    guarded(|| {
        // SAFETY: called by the interpreter with the GIL and a tuple; the item is borrowed.
        let optimizer = unsafe { (api.tuple_get)(arguments, 0) };
        if optimizer.is_null() {
            // SAFETY: the GIL is held.
            unsafe { (api.clear_error)() };
        } else {
            ended = steps::optimizer_stepped(optimizer as u64);
        }
    });
    if let Some(steps) = ended {
        // SAFETY: the GIL is held, and nothing here has to be dropped.
        let done = unsafe { remedies::after_step(api, steps) };
        if done.is_err() {
            return std::ptr::null_mut();
        }
    }
    none()
}

/// A new reference to None. The calling thread holds the GIL.
fn none() -> Object {
    let Some(api) = Api::find() else { return std::ptr::null_mut() };
    // SAFETY: None lives for ever; a function returns a new reference to it.
    unsafe { (api.increment)(api.none) };
    api.none
}
