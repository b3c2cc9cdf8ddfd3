//! Finds the line that holds more at the peak than on the other ranks. Memory of one step is freed
//! at its end, so live blocks do not show it.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;

use super::held::Kind;
use crate::diagnosis::evidence::account::{Stack, median, primary_device};
use crate::diagnosis::evidence::case::share_of;
use crate::diagnosis::evidence::context::{LevelLine, Peaks};
use crate::diagnosis::evidence::past;
use crate::diagnosis::words::bytes;
use crate::snapshot::frames::telling_frame;
use crate::snapshot::{Frame, RankSnapshot};

/// Share of what is beyond the others with which a line is named, in parts per million.
const NAMED_PPM_MIN: u32 = 500_000;

/// Bytes that each line of a rank held at a peak.
#[derive(Clone, Debug, Default)]
pub struct PeakLines {
    /// Allocated in all.
    bytes: u64,
    by_line: BTreeMap<(Frame, Kind), u64>,
}

impl PeakLines {
    /// Reads the peak of the trace of the primary device; none without a trace.
    pub fn of(rank: &RankSnapshot) -> Option<Self> {
        let (_, peak) = past::peak(primary_device(rank)?)?;
        let held = peak.uses.iter().map(|of| (of.stack, of.bytes));
        let lines = Self::by_stack(|stack| rank.frames_of(stack).collect(), held);
        Some(Self { bytes: peak.bytes, ..lines })
    }

    /// Sums the bytes of stacks by line.
    pub(super) fn by_stack<'a>(
        frames_of: impl Fn(u32) -> Stack<'a>,
        held: impl Iterator<Item = (u32, u64)>,
    ) -> Self {
        let (mut by_line, mut all) = (BTreeMap::new(), 0_u64);
        for (stack, bytes) in held {
            let frames = frames_of(stack);
            let line = (telling_frame(&frames).cloned().unwrap_or_default(), Kind::of(&frames));
            let sum: &mut u64 = by_line.entry(line).or_default();
            *sum = sum.saturating_add(bytes);
            all = all.saturating_add(bytes);
        }
        Self { bytes: all, by_line }
    }

    /// The bytes at the peak of this rank, and the median of the others.
    pub fn peaks(&self, others: &[Self]) -> Peaks {
        let peers = median(others.iter().map(|other| other.bytes).collect());
        Peaks { own: self.bytes, peers }
    }

    /// The line that is furthest beyond the median of the others.
    pub fn beyond(&self, others: &[Self]) -> LevelLine {
        self.furthest(others, |name, held, usual| {
            let (held, usual) = (bytes(held), bytes(usual));
            format!("{held} are {name}, and {usual} on its median peer")
        })
    }

    /// The line that needs most more than at an earlier peak.
    pub(super) fn grown_since(&self, first: Self) -> LevelLine {
        self.furthest(&[first], |name, held, first| {
            let more = bytes(held.saturating_sub(first));
            format!(
                "memory {name} grew by {more} from the peak of the first whole step to that of the \
                 last"
            )
        })
    }

    /// The line that is furthest beyond the median of the others. It is named where it is most of
    /// what all lines have beyond them. `evidence` has its name, and what it holds here and there.
    fn furthest(
        &self,
        others: &[Self],
        evidence: impl FnOnce(&str, u64, u64) -> String,
    ) -> LevelLine {
        let lines = self.by_line.iter().rev().map(|(line, &held)| {
            let of_others =
                others.iter().map(|other| other.by_line.get(line).copied().unwrap_or(0));
            let usual = median(of_others.collect());
            (held.saturating_sub(usual), held, usual, line)
        });
        let all = lines.clone().fold(0_u64, |sum, (more, ..)| sum.saturating_add(more));
        // Of equal ones that which holds most, then the first by name.
        let most = lines.max_by_key(|&(more, held, ..)| (more, held));
        let Some((more @ 1.., held, usual, (frame, kind))) = most else {
            return LevelLine::default();
        };
        let [more, all] = [more, all].map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        let (ppm, name) = (share_of(more, all), kind.name(frame));
        let is_named = ppm >= NAMED_PPM_MIN && *kind != Kind::Nameless;
        LevelLine {
            line: is_named.then(|| (frame.clone(), ppm)),
            said: if is_named { format!("; most of that is {name}") } else { String::new() },
            evidence: vec![evidence(&name, held, usual)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank whose lines 1, 2 and 3 hold these bytes.
    fn lines(held: [u64; 3]) -> PeakLines {
        let frame = |line| Frame { file: "/app/train.py".into(), line, ..Frame::default() };
        let frames: vec::Vec<Frame> = (1..=3).map(frame).collect();
        let stack = |stack: u32| vec![&frames[stack as usize]];
        PeakLines::by_stack(stack, (0..).zip(held))
    }

    #[test]
    fn the_line_that_is_furthest_beyond_the_others_is_named_where_it_is_most_of_it() {
        let check = |held: [u64; 3], line: Option<(u32, u32)>, said: &str| {
            let others = [[900, 100, 100], [900, 120, 100], [900, 80, 300]].map(lines);
            let found = lines(held).beyond(&others);
            assert_eq!(found.line.map(|(frame, ppm)| (frame.line, ppm)), line);
            assert_eq!(found.said, said);
        };
        // Line 1 holds most on every rank, and line 3 as much on one of the others.
        check([900, 400, 100], Some((2, 1_000_000)), "; most of that is at train.py:2");
        check([1_000, 400, 100], Some((2, 750_000)), "; most of that is at train.py:2");
        // No line has most of it; nothing is beyond the others.
        check([1_000, 200, 200], None, "");
        check([900, 100, 100], None, "");
    }
}
