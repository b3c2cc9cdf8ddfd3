//! The other end of a connection: its address, and the names that its certificate proved.

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::time::Duration;

use memtape_tls::certificate::{Named, named};
use rustls::pki_types::CertificateDer;

/// The other end of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// What its certificate proved, and the certificate with its intermediates.
    proven: OnceLock<(Named, Vec<CertificateDer<'static>>)>,
}

impl Peer {
    /// A peer without a proven identity.
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, proven: OnceLock::new() }
    }

    /// Notes that the peer has shown this certificate with its intermediates, and holds its key.
    pub(crate) fn prove(&self, chain: Vec<CertificateDer<'static>>) {
        let Some(named) = chain.first().map(named) else { return };
        // A handshake ends once.
        let _ = self.proven.set((named, chain));
    }

    /// The names in its certificate; empty without one.
    pub(crate) fn names(&self) -> &[String] {
        self.proven.get().map_or(&[], |(named, _)| &named.names)
    }

    /// Certificate of the peer and its intermediates; empty without one.
    pub(crate) fn chain(&self) -> &[CertificateDer<'static>] {
        self.proven.get().map_or(&[], |(_, chain)| chain)
    }

    /// The end of its certificate's time, since the Unix epoch.
    pub(crate) fn ends_unix(&self) -> Option<Duration> {
        self.proven.get().map(|(named, _)| named.ends_unix)
    }

    /// Network of the peer: its IPv4 address, or the first 64 bits of its IPv6 address.
    pub(crate) fn network(&self) -> IpAddr {
        match self.address.ip().to_canonical() {
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
            address => address,
        }
    }
}
