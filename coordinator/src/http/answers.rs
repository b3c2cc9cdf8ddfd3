//! What the answers to one caller may occupy, and large answers of all together.
//!
//! A caller has a number of requests at once, and of these a few with large answers. A handler asks
//! for room before it makes a large answer; without room it waits for a while. The call keeps both
//! until the answer is sent or the client has left. A caller whose clients do not read keeps its
//! own places occupied, and no others': at most a quarter of the bytes, or one larger answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use memtape_core::limits::{
    ANSWERS_BYTES_MAX, ANSWERS_BYTES_PER_CALLER_MAX, LARGE_ANSWERS_PER_CALLER_MAX,
    REQUESTS_IN_PROGRESS_MAX,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ingest::admission::ByteBudget;
use crate::state::effects::Share;

/// The room, and who waits for some.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) bytes: ByteBudget,
    requests: PerCaller<Semaphore>,
    large: PerCaller<Semaphore>,
    /// Bytes of each caller.
    own: PerCaller<ByteBudget>,
}

/// What each caller has.
#[derive(Debug)]
struct PerCaller<T> {
    make: fn() -> T,
    callers: Mutex<HashMap<String, Weak<T>>>,
}

/// The room of one answer.
#[derive(Debug)]
pub(crate) struct Room {
    _place: OwnedSemaphorePermit,
    _shares: [Share; 2],
    /// Remembers the bytes of its caller.
    _own: Arc<ByteBudget>,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            bytes: ByteBudget::new(ANSWERS_BYTES_MAX),
            requests: PerCaller::new(|| Semaphore::new(REQUESTS_IN_PROGRESS_MAX)),
            large: PerCaller::new(|| Semaphore::new(LARGE_ANSWERS_PER_CALLER_MAX)),
            own: PerCaller::new(|| ByteBudget::new(ANSWERS_BYTES_PER_CALLER_MAX)),
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
        let place = self.large.of(caller.clone()).acquire_owned().await.ok()?;
        let own = self.own.of(caller);
        // Its own first: it holds no bytes of the others while it waits for its own.
        let shares = [own.enter(bytes).await, self.bytes.enter(bytes).await];
        Some(Room { _place: place, _shares: shares, _own: own })
    }
}

impl<T> PerCaller<T> {
    fn new(make: fn() -> T) -> Self {
        Self { make, callers: Mutex::default() }
    }

    fn of(&self, caller: String) -> Arc<T> {
        let mut all = lock(&self.callers);
        if let Some(known) = all.get(&caller).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, known| known.strong_count() > 0);
        let added = Arc::new((self.make)());
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
    async fn a_caller_has_at_most_a_quarter_of_the_bytes() {
        let answers = Answers::default();
        let half = ANSWERS_BYTES_PER_CALLER_MAX / 2;
        let of_a = [enter(&answers, "a", half).await, enter(&answers, "a", half).await];
        assert!(of_a.iter().all(Option::is_some));
        assert!(enter(&answers, "a", half).await.is_none());
        assert_eq!(answers.bytes.bytes(), ANSWERS_BYTES_PER_CALLER_MAX);
        for caller in ["b", "c", "d"] {
            // Freed at once.
            assert!(enter(&answers, caller, ANSWERS_BYTES_PER_CALLER_MAX).await.is_some());
        }
        drop(of_a);
        assert!(enter(&answers, "a", ANSWERS_BYTES_PER_CALLER_MAX).await.is_some());
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
