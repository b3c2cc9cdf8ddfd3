//! The functions that stand in front of other libraries' functions, one file for each library.
//!
//! | file | in front of |
//! |---|---|
//! | [`c10`] | PyTorch's reports of blocks, out-of-memory and (opt-in) CPU tensors |
//! | [`cudart`] | the CUDA runtime's functions that take memory or give it back |
//! | [`nccl`] | NCCL's, which take memory around communicators |
//! | [`program`] | nothing: what a program may call itself |
//! | [`tracker`] | nothing: PyTorch's allocator calls it, where it was asked to |
//!
//! Each passes the call on, whatever happens inside. Their names are those of the real functions,
//! so that the dynamic linker binds PyTorch's calls to them. [`wake`] starts the recorder.

mod c10;

mod cudart;

mod nccl;

pub(crate) mod program;

pub(crate) mod tracker;

pub(crate) mod wake;

/// Declares functions that stand in front of functions of a library: each calls `$with`, with a
/// last argument that calls the library's own function with the arguments of the call. Where that
/// is not loaded, the result is `$missing`.
macro_rules! stand_in_front {
    (
        $library:expr, $missing:expr;
        $($(#[$doc:meta])*
        fn $name:ident($($argument:ident: $type:ty),*) => $with:ident($($given:expr),*);)*
    ) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the library's own function.
        #[allow(non_snake_case)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
            type Real = unsafe extern "C" fn($($type),*) -> std::ffi::c_int;
            const NAME: &[u8] = concat!(stringify!($name), "\0").as_bytes();
            // SAFETY: the bytes end with a zero, and the type is that of the library's header.
            static REAL: Symbol<Real> = unsafe {
                Symbol::new(&$library, std::ffi::CStr::from_bytes_with_nul_unchecked(NAME))
            };
            let Some(real) = REAL.get() else { return $missing };
            // SAFETY: the library's own function, given the arguments of the call.
            $with($($given,)* || unsafe { real($($argument),*) })
        }
    )*};
}

use stand_in_front;
