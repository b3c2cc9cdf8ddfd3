//! An agent of another version of the protocol, and clients that are not known yet.

use memtape_core::limits::REQUEST_BYTES_MAX;
use memtape_proto::v1::agent_message::Body;
use memtape_proto::v1::coordinator_client::CoordinatorClient;
use memtape_proto::{PROTOCOL, v1};
use tonic::transport::Channel;

use crate::fake::{Agent, config, message, start};

#[tokio::test(flavor = "multi_thread")]
async fn another_version_is_refused_with_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path())).await;
    let refusals =
        [(PROTOCOL, None), (PROTOCOL + 1, Some("update the coordinator")), (0, Some("the agent"))];
    for (protocol, refusal) in refusals {
        let channel = Channel::from_shared(running.url("")).unwrap().connect().await.unwrap();
        let node = format!("node-{protocol}");
        let hello = v1::Hello { protocol, node, ..v1::Hello::default() };
        // A message without a body that this version knows is ignored.
        let messages = [message(Body::Hello(hello)), v1::AgentMessage { body: None }];
        let attached = CoordinatorClient::new(channel).attach(tokio_stream::iter(messages)).await;
        let refused = attached.err().map(|status| status.message().to_string());
        match refusal {
            None => assert_eq!(refused, None),
            Some(part) => {
                let line = refused.unwrap();
                assert!(line.contains(part) && !line.contains('\n'), "{line}");
            }
        }
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_client_sends_little() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path())).await;
    let long: &'static str = "x".repeat(REQUEST_BYTES_MAX + 1).leak();
    let refused = Agent::try_attach(&running, long, "boot-1").await.err().unwrap();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(refused.message().contains("longer than 65536 bytes"), "{refused}");
    for path in ["session", "session/end", "tokens", "jobs/a/captures"] {
        let (status, answer) = running.post(&format!("/api/v1/{path}"), long).await;
        assert_eq!((status, answer["error"].is_string()), (413, true), "{path}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_agent_learns_which_other_has_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path())).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    for _ in 0..5 {
        let mut replaced = std::mem::replace(&mut agent, Agent::attach(&running, "node-a").await);
        let end = replaced.incoming.message().await.unwrap_err();
        let (code, line) = (end.code(), end.message());
        assert!(line.starts_with("another agent, at 127.0.0.1:"), "{line}");
        assert!(code == tonic::Code::Aborted && line.ends_with("another --node"), "{line}");
    }
    running.stop().await;
}
