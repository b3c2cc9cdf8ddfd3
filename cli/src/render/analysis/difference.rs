//! Two files beside each other, as text and as JSON.

use std::fmt::Write;

use memtape_core::diagnosis::evidence::torch::look::DeviceLook;
use memtape_core::diagnosis::files::{Change, Diff, Held};
use memtape_core::limits::CHANGES_LISTED_MAX;
use serde_json::{Value, json};

use super::json::{files, frame as frame_json, verdict_of};
use super::text::{frame, section, what};
use super::{Report, primary_device};
use crate::output::clean;
use crate::render::units::{bytes, plural, signed_bytes, table};

/// Lines that are shown, where not all are.
const LINES_SHOWN: usize = 12;

/// Stacks that are shown, where not all are.
const STACKS_SHOWN: usize = 3;

/// Everything that changed, or a screen of it.
pub(crate) fn text(report: &Report<'_>, diff: &Diff, all: bool) -> String {
    let mut text = String::new();
    let limit = |shown: usize| if all { usize::MAX } else { shown };
    let changed: Vec<&Change> = diff.lines.iter().filter(|line| line.from != line.to).collect();
    let _ = writeln!(text, "{}{}", clean(&sentence(diff, &changed)), beside(report));
    if let Some(verdict) = &report.analysis.verdict {
        let class = verdict.class.as_str();
        let _ = writeln!(text, "{class}: {}", clean(&verdict.sentence));
    }
    let row = |change: &&Change| {
        vec![
            signed_bytes(change.bytes()),
            bytes(change.from.bytes),
            bytes(change.to.bytes),
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
    section(&mut text, "By line", rows.lines().map(str::to_string).chain(more));
    let stacks = diff.stacks.iter().filter(|stack| stack.from != stack.to);
    for stack in stacks.take(limit(STACKS_SHOWN)).filter(|stack| !stack.frames.is_empty()) {
        let title = format!("{} {}", signed_bytes(stack.bytes()), stack.as_str());
        section(&mut text, &title, stack.frames.iter().map(frame));
    }
    shape(&mut text, report);
    totals(&mut text, report);
    text
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

/// Part of the smaller value by which two values differ enough to be named first: a twentieth.
const DIFFERENT_PART: u64 = 20;

/// What the steps need and what is reserved, where that differs: it is beside what the lines hold.
fn beside(report: &Report<'_>) -> String {
    let devices: Vec<&DeviceLook> =
        report.contents().filter_map(|(_, _, _, look)| primary_device(look)).collect();
    let [from, to] = devices[..] else { return String::new() };
    let peak = |device: &DeviceLook| device.trace.peak.as_ref().map(|peak| peak.bytes);
    let values = [
        ("peak", peak(from).zip(peak(to))),
        ("a step needs", from.trace.step_need().zip(to.trace.step_need())),
        ("reserved", Some((from.space.reserved, to.space.reserved))),
    ];
    let differ = |from: u64, to: u64| from.abs_diff(to) > from.min(to) / DIFFERENT_PART;
    let said = values.into_iter().filter_map(|(name, values)| {
        let (from, to) = values.filter(|&(from, to)| differ(from, to))?;
        Some(format!("; {name} {} in A, {} in B", bytes(from), bytes(to)))
    });
    said.collect()
}

/// What the steps need, and how what is reserved is divided.
fn shape(text: &mut String, report: &Report<'_>) {
    let devices: Vec<&DeviceLook> =
        report.contents().filter_map(|(_, _, _, look)| primary_device(look)).collect();
    let [from, to] = devices[..] else { return };
    let row = |title: &str, of: fn(&DeviceLook) -> Option<u64>| {
        let shown = |value: Option<u64>| value.map_or("–".to_string(), bytes);
        let change = of(from).zip(of(to)).and_then(|(from, to)| to.checked_signed_diff(from));
        let change = change.map_or("–".to_string(), signed_bytes);
        vec![title.to_string(), shown(of(from)), shown(of(to)), change]
    };
    let count = |device: &DeviceLook| device.segments.len() as u64;
    let segments = signed(count(to), count(from));
    let rows = vec![
        row("a step needs (median)", |device| device.trace.step_need()),
        row("reserved", |device| Some(device.space.reserved)),
        row("whole free segments", |device| Some(device.space.whole_free)),
        row("inactive split", |device| Some(device.space.split_free)),
        row("largest free piece", |device| Some(device.space.largest_piece)),
        vec!["segments".into(), count(from).to_string(), count(to).to_string(), segments],
    ];
    let rows = table(&["what", ">in A", ">in B", ">change"], rows);
    section(text, "Shape", rows.lines().map(str::to_string));
}

/// The whole of each file.
fn totals(text: &mut String, report: &Report<'_>) {
    let row = |(name, (file, _, _, look)): (&str, (&crate::read::snapshots::Snapshot, _, _, _))| {
        let device = primary_device(look)?;
        let peak = device.trace.peak.as_ref().map_or("–".to_string(), |peak| bytes(peak.bytes));
        Some(vec![
            name.to_string(),
            bytes(device.allocated),
            peak,
            bytes(device.space.reserved),
            bytes(device.space.split_free),
            file.path.display().to_string(),
        ])
    };
    let rows = ["A", "B"].into_iter().zip(report.contents()).filter_map(row).collect();
    let titles = ["", ">allocated", ">peak", ">reserved", ">inactive split", "file"];
    let rows = table(&titles, rows);
    section(text, "Files", rows.lines().map(str::to_string));
}

/// The same for programs, on one line.
pub(crate) fn json(report: &Report<'_>, diff: &Diff) -> String {
    let found = verdict_of(report);
    let list = |changes: &[Change]| {
        let changed = changes.iter().filter(|change| change.from != change.to);
        changed.take(CHANGES_LISTED_MAX).map(change).collect::<Vec<Value>>()
    };
    let differing = |changes: &[Change]| changes.iter().filter(|c| c.from != c.to).count();
    let total = |of: fn(&Change) -> Held| {
        let sum = |sum: u64, line: &Change| sum.saturating_add(of(line).bytes);
        diff.lines.iter().fold(0, sum)
    };
    let rest = json!({
        "mode": report.mode(),
        "allocated": [total(|line| line.from), total(|line| line.to)],
        "peak": of_devices(report, |device| device.trace.peak.as_ref().map(|peak| peak.bytes)),
        "step_need": of_devices(report, |device| device.trace.step_need()),
        "reserved": of_devices(report, |device| Some(device.space.reserved)),
        "whole_free": of_devices(report, |device| Some(device.space.whole_free)),
        "split_free": of_devices(report, |device| Some(device.space.split_free)),
        "segments": of_devices(report, |device| Some(device.segments.len() as u64)),
        "lines": list(&diff.lines),
        "lines_differing": differing(&diff.lines),
        "stacks": list(&diff.stacks),
        "stacks_differing": differing(&diff.stacks),
        "files": files(report),
    });
    format!("{{\"verdict\":{found},{}", rest.to_string().trim_start_matches('{'))
}

/// A value of both files; null where a file does not tell.
fn of_devices(report: &Report<'_>, of: fn(&DeviceLook) -> Option<u64>) -> Vec<Option<u64>> {
    report.contents().map(|(_, _, _, look)| primary_device(look).and_then(of)).collect()
}

fn change(change: &Change) -> Value {
    json!({
        "state": change.as_str(),
        "kind": change.kind.as_str(),
        "frames": change.frames.iter().map(frame_json).collect::<Vec<_>>(),
        "change_bytes": change.bytes(),
        "bytes": [change.from.bytes, change.to.bytes],
        "blocks": [change.from.blocks, change.to.blocks],
    })
}
