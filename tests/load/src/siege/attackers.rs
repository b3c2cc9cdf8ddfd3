//! Those who besiege: each kind holds a number of things open, and opens again what is closed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Context;
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as Said;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;

use super::Siege;
use crate::agent::{channel, message};
use crate::coordinator::Target;
use crate::trust::Trust;

/// Users among whom the readers are shared out.
const USERS: u32 = 10;

/// Agents on whose connections the uploads are: they have certificates of their own nodes.
const HOSTILE_AGENTS: u32 = 8;

/// What a reader's socket holds: it must not read for the reader.
const READER_BUFFER_BYTES: u32 = 4 << 10;

/// Time between two bytes that a reader reads.
const READ_EVERY: Duration = Duration::from_secs(1);

/// Wait before something that was closed is opened again.
const AGAIN: Duration = Duration::from_millis(200);

/// Time until all are there.
const GATHERING_TIME_MAX: Duration = Duration::from_secs(120);

/// The users who do not read.
pub(crate) fn users() -> Vec<String> {
    (0..USERS).map(|user| format!("reader-{user}")).collect()
}

/// How many of one kind are there, and how often one was closed.
#[derive(Debug, Default)]
struct Count {
    there: AtomicU32,
    there_max: AtomicU32,
    closed: AtomicU64,
}

impl Count {
    fn enter(&self) {
        let there = self.there.fetch_add(1, Relaxed) + 1;
        self.there_max.fetch_max(there, Relaxed);
    }

    fn leave(&self) {
        self.there.fetch_sub(1, Relaxed);
        self.closed.fetch_add(1, Relaxed);
    }

    fn figures(&self) -> Value {
        json!({
            "at_once_max": self.there_max.load(Relaxed),
            "closed": self.closed.load(Relaxed),
        })
    }
}

/// All of them at work.
pub(crate) struct Attackers {
    tasks: JoinSet<()>,
    wanted: [u32; 3],
    counts: [Arc<Count>; 3],
}

impl Attackers {
    /// Starts them; the readers read a snapshot of this capture.
    pub(crate) fn start(
        target: Target,
        trust: &Trust,
        siege: &Siege,
        capture: &str,
    ) -> anyhow::Result<Self> {
        let address: SocketAddr =
            target.url.split_once("://").context("no URL")?.1.parse().context("no address")?;
        let counts: [Arc<Count>; 3] = Default::default();
        let [idle, uploads, readers] = counts.clone();
        let mut tasks = JoinSet::new();
        for _ in 0..siege.idle {
            tasks.spawn(be_idle(address, idle.clone()));
        }
        for agent in 0..HOSTILE_AGENTS {
            let (target, uploads) = (target.clone(), uploads.clone());
            tasks.spawn(upload_nothing(
                target,
                format!("hostile-{agent}"),
                siege.uploads / HOSTILE_AGENTS,
                uploads,
            ));
        }
        let request =
            format!("GET /api/v1/captures/{capture}/ranks/0 HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let request: Arc<[u8]> = request.into_bytes().into();
        for user in users() {
            let tls = Arc::new(trust.user(&user)?);
            for _ in 0..siege.readers / USERS {
                let (tls, request) = (tls.clone(), request.clone());
                tasks.spawn(read_slowly(address, tls, request, readers.clone()));
            }
        }
        let wanted = [siege.idle, siege.uploads, siege.readers];
        Ok(Self { tasks, wanted, counts })
    }

    /// Waits until all of them have been there; false where some never are, because the coordinator
    /// does not let them.
    pub(crate) async fn all_are_there(&self) -> bool {
        let begin = Instant::now();
        let is_there = |(count, wanted): (&Arc<Count>, &u32)| {
            count.there_max.load(Relaxed) >= wanted * 95 / 100
        };
        while !self.counts.iter().zip(&self.wanted).all(is_there) {
            if begin.elapsed() > GATHERING_TIME_MAX {
                return false;
            }
            sleep(AGAIN).await;
        }
        true
    }

    /// Ends them, and tells how many there were.
    pub(crate) async fn stop(mut self) -> Value {
        self.tasks.shutdown().await;
        let [idle, uploads, readers] = self.counts.map(|count| count.figures());
        json!({ "idle": idle, "uploads": uploads, "readers": readers })
    }
}

/// Holds a connection on which nothing is said.
async fn be_idle(address: SocketAddr, count: Arc<Count>) {
    loop {
        if let Ok(mut stream) = TcpStream::connect(address).await {
            count.enter();
            // Until the other end closes it.
            let _ = stream.read(&mut [0]).await;
            count.leave();
        }
        sleep(AGAIN).await;
    }
}

/// Attaches as an agent, and begins uploads that bring nothing.
async fn upload_nothing(target: Target, node: String, uploads: u32, count: Arc<Count>) {
    loop {
        // What goes wrong is tried again: the coordinator may refuse it.
        let _ = attached(&target, &node, uploads, &count).await;
        sleep(AGAIN).await;
    }
}

async fn attached(
    target: &Target,
    node: &str,
    uploads: u32,
    count: &Arc<Count>,
) -> anyhow::Result<()> {
    let channel = channel(node, target).await?;
    let (outgoing, messages) = tokio::sync::mpsc::channel(4);
    let hello = v1::Hello {
        protocol: memtape_proto::PROTOCOL,
        node: node.to_string(),
        boot_id: format!("boot-{node}"),
        version: "load".to_string(),
    };
    outgoing.try_send(message(Said::Hello(hello)))?;
    let mut client = v1::coordinator_client::CoordinatorClient::new(channel.clone());
    let mut stream = client.attach(ReceiverStream::new(messages)).await?.into_inner();
    let mut silent = JoinSet::new();
    for _ in 0..uploads {
        let (mut client, count) = (client.clone(), count.clone());
        silent.spawn(async move {
            loop {
                count.enter();
                let nothing = tokio_stream::pending::<v1::UploadChunk>();
                let _ = client.upload(nothing).await;
                count.leave();
                sleep(AGAIN).await;
            }
        });
    }
    while stream.message().await?.is_some() {}
    Ok(())
}

/// Asks for a snapshot, and reads a byte of it now and then.
async fn read_slowly(
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    request: Arc<[u8]>,
    count: Arc<Count>,
) {
    loop {
        if let Ok(Some(mut stream)) =
            timeout(Duration::from_secs(30), ask(address, &tls, &request)).await.map(Result::ok)
        {
            count.enter();
            while stream.read(&mut [0; 1]).await.is_ok_and(|bytes| bytes > 0) {
                sleep(READ_EVERY).await;
            }
            count.leave();
        }
        sleep(AGAIN).await;
    }
}

async fn ask(
    address: SocketAddr,
    tls: &Arc<ClientConfig>,
    request: &[u8],
) -> anyhow::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(READER_BUFFER_BYTES)?;
    let stream = socket.connect(address).await?;
    let name = ServerName::try_from(address.ip().to_string())?;
    let mut stream = TlsConnector::from(tls.clone()).connect(name, stream).await?;
    stream.write_all(request).await?;
    Ok(stream)
}
