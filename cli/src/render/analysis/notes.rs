//! What the files lack, and where what they do not say was found: one sentence each.

use memtape_core::analysis::steps::{STEPS_MAX, StepSource};
use memtape_core::diagnosis::place;
use memtape_core::pickle::torch::{Record, Shape};

use super::{Report, home};
use crate::output::clean;
use crate::render::units::bytes;

/// Memory on another device that is worth a sentence.
const ELSEWHERE_BYTES_MIN: u64 = 1 << 20;

/// All sentences.
pub(crate) fn notes(report: &Report<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if report.files.len() > 1 {
        let files = report.files.len();
        notes.push(match report.mode() {
            "over_time" => format!("{files} files are moments of one rank, by their newest event"),
            _ => format!("ranks are numbered {}", report.ordered.source.said()),
        });
    }
    notes.extend(steps(report));
    if let Some((frame, rate)) = &report.analysis.small {
        notes.push(format!(
            "{rate} bytes of each step stay, from {}: too little to matter, such as losses kept \
             for a log",
            place(frame)
        ));
    }
    for (_, rank, _, look) in report.looks() {
        let at_home = home(look).map(|device| device.device);
        let others = look.devices.iter().filter(|device| Some(device.device) != at_home);
        for device in others.filter(|device| device.allocated >= ELSEWHERE_BYTES_MIN) {
            notes.push(format!(
                "rank {rank} holds {} on device {}, too, which is not compared",
                bytes(device.allocated),
                device.device
            ));
        }
    }
    let shapes = report.files.iter().filter(|file| file.shape == Shape::Segments).count();
    if shapes > 0 {
        notes.push(format!(
            "{} segments only: what was alive at other times, and since when, is not known; \
             torch.cuda.memory._dump_snapshot after _record_memory_history writes it",
            hold(shapes)
        ));
    }
    let count = |is: &dyn Fn(&memtape_core::analysis::look::Look) -> bool| {
        report.looks().filter(|(_, _, _, look)| is(look)).count()
    };
    let untraced = count(&|look| home(look).is_some_and(|device| device.trace.events == 0));
    if untraced > shapes {
        notes.push(format!(
            "{} no events: call torch.cuda.memory._record_memory_history before what is to be seen",
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
    let odd = |of: &dyn Fn(&memtape_core::analysis::look::Look) -> u64| {
        report.looks().map(|(_, _, _, look)| of(look)).sum::<u64>()
    };
    let unusable = odd(&|look| look.unusable);
    if unusable > 0 {
        notes.push(format!("{unusable} entries lack an address or a size and were left out"));
    }
    let contradictions =
        odd(&|look| look.devices.iter().map(|device| device.trace.contradictions).sum::<u64>());
    if contradictions > 0 {
        notes.push(format!(
            "{contradictions} allocations at an address in use: events were left out of the trace"
        ));
    }
    notes.extend(missing(report));
    notes
}

fn hold(files: usize) -> String {
    if files == 1 { "one file holds".to_string() } else { format!("{files} files hold") }
}

/// Where steps come from, and how many there are.
fn steps(report: &Report<'_>) -> Option<String> {
    let device = home(report.focus()?)?;
    let trace = &device.trace;
    if trace.events == 0 {
        return None;
    }
    let seconds = trace.span_us.map(|(first, last)| last.saturating_sub(first).max(0) as f64 / 1e6);
    let span = seconds.map_or(String::new(), |seconds| format!(" in {seconds:.2} s"));
    let found = match trace.source {
        StepSource::None => {
            return Some(format!(
                "no steps were found in the {} events{span} of the trace: growth cannot be told \
                 from one such file",
                trace.events
            ));
        }
        StepSource::Profiler => "as the profiler counts them",
        StepSource::Optimizer => "by Optimizer.step",
        StepSource::OptimizerStacks => "by the optimizer's stacks",
        StepSource::Period => "guessed from what recurs",
    };
    let more = if trace.ends as usize >= STEPS_MAX { "at least " } else { "" };
    let before = if trace.is_whole {
        ", from the start of the program"
    } else {
        "; what is older has no birth"
    };
    Some(format!(
        "rank {}: the trace holds {} events{span}, {more}{} ends of steps ({found}){before}",
        report.analysis.rank, trace.events, trace.ends
    ))
}

/// Keys that all records lack and that matter here.
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
    Some(clean(&format!("the files do not say {}: an older PyTorch wrote them", keys.join(", "))))
}
