//! The channel to the coordinator: one connection, made when it is first used and again whenever it
//! broke, with TLS where the address says `https`.
//!
//! Each connection reads the certificate from the folder, so a replaced certificate is used from
//! the next connection on.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use memtape_tls::client::ClientTls;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};

/// Time for connecting, with TLS.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection without a sign of life for the sum of both is broken.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The coordinator's address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// Not a URL.
    #[error("coordinator address {0:?} is not a URL")]
    NoUrl(String, #[source] tonic::transport::Error),
    /// A URL without a host.
    #[error("coordinator address {0:?} has no host: write https://host:port")]
    NoHost(String),
}

/// A channel to the coordinator, which connects when it is first used. Of several addresses,
/// separated by commas, the first one that answers is used: of the coordinators of a cluster one
/// listens.
/// Fails for an address that cannot be used.
pub(crate) fn channel(
    coordinators: &str,
    tls: Option<Arc<ClientTls>>,
) -> Result<Channel, AddressError> {
    let addresses = coordinators.split(',').map(Address::of).collect::<Result<Vec<_>, _>>()?;
    // The library makes no TLS of its own here, and wants to hear of none.
    let first = coordinators.split(',').next().unwrap_or_default();
    let plain = first.replacen("https://", "http://", 1);
    let endpoint = Endpoint::from_shared(plain)
        .map_err(|error| AddressError::NoUrl(first.to_string(), error))?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    let addresses: Arc<[Address]> = addresses.into();
    Ok(endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let (addresses, tls) = (addresses.clone(), tls.clone());
        async move { connect_one(&addresses, tls.as_deref()).await.map(TokioIo::new) }
    })))
}

/// Where a coordinator listens.
#[derive(Debug)]
struct Address {
    host: String,
    port: u16,
}

impl Address {
    fn of(address: &str) -> Result<Self, AddressError> {
        let no_url = |error| AddressError::NoUrl(address.to_string(), error);
        let uri: Uri = Endpoint::from_shared(address.to_string()).map_err(no_url)?.uri().clone();
        let host = uri.host().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| AddressError::NoHost(address.to_string()))?;
        // An address of IPv6 stands in brackets in a URL.
        let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
        let scheme_port = if uri.scheme_str() == Some("https") { 443 } else { 80 };
        Ok(Self { host, port: uri.port_u16().unwrap_or(scheme_port) })
    }
}

/// Bytes both ways, with TLS or without.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Connects to the first address that answers; each has its part of the time.
async fn connect_one(
    addresses: &[Address],
    tls: Option<&ClientTls>,
) -> io::Result<Box<dyn Stream>> {
    let time = CONNECT_TIMEOUT / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        match timeout(time, connect(address, tls)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(why)) => last = why,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

async fn connect(address: &Address, tls: Option<&ClientTls>) -> io::Result<Box<dyn Stream>> {
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    stream.set_nodelay(true)?;
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    let name = ServerName::try_from(address.host.clone()).map_err(io::Error::other)?;
    let mut config = tls.config();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_are_checked_before_use() {
        for (address, is_good) in [
            ("http://127.0.0.1:7771", true),
            ("http://coordinator.memtape.svc:7771", true),
            ("https://coordinator.memtape.svc:7771", true),
            ("http://", false),
            ("https://", false),
            ("not a url", false),
            ("http://one:7771,http://two:7771", true),
            ("http://one:7771,", false),
        ] {
            assert_eq!(channel(address, None).is_ok(), is_good, "{address}");
        }
    }
}
