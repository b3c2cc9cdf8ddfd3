//! Changes between two censuses of a device, as the message that an agent sends.
//!
//! The coordinator reads the message with its own checks (`coordinator/src/ingest/wire/census.rs`).

use memtape_core::census::changes::Changes;
use memtape_core::census::{LineCensus, LineId};
use memtape_core::identity::cut;
use memtape_core::snapshot::Frame;
use memtape_core::tape::interned::STRING_BYTES_MAX;

use crate::v1;

impl From<Changes> for v1::Census {
    fn from(changes: Changes) -> Self {
        Self {
            device: u32::from(changes.device),
            step: changes.step,
            is_whole: changes.is_whole,
            lines: changes.lines.into_iter().map(line).collect(),
            other_bytes: changes.other_lines.bytes,
            other_blocks: changes.other_lines.count,
        }
    }
}

fn line((id, line): (LineId, LineCensus)) -> v1::CensusLine {
    v1::CensusLine {
        line: id.0,
        frames: line.frames.iter().map(frame).collect(),
        first_steps: line.cohorts.keys().copied().collect(),
        bytes: line.cohorts.values().map(|held| held.bytes).collect(),
        blocks: line.cohorts.values().map(|held| held.count).collect(),
    }
}

fn frame(frame: &Frame) -> v1::Frame {
    v1::Frame {
        file: cut(&frame.file, STRING_BYTES_MAX).to_string(),
        line: frame.line,
        function: cut(&frame.function, STRING_BYTES_MAX).to_string(),
    }
}
