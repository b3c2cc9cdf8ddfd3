//! The stacks of one rank with what other states hold by the same stacks.
//!
//! A stack is what its frames say, because the numbers of stacks differ from rank to rank. The
//! states come one after the other and are not kept, so that one snapshot is in memory at a time.
//! The memory of the table is bounded: of each state the stacks that hold least are added up where
//! they find no room.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::diagnosis::evidence::account::median;
use crate::snapshot::frames::telling_frame;
use crate::snapshot::{Frame, Held};
use crate::stacks::live_stacks::{LiveStacks, Use};

/// Memory of one frame in the table, beside its names.
const FRAME_BYTES: u64 = 128;

/// Memory of one stack in the table, beside its frames: with the bytes of 15 other states.
const ROW_BYTES: u64 = 320;

/// The stacks of a rank beside those of other states.
#[derive(Clone, Debug, Default)]
pub struct ComparedStacks {
    frames: BTreeMap<Frame, u32>,
    rows: BTreeMap<(Option<u8>, Vec<u32>), Row>,
    /// Stacks that found no room.
    rest: Row,
    rest_stacks: u64,
    /// Bytes that each of the other states holds.
    totals: Vec<u64>,
    unrecorded_bytes: u64,
    /// Bytes of memory that are left for further stacks.
    room: u64,
}

/// What the rank and the other states hold by one stack, or by several.
#[derive(Clone, Debug, Default)]
struct Row {
    own: Use,
    /// Bytes of the other states; those behind the last entry hold nothing.
    others: Vec<u64>,
}

/// One stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackRow<'a> {
    /// Device index in the process; `None` where the rank uses one device only.
    pub device: Option<u8>,
    /// Its known frames, outermost first; empty where the stack is unknown.
    pub frames: Vec<&'a Frame>,
    /// What the rank holds by it.
    pub own: Use,
    /// Bytes that the median of the other states holds by it; 0 without other states.
    pub other_bytes: u64,
}

/// One line of code: the frame of its stacks that is shown to a person ([`telling_frame`]), as an
/// incident names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineRow<'a> {
    /// The line; `None` for memory without a stack.
    pub frame: Option<&'a Frame>,
    /// What the rank holds by it.
    pub own: Use,
    /// Bytes that the median of the other states holds by it; 0 without other states.
    pub other_bytes: u64,
}

impl Row {
    fn total(&mut self, other: usize) -> &mut u64 {
        if self.others.len() <= other {
            self.others.resize(other + 1, 0);
        }
        &mut self.others[other]
    }

    fn add(&mut self, more: &Self) {
        self.own.add(more.own);
        for (other, bytes) in more.others.iter().enumerate() {
            let total = self.total(other);
            *total = total.saturating_add(*bytes);
        }
    }

    /// The lower median over this number of other states.
    fn median(&self, states: usize) -> u64 {
        let mut bytes = self.others.clone();
        bytes.resize(states, 0);
        median(bytes)
    }
}

impl ComparedStacks {
    /// The stacks of a rank, which take at most about this many bytes of memory.
    pub fn of(live: &LiveStacks<'_>, bytes_max: u64) -> Self {
        let mut table = Self { room: bytes_max, ..Self::default() };
        table.unrecorded_bytes = live.unrecorded_bytes();
        table.rest_stacks = table.add(live, |row, held| row.own.add(held));
        table
    }

    /// Adds another state: a peer of the rank, or an earlier state of the rank.
    pub fn add_other(&mut self, live: &LiveStacks<'_>) {
        let other = self.totals.len();
        let bytes = live.uses().map(|(_, held)| held.held.bytes);
        self.totals.push(bytes.fold(0, u64::saturating_add));
        self.add(live, |row, held| {
            let total = row.total(other);
            *total = total.saturating_add(held.held.bytes);
        });
    }

    /// Number of other states.
    pub fn others(&self) -> usize {
        self.totals.len()
    }

    /// What the rank holds in recorded blocks: the sum over all stacks and the rest.
    pub fn own(&self) -> Held {
        let rows = self.rows.values().map(|row| row.own.held);
        rows.fold(self.rest.own.held, Held::plus)
    }

    /// Bytes of the rank in no recorded block, see [`LiveStacks::unrecorded_bytes`].
    pub fn unrecorded_bytes(&self) -> u64 {
        self.unrecorded_bytes
    }

    /// Bytes of the median of the other states; `None` without other states.
    pub fn other_bytes(&self) -> Option<u64> {
        (!self.totals.is_empty()).then(|| median(self.totals.clone()))
    }

    /// Stacks of the rank that found no room, and what they hold together.
    pub fn rest(&self) -> (u64, Held) {
        (self.rest_stacks, self.rest.own.held)
    }

    /// Every stack that the rank or the median of the other states holds memory by, in order.
    pub fn stacks(&self) -> Vec<StackRow<'_>> {
        let frames = self.frames_by_index();
        let row = |((device, stack), row): (&(Option<u8>, Vec<u32>), &Row)| StackRow {
            device: *device,
            frames: resolved(&frames, stack),
            own: row.own,
            other_bytes: row.median(self.others()),
        };
        let mut rows: Vec<StackRow<'_>> = self.rows.iter().map(row).collect();
        rows.retain(|row| row.own != Use::default() || row.other_bytes > 0);
        rows.sort_by(|a, b| (a.device, &a.frames).cmp(&(b.device, &b.frames)));
        rows
    }

    /// Every line that the rank or the median of the other states holds memory by: those that hold
    /// most beyond the others first.
    pub fn lines(&self) -> Vec<LineRow<'_>> {
        let frames = self.frames_by_index();
        let mut lines: BTreeMap<Option<&Frame>, Row> = BTreeMap::new();
        for ((_, stack), row) in &self.rows {
            let mut innermost_first = resolved(&frames, stack);
            innermost_first.reverse();
            lines.entry(telling_frame(&innermost_first)).or_default().add(row);
        }
        let line = |(frame, row): (Option<_>, Row)| LineRow {
            frame,
            own: row.own,
            other_bytes: row.median(self.others()),
        };
        let mut lines: Vec<LineRow<'_>> = lines.into_iter().map(line).collect();
        lines.retain(|line| line.own != Use::default() || line.other_bytes > 0);
        let beyond =
            |line: &LineRow<'_>| i128::from(line.own.held.bytes) - i128::from(line.other_bytes);
        lines.sort_by_key(|line| (Reverse(beyond(line)), Reverse(line.own.held.bytes), line.frame));
        lines
    }

    /// Adds each stack of a state to its row, the largest first. Returns the number of stacks that
    /// found no room.
    fn add(&mut self, live: &LiveStacks<'_>, add: impl Fn(&mut Row, Use)) -> u64 {
        let mut uses: Vec<_> = live.uses().collect();
        uses.sort_by_key(|(key, held)| (Reverse(held.held.bytes), *key));
        let mut without_room = 0;
        for ((device, stack), held) in uses {
            let frames: Vec<&Frame> = live.frames_of(stack).collect();
            match self.key(live.device(device), &frames) {
                Some(key) => add(self.rows.entry(key).or_default(), held),
                None => {
                    add(&mut self.rest, held);
                    without_room += 1;
                }
            }
        }
        without_room
    }

    /// The row of a stack; `None` where there is no room for it.
    fn key(&mut self, device: Option<u8>, frames: &[&Frame]) -> Option<(Option<u8>, Vec<u32>)> {
        let known = frames.iter().map(|frame| self.frames.get(*frame).copied());
        if let Some(stack) = known.collect::<Option<Vec<u32>>>() {
            let key = (device, stack);
            if self.rows.contains_key(&key) {
                return Some(key);
            }
        }
        let new = frames.iter().filter(|frame| !self.frames.contains_key(**frame));
        let names = new.map(|of| of.file.len() + of.function.len()).map(|len| len as u64);
        let names = names.fold(0, |sum: u64, len| sum.saturating_add(len + FRAME_BYTES));
        let row = ROW_BYTES + size_of::<u32>() as u64 * frames.len() as u64;
        self.room = self.room.checked_sub(names.saturating_add(row))?;
        let mut stack = Vec::with_capacity(frames.len());
        for &frame in frames {
            let next = u32::try_from(self.frames.len()).unwrap_or(u32::MAX);
            stack.push(match self.frames.get(frame) {
                Some(index) => *index,
                None => *self.frames.entry(frame.clone()).or_insert(next),
            });
        }
        Some((device, stack))
    }

    fn frames_by_index(&self) -> Vec<&Frame> {
        let mut frames: Vec<(&Frame, u32)> = self.frames.iter().map(|(of, at)| (of, *at)).collect();
        frames.sort_unstable_by_key(|(_, index)| *index);
        frames.into_iter().map(|(frame, _)| frame).collect()
    }
}

fn resolved<'a>(frames: &[&'a Frame], stack: &[u32]) -> Vec<&'a Frame> {
    stack.iter().filter_map(|&index| frames.get(index as usize).copied()).collect()
}
