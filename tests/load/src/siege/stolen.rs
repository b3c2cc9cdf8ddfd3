//! Attacks of nodes whose certificates are stolen.

use bytes::Bytes;
use memtape_core::identity::ids;
use memtape_core::limits::{
    CENSUS_LINES_MAX, CENSUSES_PER_REPORT_MAX, CHUNK_BYTES_MAX, COMMAND_BYTES_MAX,
    SNAPSHOT_BYTES_MAX, STEPS_PER_REPORT_MAX,
};
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as Said;
use memtape_proto::v1::coordinator_client::CoordinatorClient;
use prost::Message as _;
use tokio::task::JoinSet;
use tonic::codegen::http::Request;

use super::attacker::Attacker;
use super::network;
use crate::agent::{Outgoing, Stream, attach, channel, message, wall_ns};
use crate::job::{Node, RANKS_PER_AGENT};

/// Calls on one connection.
pub(super) const CALLS: u32 = 250;

/// The largest message of an agent.
const MESSAGE_BYTES: usize = 4 * CHUNK_BYTES_MAX;

/// Nodes from this number on have tapes of their own.
const FIRST_NODE: u32 = 1 << 20;

/// Jobs that a flood of steps is about, and nodes of one flood.
const JOBS: u32 = 64;
const NODES: u32 = 1 << 16;

/// Cohorts of a line of a census, and steps of a rank that grows.
const COHORTS: u64 = 64;
const GROWING_STEPS: u64 = 64;

/// Attaches, and begins uploads that bring nothing.
pub(super) async fn upload_nothing(attacker: &Attacker) -> anyhow::Result<()> {
    let channel = channel(&attacker.node, &attacker.target).await?;
    let (_outgoing, mut stream) = attach(&channel, &attacker.node, None).await?;
    let mut silent = JoinSet::new();
    for _ in 0..CALLS {
        let (mut client, count) = (CoordinatorClient::new(channel.clone()), attacker.count.clone());
        silent.spawn(async move {
            loop {
                let _there = count.enter();
                let nothing = tokio_stream::pending::<v1::UploadChunk>();
                let _ = client.upload(nothing).await;
                count.answer();
            }
        });
    }
    while stream.message().await?.is_some() {}
    Ok(())
}

/// Attaches again and again on one connection, and sends on each stream all of the largest message
/// but its end. No answer is read: there is no window for one.
pub(super) async fn half_messages(attacker: &Attacker) -> anyhow::Result<()> {
    let stream = network::secure(attacker).await?;
    let (client, connection) =
        h2::client::Builder::new().initial_window_size(0).handshake(stream).await?;
    let hello = v1::Hello {
        protocol: memtape_proto::PROTOCOL,
        node: attacker.node.clone(),
        boot_id: "boot".to_string(),
        ..v1::Hello::default()
    };
    let hello = message(Said::Hello(hello)).encode_to_vec();
    let part = Bytes::from(vec![0; MESSAGE_BYTES - 1]);
    let calling = async {
        let mut calls = Vec::new();
        for _ in 0..CALLS {
            let request = Request::post("https://localhost/memtape.v1.Coordinator/Attach")
                .header("content-type", "application/grpc")
                .body(())?;
            let (answer, mut stream) =
                client.clone().ready().await?.send_request(request, false)?;
            let hello = [&[0][..], &u32::try_from(hello.len())?.to_be_bytes(), &hello].concat();
            let begin = [&[0][..], &u32::try_from(MESSAGE_BYTES)?.to_be_bytes()].concat();
            for bytes in [hello.into(), begin.into(), part.clone()] {
                // A stream that is refused is as good as one that is not.
                let _ = stream.send_data(bytes, false);
            }
            calls.push((answer, stream, attacker.count.enter()));
        }
        std::future::pending::<anyhow::Result<()>>().await
    };
    tokio::select! { ended = connection => Ok(ended?), failed = calling => failed }
}

/// Reports steps without a pause, as many in each report as it may have.
pub(super) async fn flood_steps(attacker: &Attacker) -> anyhow::Result<()> {
    let channel = channel(&attacker.node, &attacker.target).await?;
    let (outgoing, stream) = attach(&channel, &attacker.node, None).await?;
    let sending = async {
        for number in 0.. {
            let turn = number / JOBS;
            let node = hostile(attacker, number % JOBS, number % JOBS);
            if turn == 0 {
                announce(&node, &outgoing, "").await?;
            }
            let rank = node.ranks.start + turn % RANKS_PER_AGENT;
            let steps = STEPS_PER_REPORT_MAX as u64;
            let first = u64::from(turn / RANKS_PER_AGENT) * steps + 1;
            let report = node.rank_report(rank, first..=first + steps - 1, wall_ns());
            say_report(&outgoing, number, vec![report]).await?;
        }
        Ok(())
    };
    until_closed(attacker, stream, sending).await
}

/// Announces ranks that grow, change and end; one of each node has a capture.
pub(super) async fn flood_ranks(attacker: &Attacker) -> anyhow::Result<()> {
    let channel = channel(&attacker.node, &attacker.target).await?;
    let (outgoing, stream) = attach(&channel, &attacker.node, None).await?;
    let mut uploads = JoinSet::new();
    let sending = async {
        for number in 0.. {
            let node = hostile(attacker, JOBS + number % NODES, number);
            announce(&node, &outgoing, "").await?;
            let reports = node.ranks.clone().map(|rank| growing(&node, rank)).collect();
            say_report(&outgoing, number, reports).await?;
            // More than is kept of it, now and then as long as a message can be.
            let bytes = if number % JOBS == 0 { MESSAGE_BYTES - 4096 } else { COMMAND_BYTES_MAX };
            announce(&node, &outgoing, &"x".repeat(bytes)).await?;
            for rank in node.ranks.clone() {
                let tape_id = node.tape_id(rank);
                let end = i32::from(v1::RankEnd::OomKilled);
                let down = v1::RankDown { tape_id, end, wall_ns: wall_ns(), ..Default::default() };
                outgoing.send(message(Said::RankDown(down))).await?;
            }
            let unique = crate::job::mix(u64::from(node.index) << 32 | u64::from(number)) >> 24;
            let capture_id = ids::agent_capture(wall_ns(), &format!("{unique:010x}"));
            let tape_id = node.tape_id(node.ranks.start);
            outgoing.send(captured(&capture_id, &tape_id)).await?;
            while uploads.try_join_next().is_some() {}
            if uploads.len() < CALLS as usize {
                let mut client = CoordinatorClient::new(channel.clone());
                let chunks = tokio_stream::iter(chunks(capture_id, tape_id));
                uploads.spawn(async move { client.upload(chunks).await.is_ok() });
            }
        }
        Ok(())
    };
    until_closed(attacker, stream, sending).await
}

/// Sends until the coordinator ends the stream.
async fn until_closed(
    attacker: &Attacker,
    mut stream: Stream,
    sending: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let _there = attacker.count.enter();
    let reading = async {
        while stream.message().await?.is_some() {
            attacker.count.answer();
        }
        Ok(())
    };
    tokio::select! { ended = sending => ended, ended = reading => ended }
}

/// Announces a capture of a rank that has died, as large as one can be.
fn captured(capture_id: &str, tape_id: &str) -> v1::AgentMessage {
    let answer = v1::CaptureAnswer {
        capture_id: capture_id.to_string(),
        tape_id: tape_id.to_string(),
        outcome: v1::RankOutcome::Dead.into(),
        snapshot_bytes: SNAPSHOT_BYTES_MAX as u64,
        snapshot_hash: vec![7; 32],
        ..v1::CaptureAnswer::default()
    };
    message(Said::AgentCapture(v1::AgentCapture {
        answer: Some(answer),
        reason: v1::AgentCaptureReason::Death.into(),
        seen_wall_ns: wall_ns(),
    }))
}

fn chunks(capture_id: String, tape_id: String) -> impl Iterator<Item = v1::UploadChunk> {
    let data = Bytes::from(vec![7; CHUNK_BYTES_MAX]);
    (0..SNAPSHOT_BYTES_MAX / CHUNK_BYTES_MAX).map(move |number| v1::UploadChunk {
        capture_id: capture_id.clone(),
        tape_id: tape_id.clone(),
        offset: (number * CHUNK_BYTES_MAX) as u64,
        data: data.clone(),
    })
}

/// Ranks that are made up: those of every second job say that they are of an honest one.
fn hostile(attacker: &Attacker, node: u32, number: u32) -> Node {
    let index = FIRST_NODE + attacker.index * NODES + node;
    match number % 2 {
        0 => Node { index, ..attacker.honest.clone() },
        _ => Node {
            index,
            job: format!("made-up-{number}"),
            ranks: 0..RANKS_PER_AGENT,
            world_size: RANKS_PER_AGENT,
        },
    }
}

async fn announce(node: &Node, outgoing: &Outgoing, command: &str) -> anyhow::Result<()> {
    for rank in node.ranks.clone() {
        let up = v1::RankUp {
            owner: Some(node.owner()),
            command: command.to_string(),
            ..node.rank_up(rank, wall_ns())
        };
        outgoing.send(message(Said::RankUp(up))).await?;
    }
    Ok(())
}

async fn say_report(
    outgoing: &Outgoing,
    number: u32,
    ranks: Vec<v1::RankReport>,
) -> anyhow::Result<()> {
    let report = v1::Report {
        number: u64::from(number) + 1,
        wall_ns: wall_ns(),
        ranks,
        ..v1::Report::default()
    };
    Ok(outgoing.send(message(Said::Report(report))).await?)
}

/// The report of a rank that takes 1 GiB more with each step, with as many censuses as all ranks
/// of a report may have together.
fn growing(node: &Node, rank: u32) -> v1::RankReport {
    let mut report = node.rank_report(rank, 1..=GROWING_STEPS, wall_ns());
    for record in &mut report.steps {
        let grown = record.last_step << 30;
        for bytes in [
            &mut record.floor_allocated,
            &mut record.peak_allocated,
            &mut record.end_allocated,
            &mut record.floor_reserved,
            &mut record.peak_reserved,
            &mut record.end_reserved,
        ] {
            *bytes += grown;
        }
    }
    let frame = v1::Frame { file: "f".repeat(200), line: 1, function: "g".repeat(200) };
    let line = |line: usize| v1::CensusLine {
        line: line as u64 + 1,
        frames: vec![frame.clone(); 3],
        first_steps: (0..COHORTS).collect(),
        bytes: vec![1 << 30; COHORTS as usize],
        blocks: vec![1; COHORTS as usize],
    };
    let census = v1::Census {
        step: GROWING_STEPS,
        is_whole: true,
        lines: (0..CENSUS_LINES_MAX).map(line).collect(),
        ..v1::Census::default()
    };
    report.censuses = vec![census; CENSUSES_PER_REPORT_MAX / RANKS_PER_AGENT as usize];
    report
}
