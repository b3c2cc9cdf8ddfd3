//! Finding the functions the guest stands in front of, and the interpreter's.
//!
//! `dlsym(RTLD_NEXT)` is not enough: CPython loads PyTorch's libraries with RTLD_LOCAL, so they
//! are not in the preloaded library's search order. They are found by name, without loading them.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Libraries that may hold CUDA's runtime, newest first.
const CUDA_RUNTIMES: [&CStr; 4] =
    [c"libcudart.so.13", c"libcudart.so.12", c"libcudart.so.11.0", c"libcudart.so"];

/// PyTorch's core library.
const C10: [&CStr; 1] = [c"libc10.so"];

/// PyTorch's operators and its autograd engine.
const TORCH: [&CStr; 1] = [c"libtorch_cpu.so"];

/// NVIDIA's library of collectives.
const NCCL: [&CStr; 2] = [c"libnccl.so.2", c"libnccl.so"];

/// The CUDA driver.
const DRIVER: [&CStr; 1] = [c"libcuda.so.1"];

/// NVIDIA's profiling interface.
const CUPTI: [&CStr; 4] =
    [c"libcupti.so.13", c"libcupti.so.12", c"libcupti.so.11.8", c"libcupti.so.11.7"];

/// Stands for a function that was looked for and is not there: looking again costs microseconds,
/// and whoever calls a hook has loaded the library behind it.
const ABSENT: *mut c_void = std::ptr::without_provenance_mut(1);

/// A function of type `F`, looked up once and kept.
pub(crate) struct Symbol<F> {
    name: &'static CStr,
    libraries: &'static [&'static CStr],
    found: AtomicPtr<c_void>,
    of: PhantomData<F>,
}

impl<F: Copy> Symbol<F> {
    /// # Safety
    /// `F` must be the type of a function pointer, with the signature of the function so called.
    const unsafe fn new(name: &'static CStr, libraries: &'static [&'static CStr]) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        Self { name, libraries, found: AtomicPtr::new(std::ptr::null_mut()), of: PhantomData }
    }

    /// A function of PyTorch's core library.
    ///
    /// # Safety
    /// `F` must be the function's type.
    pub(crate) const unsafe fn of_c10(name: &'static CStr) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::new(name, &C10) }
    }

    /// A function of PyTorch's operators or its autograd engine.
    ///
    /// # Safety
    /// `F` must be the function's type.
    pub(crate) const unsafe fn of_torch(name: &'static CStr) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::new(name, &TORCH) }
    }

    /// A function of the CUDA runtime.
    ///
    /// # Safety
    /// `F` must be the function's type.
    pub(crate) const unsafe fn of_cuda(name: &'static CStr) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::new(name, &CUDA_RUNTIMES) }
    }

    /// A function of NCCL.
    ///
    /// # Safety
    /// `F` must be the function's type.
    pub(crate) const unsafe fn of_nccl(name: &'static CStr) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::new(name, &NCCL) }
    }

    /// A function of the CUDA driver.
    ///
    /// # Safety
    /// `F` must be the function's type.
    pub(crate) const unsafe fn of_driver(name: &'static CStr) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::new(name, &DRIVER) }
    }

    /// A function of CUPTI.
    ///
    /// # Safety
    /// `F` must be the function's type.
    pub(crate) const unsafe fn of_cupti(name: &'static CStr) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::new(name, &CUPTI) }
    }

    /// The real function, where there is one.
    #[inline]
    pub(crate) fn get(&self) -> Option<F> {
        let found = match self.found.load(Ordering::Acquire) {
            found if found.is_null() => self.look_up_once(),
            found => found,
        };
        if found == ABSENT {
            return None;
        }
        // SAFETY: a function pointer of type `F`, by the promise given to `new`.
        Some(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
    }

    #[cold]
    fn look_up_once(&self) -> *mut c_void {
        let found = crate::edge::keeping_errno(|| self.look_up().unwrap_or(ABSENT));
        self.found.store(found, Ordering::Release);
        found
    }

    fn look_up(&self) -> Option<*mut c_void> {
        // SAFETY: the name is a C string; RTLD_NEXT starts after this library.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if !next.is_null() {
            return Some(next);
        }
        self.libraries.iter().find_map(|library| {
            // SAFETY: NOLOAD only finds what is loaded. The handle is kept on purpose, so that the
            // function stays valid.
            let handle =
                unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
            if handle.is_null() {
                return None;
            }
            // SAFETY: the handle is open and the name is a C string.
            let found = unsafe { libc::dlsym(handle, self.name.as_ptr()) };
            (!found.is_null()).then_some(found)
        })
    }
}

/// A symbol of the process as a whole: the interpreter's, whether in the program or a library.
pub(crate) fn global(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Where the library or program is loaded that an address lies in.
pub(crate) fn object_of(address: usize) -> Option<usize> {
    // SAFETY: plain data, for which zero is a value.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is only looked up, and the result has room.
    let is_known = unsafe { libc::dladdr(address as *const c_void, &mut found) } != 0;
    is_known.then_some(found.dli_fbase as usize)
}
