//! Makes requests of gRPC's C library over Unix sockets acceptable to hyper.
//!
//! That library, which NVRx uses, names the socket as the authority of a request, with `%2F` for
//! each `/`. hyper refuses an authority with `%` and resets the stream. Each byte of such an
//! authority that is no letter and no digit is replaced here before hyper reads it; its length and
//! all other bytes stay as they are, so that the tables of the header compression of both sides
//! agree. A block of headers that is not understood is passed on: hyper refuses it. The authority
//! is used for nothing.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::http::uri::Authority;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of the greeting with which a client begins.
const GREETING_BYTES: usize = 24;

/// Bytes in front of the content of a frame.
const FRAME_HEAD_BYTES: usize = 9;

/// Bytes of a frame's content that a client may send, as hyper has it. A longer one is passed on.
const FRAME_BYTES_MAX: usize = 16 << 10;

/// Bytes that are read at once.
const READ_BYTES: usize = 4096;

/// The type of a frame with headers, and its flags.
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const WITH_PRIORITY: u8 = 0x20;

/// Bytes of a priority.
const PRIORITY_BYTES: usize = 5;

/// The index of `:authority` in the static table of the header compression.
const AUTHORITY_INDEX: usize = 1;

/// A connection of a client, with authorities that hyper takes.
#[derive(Debug)]
pub(super) struct WithAuthority<S> {
    stream: S,
    frames: Frames,
}

impl<S> WithAuthority<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, frames: Frames::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WithAuthority<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.frames.ready.is_empty() {
            let mut bytes = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(())); // a frame that is cut short is none
            }
            this.frames.take(read.filled());
        }
        let count = this.frames.ready.len().min(out.remaining());
        out.put_slice(&this.frames.ready[..count]);
        this.frames.ready.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WithAuthority<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The frames of a client, in pieces as they come. Bounded by one frame and what is read at once.
#[derive(Debug)]
struct Frames {
    /// Not passed on yet.
    held: Vec<u8>,
    /// Bytes that are passed on as they are before the next frame begins.
    as_is: usize,
    /// For the reader.
    ready: Vec<u8>,
}

impl Default for Frames {
    fn default() -> Self {
        Self { held: Vec::new(), as_is: GREETING_BYTES, ready: Vec::new() }
    }
}

impl Frames {
    fn take(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
        loop {
            let count = self.as_is.min(self.held.len());
            self.ready.extend(self.held.drain(..count));
            self.as_is -= count;
            let [high, middle, low, kind, flags, ..] = self.held[..] else { return };
            let content = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            let whole = FRAME_HEAD_BYTES + content;
            if kind == HEADERS && content <= FRAME_BYTES_MAX {
                if self.held.len() < whole {
                    return;
                }
                if let Some(block) = header_block(flags, &mut self.held[FRAME_HEAD_BYTES..whole]) {
                    let _ = mend(block); // hyper refuses what is not understood
                }
            }
            self.as_is = whole;
        }
    }
}

/// The headers in the content of a frame.
fn header_block(flags: u8, content: &mut [u8]) -> Option<&mut [u8]> {
    let (mut start, mut end) = (0, content.len());
    if flags & PADDED != 0 {
        end = end.checked_sub(usize::from(*content.first()?))?;
        start += 1;
    }
    if flags & WITH_PRIORITY != 0 {
        start += PRIORITY_BYTES;
    }
    content.get_mut(start..end)
}

/// Replaces what hyper refuses in an authority. None where a block is not understood.
fn mend(block: &mut [u8]) -> Option<()> {
    let mut at = 0;
    while let Some(first) = block.get(at).copied() {
        // How many bits of the first byte belong to an index, and whether a value follows.
        let (bits, has_value) = match first {
            0x80.. => (7, false),
            0x40..0x80 => (6, true),
            0x20..0x40 => (5, false),
            0..0x20 => (4, true),
        };
        let index = number(block, &mut at, bits)?;
        if !has_value {
            continue;
        }
        let is_authority = match index {
            0 => {
                let (name, _) = text(block, &mut at)?;
                block.get(name)? == b":authority"
            }
            index => index == AUTHORITY_INDEX,
        };
        let (value, is_compressed) = text(block, &mut at)?;
        let value = block.get_mut(value)?;
        if is_authority && !is_compressed && Authority::try_from(&*value).is_err() {
            value.iter_mut().filter(|byte| !byte.is_ascii_alphanumeric()).for_each(|byte| {
                *byte = b'-';
            });
        }
    }
    Some(())
}

/// A number in the last bits of a byte, and in those that follow.
fn number(block: &[u8], at: &mut usize, bits: u32) -> Option<usize> {
    let most = (1_usize << bits) - 1;
    let mut number = usize::from(*block.get(*at)?) & most;
    *at += 1;
    if number < most {
        return Some(number);
    }
    // More than these are longer than any block.
    for shift in [0, 7, 14] {
        let byte = usize::from(*block.get(*at)?);
        *at += 1;
        number += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Where a text is, and whether it is compressed.
fn text(block: &[u8], at: &mut usize) -> Option<(Range<usize>, bool)> {
    let is_compressed = block.get(*at)? & 0x80 != 0;
    let bytes = number(block, at, 7)?;
    let range = *at..at.checked_add(bytes)?;
    *at = range.end;
    Some((range, is_compressed))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A header with its name.
    fn literal(name: &str, value: &str) -> Vec<u8> {
        let sized = |text: &str| {
            let mut bytes = vec![u8::try_from(text.len()).expect("short")];
            bytes.extend_from_slice(text.as_bytes());
            bytes
        };
        [vec![0x40], sized(name), sized(value)].concat()
    }

    fn frame(kind: u8, flags: u8, stream: u8, content: &[u8]) -> Vec<u8> {
        let [.., middle, low] = content.len().to_be_bytes();
        let head = [0, middle, low, kind, flags, 0, 0, 0, stream];
        [&head[..], content].concat()
    }

    /// A health check as grpcio 1.85 sends it, with this authority.
    pub(crate) fn request(authority: &str) -> Vec<u8> {
        let headers = [
            literal(":path", "/nvhcd.HealthCheckService/RunHealthCheck"),
            literal(":authority", authority),
            vec![0x83, 0x86], // POST, http
            literal("content-type", "application/grpc"),
            literal("te", "trailers"),
        ];
        let message = [&[0, 0, 0, 0, 12, 10, 10][..], b"--no-slurm"].concat();
        [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(4, 0, 0, &[]),
            frame(HEADERS, 0x4, 1, &headers.concat()),
            frame(0, 1, 1, &message),
        ]
        .concat()
    }

    /// What is passed on of bytes that come in pieces of this size.
    fn passed(bytes: &[u8], piece: usize) -> Vec<u8> {
        let mut frames = Frames::default();
        bytes.chunks(piece).for_each(|piece| frames.take(piece));
        assert!(frames.held.len() <= FRAME_HEAD_BYTES + FRAME_BYTES_MAX);
        frames.ready
    }

    #[test]
    fn an_authority_is_mended_in_its_own_length() {
        let sent = request("run%2Fmemtape%2Fhealth.sock");
        let mended = request("run-2Fmemtape-2Fhealth-sock");
        for piece in 1..sent.len() {
            assert_eq!(passed(&sent, piece), mended, "in pieces of {piece}");
        }
        // What hyper takes is not touched.
        for authority in ["localhost", "localhost:80", "run-memtape.sock"] {
            let sent = request(authority);
            assert_eq!(passed(&sent, 7), sent, "{authority}");
        }
    }

    #[test]
    fn an_authority_is_found_by_its_index_behind_padding_and_priority() {
        let value = [&[0x41, 5][..], b"a%2Fb"].concat();
        let content = [&[3, 0, 0, 0, 0, 0][..], &value, &[0, 0, 0]].concat();
        let start = vec![0; GREETING_BYTES];
        let sent = [start.clone(), frame(HEADERS, 0x2c, 1, &content)].concat();
        let text = passed(&sent, 100);
        assert!(text.windows(5).any(|text| text == b"a-2Fb"), "{text:?}");
        // The same bytes in another kind of frame are data.
        let sent = [start, frame(0, 0x2c, 1, &content)].concat();
        assert_eq!(passed(&sent, 100), sent);
    }

    /// Whatever bytes come, as many are passed on, but for a frame that is cut short.
    #[test]
    fn damaged_requests_are_passed_on() {
        let sent = request("run%2Fmemtape%2Fhealth.sock");
        for at in GREETING_BYTES + FRAME_HEAD_BYTES..sent.len() {
            for byte in [0, 1, 0x40, 0x41, 0x7f, 0x80, 0xff] {
                let mut damaged = sent.clone();
                damaged[at] = byte;
                let mut frames = Frames::default();
                frames.take(&damaged);
                assert_eq!(frames.ready.len() + frames.held.len(), damaged.len());
            }
        }
    }
}
