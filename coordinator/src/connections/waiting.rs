//! The connections that can give way to others: those without a call, and those with calls of
//! unknown clients.
//!
//! The first to give way is, of the network with most unknown calls, or else with most connections,
//! the connection with most unknown calls; of equal ones, one without a known client, and then the
//! oldest. So a flood costs other networks nothing. Nothing is closed here.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Weak;

use crate::connections::Connection;

/// Where a connection stands among those of its network: the first gives way first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Standing {
    /// Calls that are not admitted.
    pub(super) unknown_calls: Reverse<usize>,
    /// Has it calls that are?
    pub(super) is_known: bool,
    /// Greater for a connection that came later.
    pub(super) number: u64,
}

/// Connections of one kind.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    of_network: HashMap<IpAddr, OfNetwork>,
}

#[derive(Debug, Default)]
struct OfNetwork {
    connections: BTreeMap<Standing, Weak<Connection>>,
    /// Unknown calls on all of them.
    calls: usize,
}

impl Waiting {
    /// Adds a connection.
    pub(super) fn add(&mut self, network: IpAddr, place: Standing, connection: Weak<Connection>) {
        let of_network = self.of_network.entry(network).or_default();
        of_network.calls += place.unknown_calls.0;
        of_network.connections.insert(place, connection);
    }

    /// Takes a connection out; one that is not there is no error.
    pub(super) fn remove(&mut self, network: IpAddr, place: Standing) -> Option<Weak<Connection>> {
        let of_network = self.of_network.get_mut(&network)?;
        let removed = of_network.connections.remove(&place)?;
        of_network.calls -= place.unknown_calls.0;
        if of_network.connections.is_empty() {
            self.of_network.remove(&network);
        }
        Some(removed)
    }

    /// Takes out the connection that is to give way.
    pub(super) fn pop(&mut self) -> Option<Weak<Connection>> {
        let most = |(_, of): &(&IpAddr, &OfNetwork)| {
            let oldest = of.connections.keys().map(|place| place.number).next();
            (of.calls, of.connections.len(), Reverse(oldest))
        };
        let (&network, of_network) = self.of_network.iter().max_by_key(most)?;
        let &place = of_network.connections.keys().next()?;
        self.remove(network, place)
    }
}
