//! The functions of CPython that the hook needs, found by name.
//!
//! A call that runs the program's Python may end the calling thread from inside, where the
//! interpreter is being torn down: such calls are `C-unwind`, and no frame of this library that
//! they unwind has anything to drop.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::host::libraries::global_symbol;

pub(super) type Object = *mut c_void;
pub(super) type Call = unsafe extern "C-unwind" fn(Object, Object) -> Object;

/// CPython's `PyMethodDef`.
#[repr(C)]
pub(super) struct MethodDef {
    name: *const c_char,
    function: Call,
    flags: c_int,
    doc: *const c_char,
}

impl MethodDef {
    /// A function that is called with a tuple of its arguments.
    pub(super) const fn new(name: &'static CStr, function: Call, doc: &'static CStr) -> Self {
        /// `METH_VARARGS`.
        const VARARGS: c_int = 1;
        Self { name: name.as_ptr(), function, flags: VARARGS, doc: doc.as_ptr() }
    }
}

// SAFETY: never written, and its pointers are to static strings.
unsafe impl Sync for MethodDef {}

/// The interpreter's functions used here.
pub(super) struct Api {
    pub(super) is_initialized: unsafe extern "C" fn() -> c_int,
    /// Private until 3.13, public from then on; it may be missing.
    pub(super) is_finalizing: Option<unsafe extern "C" fn() -> c_int>,
    pub(super) add_pending_call:
        unsafe extern "C" fn(extern "C" fn(*mut c_void) -> c_int, *mut c_void) -> c_int,
    /// Ends the calling thread from inside where the interpreter is being torn down.
    pub(super) gil_ensure: unsafe extern "C-unwind" fn() -> c_int,
    pub(super) gil_release: unsafe extern "C" fn(c_int),
    modules: unsafe extern "C" fn() -> Object,
    dict_get: unsafe extern "C" fn(Object, *const c_char) -> Object,
    get_attribute: unsafe extern "C" fn(Object, *const c_char) -> Object,
    pub(super) function: unsafe extern "C" fn(*const MethodDef, Object, Object) -> Object,
    pub(super) call: unsafe extern "C-unwind" fn(Object, ...) -> Object,
    pub(super) clear_error: unsafe extern "C" fn(),
    increment: unsafe extern "C" fn(Object),
    decrement: unsafe extern "C" fn(Object),
    none: Object,
    pub(super) tuple_get: unsafe extern "C" fn(Object, isize) -> Object,
    pub(super) from_number: unsafe extern "C" fn(u64) -> Object,
    pub(super) from_text: unsafe extern "C" fn(*const c_char) -> Object,
    /// 0 where a text is equal to this ASCII text.
    compare_text: unsafe extern "C" fn(Object, *const c_char) -> c_int,
    pub(super) is_true: unsafe extern "C-unwind" fn(Object) -> c_int,
    /// Whether the exception that is set is of this class.
    pub(super) error_is: unsafe extern "C" fn(Object) -> c_int,
    /// The class `Exception`: a variable that the interpreter fills while it starts.
    pub(super) exception: *const Object,
}

// SAFETY: the functions may be called from any thread that follows their rules, and None is only
// handed on.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

impl Api {
    /// Is the interpreter being torn down?
    pub(super) fn is_ending(&self) -> bool {
        // SAFETY: the function reads a flag and needs no GIL.
        self.is_finalizing.is_some_and(|ask| unsafe { ask() } != 0)
    }

    /// A module that is imported, or null: only looked up, as an import from here could deadlock
    /// with the program's. The reference is borrowed.
    ///
    /// # Safety
    /// The calling thread must hold the GIL, and no exception may be set.
    pub(super) unsafe fn imported(&self, name: &CStr) -> Object {
        // SAFETY: the caller's promise.
        unsafe {
            let module = (self.dict_get)((self.modules)(), name.as_ptr());
            if module.is_null() {
                (self.clear_error)();
            }
            module
        }
    }

    /// An attribute of an object, or null where it has none or is null. The reference is new.
    ///
    /// # Safety
    /// As for [`Api::imported`].
    pub(super) unsafe fn attribute(&self, object: Object, name: &CStr) -> Object {
        if object.is_null() {
            return object;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let found = (self.get_attribute)(object, name.as_ptr());
            if found.is_null() {
                (self.clear_error)();
            }
            found
        }
    }

    /// Calls a method of an object with its arguments, up to the first null. True where it
    /// returned, false where there is no such method or an exception was raised.
    ///
    /// # Safety
    /// As for [`Api::imported`].
    pub(super) unsafe fn calls(&self, object: Object, name: &CStr, given: [Object; 3]) -> bool {
        let null: Object = std::ptr::null_mut();
        let [first, second, third] = given;
        // SAFETY: the caller's promise; the list of arguments ends with a null.
        unsafe {
            let method = self.attribute(object, name);
            if method.is_null() {
                return false;
            }
            let result = (self.call)(method, first, second, third, null);
            if result.is_null() {
                (self.clear_error)();
            }
            self.release([method, result]);
            !result.is_null()
        }
    }

    /// Is one of the callers of the running function, at most this many calls away, so named?
    ///
    /// # Safety
    /// As for [`Api::imported`].
    pub(super) unsafe fn is_called_by(&self, name: &CStr, calls_max: usize) -> bool {
        let null: Object = std::ptr::null_mut();
        // SAFETY: the caller's promise; every reference but that of `sys` is new and given back.
        unsafe {
            let current = self.attribute(self.imported(c"sys"), c"_getframe");
            let mut frame = if current.is_null() { null } else { (self.call)(current, null) };
            let mut is_found = false;
            for _ in 0..calls_max {
                if frame.is_null() || is_found {
                    break;
                }
                let code = self.attribute(frame, c"f_code");
                let called = self.attribute(code, c"co_name");
                let is_it = |called| (self.compare_text)(called, name.as_ptr()) == 0;
                is_found |= !called.is_null() && is_it(called);
                let caller = self.attribute(frame, c"f_back");
                self.release([code, called, frame]);
                frame = caller;
            }
            (self.clear_error)();
            self.release([current, frame]);
            is_found
        }
    }

    /// Gives references back, where they are not null.
    ///
    /// # Safety
    /// The calling thread must hold the GIL and own the references.
    pub(super) unsafe fn release<const COUNT: usize>(&self, objects: [Object; COUNT]) {
        for object in objects.into_iter().filter(|object| !object.is_null()) {
            // SAFETY: the caller's promise.
            unsafe { (self.decrement)(object) };
        }
    }

    /// A new reference to None: what a callback returns. The calling thread holds the GIL.
    pub(super) fn return_none() -> Object {
        let Some(api) = Self::find() else { return std::ptr::null_mut() };
        // SAFETY: None lives for ever; a function returns a new reference to it.
        unsafe { (api.increment)(api.none) };
        api.none
    }

    /// The functions, resolved once; `None` where there is no interpreter.
    pub(super) fn find() -> Option<&'static Self> {
        static FOUND: OnceLock<Option<Api>> = OnceLock::new();
        FOUND.get_or_init(Self::look_up).as_ref()
    }

    #[expect(clippy::missing_transmute_annotations, reason = "the field's type says it")]
    fn look_up() -> Option<Self> {
        macro_rules! function {
            ($name:literal) => {{
                let found = global_symbol($name);
                if found.is_null() {
                    return None;
                }
                // SAFETY: the field's type is the function's signature in CPython's headers.
                unsafe { std::mem::transmute(found) }
            }};
        }
        let none = global_symbol(c"_Py_NoneStruct");
        let exception = global_symbol(c"PyExc_Exception");
        (!none.is_null() && !exception.is_null()).then_some(())?;
        Some(Self {
            is_initialized: function!(c"Py_IsInitialized"),
            is_finalizing: {
                let names = [c"_Py_IsFinalizing", c"Py_IsFinalizing"];
                let mut found = names.into_iter().map(global_symbol);
                let found = found.find(|it| !it.is_null()).unwrap_or(std::ptr::null_mut());
                // SAFETY: the signature in CPython's headers; a null pointer is `None`.
                unsafe { std::mem::transmute(found) }
            },
            add_pending_call: function!(c"Py_AddPendingCall"),
            gil_ensure: function!(c"PyGILState_Ensure"),
            gil_release: function!(c"PyGILState_Release"),
            modules: function!(c"PyImport_GetModuleDict"),
            dict_get: function!(c"PyDict_GetItemString"),
            get_attribute: function!(c"PyObject_GetAttrString"),
            function: function!(c"PyCFunction_NewEx"),
            call: function!(c"PyObject_CallFunctionObjArgs"),
            clear_error: function!(c"PyErr_Clear"),
            increment: function!(c"Py_IncRef"),
            decrement: function!(c"Py_DecRef"),
            none,
            tuple_get: function!(c"PyTuple_GetItem"),
            from_number: function!(c"PyLong_FromUnsignedLongLong"),
            from_text: function!(c"PyUnicode_FromString"),
            compare_text: function!(c"PyUnicode_CompareWithASCIIString"),
            is_true: function!(c"PyObject_IsTrue"),
            error_is: function!(c"PyErr_ExceptionMatches"),
            exception: exception.cast::<Object>().cast_const(),
        })
    }
}
