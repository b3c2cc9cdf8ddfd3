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
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
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

/// A channel to the coordinator, which connects when it is first used.
/// Fails for an address that cannot be used.
pub(crate) fn channel(
    coordinator: &str,
    tls: Option<Arc<ClientTls>>,
) -> Result<Channel, AddressError> {
    let address = || coordinator.to_string();
    let no_url = |error| AddressError::NoUrl(address(), error);
    let uri: Uri = Endpoint::from_shared(address()).map_err(no_url)?.uri().clone();
    let host = uri.host().filter(|host| !host.is_empty());
    let host = host.ok_or_else(|| AddressError::NoHost(address()))?.to_string();
    // The library makes no TLS of its own here, and wants to hear of none.
    let plain = coordinator.replacen("https://", "http://", 1);
    let endpoint = Endpoint::from_shared(plain)
        .map_err(no_url)?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    let Some(tls) = tls else { return Ok(endpoint.connect_lazy()) };
    let port = uri.port_u16().unwrap_or(443);
    Ok(endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let (host, tls) = (host.clone(), tls.clone());
        async move { connect(&host, port, &tls).await.map(TokioIo::new) }
    })))
}

async fn connect(host: &str, port: u16, tls: &ClientTls) -> io::Result<TlsStream<TcpStream>> {
    // An address of IPv6 stands in brackets in a URL.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(host.to_string()).map_err(io::Error::other)?;
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let mut config = tls.config();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
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
        ] {
            assert_eq!(channel(address, None).is_ok(), is_good, "{address}");
        }
    }
}
