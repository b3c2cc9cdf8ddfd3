//! An answer that is made while it is sent: its parts go through a channel, one at a time.
//!
//! Who makes them waits until the client has read the one before, and learns that the client is
//! gone. A maker that stops before [`Sender::finish`] ends the answer as an error, so that no
//! client takes a part of it for the whole.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::Stream;

/// The sending end of an answer in parts.
#[derive(Debug)]
pub(crate) struct Sender {
    parts: mpsc::Sender<Bytes>,
    is_whole: Arc<AtomicBool>,
}

/// The parts, for the answer.
pub(crate) struct Parts {
    parts: mpsc::Receiver<Bytes>,
    is_whole: Arc<AtomicBool>,
}

/// The error that the client has gone.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the client has gone")]
pub(crate) struct Gone;

/// Both ends of an answer.
pub(crate) fn parts() -> (Sender, Parts) {
    let (sender, receiver) = mpsc::channel(1);
    let is_whole = Arc::new(AtomicBool::new(false));
    let parts = Parts { parts: receiver, is_whole: is_whole.clone() };
    (Sender { parts: sender, is_whole }, parts)
}

impl Sender {
    /// Sends a part, and waits while the channel is full.
    ///
    /// # Errors
    /// The client has gone.
    pub(crate) async fn send(&self, part: Bytes) -> Result<(), Gone> {
        self.parts.send(part).await.map_err(|_| Gone)
    }

    /// Marks that all parts were sent.
    pub(crate) fn finish(self) {
        self.is_whole.store(true, SeqCst);
    }
}

impl Stream for Parts {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let part = ready!(self.parts.poll_recv(context));
        let is_whole = self.is_whole.load(SeqCst);
        Poll::Ready(match part {
            Some(part) => Some(Ok(part)),
            None if is_whole => None,
            None => Some(Err(io::ErrorKind::UnexpectedEof.into())),
        })
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};

    use super::*;

    #[tokio::test]
    async fn an_answer_that_is_not_finished_is_an_error() {
        for is_finished in [true, false] {
            let (sender, body) = parts();
            tokio::spawn(async move {
                for part in ["one", "two"] {
                    sender.send(part.into()).await.unwrap();
                }
                if is_finished {
                    sender.finish();
                }
            });
            let read = to_bytes(Body::from_stream(body), usize::MAX).await;
            assert_eq!(read.ok(), is_finished.then(|| "onetwo".into()));
        }
    }

    #[tokio::test]
    async fn one_part_waits_and_a_client_that_leaves_is_noticed() {
        let (sender, body) = parts();
        sender.send("one".into()).await.unwrap();
        {
            let mut second = std::pin::pin!(sender.send("two".into()));
            let is_sent = std::future::poll_fn(|context| {
                Poll::Ready(second.as_mut().poll(context).is_ready())
            });
            assert!(!is_sent.await, "it waits for the reader");
        }
        drop(body);
        assert_eq!(sender.send("two".into()).await, Err(Gone));
    }
}
