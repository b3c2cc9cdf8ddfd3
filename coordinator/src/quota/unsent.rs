//! Answers in memory: the reservation and the unsent bytes of each, and the answer that is cut.
//!
//! An answer has a time by its size. Where another caller waits for memory, the caller who has most
//! unsent bytes loses the answer that is sent for longest.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use memtape_core::limits::{ANSWER_MIB_SECONDS_MAX, ANSWER_STALLED_SECONDS_MAX};
use tokio::time::Instant;

use crate::quota::{CallerQuota, Reservation};

/// Bytes of a piece of an answer; its memory is free when it is sent.
const PIECE_BYTES: usize = 64 << 10;

/// Least age of an answer that is cut for another caller.
pub(super) const GIVES_WAY_AFTER: Duration = Duration::from_secs(5);

/// One answer, from the request to the last byte.
#[derive(Debug, Default)]
pub(crate) struct Unsent(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// None for what every client may read.
    caller: Option<Arc<CallerQuota>>,
    reservation: Option<Reservation>,
    pieces: VecDeque<Bytes>,
    /// When the first byte could be sent, and when the last one must be.
    times: Option<(Instant, Instant)>,
    is_cut: bool,
}

/// All answers that are sent.
#[derive(Debug, Default)]
pub(super) struct Answers(Mutex<Vec<Weak<Unsent>>>);

/// The error that an answer took too long, or gave way.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the answer was read too slowly")]
pub(crate) struct TooSlow;

impl Unsent {
    /// The answer is one to this caller.
    pub(crate) fn belongs_to(&self, caller: Arc<CallerQuota>) {
        self.lock().caller = Some(caller);
    }

    /// The caller's quota.
    pub(crate) fn caller(&self) -> Option<Arc<CallerQuota>> {
        self.lock().caller.clone()
    }

    /// Has it reserved any memory?
    pub(crate) fn is_reserved(&self) -> bool {
        self.lock().reservation.is_some()
    }

    /// Takes its reservation, to change it.
    pub(crate) fn take(&self) -> Option<Reservation> {
        self.lock().reservation.take()
    }

    /// Keeps a reservation until the answer is sent.
    pub(crate) fn keep(&self, reservation: Reservation) {
        self.lock().reservation = Some(reservation);
    }

    /// The answer is sent from now on: as a whole, or in parts of this size together.
    pub(crate) fn begin(&self, whole: &[u8], bytes: u64) {
        let mut state = self.lock();
        // A `Bytes` of the whole would keep all of it until the last byte is sent.
        state.pieces = whole.chunks(PIECE_BYTES).map(Bytes::copy_from_slice).collect();
        let (begin, mib) = (Instant::now(), bytes.div_ceil(1 << 20));
        let seconds = ANSWER_STALLED_SECONDS_MAX + mib.saturating_mul(ANSWER_MIB_SECONDS_MAX);
        let end = begin.checked_add(Duration::from_secs(seconds)).unwrap_or(begin);
        state.times = Some((begin, end));
    }

    /// Unsent bytes of a whole answer.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes()
    }

    /// Its memory was given to others.
    pub(crate) fn is_cut(&self) -> bool {
        self.lock().is_cut
    }

    /// May the next part be sent?
    ///
    /// # Errors
    /// It took too long, or gave way.
    pub(crate) fn check(&self) -> Result<(), TooSlow> {
        let mut state = self.lock();
        if state.times.is_some_and(|(_, end)| Instant::now() >= end) {
            state.cut();
        }
        if state.is_cut { Err(TooSlow) } else { Ok(()) }
    }

    /// The next piece of a whole answer, whose memory counts no more.
    pub(crate) fn next(&self) -> Option<Bytes> {
        let mut state = self.lock();
        let piece = state.pieces.pop_front();
        let bytes = state.bytes();
        if let Some(reservation) = &mut state.reservation {
            reservation.shrink(bytes);
        }
        piece
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }

    fn cut(&mut self) {
        self.is_cut = true;
        (self.reservation, self.pieces) = (None, VecDeque::new());
    }
}

impl Answers {
    /// Takes up an answer that is sent.
    pub(super) fn add(&self, answer: &Arc<Unsent>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|answer| answer.strong_count() > 0);
        all.push(Arc::downgrade(answer));
    }

    /// Cuts an answer of the caller who has most, unless that is the caller who waits.
    pub(super) fn give_way(&self, waiting: &Arc<CallerQuota>) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let answers: Vec<Arc<Unsent>> = all.iter().filter_map(Weak::upgrade).collect();
        drop(all);
        let mut callers = BTreeMap::<*const CallerQuota, (u64, Vec<_>)>::new();
        for answer in &answers {
            let state = answer.lock();
            let Some(((begin, _), caller)) = state.times.zip(state.caller.clone()) else {
                continue;
            };
            let of_caller = callers.entry(Arc::as_ptr(&caller)).or_default();
            of_caller.0 += state.reservation.as_ref().map_or(0, Reservation::bytes);
            of_caller.1.push((begin, answer));
        }
        let own = callers.get(&Arc::as_ptr(waiting)).map_or(0, |(bytes, _)| *bytes);
        let most = callers.into_values().max_by_key(|(bytes, _)| *bytes);
        let Some((_, of_most)) = most.filter(|(bytes, _)| *bytes > own) else { return };
        let oldest = of_most.into_iter().filter(|(_, of)| of.is_reserved()).min_by_key(|of| of.0);
        if let Some((_, answer)) = oldest.filter(|of| of.0.elapsed() >= GIVES_WAY_AFTER) {
            answer.lock().cut();
        }
    }
}

#[cfg(test)]
mod tests;
