//! Difference of a census to an earlier one of the same device, and its application.
//!
//! The difference has each line whose cohorts changed, with all its cohorts, and its frames only
//! if the receiver lacks them. Parameters and optimizer states are sent once. A line without
//! cohorts is no longer in the census.

use alloc::collections::BTreeMap;

use crate::census::line::LineId;
use crate::census::{Census, LineCensus};
use crate::limits::CENSUS_LINES_MAX;
use crate::snapshot::Held;

/// The difference between two censuses of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Device index in the process.
    pub device: u8,
    /// Steps finished when the later table was read.
    pub step: u64,
    /// The receiver discards its earlier census.
    pub is_whole: bool,
    /// Lines whose cohorts changed; no cohorts is a line that is gone. Frames are empty where the
    /// receiver has them.
    pub lines: BTreeMap<LineId, LineCensus>,
    /// Bytes and blocks of all other lines together.
    pub other_lines: Held,
}

impl Changes {
    /// Changes from `earlier` to `later`; all of `later`, when there is no earlier one.
    pub fn between(earlier: Option<&Census>, later: &Census) -> Self {
        let Census { device, step, other_lines, .. } = *later;
        let known = |id: &LineId| earlier.and_then(|census| census.lines.get(id));
        let mut lines = BTreeMap::new();
        for (id, line) in &later.lines {
            let known = known(id);
            if known.is_none_or(|known| known.cohorts != line.cohorts) {
                let frames = known.map_or_else(|| line.frames.clone(), |_| Default::default());
                lines.insert(*id, LineCensus { frames, cohorts: line.cohorts.clone() });
            }
        }
        let gone = earlier.iter().flat_map(|census| census.lines.keys());
        lines.extend(
            gone.filter(|id| !later.lines.contains_key(id)).map(|id| (*id, LineCensus::default())),
        );
        Self { device, step, is_whole: earlier.is_none(), lines, other_lines }
    }

    /// The later census, from the earlier one; `None` when these changes need an earlier census
    /// that is missing, or when the result has more than [`CENSUS_LINES_MAX`] lines.
    pub fn apply(self, earlier: Option<Census>) -> Option<Census> {
        let mut census = match (self.is_whole, earlier) {
            (true, _) => Census::default(),
            (false, earlier) => earlier?,
        };
        for (id, line) in self.lines {
            if line.cohorts.is_empty() {
                census.lines.remove(&id);
                continue;
            }
            let known = census.lines.entry(id).or_default();
            known.cohorts = line.cohorts;
            if !line.frames.is_empty() {
                known.frames = line.frames;
            }
        }
        let (device, step, other_lines) = (self.device, self.step, self.other_lines);
        let is_sound = census.lines.len() <= CENSUS_LINES_MAX;
        is_sound.then_some(Census { device, step, other_lines, ..census })
    }
}
