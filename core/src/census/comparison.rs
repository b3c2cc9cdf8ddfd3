//! The lines of all ranks of a job side by side: who holds what, since when, and whether it grows.
//!
//! "Growing" is here a display rule over one census. The detector (`core/src/detector/blocks`)
//! decides with what it has seen over time.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::census::line::LineId;
use crate::census::{Census, LineCensus, cohort};
use crate::snapshot::{Frame, Held};

/// Cohorts with survivors in the younger half of a line's life from which on it grows.
const GROWING_COHORTS_MIN: usize = 4;

/// Growth continues across a gap without births of at most this many steps, or half of its age.
const GAP_STEPS: u64 = 64;

/// One line of code on all ranks that hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Its name.
    pub id: LineId,
    /// The frames that tell it from others, innermost first.
    pub frames: &'a [Frame],
    /// What each rank holds by it, the one with the most survivors first.
    pub ranks: Vec<RankLine>,
}

/// What one device of one rank holds by a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankLine {
    /// Global rank.
    pub rank: u32,
    /// Device index in the process.
    pub device: u8,
    /// Steps finished when it was counted.
    pub step: u64,
    /// All that it holds.
    pub held: Held,
    /// What it holds beyond its largest and its young cohorts.
    pub survivors: Held,
    /// Step of its oldest block.
    pub oldest_step: u64,
    /// Growth that went on until the census; none when it stopped or never was.
    pub growth: Option<Growth>,
}

/// How a line keeps more and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Step of the oldest block of the growth.
    pub since_step: u64,
    /// Bytes kept from each step, on average over the younger half of the time since then.
    pub bytes_per_step: u64,
}

impl LineCensus {
    /// How the line grows, seen at `step`; none when too few cohorts survive, or new ones no longer
    /// follow.
    ///
    /// This is a display rule over one census. It opens no incident: the detector
    /// (`crate::detector`, `blocks`) decides with what it has seen over time.
    pub fn growth(&self, step: u64) -> Option<Growth> {
        let old: Vec<(u64, Held)> = self
            .cohorts
            .iter()
            .map(|(start, held)| (*start, *held))
            .filter(|(of, _)| cohort::is_old(step, *of))
            .collect();
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
        let kept = younger.fold(Held::default(), |sum, (_, held)| sum.plus(*held));
        Some(Growth { since_step, bytes_per_step: kept.bytes / steps })
    }
}

/// The lines of these censuses, each with its rank; the line with the most survivors first.
pub fn lines<'a>(censuses: impl IntoIterator<Item = (u32, &'a Census)>) -> Vec<Line<'a>> {
    let mut lines: BTreeMap<LineId, Line<'a>> = BTreeMap::new();
    for (rank, census) in censuses {
        let Census { device, step, .. } = *census;
        for (id, line) in &census.lines {
            let of = lines.entry(*id);
            let of =
                of.or_insert_with(|| Line { id: *id, frames: &line.frames, ranks: Vec::new() });
            of.ranks.push(RankLine {
                rank,
                device,
                step,
                held: line.held(),
                survivors: line.survivors(step),
                oldest_step: line.cohorts.keys().next().copied().unwrap_or(0),
                growth: line.growth(step),
            });
        }
    }
    let mut lines: Vec<Line<'a>> = lines.into_values().collect();
    let order = |of: &RankLine| Reverse((of.survivors.bytes, of.survivors.count, of.held.bytes));
    for line in &mut lines {
        line.ranks.sort_by_key(order);
    }
    lines.sort_by_key(|line| line.ranks.first().map(order));
    lines
}
