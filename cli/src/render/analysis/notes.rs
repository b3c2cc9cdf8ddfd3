//! Notes below an analysis: missing parts of the files, and how ranks and steps were found.

use memtape_core::detector::Layer;
use memtape_core::diagnosis::files::{DeviceHistory, Found, History};
use memtape_core::diagnosis::location;
use memtape_core::pickle::Record;
use memtape_core::pickle::torch::Shape;
use memtape_core::snapshot::step_source::StepSource;

use super::text::not_checked;
use super::{Mode, Report};
use crate::output::clean;
use crate::read::snapshots::Snapshot;
use crate::render::units::{bytes, plural};

/// Least bytes on another device that get a note.
const OTHER_DEVICE_BYTES_MIN: u64 = 1 << 20;

/// Least bytes of whole free segments beyond the peak that get a note.
const IDLE_BYTES_MIN: u64 = 512 << 20;

/// The part of what is reserved that they must be: an eighth.
const IDLE_PART: u64 = 8;

/// All notes.
pub(crate) fn notes(report: &Report<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if report.files.len() > 1 {
        let files = report.files.len();
        notes.push(match report.mode() {
            Mode::OneFile => format!("{files} files show one state"),
            Mode::OverTime => format!("{files} files are of one rank, by step or newest event"),
            Mode::AcrossRanks => format!("ranks are numbered {}", report.ordered.source.note()),
        });
    }
    notes.extend(copies(report));
    notes.extend(steps(report));
    if let Some((frame, rate)) = &report.analysis.small {
        notes.push(format!(
            "{} a step are kept from {}: too little to matter, such as losses kept for a log",
            bytes(*rate),
            location(frame)
        ));
    }
    notes.extend(other_devices(report));
    notes.extend(cached(report));
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
    notes.extend(stacks(report));
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

/// Files that show the state of another file. Without events the state may be later.
fn copies(report: &Report<'_>) -> Option<String> {
    let mut copies = report.contents().zip(report.originals()).filter(|(_, of)| of.is_some());
    let ((file, .., state), original) = copies.next()?;
    let shown = match state.is_dated() {
        true => "the same state",
        false => "the same blocks at the same addresses",
    };
    let more = match copies.count() {
        0 => String::new(),
        1 => "; 1 more file is a copy".to_string(),
        more => format!("; {more} more files are copies"),
    };
    let (file, original) = (file.path.display(), original?.path.display());
    Some(clean(&format!("{file} shows {shown} as {original}: it counts once{more}")))
}

fn hold(files: usize) -> String {
    if files == 1 { "one file holds".to_string() } else { format!("{files} files hold") }
}

/// Stacks that a recording kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stacks {
    /// The stacks of all events and blocks.
    All,
    /// The stacks of live blocks.
    Live,
    /// None were asked for.
    LeftOut,
    /// None of Python.
    NotOfPython,
}

impl Stacks {
    fn of(file: &Snapshot, state: &History) -> Self {
        match (lacks(file, Record::Event, "frames"), state.has_stacks()) {
            (true, true) => Self::Live,
            (true, false) => Self::LeftOut,
            (false, false) => Self::NotOfPython,
            (false, true) => Self::All,
        }
    }

    /// Why a file has no stacks, and whose it lacks.
    fn note(self) -> Option<&'static str> {
        Some(match self {
            Self::All => return None,
            Self::Live => {
                "stacks of live blocks only, as context=\"state\" records them: what was freed has \
                 no line; record with context=\"all\""
            }
            Self::LeftOut => "no stacks, as context=None records it: record with context=\"all\"",
            Self::NotOfPython => "no Python stacks: record with stacks=\"python\", or \"all\"",
        })
    }
}

/// What a table calls memory without a stack: alive at the end, or (`was_freed`) at the peak. Of
/// files that differ in this the ordinary reasons are given.
pub(super) fn no_stack(report: &Report<'_>, was_freed: bool) -> &'static str {
    let kept = report.contents().map(|(file, _, _, state)| Stacks::of(file, state));
    let mut kept = kept.collect::<Vec<_>>();
    kept.dedup();
    match kept[..] {
        [Stacks::LeftOut] => "(no stack: the recording was made without stacks)",
        [Stacks::NotOfPython] => "(no stack: the recording has no Python stacks)",
        [Stacks::Live] if was_freed => "(no stack: freed, and only live blocks have stacks)",
        _ => "(no stack: a backward pass, or older than the recording)",
    }
}

/// Why files have no stacks, one sentence for each reason.
fn stacks(report: &Report<'_>) -> Vec<String> {
    let contents = report.contents().filter(|(_, _, _, state)| !state.devices.is_empty());
    let kept: Vec<Stacks> = contents.map(|(file, _, _, state)| Stacks::of(file, state)).collect();
    let note = |which: Stacks| {
        let files = kept.iter().filter(|&&of| of == which).count();
        which.note().filter(|_| files > 0).map(|note| format!("{} {note}", hold(files)))
    };
    [Stacks::Live, Stacks::LeftOut, Stacks::NotOfPython].into_iter().filter_map(note).collect()
}

/// Do all records of a kind lack this key? False where there are none.
fn lacks(file: &Snapshot, record: Record, key: &str) -> bool {
    let mut missing = file.notes.missing.iter();
    missing.any(|m| m.record == record && m.key == key && m.count == m.of)
}

/// What the allocator keeps in whole free segments beyond the peak of the trace, where it is much.
fn cached(report: &Report<'_>) -> Option<String> {
    let device = report.device()?;
    let peak = device.past.peak.as_ref()?.bytes;
    let Some(shape) = &device.shape else {
        let is_found = report.found().any(|found| found.growth.layer == Layer::Reserved);
        return if is_found { None } else { idle(device.state.reserved, peak) };
    };
    let idle = shape.cached.saturating_sub(peak.saturating_sub(device.state.allocated));
    let is_much = idle >= IDLE_BYTES_MIN && idle >= shape.reserved / IDLE_PART;
    is_much.then(|| {
        format!(
            "{} of {} reserved are whole free segments; the peak of the trace needs {} of them, {} \
             are idle: the allocator gives them back before a request of this process fails; for \
             NCCL and other processes, call torch.cuda.empty_cache() once after the phase that \
             needed them",
            bytes(shape.cached),
            bytes(shape.reserved),
            bytes(shape.cached.saturating_sub(idle)),
            bytes(idle)
        )
    })
}

/// What is reserved beyond the peak of the trace, where it is much and the segments are not known.
fn idle(reserved: u64, peak: u64) -> Option<String> {
    let idle = reserved.saturating_sub(peak);
    let is_much = peak > 0 && idle >= IDLE_BYTES_MIN && idle >= reserved / IDLE_PART;
    is_much.then(|| {
        format!(
            "{} of {} reserved are beyond the peak of the trace: a cache of an earlier phase, or \
             fragments; memtape run --detail records which",
            bytes(idle),
            bytes(reserved)
        )
    })
}

/// Memory on devices other than the one that is shown.
fn other_devices(report: &Report<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    for (_, rank, _, state) in report.contents() {
        let is_focus = rank == report.analysis.rank;
        let primary = state.primary_device().map(|device| device.state.device);
        let shown = if is_focus { Some(report.analysis.device) } else { primary };
        let others = state.devices.iter().filter(|device| Some(device.state.device) != shown);
        for device in others.filter(|of| of.state.allocated >= OTHER_DEVICE_BYTES_MIN) {
            notes.push(format!(
                "rank {rank} also holds {} on device {}, which is judged by itself and not \
                 compared with other ranks: {}",
                bytes(device.state.allocated),
                device.state.device,
                verdict(report, rank, device)
            ));
        }
    }
    notes
}

/// The verdict on a device beside the one that is shown.
fn verdict(report: &Report<'_>, rank: u32, device: &DeviceHistory) -> String {
    let is_found =
        |of: &&Found| of.growth.device == device.state.device && of.ranks.contains(&rank);
    if let Some(found) = report.found().find(is_found) {
        return format!("its verdict is {}, above", found.diagnosis.class.as_str());
    }
    match device.unjudged() {
        Some(why) => format!("it cannot be judged: {}", why.sentence()),
        None => {
            let (span, rest) = (plural(device.past.ends, "step"), not_checked(&device.unchecked()));
            format!("nothing wrong is seen there over {span}{rest}")
        }
    }
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
    let before = if past.is_whole {
        ", from the start of the program"
    } else {
        "; older blocks have no step"
    };
    Some(format!(
        "rank {}: the trace holds {} events{span}, {more}{} ({found}) in {more}{} whole \
         and cut steps{before}",
        report.analysis.rank,
        past.events,
        plural(past.ends, "step end"),
        past.ends + 1
    ))
}

/// Keys that the analysis uses and that older releases of PyTorch do not write.
fn missing(report: &Report<'_>) -> Option<String> {
    let matters = [
        (Record::Event, "time_us"),
        (Record::Block, "requested_size"),
        (Record::Segment, "stream"),
    ];
    let is_lacking =
        |(record, key): &(Record, &str)| report.files.iter().any(|file| lacks(file, *record, key));
    let keys: Vec<&str> =
        matters.iter().filter(|wanted| is_lacking(wanted)).map(|&(_, k)| k).collect();
    if keys.is_empty() {
        return None;
    }
    Some(clean(&format!("the files lack {}: an older PyTorch wrote them", keys.join(", "))))
}
