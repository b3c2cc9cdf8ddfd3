//! The values of a rule: how far the policy may go, and when not.

use alloc::format;
use alloc::string::String;
use core::fmt::{self, Display, Formatter};

const MINUTES_PER_DAY: u32 = 1_440;

/// How far the policy may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Mode {
    /// Never act.
    Off,
    /// Decide and record, but do not act.
    #[default]
    DryRun,
    /// Act.
    Act,
}

impl Mode {
    /// The name a user meets.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Hours of each day, UTC. They may go over midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(try_from = "String"))]
pub struct QuietHours {
    from: u32,
    to: u32,
}

impl TryFrom<String> for QuietHours {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let why = || format!("{text:?} must be hours of a day in UTC such as 22:00-06:00");
        Self::parse(&text).ok_or_else(why)
    }
}

impl QuietHours {
    /// Reads `HH:MM-HH:MM`; none for another text, and for an empty range.
    pub fn parse(text: &str) -> Option<Self> {
        let (from, to) = text.split_once('-')?;
        let [from, to] = [minute(from.trim())?, minute(to.trim())?];
        (from != to).then_some(Self { from, to })
    }

    /// True at this Unix time, in nanoseconds.
    pub fn has(self, wall_ns: i64) -> bool {
        let minute = wall_ns.div_euclid(60_000_000_000).rem_euclid(i64::from(MINUTES_PER_DAY));
        let minute = u32::try_from(minute).unwrap_or(0);
        match self.from < self.to {
            true => (self.from..self.to).contains(&minute),
            false => minute >= self.from || minute < self.to,
        }
    }
}

impl Display for QuietHours {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let Self { from, to } = self;
        let (hour, minute) = (|it: &u32| it / 60, |it: &u32| it % 60);
        let of = |it| (hour(it), minute(it));
        let ((from, from_minute), (to, to_minute)) = (of(from), of(to));
        write!(formatter, "{from:02}:{from_minute:02}-{to:02}:{to_minute:02} UTC")
    }
}

/// Minutes since midnight.
fn minute(text: &str) -> Option<u32> {
    let (hours, minutes) = text.split_once(':')?;
    let is_number = |text: &str| text.len() == 2 && text.bytes().all(|it| it.is_ascii_digit());
    if !is_number(hours) || !is_number(minutes) {
        return None;
    }
    let (hours, minutes): (u32, u32) = (hours.parse().ok()?, minutes.parse().ok()?);
    (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn quiet_hours_are_of_each_day_and_may_go_over_midnight() {
        const HOUR_NS: i64 = 3_600_000_000_000;
        let check = |text: &str, hours: &[(i64, bool)]| {
            let quiet = QuietHours::parse(text).expect(text);
            assert_eq!(quiet.to_string(), alloc::format!("{text} UTC"));
            for (hour, is_quiet) in hours {
                for day in [-1, 0, 20_000] {
                    let at_ns = (day * 24 + hour) * HOUR_NS;
                    assert_eq!(quiet.has(at_ns), *is_quiet, "{text} at {hour} on day {day}");
                }
            }
        };
        check("22:00-06:30", &[(21, false), (22, true), (0, true), (6, true), (7, false)]);
        check("09:00-17:00", &[(8, false), (9, true), (16, true), (17, false)]);
        let wrong = ["", "9:00-10:00", "09:00", "09:00-09:00", "24:00-01:00", "09:60-10:00"];
        for text in wrong {
            assert_eq!(QuietHours::parse(text), None, "{text}");
        }
    }
}
