//! The interpreter of this process: its version, its frame layout, and the types of its objects.
//!
//! The version chooses the layout, and from 3.13 on the interpreter's own table gives it. Whether
//! the layout is true is checked elsewhere (`layout_check.rs`).

use std::ffi::{CStr, c_char, c_void};

use memtape_tape::layout::Stacks;
use memtape_tape::python::debug_offsets::{self, DEBUG_WORDS, Refusal};
use memtape_tape::python::frame_layout::{FrameLayout, Position, layout};

use crate::host::environment;
use crate::host::libraries::global_symbol;
use crate::stacks::python_memory::{Address, Careful};
use crate::stacks::thread_slot::ThreadSlot;

/// Location of a thread's pointer to its state, once found.
static THREAD_STATE: ThreadSlot = ThreadSlot::new();

type ThreadState = unsafe extern "C" fn() -> *mut c_void;

/// Types that objects are compared with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Types {
    pub(crate) code: usize,
    pub(crate) text: usize,
    pub(crate) bytes: usize,
}

/// A Python interpreter, before its layout is checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interpreter {
    pub(crate) layout: FrameLayout,
    pub(crate) types: Types,
    /// `PyGILState_GetThisThreadState`, which needs no GIL.
    thread_state: ThreadState,
}

impl Interpreter {
    /// The interpreter of this process and its version (`major << 8 | minor`, 0 without one), or
    /// why its frames are not read.
    pub(crate) fn find() -> (Result<Self, Stacks>, u32) {
        type Version = unsafe extern "C" fn() -> *const c_char;
        if environment::switch("MEMTAPE_STACKS") == Some(false) {
            return (Err(Stacks::Off), 0);
        }
        let get_version = global_symbol(c"Py_GetVersion");
        if get_version.is_null() {
            return (Err(Stacks::NoInterpreter), 0);
        }
        // SAFETY: this function returns a static string and needs neither GIL nor initialization.
        let text = unsafe {
            let get_version = std::mem::transmute::<*mut c_void, Version>(get_version);
            CStr::from_ptr(get_version())
        };
        let Some((major, minor)) = parse_version(text.to_bytes()) else {
            return (Err(Stacks::UnknownPython), 0);
        };
        (Self::of_version(major, minor), u32::from(major) << 8 | u32::from(minor))
    }

    fn of_version(major: u8, minor: u8) -> Result<Self, Stacks> {
        let address = |name: &CStr| match global_symbol(name) {
            found if found.is_null() => Err(Stacks::UnknownPython),
            found => Ok(found),
        };
        let layout = match layout(major, minor) {
            Some(layout) => layout,
            None => own_layout(address(c"_PyRuntime")? as usize, minor)?,
        };
        let types = Types {
            code: address(c"PyCode_Type")? as usize,
            text: address(c"PyUnicode_Type")? as usize,
            bytes: address(c"PyBytes_Type")? as usize,
        };
        let thread_state = address(c"PyGILState_GetThisThreadState")?;
        // SAFETY: the function's type, as in CPython's headers.
        let thread_state = unsafe { std::mem::transmute::<*mut c_void, ThreadState>(thread_state) };
        Ok(Self { layout, types, thread_state })
    }

    /// The calling thread's state; null when it has none.
    #[inline(always)]
    pub(crate) fn thread(&self) -> Address {
        Address(THREAD_STATE.get().unwrap_or_else(|| self.ask_thread() as usize))
    }

    #[cold]
    fn ask_thread(&self) -> *mut c_void {
        // SAFETY: the function reads thread-local storage and needs no GIL.
        unsafe { (self.thread_state)() }
    }

    /// Finds out where threads have their state, so that it is read without a call.
    pub(crate) fn find_thread_slot(&self) {
        THREAD_STATE.find(|| self.ask_thread());
    }

    /// The present instruction of a frame, read by `pointer` and `number` at an offset: a pointer,
    /// or a number of instructions.
    #[inline(always)]
    pub(crate) fn instruction<R>(
        &self,
        pointer: impl FnOnce(usize) -> R,
        number: impl FnOnce(usize) -> R,
    ) -> R {
        match self.layout.position {
            Position::Pointer(_) => pointer(self.layout.frame_instruction),
            Position::Number(_) => number(self.layout.frame_instruction),
        }
    }

    #[cfg(test)]
    pub(crate) fn of_layout(layout: FrameLayout) -> Self {
        unsafe extern "C" fn none() -> *mut c_void {
            std::ptr::null_mut()
        }
        Self { layout, types: Types { code: 1, text: 2, bytes: 3 }, thread_state: none }
    }
}

/// The layout that the interpreter itself gives.
fn own_layout(runtime: usize, minor: u8) -> Result<FrameLayout, Stacks> {
    let bytes = Careful::new().and_then(|careful| careful.read::<{ DEBUG_WORDS * 8 }>(runtime));
    let bytes = bytes.ok_or(Stacks::UnknownPython)?;
    let mut words = [0; DEBUG_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    debug_offsets::layout(&words, minor).map_err(|refusal| match refusal {
        Refusal::Unknown => Stacks::UnknownPython,
        Refusal::FreeThreaded => Stacks::FreeThreaded,
        Refusal::Implausible => Stacks::SelfTestFailed,
    })
}

fn parse_version(text: &[u8]) -> Option<(u8, u8)> {
    let text = std::str::from_utf8(text).ok()?;
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(parse_version(b"3.11.7 (main, Dec  4 2023) [GCC]"), Some((3, 11)));
        assert_eq!(parse_version(b"3.12.3+ (heads/x)"), Some((3, 12)));
        assert_eq!(parse_version(b"Python"), None);
    }
}
