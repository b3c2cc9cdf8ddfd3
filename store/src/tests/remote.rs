//! Snapshots in a real S3-compatible server (moto, from `target/s3`), and behind a door that loses
//! connections and answers with errors. Without the server the tests say so; where they must not
//! be left out (`MEMTAPE_TEST_S3`) that is a failure.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::error::{Kind, Result};
use crate::handle::Store;
use crate::tests::fixtures::{close, error_line, reopen};

/// A server of its own for one test; it goes with it.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/s3/bin/moto_server")
}

impl Server {
    /// None where it is not installed.
    async fn start() -> Option<Self> {
        if !program().is_file() {
            let is_needed = std::env::var_os("MEMTAPE_TEST_S3").is_some();
            assert!(!is_needed, "there is no S3 server: cargo xtask test installs it");
            println!("NOT TRIED: no S3 server in target/s3; cargo xtask test installs it");
            return None;
        }
        let address = free_address();
        let port = address.port().to_string();
        let child = Command::new(program())
            .args(["-H", "127.0.0.1", "-p", &port])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { child, address };
        let client = reqwest::Client::new();
        for _ in 0..600 {
            let made = client.put(format!("http://{address}/bucket")).send().await;
            if made.is_ok_and(|made| made.status().is_success()) {
                return Some(server);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the S3 server does not answer");
    }

    /// Names of all objects, asked without any of our code.
    async fn names(&self) -> Vec<String> {
        let url = format!("http://{}/bucket?list-type=2", self.address);
        let listed = reqwest::get(url).await.unwrap().text().await.unwrap();
        let keys = listed.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next());
        keys.map(str::to_string).collect()
    }
}

fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

async fn connect(store: &Store, url: &str, address: SocketAddr) -> Result<()> {
    let settings = [
        ("AWS_ENDPOINT_URL", format!("http://{address}")),
        ("AWS_ALLOW_HTTP", "true".to_string()),
        ("AWS_ACCESS_KEY_ID", "key".to_string()),
        ("AWS_SECRET_ACCESS_KEY", "secret".to_string()),
        ("AWS_REGION", "us-east-1".to_string()),
    ];
    let settings = settings.into_iter().map(|(name, value)| (name.to_string(), value));
    store.keep_snapshots_with(url, settings.collect()).await
}

fn snapshot(fill: u8, bytes: usize) -> (blake3::Hash, Bytes) {
    let snapshot: Vec<u8> = (0..bytes).map(|at| (at as u8).wrapping_mul(fill)).collect();
    (blake3::hash(&snapshot), Bytes::from(snapshot))
}

fn init() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[tokio::test]
async fn snapshots_can_be_in_an_s3_store() {
    init();
    let Some(server) = Server::start().await else { return };
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(&dir.path().join("one"));
    let ((before, old), (hash, new)) = (snapshot(3, 500), snapshot(5, 3 << 20));
    // One from the time before is still found.
    store.blobs().put(before, old.clone()).await.unwrap();
    connect(&store, "s3://bucket/some/prefix", server.address).await.unwrap();
    store.blobs().put(hash, new.clone()).await.unwrap();
    let name = hash.to_hex();
    let expected = format!("some/prefix/{}/{name}", &name[..2]);
    assert!(server.names().await.contains(&expected));
    assert_eq!(store.blobs().get(hash).await.unwrap(), new);
    assert_eq!(store.blobs().get(before).await.unwrap(), old);
    // Its writer removes what has no use.
    let (gone, unused) = snapshot(7, 100);
    store.blobs().put(gone, unused).await.unwrap();
    store.blobs().release(gone);
    while store.blobs().used_bytes() > 500 + (3 << 20) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(store.blobs().get(gone).await.unwrap_err().kind, Kind::Gone);
    // Another store must not have the prefix, or it would sweep it.
    let (other, _) = reopen(&dir.path().join("two"));
    let refused = connect(&other, "s3://bucket/some/prefix", server.address).await;
    let line = error_line(refused);
    assert!(line.contains("belongs to another coordinator") && !line.contains('\n'), "{line}");
    connect(&other, "s3://bucket/other", server.address).await.unwrap();
    assert_eq!(other.blobs().sweep().await.removed, 0);
    close(store);
    // The next process knows the first one only; the other is swept.
    let (store, _) = reopen(&dir.path().join("one"));
    connect(&store, "s3://bucket/some/prefix/", server.address).await.unwrap();
    assert!(store.blobs().retain(before, 500));
    let swept = store.blobs().sweep().await;
    assert_eq!((swept.kept, swept.removed), (1, 1));
    for _ in 0..500 {
        if !server.names().await.contains(&expected) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it was not removed");
}

#[tokio::test]
async fn an_unusable_store_of_snapshots_is_reported_in_one_line() {
    init();
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(dir.path());
    let refused = connect(&store, "s3://", free_address()).await;
    assert!(error_line(refused).contains("write s3://BUCKET/PREFIX"));
    let Some(server) = Server::start().await else { return };
    let line = error_line(connect(&store, "s3://nobucket/p", server.address).await);
    assert!(line.contains("check bucket, endpoint and credentials"), "{line}");
    assert!(!line.contains('\n'), "{line}");
}

/// What a door does with one connection.
#[derive(Clone, Copy, Debug)]
enum Behaviour {
    /// Closes it at once.
    Drop,
    /// Answers that the server is busy.
    Busy,
    /// Closes it after this number of bytes of the request.
    Cut(u64),
    /// Lets the request through, and loses the answer.
    Swallow,
}

/// Stands before a server: does one of these for each connection, then lets all through.
#[derive(Clone)]
struct Door {
    address: SocketAddr,
    behaviours: Arc<Mutex<VecDeque<Behaviour>>>,
    hang_up: Arc<Notify>,
}

impl Door {
    async fn open(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let door = Self { address, behaviours: Arc::default(), hang_up: Arc::default() };
        let opened = door.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let behaviour = opened.behaviours.lock().unwrap().pop_front();
                let hang_up = opened.hang_up.clone();
                tokio::spawn(async move {
                    let hung_up = hang_up.notified();
                    tokio::select! {
                        _ = pass(client, server, behaviour) => {}
                        () = hung_up => {}
                    }
                });
            }
        });
        door
    }

    /// Closes what is open, and does these to the next connections.
    async fn misbehave(&self, script: &[Behaviour]) {
        self.behaviours.lock().unwrap().extend(script);
        self.hang_up.notify_waiters();
        // Until the client has noticed.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn pass(
    mut client: TcpStream,
    server: SocketAddr,
    behaviour: Option<Behaviour>,
) -> io::Result<()> {
    match behaviour {
        None => {
            let mut upstream = TcpStream::connect(server).await?;
            copy_bidirectional(&mut client, &mut upstream).await?;
        }
        Some(Behaviour::Drop) => {}
        Some(Behaviour::Busy) => {
            client.read_exact(&mut [0; 1]).await?;
            let busy = b"HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            client.write_all(busy).await?;
            // The rest of the request is read, or the answer could be lost with it.
            tokio::io::copy(&mut client, &mut tokio::io::sink()).await?;
        }
        Some(Behaviour::Cut(bytes)) => {
            let mut upstream = TcpStream::connect(server).await?;
            let (mut from, _to) = client.split();
            tokio::io::copy(&mut (&mut from).take(bytes), &mut upstream).await?;
        }
        Some(Behaviour::Swallow) => {
            let mut upstream = TcpStream::connect(server).await?;
            let (mut from, _to) = client.split();
            let (mut answer, mut ask) = upstream.split();
            let mut first = [0; 1];
            tokio::select! {
                // The request is whole when the server answers.
                _ = answer.read(&mut first) => {}
                copied = tokio::io::copy(&mut from, &mut ask) => { copied?; }
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn uploads_survive_a_flaky_server_and_are_never_acknowledged_too_early() {
    use Behaviour::{Busy, Cut, Drop, Swallow};
    init();
    let Some(server) = Server::start().await else { return };
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(dir.path());
    let door = Door::open(server.address).await;
    connect(&store, "s3://bucket/flaky", door.address).await.unwrap();
    let scripts: [&[Behaviour]; 5] = [
        &[Busy, Busy],
        &[Drop, Busy, Drop],
        &[Cut(200_000), Cut(50)],
        &[Swallow],
        &[Swallow, Cut(100_000), Drop, Busy],
    ];
    for (number, script) in scripts.into_iter().enumerate() {
        let (hash, bytes) = snapshot(11 + 2 * number as u8, 1 << 20);
        door.misbehave(script).await;
        store.blobs().put(hash, bytes.clone()).await.unwrap();
        assert!(door.behaviours.lock().unwrap().is_empty(), "{script:?} was not tried");
        assert_eq!(store.blobs().get(hash).await.unwrap(), bytes, "{script:?}");
    }
    // More failures than retries: the upload fails, and nothing is stored.
    let (hash, bytes) = snapshot(99, 1000);
    door.misbehave(&[Busy; 20]).await;
    assert!(store.blobs().put(hash, bytes.clone()).await.is_err());
    let name = hash.to_hex().to_string();
    assert!(!server.names().await.iter().any(|known| known.ends_with(&name)));
    door.behaviours.lock().unwrap().clear();
    store.blobs().put(hash, bytes.clone()).await.unwrap();
    assert_eq!(store.blobs().get(hash).await.unwrap(), bytes);
}

#[tokio::test]
async fn an_unreachable_server_confirms_no_upload() {
    init();
    let Some(server) = Server::start().await else { return };
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(dir.path());
    connect(&store, "s3://bucket/gone", server.address).await.unwrap();
    let (hash, bytes) = snapshot(13, 1000);
    drop(server);
    let why = store.blobs().put(hash, bytes).await.unwrap_err().to_string();
    assert!(!why.contains('\n'), "{why}");
    assert!(store.blobs().get(hash).await.is_err());
}
