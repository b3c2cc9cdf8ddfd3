//! Numbers with their units, and frames, as a terminal shows them.

pub(crate) use memtape_core::diagnosis::{bytes, duration, plural, signed_bytes};
use memtape_core::tape::layout::Clock;
use memtape_proto::api::{Frame, Named};

use crate::output::clean;
pub(crate) use crate::render::table::table;

/// Digits of bytes, as [`bytes`] rounds them.
const BYTES_DIGITS: usize = 3;

/// A growth, which is never negative.
pub(crate) fn grown(count: u64) -> String {
    signed_bytes(i64::try_from(count).unwrap_or(i64::MAX))
}

/// Bytes in a column of a table: with the zeros that a sentence leaves out, so that all rows have
/// as many digits.
pub(crate) fn column_bytes(value: u64) -> String {
    padded(&bytes(value))
}

/// The same of a change.
pub(crate) fn column_change(change: i64) -> String {
    padded(&signed_bytes(change))
}

/// `2.00 GiB` of `2 GiB`.
fn padded(text: &str) -> String {
    let Some((number, unit)) = text.rsplit_once(' ').filter(|(_, unit)| *unit != "B") else {
        return text.to_string();
    };
    let digits = number.chars().filter(char::is_ascii_digit).count();
    let point = if number.contains('.') || digits >= BYTES_DIGITS { "" } else { "." };
    let zeros = "0".repeat(BYTES_DIGITS.saturating_sub(digits));
    format!("{number}{point}{zeros} {unit}")
}

/// `train.py:36 remember`.
pub(crate) fn frame(frame: &Frame) -> String {
    clean(&format!("{}:{} {}", frame.file, frame.line, frame.function)).trim_end().to_string()
}

/// A number in a column of steps: a number of turns gets its unit.
pub(crate) fn counted(clock: &Named<Clock>, number: &str) -> String {
    match clock.known().unwrap_or_default() {
        Clock::Steps => number.to_string(),
        Clock::Turns => format!("{} {number}", Clock::Turns.unit()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_equal_digits() {
        let shown = [0, 512, 2 << 30, 30 << 10, 7_864_320, 751 << 20, 1014 << 20].map(column_bytes);
        let expected = ["0 B", "512 B", "2.00 GiB", "30.0 KiB", "7.50 MiB", "751 MiB", "1,014 MiB"];
        assert_eq!(shown, expected);
        assert_eq!(column_change(-3 << 10), "-3.00 KiB");
    }
}
