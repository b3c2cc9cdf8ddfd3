//! Marks saves, loads and evaluations, through interfaces that are made for it: no function of
//! PyTorch or of the program is replaced.
//!
//! - A save or a load: PyTorch asks each package of `torch.serialization.register_package` about
//!   every storage. The recorder's package answers none of the questions.
//! - An evaluation: `sys.monitoring` tells when the code of `torch.nn.Module.eval` begins to run.
//!   CPython has it since 3.12.
//!
//! `torch.distributed.checkpoint`, Lightning and the Trainer of transformers end in these.
//!
//! Not noticed: files that no code of PyTorch writes (safetensors, numpy), PyTorch's file format of
//! before 1.6, in which tensors are pickled for other processes, a load whose `map_location` is a
//! function, a model whose `eval` is its own and does not call PyTorch's, and
//! evaluations before CPython 3.12 or where two other tools hold the free numbers of
//! `sys.monitoring`.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

use memtape_tape::snapshot::marks::Activity;

use crate::background::python_api::{Api, MethodDef, Object};
use crate::writer::panic_boundary::guarded;
use crate::writer::steps;

/// Packages are asked in the order of their priority; PyTorch's own begin at 10. Two with one
/// priority cannot be sorted, so this is an uncommon number.
const PRIORITY: u64 = 7;

/// Functions of PyTorch between the one that writes a file and the question about a storage.
const CALLS_BACK: usize = 8;

/// Numbers of `sys.monitoring` that no kind of tool has for itself.
const TOOLS: [u64; 2] = [4, 3];

static SAVES: MethodDef = MethodDef::new(
    c"memtape_save",
    on_save,
    c"Tells memtape of a save; has no location for the storage.",
);

static LOADS: MethodDef =
    MethodDef::new(c"memtape_load", on_load, c"Tells memtape of a load; restores no storage.");

static EVALUATES: MethodDef =
    MethodDef::new(c"memtape_evaluation", on_evaluation, c"Tells memtape of an evaluation.");

/// Has PyTorch and the interpreter tell of activities, each once its modules are imported.
///
/// # Safety
/// The calling thread must hold the GIL, and no exception may be set.
pub(super) unsafe fn register(api: &Api) {
    static FILES: AtomicBool = AtomicBool::new(false);
    static EVALUATIONS: AtomicBool = AtomicBool::new(false);
    // SAFETY: the caller's promise; `imported` gives borrowed references.
    unsafe {
        let module = api.imported(c"torch.serialization");
        // Its last function: a half imported module has no packages of its own yet.
        let load = api.attribute(module, c"load");
        if !load.is_null() && !FILES.swap(true, Ordering::AcqRel) {
            register_package(api, module);
        }
        api.release([load]);
        let module = api.imported(c"torch.nn.modules.module");
        if module.is_null() || EVALUATIONS.load(Ordering::Acquire) {
            return;
        }
        let class = api.attribute(module, c"Module");
        let function = api.attribute(class, c"eval");
        let code = api.attribute(function, c"__code__");
        if !code.is_null() && !EVALUATIONS.swap(true, Ordering::AcqRel) {
            monitor(api, code);
        }
        api.release([class, function, code]);
    }
}

/// # Safety
/// As of [`register`].
unsafe fn register_package(api: &Api, module: Object) {
    let null: Object = std::ptr::null_mut();
    // SAFETY: the caller's promise; every reference is new and given back.
    unsafe {
        let priority = (api.from_number)(PRIORITY);
        let tagger = (api.function)(&raw const SAVES, null, null);
        let restorer = (api.function)(&raw const LOADS, null, null);
        if priority.is_null() || tagger.is_null() || restorer.is_null() {
            (api.clear_error)();
        } else {
            api.calls(module, c"register_package", [priority, tagger, restorer]);
        }
        api.release([priority, tagger, restorer]);
    }
}

/// Has the interpreter call back when this code begins to run.
///
/// # Safety
/// As of [`register`].
unsafe fn monitor(api: &Api, code: Object) {
    let null: Object = std::ptr::null_mut();
    // SAFETY: the caller's promise; every reference is new and given back, but `sys`, which is
    // borrowed.
    unsafe {
        let monitoring = api.attribute(api.imported(c"sys"), c"monitoring");
        let events = api.attribute(monitoring, c"events");
        let begins = api.attribute(events, c"PY_START");
        let name = (api.from_text)(c"memtape".as_ptr());
        let callback = (api.function)(&raw const EVALUATES, null, null);
        if name.is_null() || callback.is_null() {
            (api.clear_error)();
        } else if !begins.is_null() {
            for number in TOOLS {
                let tool = (api.from_number)(number);
                let is_ours = api.calls(monitoring, c"use_tool_id", [tool, name, null]);
                if is_ours {
                    api.calls(monitoring, c"register_callback", [tool, begins, callback]);
                    api.calls(monitoring, c"set_local_events", [tool, code, begins]);
                }
                api.release([tool]);
                if is_ours {
                    break;
                }
            }
        }
        api.release([monitoring, events, begins, name, callback]);
    }
}

/// PyTorch asks for the location of a storage that it saves; None leaves it to the next package.
unsafe extern "C-unwind" fn on_save(_: Object, _: Object) -> Object {
    // SAFETY: called by the interpreter with the GIL, and without an exception.
    guarded(|| unsafe { handled(Activity::Save, c"_legacy_save") });
    Api::return_none()
}

/// PyTorch asks to restore a storage that it loads; None leaves it to the next package.
unsafe extern "C-unwind" fn on_load(_: Object, _: Object) -> Object {
    // SAFETY: as above.
    guarded(|| unsafe { handled(Activity::Load, c"_legacy_load") });
    Api::return_none()
}

/// Marks an activity, unless a function of this name is among the callers: a tensor that is
/// pickled (for another process, or by `all_gather_object`) is written in PyTorch's old format.
///
/// # Safety
/// The calling thread must hold the GIL, and no exception may be set.
unsafe fn handled(activity: Activity, legacy: &CStr) {
    let Some(api) = Api::find() else { return };
    // SAFETY: the caller's promise.
    if !unsafe { api.is_called_by(legacy, CALLS_BACK) } {
        steps::activity(activity);
    }
}

unsafe extern "C-unwind" fn on_evaluation(_: Object, _: Object) -> Object {
    guarded(|| steps::activity(Activity::Evaluation));
    Api::return_none()
}
