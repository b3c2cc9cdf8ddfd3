//! The lines of code that hold the live memory of a job, rank by rank, from the ranks' censuses.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use memtape_core::census::Census;
use memtape_core::census::comparison::{self, RankLine as Compared};
use memtape_core::limits::LINES_SHOWN_MAX;
use memtape_core::snapshot::Held;
use memtape_core::tape::layout::Clock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::incident::Frame;
use super::name::Named;

/// Ranks that are shown of one line.
const HOLDERS_MAX: usize = 16;

/// The lines of an attempt, the one with the most survivors first.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct Lines {
    /// Name of the job.
    pub job: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// Ranks with a census.
    pub ranks: u32,
    /// What all numbers of steps here count; `steps` where some ranks count turns.
    pub clock: Named<Clock>,
    /// At most 64.
    pub lines: Vec<Line>,
    /// Lines that are not shown.
    pub lines_left_out: u32,
    /// Bytes of lines that no census has.
    pub other_bytes: u64,
    /// The same in blocks.
    pub other_blocks: u64,
}

/// One line of code.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct Line {
    /// The frames that tell it from other lines, innermost first; none is memory without a stack.
    pub frames: Vec<Frame>,
    /// Bytes that the median rank with a census holds by this line.
    pub median_bytes: u64,
    /// Ranks that hold something by it.
    pub ranks: u32,
    /// The ranks that keep most by it, at most 16; with a rank in the query only that one.
    pub holders: Vec<Holder>,
}

/// What one device of one rank holds by a line. Survivors are bytes beyond the line's largest
/// cohort that outlived the work of a step.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct Holder {
    /// Its number.
    pub rank: u32,
    /// Device index in the process.
    pub device: u8,
    /// Steps finished when it was counted.
    pub step: u64,
    /// All that it holds.
    pub bytes: u64,
    /// The same in blocks.
    pub blocks: u64,
    /// What survived.
    pub survivor_bytes: u64,
    /// The same in blocks.
    pub survivor_blocks: u64,
    /// Step of its oldest block.
    pub oldest_step: u64,
    /// Step of the oldest block of the growth; null when it does not grow.
    pub growing_since_step: Option<u64>,
    /// Bytes that it keeps from each step; 0 when it does not grow.
    pub growth_bytes_per_step: u64,
}

impl Lines {
    /// The lines of these censuses, each with its rank; with `rank` those that this rank holds.
    pub fn new(job: &str, attempt: u32, censuses: &[(u32, &Census)], rank: Option<u32>) -> Self {
        let mut lines = comparison::lines(censuses.iter().copied());
        if let Some(rank) = rank {
            lines.retain_mut(|line| {
                line.ranks.sort_by_key(|of| of.rank != rank);
                line.ranks.first().is_some_and(|of| of.rank == rank)
            });
            lines.sort_by_key(|line| line.ranks.first().map(|of| Reverse(of.survivors.bytes)));
        }
        let of_rank = censuses.iter().filter(|(of, _)| rank.is_none_or(|rank| *of == rank));
        let other = of_rank.fold(Held::default(), |sum, (_, census)| sum.plus(census.other_lines));
        let shown = lines.iter().take(LINES_SHOWN_MAX).map(|line| Line {
            frames: line.frames.iter().map(Frame::from).collect(),
            median_bytes: median_bytes(&line.ranks, censuses.len()),
            ranks: ranks(line.ranks.iter().map(|of| of.rank)),
            holders: line
                .ranks
                .iter()
                .filter(|of| rank.is_none_or(|rank| of.rank == rank))
                .take(HOLDERS_MAX)
                .map(Holder::from)
                .collect(),
        });
        Self {
            job: job.to_string(),
            attempt,
            ranks: ranks(censuses.iter().map(|(rank, _)| *rank)),
            clock: Clock::Steps.into(),
            lines: shown.collect(),
            lines_left_out: count(lines.len().saturating_sub(LINES_SHOWN_MAX)),
            other_bytes: other.bytes,
            other_blocks: other.count,
        }
    }
}

impl From<&Compared> for Holder {
    fn from(of: &Compared) -> Self {
        Self {
            rank: of.rank,
            device: of.device,
            step: of.step,
            bytes: of.held.bytes,
            blocks: of.held.count,
            survivor_bytes: of.survivors.bytes,
            survivor_blocks: of.survivors.count,
            oldest_step: of.oldest_step,
            growing_since_step: of.growth.map(|growth| growth.since_step),
            growth_bytes_per_step: of.growth.map_or(0, |growth| growth.bytes_per_step),
        }
    }
}

/// The lower median over all censuses; one without the line holds nothing by it.
fn median_bytes(holders: &[Compared], censuses: usize) -> u64 {
    let mut bytes: Vec<u64> = holders.iter().map(|of| of.held.bytes).collect();
    bytes.resize(censuses.max(bytes.len()), 0);
    bytes.sort_unstable();
    bytes.get(bytes.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

fn ranks(of: impl Iterator<Item = u32>) -> u32 {
    count(of.collect::<BTreeSet<u32>>().len())
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
