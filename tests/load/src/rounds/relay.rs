//! The network between agents and a coordinator, which can be cut.
//!
//! While it is cut, no byte passes and no new connection is made, and none is closed, as where a
//! network drops packets.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Bytes that one direction of a connection has at a time.
const BUFFER_BYTES: usize = 16 << 10;

/// Relays of all coordinators; they end with it.
#[derive(Debug)]
pub(super) struct Relays {
    is_cut: watch::Sender<bool>,
    relays: JoinSet<()>,
}

impl Relays {
    pub(super) fn new() -> Self {
        Self { is_cut: watch::Sender::new(false), relays: JoinSet::new() }
    }

    /// Relays to an address, from the one that is returned.
    pub(super) async fn add(&mut self, to: String) -> io::Result<SocketAddr> {
        let (listener, is_cut) = (TcpListener::bind("127.0.0.1:0").await?, self.is_cut.subscribe());
        let from = listener.local_addr()?;
        self.relays.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((agent, _)) = listener.accept().await {
                let (to, is_cut) = (to.clone(), is_cut.clone());
                connections.spawn(async move { connect(agent, &to, is_cut).await });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(from)
    }

    /// Cuts all connections, or mends them.
    pub(super) fn set_cut(&self, is_cut: bool) {
        self.is_cut.send_replace(is_cut);
    }
}

async fn connect(agent: TcpStream, to: &str, mut is_cut: watch::Receiver<bool>) -> io::Result<()> {
    passes(&mut is_cut).await;
    let coordinator = TcpStream::connect(to).await?;
    let (from_agent, to_agent) = agent.into_split();
    let (from_coordinator, to_coordinator) = coordinator.into_split();
    tokio::select! {
        ended = copy(from_agent, to_coordinator, is_cut.clone()) => ended,
        ended = copy(from_coordinator, to_agent, is_cut) => ended,
    }
}

/// Copies one direction until it ends.
async fn copy(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut is_cut: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let bytes = from.read(&mut buffer).await?;
        passes(&mut is_cut).await;
        match buffer.get(..bytes) {
            Some(read) if bytes > 0 => to.write_all(read).await?,
            _ => return Ok(()),
        }
    }
}

/// Waits until it is not cut.
async fn passes(is_cut: &mut watch::Receiver<bool>) {
    // The other end lives as long as the relays.
    let _ = is_cut.wait_for(|is_cut| !is_cut).await;
}
