//! The open streams of agents, one for each node at most, and how messages are sent on them.
//!
//! This file does not interpret messages.

use std::collections::BTreeMap;

use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;

use crate::ingest::wire::Outgoing;

/// Which stream of an agent.
pub(crate) type StreamId = u64;

/// Queue of messages to an agent; an error ends the stream.
pub(crate) type ToAgent = mpsc::Sender<Result<Outgoing, Status>>;

/// All open streams.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    begun: StreamId,
    nodes: BTreeMap<StreamId, String>,
    /// The guard ends the stream's task when the stream is closed.
    by_node: BTreeMap<String, (StreamId, ToAgent, DropGuard)>,
}

/// A message could not be sent: the stream to close, and whether its agent does not read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unsent {
    pub(crate) stream: StreamId,
    pub(crate) is_slow: bool,
}

impl Streams {
    /// Opens a stream; an earlier one of the node must be closed before.
    pub(crate) fn open(
        &mut self,
        node: &str,
        outgoing: ToAgent,
        end: CancellationToken,
    ) -> StreamId {
        self.begun += 1;
        self.nodes.insert(self.begun, node.to_string());
        self.by_node.insert(node.to_string(), (self.begun, outgoing, end.drop_guard()));
        self.begun
    }

    /// Closes a stream; the node that it belonged to.
    pub(crate) fn close(&mut self, stream: StreamId) -> Option<String> {
        let node = self.nodes.remove(&stream)?;
        self.by_node.remove(&node);
        Some(node)
    }

    /// The node that a stream belongs to.
    pub(crate) fn node(&self, stream: StreamId) -> Option<&String> {
        self.nodes.get(&stream)
    }

    /// The stream of a node.
    pub(crate) fn of_node(&self, node: &str) -> Option<StreamId> {
        self.by_node.get(node).map(|(stream, ..)| *stream)
    }

    /// All nodes with a stream.
    pub(crate) fn nodes(&self) -> Vec<String> {
        self.by_node.keys().cloned().collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Queue of messages to a node.
    pub(crate) fn sender(&self, node: &str) -> Option<ToAgent> {
        self.by_node.get(node).map(|(_, outgoing, _)| outgoing.clone())
    }

    /// The stream of a node, to send a message on it later.
    pub(crate) fn outlet(&self, node: &str) -> Option<Outlet> {
        self.by_node.get(node).map(|(stream, outgoing, _)| Outlet(*stream, outgoing.clone()))
    }

    /// Sends a message to the agent of a node. Without a stream it is dropped: captures and
    /// calls to ranks are sent again when the agent is back, signals are not.
    ///
    /// # Errors
    /// The stream is broken, or its queue is full.
    pub(crate) fn send(&self, node: &str, message: Outgoing) -> Result<(), Unsent> {
        self.outlet(node).map_or(Ok(()), |outlet| outlet.send(message))
    }
}

/// A stream that messages are sent on. It may be closed meanwhile.
#[derive(Debug)]
pub(crate) struct Outlet(StreamId, ToAgent);

impl Outlet {
    /// Sends a message.
    ///
    /// # Errors
    /// The stream is broken, or its queue is full.
    pub(crate) fn send(&self, message: Outgoing) -> Result<(), Unsent> {
        let Self(stream, outgoing) = self;
        let unsent = Unsent { stream: *stream, is_slow: !outgoing.is_closed() };
        outgoing.try_send(Ok(message)).map_err(|_| unsent)
    }
}
