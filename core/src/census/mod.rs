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
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::limits::CENSUS_LINES_MAX;
use crate::snapshot::{DeviceSnapshot, Frame, Held, RankSnapshot};
use crate::tape::read;

pub use line::LineId;

use self::line::line_of;

/// A rank is counted again after this many steps …
pub const STEPS_MIN: u64 = 16;

/// … and this much time, in nanoseconds.
pub const INTERVAL_MIN_NS: u64 = 250_000_000;

/// Lines that are chosen by their survivors in blocks; the others are chosen by bytes.
const LINES_BY_BLOCKS: usize = CENSUS_LINES_MAX / 4;

/// Live memory of one device of one rank, by line and cohort.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Census {
    /// Device index in the process.
    pub device: u8,
    /// Steps finished when the table was read.
    pub step: u64,
    /// The lines with the most survivors, at most [`crate::limits::CENSUS_LINES_MAX`].
    pub lines: BTreeMap<LineId, LineCensus>,
    /// Bytes and blocks of all other lines together.
    pub other_lines: Held,
}

/// Memory held by one line of code.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct LineCensus {
    /// The frames that identify the line, innermost first; at most [`line::FRAMES_MAX`]. The first
    /// one is shown to users.
    pub frames: Vec<Frame>,
    /// Live memory of each cohort by the step of its oldest block; [`cohort::end`] gives its end.
    pub cohorts: BTreeMap<u64, Held>,
}

impl Census {
    /// Census of blocks, each given with its line and allocation step; equal blocks may come as one
    /// item. `frames` is called for the chosen lines.
    pub fn of(
        device: u8,
        step: u64,
        blocks: impl IntoIterator<Item = (LineId, u64, Held)>,
        frames: impl Fn(LineId) -> Option<Vec<Frame>>,
    ) -> Self {
        let mut lines: BTreeMap<LineId, BTreeMap<u64, (u64, Held)>> = BTreeMap::new();
        for (id, birth, held) in blocks {
            let cohorts = lines.entry(id).or_default();
            let of = cohorts.entry(cohort::start(step, birth));
            let of = of.or_insert((u64::MAX, Held::default()));
            *of = (of.0.min(birth), believable(of.1.plus(held)));
        }
        let lines = lines.into_iter().map(|(id, cohorts)| {
            (id, LineCensus { cohorts: cohorts.into_values().collect(), ..LineCensus::default() })
        });
        let (mut lines, other_lines) = choose(step, lines.collect());
        for (id, line) in &mut lines {
            line.frames = frames(*id).unwrap_or_default();
        }
        Self { device, step, lines, other_lines }
    }

    /// The census of each device of a state. Blocks that are pending free are of no line.
    pub fn of_state(state: &RankSnapshot) -> Vec<Self> {
        let stacks = (0..).take(state.stacks.len());
        let lines: Vec<(LineId, Vec<Frame>)> =
            stacks.map(|stack| line_of(&state.frames_of(stack).collect::<Vec<_>>())).collect();
        let frames: BTreeMap<LineId, &Vec<Frame>> =
            lines.iter().map(|(id, frames)| (*id, frames)).collect();
        let count = |device: &DeviceSnapshot| {
            let kept = device.blocks.iter().filter(|block| !block.pending).map(|block| {
                let id = lines.get(block.stack as usize).map_or(LineId::default(), |(id, _)| *id);
                (id, block.birth_step, Held { bytes: block.size, count: 1 })
            });
            let frames = |id| frames.get(&id).map(|frames| frames.to_vec());
            Self::of(device.device, state.step, kept, frames)
        };
        state.devices.iter().map(count).collect()
    }
}

impl Census {
    /// About the memory that it takes, in bytes.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.lines.values().map(LineCensus::bytes).sum::<usize>()
    }
}

/// Adds up the lines of these censuses that keep least, until the others take at most this many
/// bytes.
pub fn shorten<'a>(censuses: impl IntoIterator<Item = &'a mut Census>, bytes_max: usize) {
    let mut censuses: Vec<&mut Census> = censuses.into_iter().collect();
    let mut lines = vec![];
    for (index, census) in censuses.iter().enumerate() {
        let rank = |of: &LineCensus| Reverse((of.survivors(census.step).bytes, of.held().bytes));
        lines.extend(census.lines.iter().map(|(id, of)| (rank(of), index, *id, of.bytes())));
    }
    lines.sort_unstable();
    let mut left_bytes = bytes_max;
    for (_, index, id, bytes) in lines {
        if let Some(left) = left_bytes.checked_sub(bytes) {
            left_bytes = left;
        } else if let Some(census) = censuses.get_mut(index)
            && let Some(line) = census.lines.remove(&id)
        {
            census.other_lines = believable(census.other_lines.plus(line.held()));
        }
    }
}

impl LineCensus {
    /// About the memory that it takes, in bytes.
    fn bytes(&self) -> usize {
        let text = |frame: &Frame| size_of::<Frame>() + frame.file.len() + frame.function.len();
        let cohorts = self.cohorts.len().next_multiple_of(8) * size_of::<(u64, Held)>();
        size_of::<Self>() + self.frames.iter().map(text).sum::<usize>() + cohorts
    }

    /// Sum of the line's cohorts.
    pub fn held(&self) -> Held {
        self.cohorts.values().fold(Held::default(), |sum, held| sum.plus(*held))
    }

    /// Memory of the line beyond its largest cohort and its young cohorts: see [`cohort::is_old`].
    /// Parameters and optimizer states are one cohort, activations are young: neither is a
    /// survivor.
    pub fn survivors(&self, step: u64) -> Held {
        let old = self.cohorts.iter().filter(|(of, _)| cohort::is_old(step, **of));
        let old = old.map(|(_, held)| *held);
        let largest = old.clone().max_by_key(|held| (held.bytes, held.count)).unwrap_or_default();
        let sum = old.fold(Held::default(), Held::plus);
        Held { bytes: sum.bytes - largest.bytes, count: sum.count - largest.count }
    }
}

/// The lines with the most survivors, in bytes and in blocks, and the sum of the other lines.
fn choose(
    step: u64,
    mut lines: BTreeMap<LineId, LineCensus>,
) -> (BTreeMap<LineId, LineCensus>, Held) {
    let ranked = |by: fn(Held) -> u64, lines: &BTreeMap<LineId, LineCensus>| {
        let key = |line: &LineCensus| Reverse((by(line.survivors(step)), by(line.held())));
        let mut ids: Vec<_> = lines.iter().map(|(id, line)| (key(line), *id)).collect();
        ids.sort_unstable();
        ids.into_iter().map(|(_, id)| id)
    };
    let mut chosen = vec![];
    chosen.extend(ranked(|held| held.count, &lines).take(LINES_BY_BLOCKS));
    for id in ranked(|held| held.bytes, &lines) {
        if chosen.len() < CENSUS_LINES_MAX && !chosen.contains(&id) {
            chosen.push(id);
        }
    }
    let taken = chosen.into_iter().filter_map(|id| lines.remove_entry(&id)).collect();
    let other = lines.values().fold(Held::default(), |sum, line| sum.plus(line.held()));
    (taken, believable(other))
}

/// Clamps to the largest numbers that a tape can hold: larger values are damage.
fn believable(held: Held) -> Held {
    Held { bytes: read::believable(held.bytes), count: read::believable(held.count) }
}
