//! Tokens that shard 0 refuses, and a shard 0 that gives no answer.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use memtape_core::limits::TOKENS_ASKED_AT_ONCE_MAX;
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_token_that_is_revoked_ends_at_all() {
    let mut ports = Ports::of(3, "http").await;
    let keeper = ports.start(0, None, Some(ROLES));
    ports.start(1, None, Some(ROLES));
    let (parts, waiting) = mpsc::channel::<Result<Bytes, std::io::Error>>(1);
    let waiting = Arc::new(Mutex::new(Some(waiting)));
    ports.answer_by(Router::new().fallback(async move || {
        Body::from_stream(ReceiverStream::new(waiting.lock().unwrap().take().unwrap()))
    }));
    let tokens = &keeper.door.tokens;
    let wanted =
        TokenRecord { name: "ci".into(), expires_wall_ns: i64::MAX, ..TokenRecord::default() };
    let (token, record) = tokens.create(wanted, AuditRecord::default()).await.unwrap();
    let id = Ids::of_shard(2, 3).next(0, Kind::Capture);
    let url = format!("{}/api/v1/captures/{id}/ranks/0/pickle", ports.url(1));
    let mut download = http().get(url).bearer_auth(&token).send().await.unwrap();
    parts.send(Ok(Bytes::from("abc"))).await.unwrap();
    assert_eq!(download.chunk().await.unwrap().unwrap(), "abc");
    // No other request brings the token.
    tokens.revoke(&record.id, 1, AuditRecord::default()).await.unwrap();
    let ended = timeout(PATIENCE, download.chunk()).await.expect("the download goes on");
    assert!(ended.is_err(), "{ended:?}");
}

/// The status of a request to shard 1 with this token.
async fn status(ports: &Ports, token: String) -> u16 {
    ask(http().get(format!("{}/api/v1/jobs", ports.url(1))).bearer_auth(token)).await.0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_was_refused_is_not_asked_about_again() {
    let mut ports = Ports::of(2, "http").await;
    let asked = ports.stand_in(StatusCode::UNAUTHORIZED, "{}");
    ports.start(1, None, Some(ROLES));
    for _ in 0..3 {
        assert_eq!(status(&ports, "mtk_0_made-up".to_string()).await, 401);
    }
    assert_eq!(asked.lock().unwrap().len(), 1);
    assert_eq!(status(&ports, "mtk_0_other".to_string()).await, 401);
    assert_eq!(asked.lock().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_of_tokens_is_asked_little() {
    let mut ports = Ports::of(2, "http").await;
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    // It answers no request.
    let listener = ports.listeners.remove(0);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Relaxed);
            let _ = stream.read(&mut [0; 4096]).await;
        }
    });
    let (_, api, _) = ports.without_server(1, None, Some(ROLES));
    drop(http());
    let gather = Gather::new(api.clone());
    let status = async |token: &str| gather.renew(token, || Ok(())).await.unwrap_err().status;
    let permits = gather.keeper.at_once.try_acquire_many(TOKENS_ASKED_AT_ONCE_MAX as u32);
    assert_eq!(status("mtk_1_x").await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!((asked.load(Relaxed), loss(&api, "requests_too_many")), (0, 1));
    drop(permits);
    // Having given no answer, it is not asked for a while.
    for number in 0..20 {
        let token = format!("mtk_{number}_x");
        assert_eq!(status(&token).await, StatusCode::SERVICE_UNAVAILABLE);
    }
    assert_eq!(asked.load(Relaxed), 1);
}
