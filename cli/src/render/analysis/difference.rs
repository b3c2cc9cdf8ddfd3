//! Two files beside each other, as text and as JSON.

use std::fmt::Write;

use memtape_core::diagnosis::evidence::torch::look::DeviceLook;
use memtape_core::diagnosis::files::{Change, Diff, Held};
use memtape_core::limits::CHANGES_LISTED_MAX;
use serde_json::{Value, json};

use super::json::{files, frame as frame_json, verdict_of};
use super::text::{frame, section, split_free, table_section, what};
use super::{Report, primary_device};
use crate::output::clean;
use crate::read::snapshots::Unreadable;
use crate::render::units::{bytes, plural, signed_bytes, table};

/// Lines that are shown, where not all are.
const LINES_SHOWN: usize = 12;

/// Stacks that are shown, where not all are.
const STACKS_SHOWN: usize = 3;

/// Each comparison, below a heading where there are several, and what was left out.
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

/// The same for programs, on one line: of one comparison the object itself, of several `ranks`.
pub(crate) fn all_json(
    reports: &[(Option<u32>, Report<'_>, &Diff)],
    unreadable: &[Unreadable],
) -> String {
    let left_out = |file: &Unreadable| json!({ "path": file.path, "why": file.why });
    let left_out: Value = unreadable.iter().map(left_out).collect();
    if let [(_, report, diff)] = reports {
        return json(report, diff, ("left_out", left_out));
    }
    let one = |(rank, report, diff): &(Option<u32>, Report<'_>, &Diff)| {
        json(report, diff, ("rank", json!(rank)))
    };
    let ranks: Vec<String> = reports.iter().map(one).collect();
    format!("{{\"ranks\":[{}],\"left_out\":{left_out}}}", ranks.join(","))
}

/// Everything that changed, or a screen of it.
fn text(report: &Report<'_>, diff: &Diff, all: bool) -> String {
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

/// How a level moves from step to step.
fn trend(a_step: Option<i64>) -> String {
    a_step.map_or("–".to_string(), signed_bytes)
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

/// Least difference between two trends, in bytes a step, that is named.
const TREND_BYTES_MIN: u64 = 64 << 10;

/// Part of the smaller value by which two values differ enough to be named first: a twentieth.
const DIFFERENT_PART: u64 = 20;

/// Steps of a trace that its first and last third need, to say how a level moves.
const STEPS_OF_A_TREND_MIN: usize = 6;

/// Change of a level from step to step: from the median of the first third to that of the last.
/// None where there are few steps, and where levels of one third differ by more than that.
fn a_step(levels: &[u64]) -> Option<i64> {
    // The first and the last step may be cut by the trace.
    let whole = levels.get(1..levels.len().checked_sub(1)?)?;
    if whole.len() < STEPS_OF_A_TREND_MIN {
        return None;
    }
    let third = whole.len() / 3;
    let median = |part: &[u64]| {
        let mut part = part.to_vec();
        part.sort_unstable();
        part.get(part.len() / 2).copied()
    };
    let (first, last) = (whole.get(..third)?, whole.get(whole.len() - third..)?);
    let spread = |part: &[u64]| Some(part.iter().max()?.abs_diff(*part.iter().min()?));
    let (from, to) = (median(first)?, median(last)?);
    if from.abs_diff(to) < spread(first)?.max(spread(last)?) {
        return None;
    }
    let change = i64::try_from(to).ok()?.checked_sub(i64::try_from(from).ok()?)?;
    Some(change / i64::try_from(whole.len() - third).ok()?)
}

fn segments(device: &DeviceLook) -> Option<u64> {
    (!device.lacks_segments).then_some(device.segments.len() as u64)
}

fn inactive_split(device: &DeviceLook) -> Option<u64> {
    (!device.lacks_segments).then_some(device.space.split_free)
}

/// What the steps need, and what is reserved and how, where that differs: it is beside what the
/// lines hold.
fn beside(report: &Report<'_>) -> String {
    let devices: Vec<&DeviceLook> =
        report.contents().filter_map(|(_, _, _, look)| primary_device(look)).collect();
    let [from, to] = devices[..] else { return String::new() };
    let peak = |device: &DeviceLook| device.trace.peak.as_ref().map(|peak| peak.bytes);
    let values = [
        ("peak", peak(from).zip(peak(to))),
        ("a step needs", from.trace.step_need().zip(to.trace.step_need())),
        ("reserved", Some((from.space.reserved, to.space.reserved))),
        ("inactive split", inactive_split(from).zip(inactive_split(to))),
    ];
    let differ = |from: u64, to: u64| from.abs_diff(to) > from.min(to) / DIFFERENT_PART;
    let said = values.into_iter().filter_map(|(name, values)| {
        let (from, to) = values.filter(|&(from, to)| differ(from, to))?;
        Some(format!("; {name} {} in A, {} in B", bytes(from), bytes(to)))
    });
    let trends = [
        ("per-step minimum", a_step(&from.trace.floors), a_step(&to.trace.floors)),
        ("peak", a_step(&from.trace.peaks), a_step(&to.trace.peaks)),
    ];
    let trends = trends.into_iter().filter_map(|(name, from, to)| {
        let (from, to) = from.zip(to).filter(|(from, to)| from.abs_diff(*to) >= TREND_BYTES_MIN)?;
        let (from, to) = (signed_bytes(from), signed_bytes(to));
        Some(format!("; its {name} moves by {from} a step in A, {to} in B"))
    });
    said.chain(trends).collect()
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
    table_section(text, "Shape", &rows, None);
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
            split_free(device),
            segments(device).map_or("–".to_string(), |count| count.to_string()),
            trend(a_step(&device.trace.floors)),
            trend(a_step(&device.trace.peaks)),
            file.path.display().to_string(),
        ])
    };
    let rows = ["A", "B"].into_iter().zip(report.contents()).filter_map(row).collect();
    let titles = ["", ">allocated", ">peak", ">reserved", ">inactive split", ">segments"];
    let titles = [&titles[..], &[">min/step", ">peak/step", "file"]].concat();
    let rows = table(&titles, rows);
    table_section(text, "Files", &rows, None);
}

/// One comparison for programs, on one line, with a value more.
fn json(report: &Report<'_>, diff: &Diff, (name, value): (&str, Value)) -> String {
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
    let mut rest = json!({
        "mode": report.mode(),
        "allocated": [total(|line| line.from), total(|line| line.to)],
        "peak": of_devices(report, |device| device.trace.peak.as_ref().map(|peak| peak.bytes)),
        "step_need": of_devices(report, |device| device.trace.step_need()),
        "reserved": of_devices(report, |device| Some(device.space.reserved)),
        "whole_free": of_devices(report, |device| Some(device.space.whole_free)),
        "segments": of_devices(report, segments),
        "inactive_split": of_devices(report, inactive_split),
        "step_min_bytes_per_step": of_devices(report, |device| a_step(&device.trace.floors)),
        "peak_bytes_per_step": of_devices(report, |device| a_step(&device.trace.peaks)),
        "lines": list(&diff.lines),
        "lines_differing": differing(&diff.lines),
        "stacks": list(&diff.stacks),
        "stacks_differing": differing(&diff.stacks),
        "files": files(report),
    });
    rest[name] = value;
    format!("{{\"verdict\":{found},{}", rest.to_string().trim_start_matches('{'))
}

/// A value of both files; null where a file does not tell.
fn of_devices<T>(report: &Report<'_>, of: fn(&DeviceLook) -> Option<T>) -> Vec<Option<T>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trends_are_told_from_noise() {
        let levels = |of: fn(u64) -> u64| (0..20).map(of).collect::<Vec<u64>>();
        assert_eq!(a_step(&levels(|step| 1000 + 50 * step)), Some(50));
        assert_eq!(a_step(&levels(|step| 2000 - 50 * step)), Some(-50));
        assert_eq!(a_step(&levels(|_| 7)), Some(0));
        assert_eq!(a_step(&levels(|step| 1000 + step + 900 * (step % 2))), None, "noise");
        // The first and the last step may be cut.
        let mut cut = levels(|step| 1000 + 50 * step);
        (cut[0], cut[19]) = (0, u64::MAX);
        assert_eq!(a_step(&cut), Some(50));
        assert_eq!(a_step(&[1, 2, 3]), None);
        assert_eq!(a_step(&[]), None);
    }
}
