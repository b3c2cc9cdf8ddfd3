//! Numbers with their units, and frames, as a terminal shows them.

pub(crate) use memtape_core::diagnosis::{bytes, duration, plural, signed_bytes};
use memtape_core::tape::layout::Clock;
use memtape_proto::api::{Frame, Named};

use crate::output::clean;
pub(crate) use crate::render::table::table;

/// Digits of bytes, as [`bytes`] rounds them.
const BYTES_DIGITS: usize = 3;

/// A positive number with two digits that say something: `0.31`, `4.2`, `12`, `340`.
pub(crate) fn two_digits(value: f64) -> String {
    let places = 1 - value.log10().floor() as i32;
    match usize::try_from(places) {
        Ok(places) => format!("{value:.places$}"),
        Err(_) => {
            let unit = 10_f64.powi(-places);
            format!("{:.0}", (value / unit).round() * unit)
        }
    }
}

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
    fn small_and_large_numbers_have_two_digits() {
        let shown = [0.3123, 1.0, 4.25, 12.4, 999.0, 34_160.0].map(two_digits);
        assert_eq!(shown, ["0.31", "1.0", "4.2", "12", "1000", "34000"]);
    }

    #[test]
    fn columns_have_equal_digits() {
        let shown = [0, 512, 2 << 30, 30 << 10, 7_864_320, 751 << 20, 1014 << 20].map(column_bytes);
        let expected = ["0 B", "512 B", "2.00 GiB", "30.0 KiB", "7.50 MiB", "751 MiB", "1,014 MiB"];
        assert_eq!(shown, expected);
        assert_eq!(column_change(-3 << 10), "-3.00 KiB");
    }
}
