//! The frame layout: byte offsets of the fields that a walk of Python frames needs, by version.
//!
//! Sources: `Include/cpython/{pystate,code,frameobject}.h` and `Include/internal/pycore_frame.h` of
//! each version. Until 3.12 the version number chooses a table; from 3.13 on the interpreter brings
//! one itself (`debug_offsets.rs`). Neither is trusted at once: the recorder first walks the live
//! interpreter's frames with it, through reads that cannot crash, and checks what it finds.
//!
//! ```text
//! 3.9, 3.10    thread ─frame─▶ PyFrameObject ─f_back─▶ …             f_lasti, a number
//! 3.11, 3.12   thread ─cframe─▶ ─current_frame─▶ _PyInterpreterFrame ─previous─▶ …   a pointer
//! 3.13, 3.14   thread ─current_frame─▶ _PyInterpreterFrame ─previous─▶ …             a pointer
//! ```

use super::line_table::LineTable;

/// Offsets of the fields, in bytes from the start of their struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLayout {
    /// `PyThreadState.current_frame`, or what leads to it: `.frame` (3.10), `.cframe` (3.11).
    pub thread_frame: usize,
    /// `_PyCFrame.current_frame`, where the thread state has only a pointer to that.
    pub cframe_current: Option<usize>,
    /// The frame's code object. Its lowest bits may be a tag (3.14).
    pub frame_code: usize,
    /// The frame of the caller.
    pub frame_previous: usize,
    /// The frame's position: see [`Position`].
    pub frame_instruction: usize,
    /// `_PyInterpreterFrame.owner`, one byte, where there is one.
    pub frame_owner: Option<usize>,
    /// Form of the position.
    pub position: Position,
    /// `PyCodeObject.co_filename`.
    pub code_filename: usize,
    /// `PyCodeObject.co_qualname`, or `co_name` where there is no other (3.10).
    pub code_name: usize,
    /// `PyCodeObject.co_linetable`, or `co_lnotab`.
    pub code_linetable: usize,
    /// `PyCodeObject.co_firstlineno`, a 32-bit integer.
    pub code_first_line: usize,
    /// Form of the line table.
    pub lines: LineTable,
    /// Layout of strings.
    pub text: Text,
}

/// Form of a frame's present instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// A pointer into the code object, whose instructions begin at this offset.
    Pointer(usize),
    /// A 32-bit number of steps of this many bytes; -1 before the first instruction.
    Number(u32),
}

/// Owners from this value on stand for C code between two Python frames, without a line
/// (`FRAME_OWNED_BY_CSTACK` of 3.12, `FRAME_OWNED_BY_INTERPRETER` of 3.14).
pub const OWNER_SHIM: u8 = 3;

/// Bits of a code object's address in a frame that are not part of it (`_PyStackRef` of 3.14).
/// Objects are aligned to more than that in every version.
pub const CODE_TAG: usize = 0b111;

/// `PyObject.ob_type`.
pub const OBJECT_TYPE: usize = 8;

/// Bytes from a `bytes` object's start to its data.
pub const BYTES_DATA: usize = 32;

/// Bytes from a variable-size object's start to its size.
pub const VAR_SIZE: usize = 16;

/// `PyTypeObject.tp_dealloc`, the same in every version.
pub const TYPE_DEALLOC: usize = 48;

/// The layout for a version before 3.13, or `None` when it is not known.
pub const fn layout(major: u8, minor: u8) -> Option<FrameLayout> {
    match (major, minor) {
        (3, 9) => Some(before_3_11(104, Position::Number(1), LineTable::Increments)),
        (3, 10) => Some(before_3_11(96, Position::Number(2), LineTable::Ranges)),
        (3, 11) => Some(FrameLayout {
            thread_frame: 56,
            cframe_current: Some(8),
            frame_code: 32,
            frame_previous: 48,
            frame_instruction: 56,
            frame_owner: None, // no shims: every frame of the chain is Python's
            position: Position::Pointer(184),
            code_filename: 112,
            code_name: 128,
            code_linetable: 136,
            code_first_line: 72,
            lines: LineTable::Locations,
            text: Text::WITH_WIDE_CACHE,
        }),
        (3, 12) => Some(FrameLayout {
            thread_frame: 56,
            cframe_current: Some(0),
            frame_code: 0,
            frame_previous: 8,
            frame_instruction: 56,
            frame_owner: Some(70),
            position: Position::Pointer(192),
            code_filename: 112,
            code_name: 128,
            code_linetable: 136,
            code_first_line: 68,
            lines: LineTable::Locations,
            text: Text::PLAIN,
        }),
        _ => None,
    }
}

const fn before_3_11(instruction: usize, position: Position, lines: LineTable) -> FrameLayout {
    FrameLayout {
        thread_frame: 24,
        cframe_current: None,
        frame_code: 32,
        frame_previous: 24,
        frame_instruction: instruction,
        frame_owner: None,
        position,
        code_filename: 104,
        code_name: 112,
        code_linetable: 120,
        code_first_line: 40,
        lines,
        text: Text::WITH_WIDE_CACHE,
    }
}

impl FrameLayout {
    /// Bytes from a code object's first instruction to the one its frame is at; `None` when the
    /// frame has not begun, which Python itself takes for the function's first line.
    pub const fn instruction_bytes(&self, code: usize, instruction: usize) -> Option<usize> {
        match self.position {
            Position::Pointer(start) => instruction.checked_sub(code.wrapping_add(start)),
            Position::Number(bytes) => match instruction as u32 as i32 {
                number @ 0.. => Some(number as usize * bytes as usize),
                _ => None,
            },
        }
    }
}

/// Offsets of a string's length, state and characters: `PyASCIIObject`, `PyCompactUnicodeObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    /// `length`, in characters.
    pub length: usize,
    /// `state`, a bit field of 32 bits.
    pub state: usize,
    /// Size of the struct of a string of ASCII, after which its characters lie.
    pub ascii_size: usize,
    /// Size of the struct of any other compact string.
    pub compact_size: usize,
}

impl Text {
    /// Until 3.11 a string could carry a second form of itself (`wstr`).
    const WITH_WIDE_CACHE: Self = Self { length: 16, state: 32, ascii_size: 48, compact_size: 72 };
    /// Layout from 3.12 on.
    pub(super) const PLAIN: Self = Self { length: 16, state: 32, ascii_size: 40, compact_size: 56 };

    /// Offset of the first character and bytes of each, or `None` when the characters are not
    /// inside the object.
    pub const fn data(&self, state: u32) -> Option<(usize, usize)> {
        let (kind, compact, ascii) = (state >> 2 & 0b111, state >> 5 & 1, state >> 6 & 1);
        let offset = if ascii == 1 { self.ascii_size } else { self.compact_size };
        match kind {
            1 | 2 | 4 if compact == 1 => Some((offset, kind as usize)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_bytes_from_the_first_instruction() {
        let at = |minor, code, instruction| {
            layout(3, minor).and_then(|layout| layout.instruction_bytes(code, instruction))
        };
        assert_eq!(at(9, 0x1000, 6), Some(6));
        assert_eq!(at(10, 0x1000, 6), Some(12));
        assert_eq!(at(9, 0x1000, 0xffff_ffff), None, "f_lasti is -1 before the first instruction");
        assert_eq!(at(11, 0x1000, 0x1000 + 184 + 8), Some(8));
        assert_eq!(at(12, 0x1000, 0x1000 + 192 - 2), None, "prev_instr before the first one");
    }

    #[test]
    fn the_width_of_a_string_is_found() {
        let ascii = 1 << 2 | 1 << 5 | 1 << 6;
        assert_eq!(Text::PLAIN.data(ascii), Some((40, 1)));
        assert_eq!(Text::WITH_WIDE_CACHE.data(ascii), Some((48, 1)));
        assert_eq!(Text::PLAIN.data(2 << 2 | 1 << 5), Some((56, 2)));
        assert_eq!(Text::PLAIN.data(1 << 2), None, "characters elsewhere");
        assert_eq!(Text::PLAIN.data(3 << 2 | 1 << 5), None, "no such width");
    }
}
