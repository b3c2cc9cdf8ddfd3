//! The past of a rank from its tape: all step records that are left, marks, and the last events.
//!
//! Before the first event that is left, the memory of each finished step is known at its end.

use memtape_core::snapshot::RankSnapshot;
use memtape_core::snapshot::marks::Mark;
use memtape_core::tape::StepRecord;
use memtape_core::tape::read::{Source, Tape};

use super::{Counter, Instant, Timeline, Track, named, of_snapshot, slices};

/// Marks of a program that are shown, the newest.
const MARKS_DRAWN_MAX: usize = 4096;

/// The past of the process that writes the tape; `state` is the tape's state, with events.
pub(crate) fn timeline(tape: &Tape<impl Source>, state: &RankSnapshot) -> Timeline {
    let wall_ns = |mono_ns: u64| tape.wall_ns(mono_ns);
    let mut timeline = of_snapshot::with_clock(state, &wall_ns);
    for device in &state.devices {
        let number = (state.devices.len() > 1).then_some(device.device.into());
        let records = finished(tape, state, device.device);
        let name = |what: &str| named(what, number);
        let before = |of: fn(&StepRecord) -> u64| -> Vec<(i64, u64)> {
            records.iter().map(|record| (record.end_wall_ns, of(record))).collect()
        };
        extend(&mut timeline.counters, name("allocated"), before(|of| of.end_allocated));
        extend(&mut timeline.counters, name("reserved"), before(|of| of.end_reserved));
        let minima = before(|of| of.floor_allocated);
        timeline.counters.push(Counter { name: name("per-step minimum"), points: minima });
        let peaks = before(|of| of.peak_allocated);
        timeline.counters.push(Counter { name: name("per-step peak"), points: peaks });
    }
    timeline.tracks.splice(0..0, steps(tape, state));
    let marks = tape.marks(MARKS_DRAWN_MAX);
    timeline.tracks.extend(phases(&marks, &wall_ns, tape.status().step_mono_ns));
    timeline.events.extend(annotations(&marks, &wall_ns));
    timeline.events.sort_by_key(|event| event.at_ns);
    timeline
}

/// Puts earlier points before the first point of a counter.
fn extend(counters: &mut Vec<Counter>, name: String, mut before: Vec<(i64, u64)>) {
    if let Some(counter) = counters.iter_mut().find(|counter| counter.name == name) {
        let first_ns = counter.points.first().map_or(i64::MAX, |(at_ns, _)| *at_ns);
        before.retain(|(at_ns, _)| *at_ns < first_ns);
        counter.points.splice(0..0, before);
    } else {
        counters.push(Counter { name, points: before });
    }
}

/// The records of a device up to the state, oldest first.
fn finished(tape: &Tape<impl Source>, state: &RankSnapshot, device: u8) -> Vec<StepRecord> {
    let mut records = tape.steps_after(device, 0).records;
    records.retain(|record| record.last_step <= state.step);
    records
}

/// The finished steps of the device that has most records. A step begins where the one before it
/// ends, and step 1 with the recording: an oldest record of a later step shows no step.
fn steps(tape: &Tape<impl Source>, state: &RankSnapshot) -> Option<Track> {
    let all = state.devices.iter().map(|device| finished(tape, state, device.device));
    let records = all.max_by_key(Vec::len)?;
    let is_first = records.first().is_some_and(|oldest| oldest.first_step <= 1);
    let begins = is_first.then(|| tape.status().start_wall_ns);
    let begins = begins.into_iter().chain(records.iter().map(|record| record.end_wall_ns));
    let starts: Vec<(String, i64)> = records
        .iter()
        .skip(usize::from(!is_first))
        .zip(begins)
        .map(|(record, begin_ns)| {
            let unit = tape.clock().unit();
            let name = match (record.first_step, record.last_step) {
                (first, last) if first < last => format!("{unit}s {first} to {last}"),
                (_, last) => format!("{unit} {last}"),
            };
            (name, begin_ns)
        })
        .collect();
    let end_ns = records.last()?.end_wall_ns;
    Some(Track { name: "steps".to_string(), slices: slices(&starts, end_ns) })
}

/// The phases that the program named; the last one is shown to the end of the last step.
fn phases(marks: &[Mark], wall_ns: &impl Fn(u64) -> i64, last_mono_ns: u64) -> Option<Track> {
    let of_phase = marks.iter().filter(|mark| !mark.text.contains('='));
    let starts: Vec<(String, i64)> =
        of_phase.map(|mark| (mark.text.clone(), wall_ns(mark.mono_ns))).collect();
    let slices = slices(&starts, wall_ns(last_mono_ns));
    (!slices.is_empty()).then(|| Track { name: "phases".to_string(), slices })
}

/// Annotations that the program made with `memtape.annotate`.
fn annotations(marks: &[Mark], wall_ns: &impl Fn(u64) -> i64) -> Vec<Instant> {
    let said = marks.iter().filter(|mark| mark.text.contains('='));
    let instant = |mark: &Mark| Instant {
        name: mark.text.clone(),
        at_ns: wall_ns(mark.mono_ns),
        facts: vec![("step", mark.step)],
    };
    said.map(instant).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_and_annotations_are_apart() {
        let mark = |mono_ns, text: &str| Mark { mono_ns, step: 3, text: text.into() };
        let marks = [mark(5, "train"), mark(7, "lr=3"), mark(9, "eval"), mark(12, "")];
        let wall_ns = |mono_ns: u64| mono_ns as i64 + 100;
        let track = phases(&marks, &wall_ns, 20).expect("phases");
        let shown: Vec<(&str, i64, i64)> =
            track.slices.iter().map(|of| (of.name.as_str(), of.start_ns, of.end_ns)).collect();
        assert_eq!(shown, [("train", 105, 109), ("eval", 109, 112)]);
        let said = annotations(&marks, &wall_ns);
        assert_eq!((said.len(), said[0].name.as_str(), said[0].at_ns), (1, "lr=3", 107));
    }

    #[test]
    fn earlier_points_end_where_the_events_begin() {
        let mut counters = vec![Counter { name: "allocated".into(), points: vec![(50, 5)] }];
        extend(&mut counters, "allocated".into(), vec![(10, 1), (50, 9), (60, 2)]);
        extend(&mut counters, "reserved".into(), vec![(10, 3)]);
        assert_eq!(counters[0].points, [(10, 1), (50, 5)]);
        assert_eq!(counters[1].points, [(10, 3)]);
    }
}
