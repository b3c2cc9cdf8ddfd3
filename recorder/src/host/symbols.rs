//! Finding the functions that hooks stand in front of, and other functions of PyTorch's libraries.
//!
//! The dynamic linker binds a call to the first such function in the global search order, and only
//! then to one that the caller's own library came with. The search here does the same:
//!
//! 1. `RTLD_NEXT`, the global order behind the recorder: what every call would have reached, such
//!    as a runtime that is preloaded behind the recorder, or what `import torch` loads for all (the
//!    libraries that its `libtorch_global_deps.so` needs).
//! 2. The library that PyTorch's own library came with, whatever its name: CPython loads PyTorch
//!    with RTLD_LOCAL. Asking for this first would pass by a preloaded runtime.
//! 3. The library by its usual names, if it is loaded.
//! 4. Any loaded file whose name begins with the library's, such as a wheel's own copy
//!    `libcudart-d0da41ae.so.11.0`.
//!
//! A runtime found by 3 or 4 may be another package's, so it is used only until PyTorch's is
//! loaded. The search for a function that calls are passed on to never ends: its caller has a
//! library that holds it. The caller's library is not looked at: of two runtimes in one process
//! that are both not global, PyTorch's gets the calls for either.

use std::ffi::{CStr, CString, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::host::errno::keeping_errno;
use crate::host::libraries;

/// A library, with the names that identify it.
pub(crate) struct Library {
    /// PyTorch's library that needs it.
    user: Option<&'static CStr>,
    /// Names of the library, newest first.
    names: &'static [&'static CStr],
    /// Prefix of the names of all copies. Only for libraries that hooks stand in front of.
    stem: Option<&'static str>,
}

impl Library {
    /// CUDA's runtime.
    pub(crate) const CUDA_RUNTIME: Self = Self {
        user: Some(c"libc10_cuda.so"),
        names: &[c"libcudart.so.13", c"libcudart.so.12", c"libcudart.so.11.0", c"libcudart.so"],
        stem: Some("libcudart"),
    };
    /// NVIDIA's library of collectives.
    pub(crate) const NCCL: Self = Self {
        user: Some(c"libtorch_cuda.so"),
        names: &[c"libnccl.so.2", c"libnccl.so"],
        stem: Some("libnccl"),
    };
    /// PyTorch's core library. Its own calls go through the hooks, and it is never renamed.
    pub(crate) const C10: Self = Self::named(&[c"libc10.so"]);
    /// PyTorch's operators and its autograd engine.
    pub(crate) const TORCH: Self = Self::named(&[c"libtorch_cpu.so"]);
    /// PyTorch's CUDA half, and the libraries it was linked with.
    pub(crate) const TORCH_CUDA: Self = Self::named(&[c"libtorch_cuda.so"]);
    /// The CUDA driver.
    pub(crate) const DRIVER: Self = Self::named(&[c"libcuda.so.1"]);
    /// NVIDIA's profiling interface.
    pub(crate) const CUPTI: Self = Self::named(&[
        c"libcupti.so.13",
        c"libcupti.so.12",
        c"libcupti.so.11.8",
        c"libcupti.so.11.7",
    ]);

    const fn named(names: &'static [&'static CStr]) -> Self {
        Self { user: None, names, stem: None }
    }

    /// Paths of the loaded files whose names begin with the stem.
    fn copies(&self) -> Vec<CString> {
        let mut paths = Vec::new();
        let Some(stem) = self.stem else { return paths };
        libraries::find(|library| {
            let path = library.path();
            let file_name = path.to_bytes().rsplit(|&byte| byte == b'/').next();
            if file_name.is_some_and(|name| name.starts_with(stem.as_bytes())) {
                paths.push(path.to_owned());
            }
            None::<()>
        });
        paths
    }
}

/// A function of type `F`, resolved once and kept.
pub(crate) struct Symbol<F> {
    name: &'static CStr,
    library: &'static Library,
    found: AtomicPtr<c_void>,
    /// A function to use until a better one is loaded, and the number of libraries then loaded.
    stand_in: AtomicPtr<c_void>,
    stand_in_loads: AtomicU64,
    /// Number of searches without a result.
    misses: AtomicU32,
    of: PhantomData<F>,
}

impl<F: Copy> Symbol<F> {
    /// # Safety
    /// `F` must be the type of a function pointer, with the signature of the function so called.
    pub(crate) const unsafe fn new(library: &'static Library, name: &'static CStr) -> Self {
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
        let (found, _) = keeping_errno(|| self.look_up())?;
        self.found.store(found, Ordering::Release);
        Some(found)
    }

    /// Resolves a function that the recorder's function replaces.
    fn look_until_certain(&self) -> Option<*mut c_void> {
        // Before the search: what is loaded meanwhile makes for another one.
        let loads = libraries::find(|first| Some(first.loads())).unwrap_or(0);
        let stand_in = self.stand_in.load(Ordering::Acquire);
        if !stand_in.is_null() && self.stand_in_loads.load(Ordering::Acquire) == loads {
            return Some(stand_in);
        }
        let (found, is_certain) = keeping_errno(|| self.look_up())?;
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
        let Library { user, names, .. } = self.library;
        let certain = self.next().or_else(|| self.within(user.as_ref()?));
        if let Some(found) = certain {
            return Some((found, true));
        }
        let named = || names.iter().find_map(|name| self.within(name));
        let renamed = || self.library.copies().iter().find_map(|path| self.within(path));
        Some((named().or_else(renamed)?, false))
    }

    /// The function in the global search order behind the recorder.
    fn next(&self) -> Option<*mut c_void> {
        // SAFETY: the name is a C string; RTLD_NEXT starts after this library.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }

    /// The function in a loaded library, or in the libraries that it needs.
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

#[cfg(test)]
mod tests {
    use std::ffi::c_int;
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
        static ASKED: Symbol<Answer> =
            unsafe { Symbol::new(&Library::CUDA_RUNTIME, c"memtape_test_of_cuda") };
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
        static ASKED: Symbol<Answer> = unsafe { Symbol::new(&Library::NCCL, c"getpid") };
        let folder = tempfile::tempdir().expect("a temporary folder");
        build(folder.path(), "libtorch_cuda.so", "getpid", -1, None);
        load(&folder.path().join("libtorch_cuda.so"));
        assert_eq!(answer(&ASKED), c_int::try_from(std::process::id()).ok());
    }

    #[test]
    fn pytorch_may_be_loaded_after_the_first_memory() {
        // SAFETY: the type of what `build` builds.
        static ASKED: Symbol<Answer> =
            unsafe { Symbol::new(&Library::TORCH, c"memtape_test_of_torch") };
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
