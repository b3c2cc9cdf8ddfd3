//! The one place of the command line's programs where clocks are read.

use std::time::{SystemTime, UNIX_EPOCH};

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

/// `(year, month, day, hour, minute, second)` of a Unix time, in UTC.
pub(crate) fn civil(unix_seconds: u64) -> (u64, u64, u64, u64, u64, u64) {
    let (days, rest) = (unix_seconds / 86_400, unix_seconds % 86_400);
    // Years that begin in March put the leap day at their end; eras are 400 of them.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day, rest / 3600, rest / 60 % 60, rest % 60)
}

/// `2026-11-21 07:15:04` of a Unix time in nanoseconds, in UTC; a dash for no time.
pub(crate) fn utc(wall_ns: i64) -> String {
    match u64::try_from(wall_ns) {
        Ok(ns) if ns > 0 => {
            let (year, month, day, hour, minute, second) = civil(ns / 1_000_000_000);
            format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
        }
        _ => "–".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, expected) in [
            (0, (1970, 1, 1, 0, 0, 0)),
            (951_782_399, (2000, 2, 28, 23, 59, 59)),
            (951_782_400, (2000, 2, 29, 0, 0, 0)),
            (1_709_251_199, (2024, 2, 29, 23, 59, 59)),
            (1_795_244_400, (2026, 11, 21, 7, 0, 0)),
            (4_107_542_400, (2100, 3, 1, 0, 0, 0)),
        ] {
            assert_eq!(civil(seconds), expected, "{seconds}");
        }
        assert_eq!(utc(1_795_244_404_999_999_999), "2026-11-21 07:00:04");
        assert_eq!(utc(0), "–");
        assert_eq!(utc(-5), "–");
    }
}
