//! Room for large answers: memory that all of them take together, and places of each caller.
//!
//! A handler asks for room before it makes the answer. Its call keeps the room until the answer is
//! sent or the client has left. A request without room waits; it costs little, and ends with its
//! client. A caller whose clients do not read keeps its own places occupied, and no others'.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use memtape_core::limits::{ANSWERS_BYTES_MAX, LARGE_ANSWERS_PER_CALLER_MAX};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ingest::admission::Door;
use crate::state::effects::Share;

/// The room, and who waits for some.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) bytes: Door,
    callers: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// The room of one answer.
#[derive(Debug)]
pub(crate) struct Room {
    _place: OwnedSemaphorePermit,
    _share: Share,
}

impl Default for Answers {
    fn default() -> Self {
        Self { bytes: Door::new(ANSWERS_BYTES_MAX), callers: Mutex::default() }
    }
}

impl Answers {
    /// Waits for room for an answer of about this many bytes; none only when the coordinator stops.
    pub(crate) async fn enter(&self, caller: String, bytes: u64) -> Option<Room> {
        let place = self.of_caller(caller).acquire_owned().await.ok()?;
        Some(Room { _place: place, _share: self.bytes.enter(bytes).await })
    }

    fn of_caller(&self, caller: String) -> Arc<Semaphore> {
        let mut all = lock(&self.callers);
        if let Some(known) = all.get(&caller).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, known| known.strong_count() > 0);
        let added = Arc::new(Semaphore::new(LARGE_ANSWERS_PER_CALLER_MAX));
        all.insert(caller, Arc::downgrade(&added));
        added
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    /// Is there room at once?
    async fn enter(answers: &Answers, caller: &str, bytes: u64) -> Option<Room> {
        let mut entering = std::pin::pin!(answers.enter(caller.to_string(), bytes));
        std::future::poll_fn(|context| match entering.as_mut().poll(context) {
            Poll::Ready(room) => Poll::Ready(room),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    #[tokio::test]
    async fn each_caller_has_a_share_and_all_have_a_budget() {
        let answers = Answers::default();
        let mut of_a = Vec::new();
        for _ in 0..LARGE_ANSWERS_PER_CALLER_MAX {
            of_a.push(enter(&answers, "a", 1024).await.expect("a place"));
        }
        assert!(enter(&answers, "a", 1024).await.is_none());
        let rest = ANSWERS_BYTES_MAX - answers.bytes.bytes();
        let of_b = enter(&answers, "b", rest).await.expect("another caller's place");
        assert!(enter(&answers, "c", 1024).await.is_none(), "no memory is left");
        drop(of_b);
        assert!(enter(&answers, "c", 1024).await.is_some());
        drop(of_a.pop());
        assert!(enter(&answers, "a", 1024).await.is_some());
        drop(of_a);
        assert_eq!(answers.bytes.bytes(), 0);
        assert!(enter(&answers, "d", 1).await.is_some());
        assert_eq!(lock(&answers.callers).len(), 1, "callers are forgotten");
    }
}
