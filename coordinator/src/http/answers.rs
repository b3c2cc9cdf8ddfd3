//! What the answers to one caller may occupy, and large answers of all together.
//!
//! A caller has a number of requests at once, and of these a few with large answers. A handler asks
//! for room before it makes a large answer; without room it waits for a while. The call keeps both
//! until the answer is sent or the client has left. A caller whose clients do not read keeps its
//! own places occupied, and no others'.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use memtape_core::limits::{
    ANSWERS_BYTES_MAX, LARGE_ANSWERS_PER_CALLER_MAX, REQUESTS_IN_PROGRESS_MAX,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ingest::admission::Door;
use crate::state::effects::Share;

/// The room, and who waits for some.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) bytes: Door,
    requests: Shares,
    large: Shares,
}

/// The places of each caller.
#[derive(Debug)]
struct Shares {
    each: usize,
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
        Self {
            bytes: Door::new(ANSWERS_BYTES_MAX),
            requests: Shares::new(REQUESTS_IN_PROGRESS_MAX),
            large: Shares::new(LARGE_ANSWERS_PER_CALLER_MAX),
        }
    }
}

impl Answers {
    /// A place for one more request of a caller; none where too many are in progress.
    pub(crate) fn begin(&self, caller: String) -> Option<OwnedSemaphorePermit> {
        self.requests.of(caller).try_acquire_owned().ok()
    }

    /// Waits for room for an answer of about this many bytes; none only when the coordinator stops.
    pub(crate) async fn enter(&self, caller: String, bytes: u64) -> Option<Room> {
        let place = self.large.of(caller).acquire_owned().await.ok()?;
        Some(Room { _place: place, _share: self.bytes.enter(bytes).await })
    }
}

impl Shares {
    fn new(each: usize) -> Self {
        Self { each, callers: Mutex::default() }
    }

    fn of(&self, caller: String) -> Arc<Semaphore> {
        let mut all = lock(&self.callers);
        if let Some(known) = all.get(&caller).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, known| known.strong_count() > 0);
        let added = Arc::new(Semaphore::new(self.each));
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

    #[test]
    fn a_caller_has_a_number_of_requests_at_once() {
        let answers = Answers::default();
        let begin = |caller: &str| answers.begin(caller.to_string());
        let mut of_a: Vec<_> = (0..REQUESTS_IN_PROGRESS_MAX).map(|_| begin("a")).collect();
        assert!(of_a.iter().all(Option::is_some) && begin("a").is_none() && begin("b").is_some());
        of_a.pop();
        assert!(begin("a").is_some());
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
        assert_eq!(lock(&answers.large.callers).len(), 1, "callers are forgotten");
    }
}
