//! The census of a rank, as an agent sends it.

use memtape_core::census::changes::Changes;
use memtape_core::census::line::FRAMES_MAX;
use memtape_core::census::{LineCensus, LineId};
use memtape_core::identity::cut;
use memtape_core::limits::{CENSUS_COHORTS_MAX, CENSUS_LINES_MAX};
use memtape_core::snapshot::{Frame, Held};
use memtape_core::tape::interned::STRING_BYTES_MAX;
use memtape_proto::v1;

use super::{BadMessage, device, number};

/// Changes of a census since the last one.
///
/// # Errors
/// The bound it breaks.
pub(super) fn changes(raw: v1::Census) -> Result<Changes, BadMessage> {
    // The lines of this census, and those of the last one that are gone.
    if raw.lines.len() > 2 * CENSUS_LINES_MAX {
        return Err(BadMessage::Census("it has too many lines"));
    }
    Ok(Changes {
        device: device(raw.device)?,
        step: number(raw.step)?,
        is_whole: raw.is_whole,
        lines: raw.lines.into_iter().map(line).collect::<Result<_, _>>()?,
        other_lines: Held { bytes: number(raw.other_bytes)?, count: number(raw.other_blocks)? },
    })
}

fn line(raw: v1::CensusLine) -> Result<(LineId, LineCensus), BadMessage> {
    let v1::CensusLine { line, frames, first_steps, bytes, blocks } = raw;
    if first_steps.len() != bytes.len() || bytes.len() != blocks.len() {
        return Err(BadMessage::Census("its cohorts are uneven"));
    }
    if first_steps.len() > CENSUS_COHORTS_MAX {
        return Err(BadMessage::Census("a line has too many cohorts"));
    }
    if frames.len() > FRAMES_MAX {
        return Err(BadMessage::Census("a line has too many frames"));
    }
    let frame = |frame: v1::Frame| Frame {
        file: cut(&frame.file, STRING_BYTES_MAX).to_string(),
        line: frame.line,
        function: cut(&frame.function, STRING_BYTES_MAX).to_string(),
    };
    let held = |(bytes, count)| Ok(Held { bytes: number(bytes)?, count: number(count)? });
    let cohort = |(step, held_by)| Ok((number(step)?, held(held_by)?));
    let cohorts = first_steps.into_iter().zip(bytes.into_iter().zip(blocks)).map(cohort);
    Ok((
        LineId(line),
        LineCensus {
            frames: frames.into_iter().map(frame).collect(),
            cohorts: cohorts.collect::<Result<_, _>>()?,
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn census(line: v1::CensusLine) -> v1::Census {
        v1::Census { lines: vec![line], ..v1::Census::default() }
    }

    #[test]
    fn what_breaks_a_bound_is_refused() {
        let refused = |raw: v1::Census| matches!(changes(raw), Err(BadMessage::Census(_)));
        let cohorts = |count: usize| v1::CensusLine {
            first_steps: (0..count as u64).collect(),
            bytes: vec![1; count],
            blocks: vec![1; count],
            ..v1::CensusLine::default()
        };
        assert!(!refused(census(cohorts(CENSUS_COHORTS_MAX))));
        assert!(refused(census(cohorts(CENSUS_COHORTS_MAX + 1))));
        assert!(refused(census(v1::CensusLine { bytes: vec![1], ..v1::CensusLine::default() })));
        let frames = vec![v1::Frame::default(); FRAMES_MAX + 1];
        assert!(refused(census(v1::CensusLine { frames, ..v1::CensusLine::default() })));
        let lines = vec![v1::CensusLine::default(); 2 * CENSUS_LINES_MAX + 1];
        assert!(refused(v1::Census { lines, ..v1::Census::default() }));
        let huge = v1::Census { other_bytes: u64::MAX, ..v1::Census::default() };
        assert!(changes(huge).is_err());
    }
}
