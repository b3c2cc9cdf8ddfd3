//! The agent between coordinators of other versions: 1.0 as it was, a later minor, another major.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memtape_proto::frozen_1_0 as old;
use memtape_proto::v1;
use old::coordinator_server::{Coordinator, CoordinatorServer};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::Stream;
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use crate::support::RunningAgent;
use crate::support::coordinator::FakeCoordinator;
use crate::support::rank::{Rank, SMALL};
use crate::{assert_gapless, folder, has_steps};

type ToAgent = mpsc::UnboundedSender<Result<old::CoordinatorMessage, Status>>;

/// A coordinator of version 1.0 that records what it receives.
#[derive(Clone, Default)]
struct OldCoordinator {
    seen: Arc<Mutex<Vec<old::AgentMessage>>>,
    snapshots: Arc<Mutex<Vec<Vec<u8>>>>,
    agent: Arc<Mutex<Option<ToAgent>>>,
}

impl OldCoordinator {
    async fn listen(&self, address: &str) -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind(address).await.expect("port");
        let address = listener.local_addr().expect("address");
        let service = CoordinatorServer::new(self.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        let serving = server.serve_with_incoming(TcpListenerStream::new(listener));
        (address, tokio::spawn(async { serving.await.expect("served") }))
    }

    fn say(&self, body: old::coordinator_message::Body) {
        let agent = self.agent.lock().expect("no panic");
        let message = old::CoordinatorMessage { body: Some(body) };
        agent.as_ref().expect("an agent").send(Ok(message)).expect("a stream");
    }

    async fn wait<T>(&self, look: impl Fn(&old::agent_message::Body) -> Option<T>) -> T {
        for _ in 0..1500 {
            let found = {
                let seen = self.seen.lock().expect("no panic");
                seen.iter().filter_map(|message| message.body.as_ref()).find_map(&look)
            };
            if let Some(found) = found {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("not within 15 s");
    }
}

#[tonic::async_trait]
impl Coordinator for OldCoordinator {
    type AttachStream = Pin<Box<dyn Stream<Item = Result<old::CoordinatorMessage, Status>> + Send>>;

    async fn attach(
        &self,
        request: Request<Streaming<old::AgentMessage>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        use old::coordinator_message::Body;
        let (sender, receiver) = mpsc::unbounded_channel();
        let welcome = old::Welcome { protocol: 1, version: "0.1.0".into(), report_interval_ms: 0 };
        *self.agent.lock().expect("no panic") = Some(sender);
        self.say(Body::Welcome(welcome));
        let (me, mut messages) = (self.clone(), request.into_inner());
        tokio::spawn(async move {
            while let Ok(Some(message)) = messages.message().await {
                if let Some(old::agent_message::Body::Report(report)) = &message.body {
                    me.say(Body::ReportAck(old::ReportAck { number: report.number }));
                }
                me.seen.lock().expect("no panic").push(message);
            }
        });
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(receiver))))
    }

    async fn upload(
        &self,
        request: Request<Streaming<old::UploadChunk>>,
    ) -> Result<Response<old::UploadReceipt>, Status> {
        let mut chunks = request.into_inner();
        let mut snapshot = Vec::new();
        while let Some(chunk) = chunks.message().await? {
            snapshot.extend_from_slice(&chunk.data);
        }
        let body_hash = blake3::hash(&snapshot).as_bytes().to_vec();
        self.snapshots.lock().expect("no panic").push(snapshot);
        Ok(Response::new(old::UploadReceipt { body_hash }))
    }
}

/// Steps, a capture and an end, in words that 1.0 knows.
async fn check_old_stream(old: &OldCoordinator, rank: &mut Rank) {
    let has_last = |report: &old::Report| {
        let steps = report.ranks.iter().flat_map(|rank| &rank.steps);
        steps.map(|step| step.last_step).max() == Some(4)
    };
    old.wait(|body| match body {
        old::agent_message::Body::Report(report) => has_last(report).then_some(()),
        _ => None,
    })
    .await;
    old.say(old::coordinator_message::Body::CaptureRequest(old::CaptureRequest {
        capture_id: "cap-1".to_string(),
        tape_ids: vec![rank.tape_id.clone()],
        step: 3,
        before_step: 0,
        deadline_ms: 20_000,
    }));
    let answer = old
        .wait(|body| match body {
            old::agent_message::Body::CaptureAnswer(answer) => Some(answer.clone()),
            _ => None,
        })
        .await;
    assert_eq!(answer.outcome(), old::RankOutcome::Aligned);
    rank.kill();
    let down = old
        .wait(|body| match body {
            old::agent_message::Body::RankDown(down) => Some(down.clone()),
            _ => None,
        })
        .await;
    assert_eq!(down.end(), old::RankEnd::Killed);
    let unknown = old.seen.lock().expect("no panic").iter().filter(|m| m.body.is_none()).count();
    assert_eq!(unknown, 0, "it received what it does not know");
    for _ in 0..1500 {
        if old.snapshots.lock().expect("no panic").len() == 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no snapshot, or more than one");
}

/// What 1.0 does not know is not said to it, waits on the disk, and is said to the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_coordinator_hears_only_what_it_knows() {
    let (dir, spool) = (folder(), folder());
    let mut later = FakeCoordinator::start();
    later.kill();
    let mut rank = Rank::start(dir.path(), "job", 0, SMALL);
    let with_spool =
        |config: &mut memtape_agent::Config| config.spool_dir = Some(spool.path().to_path_buf());
    let agent = RunningAgent::start(dir.path(), &later.url(), with_spool);
    rank.train(4);
    tokio::time::sleep(Duration::from_millis(200)).await;
    rank.out_of_memory(1 << 40);
    let captures = || {
        let entries = std::fs::read_dir(spool.path()).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("capture")).count()
    };
    for _ in 0..1500 {
        if captures() == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Steps are kept by now, too.
    tokio::time::sleep(Duration::from_millis(1500)).await;

    let old = OldCoordinator::default();
    let (_, serving) = old.listen(&later.address.to_string()).await;
    check_old_stream(&old, &mut rank).await;
    assert_eq!(captures(), 1, "it was given away");

    serving.abort();
    let _ = serving.await;
    *old.agent.lock().expect("no panic") = None;
    agent.stop().await;
    later.revive();
    let agent = RunningAgent::start(dir.path(), &later.url(), with_spool);
    later.wait("the capture", |seen| seen.captures.first().cloned()).await;
    later.wait("its snapshot", |seen| (!seen.snapshots.is_empty()).then_some(())).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_minor_is_taken_and_another_major_is_not() {
    for (protocol, minor, is_taken) in
        [(1, 7, true), (1, 2, true), (1, 1, true), (1, 0, true), (2, 0, false)]
    {
        let dir = folder();
        let coordinator = FakeCoordinator::start();
        let mut welcome = coordinator.seen().welcome.clone();
        (welcome.protocol, welcome.protocol_minor) = (protocol, minor);
        coordinator.seen().welcome = welcome;
        let mut rank = Rank::start(dir.path(), "job", 0, SMALL);
        rank.train(3);
        rank.pin(1 << 20);
        let agent = RunningAgent::start(dir.path(), &coordinator.url(), |_| ());
        if is_taken {
            coordinator.wait("its steps", |seen| has_steps(seen, &rank, 3)).await;
            assert_gapless(&coordinator.seen().steps(&rank.tape_id, None), 1, 3);
        } else {
            let tries = |seen: &crate::Seen| (seen.hellos.len() >= 2).then_some(());
            coordinator.wait("two tries", tries).await;
            assert!(coordinator.seen().ups.is_empty(), "it received something");
        }
        let hello: v1::Hello = coordinator.seen().hellos[0].clone();
        assert_eq!((hello.protocol, hello.protocol_minor), (1, memtape_proto::PROTOCOL_MINOR));
        let said = new_words(&coordinator.seen());
        if is_taken && minor >= 2 {
            assert!(said.iter().all(|count| *count > 0), "{said:?}");
        } else {
            assert_eq!(said, [0; 3], "said to {protocol}.{minor}");
        }
        agent.stop().await;
    }
}

/// How often something was said that version 1.2 brought.
fn new_words(seen: &crate::Seen) -> [usize; 3] {
    let ranks = || seen.reports.iter().flat_map(|(_, report)| &report.ranks);
    [
        ranks().filter(|rank| rank.host.is_some()).count(),
        ranks().filter(|rank| !rank.outside.is_empty()).count(),
        seen.ups.iter().filter(|up| up.role == "pp0").count(),
    ]
}
