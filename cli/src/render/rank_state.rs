//! The state of one rank, as text and as JSON: which lines hold its memory, and where the bytes of
//! its devices were. The state has no readings of the driver.

use std::fmt::Write;
use std::path::Path;

use memtape_agent::Writer;
use memtape_core::limits::LIVE_LINES_LISTED_MAX;
use memtape_core::snapshot::lines::{LiveLine, live_lines};
use memtape_core::snapshot::{DeviceSnapshot, Frame, RankSnapshot};
use memtape_core::tape::rewind::PointInTime;
use memtape_proto::api::Ledger;
use serde_json::{Value, json};

use crate::output::clean;
use crate::render::table::Table;
use crate::render::units::{bytes, column_bytes, column_change, plural};
use crate::render::{ledger, workers};

/// Lines of a device that are shown.
const LINES_SHOWN: usize = 12;

/// The state as text.
pub(crate) fn text(name: &Path, moment: Option<PointInTime>, state: &RankSnapshot) -> String {
    let when = when(moment, state);
    let job = match state.identity.job.as_str() {
        "" => String::new(),
        job => format!(" of {}", clean(job)),
    };
    let name = clean(&name.display().to_string());
    let mut text = format!("rank {}{job} {when} ({name})\n", state.identity.rank);
    for device in &state.devices {
        let _ = write!(text, "\ndevice {} {}", device.device, clean(&device.uuid));
        text.truncate(text.trim_end().len());
        text.push('\n');
        text.push_str(&ledger::text(&ledger_of(state, device)));
        lines_text(state, device, &mut text);
    }
    if !state.outside.is_empty() {
        let _ = write!(text, "\n{}", ledger::outside_text(&state.outside));
    }
    if !state.outside_stacks.is_empty() {
        let _ = write!(text, "\n{}", ledger::lines_text(state));
    }
    if let Some(samples) = &state.worker_samples {
        let _ = write!(text, "\n{}", workers::text(state, samples));
    }
    text
}

/// The point in time of a state, in words that follow a noun. A file of PyTorch has no step
/// numbers; its trace counts steps from its own beginning. Guessed steps are not counted.
pub(crate) fn when(moment: Option<PointInTime>, state: &RankSnapshot) -> String {
    let step = state.step;
    match moment {
        Some(PointInTime::EndOf(_)) => format!("at the end of step {step}"),
        Some(PointInTime::LastOom) => format!("when a request last failed, after step {step}"),
        Some(PointInTime::Present) => format!("now, after step {step}"),
        None if !state.identity.tape_id.is_empty() => {
            format!("when the file was written, after step {step}")
        }
        None if step == 0 || state.devices.iter().all(|device| !device.step_source.is_known()) => {
            "when the file was written".to_string()
        }
        None => {
            format!("when the file was written, with {} in its trace", plural(step, "step end"))
        }
    }
}

/// The state of a rank as JSON.
pub(crate) fn json(name: &Path, state: &RankSnapshot) -> Value {
    let device = |device: &DeviceSnapshot| {
        let lines = live_lines(state, device);
        let shown = lines.iter().take(LIVE_LINES_LISTED_MAX);
        json!({
            "device": device.device, "uuid": device.uuid,
            "ledger": Ledger::from(&ledger_of(state, device)),
            "lines": shown.map(line_json).collect::<Vec<_>>(),
            "lines_left_out": lines.len().saturating_sub(LIVE_LINES_LISTED_MAX),
        })
    };
    json!({
        "source": name, "job": state.identity.job, "rank": state.identity.rank,
        "step": state.step, "before_step": state.before_step,
        "devices": state.devices.iter().map(device).collect::<Vec<_>>(),
        "outside": ledger::outside_json(&state.outside),
        "outside_lines": ledger::lines_json(state),
        "worker_samples": state.worker_samples.as_ref().map(|of| workers::json(state, of)),
    })
}

fn ledger_of(
    state: &RankSnapshot,
    device: &DeviceSnapshot,
) -> memtape_core::snapshot::ledger::Ledger {
    ledger::of(state, device.device, device.device_bytes, Writer::Unknown)
}

/// The lines that hold most, and since the earlier step of a capture how much they grew.
fn lines_text(state: &RankSnapshot, device: &DeviceSnapshot, text: &mut String) {
    let lines = live_lines(state, device);
    if lines.is_empty() {
        return;
    }
    let since = format!(">since step {}", state.before_step);
    let mut table = Table::of(lines.iter().take(LINES_SHOWN))
        .column(">bytes", |line| column_bytes(line.held.bytes))
        .column(">blocks", |line| line.held.count)
        .column(">steps", |line| match line.births {
            0 => "–".to_string(),
            births => births.to_string(),
        });
    if state.before_step > 0 {
        table = table.column(&since, |line| change(line).map_or("–".to_string(), column_change));
    }
    let table = table
        .column("line", |line| name_of(&line.frame))
        .column("in function", |line| line.innermost.function.clone());
    let _ = write!(text, "\nLive memory by line\n{}", table.text());
    let rest = lines.get(LINES_SHOWN..).unwrap_or_default();
    if !rest.is_empty() {
        let held = rest.iter().fold(0_u64, |sum, line| sum.saturating_add(line.held.bytes));
        let count = plural(rest.len() as u64, "more line");
        let _ = writeln!(text, "… and {count} with {}; --json lists them", bytes(held));
    }
}

/// Bytes more than at the earlier step.
fn change(line: &LiveLine) -> Option<i64> {
    let before = i64::try_from(line.before?.bytes).unwrap_or(i64::MAX);
    Some(i64::try_from(line.held.bytes).unwrap_or(i64::MAX).saturating_sub(before))
}

fn name_of(frame: &Frame) -> String {
    match (frame.file.as_str(), frame.line) {
        ("", _) if frame.function.is_empty() => "(no stack)".to_string(),
        ("", _) => frame.function.clone(),
        (file, 0) => format!("{file} {}", frame.function),
        (file, line) => format!("{file}:{line} {}", frame.function),
    }
}

fn line_json(line: &LiveLine) -> Value {
    json!({
        "frame": line.frame,
        "innermost": line.innermost,
        "bytes": line.held.bytes,
        "blocks": line.held.count,
        "birth_steps": line.births,
        "change_bytes": change(line),
    })
}

#[cfg(test)]
mod tests {
    use memtape_core::snapshot::Block;
    use memtape_core::snapshot::step_source::StepSource;

    use super::*;

    #[test]
    fn a_rank_shows_its_lines() {
        let frame = |line: u32| Frame {
            file: "/app/train.py".to_string(),
            line,
            function: "step".to_string(),
        };
        let frames = std::iter::once(Frame::default()).chain((1..=15).map(frame)).collect();
        let block = |number: u32| Block {
            address: u64::from(number) << 20,
            size: 1024 * u64::from(number),
            stack: number,
            birth_step: u64::from(number),
            ..Block::default()
        };
        let device = DeviceSnapshot {
            blocks: (1..=15).map(block).collect(),
            allocated: 120 * 1024,
            ..DeviceSnapshot::default()
        };
        let state = RankSnapshot {
            step: 9,
            devices: vec![device],
            frames,
            stacks: std::iter::once(vec![]).chain((1..=15).map(|number| vec![number])).collect(),
            ..RankSnapshot::default()
        };
        let text = text(Path::new("x.tape"), Some(PointInTime::EndOf(9)), &state);
        assert!(text.starts_with("rank 0 at the end of step 9 (x.tape)\n"), "{text}");
        let row = text.lines().find(|line| line.contains("train.py:15")).expect("the largest");
        assert!(row.trim_start().starts_with("15.0 KiB"), "{row}");
        assert!(text.contains("… and 3 more lines with 6 KiB; --json lists them"), "{text}");
        let mut file = state.clone();
        file.devices[0].step_source = StepSource::Guessed;
        assert_eq!(when(None, &file), "when the file was written");
        file.devices[0].step_source = StepSource::Optimizer;
        let expected = "when the file was written, with 9 step ends in its trace";
        assert_eq!(when(None, &file), expected);
        let json = json(Path::new("x.tape"), &state);
        assert_eq!(json["devices"][0]["lines"].as_array().map(Vec::len), Some(15));
        assert_eq!(json["devices"][0]["lines"][0]["frame"]["line"], 15);
    }
}
