//! The line of an instruction, from a code object's location table (CPython 3.11 and later).
//!
//! The table is a list of entries. The first byte of each has its high bit set and holds a form
//! (four bits) and the number of instructions it covers less one (three bits). The form says how
//! the line changes: not at all, by 0–2, or by a signed number in base 64 with six bits a byte.
//! Source: `Objects/locations.md` of CPython.

/// Entries looked at before giving up: no code object is longer.
const ENTRIES_MAX: usize = 1 << 20;

/// The line of the instruction with index `instruction` (in code units), 0 when it has none.
pub fn line_of(table: &[u8], first_line: u32, instruction: usize) -> u32 {
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

/// A signed number: six bits a byte, least first, bit 6 says that more follow; the lowest bit of
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
        let lines: [u32; 6] = core::array::from_fn(|index| line_of(&table, 40, index));
        assert_eq!(lines, [40, 41, 41, 36, 0, 0]);
    }

    proptest! {
        #[test]
        fn any_table_gives_an_answer(table: Vec<u8>, first: u32, instruction in 0usize..5000) {
            line_of(&table, first, instruction);
        }
    }

    extern crate std;
    use std::vec::Vec;
}
