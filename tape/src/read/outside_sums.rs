//! Bytes that code other than PyTorch's allocator holds now, summed up in the header.
//!
//! The same is in the live tables of the host's lanes, piece by piece, and a rewind adds it up for
//! any step; the sums cost a reader a few words a second. A recorder that keeps none says nothing.

use alloc::vec::Vec;

use crate::layout::header;
use crate::layout::sizes::CURSOR_MAX;
use crate::layout::states::{hook, hooks};
use crate::limits::DEVICES_MAX;
use crate::read::source::Source;
use crate::read::tape::Tape;
use crate::snapshot::OutsideUse;
use crate::snapshot::origin::Origin;

const CELLS: usize = DEVICES_MAX * Origin::ALL.len();

impl<S: Source> Tape<S> {
    /// Bytes that each origin holds now, by device. Origins that no hook has ever seen are left
    /// out, which need not mean that they hold nothing. `None` where the recorder keeps no sums.
    /// The pieces are not counted: `count` is 0.
    pub fn outside(&self) -> Option<Vec<OutsideUse>> {
        if self.word(header::OUTSIDE) != 1 {
            return None;
        }
        let seen = self.word(header::HOOKS);
        let sums = self.words::<CELLS>(header::OUTSIDE_BYTES)?;
        let mut uses = Vec::new();
        for (device, sums) in (0..).zip(sums.as_chunks::<{ Origin::ALL.len() }>().0) {
            for (&origin, &bytes) in Origin::ALL.iter().zip(sums) {
                let is_here = device == 0 || origin.is_on_device();
                let is_used = bytes > 0 || self.tells_nothing(origin, device);
                // More than any machine has is a lie.
                if seen & hook(origin) != 0 && is_here && is_used && bytes < CURSOR_MAX {
                    uses.push(OutsideUse { origin, device, bytes, count: 0 });
                }
            }
        }
        Some(uses)
    }

    /// Where a sum of 0 is reported: for the host, and on each device that PyTorch uses, if the
    /// hook that has seen something is this origin's alone.
    fn tells_nothing(&self, origin: Origin, device: u8) -> bool {
        let is_own_hook = hook(origin) != hooks::OTHER_MEMORY;
        !origin.is_on_device() || is_own_hook && self.lane(usize::from(device)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::AtomicU64;
    use crate::layout::regions::{Layout, Sizes};
    use crate::shared_words::{Birth, Words};

    const SMALL: Sizes = Sizes {
        events: 8,
        table_entries: 8,
        step_records: 8,
        segment_entries: 8,
        interned_words: 64,
    };

    /// The sums of a tape into which `write` has written.
    fn check(write: impl FnOnce(Words<'_>), expected: Option<&[(Origin, u8, u64)]>) {
        let layout = Layout::new(SMALL);
        let tape: Vec<AtomicU64> = (0..layout.file_words).map(|_| AtomicU64::new(0)).collect();
        let words = Words(&tape);
        words.format(&layout, &Birth::default());
        words.open_lane(0, &layout);
        write(words);
        let found = Tape::open(tape.as_slice()).expect("a tape").outside();
        let expected = expected.map(|uses| {
            let each = |&(origin, device, bytes)| OutsideUse { origin, device, bytes, count: 0 };
            uses.iter().map(each).collect::<Vec<_>>()
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn sums_are_reported_where_something_was_seen() {
        let seen = |words: Words<'_>, hooks: u64| {
            words.set(header::OUTSIDE, 1);
            words.set(header::HOOKS, hooks);
        };
        check(|words| words.set(header::HOOKS, hooks::PINNED), None);
        check(|words| seen(words, 0), Some(&[]));
        let pinned = |bytes| (Origin::HostPinned, 0, bytes);
        check(
            |words| {
                seen(words, hooks::PINNED | hooks::NCCL);
                words.add_outside(Origin::HostPinned, 3, 700);
                words.add_outside(Origin::HostPinned, 1, 200u64.wrapping_neg());
                words.add_outside(Origin::Nccl, 2, 50);
                words.add_outside(Origin::Nccl, 200, 50);
            },
            Some(&[
                pinned(500),
                (Origin::HostRegistered, 0, 0),
                (Origin::Nccl, 0, 0),
                (Origin::Nccl, 2, 50),
            ]),
        );
        // One hook for both: what the other has seen is not known.
        check(
            |words| {
                seen(words, hooks::OTHER_MEMORY);
                words.add_outside(Origin::Managed, 0, 9);
            },
            Some(&[(Origin::Managed, 0, 9)]),
        );
        // A lie, or a sum below zero.
        check(
            |words| {
                seen(words, hooks::PINNED);
                words.add_outside(Origin::HostPinned, 0, 1u64.wrapping_neg());
            },
            Some(&[(Origin::HostRegistered, 0, 0)]),
        );
    }
}
