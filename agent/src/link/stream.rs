//! The connection to the coordinator: one channel, one `Attach` stream at a time, forever.
//!
//! The task here opens the stream, says who we are, waits for the welcome and then hands messages
//! to the agent's loop. When the stream ends it tries again, later each time and never at the same
//! time as the other agents. It logs one line when the state changes and is silent otherwise.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memtape_core::limits::MESSAGES_WAITING_MAX;
use memtape_proto::{OtherProtocol, Side, check_protocol};
use memtape_tls::client::ClientTls;
use memtape_tls::unreachable::Unreachable;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::link::backoff::backoff;
use crate::link::channel::CONNECT_TIMEOUT;
use crate::link::coordinators::Coordinators;
use crate::link::wire::{self, Client, FromAgent, Incoming, Outgoing, RemedyRequest};
use crate::node::clock;

/// A stream that lasted for this long resets the backoff.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// Causes in the log from one connection to the next.
const CAUSES_MAX: usize = 8;

/// Failures in a row after which the given addresses are tried, also if owners are named: those
/// that coordinators without their bucket name may be old, and in a circle.
const NAMED_MAX: u32 = 4;

/// Longest wait that a leaving coordinator can ask for.
const GOODBYE_MAX: Duration = Duration::from_secs(60);

/// An event of the stream.
#[derive(Debug)]
pub(crate) enum StreamEvent {
    /// The coordinator accepted a new stream.
    Connected(Session),
    /// The stream is gone.
    Disconnected,
    /// The coordinator sent a message.
    Message(Incoming),
    /// The cluster has another number of shards than the agent knew.
    Divided(u16),
}

/// The number of shards that an agent takes its cluster for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardCount {
    pub(crate) shards: u16,
    /// Until then, an agent stays with it whatever other number is named.
    pub(crate) holds_until: Instant,
}

/// A stream that the coordinator accepted.
#[derive(Debug)]
pub(crate) struct Session {
    outgoing: mpsc::Sender<FromAgent>,
    /// Report interval that the coordinator wants.
    pub(crate) report_interval: Option<Duration>,
    /// Id of the coordinator's store; empty when not stated.
    pub(crate) store: String,
}

impl Session {
    /// The session of a coordinator's first message; `outgoing` takes messages for it.
    /// Fails when the message is no welcome, or one of another version of the protocol.
    pub(crate) fn open(
        first: Option<Incoming>,
        outgoing: mpsc::Sender<FromAgent>,
    ) -> Result<Self, NoSession> {
        let Some(Incoming::Welcome { protocol, version, report_interval, store }) = first else {
            return Err(NoSession::NoWelcome);
        };
        check_protocol(Side::Coordinator, protocol)?;
        tracing::info!(protocol, coordinator = %version, "connected to the coordinator");
        Ok(Self { outgoing, report_interval, store })
    }

    /// Free slots of the outgoing queue, in messages.
    pub(crate) fn room(&self) -> usize {
        self.outgoing.capacity()
    }

    /// Queues a message; false when the queue is full.
    pub(crate) fn send(&self, message: Outgoing) -> bool {
        self.outgoing.try_send(wire::raw(message)).is_ok()
    }
}

/// Why a first message opens no session.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoSession {
    /// The first message is no welcome.
    #[error("its first message was no welcome")]
    NoWelcome,
    /// The coordinator has another version of the protocol.
    #[error(transparent)]
    Protocol(#[from] OtherProtocol),
}

/// End of a stream.
#[derive(Debug)]
struct End {
    /// Time since the session was opened; none when there was none.
    lasted: Option<Duration>,
    /// Wait time that a leaving coordinator asked for.
    wait: Option<Duration>,
    why: Why,
}

/// Why a stream ended.
#[derive(Debug, PartialEq, Eq)]
enum Why {
    /// Nothing that speaks the protocol answered.
    Unreachable(Unreachable),
    /// The coordinator does not own the jobs of the stream: the number of shards, and the URL of
    /// the owner, empty when unknown.
    NotOwner(u16, String),
    /// It has the first number of shards, and another coordinator has the second.
    OtherShardCount(u16, u16),
    /// The coordinator refused it, with its line.
    Refused(Code, String),
    /// Another cause, in a line.
    Other(String),
}

impl Why {
    fn of(status: &Status) -> Self {
        if let Some((shards, owner)) = wire::not_owner(status) {
            return Self::NotOwner(shards, owner);
        }
        match std::error::Error::source(status).and_then(Unreachable::of) {
            Some(kind) => Self::Unreachable(kind),
            None => Self::Refused(status.code(), reason(status)),
        }
    }

    /// Is this the same cause, in whatever words?
    fn is_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Refused(code, _), Self::Refused(other, _)) => code == other,
            _ => self == other,
        }
    }

    fn sentence(&self, coordinator: &str) -> String {
        match self {
            Self::Unreachable(kind) => kind.sentence(coordinator),
            Self::NotOwner(_, owner) if owner.is_empty() => {
                "no coordinator of the cluster owns the jobs of this stream yet".to_string()
            }
            Self::NotOwner(_, owner) => format!("{owner} owns the jobs of this stream"),
            Self::OtherShardCount(own, other) => format!(
                "it divides jobs into {own} shards, another one into {other}: give --coordinator \
                 the addresses of one cluster"
            ),
            Self::Refused(_, line) | Self::Other(line) => line.clone(),
        }
    }
}

/// Keeps a stream to the coordinator for as long as the agent's loop listens. Each stream of a
/// cluster has a connection of its own.
pub(crate) async fn hold<E: From<StreamEvent>>(
    coordinators: Arc<Coordinators>,
    shard_count: ShardCount,
    hello: Outgoing,
    events: mpsc::Sender<E>,
) {
    let mut failures = 0_u32;
    // The causes since the last connection.
    let mut logged: Vec<Why> = Vec::new();
    while !events.is_closed() {
        let coordinator = coordinators.address();
        let end = attach(&coordinators.channel(), hello.clone(), &events).await;
        coordinators.leave();
        if let Some(lasted) = end.lasted {
            logged.clear();
            if lasted >= SETTLED_AFTER {
                failures = 0;
            }
            if events.send(StreamEvent::Disconnected.into()).await.is_err() {
                return;
            }
        }
        let why = match end.why {
            Why::NotOwner(of, _) if of != shard_count.shards => {
                Why::OtherShardCount(of, shard_count.shards)
            }
            why => why,
        };
        match &why {
            Why::OtherShardCount(shards, _) if Instant::now() >= shard_count.holds_until => {
                let divided = StreamEvent::Divided(*shards);
                // This agent ends, and others begin.
                return drop(events.send(divided.into()).await);
            }
            Why::NotOwner(_, owner) if failures == 0 && coordinators.go_to(owner) => {
                failures = 1;
                continue;
            }
            Why::NotOwner(_, owner) if !failures.is_multiple_of(NAMED_MAX) => {
                let _ = coordinators.go_to(owner);
            }
            _ => coordinators.start_over(),
        }
        let invalid = coordinators.tls().and_then(ClientTls::invalid);
        let why = invalid.map_or(why, |invalid| Why::Other(invalid.to_string()));
        if logged.len() < CAUSES_MAX && !logged.iter().any(|of| of.is_as(&why)) {
            let line = why.sentence(&coordinator);
            tracing::warn!("coordinator {coordinator} is not connected ({line}); retrying");
            logged.push(why);
        }
        let counted = failures.min(coordinators.failures_max());
        let wait = backoff(counted, RandomState::new().build_hasher().finish());
        failures = failures.saturating_add(1);
        sleep(wait.max(end.wait.unwrap_or_default().min(GOODBYE_MAX))).await;
    }
}

/// One stream, from hello to its end.
async fn attach<E: From<StreamEvent>>(
    channel: &Channel,
    hello: Outgoing,
    events: &mpsc::Sender<E>,
) -> End {
    let failed = |why| End { lasted: None, wait: None, why };
    let other = |why: &str| Why::Other(why.to_string());
    let (outgoing, messages) = mpsc::channel(MESSAGES_WAITING_MAX);
    if outgoing.try_send(wire::raw(hello)).is_err() {
        return failed(other("the stream takes no message"));
    }
    let mut client = Client::new(channel.clone());
    // Connecting, and the welcome after that.
    let opening = async {
        let mut stream = client.attach(ReceiverStream::new(messages)).await?.into_inner();
        let first = stream.message().await?;
        Ok::<_, tonic::Status>((first, stream))
    };
    let (first, mut stream) = match timeout(CONNECT_TIMEOUT * 2, opening).await {
        Err(_) => return failed(Why::Unreachable(Unreachable::TimedOut)),
        Ok(Err(status)) => return failed(Why::of(&status)),
        Ok(Ok(opened)) => opened,
    };
    let session = match Session::open(first.and_then(wire::incoming), outgoing) {
        Ok(session) => session,
        Err(why) => return failed(other(&why.to_string())),
    };
    let connected = clock::now();
    let end = |wait, why| End { lasted: Some(clock::now().since(connected)), wait, why };
    if events.send(StreamEvent::Connected(session).into()).await.is_err() {
        return end(None, other("the agent stops"));
    }
    loop {
        let message = match stream.message().await {
            Ok(Some(raw)) => wire::incoming(raw),
            Ok(None) => return end(None, other("it closed the stream")),
            Err(status) => return end(None, Why::of(&status)),
        };
        let Some(message) = message else { continue };
        let message = match message {
            Incoming::Goodbye(wait) => return end(Some(wait), other("it is going away")),
            // It may wait while the agent looks at its tapes.
            Incoming::Remedy(request) => {
                let read_ns = Some(clock::now().mono_ns);
                Incoming::Remedy(RemedyRequest { read_ns, ..request })
            }
            message => message,
        };
        if events.send(StreamEvent::Message(message).into()).await.is_err() {
            return end(None, other("the agent stops"));
        }
    }
}

/// The innermost cause of a status, in one line.
pub(super) fn reason(status: &Status) -> String {
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
    use memtape_proto::PROTOCOL;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::link::channel::channel;

    #[test]
    fn another_protocol_opens_no_session() {
        let open = |protocol| {
            let (version, store) = (String::new(), String::new());
            let welcome = Incoming::Welcome { protocol, version, report_interval: None, store };
            Session::open(Some(welcome), mpsc::channel(1).0)
                .map(|_| ())
                .map_err(|why| why.to_string())
        };
        assert_eq!(open(PROTOCOL), Ok(()));
        let refused = open(PROTOCOL + 1).expect_err("another version");
        assert!(refused.ends_with("update the agent"), "{refused}");
    }

    #[tokio::test]
    async fn an_unreachable_coordinator_is_a_line() {
        // A port that was free just now, and no process listens at.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("port");
        let address = listener.local_addr().expect("address");
        drop(listener);
        let (channel, _) = channel(&format!("http://{address}"), None, false).expect("channel");
        let (events, _received) = mpsc::channel::<StreamEvent>(1);
        let end = attach(&channel, wire::hello("n", "b", None), &events).await;
        assert!(end.lasted.is_none());
        assert_eq!(end.why, Why::Unreachable(Unreachable::Refused));
    }

    #[tokio::test]
    async fn failures_below_the_protocol_have_a_kind() {
        // A server that answers with an alert of TLS, and one that closes the connection.
        for (answer, expected) in [
            (&b"\x15\x03\x03\0\x02\x02\x46"[..], Unreachable::NotPlain),
            (b"", Unreachable::BrokenOff),
        ] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
            let address = format!("http://{}", listener.local_addr().expect("address"));
            let channel = channel(&address, None, false);
            tokio::spawn(async move {
                let (mut connection, _) = listener.accept().await.expect("a connection");
                let _ = connection.read(&mut [0; 4096]).await;
                let _ = connection.write_all(answer).await;
            });
            let (events, _received) = mpsc::channel::<StreamEvent>(1);
            let end =
                attach(&channel.expect("channel").0, wire::hello("n", "b", None), &events).await;
            assert_eq!(end.why, Why::Unreachable(expected));
        }
    }
}
