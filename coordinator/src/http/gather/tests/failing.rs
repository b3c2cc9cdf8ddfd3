//! Owners that fail in the middle of a request, and callers who are refused.

use memtape_core::limits::REQUESTS_IN_PROGRESS_MAX;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::*;

/// Far more than anything takes here, and less than a request may take.
const PATIENCE: Duration = Duration::from_secs(20);

impl Ports {
    /// The next shard gets an owner that answers each request with these bytes, and hangs up.
    fn hang_up(&mut self, answer: &'static [u8]) {
        let listener = self.listeners.remove(0);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(answer).await;
            }
        });
    }
}

/// A job of this shard.
fn job_of(shard: u16, shards: u16) -> String {
    (0..).map(|number| format!("n{number}")).find(|job| shard_of(job, shards) == shard).unwrap()
}

/// The first owner fails as `fail` says; the second one would make the change.
async fn check_change(fail: impl FnOnce(&mut Ports), is_made_by_second: bool) {
    let mut ports = Ports::of(3, "http").await;
    ports.coordinator(0, None);
    fail(&mut ports);
    let second = ports.stand_in(StatusCode::ACCEPTED, "{}");
    let url = format!("{}/api/v1/incidents/inc-odd/approve", ports.url(0));
    let (status, missing, answer) = ask(http().post(url)).await;
    assert_eq!(second.lock().unwrap().len(), usize::from(is_made_by_second), "{answer}");
    if is_made_by_second {
        return assert_eq!(status, 202, "{answer}");
    }
    assert_eq!((status, missing.as_str()), (503, "1"));
    let line = answer["error"].as_str().unwrap();
    assert!(line.contains("it may have been carried out: shard 1 http://127.0.0.1:"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_stops_at_an_owner_that_may_have_made_it() {
    check_change(|ports| ports.hang_up(b""), false).await;
    let failing = |ports: &mut Ports| drop(ports.stand_in(StatusCode::BAD_GATEWAY, ""));
    check_change(failing, false).await;
    // These did nothing.
    check_change(|ports| drop(ports.listeners.remove(0)), true).await;
    let refusing = |ports: &mut Ports| drop(ports.stand_in(StatusCode::FORBIDDEN, ""));
    check_change(refusing, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_breaks_off_is_none() {
    let mut ports = Ports::of(2, "http").await;
    ports.coordinator(0, None);
    ports.hang_up(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{",
    );
    let url = format!("{}/api/v1/jobs/{}/ranks", ports.url(0), job_of(1, 2));
    let (status, missing, answer) = ask(http().get(url)).await;
    assert_eq!((status, missing.as_str()), (503, "1"));
    assert!(answer["error"].as_str().unwrap().contains(&Absent::Broken.to_string()), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_owners_of_one_answer_have_one_deadline() {
    let mut ports = Ports::of(3, "http").await;
    let (_, api, _) = ports.without_server(0, None, None);
    drop((http(), ports.listeners.remove(0)));
    ports.answer_by(Router::new().fallback(std::future::pending::<()>));
    ports.stand_in(StatusCode::OK, "{}");
    let time_max = Duration::from_millis(300);
    let question = Arc::new(Question {
        passed: Passed::about_token("abc"),
        unsent: Arc::default(),
        deadline: Deadline::after(time_max),
        is_read: true,
    });
    let (gather, late) = (Gather::new(api), Absent::Late(time_max));
    assert_eq!(gather.ask((1, &ports.url(1)), &question).await.unwrap_err(), late);
    // The time of the second is over, although it would answer.
    let second = (2, ports.url(2));
    let missing = gather.first_that_knows(vec![second.clone()], question).await.unwrap_err();
    assert_eq!(missing, [(2, second.1, late)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_whose_owner_falls_silent_ends() {
    let mut ports = Ports::of(2, "http").await;
    let (_, api, _) = ports.without_server(0, None, None);
    drop((http(), ports.listeners.remove(0)));
    ports.answer_by(Router::new().fallback(async || {
        let parts = tokio_stream::iter([Ok(Bytes::from("abc"))]);
        let never = tokio_stream::pending::<Result<Bytes, std::io::Error>>();
        Body::from_stream(tokio_stream::StreamExt::chain(parts, never))
    }));
    let owners = Owners::new(api.door.clone(), Duration::from_secs(2));
    let passed = Passed::about_token("abc").unwrap();
    let answered = owners.ask((1, &ports.url(1)), &passed, Deadline::after(PATIENCE)).await;
    let content = answered.unwrap().passed_on(api.counters.clone()).into_body();
    let whole = timeout(PATIENCE, to_bytes(content, usize::MAX)).await;
    assert!(whole.expect("it ends").is_err());
    assert_eq!(loss(&api, "shard_missing"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_is_refused_before_the_content_is_read() {
    let mut ports = Ports::of(2, "http").await;
    ports.start(0, None, Some(ROLES));
    for shard in [0, 1] {
        let address = ports.url(0).trim_start_matches("http://").to_string();
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let job = job_of(shard, 2);
        // The body never comes.
        let line = format!("POST /api/v1/jobs/{job}/captures HTTP/1.1");
        let head = format!("{line}\r\nhost: {address}\r\ncontent-length: 9\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut line = [0; 12];
        let answered = timeout(PATIENCE, stream.read_exact(&mut line)).await;
        answered.expect("it waits for no body").unwrap();
        assert_eq!(&line, b"HTTP/1.1 401", "shard {shard}");
    }
}

/// A request that goes to several shards counts as one of its caller.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_is_authenticated_once() {
    let mut ports = Ports::of(3, "http").await;
    let api = ports.start(0, None, None);
    ports.stand_in(StatusCode::NOT_FOUND, "{}");
    let (arrived, mut arrivals) = mpsc::channel(1);
    ports.answer_by(Router::new().fallback(async move || {
        arrived.send(()).await.unwrap();
        std::future::pending::<()>().await;
    }));
    let url = format!("{}/api/v1/jobs/{}/ranks", ports.url(0), job_of(1, 3));
    let asking = tokio::spawn(ask(http().get(url)));
    // Shard 1 does not know it, nor does the own one.
    arrivals.recv().await.unwrap();
    let peer = Peer::new(SocketAddr::from(([127, 0, 0, 1], 1)));
    let quota = api.quotas.caller(&api.door.bucket(&peer, None));
    let permits: Vec<_> = std::iter::from_fn(|| quota.begin_request()).collect();
    assert_eq!(permits.len(), REQUESTS_IN_PROGRESS_MAX - 1);
    asking.abort();
}
