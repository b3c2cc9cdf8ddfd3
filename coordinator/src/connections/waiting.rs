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

/// Order of a connection among those of its network: the first gives way first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Standing {
    /// True if the connection showed an accepted certificate.
    pub(super) is_proven: bool,
    /// True if the connection has calls that are not admitted.
    pub(super) is_calling: bool,
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
    networks: HashMap<IpAddr, OfNetwork>,
    /// Unknown calls on all of them.
    pub(super) unknown_calls: usize,
    /// Number of the last connection.
    pub(super) last: u64,
}

#[derive(Debug, Default)]
struct OfNetwork {
    all: BTreeMap<Standing, Weak<Connection>>,
    /// Unknown calls on all of them.
    calls: usize,
}

impl Waiting {
    /// Adds a connection.
    pub(super) fn add(&mut self, network: IpAddr, of: Standing, connection: Weak<Connection>) {
        let of_network = self.networks.entry(network).or_default();
        of_network.all.insert(of, connection);
        of_network.calls += of.unknown_calls.0;
        self.unknown_calls += of.unknown_calls.0;
    }

    /// Removes a connection; a missing one is no error.
    pub(super) fn remove(&mut self, network: IpAddr, of: Standing) -> Option<Weak<Connection>> {
        let of_network = self.networks.get_mut(&network)?;
        let removed = of_network.all.remove(&of)?;
        of_network.calls -= of.unknown_calls.0;
        self.unknown_calls -= of.unknown_calls.0;
        if of_network.all.is_empty() {
            self.networks.remove(&network);
        }
        Some(removed)
    }

    /// Takes out the connection that gives way to another one; where unknown calls are too many,
    /// one that has some.
    pub(super) fn pop(&mut self, is_calling: bool) -> Option<Weak<Connection>> {
        let size = |of: &OfNetwork| match is_calling {
            true => (of.calls, of.all.len()),
            false => (of.all.len(), of.calls),
        };
        let sizes = || self.networks.values().map(|of| size(of).0).filter(|size| *size > 0);
        let (networks, all) = (sizes().count(), sizes().sum::<usize>());
        let parts = self.networks.iter().filter_map(|(network, of)| {
            let first = *of.all.keys().find(|of| of.is_calling || !is_calling)?;
            let is_more = size(of).0 * networks > all;
            let key = (is_more, !first.is_proven, size(of), Reverse(first.number));
            Some((key, *network, first))
        });
        let (_, network, first) = parts.max_by_key(|(key, ..)| *key)?;
        self.remove(network, first)
    }
}
