//! A table from fingerprints to numbers on the tape, read without a lock while it grows.
//!
//! Written by hand: the hot path reads it while another thread writes, and may neither wait, nor
//! allocate, nor run a deferred destructor. hashbrown's tables need a lock for that, and the
//! concurrent maps (dashmap, papaya, scc) lock or allocate and reclaim memory behind the caller.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Entries of a table; large jobs have a few thousand distinct stacks and frames.
const INDEX_ENTRIES: usize = 1 << 16;

/// Entries that are tried for a fingerprint.
const PROBE_MAX: usize = 64;

/// A table from fingerprints to numbers on the tape.
pub(crate) struct Index {
    entries: Box<[[AtomicU64; 2]]>,
    used: AtomicUsize,
}

impl Index {
    pub(crate) fn new() -> Self {
        let entries = (0..INDEX_ENTRIES).map(|_| Default::default()).collect();
        Self { entries, used: AtomicUsize::new(0) }
    }

    /// The number of a fingerprint. The fingerprint must not be 0.
    #[inline(always)]
    pub(crate) fn find(&self, fingerprint: u64) -> Option<u32> {
        let [key, number] = self.entry(fingerprint, 0)?;
        if key.load(Ordering::Acquire) == fingerprint {
            let number = number.load(Ordering::Acquire) as u32;
            if key.load(Ordering::Relaxed) == fingerprint {
                return Some(number);
            }
        }
        self.find_further(fingerprint)
    }

    #[cold]
    fn find_further(&self, fingerprint: u64) -> Option<u32> {
        for probe in 0..PROBE_MAX {
            let [key, number] = self.entry(fingerprint, probe)?;
            match key.load(Ordering::Acquire) {
                0 => return None,
                found if found == fingerprint => {
                    let number = number.load(Ordering::Acquire) as u32;
                    // The entry may have been emptied and reused meanwhile.
                    return (key.load(Ordering::Relaxed) == fingerprint).then_some(number);
                }
                _ => {}
            }
        }
        None
    }

    /// The caller must hold the lock.
    pub(crate) fn has_room(&self, fingerprint: u64) -> bool {
        (0..PROBE_MAX)
            .filter_map(|probe| self.entry(fingerprint, probe))
            .any(|[key, _]| key.load(Ordering::Relaxed) == 0)
    }

    /// The caller must hold the lock.
    pub(crate) fn insert(&self, fingerprint: u64, number: u32) -> bool {
        for probe in 0..PROBE_MAX {
            let Some([key, value]) = self.entry(fingerprint, probe) else { return false };
            if key.load(Ordering::Relaxed) == 0 {
                value.store(u64::from(number), Ordering::Release);
                key.store(fingerprint, Ordering::Release);
                self.used.fetch_add(1, Ordering::Relaxed);
                return true;
            }
        }
        false
    }

    /// Empties the table when half of its entries are used. The caller must hold the lock.
    pub(crate) fn make_room(&self) {
        if self.used.load(Ordering::Relaxed) > INDEX_ENTRIES / 2 {
            self.entries.iter().for_each(|[key, _]| key.store(0, Ordering::Release));
            self.used.store(0, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn entry(&self, fingerprint: u64, probe: usize) -> Option<&[AtomicU64; 2]> {
        self.entries.get((fingerprint as usize).wrapping_add(probe) % INDEX_ENTRIES)
    }
}
