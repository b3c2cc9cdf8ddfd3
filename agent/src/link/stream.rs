//! The connection to the coordinator: one channel, one `Attach` stream at a time, forever.
//!
//! The task here opens the stream, says who we are, waits for the welcome and then hands messages
//! to the agent's loop. When the stream ends it tries again, later each time and never at the same
//! moment as the other agents. It says one line when the state changes and is silent otherwise.
//! Uploads of bodies share the channel but not the stream.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::agent::{Event, Session};
use crate::capture::answers::UploadError;
use crate::capture::rewind::Body;
use crate::link::wire::{self, Client, Incoming, Outgoing};

/// Messages waiting to be sent on a stream; when they are more, the agent's loop skips a turn.
pub(crate) const OUTGOING_MAX: usize = 256;

/// First and longest wait before another try.
const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// A stream that lived for this long starts the backoff anew.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// Longest wait that a leaving coordinator can ask for.
const GOODBYE_MAX: Duration = Duration::from_secs(60);

/// Time for connecting, and for the welcome after that.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection without a sign of life for the sum of both is broken.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// How a stream ended.
#[derive(Debug)]
struct End {
    /// Time since the welcome; none when there was none.
    lasted: Option<Duration>,
    /// What a leaving coordinator asked for.
    wait: Option<Duration>,
    why: String,
}

/// A channel to the coordinator, which connects when it is first used.
///
/// # Errors
/// An address that is none.
pub(crate) fn channel(coordinator: &str) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(coordinator.to_string())
        .with_context(|| format!("coordinator address {coordinator:?} is not a URL"))?;
    if endpoint.uri().host().is_none() {
        bail!("coordinator address {coordinator:?} has no host: write http://host:port");
    }
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_lazy())
}

/// Keeps a stream to the coordinator for as long as the agent's loop listens.
pub(crate) async fn hold(
    channel: Channel,
    coordinator: String,
    hello: Outgoing,
    events: mpsc::Sender<Event>,
) {
    let mut failures = 0;
    let mut is_told = false;
    while !events.is_closed() {
        let end = attach(&channel, hello.clone(), &events).await;
        if let Some(lasted) = end.lasted {
            is_told = false;
            if lasted >= SETTLED_AFTER {
                failures = 0;
            }
            if events.send(Event::Disconnected).await.is_err() {
                return;
            }
        }
        if !std::mem::replace(&mut is_told, true) {
            tracing::warn!(
                "coordinator {coordinator} is not connected ({}): trying until it is",
                end.why
            );
        }
        let wait = backoff(failures, RandomState::new().build_hasher().finish());
        failures = failures.saturating_add(1);
        sleep(wait.max(end.wait.unwrap_or_default().min(GOODBYE_MAX))).await;
    }
}

/// One stream, from hello to its end.
async fn attach(channel: &Channel, hello: Outgoing, events: &mpsc::Sender<Event>) -> End {
    let failed = |why: String| End { lasted: None, wait: None, why };
    let (outgoing, messages) = mpsc::channel(OUTGOING_MAX);
    if outgoing.try_send(hello).is_err() {
        return failed("the stream takes no message".to_string());
    }
    let mut client = Client::new(channel.clone());
    let opening = async {
        let mut stream = client.attach(ReceiverStream::new(messages)).await?.into_inner();
        let first = stream.message().await?;
        Ok::<_, tonic::Status>((first, stream))
    };
    let (first, mut stream) = match timeout(CONNECT_TIMEOUT * 2, opening).await {
        Err(_) => return failed("it did not answer in time".to_string()),
        Ok(Err(status)) => return failed(reason(&status)),
        Ok(Ok(opened)) => opened,
    };
    let Some(Incoming::Welcome { protocol, minor, version, report_interval }) =
        first.and_then(wire::incoming)
    else {
        return failed("its first message was no welcome".to_string());
    };
    if let Err(why) = wire::check_protocol(protocol) {
        return failed(why);
    }
    tracing::info!(protocol, minor, coordinator = %version, "connected to the coordinator");
    let welcomed = Instant::now();
    let end =
        |wait, why: &str| End { lasted: Some(welcomed.elapsed()), wait, why: why.to_string() };
    let session = Session { outgoing, report_interval, minor };
    if events.send(Event::Connected(session)).await.is_err() {
        return end(None, "the agent stops");
    }
    loop {
        let message = match stream.message().await {
            Ok(Some(raw)) => wire::incoming(raw),
            Ok(None) => return end(None, "it closed the stream"),
            Err(status) => return end(None, &reason(&status)),
        };
        let Some(message) = message else { continue };
        if let Incoming::Goodbye(wait) = message {
            return end(Some(wait), "it is going away");
        }
        if events.send(Event::Message(message)).await.is_err() {
            return end(None, "the agent stops");
        }
    }
}

/// Sends one body; returns when the coordinator has stored it.
///
/// # Errors
/// An [`UploadError`] that says whether another try can help.
pub(crate) async fn upload(
    channel: Channel,
    capture_id: &str,
    tape_id: &str,
    body: Body,
) -> Result<(), UploadError> {
    let Body { bytes, hash } = body;
    let chunks = wire::chunks(capture_id.to_string(), tape_id.to_string(), bytes);
    let answer = Client::new(channel).upload(tokio_stream::iter(chunks)).await;
    match answer {
        Ok(receipt) if receipt.get_ref().body_hash == hash.as_bytes().as_slice() => Ok(()),
        Ok(_) => Err(UploadError { is_final: false, why: "it arrived damaged".to_string() }),
        Err(status) => {
            let is_final = matches!(
                status.code(),
                Code::InvalidArgument
                    | Code::NotFound
                    | Code::AlreadyExists
                    | Code::FailedPrecondition
                    | Code::OutOfRange
                    | Code::Unimplemented
            );
            Err(UploadError { is_final, why: reason(&status) })
        }
    }
}

/// The middle of what [`backoff`] spreads by.
pub(crate) const MIDDLE: u64 = 500;

/// The wait after this many failures: doubled each time, spread by a quarter to both sides.
pub(crate) fn backoff(failures: u32, random: u64) -> Duration {
    let doubled = BACKOFF_MIN.saturating_mul(1 << failures.min(10));
    let wait = doubled.min(BACKOFF_MAX);
    let spread = wait / 2;
    wait - spread / 2 + spread.mul_f64((random % 1000) as f64 / 1000.0)
}

/// The innermost cause of a status, in one line.
fn reason(status: &tonic::Status) -> String {
    let mut innermost: Option<&dyn std::error::Error> = std::error::Error::source(status);
    while let Some(cause) = innermost.and_then(std::error::Error::source) {
        innermost = Some(cause);
    }
    let text = innermost.map_or_else(|| status.message().to_string(), ToString::to_string);
    let line = text.lines().next().unwrap_or_default();
    if line.is_empty() { format!("{:?}", status.code()) } else { line.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_are_spread() {
        for (failures, shortest_ms, longest_ms) in [
            (0, 150, 250),
            (1, 300, 500),
            (3, 1200, 2000),
            (6, 7500, 12500),
            (u32::MAX, 7500, 12500),
        ] {
            for random in [0, 1, 499, 999, u64::MAX] {
                let ms = backoff(failures, random).as_millis();
                assert!((shortest_ms..=longest_ms).contains(&ms), "{failures} {random}: {ms} ms");
            }
        }
    }

    #[tokio::test]
    async fn addresses_are_checked_before_use() {
        for (address, is_good) in [
            ("http://127.0.0.1:7771", true),
            ("http://coordinator.memtape.svc:7771", true),
            ("http://", false),
            ("not a url", false),
        ] {
            assert_eq!(channel(address).is_ok(), is_good, "{address}");
        }
    }

    #[tokio::test]
    async fn an_unreachable_coordinator_is_a_line() {
        // A port that was free a moment ago, and nobody listens at.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("port");
        let address = listener.local_addr().expect("address");
        drop(listener);
        let channel = channel(&format!("http://{address}")).expect("channel");
        let (events, _received) = mpsc::channel(1);
        let end = attach(&channel, wire::hello("n", "b"), &events).await;
        assert!(end.lasted.is_none());
        assert!(end.why.contains("refused") && !end.why.contains('\n'), "{:?}", end.why);
    }
}
