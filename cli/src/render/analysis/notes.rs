//! Notes below an analysis: what the files lack, and how ranks and steps were found.

use memtape_core::diagnosis::evidence::torch::steps::StepSource;
use memtape_core::diagnosis::files::primary_device;
use memtape_core::diagnosis::location;
use memtape_core::pickle::torch::{Record, Shape};

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
    let shapes = report.files.iter().filter(|file| file.shape == Shape::Segments).count();
    if shapes > 0 {
        notes.push(format!(
            "{} segments only, no history: call torch.cuda.memory._record_memory_history before, \
             and torch.cuda.memory._dump_snapshot after the part to analyze",
            hold(shapes)
        ));
    }
    let count = |is: &dyn Fn(&memtape_core::diagnosis::evidence::torch::look::Look) -> bool| {
        report.contents().filter(|(_, _, _, look)| is(look)).count()
    };
    let untraced =
        count(&|look| primary_device(look).is_some_and(|device| device.trace.events == 0));
    if untraced > shapes {
        notes.push(format!(
            "{} no events: call torch.cuda.memory._record_memory_history before the part to \
             analyze",
            hold(untraced - shapes)
        ));
    }
    let stackless = count(&|look| !look.has_stacks && !look.devices.is_empty());
    if stackless > 0 {
        notes.push(format!(
            "{} no Python stacks: record with stacks=\"python\", or \"all\"",
            hold(stackless)
        ));
    }
    let odd = |of: &dyn Fn(&memtape_core::diagnosis::evidence::torch::look::Look) -> u64| {
        report.contents().map(|(_, _, _, look)| of(look)).sum::<u64>()
    };
    let unusable = odd(&|look| look.unusable);
    if unusable > 0 {
        notes.push(format!("{unusable} entries lack an address or a size and were left out"));
    }
    let contradictions =
        odd(&|look| look.devices.iter().map(|device| device.trace.contradictions).sum::<u64>());
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
    for (_, rank, _, look) in report.contents() {
        let primary = primary_device(look).map(|device| device.device);
        let others = look.devices.iter().filter(|device| Some(device.device) != primary);
        for device in others.filter(|device| device.allocated >= OTHER_DEVICE_BYTES_MIN) {
            notes.push(format!(
                "rank {rank} also holds {} on device {}, which is not compared",
                bytes(device.allocated),
                device.device
            ));
        }
    }
    notes
}

/// How the ends of steps were found, and how many there are.
fn steps(report: &Report<'_>) -> Option<String> {
    let device = primary_device(report.focus()?)?;
    let trace = &device.trace;
    if trace.events == 0 {
        return None;
    }
    let seconds = trace.span_us.map(|(first, last)| last.saturating_sub(first).max(0) as f64 / 1e6);
    let span = seconds.map_or(String::new(), |seconds| format!(" in {seconds:.2} s"));
    let found = match trace.source {
        StepSource::None => {
            return Some(format!(
                "no steps were found in the {} events{span} of the trace: one such file does not \
                 show growth",
                trace.events
            ));
        }
        StepSource::Recorded => "as Memtape recorded them",
        StepSource::Profiler => "as the profiler counts them",
        StepSource::Optimizer => "by Optimizer.step",
        StepSource::OptimizerStacks => "by the optimizer's stacks",
        StepSource::Period => "estimated from the period of allocations",
    };
    let more = if trace.is_cut { "more than " } else { "" };
    let few = if trace.ends > 0 && !report.analysis.judges_peaks {
        "; too few steps to tell whether each needs more than the one before"
    } else {
        ""
    };
    let before = if trace.is_whole {
        ", from the start of the program"
    } else {
        "; older blocks have no step"
    };
    Some(format!(
        "rank {}: the trace holds {} events{span}, {more}{} ends of steps ({found}){before}{few}",
        report.analysis.rank, trace.events, trace.ends
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
    Some(clean(&format!("the files lack {}: an older PyTorch wrote them", keys.join(", "))))
}
