//! The memory that one rewind may take, and the cost of its parts.
//!
//! The owner of a tape chooses how much lies on it. A reader that rewinds tapes of other users
//! gives each rewind an allowance; every part is taken from it before it is made. The figures are
//! upper bounds for what one item takes until its snapshot is encoded and compressed.

use crate::layout::{head, header};
use crate::read::source::Source;
use crate::read::tape::Tape;
use crate::rewind::error::RewindError;

/// A live block or a segment: in a map that is half empty, in the snapshot, in the message, encoded
/// and compressed.
pub(crate) const BLOCK_BYTES: u64 = 288;

/// Bytes for a block or segment at the earlier time, with its part of its stack's sum.
pub(crate) const PAST_BYTES: u64 = 160;

/// An event that is undone.
pub(crate) const EVENT_BYTES: u64 = 64;

/// An address at which a block began.
pub(crate) const TOUCHED_BYTES: u64 = 16;

/// An event of the trace: read, sorted, in the message, encoded and compressed.
pub(crate) const TRACED_BYTES: u64 = 256;

/// A stack, without its frames.
pub(crate) const STACK_BYTES: u64 = 128;

/// One frame of a stack.
pub(crate) const STACK_FRAME_BYTES: u64 = 16;

/// A frame, without its texts.
pub(crate) const FRAME_BYTES: u64 = 192;

/// One byte of a text: in the snapshot, encoded and compressed.
pub(crate) const TEXT_BYTES: u64 = 3;

/// Bytes for a word of the interned entries: its copy, and its part of the decoded entries.
const INTERNED_WORD_BYTES: u64 = 112;

/// Bytes that a rewind of any tape takes beside its parts.
const FIXED_BYTES: u64 = 16 << 20;

/// Remaining memory that a rewind may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    bytes_max: u64,
    left_bytes: u64,
}

impl Allowance {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, left_bytes: bytes_max }
    }

    /// Takes `count` items of `each_bytes`.
    ///
    /// # Errors
    /// [`RewindError::TooLarge`] when less is left; then nothing is taken.
    pub(crate) fn take(&mut self, count: usize, each_bytes: u64) -> Result<(), RewindError> {
        let left_bytes = self.left_bytes.checked_sub((count as u64).saturating_mul(each_bytes));
        let too_large = RewindError::TooLarge { bytes_max: self.bytes_max };
        self.left_bytes = left_bytes.ok_or(too_large)?;
        Ok(())
    }

    /// Takes the growth of a collection, beyond the `taken` items that it had at most so far.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub(crate) fn take_growth(
        &mut self,
        taken: &mut usize,
        count: usize,
        each_bytes: u64,
    ) -> Result<(), RewindError> {
        self.take(count.saturating_sub(*taken), each_bytes)?;
        *taken = count.max(*taken);
        Ok(())
    }

    /// Gives memory back.
    pub(crate) fn give_back(&mut self, count: usize, each_bytes: u64) {
        let bytes = (count as u64).saturating_mul(each_bytes);
        self.left_bytes = self.left_bytes.saturating_add(bytes).min(self.bytes_max);
    }
}

impl<S: Source> Tape<S> {
    /// Memory that a snapshot of the tape takes at most, in bytes, from the figures of its lanes.
    ///
    /// At an earlier step a table may have been as full as its writer fills it, half. A tape can
    /// say anything: give the result to [`Tape::snapshot_within`], which takes no more.
    pub fn snapshot_bytes(&self, trace_events_max: usize) -> u64 {
        let lanes = (0..self.lanes.len()).filter_map(|index| self.lane(index));
        let of_lanes = lanes.filter_map(|lane| {
            let words = self.words::<{ head::WORDS }>(lane.head)?;
            let events = words[head::RESERVED].min(lane.ring_slots as u64);
            let most = |now: u64, entries: usize| {
                now.saturating_add(events).min((entries as u64 / 2).max(now.min(entries as u64)))
            };
            let blocks = most(words[head::LIVE_BLOCKS], lane.table_entries);
            let segments = words[head::SEGMENT_TAKES].saturating_sub(words[head::SEGMENT_RETURNS]);
            let pieces = blocks + most(segments, lane.segment_entries) * 2;
            let traced = events.min(trace_events_max as u64);
            let of_pieces = pieces * (BLOCK_BYTES + PAST_BYTES + TOUCHED_BYTES);
            Some(of_pieces + events * (EVENT_BYTES + TOUCHED_BYTES) + traced * TRACED_BYTES)
        });
        let interned = self.word(header::INTERNED_USED).min(self.interned_words() as u64);
        let bytes = of_lanes.sum::<u64>() + interned * INTERNED_WORD_BYTES;
        bytes + FIXED_BYTES
    }
}
