//! What the tests of the pickle reader share: values as text, a small pickler, CPython beside it,
//! and the meaning of bytes for the fuzzer.
#![allow(dead_code)] // Each test, and the fuzzer, uses a part.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use memtape_core::pickle::fault::ReadError;
use memtape_core::pickle::reader::{Reader, Whole};
use memtape_core::pickle::torch::{Action, BlockState, SettingValue, Stage, TorchSnapshot};
use memtape_core::pickle::value::{Heap, Limits, Slot, Value, View};

/// How deep [`show`] goes before it takes a value for one that holds itself.
const DEPTH_MAX: usize = 200;

/// Reads plain values from pieces of these lengths, again and again.
pub(crate) fn read_plain(
    bytes: &[u8],
    pieces: &[usize],
    limits: Limits,
) -> Result<Whole, ReadError> {
    let mut reader = Reader::with_limits(limits);
    for piece in cut(bytes, pieces) {
        reader.feed(piece)?;
    }
    reader.finish_values()
}

/// Reads a snapshot from pieces of these lengths, again and again.
pub(crate) fn read_snapshot(
    bytes: &[u8],
    pieces: &[usize],
    limits: Limits,
) -> Result<TorchSnapshot, ReadError> {
    let mut reader = Reader::with_limits(limits);
    for piece in cut(bytes, pieces) {
        reader.feed(piece)?;
    }
    reader.finish()
}

/// A snapshot in one piece, with the limits that everybody has.
pub(crate) fn snapshot(bytes: &[u8]) -> Result<TorchSnapshot, ReadError> {
    read_snapshot(bytes, &[], Limits::default())
}

/// The bytes in pieces of these lengths; without lengths in one.
fn cut<'a>(mut bytes: &'a [u8], pieces: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let all = [usize::MAX];
    let lengths: Vec<usize> = if pieces.is_empty() { all.to_vec() } else { pieces.to_vec() };
    let mut lengths = lengths.into_iter().cycle();
    std::iter::from_fn(move || {
        let length = lengths.next()?.max(1).min(bytes.len());
        let (piece, rest) = bytes.split_at(length);
        bytes = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The value in the notation of core/tests/data/pickles.py.
pub(crate) fn show(heap: &Heap, value: Value) -> String {
    show_at(heap, value, 0)
}

fn show_at(heap: &Heap, value: Value, depth: usize) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    match value.view() {
        View::None => "N".to_string(),
        View::Bool(truth) => if truth { "T" } else { "F" }.to_string(),
        View::Int(number) => format!("i{number}"),
        View::Wide(number) => match heap.wide(number) {
            Some(wide) => format!("i{wide}"),
            None => format!("w{}", hex(heap.bytes(number))),
        },
        View::Float(number) => format!("f{:016x}", heap.float(number).to_bits()),
        View::Text(number) => format!("s{}", hex(heap.text(number).as_bytes())),
        View::Bytes(number) => format!("b{}", hex(heap.bytes(number))),
        View::Object(_) if depth > DEPTH_MAX => "…".to_string(),
        View::Object(slot) => {
            let slot = heap.slot(slot);
            let items: Vec<String> =
                heap.items(slot).map(|item| show_at(heap, item, depth + 1)).collect();
            match slot {
                Slot::EmptyList | Slot::List(_) => format!("[{}]", items.join(",")),
                Slot::Tuple(_) => format!("({})", items.join(",")),
                Slot::EmptySet | Slot::Set(_) => {
                    let mut items = items;
                    items.sort();
                    format!("<{}>", items.join(","))
                }
                _ => {
                    let pairs: Vec<String> = items.chunks(2).map(|pair| pair.join(":")).collect();
                    format!("{{{}}}", pairs.join(","))
                }
            }
        }
    }
}

/// What a snapshot holds, in the lines of core/tests/data/snapshot_lines.py.
pub(crate) fn lines(snapshot: &TorchSnapshot) -> String {
    let mut out = String::new();
    for segment in &snapshot.segments {
        let pool = segment.pool.map(|(first, second)| format!("({first},{second})"));
        let size = segment.is_small.map(|small| if small { "small" } else { "large" });
        let fields = [
            or_dash(segment.device),
            or_dash(segment.address),
            or_dash(segment.total_bytes),
            or_dash(segment.allocated_bytes),
            or_dash(segment.active_bytes),
            or_dash(segment.requested_bytes),
            or_dash(segment.stream),
            or_dash(size),
            or_dash(pool),
            or_dash(segment.is_expandable.map(|is| if is { "True" } else { "False" })),
            stack(snapshot, segment.stack),
        ];
        writeln!(out, "segment {}", fields.join(" ")).expect("a string takes all");
        for block in snapshot.blocks_of(segment) {
            let state = block.state.map(|state| match state {
                BlockState::Allocated => "active_allocated",
                BlockState::PendingFree => "active_pending_free",
                BlockState::Inactive => "inactive",
            });
            let fields = [
                or_dash(block.address()),
                or_dash(block.bytes()),
                or_dash(block.requested_bytes()),
                or_dash(state),
                stack(snapshot, block.stack()),
            ];
            writeln!(out, "block {}", fields.join(" ")).expect("a string takes all");
        }
    }
    traces(snapshot, &mut out);
    for note in &snapshot.annotations {
        let stage = note.stage.map(|stage| match stage {
            Stage::Start => "START",
            Stage::End => "END",
        });
        let name = snapshot.name_of(note).map(|name| name.replace(' ', ""));
        let fields =
            [or_dash(stage), or_dash(name), or_dash(note.device()), or_dash(note.time_us())];
        writeln!(out, "annotation {}", fields.join(" ")).expect("a string takes all");
    }
    for setting in &snapshot.settings {
        let value = match setting.value {
            SettingValue::None => "None".to_string(),
            SettingValue::Bool(truth) => if truth { "True" } else { "False" }.to_string(),
            SettingValue::Int(number) => number.to_string(),
            SettingValue::Float(number) => format!("{number:?}"),
            SettingValue::Text(text) => snapshot.text(text).to_string(),
        };
        writeln!(out, "setting {} {value}", setting.name).expect("a string takes all");
    }
    out
}

fn traces(snapshot: &TorchSnapshot, out: &mut String) {
    for (device, trace) in snapshot.traces.iter().enumerate() {
        writeln!(out, "trace {device}").expect("a string takes all");
        for event in snapshot.events_of(trace) {
            let text = |text: Option<&str>| or_dash(text.map(|text| text.replace(' ', "")));
            let fields = [
                action(event.action).to_string(),
                or_dash(event.address()),
                or_dash(event.device_free_bytes()),
                or_dash(event.bytes()),
                or_dash(snapshot.stream_of(event)),
                or_dash(event.time_us()),
                text(snapshot.compile_context_of(event)),
                text(snapshot.user_metadata_of(event)),
                stack(snapshot, event.stack()),
            ];
            writeln!(out, "event {}", fields.join(" ")).expect("a string takes all");
        }
    }
}

fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_string(), |value| value.to_string())
}

fn stack(snapshot: &TorchSnapshot, number: Option<u32>) -> String {
    let Some(number) = number else { return "-".to_string() };
    let frames: Vec<String> = snapshot
        .stack(number)
        .iter()
        .map(|&frame| {
            let frame = snapshot.frame(frame);
            let (name, file) = (or_dash(frame.name), or_dash(frame.file));
            format!("{name}@{file}:{}", or_dash(frame.line))
        })
        .collect();
    format!("[{}]", frames.join(" "))
}

fn action(action: Action) -> &'static str {
    match action {
        Action::Alloc => "alloc",
        Action::FreeRequested => "free_requested",
        Action::FreeCompleted => "free_completed",
        Action::SegmentAlloc => "segment_alloc",
        Action::SegmentFree => "segment_free",
        Action::SegmentMap => "segment_map",
        Action::SegmentUnmap => "segment_unmap",
        Action::Snapshot => "snapshot",
        Action::Oom => "oom",
        Action::Annotate => "annotate",
        Action::Unknown => "-",
    }
}

/// A file of core/tests/data.
pub(crate) fn data(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What a `.gz` holds.
pub(crate) fn unpacked(packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).expect("gzip");
    bytes
}

/// Runs a Python program of core/tests/data with this on its standard input; `None`, after a
/// printed line, where there is no Python.
pub(crate) fn python(program: &str, input: &[u8]) -> Option<String> {
    let program = String::from_utf8(data(program)).expect("UTF-8");
    let child = Command::new("python3")
        .args(["-c", &program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("SKIPPED: no python3 on this machine, so CPython's reader was not tried");
        return None;
    };
    child.stdin.take().expect("piped").write_all(input).expect("python reads");
    let output = child.wait_with_output().expect("python ends");
    assert!(output.status.success(), "python failed on the pickle");
    Some(String::from_utf8(output.stdout).expect("UTF-8"))
}
