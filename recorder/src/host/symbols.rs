//! Finding the functions the guest stands in front of, and the interpreter's.
//!
//! The dynamic linker binds a call to the first such function in the global search order, and only
//! then to one that the caller's own library came with. So does this:
//!
//! 1. `RTLD_NEXT`: the global order behind the guest. What is there is what everybody's call would
//!    have reached: a runtime that is preloaded behind the guest, or what `import torch` loads for
//!    all to see (the libraries that its `libtorch_global_deps.so` needs).
//! 2. What PyTorch's own library came with, whatever it is called: CPython loads PyTorch with
//!    RTLD_LOCAL. Asking for this first would pass by a runtime that is preloaded.
//! 3. The library by its usual names, without loading it.
//! 4. Any loaded file whose name begins with the library's, such as a wheel's own copy
//!    `libcudart-d0da41ae.so.11.0`.
//!
//! A runtime found by 3 or 4 may be that of another package, so it is made do with only until
//! PyTorch's is there. A function that calls must be passed on to is never given up: who calls it
//! has a library that holds it. Who calls is not looked at: of two runtimes in one process that
//! are both not global, PyTorch's is given the calls for either.

use std::ffi::{CStr, CString, c_int, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// A library, and how it is recognised.
struct Library {
    /// PyTorch's library that needs it.
    user: Option<&'static CStr>,
    /// What it is called, newest first.
    names: &'static [&'static CStr],
    /// How the name of every copy begins. Only for those that the guest stands in front of.
    stem: Option<&'static [u8]>,
}

/// CUDA's runtime.
const CUDA_RUNTIME: Library = Library {
    user: Some(c"libc10_cuda.so"),
    names: &[c"libcudart.so.13", c"libcudart.so.12", c"libcudart.so.11.0", c"libcudart.so"],
    stem: Some(b"libcudart"),
};

/// NVIDIA's library of collectives.
const NCCL: Library = Library {
    user: Some(c"libtorch_cuda.so"),
    names: &[c"libnccl.so.2", c"libnccl.so"],
    stem: Some(b"libnccl"),
};

/// PyTorch's core library. Who calls its functions through the guest is the library itself, and
/// it is never renamed.
const C10: Library = Library::named(&[c"libc10.so"]);

/// PyTorch's operators and its autograd engine.
const TORCH: Library = Library::named(&[c"libtorch_cpu.so"]);

/// PyTorch's CUDA half, and what it was linked with.
const TORCH_CUDA: Library = Library::named(&[c"libtorch_cuda.so"]);

/// The CUDA driver.
const DRIVER: Library = Library::named(&[c"libcuda.so.1"]);

/// NVIDIA's profiling interface.
const CUPTI: Library = Library::named(&[
    c"libcupti.so.13",
    c"libcupti.so.12",
    c"libcupti.so.11.8",
    c"libcupti.so.11.7",
]);

impl Library {
    const fn named(names: &'static [&'static CStr]) -> Self {
        Self { user: None, names, stem: None }
    }
}

/// A function of type `F`, looked up once and kept.
pub(crate) struct Symbol<F> {
    name: &'static CStr,
    library: &'static Library,
    found: AtomicPtr<c_void>,
    /// One that will do until there is a better one, and how many libraries had been loaded then.
    stand_in: AtomicPtr<c_void>,
    stand_in_loads: AtomicU64,
    /// How often it was asked for and not found.
    misses: AtomicU32,
    of: PhantomData<F>,
}

impl<F: Copy> Symbol<F> {
    /// # Safety
    /// `F` must be the type of a function pointer, with the signature of the function so called.
    const unsafe fn new(name: &'static CStr, library: &'static Library) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        Self {
            name,
            library,
            found: AtomicPtr::new(std::ptr::null_mut()),
            stand_in: AtomicPtr::new(std::ptr::null_mut()),
            stand_in_loads: AtomicU64::new(0),
            misses: AtomicU32::new(0),
            of: PhantomData,
        }
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

    /// A function of PyTorch's CUDA half, or of a library that it was linked with.
    ///
    /// # Safety
    /// `F` must be the function's type.
    pub(crate) const unsafe fn of_torch_cuda(name: &'static CStr) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::new(name, &TORCH_CUDA) }
    }

    /// A function of the CUDA runtime.
    ///
    /// # Safety
    /// `F` must be the function's type.
    pub(crate) const unsafe fn of_cuda(name: &'static CStr) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::new(name, &CUDA_RUNTIME) }
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
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<F> {
        let found = match self.found.load(Ordering::Acquire) {
            found if found.is_null() => self.look_again()?,
            found => found,
        };
        // SAFETY: a function pointer of type `F`, by the promise given to `new`.
        Some(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
    }

    #[cold]
    fn look_again(&self) -> Option<*mut c_void> {
        if self.library.stem.is_some() {
            return self.look_until_certain();
        }
        // Looking costs microseconds, and these may be asked for at every block while PyTorch is
        // not loaded yet, or never will be: so at the first, second, fourth, eighth … time only.
        let misses = self.misses.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if !misses.is_power_of_two() {
            return None;
        }
        let (found, _) = crate::writer::panic_boundary::keeping_errno(|| self.look_up())?;
        self.found.store(found, Ordering::Release);
        Some(found)
    }

    /// A function in front of which the guest stands.
    fn look_until_certain(&self) -> Option<*mut c_void> {
        // Before the search: what is loaded meanwhile makes for another one.
        let loads = loads();
        let stand_in = self.stand_in.load(Ordering::Acquire);
        if !stand_in.is_null() && self.stand_in_loads.load(Ordering::Acquire) == loads {
            return Some(stand_in);
        }
        let (found, is_certain) = crate::writer::panic_boundary::keeping_errno(|| self.look_up())?;
        if is_certain {
            self.found.store(found, Ordering::Release);
        } else {
            self.stand_in.store(found, Ordering::Release);
            self.stand_in_loads.store(loads, Ordering::Release);
        }
        Some(found)
    }

    /// The function, and whether PyTorch's calls would have reached this one.
    fn look_up(&self) -> Option<(*mut c_void, bool)> {
        let Library { user, names, stem } = self.library;
        let certain = self.next().or_else(|| self.within(user.as_ref()?));
        if let Some(found) = certain {
            return Some((found, true));
        }
        let named = || names.iter().find_map(|name| self.within(name));
        let renamed = || copies(stem.as_ref()?).iter().find_map(|path| self.within(path));
        Some((named().or_else(renamed)?, false))
    }

    /// The function in the global search order behind the guest.
    fn next(&self) -> Option<*mut c_void> {
        // SAFETY: the name is a C string; RTLD_NEXT starts after this library.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }

    /// The function in a library that is loaded, or in those that it needs.
    fn within(&self, library: &CStr) -> Option<*mut c_void> {
        // SAFETY: NOLOAD only finds what is loaded. The handle is kept on purpose, so that the
        // function stays valid.
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return None;
        }
        // SAFETY: the handle is open and the name is a C string.
        let found = unsafe { libc::dlsym(handle, self.name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
}

/// How many libraries this process has ever loaded: tens of nanoseconds.
fn loads() -> u64 {
    unsafe extern "C" fn first(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        loads: *mut c_void,
    ) -> c_int {
        // SAFETY: the linker gives a valid description, and `loads` is the counter below.
        unsafe { *loads.cast::<u64>() = (*info).dlpi_adds };
        1
    }
    let mut loads = 0u64;
    // SAFETY: the callback gets this very counter, only during the call.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut loads).cast()) };
    loads
}

/// Paths of the loaded libraries whose file names begin like this.
fn copies(stem: &[u8]) -> Vec<CString> {
    struct Search<'a> {
        stem: &'a [u8],
        paths: Vec<CString>,
    }
    /// Only notes the paths: to open one here would take the linker's locks in the wrong order.
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: `copies` passes its own `Search`, and the linker a valid description.
        let (search, info) = unsafe { (&mut *search.cast::<Search<'_>>(), &*info) };
        if !info.dlpi_name.is_null() {
            // SAFETY: the linker's names are C strings.
            let path = unsafe { CStr::from_ptr(info.dlpi_name) };
            let file_name = path.to_bytes().rsplit(|&byte| byte == b'/').next();
            if file_name.is_some_and(|name| name.starts_with(search.stem)) {
                search.paths.push(path.to_owned());
            }
        }
        0
    }
    let mut search = Search { stem, paths: Vec::new() };
    // SAFETY: the callback gets this very pointer, only during the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.paths
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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    type Answer = unsafe extern "C" fn() -> c_int;

    /// Builds a library with one function that answers with a number.
    fn build(folder: &Path, file: &str, function: &str, answer: c_int, needs: Option<&str>) {
        let source = folder.join("answer.c");
        let code = format!("int {function}(void) {{ return {answer}; }}\n");
        std::fs::write(&source, code).expect("the source");
        let mut compiler = Command::new("gcc");
        compiler.current_dir(folder).args(["-shared", "-fPIC", "-o", file, "answer.c"]);
        compiler.arg(format!("-Wl,-soname,{file}"));
        compiler.args(["-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN", "-L."]);
        compiler.args(needs.map(|needed| format!("-l:{needed}")));
        assert!(compiler.status().expect("gcc runs").success(), "{file}");
    }

    /// Loads a library as CPython does.
    fn load(path: &Path) {
        let path = CString::new(path.to_str().expect("a plain path")).expect("no zeros");
        // SAFETY: a library without constructors.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{path:?}");
    }

    fn answer(symbol: &Symbol<Answer>) -> Option<c_int> {
        // SAFETY: the functions built here take nothing and return a number.
        symbol.get().map(|function| unsafe { function() })
    }

    #[test]
    fn a_renamed_runtime_is_found_until_pytorchs_is_there() {
        // SAFETY: the type of what `build` builds.
        static ASKED: Symbol<Answer> = unsafe { Symbol::of_cuda(c"memtape_test_of_cuda") };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let function = "memtape_test_of_cuda";
        let (others, pytorchs) = ("libcudart-d0da41ae.so.11.0", "libcudart-feedbeef.so.12");
        build(folder.path(), others, function, 11, None);
        build(folder.path(), pytorchs, function, 12, None);
        build(folder.path(), "libc10_cuda.so", "memtape_test_c10_cuda", 0, Some(pytorchs));
        assert_eq!(answer(&ASKED), None);
        load(&folder.path().join(others));
        assert_eq!(answer(&ASKED), Some(11), "not given up, and found under its new name");
        assert_eq!(answer(&ASKED), Some(11));
        assert!(ASKED.found.load(Ordering::Acquire).is_null(), "made do with");
        load(&folder.path().join("libc10_cuda.so"));
        assert_eq!(answer(&ASKED), Some(12), "the one that PyTorch came with");
        assert!(!ASKED.found.load(Ordering::Acquire).is_null(), "and kept");
    }

    #[test]
    fn a_runtime_that_all_can_see_comes_first() {
        // SAFETY: the type of `getpid`, which stands for a function of a preloaded runtime.
        static ASKED: Symbol<Answer> = unsafe { Symbol::of_nccl(c"getpid") };
        let folder = tempfile::tempdir().expect("a temporary folder");
        build(folder.path(), "libtorch_cuda.so", "getpid", -1, None);
        load(&folder.path().join("libtorch_cuda.so"));
        assert_eq!(answer(&ASKED), c_int::try_from(std::process::id()).ok());
    }

    #[test]
    fn pytorch_may_be_loaded_after_the_first_memory() {
        // SAFETY: the type of what `build` builds.
        static ASKED: Symbol<Answer> = unsafe { Symbol::of_torch(c"memtape_test_of_torch") };
        let folder = tempfile::tempdir().expect("a temporary folder");
        build(folder.path(), "libtorch_cpu.so", "memtape_test_of_torch", 3, None);
        for _ in 0..5 {
            assert_eq!(answer(&ASKED), None);
        }
        load(&folder.path().join("libtorch_cpu.so"));
        let answers: Vec<_> = (0..4).map(|_| answer(&ASKED)).collect();
        assert_eq!(answers, [None, None, Some(3), Some(3)], "the eighth time, and from then on");
    }
}
