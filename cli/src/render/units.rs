//! Numbers with their units, and frames, as a terminal shows them.

pub(crate) use memtape_core::diagnosis::{about_plural, bytes, plural, signed_bytes};
use memtape_core::tape::layout::Clock;
use memtape_proto::api::{Frame, Named};

use crate::output::clean;
pub(crate) use crate::render::table::table;

/// `90 s`, `25 min`, `3.1 h`.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// A growth, which is never negative.
pub(crate) fn grown(count: u64) -> String {
    signed_bytes(i64::try_from(count).unwrap_or(i64::MAX))
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
    fn durations() {
        for (seconds, expected) in
            [(1.2, "1 s"), (119.0, "119 s"), (600.0, "10 min"), (9000.0, "2.5 h")]
        {
            assert_eq!(duration(seconds), expected);
        }
    }
}
