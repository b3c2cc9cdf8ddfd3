//! Steps, phases and annotations in the exported file.
//!
//! They stand there twice. As PyTorch's `external_annotations` other tools see them: `START` and
//! `END` of `memtape.step#54` and of each phase, with times in microseconds. Under the key
//! `memtape` the end of each step is exact: the number of the event behind it, because several
//! events may have the same microsecond.
//!
//! It does not find steps: the recorder counted them.

use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use memtape_tape::snapshot::TraceEvent;
use memtape_tape::snapshot::marks::{Mark, Meaning};

use crate::read::torch::Annotation;

/// Ends of steps of one device that are written, the newest; a reader's room for what stands under
/// `memtape` is shared by all devices.
const STEP_ENDS_MAX: usize = 200;

/// The end of a step in a device's trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepEnd {
    /// The step in which the last event before it happened.
    pub(crate) ended: u64,
    /// Steps that have ended by then: more than `ended`, where steps without events follow.
    pub(crate) finished: u64,
    /// Entries of the device's trace that were written before its end.
    pub(crate) entries: u64,
    /// Times of the last event before the end and of the first one after it.
    pub(crate) between_ns: (u64, u64),
}

/// Finds the ends of steps while a trace is written.
#[derive(Debug, Default)]
pub(crate) struct StepEnds {
    /// The ends so far, oldest first.
    pub(crate) found: Vec<StepEnd>,
    last: Option<(u64, u64)>,
}

impl StepEnds {
    /// Takes the next event, which comes after this many entries.
    pub(crate) fn add(&mut self, event: &TraceEvent, entries: u64) {
        if let Some((finished, last_ns)) = self.last {
            if event.step > finished {
                let between_ns = (last_ns, event.mono_ns);
                let ended = finished.saturating_add(1);
                self.found.push(StepEnd { ended, finished: event.step, entries, between_ns });
            }
            // Events of another lane may be a step behind; steps never go back.
            self.last = Some((finished.max(event.step), event.mono_ns));
        } else {
            self.last = Some((event.step, event.mono_ns));
        }
    }

    /// The newest ends, at most [`STEP_ENDS_MAX`].
    pub(crate) fn newest(&self) -> &[StepEnd] {
        let first = self.found.len().saturating_sub(STEP_ENDS_MAX);
        self.found.get(first..).unwrap_or_default()
    }
}

/// What the names of steps begin with.
const STEP: &str = "memtape.step#";

/// What of the annotations of a file stays when the file is written again: all but the steps, which
/// are made again.
pub(crate) fn is_kept(annotation: &Annotation) -> bool {
    !annotation.name.starts_with(STEP)
}

/// Steps of a device. The first one, and the last one, may be cut by the trace: what of them lies
/// outside of it has no entry. `at_us` makes Unix time of a moment in microseconds.
pub(crate) fn of_steps(
    device: u8,
    ends: &[StepEnd],
    at_us: impl Fn(u64) -> u64,
) -> Vec<Annotation> {
    let device = Some(u32::from(device));
    let one = |step: u64, is_start: bool, mono_ns: u64| {
        let name = format!("{STEP}{step}");
        Annotation { name, device, at_us: at_us(mono_ns), is_start }
    };
    let both = |end: &StepEnd| {
        let (last_ns, first_ns) = end.between_ns;
        [one(end.ended, false, last_ns), one(end.finished.saturating_add(1), true, first_ns)]
    };
    ends.iter().flat_map(both).collect()
}

/// Phases and annotations of the program, in the order of time, as those of this device.
pub(crate) fn of_program(
    device: u8,
    marks: &[Mark],
    at_us: impl Fn(u64) -> u64,
) -> Vec<Annotation> {
    let mut found = Vec::new();
    let mut phase: Option<&str> = None;
    for mark in marks {
        let mut add = |name: &str, is_start: bool| {
            let (name, device) = (name.to_string(), Some(u32::from(device)));
            found.push(Annotation { name, device, at_us: at_us(mark.mono_ns), is_start });
        };
        match mark.meaning() {
            Meaning::Annotation(text) => {
                add(text, true);
                add(text, false);
            }
            Meaning::PhaseBegins(name) => {
                if let Some(before) = phase.replace(name) {
                    add(before, false);
                }
                add(name, true);
            }
            Meaning::PhaseEnds => {
                if let Some(before) = phase.take() {
                    add(before, false);
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtape_tape::snapshot::TraceKind;

    fn event(mono_ns: u64, step: u64) -> TraceEvent {
        TraceEvent {
            kind: TraceKind::Alloc,
            mono_ns,
            address: 0,
            size: 1,
            detail: 0,
            stack: 0,
            stream_pool: 0,
            step,
        }
    }

    #[test]
    fn steps_end_between_two_events() {
        let mut ends = StepEnds::default();
        for (entries, (mono_ns, step)) in
            [(10, 3), (20, 3), (20, 4), (30, 3), (40, 4), (50, 7)].into_iter().enumerate()
        {
            ends.add(&event(mono_ns, step), 2 * entries as u64);
        }
        let expected = [
            StepEnd { ended: 4, finished: 4, entries: 4, between_ns: (20, 20) },
            StepEnd { ended: 5, finished: 7, entries: 10, between_ns: (40, 50) },
        ];
        assert_eq!(ends.newest(), expected);
        let of_steps = of_steps(1, &expected, |ns| ns);
        let names: Vec<_> = of_steps.into_iter().map(|a| (a.name, a.is_start, a.at_us)).collect();
        let name = |step: u64| format!("memtape.step#{step}");
        let expected = [(4, false, 20), (5, true, 20), (5, false, 40), (8, true, 50)];
        assert_eq!(names, expected.map(|(step, is_start, ns)| (name(step), is_start, ns)));
    }

    #[test]
    fn a_phase_ends_the_one_before() {
        let texts = ["", "train", "lr=0.1", "eval", "", ""];
        let marks: Vec<Mark> = texts
            .iter()
            .zip(1_u64..)
            .map(|(text, mono_ns)| Mark { mono_ns, step: 0, text: (*text).to_string() })
            .collect();
        let found = of_program(0, &marks, |ns| ns);
        let found: Vec<_> = found.iter().map(|a| (a.name.as_str(), a.is_start, a.at_us)).collect();
        let expected = [
            ("train", true, 2),
            ("lr=0.1", true, 3),
            ("lr=0.1", false, 3),
            ("train", false, 4),
            ("eval", true, 4),
            ("eval", false, 5),
        ];
        assert_eq!(found, expected);
    }
}
