//! Finding the functions the guest stands in front of, and the interpreter's.
//!
//! `dlsym(RTLD_NEXT)` is not enough: CPython loads PyTorch's libraries with RTLD_LOCAL, so they
//! are not in the preloaded library's search order. They are found by name, without loading them.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Libraries that may hold CUDA's runtime, newest first.
const CUDA_RUNTIMES: [&CStr; 4] =
    [c"libcudart.so.13", c"libcudart.so.12", c"libcudart.so.11.0", c"libcudart.so"];

/// PyTorch's core library.
const C10: [&CStr; 1] = [c"libc10.so"];

/// Stands for a function that was looked for and is not there: looking again costs microseconds,
/// and whoever calls a hook has loaded the library behind it.
const ABSENT: *mut c_void = std::ptr::without_provenance_mut(1);

/// A function looked up once and kept.
pub(crate) struct Symbol {
    name: &'static CStr,
    libraries: &'static [&'static CStr],
    found: AtomicPtr<c_void>,
}

impl Symbol {
    const fn new(name: &'static CStr, libraries: &'static [&'static CStr]) -> Self {
        Self { name, libraries, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// A function of PyTorch's core library.
    pub(crate) const fn of_c10(name: &'static CStr) -> Self {
        Self::new(name, &C10)
    }

    /// A function of the CUDA runtime.
    pub(crate) const fn of_cuda(name: &'static CStr) -> Self {
        Self::new(name, &CUDA_RUNTIMES)
    }

    /// The real function, or null where there is none.
    #[inline]
    pub(crate) fn get(&self) -> *mut c_void {
        match self.found.load(Ordering::Acquire) {
            ABSENT => std::ptr::null_mut(),
            found if found.is_null() => self.look_up_once(),
            found => found,
        }
    }

    #[cold]
    fn look_up_once(&self) -> *mut c_void {
        let found = self.look_up();
        self.found.store(if found.is_null() { ABSENT } else { found }, Ordering::Release);
        found
    }

    fn look_up(&self) -> *mut c_void {
        // SAFETY: the name is a C string; RTLD_NEXT starts after this library.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if !next.is_null() {
            return next;
        }
        for library in self.libraries {
            // SAFETY: NOLOAD only finds what is loaded. The handle is kept on purpose, so that the
            // function stays valid.
            let handle =
                unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
            if handle.is_null() {
                continue;
            }
            // SAFETY: the handle is open and the name is a C string.
            let found = unsafe { libc::dlsym(handle, self.name.as_ptr()) };
            if !found.is_null() {
                return found;
            }
        }
        std::ptr::null_mut()
    }
}

/// A symbol of the process as a whole: the interpreter's, whether in the program or a library.
pub(crate) fn global(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}
