//! The only module on a tape's writing side that names atomics.
//!
//! Model checkers put their own behind it: loom, which also tries what weakly ordered processors
//! may do (`--cfg memtape_loom`), and shuttle, which tries long histories in random schedules
//! (`--cfg memtape_shuttle`). The flags have names of our own, so that no dependency builds itself
//! differently. `tape/tests/loom.rs` and `tape/tests/shuttle.rs` have the checks.

#[cfg(not(any(memtape_loom, memtape_shuttle)))]
pub(super) use core::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(any(memtape_loom, memtape_shuttle))]
pub use checked::{AtomicU64, Op, Ordering, fence, recorded};

/// Rounds of waiting for the one writer of a lane before an event is given up.
pub(super) const ROUNDS_MAX: u32 = if cfg!(any(memtape_loom, memtape_shuttle)) { 2 } else { 2000 };

/// Lets another thread go on.
#[inline(always)]
pub(super) fn spin_loop() {
    #[cfg(not(any(memtape_loom, memtape_shuttle)))]
    core::hint::spin_loop();
    #[cfg(memtape_loom)]
    loom::hint::spin_loop();
    #[cfg(memtape_shuttle)]
    shuttle::thread::yield_now();
}

/// Atomics that a checker controls, with a record of their stores.
#[cfg(any(memtape_loom, memtape_shuttle))]
mod checked {
    #[cfg(any(memtape_loom, memtape_shuttle))]
    extern crate std;

    use std::cell::RefCell;
    use std::sync::atomic as plain;
    use std::vec::Vec;

    #[cfg(memtape_loom)]
    use loom::sync::atomic as checker;
    pub use plain::Ordering;
    #[cfg(memtape_shuttle)]
    use shuttle::sync::atomic as checker;

    std::thread_local! {
        static RECORD: RefCell<Option<Vec<Op>>> = const { RefCell::new(None) };
    }

    /// Something that a writer did, in the order of its program.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Op {
        /// A store into the word at this address.
        Store(usize, u64, Ordering),
        /// A fence.
        Fence(Ordering),
    }

    /// Records the stores of `write`, outside any checker.
    pub fn recorded(write: impl FnOnce()) -> Vec<Op> {
        RECORD.with(|record| *record.borrow_mut() = Some(Vec::new()));
        write();
        RECORD.with(|record| record.borrow_mut().take()).unwrap_or_default()
    }

    fn note(op: Op) -> bool {
        RECORD.with(|record| record.borrow_mut().as_mut().map(|ops| ops.push(op))).is_some()
    }

    /// A fence that the checker knows of.
    pub fn fence(order: Ordering) {
        let is_recorded = note(Op::Fence(order));
        // To shuttle's threads all memory is in order already.
        if cfg!(memtape_loom) && !is_recorded {
            #[cfg(memtape_loom)]
            checker::fence(order);
        }
    }

    /// A word. A tape has thousands, and a checker keeps the history of each word it controls: only
    /// the words of a model are the checker's, all others are plain.
    #[derive(Debug)]
    pub enum AtomicU64 {
        /// Shows every thread the newest value.
        Plain(plain::AtomicU64),
        /// A word that the checker controls.
        Checked(checker::AtomicU64),
    }

    impl AtomicU64 {
        /// A plain word.
        pub const fn new(value: u64) -> Self {
            Self::Plain(plain::AtomicU64::new(value))
        }

        /// A word that the checker watches.
        pub fn checked(value: u64) -> Self {
            Self::Checked(checker::AtomicU64::new(value))
        }

        /// Reads it.
        pub fn load(&self, order: Ordering) -> u64 {
            match self {
                Self::Plain(word) => word.load(order),
                Self::Checked(word) => word.load(order),
            }
        }

        /// Writes it.
        pub fn store(&self, value: u64, order: Ordering) {
            note(Op::Store(core::ptr::from_ref(self).addr(), value, order));
            match self {
                Self::Plain(word) => word.store(value, order),
                Self::Checked(word) => word.store(value, order),
            }
        }

        /// Adds to the word; the counters that use this are no part of a model.
        pub fn fetch_add(&self, more: u64, order: Ordering) -> u64 {
            match self {
                Self::Plain(word) => word.fetch_add(more, order),
                Self::Checked(word) => word.fetch_add(more, order),
            }
        }

        /// Changes the word if it holds `old`; no part of a model.
        ///
        /// # Errors
        /// What it holds instead.
        pub fn compare_exchange(
            &self,
            old: u64,
            new: u64,
            good: Ordering,
            bad: Ordering,
        ) -> Result<u64, u64> {
            match self {
                Self::Plain(word) => word.compare_exchange(old, new, good, bad),
                Self::Checked(word) => word.compare_exchange(old, new, good, bad),
            }
        }

        /// Changes the word if it holds `old`.
        ///
        /// # Errors
        /// What it holds instead.
        pub fn compare_exchange_weak(
            &self,
            old: u64,
            new: u64,
            good: Ordering,
            bad: Ordering,
        ) -> Result<u64, u64> {
            match self {
                Self::Plain(word) => word.compare_exchange_weak(old, new, good, bad),
                Self::Checked(word) => word.compare_exchange_weak(old, new, good, bad),
            }
        }
    }
}
