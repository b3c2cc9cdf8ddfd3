//! The other end of a connection: its address, and the names that its certificate proved.

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::time::Duration;

use memtape_tls::certificate::named;
use rustls::pki_types::CertificateDer;

/// The other end of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    proven: OnceLock<Proven>,
}

/// Identity that a certificate proved.
#[derive(Debug)]
struct Proven {
    names: Vec<String>,
    chain: Vec<CertificateDer<'static>>,
    ends_unix: Duration,
}

impl Peer {
    /// A peer without a proven identity.
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, proven: OnceLock::new() }
    }

    /// Notes that the peer has shown this certificate with its intermediates, and holds its key.
    pub(crate) fn prove(&self, chain: Vec<CertificateDer<'static>>) {
        let Some(named) = chain.first().map(named) else { return };
        let ends_unix = Duration::from_secs(u64::try_from(named.ends_unix_seconds).unwrap_or(0));
        // A handshake ends once.
        let _ = self.proven.set(Proven { names: named.names, chain, ends_unix });
    }

    /// The names in its certificate; empty without one.
    pub(crate) fn names(&self) -> &[String] {
        self.proven.get().map_or(&[], |proven| &proven.names)
    }

    /// Certificate of the peer and its intermediates; empty without one.
    pub(crate) fn chain(&self) -> &[CertificateDer<'static>] {
        self.proven.get().map_or(&[], |proven| &proven.chain)
    }

    /// The end of its certificate's time, since the Unix epoch.
    pub(crate) fn ends_unix(&self) -> Option<Duration> {
        self.proven.get().map(|proven| proven.ends_unix)
    }

    /// Network of the peer: its IPv4 address, or the first 64 bits of its IPv6 address.
    pub(crate) fn network(&self) -> IpAddr {
        match self.address.ip().to_canonical() {
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
            address => address,
        }
    }
}
