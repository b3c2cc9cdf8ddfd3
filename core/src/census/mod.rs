//! The census of a rank: which lines of code hold live memory, and since when.
//!
//! A census counts the live table of one device by user line and birth cohort: the bytes and blocks
//! that are live now and were allocated in the same range of steps. Memory that is kept shows as
//! old cohorts that stay while new ones follow; memory that is freed within a step is in no old
//! cohort. [`reader`] counts a tape, [`cohort`] divides its steps, [`line`](mod@line) decides which
//! line a block belongs to, [`changes`] is the difference between two censuses, and [`comparison`]
//! puts the lines of all ranks side by side.
//!
//! It judges nothing: whether a line leaks is the detector's question.

pub mod changes;
pub mod cohort;
pub mod comparison;
pub mod line;
pub mod reader;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::snapshot::{Frame, Held};

pub use line::LineId;

/// Live memory of one device of one rank, by line and cohort.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Census {
    /// Device index in the process.
    pub device: u8,
    /// Steps finished when the table was read.
    pub step: u64,
    /// The lines with the most survivors, at most [`crate::limits::CENSUS_LINES_MAX`].
    pub lines: BTreeMap<LineId, LineCensus>,
    /// What all other lines hold together.
    pub other_lines: Held,
}

/// What one line of code holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct LineCensus {
    /// The frames that tell the line from others, innermost first; at most
    /// [`line::FRAMES_MAX`]. The first one is the line to look at.
    pub frames: Vec<Frame>,
    /// Live memory of each cohort by the step of its oldest block; the cohort ends where
    /// [`cohort::end`] says.
    pub cohorts: BTreeMap<u64, Held>,
}

impl LineCensus {
    /// All that the line holds.
    pub fn held(&self) -> Held {
        self.cohorts.values().fold(Held::default(), |sum, held| sum.plus(*held))
    }

    /// What the line holds beyond its largest cohort and beyond the young cohorts: see
    /// [`cohort::is_old`]. Parameters and optimizer states are one cohort, activations are
    /// young: neither is a survivor.
    pub fn survivors(&self, step: u64) -> Held {
        let old = self.cohorts.iter().filter(|(of, _)| cohort::is_old(step, **of));
        let old = old.map(|(_, held)| *held);
        let largest = old.clone().max_by_key(|held| (held.bytes, held.count)).unwrap_or_default();
        let sum = old.fold(Held::default(), Held::plus);
        Held { bytes: sum.bytes - largest.bytes, count: sum.count - largest.count }
    }
}
