//! Sequences kept once: equal texts, stacks and tuples get one number.
//!
//! An arena with all items in a row, and a table of open addressing beside it. There is no
//! random seed in here, so a hostile file could aim all its texts at one slot of the table:
//! a search gives up after [`PROBES_MAX`] slots, and the sequence is kept a second time. Numbers
//! of equal sequences may then differ; those that were there first are always found.

use alloc::vec::Vec;

/// Places of the table that are looked at for one sequence. With a table at most half full, a
/// fair hash has chains of ten or so.
const PROBES_MAX: u32 = 64;

/// An empty slot of the table.
const EMPTY: u32 = u32::MAX;

/// Something sequences are made of.
pub trait Item: Copy + Eq {
    /// A number for a whole sequence, the same for equal ones.
    fn hash(items: &[Self]) -> u64;
}

/// Sequences by number, from 0, without repetitions.
#[derive(Clone, Debug, Default)]
pub struct Interner<T> {
    items: Vec<T>,
    /// For each sequence the end of its items.
    ends: Vec<u32>,
    /// For each sequence a part of its hash, so that few are compared in full.
    hashes: Vec<u32>,
    /// Numbers of sequences by hash; a power of two, or none.
    table: Vec<u32>,
}

impl<T: Item> Interner<T> {
    /// The sequence with this number; empty when there is none.
    pub fn get(&self, number: u32) -> &[T] {
        let number = number as usize;
        let Some(&end) = self.ends.get(number) else { return &[] };
        let start = number.checked_sub(1).and_then(|before| self.ends.get(before));
        self.items.get(start.map_or(0, |&start| start as usize)..end as usize).unwrap_or_default()
    }

    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True without any sequence.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Number of items of all sequences.
    pub fn items(&self) -> usize {
        self.items.len()
    }

    /// The number of this sequence; `None` when there would be more than `items_max` items, or
    /// more than fit the numbers.
    pub fn intern(&mut self, sequence: &[T], items_max: usize) -> Option<u32> {
        if self.ends.len() * 2 >= self.table.len() {
            self.grow();
        }
        let hash = T::hash(sequence);
        let mask = self.table.len() - 1;
        let mut slot = hash as usize & mask;
        let mut free = None;
        for _ in 0..PROBES_MAX {
            let number = *self.table.get(slot)?;
            if number == EMPTY {
                free = Some(slot);
                break;
            }
            let same = self.hashes.get(number as usize) == Some(&part(hash));
            if same && self.get(number) == sequence {
                return Some(number);
            }
            slot = (slot + 1) & mask;
        }
        let end = self.items.len().checked_add(sequence.len()).filter(|&end| end <= items_max)?;
        let number = u32::try_from(self.ends.len()).ok().filter(|&number| number != EMPTY)?;
        self.ends.push(u32::try_from(end).ok()?);
        self.items.extend_from_slice(sequence);
        self.hashes.push(part(hash));
        if let Some(slot) = free.and_then(|slot| self.table.get_mut(slot)) {
            *slot = number;
        }
        Some(number)
    }

    /// Gives back what only [`Self::intern`] needs.
    pub fn shrink(&mut self) {
        self.table = Vec::new();
        self.hashes = Vec::new();
        self.items.shrink_to_fit();
    }

    fn grow(&mut self) {
        let slots = (self.table.len() * 2).max(64);
        self.table.clear();
        self.table.resize(slots, EMPTY);
        let mask = slots - 1;
        for number in 0..self.ends.len() as u32 {
            let mut slot = T::hash(self.get(number)) as usize & mask;
            for _ in 0..PROBES_MAX {
                match self.table.get_mut(slot) {
                    Some(free) if *free == EMPTY => {
                        *free = number;
                        break;
                    }
                    _ => slot = (slot + 1) & mask,
                }
            }
        }
    }
}

fn part(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// Multiplies and folds, as wyhash does: quick, and good enough for data that means no harm.
fn mix(hash: u64, word: u64) -> u64 {
    let wide = u128::from(hash ^ word) * 0x9e37_79b9_7f4a_7c15_u128;
    (wide as u64) ^ ((wide >> 64) as u64) ^ 0xa076_1d64_78bd_642f
}

impl Item for u8 {
    fn hash(items: &[Self]) -> u64 {
        let (words, rest) = items.as_chunks::<8>();
        let hash = words
            .iter()
            .fold(items.len() as u64, |hash, word| mix(hash, u64::from_le_bytes(*word)));
        let last = rest.iter().fold(0, |last, &byte| last << 8 | u64::from(byte));
        mix(mix(hash, last), 0)
    }
}

impl Item for u32 {
    fn hash(items: &[Self]) -> u64 {
        let (pairs, rest) = items.as_chunks::<2>();
        let hash = pairs.iter().fold(items.len() as u64, |hash, &[low, high]| {
            mix(hash, u64::from(high) << 32 | u64::from(low))
        });
        mix(hash, rest.first().map_or(0, |&last| u64::from(last)))
    }
}

impl Item for u64 {
    fn hash(items: &[Self]) -> u64 {
        mix(items.iter().fold(items.len() as u64, |hash, &item| mix(hash, item)), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sequences_get_one_number() {
        let mut texts = Interner::<u8>::default();
        let numbers: Vec<u32> = (0..5_000_u32)
            .map(|index| texts.intern(&(index % 1000).to_le_bytes(), 1 << 20).expect("room"))
            .collect();
        assert_eq!((texts.len(), texts.items()), (1000, 4000));
        for (index, &number) in (0..5_000_u32).zip(&numbers) {
            assert_eq!(number, index % 1000);
            assert_eq!(texts.get(number), (index % 1000).to_le_bytes());
        }
        assert_eq!(texts.get(1000), []);
        assert_eq!(texts.intern(&[1, 2], 4001), None, "the limit counts items");
        assert_eq!(
            texts.intern(&0_u32.to_le_bytes(), 4001),
            Some(0),
            "what is there needs no room"
        );
    }

    /// All of one hash: slow searches end, the first sequence is still found.
    #[derive(Clone, Copy, Default, PartialEq, Eq)]
    struct Same(u32);

    impl Item for Same {
        fn hash(_: &[Self]) -> u64 {
            7
        }
    }

    #[test]
    fn a_hostile_hash_costs_repetitions_and_not_time() {
        let mut all = Interner::<Same>::default();
        for index in 0..20_000 {
            assert_eq!(all.intern(&[Same(index)], 1 << 20), Some(index));
        }
        assert_eq!(all.intern(&[Same(0)], 1 << 20), Some(0));
        let again = all.intern(&[Same(19_999)], 1 << 20);
        assert_eq!(again, Some(20_000), "kept twice, not searched for among 20,000");
    }
}
