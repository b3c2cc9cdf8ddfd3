//! How long it takes to build one rank's snapshot from its tape.
//!
//! The tape is read as an agent reads it, by copies of a file, and rewound to the end of its last
//! step. What a capture does besides (the encoding, its compression, the way to the coordinator) is
//! part of `capture.rs`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, anyhow};
use memtape_core::tape::read::Source;
use memtape_core::tape::read::Tape;
use memtape_core::tape::rewind::PointInTime;
use serde_json::{Value, json};

/// Snapshots taken; the median counts.
const ROUNDS: usize = 7;

/// Events of the trace, as many as PyTorch's history has in the same run.
const TRACE_EVENTS: usize = 100_000;

/// A tape's file, read by copies.
#[derive(Debug)]
pub(crate) struct Copies(pub(crate) File);

impl Source for Copies {
    fn len_bytes(&self) -> u64 {
        self.0.metadata().map_or(0, |metadata| metadata.len())
    }

    fn read(&self, first_word: usize, out: &mut [u64]) -> bool {
        let mut bytes = vec![0; out.len() * 8];
        let is_whole = self.0.read_exact_at(&mut bytes, first_word as u64 * 8).is_ok();
        for (word, bytes) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        is_whole
    }
}

/// Times the snapshots of a tape.
pub(crate) fn snapshot(path: &Path) -> anyhow::Result<Value> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let tape = Tape::open(Copies(file)).map_err(|error| anyhow!("{}: {error}", path.display()))?;
    let step = tape.status().step;
    let mut times_ms = Vec::new();
    let (mut blocks, mut events) = (0, 0);
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let taken = tape.snapshot(PointInTime::EndOf(step), Some(1), TRACE_EVENTS);
        let taken = taken.map_err(|error| anyhow!("step {step}: {error}"))?;
        times_ms.push(begin.elapsed().as_secs_f64() * 1e3);
        blocks = taken.devices.iter().map(|device| device.blocks.len()).sum();
        events = taken.devices.iter().map(|device| device.trace.len()).sum();
    }
    times_ms.sort_by(f64::total_cmp);
    Ok(json!({
        "snapshot_ms": times_ms[ROUNDS / 2],
        "snapshot_max_ms": times_ms[ROUNDS - 1],
        "step": step,
        "blocks": blocks,
        "events": events,
    }))
}
