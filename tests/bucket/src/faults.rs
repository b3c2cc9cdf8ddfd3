//! Faults that are ordered for the next requests, one for each, in order.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use http_body_util::BodyExt;
use hyper::body::Incoming;

/// What happens to a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// The connection is closed once this many bytes of the body were read; nothing is written.
    Closed {
        /// Bytes of the body.
        body_bytes: usize,
    },
    /// The answer is 503; nothing is written.
    Unavailable,
    /// The request is carried out, and the connection closed before the answer.
    AnswerLost,
}

/// The ordered faults.
#[derive(Debug, Default)]
pub(crate) struct Faults(Mutex<VecDeque<Fault>>);

impl Faults {
    pub(crate) fn order(&self, faults: &[Fault]) {
        self.lock().extend(faults);
    }

    /// The fault of the next request.
    pub(crate) fn next(&self) -> Option<Fault> {
        self.lock().pop_front()
    }

    /// Forgets the faults that did not happen yet, and returns their number.
    pub(crate) fn clear(&self) -> usize {
        std::mem::take(&mut *self.lock()).len()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Fault>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads this many bytes of a body, or all of it.
pub(crate) async fn read(mut body: Incoming, bytes: usize) {
    let mut had = 0;
    while had < bytes {
        let Some(Ok(frame)) = body.frame().await else { return };
        had += frame.data_ref().map_or(0, |data| data.len());
    }
}
