//! Timelines of ranks: memory, steps, phases, and single events.
//!
//! Times are Unix times in nanoseconds, so that the ranks of several nodes share one axis. Each
//! source has a file of its own; no source knows the output format.

pub(crate) mod of_pytorch;
pub(crate) mod of_snapshot;
pub(crate) mod of_tape;

/// The timeline of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Timeline {
    /// Number of the rank.
    pub(crate) rank: u32,
    /// Name of the rank's job, and what else identifies the rank.
    pub(crate) name: String,
    /// Process id; 0 where unknown.
    pub(crate) pid: u32,
    /// Amounts of memory over time.
    pub(crate) counters: Vec<Counter>,
    /// Slices with a duration, one behind the other on each track.
    pub(crate) tracks: Vec<Track>,
    /// Events without a duration.
    pub(crate) events: Vec<Instant>,
}

/// An amount of memory over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counter {
    /// Name of the counter.
    pub(crate) name: String,
    /// Time and bytes, in the order of time.
    pub(crate) points: Vec<(i64, u64)>,
}

/// Slices that follow each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Track {
    /// Name of the track.
    pub(crate) name: String,
    /// Slices in the order of time, without overlap.
    pub(crate) slices: Vec<Slice>,
}

/// A span of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Slice {
    /// Name of the slice.
    pub(crate) name: String,
    /// Start, in Unix nanoseconds.
    pub(crate) start_ns: i64,
    /// End, in Unix nanoseconds.
    pub(crate) end_ns: i64,
}

/// A single event.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Instant {
    /// Name of the event.
    pub(crate) name: String,
    /// When.
    pub(crate) at_ns: i64,
    /// Numbers, with their units in the names.
    pub(crate) facts: Vec<(&'static str, u64)>,
}

/// The name of a counter of a device; `None` where the rank has only one.
pub(crate) fn named(what: &str, device: Option<u32>) -> String {
    device.map_or(what.to_string(), |device| format!("{what}, device {device}"))
}

/// Allocated and reserved bytes of a device after each event that changes them. An event has its
/// time and its changes of both; where none changes them, their `last` level is that at `end_ns`.
pub(crate) fn counters(
    device: Option<u32>,
    last: [u64; 2],
    events: &[(i64, [i64; 2])],
    end_ns: Option<i64>,
) -> Vec<Counter> {
    let counter = |what: &str, last: u64, change: fn(&[i64; 2]) -> i64| {
        let changes = events.iter().map(|(at_ns, changes)| (*at_ns, change(changes)));
        let changes: Vec<(i64, i64)> = changes.filter(|(_, change)| *change != 0).collect();
        let mut points = levels(last, &changes);
        if points.is_empty() {
            points.extend(end_ns.map(|end_ns| (end_ns, last)));
        }
        Counter { name: named(what, device), points }
    };
    let all = [
        counter("allocated", last[0], |changes| changes[0]),
        counter("reserved", last[1], |changes| changes[1]),
    ];
    let is_known = |counter: &Counter| counter.points.iter().any(|(_, bytes)| *bytes > 0);
    all.into_iter().filter(is_known).collect()
}

/// Follows the bytes of a device through events backwards: only the last level is known.
pub(crate) fn levels(last: u64, changes: &[(i64, i64)]) -> Vec<(i64, u64)> {
    let mut level = i64::try_from(last).unwrap_or(i64::MAX);
    let mut points = Vec::with_capacity(changes.len() + 1);
    for &(at_ns, change) in changes.iter().rev() {
        points.push((at_ns, level.max(0).unsigned_abs()));
        level = level.saturating_sub(change);
    }
    if let Some(&(first_ns, _)) = changes.first() {
        points.push((first_ns.saturating_sub(1), level.max(0).unsigned_abs()));
    }
    points.reverse();
    points
}

/// The slices between the starts of numbered spans; the last one ends at `end_ns`.
pub(crate) fn slices(starts: &[(String, i64)], end_ns: i64) -> Vec<Slice> {
    let ends = starts.iter().skip(1).map(|(_, start_ns)| *start_ns).chain([end_ns]);
    let slice = |((name, start_ns), end_ns): (&(String, i64), i64)| Slice {
        name: name.clone(),
        start_ns: *start_ns,
        end_ns: end_ns.max(*start_ns),
    };
    starts.iter().zip(ends).filter(|((name, _), _)| !name.is_empty()).map(slice).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_end_at_the_last_known_value() {
        let changes = [(10, 100), (20, -30), (30, 5)];
        assert_eq!(levels(175, &changes), [(9, 100), (10, 200), (20, 170), (30, 175)]);
        assert_eq!(levels(175, &[]), []);
        // Events that are missing never make a level negative.
        assert_eq!(levels(1, &[(10, 5)]), [(9, 0), (10, 1)]);
    }

    #[test]
    fn a_slice_ends_where_the_next_begins() {
        let starts = [("train".to_string(), 5), (String::new(), 8), ("eval".to_string(), 9)];
        let slice = |name: &str, start_ns, end_ns| Slice { name: name.into(), start_ns, end_ns };
        assert_eq!(slices(&starts, 12), [slice("train", 5, 8), slice("eval", 9, 12)]);
    }
}
