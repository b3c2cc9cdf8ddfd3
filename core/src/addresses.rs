//! A table from device addresses to numbers, for traces of millions of events.
//!
//! Open addressing with a fixed hash: the order of a table never shows, so it need not be
//! random. A search gives up after [`PROBES_MAX`] places, because a hostile file could aim its
//! addresses at one of them; what finds no place then is not kept, and is counted.

use alloc::vec;
use alloc::vec::Vec;

/// An empty place.
const EMPTY: u32 = u32::MAX;

/// Marks the slot of a removed address; a search goes on behind it.
const GONE: u32 = u32::MAX - 1;

/// Maximum slots probed for one address. With a table at most half full, a fair hash has chains of
/// ten or so.
const PROBES_MAX: usize = 256;

/// Addresses, each with a number.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    /// Address and number; a power of two of them, or none.
    places: Vec<(u64, u32)>,
    /// Slots that are not empty, including slots of removed addresses.
    taken: usize,
    /// Addresses that found no place.
    pub(crate) left_out: u64,
}

impl Addresses {
    /// Gives this address a number, at most [`GONE`] - 1, and returns its previous one.
    pub(crate) fn insert(&mut self, address: u64, number: u32) -> Option<u32> {
        if (self.taken + 1) * 2 > self.places.len() {
            self.grow();
        }
        let before = self.remove(address);
        let mask = self.places.len() - 1;
        let mut place = start(address) & mask;
        for _ in 0..PROBES_MAX {
            if let Some(slot) = self.places.get_mut(place).filter(|slot| slot.1 >= GONE) {
                self.taken += usize::from(slot.1 == EMPTY);
                *slot = (address, number);
                return before;
            }
            place = (place + 1) & mask;
        }
        self.left_out += 1;
        before
    }

    /// Removes an address, and returns its number.
    pub(crate) fn remove(&mut self, address: u64) -> Option<u32> {
        let mask = self.places.len().checked_sub(1)?;
        let mut place = start(address) & mask;
        for _ in 0..PROBES_MAX {
            let slot = self.places.get_mut(place)?;
            match slot.1 {
                EMPTY => return None,
                number if number != GONE && slot.0 == address => {
                    slot.1 = GONE;
                    return Some(number);
                }
                _ => place = (place + 1) & mask,
            }
        }
        None
    }

    /// Number of an address.
    pub(crate) fn get(&self, address: u64) -> Option<u32> {
        let mask = self.places.len().checked_sub(1)?;
        let mut place = start(address) & mask;
        for _ in 0..PROBES_MAX {
            match *self.places.get(place)? {
                (_, EMPTY) => return None,
                (found, number) if number != GONE && found == address => return Some(number),
                _ => place = (place + 1) & mask,
            }
        }
        None
    }

    /// Drops removed addresses, in a table of the right size for the rest.
    fn grow(&mut self) {
        let kept = self.places.iter().filter(|(_, number)| *number < GONE);
        let kept: Vec<(u64, u32)> = kept.copied().collect();
        let size = (kept.len().max(32) * 4).next_power_of_two();
        self.places = vec![(0, EMPTY); size];
        self.taken = 0;
        let mask = size - 1;
        for (address, number) in kept {
            let first = start(address) & mask;
            let mut places = (0..PROBES_MAX).map(|step| (first + step) & mask);
            let is_empty = |place: &usize| self.places.get(*place).is_some_and(|s| s.1 == EMPTY);
            match places.find(is_empty).and_then(|place| self.places.get_mut(place)) {
                Some(slot) => {
                    *slot = (address, number);
                    self.taken += 1;
                }
                None => self.left_out += 1,
            }
        }
    }
}

/// First slot of an address: the upper bits of a product depend on all bits of the address.
fn start(address: u64) -> usize {
    ((address ^ (address >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24) as usize
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_table_behaves_as_an_ordered_map(
            moves in proptest::collection::vec((0u8..3, 0u64..400, 0u32..1000), 0..2000),
        ) {
            let (mut ours, mut map) = (Addresses::default(), BTreeMap::new());
            for (what, address, number) in moves {
                let address = 0x7f00_0000_0000 + address * 512;
                match what {
                    0 => prop_assert_eq!(ours.insert(address, number), map.insert(address, number)),
                    1 => prop_assert_eq!(ours.remove(address), map.remove(&address)),
                    _ => prop_assert_eq!(ours.get(address), map.get(&address).copied()),
                }
            }
            prop_assert_eq!(ours.left_out, 0);
        }
    }
}
