//! The connections that can give way to others: those without a call, and those with calls of
//! unknown clients.
//!
//! First a network is chosen, then a connection of it, so that a flood of one network costs other
//! networks nothing. A network that has no more than an equal part is chosen only where no other
//! has more. Connections with an accepted certificate go last. Of the others, connections without a
//! call go first where a connection is needed, and connections with most unknown calls where these
//! are too many. Among equal ones, one without a known client goes first, then the oldest. Nothing
//! is closed here.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Weak;

use crate::connections::Connection;

/// Kind of a connection that can give way, in the order of giving way.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Kind {
    /// A connection without a call.
    Idle,
    /// A connection with calls that are not admitted.
    Unknown,
}

/// Order of a connection among its kind and network: the first gives way first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Standing {
    /// True if the connection showed an accepted certificate.
    pub(super) is_proven: bool,
    /// Calls that are not admitted.
    pub(super) unknown_calls: Reverse<usize>,
    /// True if the connection has calls of known clients.
    pub(super) is_known: bool,
    /// Greater for a connection that came later.
    pub(super) number: u64,
}

/// All connections that can give way.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    of_network: HashMap<IpAddr, OfNetwork>,
    connections: usize,
    /// Unknown calls on all of them.
    calls: usize,
}

#[derive(Debug, Default)]
struct OfNetwork {
    idle: BTreeMap<Standing, Weak<Connection>>,
    unknown: BTreeMap<Standing, Weak<Connection>>,
    /// Unknown calls on all of them.
    calls: usize,
}

impl OfNetwork {
    fn of(&mut self, kind: Kind) -> &mut BTreeMap<Standing, Weak<Connection>> {
        match kind {
            Kind::Idle => &mut self.idle,
            Kind::Unknown => &mut self.unknown,
        }
    }

    fn connections(&self) -> usize {
        self.idle.len() + self.unknown.len()
    }

    /// The connection that gives way to a new connection.
    fn first(&self) -> Option<(Kind, Standing)> {
        let idle = self.idle.keys().next().map(|first| (Kind::Idle, *first));
        let first = idle.into_iter().chain(self.first_unknown());
        first.min_by_key(|(kind, standing)| (standing.is_proven, *kind))
    }

    /// The connection that gives way to a new call.
    fn first_unknown(&self) -> Option<(Kind, Standing)> {
        self.unknown.keys().next().map(|first| (Kind::Unknown, *first))
    }
}

impl Waiting {
    /// Adds a connection.
    pub(super) fn add(
        &mut self,
        network: IpAddr,
        (kind, standing): (Kind, Standing),
        connection: Weak<Connection>,
    ) {
        let of_network = self.of_network.entry(network).or_default();
        if of_network.of(kind).insert(standing, connection).is_none() {
            of_network.calls += standing.unknown_calls.0;
            self.calls += standing.unknown_calls.0;
            self.connections += 1;
        }
    }

    /// Removes a connection; a missing one is no error.
    pub(super) fn remove(
        &mut self,
        network: IpAddr,
        (kind, standing): (Kind, Standing),
    ) -> Option<Weak<Connection>> {
        let of_network = self.of_network.get_mut(&network)?;
        let removed = of_network.of(kind).remove(&standing)?;
        of_network.calls -= standing.unknown_calls.0;
        self.calls -= standing.unknown_calls.0;
        self.connections -= 1;
        if of_network.connections() == 0 {
            self.of_network.remove(&network);
        }
        Some(removed)
    }

    /// Unknown calls on all connections.
    pub(super) fn unknown_calls(&self) -> usize {
        self.calls
    }

    /// Takes out the connection that gives way to another one.
    pub(super) fn pop(&mut self) -> Option<Weak<Connection>> {
        let parts = self.of_network.iter().filter_map(|(network, of)| {
            let is_more = of.connections() * self.of_network.len() > self.connections;
            let first @ (_, standing) = of.first()?;
            let key = (is_more, !standing.is_proven, of.connections(), of.calls);
            Some(((key, Reverse(standing.number)), *network, first))
        });
        let (_, network, first) = parts.max_by_key(|(key, ..)| *key)?;
        self.remove(network, first)
    }

    /// Takes out the connection that gives way where unknown calls are too many.
    pub(super) fn pop_unknown(&mut self) -> Option<Weak<Connection>> {
        let networks = self.of_network.values().filter(|of| of.calls > 0).count();
        let parts = self.of_network.iter().filter_map(|(network, of)| {
            let is_more = of.calls * networks > self.calls;
            let first @ (_, standing) = of.first_unknown()?;
            let key = (is_more, !standing.is_proven, of.calls, of.connections());
            Some(((key, Reverse(standing.number)), *network, first))
        });
        let (_, network, first) = parts.max_by_key(|(key, ..)| *key)?;
        self.remove(network, first)
    }
}
