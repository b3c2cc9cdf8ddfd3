//! The clocks of the command line, and times as text.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// Unix time in seconds.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// CLOCK_MONOTONIC in nanoseconds, the clock of the tapes.
pub(crate) fn mono_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap_or_default()
}

/// A Unix time in UTC, by a format of `strftime`; a dash for no time.
fn formatted(time: Result<Timestamp, jiff::Error>, format: &str) -> String {
    time.map_or_else(|_| "–".to_string(), |time| time.strftime(format).to_string())
}

/// `20261121-071504` of a Unix time in seconds, for the name of a file.
pub(crate) fn compact(unix_seconds: u64) -> String {
    let seconds = i64::try_from(unix_seconds).unwrap_or(i64::MAX);
    formatted(Timestamp::from_second(seconds), "%Y%m%d-%H%M%S")
}

/// `2026-11-21 07:15:04` of a Unix time in nanoseconds; a dash for no time.
pub(crate) fn utc(wall_ns: i64) -> String {
    match wall_ns {
        1.. => formatted(Timestamp::from_nanosecond(wall_ns.into()), "%Y-%m-%d %H:%M:%S"),
        _ => "–".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, expected) in [
            (0, "19700101-000000"),
            (951_782_399, "20000228-235959"),
            (951_782_400, "20000229-000000"),
            (1_709_251_199, "20240229-235959"),
            (4_107_542_400, "21000301-000000"),
        ] {
            assert_eq!(compact(seconds), expected, "{seconds}");
        }
        assert_eq!(utc(1_795_244_404_999_999_999), "2026-11-21 07:00:04");
        assert_eq!(utc(0), "–");
        assert_eq!(utc(-5), "–");
    }
}
