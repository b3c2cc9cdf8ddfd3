//! Two files beside each other, as text and as JSON.

use std::fmt::Write;

use memtape_core::diagnosis::files::{
    Change, DeviceHistory, Diff, Held, History, Level, Shape, StepLevel, different_levels,
    different_trends,
};
use memtape_core::limits::CHANGES_LISTED_MAX;
use serde_json::{Value, json};

use super::Report;
use super::json::{Answer, files, unread};
use super::text::{frame, what, with_levels};
use crate::output::clean;
use crate::read::snapshots::Unreadable;
use crate::render::sections::{section, table_section};
use crate::render::table::Table;
use crate::render::units::{bytes, column_bytes, column_change, plural, signed_bytes, table};

/// Lines that are shown, where not all are.
const LINES_SHOWN: usize = 12;

/// Stacks that are shown, where not all are.
const STACKS_SHOWN: usize = 3;

/// Each comparison, below a heading where there are several, and the unreadable files.
pub(crate) fn all_text(
    reports: &[(Option<u32>, Report<'_>, &Diff)],
    left_out: &[Unreadable],
    all: bool,
) -> String {
    let mut said = String::new();
    for (nth, (rank, report, diff)) in reports.iter().enumerate() {
        if let Some(rank) = rank.filter(|_| reports.len() > 1) {
            let gap = if nth > 0 { "\n" } else { "" };
            let _ = writeln!(said, "{gap}== rank {rank} ==\n");
        }
        said.push_str(&text(report, diff, all));
    }
    section(&mut said, "Left out", left_out.iter().map(|file| file.why.clone()));
    said
}

/// All comparisons as JSON: the object itself for one comparison, `ranks` for several.
pub(crate) fn all_json(
    reports: &[(Option<u32>, Report<'_>, &Diff)],
    unreadable: &[Unreadable],
) -> Answer {
    if let [(_, report, diff)] = reports {
        return json(report, diff, ("left_out", unread(unreadable)));
    }
    let one = |(rank, report, diff): &(Option<u32>, Report<'_>, &Diff)| {
        json(report, diff, ("rank", json!(rank)))
    };
    Answer::several("ranks", &reports.iter().map(one).collect::<Vec<_>>(), unreadable)
}

/// Everything that changed, or a screen of it.
fn text(report: &Report<'_>, diff: &Diff, all: bool) -> String {
    let mut text = String::new();
    let limit = |shown: usize| if all { usize::MAX } else { shown };
    let changed: Vec<&Change> = diff.lines.iter().filter(|line| line.from != line.to).collect();
    let _ = writeln!(text, "{}{}", clean(&sentence(diff, &changed)), beside(report));
    if let Some(found) = &report.analysis.found {
        let class = found.diagnosis.class.as_str();
        let _ = writeln!(text, "{class}: {}", clean(&found.diagnosis.sentence));
    }
    let row = |change: &&Change| {
        vec![
            column_change(change.bytes()),
            column_bytes(change.from.bytes),
            column_bytes(change.to.bytes),
            signed(change.to.blocks, change.from.blocks),
            change.as_str().to_string(),
            what(change.kind, &change.frames.first().cloned().unwrap_or_default()),
        ]
    };
    let rows = changed.iter().take(limit(LINES_SHOWN)).map(row).collect();
    let rows = table(&[">change", ">in A", ">in B", ">blocks", "state", "line"], rows);
    let rest = changed.len().saturating_sub(limit(LINES_SHOWN));
    let same = diff.lines.len() - changed.len();
    let more = [(rest, "more line", "that differ"), (same, "line", "the same in both")];
    let more = more.into_iter().filter(|(count, ..)| *count > 0);
    let more =
        more.map(|(count, noun, which)| format!("… and {} {which}", plural(count as u64, noun)));
    table_section(&mut text, "By line", &rows, more);
    let stacks = diff.stacks.iter().filter(|stack| stack.from != stack.to);
    for stack in stacks.take(limit(STACKS_SHOWN)).filter(|stack| !stack.frames.is_empty()) {
        let title = format!("{} {}", signed_bytes(stack.bytes()), stack.as_str());
        section(&mut text, &title, stack.frames.iter().map(frame));
    }
    shape(&mut text, report);
    totals(&mut text, report);
    text
}

/// Trend of a level, in bytes a step.
fn trend(bytes_per_step: Option<i64>) -> String {
    bytes_per_step.map_or("–".to_string(), column_change)
}

fn signed(to: u64, from: u64) -> String {
    match to.cmp(&from) {
        std::cmp::Ordering::Greater => format!("+{}", to - from),
        std::cmp::Ordering::Equal => "0".to_string(),
        std::cmp::Ordering::Less => format!("-{}", from - to),
    }
}

fn sentence(diff: &Diff, changed: &[&Change]) -> String {
    let sum = diff.lines.iter().fold(0_i64, |sum, line| sum.saturating_add(line.bytes()));
    let name = |change: &Change| change.frames.first().map(frame).unwrap_or_default();
    match changed.first() {
        None => "both hold the same under every line".to_string(),
        Some(top) => {
            let at = if top.frames.is_empty() { "without a stack".into() } else { name(top) };
            format!(
                "B holds {} than A in all; the line that differs most: {} {at}",
                match sum {
                    0 => "as much".to_string(),
                    1.. => format!("{} more", bytes(sum.unsigned_abs())),
                    _ => format!("{} less", bytes(sum.unsigned_abs())),
                },
                signed_bytes(top.bytes())
            )
            .replace("as much than", "as much as")
        }
    }
}

fn segments(device: &DeviceHistory) -> Option<u64> {
    device.shape.is_some().then_some(device.state.segments.len() as u64)
}

/// A part of the reserved bytes, where the segments are known.
fn part(device: &DeviceHistory, of: fn(&Shape) -> u64) -> Option<u64> {
    device.shape.as_ref().map(of)
}

/// Levels of the steps and the reserved memory that differ between the files, beside the lines.
fn beside(report: &Report<'_>) -> String {
    let devices: Vec<&DeviceHistory> =
        report.contents().filter_map(|(_, _, _, state)| state.primary_device()).collect();
    let [from, to] = devices[..] else { return String::new() };
    let said = different_levels(from, to).into_iter().map(|(level, of)| {
        let name = match level {
            Level::Peak => "peak",
            Level::StepNeed => "a step needs",
            Level::Reserved => "reserved",
            Level::InactiveSplit => "inactive split",
        };
        format!("; {name} {} in A, {} in B", bytes(of.from), bytes(of.to))
    });
    let trends = different_trends(&from.past, &to.past).into_iter().map(|(level, of)| {
        let name = match level {
            StepLevel::Minimum => "per-step minimum",
            StepLevel::Peak => "peak",
        };
        let (from, to) = (signed_bytes(of.from), signed_bytes(of.to));
        format!("; its {name} moves by {from} a step in A, {to} in B")
    });
    said.chain(trends).collect()
}

/// Memory that the steps need, and the division of the reserved memory.
fn shape(text: &mut String, report: &Report<'_>) {
    let devices: Vec<&DeviceHistory> =
        report.contents().filter_map(|(_, _, _, state)| state.primary_device()).collect();
    let [from, to] = devices[..] else { return };
    let row = |title: &str, of: fn(&DeviceHistory) -> Option<u64>| {
        let shown = |value: Option<u64>| value.map_or("–".to_string(), column_bytes);
        let change = of(from).zip(of(to)).and_then(|(from, to)| to.checked_signed_diff(from));
        let change = change.map_or("–".to_string(), column_change);
        vec![title.to_string(), shown(of(from)), shown(of(to)), change]
    };
    let count = |device: &DeviceHistory| device.state.segments.len() as u64;
    let segments = signed(count(to), count(from));
    let rows = vec![
        row("a step needs (median)", |device| device.past.step_need()),
        row("reserved", |device| Some(device.state.reserved)),
        row("whole free segments", |device| part(device, |of| of.cached)),
        row("inactive split", DeviceHistory::inactive_split),
        row("largest free block", |device| part(device, |of| of.largest_inactive)),
        vec!["segments".into(), count(from).to_string(), count(to).to_string(), segments],
    ];
    let rows = table(&["what", ">in A", ">in B", ">change"], rows);
    table_section(text, "Shape", &rows, None);
}

/// The whole of each file.
fn totals(text: &mut String, report: &Report<'_>) {
    let files = ["A", "B"].into_iter().zip(report.contents());
    let files = files.filter_map(|(name, (file, _, _, state))| {
        Some((name, file.path.as_path(), state.primary_device()?))
    });
    let rows: Vec<_> = files.collect();
    let moves =
        |level: StepLevel, device: &DeviceHistory| trend(level.bytes_per_step(&device.past));
    let table = Table::of(&rows).column("", |(name, ..)| *name);
    let rows = with_levels(table, |(_, _, device)| device)
        .column(">segments", |(_, _, device)| {
            segments(device).map_or("–".to_string(), |count| count.to_string())
        })
        .column(">growth/step", |(_, _, device)| moves(StepLevel::Minimum, device))
        .column(">peak growth/step", |(_, _, device)| moves(StepLevel::Peak, device))
        .column("file", |(_, path, _)| path.display().to_string())
        .text();
    table_section(text, "Files", &rows, None);
}

/// One comparison as JSON, with one more value.
fn json(report: &Report<'_>, diff: &Diff, (name, value): (&str, Value)) -> Answer {
    let list = |changes: &[Change]| {
        let changed = changes.iter().filter(|change| change.from != change.to);
        changed.take(CHANGES_LISTED_MAX).map(change).collect::<Vec<Value>>()
    };
    let differing = |changes: &[Change]| changes.iter().filter(|c| c.from != c.to).count();
    let total = |of: fn(&Change) -> Held| {
        let sum = |sum: u64, line: &Change| sum.saturating_add(of(line).bytes);
        diff.lines.iter().fold(0, sum)
    };
    let mut rest = json!({
        "mode": report.mode(),
        "allocated": [total(|line| line.from), total(|line| line.to)],
        "peak": of_devices(report, |device| device.past.peak.as_ref().map(|peak| peak.bytes)),
        "step_need": of_devices(report, |device| device.past.step_need()),
        "reserved": of_devices(report, |device| Some(device.state.reserved)),
        "whole_free": of_devices(report, |device| part(device, |of| of.cached)),
        "segments": of_devices(report, segments),
        "inactive_split": of_devices(report, DeviceHistory::inactive_split),
        "step_min_bytes_per_step": per_step(report, StepLevel::Minimum),
        "peak_bytes_per_step": per_step(report, StepLevel::Peak),
        "lines": list(&diff.lines),
        "lines_differing": differing(&diff.lines),
        "stacks": list(&diff.stacks),
        "stacks_differing": differing(&diff.stacks),
        "files": files(report),
    });
    rest[name] = value;
    Answer::new(report, rest)
}

/// Trends of a level in both files, in bytes a step.
fn per_step(report: &Report<'_>, level: StepLevel) -> Vec<Option<i64>> {
    let moves = |state: &History| level.bytes_per_step(&state.primary_device()?.past);
    report.contents().map(|(_, _, _, state)| moves(state)).collect()
}

/// A value of both files; null where a file does not tell.
fn of_devices<T>(report: &Report<'_>, of: fn(&DeviceHistory) -> Option<T>) -> Vec<Option<T>> {
    report.contents().map(|(_, _, _, state)| state.primary_device().and_then(of)).collect()
}

fn change(change: &Change) -> Value {
    json!({
        "state": change.as_str(),
        "kind": change.kind,
        "frames": change.frames,
        "change_bytes": change.bytes(),
        "bytes": [change.from.bytes, change.to.bytes],
        "blocks": [change.from.blocks, change.to.blocks],
    })
}
