//! Reads the messages of an agent's call: the length of each, then its bytes.
//!
//! Between the two the caller reserves memory. Bytes that are not read stay with the client, but
//! for the window of HTTP/2. A message that has begun has a time. No message is decoded here.

use axum::body::{Body, Bytes};
use bytes::BytesMut;
use http_body_util::BodyExt as _;
use memtape_core::limits::{CHUNK_BYTES_MAX, MESSAGE_MIB_SECONDS_MAX};
use tokio::time::{Duration, timeout};

use crate::ingest::wire::BadMessage;

/// What gRPC sends before each message: whether the message is compressed, and its length.
const HEADER_BYTES: usize = 5;

/// The messages of a call.
pub(crate) struct Frames {
    body: Body,
    /// Bytes that came with those before.
    rest: Bytes,
}

impl Frames {
    /// The messages in the body of a call.
    pub(crate) fn new(body: Body) -> Self {
        Self { body, rest: Bytes::new() }
    }

    /// Waits for the next message; its length in bytes. None where the stream has ended.
    ///
    /// # Errors
    /// The message is longer than `bytes_max`, or is compressed; or the connection broke.
    pub(crate) async fn begin(&mut self, bytes_max: usize) -> Result<Option<usize>, BadMessage> {
        let Some(header) = self.take(HEADER_BYTES).await? else { return Ok(None) };
        let length = header[1..].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        if header[0] != 0 || length > bytes_max {
            return Err(BadMessage::Frame { length, bytes_max });
        }
        Ok(Some(length))
    }

    /// Reads the message that has begun.
    ///
    /// # Errors
    /// The connection broke, or a MiB of the message takes more than [`MESSAGE_MIB_SECONDS_MAX`].
    pub(crate) async fn read(&mut self, length: usize) -> Result<Bytes, BadMessage> {
        let mib = length.max(CHUNK_BYTES_MAX) as f64 / CHUNK_BYTES_MAX as f64;
        let patience = Duration::from_secs(MESSAGE_MIB_SECONDS_MAX).mul_f64(mib);
        let message = timeout(patience, self.take(length)).await.map_err(|_| BadMessage::Slow)?;
        message?.ok_or(BadMessage::Broken)
    }

    /// The next bytes; none where the stream ends before the first.
    async fn take(&mut self, length: usize) -> Result<Option<Bytes>, BadMessage> {
        let mut taken = BytesMut::with_capacity(length);
        while taken.len() < length {
            if self.rest.is_empty() {
                self.rest = match self.body.frame().await {
                    Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                    None if taken.is_empty() => return Ok(None),
                    None | Some(Err(_)) => return Err(BadMessage::Broken),
                };
            }
            let part = self.rest.len().min(length - taken.len());
            taken.extend_from_slice(&self.rest.split_to(part));
        }
        Ok(Some(taken.freeze()))
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt as _;

    use super::*;

    /// All messages of a stream that comes in parts of this many bytes and then stays open.
    async fn read(wire: &[u8], part: usize) -> (Vec<Bytes>, BadMessage) {
        let parts: Vec<_> = wire.chunks(part).map(|of| Ok::<_, BadMessage>(of.to_vec())).collect();
        let parts = tokio_stream::iter(parts).chain(tokio_stream::pending());
        let mut frames = Frames::new(Body::from_stream(parts));
        let mut messages = Vec::new();
        loop {
            let message = match frames.begin(9).await {
                Ok(length) => frames.read(length.unwrap()).await,
                Err(why) => return (messages, why),
            };
            match message {
                Ok(message) => messages.push(message),
                Err(why) => return (messages, why),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn messages_are_whole_however_they_come_and_have_a_time() {
        let whole = *b"\0\0\0\0\x02ab\0\0\0\0\0\0\0\0\0\x09123456789";
        for part in 1..=whole.len() {
            for (last, bad) in [
                (&b"\0\0\0\0\x02a"[..], BadMessage::Slow),
                (b"\0\0\0\0\x0a", BadMessage::Frame { length: 10, bytes_max: 9 }),
                (b"\x01\0\0\0\x02", BadMessage::Frame { length: 2, bytes_max: 9 }),
            ] {
                let (messages, why) = read(&[&whole[..], last].concat(), part).await;
                assert_eq!(messages, ["ab", "", "123456789"], "parts of {part}");
                assert_eq!(why.to_string(), bad.to_string());
            }
        }
    }
}
