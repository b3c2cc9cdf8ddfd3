//! The channel to the coordinator: one connection, made when it is first used and again whenever it
//! broke, with TLS where the address says `https`.
//!
//! Each connection reads the certificate from the folder, so a replaced certificate is used from
//! the next connection on. Of several addresses each connection tries the one after the last one
//! that answered first: a coordinator that is stopped, or cut off from its bucket, answers still.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};
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

/// The same where there are several coordinators: another one takes over in this time.
const PING_INTERVAL_OF_SEVERAL: Duration = Duration::from_secs(2);
const PING_TIMEOUT_OF_SEVERAL: Duration = Duration::from_secs(5);

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

/// The connections of a channel. Clones are handles of the same.
#[derive(Clone, Debug)]
pub(crate) struct Connections {
    addresses: Arc<[Address]>,
    used: Arc<Mutex<Used>>,
}

/// The newest connection.
#[derive(Debug, Default)]
struct Used {
    /// The address to try first for the next one.
    next: usize,
    /// A handle of its socket.
    socket: Option<std::net::TcpStream>,
}

/// A channel to the coordinator, which connects when it is first used. Of several addresses,
/// separated by commas, one that answers is used: some coordinators of a cluster do not listen.
/// Where another one takes over, a connection that is gone is found sooner.
/// Fails for an address that cannot be used.
pub(crate) fn channel(
    coordinators: &str,
    tls: Option<Arc<ClientTls>>,
    is_replaced: bool,
) -> Result<(Channel, Connections), AddressError> {
    let addresses = coordinators.split(',').map(Address::of).collect::<Result<Vec<_>, _>>()?;
    let (interval, patience) = match is_replaced {
        false => (PING_INTERVAL, PING_TIMEOUT),
        true => (PING_INTERVAL_OF_SEVERAL, PING_TIMEOUT_OF_SEVERAL),
    };
    // The library makes no TLS of its own here, and wants to hear of none.
    let first = coordinators.split(',').next().unwrap_or_default();
    let plain = first.replacen("https://", "http://", 1);
    let endpoint = Endpoint::from_shared(plain)
        .map_err(|error| AddressError::NoUrl(first.to_string(), error))?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(interval)
        .keep_alive_timeout(patience)
        .keep_alive_while_idle(true);
    let all = Connections { addresses: addresses.into(), used: Arc::default() };
    let connecting = all.clone();
    let channel = endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let (all, tls) = (connecting.clone(), tls.clone());
        async move { all.connect(tls.as_deref()).await.map(TokioIo::new) }
    }));
    Ok((channel, all))
}

impl Connections {
    /// Ends the connection, unless there is one address only: the next one goes to another.
    pub(crate) fn leave(&self) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(socket) = used.socket.take()
            && self.addresses.len() > 1
        {
            // A connection that has ended is left already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Connects to the next address that answers; each has its part of the time.
    async fn connect(&self, tls: Option<&ClientTls>) -> io::Result<Box<dyn Stream>> {
        let count = self.addresses.len();
        let time = CONNECT_TIMEOUT / u32::try_from(count).unwrap_or(u32::MAX).max(1);
        let next = self.used.lock().unwrap_or_else(PoisonError::into_inner).next;
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for at in next..next + count {
            let Some(address) = self.addresses.get(at % count) else { continue };
            match timeout(time, connect(address, tls)).await {
                Ok(Ok((stream, socket))) => {
                    let used = Used { next: (at + 1) % count, socket: Some(socket) };
                    *self.used.lock().unwrap_or_else(PoisonError::into_inner) = used;
                    return Ok(stream);
                }
                Ok(Err(why)) => last = why,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(last)
    }
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

/// Connects to an address; gives the connection, and a handle of its socket.
async fn connect(
    address: &Address,
    tls: Option<&ClientTls>,
) -> io::Result<(Box<dyn Stream>, std::net::TcpStream)> {
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    stream.set_nodelay(true)?;
    let socket = stream.as_fd().try_clone_to_owned()?.into();
    let Some(tls) = tls else { return Ok((Box::new(stream), socket)) };
    let name = ServerName::try_from(address.host.clone()).map_err(io::Error::other)?;
    let mut config = tls.config();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    Ok((Box::new(stream), socket))
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
            assert_eq!(channel(address, None, false).is_ok(), is_good, "{address}");
        }
    }

    #[tokio::test]
    async fn the_next_connection_goes_to_the_next_coordinator_that_listens() {
        let mut listeners = Vec::new();
        for _ in 0..3 {
            listeners.push(tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port"));
        }
        let address = |listener: &tokio::net::TcpListener| {
            format!("http://{}", listener.local_addr().expect("an address"))
        };
        let addresses = listeners.iter().map(address).collect::<Vec<_>>().join(",");
        let (_, all) = channel(&addresses, None, true).expect("addresses");
        // The second one waits: it does not listen.
        drop(listeners.remove(1));
        for expected in [0, 1, 0] {
            let mut stream = all.connect(None).await.expect("a connection");
            let (_accepted, _) = listeners[expected].accept().await.expect("a connection");
            all.leave();
            let left = tokio::io::AsyncReadExt::read(&mut stream, &mut [0]).await;
            assert_eq!(left.expect("an end"), 0);
        }
    }
}
