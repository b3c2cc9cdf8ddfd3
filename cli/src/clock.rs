//! The clocks of the command line, and times as text.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// Unix time in seconds.
pub(crate) fn unix_seconds() -> u64 {
    wall_ns().unsigned_abs() / 1_000_000_000
}

/// Unix time in nanoseconds.
pub(crate) fn wall_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// `45 s ago`, `3 min ago`, `5 h ago`, `9 days ago`; a dash for no time. Clocks of two machines may
/// differ a little, so a future time is `now`.
pub(crate) fn age(wall_ns: i64, now_ns: i64) -> String {
    if wall_ns <= 0 {
        return "–".to_string();
    }
    match now_ns.saturating_sub(wall_ns) / 1_000_000_000 {
        ..1 => "now".to_string(),
        seconds @ 1..120 => format!("{seconds} s ago"),
        seconds @ 120..7_200 => format!("{} min ago", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h ago", seconds / 3_600),
        seconds => format!("{} days ago", seconds / 86_400),
    }
}

/// Unix time of the date of an HTTP answer: `Sat, 21 Nov 2026 07:00:04 GMT`.
pub(crate) fn of_http(date: &str) -> Option<i64> {
    let time = jiff::fmt::strtime::parse("%a, %d %b %Y %H:%M:%S GMT", date).ok()?;
    let time = time.to_datetime().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    Some(time.timestamp().as_second())
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
    fn ages() {
        let now_ns = 1_795_244_404_000_000_000;
        for (seconds, expected) in [
            (-5, "now"),
            (0, "now"),
            (1, "1 s ago"),
            (119, "119 s ago"),
            (200, "3 min ago"),
            (9_000, "2 h ago"),
            (200_000, "2 days ago"),
        ] {
            assert_eq!(age(now_ns - seconds * 1_000_000_000, now_ns), expected, "{seconds}");
        }
        assert_eq!(age(0, now_ns), "–");
    }

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
        assert_eq!(of_http("Sat, 21 Nov 2026 07:00:04 GMT"), Some(1_795_244_404));
        assert_eq!(of_http("yesterday"), None);
        assert_eq!(utc(0), "–");
        assert_eq!(utc(-5), "–");
    }
}
