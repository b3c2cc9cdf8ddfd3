//! The coordinator between agents of other versions: 1.0 as it was, a later minor, another major.

use std::time::Duration;

use memtape_proto::frozen_1_0 as old;
use memtape_proto::{PROTOCOL_MINOR, v1};
use old::agent_message::Body as Said;
use old::coordinator_client::CoordinatorClient;
use old::coordinator_message::Body as Heard;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use crate::JOB;
use crate::fake::{Agent, config, message, start};

const PATIENCE: Duration = Duration::from_secs(15);

/// An agent of version 1.0.
struct OldAgent {
    outgoing: mpsc::Sender<old::AgentMessage>,
    incoming: tonic::Streaming<old::CoordinatorMessage>,
    client: CoordinatorClient<Channel>,
}

impl OldAgent {
    async fn attach(url: String) -> Self {
        let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
        let mut client = CoordinatorClient::new(channel);
        let (outgoing, messages) = mpsc::channel(64);
        let hello = old::Hello {
            protocol: 1,
            node: "node-a".to_string(),
            boot_id: "boot-1".to_string(),
            version: "0.1.0".to_string(),
        };
        outgoing.send(old::AgentMessage { body: Some(Said::Hello(hello)) }).await.unwrap();
        let incoming = client.attach(ReceiverStream::new(messages)).await.unwrap().into_inner();
        Self { outgoing, incoming, client }
    }

    async fn say(&self, body: Said) {
        self.outgoing.send(old::AgentMessage { body: Some(body) }).await.unwrap();
    }

    /// The next thing it hears, which it must know.
    async fn receive(&mut self) -> Heard {
        let message = timeout(PATIENCE, self.incoming.message()).await.unwrap().unwrap().unwrap();
        message.body.expect("a message that 1.0 knows")
    }
}

fn up() -> old::RankUp {
    old::RankUp {
        tape_id: "tape-1".to_string(),
        job: "old".to_string(),
        rank: 0,
        world_size: 1,
        start_wall_ns: 1_700_000_000_000_000_000,
        ..old::RankUp::default()
    }
}

fn report(number: u64) -> old::Report {
    let step = old::StepRecord {
        first_step: number,
        last_step: number,
        floor_allocated: 512,
        ..old::StepRecord::default()
    };
    let rank = old::RankReport {
        tape_id: "tape-1".to_string(),
        step: number,
        oldest_step: 1,
        steps: vec![step],
        ..old::RankReport::default()
    };
    old::Report { number, ranks: vec![rank], ..old::Report::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_agent_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path())).await;
    let mut agent = OldAgent::attach(running.url("")).await;
    assert!(matches!(agent.receive().await, Heard::Welcome(welcome) if welcome.protocol == 1));
    agent.say(Said::RankUp(up())).await;
    for number in 1..=3 {
        agent.say(Said::Report(report(number))).await;
        let ack = agent.receive().await;
        assert!(matches!(&ack, Heard::ReportAck(ack) if ack.number == number), "{ack:?}");
    }
    // What it does not say is unknown, and stays so.
    let (_, ranks) = running.get("/api/v1/jobs/old/ranks").await;
    let rank = &ranks["ranks"][0];
    assert_eq!((&rank["host"], &rank["pinned_bytes"]), (&Value::Null, &Value::Null), "{rank:#}");
    assert_eq!((&rank["role"], &rank["alive"]), (&json!(""), &json!(true)));
    let answer = tokio::spawn({
        let url = running.url("/api/v1/jobs/old/captures");
        async move { reqwest::Client::new().post(url).body("{}").send().await.unwrap().status() }
    });
    let Heard::CaptureRequest(request) = agent.receive().await else { panic!("no request") };
    assert!(answer.await.unwrap().is_success());
    let snapshot = JOB.snapshot(0, request.step, 0);
    let hash = blake3::hash(&snapshot).as_bytes().to_vec();
    agent
        .say(Said::CaptureAnswer(old::CaptureAnswer {
            capture_id: request.capture_id.clone(),
            tape_id: "tape-1".to_string(),
            outcome: old::RankOutcome::Aligned.into(),
            step: request.step,
            body_bytes: snapshot.len() as u64,
            body_hash: hash.clone(),
            ..old::CaptureAnswer::default()
        }))
        .await;
    let chunk = old::UploadChunk {
        capture_id: request.capture_id.clone(),
        tape_id: "tape-1".to_string(),
        offset: 0,
        data: snapshot.into(),
    };
    let receipt = agent.client.upload(tokio_stream::iter([chunk])).await.unwrap();
    assert_eq!(receipt.into_inner().body_hash, hash);
    let path = format!("/api/v1/captures/{}", request.capture_id);
    let capture = running.wait(&path, |capture| capture["state"] == "complete").await;
    assert_eq!(capture["aligned"], json!(1));
    let end = old::RankDown {
        tape_id: "tape-1".to_string(),
        end: old::RankEnd::Exited.into(),
        step: 3,
        ..old::RankDown::default()
    };
    agent.say(Said::RankDown(end)).await;
    let is_over = |answer: &serde_json::Value| answer["jobs"][0]["state"] == "ended";
    running.wait("/api/v1/jobs", is_over).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_minor_is_taken_and_another_major_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path())).await;
    for (protocol, minor, refusal) in [
        (1, 7, None),
        (1, 2, None),
        (1, 1, None),
        (1, 0, None),
        (2, 0, Some("update the coordinator")),
        (0, 0, Some("no protocol version")),
    ] {
        let channel = Channel::from_shared(running.url("")).unwrap().connect().await.unwrap();
        let mut client = v1::coordinator_client::CoordinatorClient::new(channel);
        let hello = v1::Hello {
            protocol,
            protocol_minor: minor,
            node: format!("node-{protocol}-{minor}"),
            ..v1::Hello::default()
        };
        let (outgoing, messages) = mpsc::channel(8);
        let hello = v1::agent_message::Body::Hello(hello);
        outgoing.send(message(hello)).await.unwrap();
        // A later minor's message that this side does not know.
        outgoing.send(v1::AgentMessage { body: None }).await.unwrap();
        let attached = client.attach(ReceiverStream::new(messages)).await;
        match refusal {
            None => {
                let first = attached.unwrap().into_inner().message().await.unwrap().unwrap();
                let welcome = first.body.expect("a welcome");
                let v1::coordinator_message::Body::Welcome(welcome) = welcome else { panic!() };
                assert_eq!((welcome.protocol, welcome.protocol_minor), (1, PROTOCOL_MINOR));
            }
            Some(part) => {
                let status = attached.unwrap_err();
                assert!(status.message().contains(part), "{status}");
                assert!(!status.message().contains('\n'));
            }
        }
    }
    // No other agent was disturbed.
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&JOB).await;
    agent.train(&JOB, 1..=2).await;
    running.stop().await;
}
