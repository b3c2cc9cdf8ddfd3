//! Envelopes: the lowest (or highest) value of each recent block of steps, at several lengths.
//!
//! Short blocks show fast growth soon; long blocks show slow growth under noise. A ring holds 64
//! blocks of one length in 4 bytes each.

/// Lengths of a block in steps, shortest first; each is a multiple of the one before.
pub(in crate::detector) const BLOCK_STEPS: [u64; SCALES] = [16, 64, 256];

/// Number of block lengths.
pub(in crate::detector) const SCALES: usize = 3;

/// Blocks of each length that are kept: a rank may be this far ahead of the slowest of its peers.
pub(in crate::detector) const BLOCKS: usize = 64;

/// No value fell into the block.
const EMPTY: i32 = i32::MIN;

/// Largest value that is kept, in units.
const VALUE_MAX: u64 = (i32::MAX / 4) as u64;

/// What a block keeps of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::detector) enum Keep {
    Lowest,
    Highest,
}

/// One value for each recent block of one length.
#[derive(Clone, Debug)]
pub(in crate::detector) struct Ring {
    newest: u64,
    values: [i32; BLOCKS],
}

impl Default for Ring {
    fn default() -> Self {
        Self { newest: 0, values: [EMPTY; BLOCKS] }
    }
}

fn slot(block: u64) -> usize {
    (block % BLOCKS as u64) as usize
}

impl Ring {
    /// Takes a value that held during the blocks `first` to `last`. Duplicates are harmless.
    pub(in crate::detector) fn take(&mut self, first: u64, last: u64, value: u64, keep: Keep) {
        let value = value.min(VALUE_MAX) as i32;
        if last > self.newest {
            let cleared = (last - self.newest).min(BLOCKS as u64);
            for block in last - cleared + 1..=last {
                self.values[slot(block)] = EMPTY;
            }
            self.newest = last;
        }
        let oldest = self.newest.saturating_sub(BLOCKS as u64 - 1);
        for block in first.max(oldest)..=last {
            let known = &mut self.values[slot(block)];
            *known = match keep {
                _ if *known == EMPTY => value,
                Keep::Lowest => value.min(*known),
                Keep::Highest => value.max(*known),
            };
        }
    }

    /// The value of a block; none when nothing fell into it, or too long ago.
    pub(in crate::detector) fn get(&self, block: u64) -> Option<i64> {
        let is_held = self.newest.checked_sub(block).is_some_and(|age| age < BLOCKS as u64);
        let value = self.values[slot(block)];
        (is_held && value != EMPTY).then_some(i64::from(value))
    }

    /// The blocks that are held, with their values.
    pub(in crate::detector) fn newest_first(&self) -> impl Iterator<Item = (u64, i64)> {
        let blocks = self.newest.saturating_sub(BLOCKS as u64 - 1)..=self.newest;
        blocks.rev().filter_map(|block| Some((block, self.get(block)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_their_lowest_or_highest_value() {
        let mut ring = Ring::default();
        ring.take(2, 2, 50, Keep::Lowest);
        ring.take(2, 2, 40, Keep::Lowest);
        ring.take(2, 3, 45, Keep::Lowest);
        assert_eq!([1, 2, 3, 4].map(|block| ring.get(block)), [None, Some(40), Some(45), None]);
        // A span of any length costs at most the ring, and the past is forgotten.
        ring.take(4, u64::MAX, 1, Keep::Lowest);
        assert_eq!((ring.get(u64::MAX), ring.get(2)), (Some(1), None));
        ring.take(2, 2, 0, Keep::Lowest);
        assert_eq!(ring.get(2), None);
        let mut ring = Ring::default();
        for (block, value) in [(0, 7), (0, 9), (0, 8), (70, u64::MAX)] {
            ring.take(block, block, value, Keep::Highest);
            assert_eq!(ring.get(0).is_some(), block == 0);
        }
        assert_eq!(ring.get(70), Some(VALUE_MAX as i64));
        assert_eq!(ring.get(7), None, "what lies between is empty");
    }
}
