//! Counts a tape's live table.
//!
//! The table is read in pieces while its process goes on writing. A block that is allocated or
//! freed meanwhile is counted or not, which changes the youngest cohorts only. Each stack is
//! resolved to its line once, because stacks never change on a tape.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::census::line::{LineId, line_of};
use crate::census::{Census, LineCensus, cohort};
use crate::limits::CENSUS_LINES_MAX;
use crate::snapshot::{Frame, Held};
use crate::tape::read::{Source, Tape, tape};

/// Lines that are chosen by their survivors in blocks; the others are chosen by bytes.
const LINES_BY_BLOCKS: usize = CENSUS_LINES_MAX / 4;

/// Counts one tape again and again, and remembers the lines of its stacks.
#[derive(Debug, Default)]
pub struct CensusReader {
    lines: BTreeMap<u32, LineId>,
    frames: BTreeMap<LineId, Vec<Frame>>,
}

impl CensusReader {
    /// Counts the live blocks of a device; `None` when the device has no lane or cannot be read.
    ///
    /// Blocks that the program has freed and other streams still use are left out: they are the
    /// allocator's pending frees, not kept by a line.
    pub fn count<S: Source>(&mut self, tape: &Tape<S>, device: u8) -> Option<Census> {
        let step = tape.status().step;
        let mut counted: BTreeMap<(u32, u64), (u64, Held)> = BTreeMap::new();
        tape.for_each_live_block(device, |block| {
            if !block.is_pending {
                let cohort = cohort::start(step, block.birth_step);
                let of =
                    counted.entry((block.stack, cohort)).or_insert((u64::MAX, Held::default()));
                of.0 = of.0.min(block.birth_step);
                of.1.add(block.bytes);
            }
        })?;
        self.resolve(tape, counted.keys().map(|(stack, _)| *stack));

        let mut lines: BTreeMap<LineId, BTreeMap<u64, (u64, Held)>> = BTreeMap::new();
        for ((stack, cohort), (oldest, held)) in counted {
            let id = self.lines.get(&stack).copied().unwrap_or_default();
            let of = lines.entry(id).or_default();
            let of = of.entry(cohort).or_insert((u64::MAX, Held::default()));
            *of = (of.0.min(oldest), believable(of.1.plus(held)));
        }
        let lines = lines.into_iter().map(|(id, cohorts)| {
            (id, LineCensus { cohorts: cohorts.into_values().collect(), ..LineCensus::default() })
        });
        let (mut lines, other_lines) = choose(step, lines.collect());
        for (id, line) in &mut lines {
            line.frames = self.frames.get(id).cloned().unwrap_or_default();
        }
        Some(Census { device, step, lines, other_lines })
    }

    /// Learns the lines of stacks that were not seen before.
    fn resolve<S: Source>(&mut self, tape: &Tape<S>, stacks: impl Iterator<Item = u32>) {
        let mut unknown: Vec<u32> =
            stacks.filter(|stack| !self.lines.contains_key(stack)).collect();
        unknown.dedup();
        if unknown.is_empty() {
            return;
        }
        let interned = tape.interned();
        for stack in unknown {
            let frames: Vec<Frame> = interned.frames_of(stack);
            let (id, frames) = line_of(&frames.iter().collect::<Vec<_>>());
            self.lines.insert(stack, id);
            self.frames.entry(id).or_insert(frames);
        }
    }
}

/// The lines with the most survivors, in bytes and in blocks, and what the others hold together.
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

/// At most what the numbers of a tape can be: larger ones are lies.
fn believable(held: Held) -> Held {
    Held { bytes: tape::believable(held.bytes), count: tape::believable(held.count) }
}
