//! Whether this process's interpreter can be read: decided before the first stack is.
//!
//! The version chooses the layout, and the interpreter's own table where it has one. Then the
//! calling thread's frames are walked through reads that cannot crash, and what is found must be
//! what the layout says: code objects by their type, names and line tables by theirs, instructions
//! inside their code. A wrong offset ends here, as a line on the tape, and not in a crash.

use std::ffi::{CStr, c_char, c_void};

use memtape_core::python::debug_offsets::{self, DEBUG_WORDS, Refusal};
use memtape_core::python::frames::{
    CODE_TAG, FrameLayout, OBJECT_TYPE, OWNER_SHIM, Position, VAR_SIZE, layout,
};
use memtape_core::tape::layout::Stacks;

use crate::host::symbols;
use crate::stacks::python_frames::{LINE_TABLE_BYTES_MAX, LINKS_MAX};
use crate::stacks::python_memory::{Address, Careful};
use crate::writer::state;

/// Frames whose code objects are looked into; a wrong layout does not survive the first.
const LOOKED_INTO_MAX: usize = 16;

/// Bytes of code beyond which an instruction's place is taken for nonsense.
const CODE_BYTES_MAX: usize = 1 << 26;

/// The types that objects are compared with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Types {
    pub(crate) code: usize,
    pub(crate) text: usize,
    bytes: usize,
}

/// An interpreter that could be read, if it is what it seems to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) layout: FrameLayout,
    pub(crate) types: Types,
    pub(crate) thread_state: *mut c_void,
}

// SAFETY: the pointer is a function's, which any thread may call.
unsafe impl Send for Candidate {}
// SAFETY: as above.
unsafe impl Sync for Candidate {}

/// What a walk has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Every frame is what it should be.
    Passed,
    /// Something is not.
    Failed,
    /// The calling thread has no frames.
    NoFrames,
    /// No descriptors could be had for the reads.
    NotNow,
}

/// The interpreter of this process and its version (`major << 8 | minor`, 0 without one), or why
/// it is not read.
pub(crate) fn find() -> (Result<Candidate, Stacks>, u32) {
    type Version = unsafe extern "C" fn() -> *const c_char;
    if state::switch("MEMTAPE_STACKS") == Some(false) {
        return (Err(Stacks::Off), 0);
    }
    let get_version = symbols::global(c"Py_GetVersion");
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
    (candidate(major, minor), u32::from(major) << 8 | u32::from(minor))
}

fn candidate(major: u8, minor: u8) -> Result<Candidate, Stacks> {
    let address = |name: &CStr| match symbols::global(name) {
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
    Ok(Candidate { layout, types, thread_state })
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

/// Walks the frames of the thread whose state this is.
pub(crate) fn walk(candidate: &Candidate, thread: Address, careful: &Careful) -> Verdict {
    if !thread.is_plausible() {
        return Verdict::NoFrames;
    }
    walk_all(candidate, thread, careful).unwrap_or(Verdict::Failed)
}

/// `None` where a read failed.
fn walk_all(candidate: &Candidate, thread: Address, careful: &Careful) -> Option<Verdict> {
    let layout = &candidate.layout;
    let mut frame = careful.pointer(thread.0 + layout.thread_frame)?;
    if let Some(offset) = layout.cframe_current
        && frame.0 != 0
    {
        frame = careful.pointer(frame.0 + offset)?;
    }
    let mut looked_into = 0;
    for _ in 0..LINKS_MAX {
        if frame.0 == 0 {
            break;
        }
        if !frame.is_plausible() {
            return Some(Verdict::Failed);
        }
        let owner = layout.frame_owner.map_or(Some(0), |at| careful.u8(frame.0 + at))?;
        if owner < OWNER_SHIM && looked_into < LOOKED_INTO_MAX {
            if !is_a_frame(candidate, frame, careful)? {
                return Some(Verdict::Failed);
            }
            looked_into += 1;
        }
        frame = careful.pointer(frame.0 + layout.frame_previous)?;
    }
    Some(if looked_into == 0 { Verdict::NoFrames } else { Verdict::Passed })
}

fn is_a_frame(candidate: &Candidate, frame: Address, careful: &Careful) -> Option<bool> {
    let Candidate { layout, types, .. } = candidate;
    let code = careful.pointer(frame.0 + layout.frame_code)?.without(CODE_TAG);
    let is = |object: Address, expected: usize| -> Option<bool> {
        Some(object.is_plausible() && careful.pointer(object.0 + OBJECT_TYPE)?.0 == expected)
    };
    if !is(code, types.code)? {
        return Some(false);
    }
    for place in [layout.code_filename, layout.code_name] {
        let object = careful.pointer(code.0 + place)?;
        if !is(object, types.text)? {
            return Some(false);
        }
        let length = careful.pointer(object.0 + layout.text.length)?.0;
        let Some((data, width)) = layout.text.data(careful.u32(object.0 + layout.text.state)?)
        else {
            return Some(false);
        };
        // The terminating zero is where it should be.
        let end = length.checked_mul(width).and_then(|bytes| (object.0 + data).checked_add(bytes));
        if careful.u8(end?)? != 0 {
            return Some(false);
        }
    }
    let table = careful.pointer(code.0 + layout.code_linetable)?;
    let has_table =
        is(table, types.bytes)? && careful.pointer(table.0 + VAR_SIZE)?.0 <= LINE_TABLE_BYTES_MAX;
    let first_line = careful.u32(code.0 + layout.code_first_line)? as i32;
    let instruction = match layout.position {
        Position::Pointer(_) => careful.pointer(frame.0 + layout.frame_instruction)?.0,
        Position::Number(_) => careful.u32(frame.0 + layout.frame_instruction)? as usize,
    };
    let at = layout.instruction_bytes(code.0, instruction).unwrap_or(0);
    Some(has_table && first_line >= 0 && at < CODE_BYTES_MAX)
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

    #[test]
    fn a_thread_of_nonsense_fails_and_does_not_crash() {
        let careful = Careful::new().expect("a pipe");
        let types = Types { code: 1, text: 2, bytes: 3 };
        for minor in 9..=12 {
            let layout = layout(3, minor).expect("known");
            let thread_state = std::ptr::null_mut();
            let candidate = Candidate { layout, types, thread_state };
            let walk = |thread: &[usize; 64]| {
                walk(&candidate, Address(thread.as_ptr() as usize), &careful)
            };
            assert_eq!(walk(&[0; 64]), Verdict::NoFrames, "3.{minor}");
            assert_eq!(walk(&[0xdead_0000_dead_0000; 64]), Verdict::Failed, "3.{minor}");
            let zeros = [0usize; 256];
            assert_eq!(
                walk(&[zeros.as_ptr() as usize; 64]),
                match minor {
                    11 | 12 => Verdict::NoFrames, // the frame's address is a zero among them
                    _ => Verdict::Failed,
                }
            );
        }
        assert_eq!(
            super::walk(
                &Candidate {
                    layout: layout(3, 11).expect("known"),
                    types,
                    thread_state: std::ptr::null_mut()
                },
                Address(0),
                &careful
            ),
            Verdict::NoFrames
        );
    }
}
