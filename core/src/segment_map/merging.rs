//! Merges small blocks and free ranges of segments with their neighbours, so that a map has a
//! bounded number of parts: the smallest first, and no more than it takes.
//!
//! A run is merged where each of its pieces is small. So a piece that is not small stays as it is,
//! and a small one between two that are not, too.

use alloc::vec::Vec;

use super::{MappedBlock, MergedParts, Part, PartKind, StackTable, step_of};
use crate::pickle::layout::Piece;
use crate::snapshot::Block;

/// The most bytes of a small piece: the fewest with which these segments have at most `parts_max`
/// parts, or as few as they can have.
pub(super) fn small_bytes<'p>(
    segments: impl Iterator<Item = &'p [Piece]> + Clone,
    parts_max: usize,
) -> u64 {
    let parts = |small_bytes: u64| -> usize {
        segments.clone().map(|pieces| runs(pieces, small_bytes).count()).sum()
    };
    let mut sizes: Vec<u64> = segments.clone().flatten().map(|piece| piece.size).collect();
    if sizes.len() <= parts_max {
        return 0;
    }
    sizes.sort_unstable();
    sizes.dedup();
    // The more is small, the fewer parts there are.
    let enough = sizes.partition_point(|&size| parts(size) > parts_max);
    sizes.get(enough).or(sizes.last()).copied().unwrap_or(0)
}

/// The pieces of a segment that are not merged.
pub(super) fn alone(pieces: &[Piece], small_bytes: u64) -> impl Iterator<Item = &Piece> {
    runs(pieces, small_bytes).filter_map(|run| match run {
        [one] => Some(one),
        _ => None,
    })
}

/// The parts that the pieces of a segment become.
pub(super) fn parts(pieces: &[Piece], small_bytes: u64, stacks: &StackTable<'_>) -> Vec<Part> {
    let mut offset = 0_u64;
    let part = |run: &[Piece]| {
        let bytes = run.iter().fold(0, |sum: u64, piece| sum.saturating_add(piece.size));
        let kind = match run {
            [Piece { live: None, .. }] => PartKind::Free,
            [Piece { live: Some(block), .. }] => PartKind::Block(mapped(block, stacks)),
            _ => PartKind::Merged(merged(run)),
        };
        let part = Part { offset, bytes, kind };
        offset = offset.saturating_add(bytes);
        part
    };
    runs(pieces, small_bytes).map(part).collect()
}

/// Pieces that become one part: neighbours that are all small, or one that is not.
fn runs(pieces: &[Piece], small_bytes: u64) -> impl Iterator<Item = &[Piece]> {
    let is_small = move |piece: &Piece| piece.size <= small_bytes;
    pieces.chunk_by(move |one, next| is_small(one) && is_small(next))
}

fn mapped(block: &Block, stacks: &StackTable<'_>) -> MappedBlock {
    MappedBlock {
        requested: (block.requested > 0).then_some(block.requested),
        pending: block.pending,
        step: step_of(block),
        stack: stacks.index(block.stack),
    }
}

fn merged(run: &[Piece]) -> MergedParts {
    let mut merged = MergedParts { steps: (u64::MAX, 0), ..MergedParts::default() };
    for block in run.iter().filter_map(|piece| piece.live) {
        let held = if block.pending { &mut merged.pending } else { &mut merged.allocated };
        held.add(block.size);
        let (first, last) = merged.steps;
        merged.steps = (first.min(step_of(&block)), last.max(step_of(&block)));
    }
    merged
}
