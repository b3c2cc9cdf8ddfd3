//! An analysis as text: one sentence, its evidence, the lines that hold the memory, the advice.
//!
//! By default it fits a screen.

use std::collections::BTreeMap;
use std::fmt::Write;

use memtape_core::detector::Layer;
use memtape_core::diagnosis::files::{DeviceHistory, Found, HeldLine, Kind, why_refused};
use memtape_core::diagnosis::percent;
use memtape_core::snapshot::Frame;

use super::notes::{no_stack, notes};
use super::{Mode, Report};
use crate::output::clean;
use crate::read::snapshots::Unreadable;
use crate::render::palette::Meaning;
use crate::render::sections::{section, table_section};
use crate::render::table::Table;
use crate::render::units::{bytes, column_bytes, column_change, plural, table};

/// Lines of code that are shown, where not all are.
const LINES_SHOWN: usize = 5;

/// Lines shown at the peak.
const PEAK_LINES_SHOWN: usize = 4;

/// Ranks that are shown, where not all are.
const RANKS_SHOWN: usize = 8;

/// Every job below a heading, and the files that were left out.
pub(crate) fn analyses(
    reports: &[(&str, Report<'_>)],
    left_out: &[Unreadable],
    all: bool,
) -> String {
    let mut text = String::new();
    for (nth, (name, report)) in reports.iter().enumerate() {
        if reports.len() > 1 {
            let gap = if nth > 0 { "\n" } else { "" };
            let _ = writeln!(text, "{gap}== {} ==\n", clean(name));
        }
        text.push_str(&analysis(report, all));
    }
    section(&mut text, "Left out", left_out.iter().map(|file| file.why.clone()));
    if !all {
        let _ = writeln!(text, "\n--all shows everything, --json the same for programs");
    }
    text
}

/// Everything, or a screen of it.
fn analysis(report: &Report<'_>, all: bool) -> String {
    let mut text = String::new();
    let limit = |shown: usize| if all { usize::MAX } else { shown };
    match &report.analysis.found {
        Some(found) => self::found(&mut text, report, found, all),
        None => {
            let meaning = if report.unjudged().is_some() { Meaning::Warn } else { Meaning::Good };
            let _ = writeln!(text, "{}", meaning.paint(&healthy(report)));
        }
    }
    section(&mut text, "Also wrong", report.analysis.also.iter().map(|of| also(report, of)));
    lines(&mut text, report, limit(LINES_SHOWN));
    peak(&mut text, report, limit(PEAK_LINES_SHOWN));
    ranks(&mut text, report, limit(RANKS_SHOWN));
    requests(&mut text, report);
    let notes = notes(report);
    section(&mut text, "Notes", notes.into_iter().chain(settings(report)));
    text
}

/// The finding, in one sentence.
pub(crate) fn sentence(report: &Report<'_>) -> String {
    match &report.analysis.found {
        Some(found) => found.diagnosis.sentence.clone(),
        None => healthy(report).replace("\n\n", "; "),
    }
}

/// No fault, or no verdict, in one sentence.
fn healthy(report: &Report<'_>) -> String {
    let steps = report.analysis.steps;
    let what = match report.mode() {
        Mode::OneFile => "this file".to_string(),
        Mode::OverTime => format!("these {} files of one rank", report.files.len()),
        Mode::AcrossRanks => match report.ordered.ranks.len() {
            1 => "this rank".to_string(),
            ranks => format!("these {ranks} ranks"),
        },
    };
    match report.unjudged() {
        Some((why, advice)) => format!("cannot judge {what}: {why}\n\n  try first  {advice}"),
        None => {
            let layers = &report.analysis.unchecked;
            let is_trend = |layer: &Layer| matches!(layer, Layer::Peak | Layer::Reserved);
            let are_judged = !layers.iter().any(|(layer, _)| is_trend(layer));
            let what_grows = if are_judged { "nothing grows" } else { "no line keeps more" };
            let (span, rest) = (plural(steps, "step"), not_checked(layers));
            format!("nothing wrong is seen in {what}: {what_grows} over {span}{rest}")
        }
    }
}

/// What was not checked, and how many steps that takes; empty where everything was.
pub(super) fn not_checked(layers: &[(Layer, usize)]) -> String {
    let what = |layer: Layer| match layer {
        Layer::Peak => "growth of the peaks",
        Layer::Host => "memory of the host",
        Layer::NonTorch => "GPU memory outside PyTorch",
        Layer::Progress => "standstills",
        Layer::Process => "how the processes ended",
        _ => "fragmentation that grows",
    };
    // What no file holds comes last.
    let named = |(layer, steps_min): &(Layer, usize)| match (layer, steps_min) {
        (Layer::Reserved, 0) => {
            format!("{} (reserved memory rose in large pieces)", what(Layer::Reserved))
        }
        (layer, 0) => what(*layer).to_string(),
        (layer, min) => format!("{} ({min} whole steps are needed)", what(*layer)),
    };
    let named: Vec<String> = layers.iter().map(named).collect();
    let is_absent = layers.iter().any(|(layer, _)| *layer == Layer::Host);
    let why = if is_absent { " (not in the files)" } else { "" };
    match named.as_slice() {
        [] => String::new(),
        named => format!("; not checked: {}{why}", named.join(", ")),
    }
}

fn found(text: &mut String, report: &Report<'_>, found: &Found, all: bool) {
    let diagnosis = &found.diagnosis;
    let _ = writeln!(text, "{}\n", Meaning::Bad.paint(&clean(&diagnosis.sentence)));
    for (name, value) in found_facts(report, found) {
        let _ = writeln!(text, "  {:<11}{}", name, clean(&value));
    }
    if all {
        section(text, "Stack, innermost first", diagnosis.stack.iter().map(frame));
    }
    section(text, "Evidence for it", diagnosis.evidence.iter().cloned());
    section(text, "Evidence against it", diagnosis.against.iter().cloned());
}

/// What is wrong on a further device or at a further moment, in one line.
fn also(report: &Report<'_>, found: &Found) -> String {
    let Found { diagnosis, growth, .. } = found;
    let class = diagnosis.class.as_str();
    let file = report.alone(found).map(|file| format!("{} alone, ", file.path.display()));
    let file = file.unwrap_or_default();
    clean(&format!("{file}device {}: {class}: {}", growth.device, diagnosis.sentence))
}

/// What is said of a finding beside its sentence, a name and a value each.
fn found_facts(report: &Report<'_>, found: &Found) -> Vec<(&'static str, String)> {
    let Found { diagnosis, growth, .. } = found;
    let sure = match diagnosis.confidence_ppm {
        // It would be 0 %.
        ..5_000 => String::new(),
        sure => format!(", {} sure", percent(sure)),
    };
    let mut pairs = vec![("class", format!("{}{sure}", diagnosis.class.as_str()))];
    if report.focus().is_some_and(|state| state.devices.len() > 1) {
        pairs.push(("device", growth.device.to_string()));
    }
    if let Some(file) = report.alone(found) {
        let name = file.path.display();
        pairs.push(("shown by", format!("{name} alone: the files together do not show it")));
    }
    if let Some(culprit) = &diagnosis.culprit {
        pairs.push(("line", frame(culprit)));
    }
    if growth.bytes_per_step > 0 {
        let here = match diagnosis.explained_ppm {
            // It would be 0 %.
            ..5_000 => String::new(),
            explained => format!(", {} of it here", percent(explained)),
        };
        let over = match found.measured() {
            (_, Some([from, to])) => format!(" over steps {from} to {to}"),
            (0, None) => String::new(),
            (steps, None) => format!(" over {}", plural(steps, "step")),
        };
        pairs.push(("growth", format!("{} a step{over}{here}", bytes(growth.bytes_per_step))));
    }
    pairs.push(("try first", diagnosis.advice.clone()));
    pairs.push(("restart", diagnosis.restart.to_string()));
    pairs
}

/// `/app/train.py:36 train_step`.
pub(super) fn frame(frame: &Frame) -> String {
    let line = if frame.line == 0 { String::new() } else { format!(":{}", frame.line) };
    format!("{}{line} {}", frame.file, frame.function).trim().to_string()
}

/// A frame, and the use of its memory; `no_stack` for memory without one.
pub(super) fn what(kind: Kind, of: &Frame, no_stack: &str) -> String {
    match kind {
        Kind::Nameless => no_stack.to_string(),
        Kind::OptimizerState => format!("{} (optimizer state)", frame(of)),
        Kind::Backward => format!("{} (backward)", frame(of)),
        Kind::Module | Kind::Other => frame(of),
    }
}

fn lines(text: &mut String, report: &Report<'_>, shown: usize) {
    let Some(DeviceHistory { state, .. }) = report.device() else { return };
    let analysis = report.analysis;
    // What grows comes first: it may be small beside the weights.
    let mut lines: Vec<&HeldLine> = analysis.lines.iter().filter(|line| line.bytes > 0).collect();
    let stays = |line: &HeldLine| line.grown > 0 && line.generations > 1;
    lines.sort_by_key(|line| std::cmp::Reverse((stays(line), line.bytes)));
    let rest = lines.len().saturating_sub(shown);
    let no_stack = no_stack(report, false);
    let mut table = Table::of(lines.into_iter().take(shown));
    table = table.column(">bytes", |line| column_bytes(line.bytes));
    if analysis.lines.iter().any(|line| line.others_bytes.is_some()) {
        table = table.column(">others", |line| column_bytes(line.others_bytes.unwrap_or(0)));
    }
    let rows = table
        .column(">blocks", |line| line.blocks)
        .column(">grown", |line| growth(line.grown))
        .column(">steps", births)
        .column("line", |line| what(line.kind, &line.frame, no_stack))
        .text();
    let blocks = state.blocks.iter().filter(|block| !block.pending).count();
    let title = format!(
        "{}, alive at the end: {} in {}",
        owner(report),
        bytes(state.allocated),
        plural(blocks as u64, "block")
    );
    let more = (rest > 0).then(|| format!("… and {}", plural(rest as u64, "more line")));
    table_section(text, &title, &rows, more);
}

/// `Rank 2`; where the rank has several devices, `Rank 2, device 1`.
fn owner(report: &Report<'_>) -> String {
    let rank = report.analysis.rank;
    match report.focus().map(|state| state.devices.len()) {
        Some(2..) => format!("Rank {rank}, device {}", report.analysis.device),
        _ => format!("Rank {rank}"),
    }
}

fn growth(grown: i64) -> String {
    if grown == 0 { "–".to_string() } else { column_change(grown) }
}

fn births(line: &HeldLine) -> String {
    match line.generations {
        0 => "–".to_string(),
        steps => steps.to_string(),
    }
}

fn peak(text: &mut String, report: &Report<'_>, shown: usize) {
    let past = report.device().map(|device| &device.past);
    let Some((past, peak)) = past.and_then(|past| Some((past, past.peak.as_ref()?))) else {
        return;
    };
    let share = |part: u64| {
        let rounded = part.saturating_mul(200) / peak.bytes.max(1);
        format!("{} %", rounded.div_ceil(2))
    };
    let lines = &report.analysis.peak;
    let no_stack = no_stack(report, true);
    let mut rows: Vec<Vec<String>> = lines
        .iter()
        .take(shown)
        .map(|line| {
            let numbers = [column_bytes(line.bytes), share(line.bytes), line.blocks.to_string()];
            let line = what(line.kind, &line.frame, no_stack);
            numbers.into_iter().chain([line]).collect()
        })
        .collect();
    let (older, blocks) = report.analysis.peak_nameless;
    if older > 0 {
        let what = "(older than the trace, freed since)".to_string();
        rows.push(vec![column_bytes(older), share(older), blocks.to_string(), what]);
    }
    let rest = lines.len().saturating_sub(shown);
    let more = (rest > 0).then(|| format!("… and {}", plural(rest as u64, "more line")));
    let when = match past.ends {
        0 => String::new(),
        _ => format!(", in step {} of {} of the trace", peak.step, past.ends + 1),
    };
    let title = format!("{}, alive at the peak: {}{when}", owner(report), bytes(peak.bytes));
    let rows = table(&[">bytes", ">share", ">blocks", "line"], rows);
    table_section(text, &title, &rows, more);
}

fn ranks(text: &mut String, report: &Report<'_>, shown: usize) {
    let over_time = report.mode() == Mode::OverTime;
    let mut found: Vec<_> = report.contents().zip(&report.ordered.originals).collect();
    found.sort_by_key(|((_, rank, nth, _), _)| (*rank, *nth));
    let rest = found.len().saturating_sub(shown);
    // A copy has the number of the state that it shows again.
    let mut states = BTreeMap::new();
    let shown = found.into_iter().take(shown).flat_map(|((file, rank, _, of), original)| {
        let next = states.len() as u64 + 1;
        let state = *states.entry(original).or_insert(next);
        let number = if over_time { state } else { u64::from(rank) };
        of.devices.iter().map(move |device| (number, file.path.as_path(), device))
    });
    let rows: Vec<_> = shown.collect();
    let first = if over_time { ">state" } else { ">rank" };
    let mut table = Table::of(&rows).column(first, |(number, ..)| *number);
    if report.contents().any(|(_, _, _, state)| state.devices.len() > 1) {
        table = table.column(">device", |(_, _, device)| u64::from(device.state.device));
    }
    let rows = with_levels(table, |(_, _, device)| device)
        .column(">pending free", |(_, _, device)| column_bytes(device.pending()))
        .column(">step ends", |(_, _, device)| device.past.ends)
        .column("file", |(_, path, _)| path.display().to_string())
        .text();
    let more = (rest > 0).then(|| format!("… and {rest} more"));
    table_section(text, "Files", &rows, more);
}

/// Adds the columns with a device's present and past memory.
pub(super) fn with_levels<'a, T>(
    table: Table<'a, T>,
    device: for<'b> fn(&'b T) -> &'b DeviceHistory,
) -> Table<'a, T> {
    let peak = move |of: &T| {
        device(of).past.peak.as_ref().map_or("–".to_string(), |peak| column_bytes(peak.bytes))
    };
    table
        .column(">allocated", move |of| column_bytes(device(of).state.allocated))
        .column(">peak", peak)
        .column(">reserved", move |of| column_bytes(device(of).state.reserved))
        .column(">inactive split", move |of| split_free(device(of)))
}

/// Free bytes between live blocks; they are not known without segments.
fn split_free(device: &DeviceHistory) -> String {
    device.inactive_split().map_or("–".to_string(), column_bytes)
}

/// Requests that failed.
fn requests(text: &mut String, report: &Report<'_>) {
    let is_found = |rank: u32| {
        let mut found = report.found().map(|found| &found.growth);
        found.any(|growth| growth.rank == rank && growth.layer == Layer::Process)
    };
    for (_, rank, _, state) in report.contents() {
        let Some(device) = state.primary_device().filter(|_| !is_found(rank)) else { continue };
        if let Some(refused) = device.past.refused.last() {
            let title =
                format!("Rank {rank}: a request of {} failed", bytes(refused.request.bytes));
            section(text, &title, why_refused(refused));
        }
    }
}

/// Settings, and bytes in private pools, one sentence each.
pub(crate) fn settings(report: &Report<'_>) -> Vec<String> {
    let mut said = Vec::new();
    let Some(state) = report.focus() else { return said };
    let shape = report.device().and_then(|device| device.shape.as_ref());
    if let Some(shape) = shape.filter(|shape| shape.private > 0) {
        said.push(format!(
            "private pools (CUDA graphs, MemPool) hold {}, {} of it in use",
            bytes(shape.private),
            bytes(shape.private_used)
        ));
    }
    let settings = &state.rank.settings;
    let set: Vec<String> = settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if !set.is_empty() {
        said.push(format!("allocator settings: {}", set.join(", ")));
    }
    said
}
