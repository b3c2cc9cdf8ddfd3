//! Attacks of clients without an agent's certificate, byte by byte.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::attacker::Attacker;

/// The beginning of a ClientHello of 512 bytes.
pub(super) const HALF_HANDSHAKE: &[u8] = &[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3, 7, 7, 7, 7, 7, 7, 7];

/// What the socket of a client holds: it must not read for the client.
const BUFFER_BYTES: u32 = 4 << 10;

/// Time between two bytes that a slow reader reads.
const READ_EVERY: Duration = Duration::from_secs(1);

/// Sends these bytes without TLS, and holds the connection until the other end closes it.
pub(super) async fn begin(attacker: &Attacker, bytes: &'static [u8]) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(address(attacker)?).await?;
    stream.write_all(bytes).await?;
    let _there = attacker.count.enter();
    let _closed = stream.read(&mut [0]).await?;
    Ok(())
}

/// Sends a header that has no end.
pub(super) async fn half_header(attacker: &Attacker) -> anyhow::Result<()> {
    let mut stream = secure(attacker).await?;
    stream.write_all(b"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\n").await?;
    let _there = attacker.count.enter();
    let _closed = stream.read(&mut [0]).await?;
    Ok(())
}

/// Asks for the jobs again and again. The token is wrong, and counts where there is no certificate.
pub(super) async fn ask(attacker: &Attacker) -> anyhow::Result<()> {
    let mut stream = secure(attacker).await?;
    let _there = attacker.count.enter();
    let token = match attacker.tls.client_auth_cert_resolver.has_certs() {
        true => String::new(),
        false => format!("Authorization: Bearer mtk_{}_wrong\r\n", attacker.index),
    };
    let request = format!("GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\n{token}\r\n");
    let mut answer = vec![0; 64 << 10];
    loop {
        stream.write_all(request.as_bytes()).await?;
        if stream.read(&mut answer).await? == 0 {
            return Ok(());
        }
        attacker.count.answer();
    }
}

/// Asks for a snapshot, and reads a byte of it now and then.
pub(super) async fn read_slowly(attacker: &Attacker) -> anyhow::Result<()> {
    let mut stream = secure(attacker).await?;
    let path = format!("/api/v1/captures/{}/ranks/0", attacker.capture);
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let _there = attacker.count.enter();
    while stream.read(&mut [0; 1]).await? > 0 {
        sleep(READ_EVERY).await;
    }
    Ok(())
}

/// A connection with the TLS of the attacker.
pub(super) async fn secure(attacker: &Attacker) -> anyhow::Result<TlsStream<TcpStream>> {
    let address = address(attacker)?;
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(BUFFER_BYTES)?;
    let stream = socket.connect(address).await?;
    let name = ServerName::try_from(address.ip().to_string())?;
    Ok(TlsConnector::from(attacker.tls.clone()).connect(name, stream).await?)
}

fn address(attacker: &Attacker) -> anyhow::Result<SocketAddr> {
    Ok(attacker.target.url.split_once("://").context("no URL")?.1.parse()?)
}
