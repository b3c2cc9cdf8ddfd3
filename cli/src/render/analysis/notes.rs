//! Notes below an analysis: missing parts of the files, and how ranks and steps were found.

use memtape_core::diagnosis::files::History;
use memtape_core::diagnosis::location;
use memtape_core::pickle::Record;
use memtape_core::pickle::torch::Shape;
use memtape_core::snapshot::step_source::StepSource;

use super::{Mode, Report};
use crate::output::clean;
use crate::render::units::bytes;

/// Least bytes on another device that get a note.
const OTHER_DEVICE_BYTES_MIN: u64 = 1 << 20;

/// All notes.
pub(crate) fn notes(report: &Report<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if report.files.len() > 1 {
        let files = report.files.len();
        notes.push(match report.mode() {
            Mode::OverTime => format!("{files} files are of one rank, by step or newest event"),
            Mode::OneFile | Mode::AcrossRanks => {
                format!("ranks are numbered {}", report.ordered.source.note())
            }
        });
    }
    notes.extend(steps(report));
    if let Some((frame, rate)) = &report.analysis.small {
        notes.push(format!(
            "{} a step are kept from {}: too little to matter, such as losses kept for a log",
            bytes(*rate),
            location(frame)
        ));
    }
    notes.extend(other_devices(report));
    let shapes = report.files.iter().filter(|file| file.notes.shape == Shape::Segments).count();
    if shapes > 0 {
        notes.push(format!(
            "{} segments only, no history: call torch.cuda.memory._record_memory_history before, \
             and torch.cuda.memory._dump_snapshot after the part to analyze",
            hold(shapes)
        ));
    }
    let count = |is: &dyn Fn(&History) -> bool| {
        report.contents().filter(|(_, _, _, state)| is(state)).count()
    };
    let untraced = count(&|state: &History| {
        state.primary_device().is_some_and(|device| device.past.events == 0)
    });
    if untraced > shapes {
        notes.push(format!(
            "{} no events: call torch.cuda.memory._record_memory_history before the part to \
             analyze",
            hold(untraced - shapes)
        ));
    }
    let stackless = count(&|state| !state.has_stacks() && !state.devices.is_empty());
    if stackless > 0 {
        notes.push(format!(
            "{} no Python stacks: record with stacks=\"python\", or \"all\"",
            hold(stackless)
        ));
    }
    let unusable: u64 = report.files.iter().map(|file| file.notes.unusable).sum();
    if unusable > 0 {
        notes.push(format!("{unusable} entries lack an address or a size and were left out"));
    }
    let devices = report.contents().flat_map(|(_, _, _, state)| &state.devices);
    let contradictions: u64 = devices.map(|device| device.past.contradictions).sum();
    if contradictions > 0 {
        notes.push(format!(
            "{contradictions} allocations at an address in use: the trace lacks events"
        ));
    }
    notes.extend(missing(report));
    notes
}

fn hold(files: usize) -> String {
    if files == 1 { "one file holds".to_string() } else { format!("{files} files hold") }
}

/// Memory on devices other than the primary one.
fn other_devices(report: &Report<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    for (_, rank, _, state) in report.contents() {
        let primary = state.primary_device().map(|device| device.state.device);
        let others = state.devices.iter().map(|device| &device.state);
        let others = others.filter(|device| Some(device.device) != primary);
        for device in others.filter(|device| device.allocated >= OTHER_DEVICE_BYTES_MIN) {
            notes.push(format!(
                "rank {rank} also holds {} on device {}, which is not compared with other ranks",
                bytes(device.allocated),
                device.device
            ));
        }
    }
    notes
}

/// Source and number of the ends of steps.
fn steps(report: &Report<'_>) -> Option<String> {
    let past = &report.device()?.past;
    if past.events == 0 {
        return None;
    }
    let seconds = past.span_ns.map(|(first, last)| last.saturating_sub(first) as f64 / 1e9);
    let span = seconds.map_or(String::new(), |seconds| format!(" in {seconds:.2} s"));
    let found = match past.source {
        StepSource::None => {
            return Some(format!(
                "no steps were found in the {} events{span} of the trace: one such file does not \
                 show growth",
                past.events
            ));
        }
        StepSource::Recorded => "as Memtape recorded them",
        StepSource::Profiler => "as the profiler counts them",
        StepSource::Optimizer => "by Optimizer.step",
        StepSource::OptimizerStacks => "by the optimizer's stacks",
        StepSource::Guessed => "estimated from the period of allocations",
    };
    let more = if past.is_cut { "more than " } else { "" };
    let few = if past.ends > 0 && !report.analysis.judges_peaks {
        "; too few steps to tell whether each needs more than the one before"
    } else {
        ""
    };
    let before = if past.is_whole {
        ", from the start of the program"
    } else {
        "; older blocks have no step"
    };
    Some(format!(
        "rank {}: the trace holds {} events{span}, {more}{} ends of steps ({found}){before}{few}",
        report.analysis.rank, past.events, past.ends
    ))
}

/// Keys that the analysis uses and that all records lack.
fn missing(report: &Report<'_>) -> Option<String> {
    let matters = [
        (Record::Event, "time_us"),
        (Record::Event, "frames"),
        (Record::Block, "frames"),
        (Record::Block, "requested_size"),
        (Record::Segment, "stream"),
    ];
    let lacks = |(record, key): &(Record, &str)| {
        report.files.iter().any(|file| {
            let mut missing = file.notes.missing.iter();
            missing.any(|m| m.record == *record && m.key == *key && m.count == m.of)
        })
    };
    let keys: Vec<&str> = matters.iter().filter(|wanted| lacks(wanted)).map(|&(_, k)| k).collect();
    if keys.is_empty() {
        return None;
    }
    let why = "an older PyTorch wrote them, or it was not asked to record them";
    Some(clean(&format!("the files lack {}: {why}", keys.join(", "))))
}
