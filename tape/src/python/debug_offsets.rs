//! The table of offsets that CPython 3.13 and later carry for debuggers: `_PyRuntime` begins with
//! `_Py_DebugOffsets` (`Include/internal/pycore_debug_offsets.h`).
//!
//! It is checked before it is used: the cookie, the version (a minor version's table has a shape of
//! its own, and a pre-release's is not settled), that the build has a GIL, and that each offset
//! lies inside its struct, is aligned, and differs from its neighbours. Only the walk of the live
//! interpreter's frames then shows whether it is true.
//!
//! Builds without a GIL are refused: in them another thread may change a code object's
//! instructions (`co_tlbc`), reference counts are split, and nothing here was tested.

use super::frame_layout::{BYTES_DATA, FrameLayout, OBJECT_TYPE, Position, Text, VAR_SIZE};
use super::line_table::LineTable;

/// Words from the start of `_PyRuntime` that are read.
pub const DEBUG_WORDS: usize = 88;

/// `xdebugpy`, as the first word.
const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");

/// Largest struct, in bytes; a larger one makes the table implausible.
const STRUCT_BYTES_MAX: u64 = 1 << 16;

/// Release levels of `PY_VERSION_HEX` from which on a table's shape is settled: candidate, final.
const RELEASE_CANDIDATE: u64 = 0xc;

/// Why a table is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No cookie, or the cookie of another version: the interpreter's layout is unknown.
    Unknown,
    /// A build without a GIL.
    FreeThreaded,
    /// The table contradicts itself.
    Implausible,
}

/// Indices, in words of the table, of the structs' sizes and fields.
struct Indices {
    thread_size: usize,
    current_frame: usize,
    frame_size: usize,
    owner: usize,
    code_size: usize,
    first_instruction: usize,
    object_type: usize,
    bytes_size: usize,
    text_size: usize,
}

const fn indices(minor: u8) -> Option<Indices> {
    match minor {
        13 => Some(Indices {
            thread_size: 19,
            current_frame: 23,
            frame_size: 28,
            owner: 33,
            code_size: 34,
            first_instruction: 43,
            object_type: 45,
            bytes_size: 64,
            text_size: 67,
        }),
        14 => Some(Indices {
            thread_size: 22,
            current_frame: 26,
            frame_size: 31,
            owner: 36,
            code_size: 39,
            first_instruction: 48,
            object_type: 51,
            bytes_size: 74,
            text_size: 77,
        }),
        _ => None,
    }
}

/// The layout of an interpreter of this version, from its own table.
pub fn layout(words: &[u64; DEBUG_WORDS], minor: u8) -> Result<FrameLayout, Refusal> {
    let [cookie, version, free_threaded, ..] = *words;
    let is_settled = version >> 4 & 0xf >= RELEASE_CANDIDATE;
    if cookie != COOKIE || version >> 16 != 0x0300 | u64::from(minor) || !is_settled {
        return Err(Refusal::Unknown);
    }
    let indices = indices(minor).ok_or(Refusal::Unknown)?;
    if free_threaded != 0 {
        return Err(Refusal::FreeThreaded);
    }
    read(words, &indices).ok_or(Refusal::Implausible)
}

fn read(words: &[u64; DEBUG_WORDS], indices: &Indices) -> Option<FrameLayout> {
    let thread = Struct::at(words, indices.thread_size)?;
    let frame = Struct::at(words, indices.frame_size)?;
    let code = Struct::at(words, indices.code_size)?;
    let bytes = Struct::at(words, indices.bytes_size)?;
    let text = Struct::at(words, indices.text_size)?;
    let object_type = *words.get(indices.object_type)?;
    let (bytes_length, bytes_data) = (bytes.field(1, 8)?, bytes.field(2, 1)?);
    let is_as_before = object_type == OBJECT_TYPE as u64
        && bytes_length == VAR_SIZE
        && bytes_data == BYTES_DATA
        && text.size == Text::PLAIN.compact_size + size_of::<usize>();
    let frame_fields = [frame.field(1, 8)?, frame.field(2, 8)?, frame.field(3, 8)?];
    let code_fields = [code.field(1, 8)?, code.field(3, 8)?, code.field(4, 8)?];
    if !is_as_before || !differ(frame_fields) || !differ(code_fields) {
        return None;
    }
    let [frame_previous, frame_code, frame_instruction] = frame_fields;
    let [code_filename, code_name, code_linetable] = code_fields;
    Some(FrameLayout {
        thread_frame: thread.field(indices.current_frame - indices.thread_size, 8)?,
        cframe_current: None,
        frame_code,
        frame_previous,
        frame_instruction,
        frame_owner: Some(frame.field(indices.owner - indices.frame_size, 1)?),
        position: Position::Pointer(code.field(indices.first_instruction - indices.code_size, 2)?),
        code_filename,
        code_name,
        code_linetable,
        code_first_line: code.field(5, 4)?,
        lines: LineTable::Locations,
        text: Text {
            state: text.field(1, 4)?,
            length: text.field(2, 8)?,
            ascii_size: text.inside(3, 8)?,
            compact_size: Text::PLAIN.compact_size,
        },
    })
}

/// The part of one struct in the table: its size, then the offsets of its fields.
struct Struct<'a> {
    size: usize,
    part: &'a [u64],
}

impl<'a> Struct<'a> {
    fn at(words: &'a [u64], place: usize) -> Option<Self> {
        let part = words.get(place..)?;
        let size = *part.first()?;
        (16..=STRUCT_BYTES_MAX).contains(&size).then_some(Self { size: size as usize, part })
    }

    /// The offset of a field of at least one pointer's alignment, which lies inside the struct.
    fn field(&self, index: usize, align: usize) -> Option<usize> {
        let offset = self.inside(index, align)?;
        (offset + align <= self.size).then_some(offset)
    }

    fn inside(&self, index: usize, align: usize) -> Option<usize> {
        let offset = usize::try_from(*self.part.get(index)?).ok()?;
        (offset <= self.size && offset.is_multiple_of(align)).then_some(offset)
    }
}

fn differ([a, b, c]: [usize; 3]) -> bool {
    a != b && b != c && a != c
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The words of CPython 3.14.10's table that are read.
    fn table() -> [u64; DEBUG_WORDS] {
        let mut words = [0; DEBUG_WORDS];
        let mut put = |place: usize, values: &[u64]| {
            for (word, value) in words.iter_mut().skip(place).zip(values) {
                *word = *value;
            }
        };
        put(0, &[COOKIE, 0x030e_0af0, 0]);
        put(22, &[832, 0, 8, 16, 72]);
        put(31, &[88, 8, 0, 56, 80, 74]);
        put(39, &[216, 112, 120, 128, 136, 68, 52, 96, 104, 208]);
        put(50, &[16, 8]);
        put(74, &[40, 16, 32]);
        put(77, &[64, 32, 16, 40]);
        words
    }

    fn changed(place: usize, value: u64) -> Result<FrameLayout, Refusal> {
        let mut words = table();
        words[place] = value;
        layout(&words, 14)
    }

    #[test]
    fn a_valid_table_is_read() {
        let expected = FrameLayout {
            thread_frame: 72,
            cframe_current: None,
            frame_code: 0,
            frame_previous: 8,
            frame_instruction: 56,
            frame_owner: Some(74),
            position: Position::Pointer(208),
            code_filename: 112,
            code_name: 128,
            code_linetable: 136,
            code_first_line: 68,
            lines: LineTable::Locations,
            text: Text::PLAIN,
        };
        assert_eq!(layout(&table(), 14), Ok(expected));
    }

    #[test]
    fn an_unknown_offset_table_is_refused() {
        assert_eq!(changed(0, COOKIE ^ 1), Err(Refusal::Unknown));
        assert_eq!(changed(1, 0x030d_0af0), Err(Refusal::Unknown), "another version");
        assert_eq!(changed(1, 0x030e_00a7), Err(Refusal::Unknown), "an alpha");
        assert_eq!(layout(&table(), 15), Err(Refusal::Unknown));
        assert_eq!(changed(2, 1), Err(Refusal::FreeThreaded));
    }

    #[test]
    fn offsets_outside_their_struct_are_refused() {
        for (place, value) in
            [(26, 832), (26, 73), (32, 88), (32, 0), (36, 88), (42, u64::MAX), (44, 215), (51, 0)]
        {
            assert_eq!(changed(place, value), Err(Refusal::Implausible), "{place} {value}");
        }
        assert_eq!(changed(31, 0), Err(Refusal::Implausible), "no size");
    }

    proptest! {
        #[test]
        fn any_words_give_an_answer(place in 3usize..DEBUG_WORDS, value: u64) {
            if let Ok(layout) = changed(place, value) {
                prop_assert!(layout.thread_frame <= 1 << 16 && layout.code_linetable <= 1 << 16);
            }
        }
    }
}
