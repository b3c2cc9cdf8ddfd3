//! The memory of a coordinator, whatever comes over the network: each attack is made on one that
//! runs in this process, and the kernel says what the process took at most.
//!
//! One test, because the peak is that of the whole process.

#[allow(dead_code)]
#[path = "fake/mod.rs"]
mod fake;

use std::time::Duration;

use bytes::{BufMut as _, Bytes};
use memtape_core::limits::SNAPSHOT_BYTES_MAX;
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as FromAgent;
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic_prost::{ProstCodec, ProstDecoder};

use crate::fake::{Agent, Job, MIB, PATIENCE, Running, answer, config, message, start};

/// A job of one rank.
const JOB: Job = Job::new("large", 1);

/// Bytes of the snapshot that no client reads.
const LARGE_BYTES: usize = 110 << 20;

/// A line of `/proc/self/status`, in bytes.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Starts a measurement of the peak; the memory now.
fn begin() -> u64 {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    status("VmRSS")
}

/// The peak since `begin`, above what was there; printed.
fn peak(what: &str, before: u64) -> u64 {
    let peak = status("VmHWM").saturating_sub(before);
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

/// Sends bytes as messages of an agent.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = v1::CoordinatorMessage;
    type Encoder = Raw;
    type Decoder = ProstDecoder<v1::CoordinatorMessage>;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<v1::AgentMessage, v1::CoordinatorMessage>::default().decoder()
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = tonic::Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), tonic::Status> {
        out.put(item);
        Ok(())
    }
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
    let hello = v1::Hello {
        protocol: memtape_proto::PROTOCOL,
        node: "enemy".to_string(),
        boot_id: "boot-9".to_string(),
        ..v1::Hello::default()
    };
    // 3 is `ranks` in `Report`, and `report` in `AgentMessage`.
    let report = inside(3, &[3 << 3 | 2, 0].repeat((2 << 20) - 8));
    let messages =
        vec![Bytes::from(message(FromAgent::Hello(hello)).encode_to_vec()), report.into()];
    let before = begin();
    let channel = tonic::transport::Channel::from_shared(running.url("")).unwrap();
    let mut client = tonic::client::Grpc::new(channel.connect().await.unwrap());
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static("/memtape.v1.Coordinator/Attach");
    let messages = tokio_stream::StreamExt::chain(
        tokio_stream::iter(messages),
        tokio_stream::pending::<Bytes>(),
    );
    let answer = client.streaming(tonic::Request::new(messages), path, Raw).await.unwrap();
    let mut answer = answer.into_inner();
    while let Ok(Some(_)) = answer.message().await {}
    let peak = peak("a report of 4 MiB of empty ranks", before);
    assert!(peak < 32 * MIB, "{peak}");
    let name = "memtape_losses_total{reason=\"bad_message\"}";
    assert_eq!(metric(running, name).await, 1.0);
}

async fn a_snapshot_of_12_kb_that_decodes_to_gigabytes(running: &Running, agent: &mut Agent) {
    let hostile = zstd::bulk::compress(&[4 << 3 | 2, 0].repeat(SNAPSHOT_BYTES_MAX / 2), 3).unwrap();
    let id = capture(running, agent, &hostile).await;
    let before = begin();
    let path = format!("/api/v1/captures/{id}/ranks/0/pickle");
    let (status, answer) = running.get(&path).await;
    let peak = peak(&format!("a pickle of a snapshot of {} bytes", hostile.len()), before);
    assert_eq!(status, 500, "{answer}");
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

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_a_coordinator_is_bounded_whatever_comes() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path())).await;
    let mut agent = Agent::attach(&running, "node").await;
    agent.announce(&JOB).await;
    agent.train(&JOB, 1..=8).await;
    a_report_of_4_mib_of_empty_ranks(&running).await;
    a_snapshot_of_12_kb_that_decodes_to_gigabytes(&running, &mut agent).await;
    downloads_that_are_not_read(&running, &mut agent, dir.path()).await;
    running.stop().await;
}
