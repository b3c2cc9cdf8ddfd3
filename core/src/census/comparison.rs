//! The lines of all ranks of a job side by side: who holds what, since when, and whether it grows.
//!
//! "Growing" is here a display rule over one census and an earlier level of the line. The detector
//! (`core/src/detector/blocks`) decides with what it has seen over time; its rate is shown for the
//! lines that it has found.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::census::line::{LineId, line_of};
use crate::census::{Census, LineCensus, cohort};
use crate::limits::LINES_SHOWN_MAX;
use crate::snapshot::{Frame, Held as Bytes, RankSnapshot, allocation_step};
use crate::tape::layout::Clock;

/// Ranks that are shown of one line.
const HOLDERS_MAX: usize = 16;

/// Cohorts with survivors in the younger half of a line's life from which on it grows.
const GROWING_COHORTS_MIN: usize = 4;

/// Growth continues across a gap without births of at most this many steps, or half of its age.
const GAP_STEPS: u64 = 64;

/// The lines of an attempt, the one with the most survivors first.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Lines {
    /// Name of the job.
    pub job: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// Ranks with a census.
    pub ranks: u32,
    /// Why no rank has a census; empty where one has.
    pub missing: String,
    /// What all numbers of steps here count; `steps` where some ranks count turns.
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::tape::schema::words::<Clock>"))]
    pub clock: Clock,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Line {
    /// The frames that tell it from other lines, innermost first; none is memory without a stack.
    pub frames: Vec<Frame>,
    /// Bytes that the median rank with a census holds by this line; null with a census of one rank
    /// only.
    pub median_bytes: Option<u64>,
    /// Ranks that hold something by it.
    pub ranks: u32,
    /// The ranks that keep most by it, at most 16; with a rank in the query only that one.
    pub holders: Vec<Holder>,
}

/// What one device of one rank holds by a line. Survivors are bytes beyond the line's largest
/// cohort that outlived the work of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// First and last of the steps that this was measured over; null when it does not grow.
    pub growth_steps: Option<[u64; 2]>,
}

/// How a line keeps more and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Step of the oldest block of the growth.
    pub since_step: u64,
    /// Bytes kept from each step, on average over `steps`.
    pub bytes_per_step: u64,
    /// First and last step: of a census the younger half of the time since then.
    pub steps: [u64; 2],
}

/// How the lines of a census grow that do.
pub type Growths = BTreeMap<LineId, Growth>;

/// A census of a rank, and how its lines grow.
#[derive(Clone, Debug)]
pub struct Counted {
    /// Global rank.
    pub rank: u32,
    /// Its census.
    pub census: Census,
    /// Of the lines in it.
    pub growths: Growths,
}

impl Counted {
    /// The census of each device of a state, compared with the earlier step of the state.
    pub fn of_state(state: &RankSnapshot) -> impl Iterator<Item = Self> {
        Census::of_state(state).into_iter().zip(&state.devices).map(|(census, device)| {
            let mut before: BTreeMap<LineId, u64> = BTreeMap::new();
            for of in &device.before {
                let (line, _) = line_of(&state.frames_of(of.stack).collect::<Vec<_>>());
                *before.entry(line).or_default() += of.bytes;
            }
            let level = |line: LineId| before.get(&line).copied().unwrap_or(0);
            let known = (state.before_step > 0).then_some(state.before_step);
            let growths = census.growths(|line, _| Some((known?, level(line))));
            Self { rank: state.identity.rank, census, growths }
        })
    }
}

impl Census {
    /// How the lines grow; `before` tells what a line held at a step: a step near it and the bytes,
    /// none where that is not known.
    pub fn growths(&self, before: impl Fn(LineId, u64) -> Option<(u64, u64)>) -> Growths {
        let growth = |(id, line): (&LineId, &LineCensus)| {
            let found = line.growth(self.step)?;
            let level = before(*id, found.steps[0]);
            let is_replaced = level.is_some_and(|level| line.replaces_since(level, self.step));
            (!is_replaced).then_some((*id, found))
        };
        self.lines.iter().filter_map(growth).collect()
    }
}

impl LineCensus {
    /// Do new blocks replace old ones, as in a list of bounded length? True where the line, which
    /// held these bytes at this step, has risen by less than half of what it keeps of the births
    /// since then.
    fn replaces_since(&self, (from, bytes): (u64, u64), step: u64) -> bool {
        let births = self.cohorts.range(from..).filter(|(of, _)| cohort::is_old(step, **of));
        let kept = births.clone().fold(Bytes::default(), |sum, (_, held)| sum.plus(*held));
        let risen = self.held().bytes.saturating_sub(bytes);
        births.count() >= GROWING_COHORTS_MIN && risen < kept.bytes / 2
    }

    /// How the line grows, seen at `step`; none when too few cohorts survive, or new ones no longer
    /// follow.
    fn growth(&self, step: u64) -> Option<Growth> {
        let births = self.cohorts.iter().map(|(start, held)| (*start, *held));
        let old: Vec<(u64, Bytes)> = births.filter(|(of, _)| cohort::is_old(step, *of)).collect();
        let end = cohort::end(step, old.last()?.0);
        let mut since_step = old.last()?.0;
        for (start, _) in old.iter().rev() {
            let gap = since_step.saturating_sub(cohort::end(step, *start));
            if gap > GAP_STEPS.max((step - since_step) / 2) {
                break;
            }
            since_step = *start;
        }
        let middle = since_step.midpoint(end);
        let younger = old.iter().filter(|(start, _)| *start >= middle);
        let (first, _) = younger.clone().next()?;
        let steps = end.saturating_sub(*first).max(1);
        let goes_on = step.saturating_sub(end) <= GAP_STEPS.max(steps / 2);
        if younger.clone().count() < GROWING_COHORTS_MIN || !goes_on {
            return None;
        }
        let kept = younger.fold(Bytes::default(), |sum, (_, held)| sum.plus(*held));
        Some(Growth {
            since_step: allocation_step(since_step),
            bytes_per_step: kept.bytes / steps,
            steps: [allocation_step(*first), end],
        })
    }
}

/// The frames of a line, and what each rank holds by it, the one with the most survivors first.
type Held<'a> = (&'a [Frame], Vec<Holder>);

impl Lines {
    /// The lines of these censuses; with `rank` those that this rank holds.
    pub fn new(censuses: &[Counted], rank: Option<u32>) -> Self {
        let mut lines = by_line(censuses);
        lines.sort_by_key(|(_, holders)| holders.first().map(order));
        if let Some(rank) = rank {
            lines.retain_mut(|(_, holders)| {
                holders.sort_by_key(|of| of.rank != rank);
                holders.first().is_some_and(|of| of.rank == rank)
            });
            let survivors = |of: &Holder| Reverse(of.survivor_bytes);
            lines.sort_by_key(|(_, holders)| holders.first().map(survivors));
        }
        let is_wanted = |of: u32| rank.is_none_or(|rank| of == rank);
        let of_rank = censuses.iter().filter(|of| is_wanted(of.rank));
        let other = of_rank.fold(Bytes::default(), |sum, of| sum.plus(of.census.other_lines));
        let ranks_known = ranks(censuses.iter().map(|of| of.rank));
        let shown = lines.iter().take(LINES_SHOWN_MAX).map(|(frames, holders)| Line {
            frames: frames.to_vec(),
            median_bytes: (ranks_known > 1).then(|| median_bytes(holders, censuses.len())),
            ranks: ranks(holders.iter().map(|of| of.rank)),
            holders: holders
                .iter()
                .filter(|of| is_wanted(of.rank))
                .take(HOLDERS_MAX)
                .copied()
                .collect(),
        });
        Self {
            ranks: ranks_known,
            lines: shown.collect(),
            lines_left_out: count(lines.len().saturating_sub(LINES_SHOWN_MAX)),
            other_bytes: other.bytes,
            other_blocks: other.count,
            ..Self::default()
        }
    }
}

fn order(of: &Holder) -> Reverse<(u64, u64, u64)> {
    Reverse((of.survivor_bytes, of.survivor_blocks, of.bytes))
}

fn by_line(censuses: &[Counted]) -> Vec<Held<'_>> {
    let mut lines: BTreeMap<LineId, Held<'_>> = BTreeMap::new();
    for Counted { rank, census, growths } in censuses {
        let Census { device, step, .. } = *census;
        for (id, line) in &census.lines {
            let (held, survivors, growth) = (line.held(), line.survivors(step), growths.get(id));
            let of = lines.entry(*id).or_insert_with(|| (&line.frames, Vec::new()));
            of.1.push(Holder {
                rank: *rank,
                device,
                step,
                bytes: held.bytes,
                blocks: held.count,
                survivor_bytes: survivors.bytes,
                survivor_blocks: survivors.count,
                oldest_step: line.cohorts.keys().next().map_or(0, |birth| allocation_step(*birth)),
                growing_since_step: growth.map(|growth| growth.since_step),
                growth_bytes_per_step: growth.map_or(0, |growth| growth.bytes_per_step),
                growth_steps: growth.map(|growth| growth.steps),
            });
        }
    }
    let mut lines: Vec<Held<'_>> = lines.into_values().collect();
    lines.iter_mut().for_each(|(_, holders)| holders.sort_by_key(order));
    lines
}

/// The lower median over all censuses; one without the line holds nothing by it.
fn median_bytes(holders: &[Holder], censuses: usize) -> u64 {
    let mut bytes: Vec<u64> = holders.iter().map(|of| of.bytes).collect();
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
