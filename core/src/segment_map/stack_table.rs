//! The stacks of the blocks of a map: those that hold most, in one table of frames, as far as the
//! bounds of the map have room.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::MapBounds;
use crate::pickle::layout::Piece;
use crate::snapshot::frames::telling_frame;
use crate::snapshot::{Frame, Held, RankSnapshot};

/// Memory of one frame in the table, beside its names.
const FRAME_BYTES: u64 = 128;

/// Stacks with their frames.
#[derive(Clone, Debug, Default)]
pub struct StackTable<'a> {
    /// Each frame once.
    pub frames: Vec<&'a Frame>,
    /// The stacks that hold most first.
    pub stacks: Vec<MappedStack>,
    /// Stacks that found no room, and what they hold together.
    pub others: (u64, Held),
    /// Index of a stack of the snapshot in the table.
    indexes: BTreeMap<u32, u32>,
}

/// One stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappedStack {
    /// Indexes into the frames, outermost first.
    pub frames: Vec<u32>,
    /// Index of the frame that is shown to a person.
    pub line: Option<u32>,
    /// What the blocks of the map hold by it, without merged ones.
    pub held: Held,
}

impl<'a> StackTable<'a> {
    /// The stacks of these pieces.
    pub(super) fn of<'p>(
        snapshot: &'a RankSnapshot,
        pieces: impl Iterator<Item = &'p Piece>,
        bounds: &MapBounds,
    ) -> Self {
        let mut uses: BTreeMap<u32, Held> = BTreeMap::new();
        for block in pieces.filter_map(|piece| piece.live) {
            uses.entry(block.stack).or_default().add(block.size);
        }
        let mut uses: Vec<(u32, Held)> = uses.into_iter().collect();
        uses.sort_by_key(|(stack, held)| (Reverse(held.bytes), *stack));
        let mut table = Self::default();
        let mut known: BTreeMap<&Frame, u32> = BTreeMap::new();
        let mut room = bounds.stacks_bytes_max;
        for (stack, held) in uses {
            let frames: Vec<&'a Frame> =
                snapshot.frames_of(stack).filter(|of| is_known(of)).collect();
            if frames.is_empty() {
                continue;
            }
            let left = room.checked_sub(bytes(&frames, &known));
            match left.filter(|_| table.stacks.len() < bounds.stacks_max) {
                Some(left) => {
                    room = left;
                    table.add(stack, &frames, held, &mut known);
                }
                None => table.others = (table.others.0 + 1, table.others.1.plus(held)),
            }
        }
        table
    }

    /// The index of a stack of the snapshot; `None` where it is unknown or left out.
    pub(super) fn index(&self, stack: u32) -> Option<u32> {
        self.indexes.get(&stack).copied()
    }

    fn add(
        &mut self,
        stack: u32,
        innermost_first: &[&'a Frame],
        held: Held,
        known: &mut BTreeMap<&'a Frame, u32>,
    ) {
        let mut frames = Vec::with_capacity(innermost_first.len());
        for &frame in innermost_first.iter().rev() {
            let next = count(self.frames.len());
            frames.push(*known.entry(frame).or_insert_with(|| {
                self.frames.push(frame);
                next
            }));
        }
        let line = telling_frame(innermost_first).and_then(|frame| known.get(frame).copied());
        self.indexes.insert(stack, count(self.stacks.len()));
        self.stacks.push(MappedStack { frames, line, held });
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn is_known(frame: &Frame) -> bool {
    !frame.file.is_empty() || !frame.function.is_empty()
}

/// Memory of a stack in the table.
fn bytes(frames: &[&Frame], known: &BTreeMap<&Frame, u32>) -> u64 {
    let new = frames.iter().filter(|frame| !known.contains_key(**frame));
    let names = new.map(|frame| (frame.file.len() + frame.function.len()) as u64 + FRAME_BYTES);
    let indexes = size_of::<u32>() as u64 * frames.len() as u64;
    names.fold(FRAME_BYTES.saturating_add(indexes), u64::saturating_add)
}
