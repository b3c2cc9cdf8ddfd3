//! Byte offsets of the fields a frame walk needs, by CPython version.
//!
//! Sources: `Include/cpython/pystate.h`, `Include/internal/pycore_frame.h` and
//! `Include/cpython/code.h` of each version. The version number is all that chooses a table. Before
//! anything inside a code object or a string is believed, the recorder compares its type; the walk
//! along the frames has no such check.

/// Where the fields lie. All offsets are in bytes from the start of their struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLayout {
    /// `PyThreadState.cframe`.
    pub thread_cframe: usize,
    /// `_PyCFrame.current_frame`.
    pub cframe_current: usize,
    /// `_PyInterpreterFrame.f_code`.
    pub frame_code: usize,
    /// `_PyInterpreterFrame.previous`.
    pub frame_previous: usize,
    /// `_PyInterpreterFrame.prev_instr`: the instruction that runs now.
    pub frame_instruction: usize,
    /// `_PyInterpreterFrame.owner`, one byte.
    pub frame_owner: usize,
    /// Owner value of a frame that stands for C code and has no Python line.
    pub owner_c_stack: Option<u8>,
    /// `PyCodeObject.co_filename`.
    pub code_filename: usize,
    /// `PyCodeObject.co_qualname`.
    pub code_qualname: usize,
    /// `PyCodeObject.co_linetable`.
    pub code_linetable: usize,
    /// `PyCodeObject.co_firstlineno`, a 32-bit integer.
    pub code_first_line: usize,
    /// `PyCodeObject.co_code_adaptive`: the first instruction.
    pub code_instructions: usize,
}

/// The layout for a version, or `None` when it is not known.
pub const fn layout(major: u8, minor: u8) -> Option<FrameLayout> {
    match (major, minor) {
        (3, 11) => Some(FrameLayout {
            thread_cframe: 56,
            cframe_current: 8,
            frame_code: 32,
            frame_previous: 48,
            frame_instruction: 56,
            frame_owner: 69,
            owner_c_stack: None,
            code_filename: 112,
            code_qualname: 128,
            code_linetable: 136,
            code_first_line: 72,
            code_instructions: 184,
        }),
        (3, 12) => Some(FrameLayout {
            thread_cframe: 56,
            cframe_current: 0,
            frame_code: 0,
            frame_previous: 8,
            frame_instruction: 56,
            frame_owner: 70,
            owner_c_stack: Some(3),
            code_filename: 112,
            code_qualname: 128,
            code_linetable: 136,
            code_first_line: 68,
            code_instructions: 192,
        }),
        _ => None,
    }
}

/// Bytes from a `bytes` object's start to its data.
pub const BYTES_DATA: usize = 32;

/// Bytes from a variable-size object's start to its size.
pub const VAR_SIZE: usize = 16;

/// Where a string's length, state and characters lie: `PyASCIIObject`, `PyCompactUnicodeObject`.
pub mod text {
    /// `length`, in characters.
    pub const LENGTH: usize = 16;
    /// `state`, bit field of 32 bits.
    pub const STATE: usize = 32;

    /// Offset of the first character and bytes of each, or `None` when the characters are not
    /// inside the object. CPython 3.12 dropped `wstr`, which moved them forward.
    pub const fn data(state: u32, before_3_12: bool) -> Option<(usize, usize)> {
        let (kind, compact, ascii) = (state >> 2 & 0b111, state >> 5 & 1, state >> 6 & 1);
        let offset = match (ascii == 1, before_3_12) {
            (true, false) => 40,
            (true, true) => 48,
            (false, false) => 56,
            (false, true) => 72,
        };
        match kind {
            1 | 2 | 4 if compact == 1 => Some((offset, kind as usize)),
            _ => None,
        }
    }
}
