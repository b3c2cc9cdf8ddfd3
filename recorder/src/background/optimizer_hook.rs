//! Registers PyTorch's optimizer hook, without waiting for the interpreter.
//!
//! The main thread is asked to do it between two of its bytecodes (`Py_AddPendingCall`, which
//! needs no GIL). So the hook is there before the first `optimizer.step()` after the first
//! allocation, on every rank alike, and no rank misses a step. Where the main thread runs no Python
//! (it waits for a thread that trains), a thread started for this takes the GIL once. The functions
//! are found by name; in a process without them nothing is done.
//!
//! The interpreter is also asked to call back when it ends: its frames must not be read afterwards.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use memtape_tape::layout::{StepSource, header};

use crate::background::python_api::{Api, MethodDef, Object};
use crate::background::{activities, remedies};
use crate::stacks::availability;
use crate::writer::panic_boundary::guarded;
use crate::writer::{state, steps};

static STEPPED: MethodDef =
    MethodDef::new(c"memtape_step", on_step, c"Counts a training step for memtape.");

static ENDS: MethodDef =
    MethodDef::new(c"memtape_end", on_end, c"Tells memtape that the interpreter ends.");

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
    unsafe {
        ask_for_the_end(api);
        activities::register(api);
    }
    if recorder.words().get(header::STEP_SOURCE) != StepSource::None as u64 {
        return;
    }
    const REGISTER: &CStr = c"register_optimizer_step_post_hook";
    // SAFETY: the caller's promise; a module is a borrowed reference, and the others are new.
    unsafe {
        let module = api.imported(c"torch.optim.optimizer");
        let register = api.attribute(module, REGISTER);
        // Half imported modules get it a moment later; a finished one never.
        if register.is_null() && api.imported(c"torch.optim.sgd").is_null() {
            return;
        }
        let null: Object = std::ptr::null_mut();
        let hook = (api.function)(&raw const STEPPED, null, null);
        let is_registered = !hook.is_null() && api.calls(module, REGISTER, [hook, null, null]);
        (api.clear_error)();
        let source =
            if is_registered { StepSource::OptimizerHook } else { StepSource::Unavailable };
        recorder.words().set(header::STEP_SOURCE, source as u64);
        api.release([register, hook]);
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
    // SAFETY: the caller's promise; the module is a borrowed reference, and the handler is new.
    unsafe {
        // Imported by `logging`, which PyTorch imports.
        let module = api.imported(c"atexit");
        if module.is_null() {
            return;
        }
        let handler = (api.function)(&raw const ENDS, null, null);
        let is_asked = !handler.is_null() && api.calls(module, c"register", [handler, null, null]);
        (api.clear_error)();
        IS_ASKED.store(is_asked, Ordering::Relaxed);
        api.release([handler]);
    }
}

/// Called by `atexit`: stops reading Python's frames.
unsafe extern "C-unwind" fn on_end(_: Object, _: Object) -> Object {
    guarded(availability::end);
    Api::return_none()
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
    Api::return_none()
}
