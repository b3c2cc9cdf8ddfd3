//! What the tests of the pickle reader share: values and states as text, and CPython beside them.
#![allow(dead_code)] // Each test uses a part.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use memtape_core::pickle::fault::ReadError;
use memtape_core::pickle::reader::{Reader, Whole};
use memtape_core::pickle::torch::TorchFile;
use memtape_core::pickle::value::{Heap, Limits, Slot, Value};
use memtape_core::snapshot::RankSnapshot;

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
) -> Result<TorchFile, ReadError> {
    let mut reader = Reader::with_limits(limits);
    for piece in cut(bytes, pieces) {
        reader.feed(piece)?;
    }
    reader.finish()
}

/// A snapshot in one piece, with the limits that everybody has.
pub(crate) fn snapshot(bytes: &[u8]) -> Result<TorchFile, ReadError> {
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
    let number = match value {
        Value::None => return "N".to_string(),
        Value::Bool(truth) => return if truth { "T" } else { "F" }.to_string(),
        Value::Int(number) => return format!("i{number}"),
        Value::Big(number) => return format!("i{number}"),
        Value::Float(number) => return format!("f{:016x}", number.to_bits()),
        Value::Text(number) => {
            let hex = heap.text(number).bytes().map(|byte| format!("{byte:02x}"));
            return format!("s{}", hex.collect::<String>());
        }
        Value::Pair(number) => {
            let (first, second) = heap.pair(number);
            return format!("(i{first},i{second})");
        }
        Value::Object(_) if depth > DEPTH_MAX => return "…".to_string(),
        Value::Object(number) => number,
        Value::Other => return "?".to_string(),
    };
    let slot = heap.slot(number);
    let items = heap.items(slot).iter().map(|item| show_at(heap, *item, depth + 1));
    let items: Vec<String> = items.collect();
    match slot {
        Slot::Tuple(_) => format!("({})", items.join(",")),
        Slot::EmptyDict | Slot::Dict(_) => {
            let pairs: Vec<String> = items.chunks(2).map(|pair| pair.join(":")).collect();
            format!("{{{}}}", pairs.join(","))
        }
        _ => format!("[{}]", items.join(",")),
    }
}

/// What a state holds, in the lines of core/tests/data/snapshot_lines.py.
pub(crate) fn lines(file: &TorchFile) -> String {
    let (rank, mut out) = (&file.rank, String::new());
    let mut line = |fields: &[&dyn std::fmt::Display]| {
        let fields: Vec<String> = fields.iter().map(ToString::to_string).collect();
        writeln!(out, "{}", fields.join(" ")).expect("a string takes all");
    };
    for device in &rank.devices {
        line(&[&"device", &device.device, &device.allocated, &device.reserved]);
        for of in &device.segments {
            let (small, grows) = (i32::from(of.small), i32::from(of.expandable));
            let (stream, stack) = (stream(rank, of.stream_pool), stack(rank, of.stack));
            line(&[&"segment", &of.address, &of.size, &stream, &small, &grows, &stack]);
        }
        for of in &device.blocks {
            let (stream, stack) = (stream(rank, of.stream_pool), stack(rank, of.stack));
            let pending = i32::from(of.pending);
            line(&[&"block", &of.address, &of.size, &of.requested, &pending, &stream, &stack]);
        }
        for of in &device.trace {
            let kind = format!("{:?}", of.kind);
            let (stream, stack) = (stream(rank, of.stream_pool), stack(rank, of.stack));
            let at_us = of.mono_ns / 1000;
            line(&[&"event", &kind, &at_us, &of.address, &of.size, &of.detail, &stream, &stack]);
        }
    }
    for of in &file.annotations {
        let device = of.device.map_or("-".to_string(), |device| device.to_string());
        let stage = if of.is_start { "START" } else { "END" };
        line(&[&"annotation", &stage, &of.name.replace(' ', ""), &device, &of.at_us]);
    }
    for (name, value) in &rank.settings {
        line(&[&"setting", name, value]);
    }
    out
}

fn stream(rank: &RankSnapshot, number: u16) -> String {
    let of = rank.stream_pools[usize::from(number)];
    let stream = of.stream.map_or("-".to_string(), |stream| stream.to_string());
    let pool = of.pool.map_or("-".to_string(), |(first, second)| format!("({first},{second})"));
    format!("{stream} {pool}")
}

fn stack(rank: &RankSnapshot, number: u32) -> String {
    let frames = rank.frames_of(number);
    let frames = frames.map(|of| format!("{}@{}:{}", of.function, of.file, of.line));
    format!("[{}]", frames.collect::<Vec<_>>().join(" "))
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
