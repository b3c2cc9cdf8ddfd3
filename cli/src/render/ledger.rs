//! Shows where a device's bytes are: core's ledger as tables and JSON.
//!
//! The figures come from the tape and, while its process runs on a node with NVML, from the driver.

use std::collections::BTreeMap;

use memtape_agent::Writer;
use memtape_core::diagnosis::{location, telling_frame};
use memtape_core::snapshot::ledger::{Amount, Ledger, Name, Sources};
use memtape_core::snapshot::origin::Origin;
use memtape_core::snapshot::{Frame, OutsideUse, RankSnapshot};
use serde_json::{Value, json};

use crate::output::clean;
use crate::render::table::Table;
use crate::render::units::{column_bytes, column_change, plural, table};

/// The ledger of one device at the time of a snapshot.
pub(crate) fn of(state: &RankSnapshot, device: u8, device_bytes: u64, writer: Writer) -> Ledger {
    let allocator = state.devices.iter().find(|of| of.device == device);
    let is_here = |taken: &&OutsideUse| taken.origin.is_on_device() && taken.device == device;
    let outside: Vec<OutsideUse> = state.outside.iter().filter(is_here).copied().collect();
    let uuid = allocator.map_or("", |of| of.uuid.as_str());
    let driver = match writer {
        Writer::Alive(Some(pid)) => memtape_agent::gpu_use(uuid, pid),
        _ => None,
    };
    let known = |size: u64| Some(size).filter(|&size| size > 0);
    Ledger::of(&Sources {
        device_bytes: driver.map(|gpu| gpu.total_bytes).or(known(device_bytes)),
        free_bytes: driver.map(|gpu| gpu.free_bytes),
        process_bytes: driver.and_then(|gpu| gpu.process_bytes),
        allocator,
        outside: Some(&outside),
    })
}

/// One row for each known layer. The row of unaccounted bytes names the unknown layers.
pub(crate) fn text(ledger: &Ledger) -> String {
    let row = |name: &str, amount: String| vec![amount, name.to_string()];
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut unknown = Vec::new();
    for layer in &ledger.layers {
        match layer.amount {
            Amount::Known(size) => rows.push(row(layer.name.text(), column_bytes(size))),
            Amount::Unknown => unknown.push(layer.name),
        }
    }
    let size = |of: i128| column_change(i64::try_from(of).unwrap_or(i64::MAX));
    match ledger.rest_bytes {
        Some(rest) if rest < 0 => {
            rows.push(row("unaccounted: the layers exceed the device", size(rest)))
        }
        Some(rest) => {
            rows.push(row(
                &unaccounted_text(&unknown),
                size(rest).trim_start_matches('+').to_string(),
            ));
        }
        None => {}
    }
    if let Some(device) = ledger.device_bytes {
        rows.push(row("the device", column_bytes(device)));
    }
    table(&[">bytes", "layer"], rows)
}

/// Names what the unaccounted bytes consist of: the unknown layers outside the allocator. The
/// allocator's total is always known.
fn unaccounted_text(unknown: &[Name]) -> String {
    let outer = unknown.iter().filter(|&&name| name <= Name::OtherCode).map(|name| name.text());
    let names: Vec<&str> = outer.chain(["context and kernels"]).collect();
    format!("unaccounted: {}", names.join(", "))
}

/// Memory outside PyTorch's allocator, on devices and on the host. The row of `cudaMalloc` includes
/// the allocator's segments.
pub(crate) fn outside_text(outside: &[OutsideUse]) -> String {
    let location = |taken: &OutsideUse| match taken.origin.is_on_device() {
        true => format!("device {}", taken.device),
        false => "host".to_string(),
    };
    Table::of(outside)
        .column(">bytes", |taken| column_bytes(taken.bytes))
        .column(">pieces", |taken| taken.count)
        .column("on", location)
        .column("taken by", |taken| taken.origin.name())
        .text()
}

/// The rows of [`outside_text`] for `--json`.
pub(crate) fn outside_json(outside: &[OutsideUse]) -> Value {
    let each = |taken: &OutsideUse| {
        let device = taken.origin.is_on_device().then_some(taken.device);
        json!({ "origin": taken.origin.name(), "device": device, "bytes": taken.bytes,
            "pieces": taken.count })
    };
    outside.iter().map(each).collect()
}

/// The lines of code that hold most of it, and the sum of all other lines.
pub(crate) fn lines_text(state: &RankSnapshot) -> String {
    let all = by_line(state);
    let (shown, rest) = all.split_at(all.len().min(LINES_MAX));
    let since = format!(">since step {}", state.before_step);
    let since = if state.before_step == 0 { ">since" } else { since.as_str() };
    let sum = |of: fn(&Line<'_>) -> u64| rest.iter().map(of).fold(0, u64::saturating_add);
    let others = (!rest.is_empty()).then(|| Line {
        held: sum(|line| line.held),
        pieces: sum(|line| line.pieces),
        ..Line::default()
    });
    let more = plural(rest.len() as u64, "more line");
    let table = Table::of(shown.iter().chain(&others))
        .column(">bytes", |line| column_bytes(line.held))
        .column(">pieces", |line| line.pieces)
        .column(since, |line| line.more.map_or(String::new(), column_change))
        .column("taken by", |line| line.origin.map_or("", Origin::name))
        .column("line", |line| if line.origin.is_some() { line.name() } else { more.clone() })
        .text();
    match state.outside_stacks_left_out {
        0 => table,
        count => format!("{table}{count} small stacks are counted under \"unknown line\"\n"),
    }
}

/// All rows of [`lines_text`] as JSON.
pub(crate) fn lines_json(state: &RankSnapshot) -> Value {
    let each = |line: &Line| {
        let name = line.frame.map(location);
        json!({ "origin": line.origin.map(Origin::name), "device": line.device, "line": name,
            "bytes": line.held, "pieces": line.pieces, "grown_bytes": line.more })
    };
    by_line(state).iter().map(each).collect()
}

/// Lines in the table.
const LINES_MAX: usize = 10;

/// Bytes of one origin in one line of code; without an origin, bytes of all other lines.
#[derive(Default)]
struct Line<'a> {
    origin: Option<Origin>,
    device: Option<u8>,
    frame: Option<&'a Frame>,
    held: u64,
    pieces: u64,
    /// Growth in bytes since the earlier step, if known.
    more: Option<i64>,
}

impl Line<'_> {
    fn name(&self) -> String {
        self.frame.map_or_else(|| "unknown line".to_string(), |frame| clean(&location(frame)))
    }
}

/// Sums the stacks by line of code; the largest first.
fn by_line(state: &RankSnapshot) -> Vec<Line<'_>> {
    let mut lines: BTreeMap<(Origin, Option<u8>, Option<&Frame>), Line<'_>> = BTreeMap::new();
    for row in &state.outside_stacks {
        let stack: Vec<&Frame> = state.frames_of(row.stack).collect();
        let (origin, frame) = (row.origin, telling_frame(&stack));
        let device = origin.is_on_device().then_some(row.device);
        let known = state.before_step != 0;
        let fresh = Line {
            origin: Some(origin),
            device,
            frame,
            more: known.then_some(0),
            ..Line::default()
        };
        let line = lines.entry((origin, device, frame)).or_insert(fresh);
        line.held = line.held.saturating_add(row.held.bytes);
        line.pieces = line.pieces.saturating_add(row.held.count);
        let size = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let more = row.before.map(|before| size(row.held.bytes).saturating_sub(size(before.bytes)));
        line.more = line.more.zip(more).map(|(sum, more)| sum.saturating_add(more));
    }
    let mut lines: Vec<Line<'_>> = lines.into_values().collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.held));
    lines
}

#[cfg(test)]
mod tests {
    use memtape_core::snapshot::ledger::Layer;
    use memtape_core::snapshot::{Held, OutsideStack};

    use memtape_proto::api;

    use super::*;

    #[test]
    fn unknown_layers_are_unaccounted_by_name() {
        let layer = |name, amount| Layer { name, amount };
        let mut ledger = Ledger {
            device_bytes: Some(4096),
            layers: vec![
                layer(Name::Free, Amount::Unknown),
                layer(Name::Nccl, Amount::Known(1024)),
                layer(Name::Deferred, Amount::Unknown),
                layer(Name::Requested, Amount::Known(512)),
            ],
            rest_bytes: Some(2560),
        };
        let expected = "\
   BYTES  LAYER
1.00 KiB  NCCL
   512 B  requested
2.50 KiB  unaccounted: free, context and kernels
4.00 KiB  the device
";
        let lines = |text: &str| text.lines().map(|l| l.trim().to_string()).collect::<Vec<_>>();
        assert_eq!(lines(&text(&ledger)), lines(expected));
        assert_eq!(api::Ledger::from(&ledger).layers[0].bytes, None);

        ledger.rest_bytes = Some(-100);
        assert!(
            text(&ledger).contains("-100 B  unaccounted: the layers exceed"),
            "{}",
            text(&ledger)
        );
    }

    #[test]
    fn each_line_is_shown_with_its_bytes() {
        let frame = |line| Frame { file: "/a/t.py".into(), line, function: "f".into() };
        let held = |bytes, count| Held { bytes, count };
        let row = |origin, stack, kib: u64, before: Option<u64>| OutsideStack {
            origin,
            device: 1,
            stack,
            held: held(kib << 10, kib),
            fresh: held(0, 0),
            before: before.map(|kib| held(kib << 10, kib)),
            births: 1,
            first_step: 0,
            last_step: 0,
        };
        let mut state = RankSnapshot {
            before_step: 8,
            frames: vec![Frame::default(), frame(7)],
            stacks: vec![vec![], vec![1], vec![1]],
            outside_stacks: vec![
                row(Origin::HostPinned, 1, 5, Some(2)),
                row(Origin::HostPinned, 2, 1, Some(0)),
                row(Origin::Nccl, 0, 9, None),
            ],
            outside_stacks_left_out: 3,
            ..RankSnapshot::default()
        };
        let text = lines_text(&state);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(words).collect();
        assert_eq!(
            lines,
            [
                "BYTES PIECES SINCE STEP 8 TAKEN BY LINE",
                "9.00 KiB 9 NCCL unknown line",
                "6.00 KiB 6 +4.00 KiB pinned t.py:7 in f",
                "3 small stacks are counted under \"unknown line\"",
            ]
        );
        let shown = lines_json(&state);
        let nccl = json!({ "origin": "NCCL", "device": 1, "line": null, "bytes": 9216,
            "pieces": 9, "grown_bytes": null });
        assert_eq!(shown[0], nccl);
        assert_eq!((&shown[1]["device"], &shown[1]["grown_bytes"]), (&Value::Null, &json!(4096)));

        let many = (0..LINES_MAX as u32 + 2).map(|line| {
            state.frames.push(frame(100 + line));
            state.stacks.push(vec![state.frames.len() as u32 - 1]);
            row(Origin::CpuTensor, state.stacks.len() as u32 - 1, 1, None)
        });
        state.outside_stacks = many.collect();
        state.before_step = 0;
        let text = lines_text(&state);
        assert!(words(&text).contains("2.00 KiB 2 2 more lines"), "{text}");
    }

    #[test]
    fn memory_on_the_host_is_on_no_device() {
        let taken = |origin| OutsideUse { origin, device: 1, bytes: 2048, count: 3 };
        let uses = [taken(Origin::HostPinned), taken(Origin::Nccl)];
        let text = outside_text(&uses);
        assert!(text.contains("2.00 KiB") && text.contains("host") && text.contains("device 1"));
        let found = outside_json(&uses);
        assert_eq!((&found[0]["device"], &found[1]["device"]), (&Value::Null, &json!(1)));
    }
}
