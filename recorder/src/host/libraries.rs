//! The libraries that are loaded in this process, as the dynamic linker lists them.
//!
//! The list is read without `dlopen`, which would wait for a thread that is loading a library; the
//! caller may hold PyTorch's device mutex. A visitor must not open a library itself: that would
//! take the linker's locks in the wrong order.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;

/// A loaded library, or the program itself.
pub(crate) struct LoadedLibrary<'a>(&'a libc::dl_phdr_info);

/// A library's thread-local storage for the calling thread.
pub(crate) struct ThreadStorage {
    /// The linker's number of the library, from 1.
    pub(crate) module: usize,
    /// Start of the calling thread's block; null when the thread has none yet.
    pub(crate) block: *mut c_void,
}

impl<'a> LoadedLibrary<'a> {
    /// Path of the loaded file; empty for the program.
    pub(crate) fn path(&self) -> &'a CStr {
        if self.0.dlpi_name.is_null() {
            return c"";
        }
        // SAFETY: the linker's names are C strings.
        unsafe { CStr::from_ptr(self.0.dlpi_name) }
    }

    /// Difference between addresses in the process and in the file.
    pub(crate) fn bias(&self) -> usize {
        self.0.dlpi_addr as usize
    }

    /// The program headers of one kind (`PT_…`).
    pub(crate) fn headers(&self, kind: u32) -> impl Iterator<Item = &'a libc::Elf64_Phdr> {
        let all = if self.0.dlpi_phdr.is_null() {
            &[]
        } else {
            // SAFETY: the linker says how many headers there are.
            unsafe { std::slice::from_raw_parts(self.0.dlpi_phdr, usize::from(self.0.dlpi_phnum)) }
        };
        all.iter().filter(move |header| header.p_type == kind)
    }

    /// Addresses of a segment in this process.
    pub(crate) fn addresses(&self, header: &libc::Elf64_Phdr) -> Range<usize> {
        let start = self.bias().wrapping_add(header.p_vaddr as usize);
        start..start.saturating_add(header.p_memsz as usize)
    }

    /// The library's thread-local storage.
    pub(crate) fn thread_storage(&self) -> ThreadStorage {
        ThreadStorage { module: self.0.dlpi_tls_modid, block: self.0.dlpi_tls_data }
    }

    /// Number of libraries that this process has ever loaded.
    pub(crate) fn loads(&self) -> u64 {
        self.0.dlpi_adds
    }
}

/// The first value that `visit` gives for a loaded library.
pub(crate) fn find<R, V: FnMut(&LoadedLibrary<'_>) -> Option<R>>(visit: V) -> Option<R> {
    struct Search<V, R> {
        visit: V,
        found: Option<R>,
    }
    unsafe extern "C" fn step<R, V: FnMut(&LoadedLibrary<'_>) -> Option<R>>(
        info: *mut libc::dl_phdr_info,
        size: usize,
        search: *mut c_void,
    ) -> c_int {
        if size < size_of::<libc::dl_phdr_info>() {
            return 1; // the linker's description is too short
        }
        // SAFETY: `find` passes its own search, and the linker a valid description.
        let (search, info) = unsafe { (&mut *search.cast::<Search<V, R>>(), &*info) };
        search.found = (search.visit)(&LoadedLibrary(info));
        c_int::from(search.found.is_some())
    }
    let mut search = Search { visit, found: None };
    // SAFETY: the callback gets this very search, only during the call.
    unsafe { libc::dl_iterate_phdr(Some(step::<R, V>), (&raw mut search).cast()) };
    search.found
}

/// A symbol of the process as a whole, such as the interpreter's; null when there is none.
pub(crate) fn global_symbol(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Load address of the library or program that contains an address.
pub(crate) fn base_of(address: *const c_void) -> Option<usize> {
    // SAFETY: all-zero is a valid `Dl_info`.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is only looked up, and the result has room.
    let is_known = unsafe { libc::dladdr(address, &mut found) } != 0;
    is_known.then_some(found.dli_fbase as usize)
}
