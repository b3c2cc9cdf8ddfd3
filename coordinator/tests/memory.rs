//! The memory of a coordinator, whatever comes over the network: each attack is made on one that
//! runs in this process, or in one of its own with little memory, and the kernel says what the
//! process took at most.
//!
//! One test, because the peak is that of the whole process.

#[allow(dead_code)]
#[path = "fake/mod.rs"]
mod fake;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use memtape_coordinator::Config;
use memtape_core::limits::{CALLS_PER_CONNECTION_MAX, CHUNK_BYTES_MAX, SNAPSHOT_BYTES_MAX};
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as FromAgent;
use memtape_tls::authority::{Party, issue, make};
use memtape_tls::client::ClientTls;
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::http;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::fake::{Agent, Job, MIB, PATIENCE, Running, answer, config, message, start};

const ATTACH: &str = "/memtape.v1.Coordinator/Attach";

/// A job of one rank.
const JOB: Job = Job::new("large", 1);

/// The largest message of an agent.
const MESSAGE_BYTES: usize = 4 * CHUNK_BYTES_MAX;

/// Memory of a coordinator in a process of its own, and the variable that names its folder.
const BYTES_MAX: u64 = 256 * MIB;
const FOLDER: &str = "MEMTAPE_TEST_SERVED_FOLDER";

const ROLES: &str = "[[grant]]\nrole = \"agent\"\nnames = [\"spiffe://memtape/agent/{node}\"]\n";

/// Connections of a client without a certificate.
const FLOOD: usize = 4000;

/// Bytes of the snapshot that no client reads.
const LARGE_BYTES: usize = 110 << 20;

/// A line of a process's `/proc/PID/status`, in bytes.
fn status(process: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Starts a measurement of the peak; the memory now.
fn begin() -> u64 {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    status("self", "VmRSS")
}

/// The peak since `begin`, above what was there; printed.
fn peak(what: &str, before: u64) -> u64 {
    let peak = status("self", "VmHWM").saturating_sub(before);
    println!("{what}: {} KiB", peak >> 10);
    peak
}

/// A metric without labels, or with these.
async fn metric(running: &Running, name: &str) -> f64 {
    let text = reqwest::get(running.url("/metrics")).await.unwrap().text().await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
}

async fn wait_for(running: &Running, name: &str, expected: impl Fn(f64) -> bool) {
    let begin = Instant::now();
    loop {
        let found = metric(running, name).await;
        if expected(found) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{name} is {found}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// A capture with this as the snapshot of its rank; its id.
async fn capture(running: &Running, agent: &mut Agent, snapshot: &[u8]) -> String {
    let (status, _) = running.post("/api/v1/jobs/large/captures", "").await;
    assert_eq!(status, 202);
    let asked = agent.asked().await;
    agent.say(FromAgent::CaptureAnswer(answer(&JOB, 0, &asked, snapshot))).await;
    let receipt = agent.upload(&asked.capture_id, &JOB.tape(0), snapshot).await.unwrap();
    assert_eq!(receipt, blake3::hash(snapshot).as_bytes());
    asked.capture_id
}

/// Noise, which cannot be compressed, as one zstd frame.
fn noise() -> Vec<u8> {
    let mut state = 7_u64;
    let words = (0..LARGE_BYTES / 8).flat_map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state ^ state >> 29).to_le_bytes()
    });
    zstd::bulk::compress(&words.collect::<Vec<u8>>(), 1).unwrap()
}

/// Asks for a path, and reads the header of the answer alone.
async fn ask(running: &Running, path: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut header = Vec::new();
    while !header.ends_with(b"\r\n\r\n") {
        header.push(stream.read_u8().await.unwrap());
    }
    (stream, String::from_utf8(header).unwrap())
}

/// A connection of HTTP/2 whose client reads no answer: it gives no window for one.
async fn connect(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> SendRequest<Bytes> {
    let (client, connection) =
        h2::client::Builder::new().initial_window_size(0).handshake(stream).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Begins a call, and sends these bytes of it; none where the coordinator has closed the
/// connection.
async fn call(client: &SendRequest<Bytes>, path: &str, bytes: &[Bytes]) -> Option<Call> {
    let uri = format!("http://localhost{path}");
    let request = http::Request::post(uri).header("content-type", "application/grpc").body(());
    let (answer, mut stream) =
        client.clone().ready().await.ok()?.send_request(request.unwrap(), false).ok()?;
    bytes.iter().try_for_each(|bytes| stream.send_data(bytes.clone(), false)).ok()?;
    Some((answer, stream))
}

type Call = (ResponseFuture, SendStream<Bytes>);

/// The beginning of a message of gRPC of this length.
fn frame(message: &[u8], bytes: usize) -> Bytes {
    let length = u32::try_from(bytes).unwrap().to_be_bytes();
    [&[0], &length[..], message].concat().into()
}

/// The first message of a node's agent.
fn hello(node: &str) -> Bytes {
    let (protocol, node) = (memtape_proto::PROTOCOL, node.to_string());
    let hello = v1::Hello { protocol, node, boot_id: "boot-9".to_string(), ..Default::default() };
    let hello = message(FromAgent::Hello(hello)).encode_to_vec();
    frame(&hello, hello.len())
}

/// A message with this as its only field.
fn inside(number: u32, inner: &[u8]) -> Vec<u8> {
    let mut wire = Vec::new();
    encode_key(number, WireType::LengthDelimited, &mut wire);
    encode_varint(inner.len() as u64, &mut wire);
    wire.extend(inner);
    wire
}

async fn a_report_of_4_mib_of_empty_ranks(running: &Running) {
    // 3 is `ranks` in `Report`, and `report` in `AgentMessage`.
    let report = inside(3, &[3 << 3 | 2, 0].repeat((2 << 20) - 8));
    let before = begin();
    let client = connect(TcpStream::connect(running.address).await.unwrap()).await;
    let messages = [hello("enemy"), frame(&report, report.len())];
    let _call = call(&client, ATTACH, &messages).await.unwrap();
    let name = "memtape_losses_total{reason=\"bad_message\"}";
    wait_for(running, name, |lost| lost == 1.0).await;
    let peak = peak("a report of 4 MiB of empty ranks", before);
    assert!(peak < 32 * MIB, "{peak}");
}

async fn a_snapshot_of_12_kb_that_decodes_to_gigabytes(running: &Running, agent: &mut Agent) {
    let hostile = zstd::bulk::compress(&[4 << 3 | 2, 0].repeat(SNAPSHOT_BYTES_MAX / 2), 3).unwrap();
    let id = capture(running, agent, &hostile).await;
    let before = begin();
    let path = format!("/api/v1/captures/{id}/ranks/0/pickle");
    let (status, answer) = running.get(&path).await;
    let peak = peak(&format!("a pickle of a snapshot of {} bytes", hostile.len()), before);
    assert_eq!(status, 422, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("memory"), "{answer}");
    assert!(peak < SNAPSHOT_BYTES_MAX as u64 + 32 * MIB, "{peak}");
    assert!(metric(running, "memtape_losses_total{reason=\"bad_snapshot\"}").await >= 1.0);
}

async fn downloads_that_are_not_read(
    running: &Running,
    agent: &mut Agent,
    folder: &std::path::Path,
) {
    let snapshot = noise();
    let (hash, bytes) = (blake3::hash(&snapshot), snapshot.len());
    let id = capture(running, agent, &snapshot).await;
    drop(snapshot);
    let path = format!("/api/v1/captures/{id}/ranks/0");
    let before = begin();
    let mut unread = Vec::new();
    for _ in 0..8 {
        let (stream, header) = ask(running, &path).await;
        assert!(header.starts_with("HTTP/1.1 200"), "{header}");
        assert!(header.to_lowercase().contains(&format!("content-length: {bytes}")), "{header}");
        unread.push(stream);
    }
    // One more has to wait for its place, and is answered when another one leaves.
    let mut ninth = TcpStream::connect(running.address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    ninth.write_all(request.as_bytes()).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(200), ninth.read_u8()).await.is_err());
    let peak = peak(&format!("8 downloads of {bytes} bytes that are not read"), before);
    assert!(peak < 32 * MIB, "{peak}");
    // One reads on: it gets the whole. A download that loses its reader ends.
    let mut whole = Vec::with_capacity(bytes);
    unread.pop().unwrap().read_to_end(&mut whole).await.unwrap();
    assert_eq!(blake3::hash(&whole), hash);
    ninth.read_u8().await.expect("the place of the one that ended");
    drop((unread, ninth));
    drop(whole);
    // The metrics are a large answer, too: without ranks that report, of 8 KiB.
    wait_for(running, "memtape_answer_bytes", |bytes| bytes < MIB as f64).await;

    // A stored snapshot that was damaged is never sent to its end.
    let name = hash.to_hex();
    let file = folder.join("bodies").join(&name[..2]).join(name.as_str());
    let mut stored = std::fs::read(&file).unwrap();
    *stored.last_mut().unwrap() ^= 1;
    std::fs::write(&file, stored).unwrap();
    let damaged = reqwest::get(running.url(&path)).await.unwrap();
    assert_eq!(damaged.status(), 200);
    assert!(damaged.bytes().await.is_err(), "a damaged snapshot was sent as a whole one");
}

/// Serves in a process of its own for the test below, which names the folder.
#[tokio::test(flavor = "multi_thread")]
async fn serve_another_process() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let folder = Path::new(&folder);
    let config = Config {
        memory_bytes_max: Some(BYTES_MAX),
        tls_dir: Some(folder.join("coordinator")),
        access_file: Some(folder.join("access.toml")),
        ..config(&folder.join("data"))
    };
    let on_bound = |address| println!("\nat {address}");
    memtape_coordinator::run(config, std::future::pending(), on_bound).await.unwrap();
}

/// A coordinator in a process of its own, and the folders of certificates.
struct Served {
    folder: tempfile::TempDir,
    process: Child,
    address: SocketAddr,
}

impl Served {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = folder.path().join("authority");
        make(&authority).unwrap();
        let hosts = vec!["127.0.0.1".to_string()];
        let agents = ["honest", "evil"].map(|node| Party::Agent(node.to_string()));
        let names = ["coordinator", "honest", "evil"];
        for (party, name) in [Party::Coordinator(hosts)].iter().chain(&agents).zip(names) {
            issue(&authority, &folder.path().join(name), party, 30).unwrap();
        }
        let unproven = folder.path().join("unproven");
        std::fs::create_dir(&unproven).unwrap();
        std::fs::copy(folder.path().join("evil/ca.crt"), unproven.join("ca.crt")).unwrap();
        std::fs::write(folder.path().join("access.toml"), ROLES).unwrap();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["serve_another_process", "--exact", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let address = loop {
            let line = lines.next_line().await.unwrap().expect("an address");
            if let Some(address) = line.strip_prefix("at ") {
                break address.parse().unwrap();
            }
        };
        Self { folder, process, address }
    }

    /// The most memory that the process took.
    fn peak(&self) -> u64 {
        status(&self.process.id().unwrap().to_string(), "VmHWM")
    }

    async fn agent(&self, node: &str) -> Agent {
        let read = |name: &str| std::fs::read(self.folder.path().join(node).join(name)).unwrap();
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(read("ca.crt")))
            .identity(Identity::from_pem(read("tls.crt"), read("tls.key")));
        let endpoint = Endpoint::from_shared(format!("https://{}", self.address)).unwrap();
        let channel = endpoint.tls_config(tls).unwrap().connect().await.unwrap();
        Agent::attach_on(channel, node, "boot-1").await.unwrap()
    }

    /// TLS with the certificate in this folder, if there is one.
    fn tls(&self, name: &str, protocol: &str) -> TlsConnector {
        let mut config = ClientTls::open(&self.folder.path().join(name)).unwrap().config();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        Arc::new(config).into()
    }
}

async fn connect_tls(address: SocketAddr, tls: &TlsConnector) -> Option<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await.ok()?;
    tls.connect(address.ip().into(), stream).await.ok()
}

/// Opens all calls that a connection may have: streams of one node that replace each other, of
/// nodes of their own, and of no node; each sends all of the largest message but its end, and reads
/// nothing.
async fn do_everything_wrong(address: SocketAddr, tls: TlsConnector, connection: usize) {
    let part = Bytes::from(vec![0; MESSAGE_BYTES - 1]);
    let client = connect(connect_tls(address, &tls).await.unwrap()).await;
    let mut calls = Vec::new();
    for number in 0..CALLS_PER_CONNECTION_MAX {
        let (begin, part) = (frame(&[], MESSAGE_BYTES), part.clone());
        let bytes = match number % 8 {
            0 => vec![begin, part],
            1 => vec![hello(&format!("evil-{connection}-{number}")), begin, part],
            _ => vec![hello("evil"), begin, part],
        };
        match call(&client, ATTACH, &bytes).await {
            Some(call) => calls.push(call),
            None => break,
        }
    }
    std::future::pending::<()>().await;
}

/// Begins a handshake as large as can be, a header of HTTP/1, a frame of HTTP/2, or nothing, with
/// half a record of TLS where there is TLS, and waits.
async fn open_halfway(address: SocketAddr, [http1, http2]: [TlsConnector; 2], number: usize) {
    let record = |kind: u8, bytes: &[u8]| {
        let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
        [&[kind, 3, 3, length[0], length[1]], bytes].concat()
    };
    let (tls, begun) = match number % 8 {
        0 => (&http1, [b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", &[b'x'; 16_000][..]].concat()),
        1 => {
            let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
            (&http2, [&preface[..], &[0, 64, 0, 0, 0, 0, 0, 0, 1], &[0; 16_000]].concat())
        }
        of => {
            let Ok(mut stream) = TcpStream::connect(address).await else { return };
            // A message of 65,524 bytes, but the last 378.
            let begin = [&[1, 0, 255, 240, 3, 3][..], &[0; 16_000]].concat();
            let rest = record(22, &[0; 16_380]).repeat(3);
            let hello = [record(22, &begin), rest].concat();
            let begun = if of == 2 { &[] } else { hello.as_slice() };
            let _ = stream.write_all(begun).await;
            return std::future::pending().await;
        }
    };
    let half = record(23, &[0; 16_384]);
    let Some(mut stream) = connect_tls(address, tls).await else { return };
    // The coordinator may have closed it.
    let _ = stream.write_all(&begun).await;
    let _ = stream.flush().await;
    let _ = stream.get_mut().0.write_all(&half[..16_000]).await;
    std::future::pending().await
}

/// A stolen agent does everything wrong, and a client without a certificate has more connections
/// than there is memory for.
async fn clients_that_do_everything_wrong(connections: usize) {
    let served = Served::start().await;
    let mut honest = served.agent("honest").await;
    honest.announce(&JOB).await;
    honest.train(&JOB, 1..=1).await;
    let (address, base) = (served.address, served.peak());
    let mut attackers = JoinSet::new();
    for number in 0..connections {
        attackers.spawn(do_everything_wrong(address, served.tls("evil", "h2"), number));
    }
    let unproven = ["http/1.1", "h2"].map(|protocol| served.tls("unproven", protocol));
    let (begin, mut step, mut slowest) = (Instant::now(), 1, Duration::ZERO);
    let mut opened = 0;
    while begin.elapsed() < Duration::from_secs(10) || opened < FLOOD {
        for _ in 0..40.min(FLOOD - opened) {
            attackers.spawn(open_halfway(address, unproven.clone(), opened));
            opened += 1;
        }
        step += 1;
        let sent = Instant::now();
        honest.train(&JOB, step..=step).await;
        slowest = slowest.max(sent.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    let peak = served.peak();
    println!(
        "{connections} connections that do everything wrong and {FLOOD} half open ones: {} MiB, \
         {} MiB of them without any, an honest report waited {slowest:?} at most",
        peak / MIB,
        base / MIB,
    );
    assert!(peak < BYTES_MAX + base, "{} MiB", peak / MIB);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_a_coordinator_is_bounded_whatever_comes() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path())).await;
    let mut agent = Agent::attach(&running, "node").await;
    agent.announce(&JOB).await;
    agent.train(&JOB, 1..=8).await;
    a_report_of_4_mib_of_empty_ranks(&running).await;
    a_snapshot_of_12_kb_that_decodes_to_gigabytes(&running, &mut agent).await;
    downloads_that_are_not_read(&running, &mut agent, dir.path()).await;
    running.stop().await;
    clients_that_do_everything_wrong(10).await;
}
