//! Numbers, times and ranks as people say them. Integers only.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// Units of 1024, largest first, with their size as a power of two.
const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// Bytes with an IEC unit, to three digits: `2.69 MiB`, `1.5 MiB`, `12.5 GiB`, `143 MiB`, `12 B`.
///
/// Every program that shows bytes to a person uses it, so that a number reads the same everywhere.
pub fn bytes(value: u64) -> String {
    for (unit, shift) in UNITS {
        if value < 1_024 {
            break;
        }
        // Rounded before the unit is chosen, so that 1023.96 KiB is 1 MiB.
        let rounded = |times: u128| ((u128::from(value) * times) + (1 << (shift - 1))) >> shift;
        let (whole, hundredths) = match rounded(100) {
            ..100 => continue,
            all @ 100..1_000 => (all / 100, all % 100),
            1_000..10_000 => (rounded(10) / 10, rounded(10) % 10 * 10),
            _ => (rounded(1), 0),
        };
        let whole = grouped(whole);
        return match (hundredths / 10, hundredths % 10) {
            (0, 0) => format!("{whole} {unit}"),
            (tenth, 0) => format!("{whole}.{tenth} {unit}"),
            _ => format!("{whole}.{hundredths:02} {unit}"),
        };
    }
    format!("{value} B")
}

/// The same of a change: `+1.5 MiB`, `-3 B`, `0 B`.
pub fn signed_bytes(change: i64) -> String {
    let sign = match change {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", bytes(change.unsigned_abs()))
}

/// A count in full, with thousands apart.
pub fn count(count: u64) -> String {
    grouped(u128::from(count))
}

/// A count rounded to the nearest of two digits, with thousands apart: `4,100`.
pub fn about(count: u64) -> String {
    in_two_digits(count, |unit| unit / 2)
}

/// A span in two digits, rounded outwards: `920` and `1,100`.
pub(crate) fn about_span(low: u64, high: u64) -> [String; 2] {
    [in_two_digits(low, |_| 0), in_two_digits(high, |unit| unit - 1)]
}

/// A count in whole units of its second digit, after this much of a unit was added.
fn in_two_digits(count: u64, added: impl Fn(u64) -> u64) -> String {
    let mut unit = 1;
    while count / unit >= 100 {
        unit *= 10;
    }
    grouped((u128::from(count) + u128::from(added(unit))) / u128::from(unit) * u128::from(unit))
}

/// `1 block`, `12 blocks`.
pub fn plural(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{} {noun}s", count(number)) }
}

/// A count rounded to two digits, with its noun: `1 step`, `4,100 steps`.
pub fn about_plural(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{} {noun}s", about(number)) }
}

/// Ranks that are named at most.
const RANKS_NAMED_MAX: usize = 4;

/// `rank 2`, `ranks 2 and 3`, `ranks 0, 1, 2, 3 and 8 others`, of `total` in all.
pub(crate) fn ranks(known: &[u32], total: usize) -> String {
    listed("rank", known, total)
}

/// The same with another noun.
pub(crate) fn listed(noun: &str, known: &[u32], total: usize) -> String {
    let mut names: Vec<String> =
        known.iter().take(RANKS_NAMED_MAX).map(ToString::to_string).collect();
    match total.max(known.len()) - names.len() {
        0 => {}
        1 => names.push("1 other".into()),
        others => names.push(format!("{} others", count(others as u64))),
    }
    match names.split_last() {
        Some((last, [])) => format!("{noun} {last}"),
        Some((last, rest)) => format!("{noun}s {} and {last}", rest.join(", ")),
        None => format!("no {noun}"),
    }
}

/// `once`, `twice`, `12 times`.
pub(crate) fn times(count: u64) -> String {
    match count {
        1 => "once".to_string(),
        2 => "twice".to_string(),
        _ => format!("{} times", grouped(u128::from(count))),
    }
}

/// Parts per million as a percentage, rounded: `97 %`.
pub fn percent(ppm: u32) -> String {
    format!("{} %", (u64::from(ppm) + 5_000) / 10_000)
}

/// Nanoseconds as people say them: `0.4 s`, `90 s`, `25 min`, `3.1 h`, `4 days`.
pub fn duration(ns: u64) -> String {
    const SECOND_NS: u64 = 1_000_000_000;
    let rounded = |unit: u64| ns.saturating_add(unit / 2) / unit;
    let tenths = |unit: u64| match (rounded(unit / 10) / 10, rounded(unit / 10) % 10) {
        (whole, 0) => whole.to_string(),
        (whole, tenth) => format!("{whole}.{tenth}"),
    };
    match rounded(SECOND_NS) {
        ..10 => format!("{} s", tenths(SECOND_NS)),
        seconds @ 10..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", rounded(60 * SECOND_NS)),
        7_200..172_800 => format!("{} h", tenths(3_600 * SECOND_NS)),
        _ => format!("{} days", count(rounded(86_400 * SECOND_NS))),
    }
}

fn grouped(number: u128) -> String {
    let digits = number.to_string();
    let mut result = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            result.push(',');
        }
        result.push(digit);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lowest change there can be.
    const MIN: &str = "-8,388,608 TiB";

    #[test]
    fn numbers_read_well() {
        let check = |value: u64, expected: &str| assert_eq!(bytes(value), expected);
        check(0, "0 B");
        check(1_023, "1023 B");
        check(999, "999 B");
        check(131_584, "129 KiB");
        check(1_572_864, "1.5 MiB");
        check(2_820_669, "2.69 MiB");
        check((1 << 20) + (11 << 10), "1.01 MiB");
        check((1 << 20) - 1, "1 MiB");
        check((1 << 30) - (10 << 20), "1,014 MiB");
        check((10 << 20) - 1, "10 MiB");
        check((100 << 20) - 1, "100 MiB");
        check(12_928 << 20, "12.6 GiB");
        check(285 << 19, "143 MiB");
        check(80 << 30, "80 GiB");
        check(u64::MAX, "16,777,216 TiB");
        assert_eq!([0, 5, -2_048, i64::MIN].map(signed_bytes), ["0 B", "+5 B", "-2 KiB", MIN]);
        let rounded = ["4,100", "99", "100", "1,200,000", "2,000", "1,000", "130"];
        assert_eq!([4_137, 99, 100, 1_234_567, 1_999, 999, 126].map(about), rounded);
        assert_eq!(about_span(929, 1_001), ["920", "1,100"]);
        assert_eq!(about_span(990, u64::MAX), ["990", "19,000,000,000,000,000,000"]);
        assert_eq!(about_span(7, 99), ["7", "99"]);
        assert_eq!(ranks(&[2], 1), "rank 2");
        assert_eq!(ranks(&[2, 5, 7], 3), "ranks 2, 5 and 7");
        assert_eq!(ranks(&[0, 1, 2, 3, 4], 12), "ranks 0, 1, 2, 3 and 8 others");
        assert_eq!(percent(973_000), "97 %");
    }

    #[test]
    fn durations_read_well() {
        let check = |seconds: u64, expected: &str| {
            assert_eq!(duration(seconds * 1_000_000_000), expected);
        };
        check(0, "0 s");
        check(9, "9 s");
        check(90, "90 s");
        check(119, "119 s");
        check(120, "2 min");
        check(1_500, "25 min");
        check(7_199, "120 min");
        check(7_200, "2 h");
        check(11_300, "3.1 h");
        check(172_799, "48 h");
        check(345_600, "4 days");
        assert_eq!(
            [400_000_000, 9_460_000_000, 9_990_000_000].map(duration),
            ["0.4 s", "9.5 s", "10 s"]
        );
        assert_eq!(duration(u64::MAX), "213,503 days");
    }
}
