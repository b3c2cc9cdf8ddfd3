//! Steps, phases and annotations in the exported file.
//!
//! They stand there twice. As PyTorch's `external_annotations` other tools see them: `START` and
//! `END` of `memtape.step#54` and of each phase, with times in microseconds. Under the key
//! `memtape` the end of each step is exact: the number of the event behind it, because several
//! events may have the same microsecond.
//!
//! It does not find steps: the recorder counted them.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use memtape_tape::snapshot::TraceEvent;
use memtape_tape::snapshot::marks::{Mark, Meaning};

/// Newest step ends of a device that are written. A reader's limit for the `memtape` key is shared
/// by all devices.
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

/// One entry of `external_annotations`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Annotation {
    /// Name of the phase or annotation.
    pub(crate) name: String,
    /// `START` or `END`.
    pub(crate) stage: &'static str,
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub(crate) mono_ns: u64,
}

/// Steps of a device. The first one, and the last one, may be cut by the trace: an end outside of
/// the trace has no entry.
pub(crate) fn of_steps(ends: &[StepEnd]) -> Vec<Annotation> {
    let both = |end: &StepEnd| {
        let (last_ns, first_ns) = end.between_ns;
        let name = |step: u64| format!("memtape.step#{step}");
        let ended = Annotation { name: name(end.ended), stage: "END", mono_ns: last_ns };
        let next = name(end.finished.saturating_add(1));
        [ended, Annotation { name: next, stage: "START", mono_ns: first_ns }]
    };
    ends.iter().flat_map(both).collect()
}

/// Phases and annotations of the program, in the order of time.
pub(crate) fn of_program(marks: &[Mark]) -> Vec<Annotation> {
    let mut found = Vec::new();
    let mut phase: Option<&str> = None;
    for mark in marks {
        let mut add = |name: &str, stage: &'static str| {
            found.push(Annotation { name: name.to_string(), stage, mono_ns: mark.mono_ns });
        };
        match mark.meaning() {
            Meaning::Annotation(text) => {
                add(text, "START");
                add(text, "END");
            }
            Meaning::PhaseBegins(name) => {
                if let Some(before) = phase.replace(name) {
                    add(before, "END");
                }
                add(name, "START");
            }
            Meaning::PhaseEnds => {
                if let Some(before) = phase.take() {
                    add(before, "END");
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
        let names: Vec<_> =
            of_steps(&expected).into_iter().map(|a| (a.name, a.stage, a.mono_ns)).collect();
        let name = |step: u64| format!("memtape.step#{step}");
        let expected = [(4, "END", 20), (5, "START", 20), (5, "END", 40), (8, "START", 50)];
        assert_eq!(names, expected.map(|(step, stage, ns)| (name(step), stage, ns)));
    }

    #[test]
    fn a_phase_ends_the_one_before() {
        let texts = ["", "train", "lr=0.1", "eval", "", ""];
        let marks: Vec<Mark> = texts
            .iter()
            .zip(1_u64..)
            .map(|(text, mono_ns)| Mark { mono_ns, step: 0, text: (*text).to_string() })
            .collect();
        let found = of_program(&marks);
        let found: Vec<_> = found.iter().map(|a| (a.name.as_str(), a.stage, a.mono_ns)).collect();
        let expected = [
            ("train", "START", 2),
            ("lr=0.1", "START", 3),
            ("lr=0.1", "END", 3),
            ("train", "END", 4),
            ("eval", "START", 4),
            ("eval", "END", 5),
        ];
        assert_eq!(found, expected);
    }
}
