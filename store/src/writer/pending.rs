//! When the oldest change or step record came that is not durable yet.
//!
//! Each write is noted when it is handed to the store, and let go when its callback is called, or
//! is dropped without a call. Judges nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memtape_disk::clock;

use crate::writer::shared::Done;

/// The writes that are not durable yet. Clones are handles of the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending(Arc<Mutex<Writes>>);

#[derive(Debug, Default)]
struct Writes {
    next: u64,
    /// When each came, by the monotonic clock; in the order of their numbers.
    since_ns: BTreeMap<u64, u64>,
}

/// One of them.
#[derive(Debug)]
struct Write {
    pending: Pending,
    number: u64,
}

impl Pending {
    /// Notes a write; what comes back is its callback.
    pub(crate) fn note(&self, done: Done) -> Done {
        let mut writes = self.lock();
        let number = writes.next;
        writes.next += 1;
        writes.since_ns.insert(number, clock::now().mono_ns);
        drop(writes);
        let write = Write { pending: self.clone(), number };
        Box::new(move |result| {
            drop(write);
            done(result);
        })
    }

    /// Age of the oldest write, in nanoseconds; 0 where all are durable.
    pub(crate) fn age_ns(&self) -> u64 {
        let now_ns = clock::now().mono_ns;
        let oldest_ns = self.lock().since_ns.first_key_value().map(|(_, since_ns)| *since_ns);
        oldest_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns).max(1))
    }

    fn lock(&self) -> MutexGuard<'_, Writes> {
        // Each change of it is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        self.pending.lock().since_ns.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_write_counts_until_it_is_durable_or_given_up() {
        let pending = Pending::default();
        assert_eq!(pending.age_ns(), 0);
        let first = pending.note(Box::new(|_| {}));
        let between_ns = clock::now().mono_ns;
        let second = pending.note(Box::new(|_| {}));
        let since_first_ns = |now_ns: u64| now_ns.saturating_sub(between_ns);
        assert!(pending.age_ns() >= since_first_ns(clock::now().mono_ns).max(1));
        first(Ok(()));
        assert!(pending.age_ns() > 0, "the second one waits");
        drop(second);
        assert_eq!(pending.age_ns(), 0, "given up");
    }
}
