//! Two files beside each other, as text and as JSON.

use std::fmt::Write;

use memtape_core::diagnosis::files::{
    Change, DeviceHistory, Diff, Found, History, Level, Shape, Sides, StepLevel, different_levels,
    different_trends,
};
use memtape_core::limits::CHANGES_LISTED_MAX;
use serde_json::{Value, json};

use super::Report;
use super::json::{Answer, files, unread};
use super::notes::no_stack;
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
    reports: &[(Option<u32>, Report<'_>, &[Diff])],
    left_out: &[Unreadable],
    all: bool,
) -> String {
    let mut said = String::new();
    for (rank, report, diffs) in reports {
        let rank = rank.filter(|_| reports.len() > 1).map(|rank| format!("rank {rank}"));
        for diff in *diffs {
            let device = (diffs.len() > 1).then(|| named(diff));
            let heading: Vec<String> = rank.iter().cloned().chain(device).collect();
            if !heading.is_empty() {
                let gap = if said.is_empty() { "" } else { "\n" };
                let _ = writeln!(said, "{gap}== {} ==\n", heading.join(", "));
            }
            said.push_str(&text(&Compared::of(report, diff), all));
        }
    }
    section(&mut said, "Left out", left_out.iter().map(|file| file.why.clone()));
    said
}

/// The device of a comparison: `device 1`; of files with their memory on different ones both.
fn named(diff: &Diff) -> String {
    match (diff.devices.from, diff.devices.to) {
        (Some(from), Some(to)) if from != to => format!("device {from} in A, {to} in B"),
        (from, to) => from.or(to).map_or(String::new(), |device| format!("device {device}")),
    }
}

/// All comparisons as JSON: the object itself for one comparison, `ranks` for several.
pub(crate) fn all_json(
    reports: &[(Option<u32>, Report<'_>, &[Diff])],
    unreadable: &[Unreadable],
) -> Answer {
    if let [(_, report, diffs)] = reports {
        return json(report, diffs, ("left_out", unread(unreadable)));
    }
    let one = |(rank, report, diffs): &(Option<u32>, Report<'_>, &[Diff])| {
        json(report, diffs, ("rank", json!(rank)))
    };
    Answer::several("ranks", &reports.iter().map(one).collect::<Vec<_>>(), unreadable)
}

/// A device in both files, and how what it holds differs.
struct Compared<'a> {
    diff: &'a Diff,
    report: &'a Report<'a>,
    sides: Sides<Option<&'a DeviceHistory>>,
}

impl<'a> Compared<'a> {
    fn of(report: &'a Report<'a>, diff: &'a Diff) -> Self {
        let states: Vec<&History> = report.contents().map(|(_, _, _, state)| state).collect();
        let device =
            |at: usize, index: Option<u8>| states.get(at).and_then(|state| state.device(index?));
        let (from, to) = (device(0, diff.devices.from), device(1, diff.devices.to));
        Self { diff, report, sides: Sides { from, to } }
    }

    /// The device in both files; none where one of them does not have it.
    fn both(&self) -> Option<(&'a DeviceHistory, &'a DeviceHistory)> {
        self.sides.from.zip(self.sides.to)
    }

    /// A value of both files; null where a file does not tell.
    fn values<T>(&self, of: impl Fn(&DeviceHistory) -> Option<T>) -> [Option<T>; 2] {
        [self.sides.from.and_then(&of), self.sides.to.and_then(&of)]
    }
}

/// Everything that changed on a device, or a screen of it.
fn text(of: &Compared<'_>, all: bool) -> String {
    let mut text = String::new();
    let limit = |shown: usize| if all { usize::MAX } else { shown };
    let diff = of.diff;
    let changed: Vec<&Change> = diff.lines.iter().filter(|line| line.from != line.to).collect();
    let _ = writeln!(text, "{}{}", clean(&sentence(diff, &changed)), beside(of));
    let is_of_device =
        |found: &&Found| [diff.devices.from, diff.devices.to].contains(&Some(found.growth.device));
    for found in of.report.found().filter(is_of_device) {
        let class = found.diagnosis.class.as_str();
        let _ = writeln!(text, "{class}: {}", clean(&found.diagnosis.sentence));
    }
    let no_stack = no_stack(of.report, false);
    let row = |change: &&Change| {
        vec![
            column_change(change.bytes()),
            column_bytes(change.from.bytes),
            column_bytes(change.to.bytes),
            signed(change.to.blocks, change.from.blocks),
            change.as_str(diff.is_one_program).to_string(),
            what(change.kind, &change.frames.first().cloned().unwrap_or_default(), no_stack),
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
    if !diff.lines.is_empty() {
        table_section(&mut text, "By line", &rows, more);
    }
    let stacks = diff.stacks.iter().filter(|stack| stack.from != stack.to);
    for stack in stacks.take(limit(STACKS_SHOWN)).filter(|stack| !stack.frames.is_empty()) {
        let state = stack.as_str(diff.is_one_program);
        let title = format!("{} {state}", signed_bytes(stack.bytes()));
        section(&mut text, &title, stack.frames.iter().map(frame));
    }
    shape(&mut text, of);
    totals(&mut text, of);
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
    let all = match diff.held {
        Sides { from, to } if from < to => {
            format!("B holds {} more than A in all", bytes(to - from))
        }
        Sides { from, to } if from > to => {
            format!("B holds {} less than A in all", bytes(from - to))
        }
        _ => "B holds as much as A in all".to_string(),
    };
    let without = match (diff.has_stacks.from, diff.has_stacks.to) {
        (true, true) => None,
        (false, true) => Some("A has no stacks"),
        (true, false) => Some("B has no stacks"),
        (false, false) => Some("neither file has stacks"),
    };
    if let Some(without) = without {
        return format!("{all}; {without}, so lines are not compared");
    }
    let Some(top) = changed.first() else {
        return "both hold the same under every line".to_string();
    };
    let name = |change: &Change| change.frames.first().map(frame).unwrap_or_default();
    let at = if top.frames.is_empty() { "without a stack".into() } else { name(top) };
    let most = format!("the line that differs most: {} {at}", signed_bytes(top.bytes()));
    match diff.is_one_program {
        true => format!("{all}; {most}"),
        false => format!("few lines hold memory in both files, as in two programs; {all}; {most}"),
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
fn beside(of: &Compared<'_>) -> String {
    let Some((from, to)) = of.both() else { return String::new() };
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
fn shape(text: &mut String, of: &Compared<'_>) {
    let Some((from, to)) = of.both() else { return };
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
fn totals(text: &mut String, of: &Compared<'_>) {
    let files = ["A", "B"].into_iter().zip(of.report.contents());
    let files = files.zip([of.sides.from, of.sides.to]);
    let files =
        files.filter_map(|((name, (file, ..)), device)| Some((name, file.path.as_path(), device?)));
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

/// One comparison as JSON, with one more value: the first device, and the others in a list.
fn json(report: &Report<'_>, diffs: &[Diff], (name, value): (&str, Value)) -> Answer {
    let mut devices = diffs.iter().map(|diff| of_device(&Compared::of(report, diff)));
    let mut rest = devices.next().unwrap_or_default();
    rest["mode"] = json!(report.mode());
    rest["files"] = json!(files(report));
    rest["other_devices"] = devices.collect();
    rest[name] = value;
    Answer::new(report, rest)
}

fn of_device(of: &Compared<'_>) -> Value {
    let diff = of.diff;
    let list = |changes: &[Change]| {
        let changed = changes.iter().filter(|change| change.from != change.to);
        let listed = changed.take(CHANGES_LISTED_MAX);
        listed.map(|one| change(one, diff.is_one_program)).collect::<Vec<Value>>()
    };
    let differing = |changes: &[Change]| changes.iter().filter(|c| c.from != c.to).count();
    let per_step = |level: StepLevel| of.values(|device| level.bytes_per_step(&device.past));
    json!({
        "devices": [diff.devices.from, diff.devices.to],
        "allocated": [diff.held.from, diff.held.to],
        "has_stacks": [diff.has_stacks.from, diff.has_stacks.to],
        "one_program": diff.is_one_program,
        "peak": of.values(|device| device.past.peak.as_ref().map(|peak| peak.bytes)),
        "step_need": of.values(|device| device.past.step_need()),
        "reserved": of.values(|device| Some(device.state.reserved)),
        "whole_free": of.values(|device| part(device, |of| of.cached)),
        "segments": of.values(segments),
        "inactive_split": of.values(DeviceHistory::inactive_split),
        "step_min_bytes_per_step": per_step(StepLevel::Minimum),
        "peak_bytes_per_step": per_step(StepLevel::Peak),
        "lines": list(&diff.lines),
        "lines_differing": differing(&diff.lines),
        "stacks": list(&diff.stacks),
        "stacks_differing": differing(&diff.stacks),
    })
}

fn change(change: &Change, is_one_program: bool) -> Value {
    json!({
        "state": change.as_str(is_one_program),
        "kind": change.kind,
        "frames": change.frames,
        "change_bytes": change.bytes(),
        "bytes": [change.from.bytes, change.to.bytes],
        "blocks": [change.from.blocks, change.to.blocks],
    })
}
