//! Times and sizes in settings: read from the text of an option, and written as an option takes
//! them. The settings themselves are declared by the programs that have them.

use alloc::format;
use alloc::string::String;
use core::ops::RangeInclusive;
use core::time::Duration;

/// Why a text is no value of a setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// No time.
    #[error("it must be a time such as 250ms, 60s, 5m or 24h")]
    NoTime,
    /// No size.
    #[error("it must be a size such as 512MiB or 8GiB")]
    NoSize,
    /// A time beyond the bounds of the setting.
    #[error("it must be between {} and {}", duration_text(*.0.start()), duration_text(*.0.end()))]
    TimeOutside(RangeInclusive<Duration>),
    /// Fewer bytes than the setting needs.
    #[error("it must be at least {}", bytes_text(*.0))]
    SizeBelow(u64),
}

/// Units of time, each with its milliseconds; of equal units the last one is written.
const TIME_UNITS: [(&str, u64); 7] = [
    ("ms", 1),
    ("", 1_000),
    ("s", 1_000),
    ("min", 60_000),
    ("m", 60_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
];

/// Units of size, each with its bytes.
const SIZE_UNITS: [(&str, u64); 6] =
    [("", 1), ("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// Reads `60s`, `250ms`, `5m`, `24h`, `2d`; a number alone is seconds.
pub fn duration(text: &str) -> Result<Duration, ValueError> {
    measure(text, &TIME_UNITS).map(Duration::from_millis).ok_or(ValueError::NoTime)
}

/// Returns a function that reads a time within these bounds.
pub fn duration_within(
    bounds: RangeInclusive<Duration>,
) -> impl Fn(&str) -> Result<Duration, ValueError> + Clone {
    move |text| match duration(text)? {
        time if bounds.contains(&time) => Ok(time),
        _ => Err(ValueError::TimeOutside(bounds.clone())),
    }
}

/// Reads `1048576`, `512KiB`, `8GiB`.
pub fn byte_count(text: &str) -> Result<u64, ValueError> {
    measure(text, &SIZE_UNITS).ok_or(ValueError::NoSize)
}

/// Returns a function that reads a size of at least this many bytes.
pub fn byte_count_from(least: u64) -> impl Fn(&str) -> Result<u64, ValueError> + Clone {
    move |text| match byte_count(text)? {
        bytes if bytes >= least => Ok(bytes),
        _ => Err(ValueError::SizeBelow(least)),
    }
}

/// Writes a time in its largest unit up to hours, as [`duration`] reads it.
pub fn duration_text(time: Duration) -> String {
    text(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), &TIME_UNITS)
}

/// Writes a size in its largest unit, as [`byte_count`] reads it.
pub fn bytes_text(bytes: u64) -> String {
    text(bytes, &SIZE_UNITS)
}

/// A whole number and one of these units.
fn measure(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (_, size) = units.iter().find(|(name, _)| *name == unit.trim())?;
    number.parse::<u64>().ok()?.checked_mul(*size)
}

fn text(count: u64, units: &[(&str, u64)]) -> String {
    let fits = |(name, size): &&(&str, u64)| *name != "d" && count.is_multiple_of(*size);
    let (name, size) = units.iter().rev().find(fits).copied().unwrap_or(("", 1));
    format!("{}{name}", count / size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes() {
        let ms = |text: &str| duration(text).ok().map(|time| time.as_millis());
        for (text, expected) in [
            ("60s", Some(60_000)),
            ("60", Some(60_000)),
            ("250ms", Some(250)),
            ("5m", Some(300_000)),
            ("24h", Some(86_400_000)),
            ("2d", Some(172_800_000)),
            ("", None),
            ("s", None),
            ("1.5s", None),
            ("-3s", None),
            ("99999999999999999999s", None),
            ("18446744073709551615h", None),
        ] {
            assert_eq!(ms(text), expected, "{text}");
        }
        for (text, expected) in [
            ("0", Some(0)),
            ("512KiB", Some(524_288)),
            ("8GiB", Some(8 << 30)),
            ("8GB", None),
            ("99999999999TiB", None),
        ] {
            assert_eq!(byte_count(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn written_settings_can_be_read() {
        for text in ["250ms", "1s", "90s", "30m", "12h", "336h"] {
            assert_eq!(duration(text).map(duration_text).as_deref(), Ok(text));
        }
        for text in ["1B", "1000B", "512MiB", "64GiB"] {
            assert_eq!(byte_count(text).map(bytes_text).as_deref(), Ok(text));
        }
    }

    #[test]
    fn values_beyond_the_bounds_are_refused_with_the_bounds() {
        let interval = duration_within(Duration::from_millis(50)..=Duration::from_secs(60));
        assert_eq!(interval("1m"), Ok(Duration::from_secs(60)));
        let why = interval("61s").map_err(|why| format!("{why}"));
        assert_eq!(why, Err("it must be between 50ms and 1m".into()));
        let memory = byte_count_from(64 << 20);
        assert_eq!(memory("64MiB"), Ok(64 << 20));
        let why = memory("63MiB").map_err(|why| format!("{why}"));
        assert_eq!(why, Err("it must be at least 64MiB".into()));
    }
}
