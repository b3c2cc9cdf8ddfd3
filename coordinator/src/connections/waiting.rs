//! The connections that can give way to others, of each network in the order in which they came.
//!
//! What gives way is that of the network that has most, so that a flood costs other networks
//! nothing; of it the one that is there longest. Nothing is closed here.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Weak;

use crate::connections::Connection;

/// Connections of one kind.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    of_network: HashMap<IpAddr, BTreeMap<u64, Weak<Connection>>>,
}

impl Waiting {
    /// Adds a connection at the end; places are given in order and never twice.
    pub(super) fn add(&mut self, network: IpAddr, place: u64, connection: Weak<Connection>) {
        self.of_network.entry(network).or_default().insert(place, connection);
    }

    /// Takes a connection out; one that is not there is no error.
    pub(super) fn remove(&mut self, network: IpAddr, place: u64) {
        let Some(waiting) = self.of_network.get_mut(&network) else { return };
        waiting.remove(&place);
        if waiting.is_empty() {
            self.of_network.remove(&network);
        }
    }

    /// Takes out the connection that is to give way.
    pub(super) fn pop(&mut self) -> Option<Weak<Connection>> {
        let most = |(_, waiting): &(&IpAddr, &BTreeMap<u64, Weak<Connection>>)| {
            (waiting.len(), Reverse(waiting.keys().next().copied()))
        };
        let (&network, waiting) = self.of_network.iter().max_by_key(most)?;
        let &place = waiting.keys().next()?;
        let connection = waiting.get(&place).cloned();
        self.remove(network, place);
        connection
    }
}
