//! Memory of answers: each reserves it before its value is taken from the loop, whatever the
//! handler, and gives it back as it is sent.
//!
//! Each whole answer has an `ETag`, a hash of its bytes: a client that names it gets 304 where
//! nothing has changed, without the bytes.
//!
//! A reservation is that of the whole value at first, then of its bytes as JSON, then of the unsent
//! ones. An answer that is read too slowly ends as an error.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use crate::access::Refused;
use crate::http::asking::refused;
use crate::http::request::{Api, Problem};
use crate::quota::unsent::Unsent;
use crate::state::counters::Loss;

/// Maximum time that a request waits for the bytes of its answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(30);

/// Memory of a value, and of its JSON, whose handler does not know it before.
const VALUE_BYTES: u64 = 16 << 20;

/// Hexadecimal digits of an `ETag`.
const TAG_DIGITS: usize = 32;

/// Bytes of an answer that need no reservation.
const SMALL_ANSWER_BYTES: u64 = 16 << 10;

/// Memory that an answer takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Size {
    /// A value of the loop, unless the answer has a reservation.
    Value,
    /// An answer of about this many bytes, one of few of its caller.
    Large(u64),
    /// The bytes of an answer that is made, or what a stream keeps while it lasts.
    Made(u64),
}

/// Reserves the memory of an answer; what it has already reserved counts.
///
/// # Errors
/// The memory is not free for long, or the coordinator is stopping.
pub(crate) async fn reserve(api: &Api, unsent: &Unsent, size: Size) -> Result<(), Problem> {
    let Some(caller) = unsent.caller() else { return Ok(()) };
    let bytes = match size {
        Size::Value if unsent.is_reserved() => return Ok(()),
        Size::Value => VALUE_BYTES,
        Size::Made(bytes) if bytes <= SMALL_ANSWER_BYTES && !unsent.is_reserved() => return Ok(()),
        Size::Large(bytes) => bytes.max(SMALL_ANSWER_BYTES),
        Size::Made(bytes) => bytes,
    };
    let is_large = matches!(size, Size::Large(_));
    let reserving = api.quotas.reserve_answer(caller, bytes, is_large, unsent.take());
    let reserved = timeout(ANSWER_WAIT_MAX, reserving).await;
    let late = || refused(api, &Refused::TooMany(ANSWER_WAIT_MAX));
    unsent.keep(reserved.map_err(|_| late())?.ok_or_else(Problem::stopping)?);
    Ok(())
}

/// Gives a request the memory of its answer, and sends the answer.
pub(crate) async fn hold(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let unsent = Arc::<Unsent>::default();
    request.extensions_mut().insert(unsent.clone());
    let known = request.headers().get(header::IF_NONE_MATCH).cloned();
    let is_read = request.method() == Method::GET;
    let (mut head, body) = next.run(request).await.into_parts();
    if unsent.caller().is_none() {
        return Response::from_parts(head, body);
    }
    let length = head.headers.get(header::CONTENT_LENGTH).map(HeaderValue::to_str);
    let length = length.and_then(|length| length.ok()?.parse().ok());
    let mut sending = Sending { parts: None, unsent: unsent.clone(), api: api.clone() };
    match body.size_hint().exact() {
        Some(bytes) => {
            if let Err(problem) = reserve(&api, &unsent, Size::Made(bytes)).await {
                return problem.into_response();
            }
            // It is in memory: this waits for nothing.
            let mut whole = body.collect().await.map(|whole| whole.to_bytes()).unwrap_or_default();
            if is_read && head.status == StatusCode::OK {
                let tag = tag_of(&whole);
                if known.is_some_and(|known| known == tag) {
                    (head.status, whole) = (StatusCode::NOT_MODIFIED, Bytes::new());
                    head.headers.remove(header::CONTENT_LENGTH);
                }
                head.headers.insert(header::ETAG, tag);
            }
            unsent.begin(&whole, whole.len() as u64);
        }
        None => {
            // Parts whose end is not known have a time of their own.
            unsent.begin(&[], length.unwrap_or(u64::MAX));
            sending.parts = Some(body);
        }
    }
    api.quotas.sent(&unsent);
    Response::from_parts(head, Body::new(sending))
}

/// The mark of an answer.
fn tag_of(whole: &[u8]) -> HeaderValue {
    let hash = blake3::hash(whole).to_hex();
    HeaderValue::from_str(&format!("\"{}\"", &hash[..TAG_DIGITS]))
        .unwrap_or(HeaderValue::from_static(""))
}

/// The body of an answer to a caller.
struct Sending {
    /// The parts, unless all of it is in memory.
    parts: Option<Body>,
    unsent: Arc<Unsent>,
    api: Api,
}

impl HttpBody for Sending {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { parts, unsent, api } = self.get_mut();
        if let Err(why) = unsent.check() {
            api.counters.lose(Loss::SlowDownload, 1);
            return Poll::Ready(Some(Err(axum::Error::new(why))));
        }
        match parts {
            Some(parts) => Pin::new(parts).poll_frame(context),
            None => Poll::Ready(unsent.next().map(|piece| Ok(Frame::data(piece)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.parts {
            Some(parts) => parts.is_end_stream(),
            None => self.unsent.bytes() == 0 && !self.unsent.is_cut(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.parts {
            Some(parts) => parts.size_hint(),
            None if self.unsent.is_cut() => SizeHint::default(),
            None => SizeHint::with_exact(self.unsent.bytes()),
        }
    }
}
