//! The line of an instruction, from a code object's line table.
//!
//! Three ways to write it, by version:
//!
//! - *Increments* (3.9, `co_lnotab`): pairs of bytes, the increments of the code's offset and of
//!   the line (signed). Source: `Objects/lnotab_notes.txt`.
//! - *Ranges* (3.10, `co_linetable`): pairs too, but each says how long its range of code is and
//!   how its line differs from the one before; -128 means that it has no line. Source: PEP 626.
//! - *Locations* (3.11 and later): entries of several bytes. The first byte of each has its high
//!   bit set and holds a form (four bits) and the number of instructions it covers less one (three
//!   bits). The form says how the line changes: not at all, by 0-2, or by a signed number in base
//!   64 with six bits a byte. Source: `Objects/locations.md`.

/// Format of a code object's line table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineTable {
    /// `co_lnotab` of 3.9.
    Increments,
    /// `co_linetable` of 3.10.
    Ranges,
    /// `co_linetable` of 3.11 and later.
    Locations,
}

/// Entries read before giving up: no code object is longer.
const ENTRIES_MAX: usize = 1 << 20;

/// Bytes of one instruction, caches counted as instructions.
const INSTRUCTION_BYTES: usize = 2;

/// Line delta of a range without a line.
const NO_LINE: i8 = -128;

impl LineTable {
    /// The line at this many bytes from the first instruction, 0 when there is none.
    pub fn line(self, table: &[u8], first_line: u32, code_bytes: usize) -> u32 {
        match self {
            Self::Increments => increments(table, first_line, code_bytes),
            Self::Ranges => ranges(table, first_line, code_bytes),
            Self::Locations => locations(table, first_line, code_bytes / INSTRUCTION_BYTES),
        }
    }
}

fn increments(table: &[u8], first_line: u32, code_bytes: usize) -> u32 {
    let (mut line, mut begin) = (i64::from(first_line), 0usize);
    for pair in table.chunks_exact(2).take(ENTRIES_MAX) {
        let &[bytes, lines] = pair else { break };
        begin = begin.saturating_add(usize::from(bytes));
        if begin > code_bytes {
            break;
        }
        line = line.saturating_add(i64::from(lines as i8));
    }
    u32::try_from(line).unwrap_or(0)
}

fn ranges(table: &[u8], first_line: u32, code_bytes: usize) -> u32 {
    let (mut line, mut end) = (i64::from(first_line), 0usize);
    for pair in table.chunks_exact(2).take(ENTRIES_MAX) {
        let &[bytes, lines] = pair else { break };
        end = end.saturating_add(usize::from(bytes));
        let has_line = lines as i8 != NO_LINE;
        if has_line {
            line = line.saturating_add(i64::from(lines as i8));
        }
        if code_bytes < end {
            return if has_line { u32::try_from(line).unwrap_or(0) } else { 0 };
        }
    }
    0
}

fn locations(table: &[u8], first_line: u32, instruction: usize) -> u32 {
    let mut line = i64::from(first_line);
    let mut covered = 0usize;
    let mut bytes = table.iter().copied().peekable();
    for _ in 0..ENTRIES_MAX {
        let Some(first) = bytes.next() else { return 0 };
        let form = (first >> 3) & 0xf;
        let has_line = form != 15;
        match form {
            15 => {}
            13 | 14 => line = line.saturating_add(signed(&mut bytes)),
            10..=12 => line = line.saturating_add(i64::from(form - 10)),
            _ => {}
        }
        // Columns follow; only the next entry's first byte has its high bit set.
        while bytes.peek().is_some_and(|byte| byte & 0x80 == 0) {
            bytes.next();
        }
        covered = covered.saturating_add(usize::from(first & 7) + 1);
        if instruction < covered {
            return if has_line { u32::try_from(line).unwrap_or(0) } else { 0 };
        }
    }
    0
}

/// A signed number: six bits a byte, least first, bit 6 marks that more follow; the lowest bit of
/// the whole is the sign.
fn signed(bytes: &mut impl Iterator<Item = u8>) -> i64 {
    let mut value: u64 = 0;
    let mut shift = 0u32;
    for byte in bytes {
        if shift < 58 {
            value |= u64::from(byte & 0x3f) << shift;
        }
        shift += 6;
        if byte & 0x40 == 0 {
            break;
        }
    }
    let magnitude = (value >> 1) as i64;
    if value & 1 == 1 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forms_are_understood() {
        // short form, then one line on, then a long form 5 lines back, then one without a line
        let table = [
            0x80 | 1 << 3,
            0x12, // one instruction, same line
            0x80 | 11 << 3 | 1,
            1,
            2, // two instructions, one line on
            0x80 | 14 << 3,
            0b1011,
            0,
            0,
            0,              // one instruction, line - 5
            0x80 | 15 << 3, // one without a line
        ];
        let lines: [u32; 6] =
            core::array::from_fn(|index| LineTable::Locations.line(&table, 40, index * 2));
        assert_eq!(lines, [40, 41, 41, 36, 0, 0]);
    }

    #[test]
    fn increments_are_summed_up() {
        // line 10 from byte 0, 11 from byte 6, 9 from byte 10
        let table = [6, 1, 4, 254];
        let lines = [0, 4, 6, 8, 10, 200].map(|at| LineTable::Increments.line(&table, 10, at));
        assert_eq!(lines, [10, 10, 11, 11, 9, 9]);
    }

    #[test]
    fn ranges_end_at_their_stated_length() {
        // 4 bytes of line 10, 2 without one, 6 of line 13, 2 of line 12
        let table = [4, 0, 2, 128, 6, 3, 2, 255];
        let lines = [0, 2, 4, 6, 10, 12, 14].map(|at| LineTable::Ranges.line(&table, 10, at));
        assert_eq!(lines, [10, 10, 0, 13, 13, 12, 0]);
    }

    proptest! {
        #[test]
        fn any_table_gives_an_answer(table: Vec<u8>, first: u32, code_bytes in 0usize..5000) {
            for kind in [LineTable::Increments, LineTable::Ranges, LineTable::Locations] {
                kind.line(&table, first, code_bytes);
            }
        }
    }

    extern crate std;
    use std::vec::Vec;
}
