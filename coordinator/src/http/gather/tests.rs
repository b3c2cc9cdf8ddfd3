//! Real coordinators that know each other, each with its own jobs; and owners that misbehave.

mod failing;
mod revoked;
mod standings;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;

use axum::Router;
use axum::http::HeaderMap;
use memtape_core::identity::ids::{Ids, Kind};
use memtape_core::placement::shard_of;
use memtape_tls::authority::{Party, issue, make};
use memtape_tls::server::ServerTls;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::ReceiverStream;

use super::*;
use crate::access::audit::Audit;
use crate::access::tokens::Tokens;
use crate::access::{Door, Peer};
use crate::connections::Connections;
use crate::coordinator::Coordinator;
use crate::http::asking::tests::{Started, start_one};
use crate::http::routes;
use crate::http::server::{self, Bounds};
use crate::ingest::event::Queues;
use crate::members::Members;
use crate::standing::Standing;
use memtape_disk::clock;
use memtape_store::records::{AuditRecord, TokenRecord};

const JOBS: usize = 30;

const ROLES: &str = r#"
[[grant]]
role = "viewer"
names = ["spiffe://memtape/user/alice"]
"#;

/// A port for each shard, and what is known of their owners.
struct Ports {
    listeners: Vec<TcpListener>,
    owners: watch::Sender<Vec<String>>,
    /// Of each shard; none at first.
    standings: Vec<Standing>,
    folder: TempDir,
}

/// What a stand-in for an owner was asked.
type Asked = Arc<Mutex<Vec<(String, HeaderMap, Bytes)>>>;

impl Ports {
    async fn of(shards: usize, scheme: &str) -> Self {
        let mut listeners = Vec::new();
        for _ in 0..shards {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let url = |listener: &TcpListener| format!("{scheme}://{}", listener.local_addr().unwrap());
        let (owners, _) = watch::channel(listeners.iter().map(url).collect());
        let standings = vec![Standing::default(); shards];
        Self { listeners, owners, standings, folder: tempfile::tempdir().unwrap() }
    }

    fn url(&self, shard: usize) -> String {
        self.owners.borrow()[shard].clone()
    }

    fn set(&self, shard: usize, url: &str) {
        self.owners.send_modify(|owners| owners[shard] = url.to_string());
    }

    /// The next shard gets a coordinator, with all jobs that belong to it.
    fn coordinator(&mut self, shard: u16, tls: Option<&Path>) {
        self.start(shard, tls, None);
    }

    fn start(&mut self, shard: u16, tls: Option<&Path>, roles: Option<&str>) -> Api {
        let (coordinator, api, queues) = self.without_server(shard, tls, roles);
        let door = Some(api.door.clone());
        let (bounds, counters) =
            (Bounds { connections_max: 64, unknown_calls_max: 64 }, api.counters.clone());
        let router = routes::router(api.clone(), &[]);
        let listener = self.listeners.remove(0);
        tokio::spawn(async move {
            let never = std::future::pending();
            server::serve(listener, router, bounds, door, counters, never).await
        });
        tokio::spawn(follow(coordinator, queues));
        api
    }

    fn without_server(
        &self,
        shard: u16,
        tls: Option<&Path>,
        roles: Option<&str>,
    ) -> (Coordinator, Api, Queues) {
        let members = Members::new(shard, self.owners.subscribe());
        let members = members.with(self.standings[usize::from(shard)].clone());
        let shards = members.shards();
        let jobs = (0..JOBS).map(|number| format!("j{number}"));
        let jobs = jobs.filter(|job| shard_of(job, shards) == shard);
        let file = self.folder.path().join("access.toml");
        let roles = roles.map(|roles| {
            std::fs::write(&file, roles).unwrap();
            file
        });
        let door = |tokens: Tokens, audit: Audit| {
            let tls = tls.map(|folder| Arc::new(ServerTls::open(folder).unwrap()));
            Door::new(roles, tls, tokens, audit).unwrap()
        };
        let folder = self.folder.path().join(format!("{shard}-{}", self.listeners.len()));
        let (coordinator, api, _, queues): Started = start_one(&folder, jobs, members, door);
        (coordinator, api, queues)
    }

    /// The next shard gets a stand-in, which keeps what it is asked.
    fn stand_in(&mut self, status: StatusCode, answer: &'static str) -> Asked {
        let asked = Asked::default();
        let kept = asked.clone();
        self.answer_by(Router::new().fallback(async move |request: Request| {
            let (parts, body) = request.into_parts();
            let content = to_bytes(body, usize::MAX).await.unwrap();
            let asked = (format!("{} {}", parts.method, parts.uri), parts.headers, content);
            kept.lock().unwrap().push(asked);
            (status, answer)
        }));
        asked
    }

    fn answer_by(&mut self, router: Router) {
        let listener = self.listeners.remove(0);
        tokio::spawn(async move { axum::serve(listener, router).await });
    }
}

async fn follow(mut coordinator: Coordinator, mut queues: Queues) {
    while let Some(event) = queues.next().await {
        coordinator.handle(clock::now(), event);
    }
}

fn http() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap()
}

/// The status, the missing shards of the header, and the answer.
async fn ask(request: reqwest::RequestBuilder) -> (u16, String, Value) {
    let answer = request.send().await.unwrap();
    let missing = answer.headers().get(MISSING).map(|of| of.to_str().unwrap().to_string());
    let status = answer.status().as_u16();
    let text = answer.text().await.unwrap();
    let answer = serde_json::from_str(&text).unwrap_or(Value::String(text));
    (status, missing.unwrap_or_default(), answer)
}

fn field(list: &Value, field: &str) -> Vec<Value> {
    list.as_array().unwrap().iter().map(|row| row[field].clone()).collect()
}

fn reasons(answer: &Value) -> Vec<(u64, String)> {
    let missing = answer["missing_shards"].as_array().unwrap().iter();
    let reason =
        |of: &Value| (of["shard"].as_u64().unwrap(), of["why"].as_str().unwrap().to_string());
    missing.map(reason).collect()
}

fn loss(api: &Api, reason: &str) -> u64 {
    api.counters.losses().find(|(of, _)| *of == reason).unwrap().1
}

async fn check_cluster(ports: &Ports, http: &reqwest::Client) {
    let names: BTreeSet<String> = (0..JOBS).map(|number| format!("j{number}@0")).collect();
    let names: Vec<Value> = names.into_iter().map(Value::from).collect();
    let mut incidents = Vec::new();
    for shard in 0..3 {
        let get = |path: &str| ask(http.get(format!("{}/api/v1/{path}", ports.url(shard))));
        let (status, missing, jobs) = get("jobs").await;
        assert_eq!((status, missing.as_str()), (200, ""), "{jobs}");
        assert_eq!(field(&jobs["jobs"], "job"), names, "asked shard {shard}");
        assert_eq!(jobs["missing_shards"], Value::Array(Vec::new()));
        let (_, _, all) = get("incidents").await;
        let mut ids = field(&all["incidents"], "id");
        ids.sort_by_key(Value::to_string);
        assert_eq!(ids.len(), JOBS);
        assert!(incidents.is_empty() || incidents == ids, "the same at each coordinator");
        incidents = ids;
        let (_, _, all) = get("incidents?job=j7").await;
        assert_eq!(field(&all["incidents"], "job"), ["j7@0"]);
        let (_, _, cluster) = get("cluster").await;
        assert_eq!(field(&cluster["shards"], "shard"), [0, 1, 2]);
        let urls: Vec<Value> = (0..3).map(|shard| ports.url(shard).into()).collect();
        assert_eq!(field(&cluster["shards"], "owner"), urls);
        // Both coordinators know the node; it is one.
        assert_eq!(field(&get("nodes").await.2["nodes"], "node"), ["n"]);
    }
    for shard in 0..3 {
        let get = |path: &str| ask(http.get(format!("{}/api/v1/{path}", ports.url(shard))));
        for name in ["j0", "j1", "j2", "j3@0", "j4"] {
            let (status, _, ranks) = get(&format!("jobs/{name}/ranks")).await;
            assert_eq!((status, ranks["ranks"].as_array().unwrap().len()), (200, 1), "{name}");
        }
        for id in &incidents[..5] {
            let (status, _, incident) = get(&format!("incidents/{}", id.as_str().unwrap())).await;
            assert_eq!((status, &incident["id"]), (200, id));
        }
        for path in ["jobs/none/ranks", "incidents/inc-none", "captures/cap-0000c1s"] {
            let (status, missing, answer) = get(path).await;
            assert_eq!((status, missing.as_str()), (404, ""), "{path}: {answer}");
        }
        // The mark of a coordinator gives less, and nothing else.
        let marked = http.get(format!("{}/api/v1/jobs", ports.url(shard))).header(GATHERED, shard);
        let (_, _, own) = ask(marked).await;
        let is_own = |name: &Value| {
            let name = name.as_str().unwrap().trim_end_matches("@0");
            shard_of(name, 3) as usize == shard
        };
        let expected: Vec<Value> = names.iter().filter(|name| is_own(name)).cloned().collect();
        assert_eq!(field(&own["jobs"], "job"), expected, "shard {shard} alone");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_coordinator_answers_for_all() {
    let mut ports = Ports::of(3, "http").await;
    (0..3).for_each(|shard| ports.coordinator(shard, None));
    check_cluster(&ports, &http()).await;
    // What people do about an incident goes to the owner of its shard.
    let url = |shard: usize| format!("{}/api/v1/incidents", ports.url(shard));
    let (_, _, all) = ask(http().get(url(0))).await;
    for (asked, id) in field(&all["incidents"], "id").iter().take(6).enumerate() {
        let one = |asked: usize| format!("{}/{}", url(asked % 3), id.as_str().unwrap());
        let wish = format!("{{\"note\":\"asked {asked}\"}}");
        let (status, _, answer) = ask(http().post(one(asked) + "/thread").body(wish)).await;
        assert_eq!((status, &answer["id"]), (200, id), "{answer}");
        let (_, _, known) = ask(http().get(one(asked + 1))).await;
        assert_eq!(known["thread"]["entries"][0]["text"], format!("asked {asked}"));
        assert_eq!(known["thread"]["notes_total"], 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn coordinators_with_tls_trust_their_own_authority() {
    drop(http());
    let mut ports = Ports::of(3, "https").await;
    let [authority, own] = ["authority", "coordinator"].map(|name| ports.folder.path().join(name));
    make(&authority).unwrap();
    let hosts = Party::Coordinator(vec!["127.0.0.1".to_string()]);
    issue(&authority, &own, &hosts, 30).unwrap();
    (0..3).for_each(|shard| ports.coordinator(shard, Some(&own)));
    let tls = ServerTls::open(&own).unwrap().client();
    let http = reqwest::Client::builder().tls_backend_preconfigured(tls);
    let http = http.pool_max_idle_per_host(0).build().unwrap();
    check_cluster(&ports, &http).await;
    // An owner below another authority, such as of another cluster, gets no request.
    let [authority, other] = ["others", "other"].map(|name| ports.folder.path().join(name));
    make(&authority).unwrap();
    issue(&authority, &other, &hosts, 30).unwrap();
    ports.listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
    ports.set(1, &format!("https://{}", ports.listeners[0].local_addr().unwrap()));
    let url = ports.url(0);
    ports.coordinator(1, Some(&other));
    let (_, missing, _) = ask(http.get(format!("{url}/api/v1/jobs"))).await;
    assert_eq!(missing, "1");
    // Nor does one without TLS.
    ports.listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
    ports.set(1, &format!("http://{}", ports.listeners[0].local_addr().unwrap()));
    let asked = ports.stand_in(StatusCode::OK, r#"{"jobs":[]}"#);
    let (_, missing, jobs) = ask(http.get(format!("{url}/api/v1/jobs")).bearer_auth("abc")).await;
    assert_eq!((missing.as_str(), asked.lock().unwrap().len()), ("1", 0));
    assert_eq!(reasons(&jobs), [(1, Absent::OtherScheme.to_string())]);
}

/// Every cause for which a shard is missing from a list has its own line.
#[tokio::test(flavor = "multi_thread")]
async fn owners_that_do_not_answer_are_named() {
    let mut ports = Ports::of(8, "http").await;
    ports.coordinator(0, None);
    // 1: none listens. 2: it never answers. 3: it answers in part.
    drop(ports.listeners.remove(0));
    ports.answer_by(Router::new().fallback(std::future::pending::<()>));
    ports.answer_by(Router::new().fallback(async || {
        (
            [(header::CONTENT_LENGTH, "100")],
            Body::from_stream(tokio_stream::pending::<Result<Bytes, axum::Error>>()),
        )
    }));
    let asked = ports.stand_in(StatusCode::INTERNAL_SERVER_ERROR, "");
    ports.stand_in(StatusCode::OK, "<html>");
    ports.set(6, "https://127.0.0.1:1");
    ports.set(7, "");
    let (status, missing, jobs) = ask(http().get(format!("{}/api/v1/jobs", ports.url(0)))).await;
    assert_eq!((status, missing.as_str()), (200, "1,2,3,4,5,6,7"));
    assert!(!jobs["jobs"].as_array().unwrap().is_empty(), "its own jobs are there");
    let expected = [
        (1, Absent::Unreachable),
        (2, Absent::Late(LIST_TIME_MAX)),
        (3, Absent::Late(LIST_TIME_MAX)),
        (4, Absent::Refused(StatusCode::INTERNAL_SERVER_ERROR)),
        (5, Absent::NoList),
        (6, Absent::OtherScheme),
        (7, Absent::NoOwner),
    ];
    let expected: Vec<_> = expected.iter().map(|(shard, why)| (*shard, why.to_string())).collect();
    assert_eq!(reasons(&jobs), expected);
    assert_eq!(jobs["missing_shards"][0]["owner"], ports.url(1));
    assert_eq!(asked.lock().unwrap().len(), 1);
}

/// A thing that none of those who answer knows is not called unknown while a shard is missing.
#[tokio::test(flavor = "multi_thread")]
async fn a_thing_of_a_shard_without_an_answer_is_not_unknown() {
    let mut ports = Ports::of(3, "http").await;
    ports.coordinator(0, None);
    ports.stand_in(StatusCode::NOT_FOUND, "{}");
    drop(ports.listeners.remove(0));
    let job = (0..).map(|number| format!("n{number}"));
    let job = job.into_iter().find(|job| shard_of(job, 3) == 2).unwrap();
    for path in ["captures/cap-0000c1s-0123456789-alone".to_string(), format!("jobs/{job}/ranks")] {
        let (status, missing, answer) =
            ask(http().get(format!("{}/api/v1/{path}", ports.url(0)))).await;
        assert_eq!((status, missing.as_str()), (503, "2"), "{path}");
        let line = answer["error"].as_str().unwrap();
        assert!(line.contains("shard 2 http://127.0.0.1:"), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_is_passed_on_and_nothing_else() {
    let mut ports = Ports::of(2, "http").await;
    ports.coordinator(0, None);
    let asked = ports.stand_in(StatusCode::OK, r#"{"jobs":[]}"#);
    let url = format!("{}/api/v1/jobs?job=a%20b", ports.url(0));
    let request =
        || http().get(&url).header("x-forwarded-for", "10.0.0.1").header("te", "trailers");
    ask(request().header("authorization", "Bearer abc").header("cookie", "memtape_token=no")).await;
    ask(request().header("cookie", "other=1; memtape_token=def; third=2")).await;
    ask(request().header("origin", ports.url(0))).await;
    let mut seen = Vec::new();
    for (line, headers, content) in asked.lock().unwrap().iter() {
        assert_eq!((line.as_str(), content.len()), ("GET /api/v1/jobs?job=a%20b", 0));
        let token = headers.get("authorization").map(|token| token.to_str().unwrap().to_string());
        seen.push(token.unwrap_or_default());
        assert_eq!(headers["host"], ports.url(1).trim_start_matches("http://"));
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.retain(|name| *name != "authorization");
        names.sort_unstable();
        assert_eq!(names, ["accept", "host", "memtape-gathered"]);
    }
    assert_eq!(seen, ["Bearer abc", "Bearer def", ""]);
}

/// What a rank has kept is asked of the owner of the capture, with its range of steps.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_of_a_capture_is_asked_of_its_owner() {
    let mut ports = Ports::of(3, "http").await;
    ports.coordinator(0, None);
    let other = ports.stand_in(StatusCode::OK, "{}");
    let owner = ports.stand_in(StatusCode::OK, r#"{"bytes":7}"#);
    let id = Ids::of_shard(2, 3).next(0, Kind::Capture);
    let path = format!("/api/v1/captures/{id}/kept?rank=2&from=3&to=9");
    let (status, missing, answer) = ask(http().get(ports.url(0) + &path)).await;
    assert_eq!((status, missing.as_str(), &answer["bytes"]), (200, "", &Value::from(7)));
    let lines: Vec<String> = owner.lock().unwrap().iter().map(|of| of.0.clone()).collect();
    assert_eq!((lines, other.lock().unwrap().len()), (vec![format!("GET {path}")], 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_reaches_one_owner_that_knows_the_thing() {
    let mut ports = Ports::of(4, "http").await;
    ports.coordinator(0, None);
    let answers = [(404, "{}"), (202, r#"{"id":"two"}"#), (202, r#"{"id":"three"}"#)];
    let asked = answers
        .map(|(status, answer)| ports.stand_in(StatusCode::from_u16(status).unwrap(), answer));
    let counts = || asked.iter().map(|of| of.lock().unwrap().len()).collect::<Vec<_>>();
    let post = |path: &str| {
        let request = http().post(format!("{}/api/v1/{path}", ports.url(0)));
        ask(request.header("content-type", "application/json").body("{\"step\":7}"))
    };
    // Its id tells no shard: one after the other.
    let (status, _, answer) = post("incidents/inc-odd/approve").await;
    assert_eq!((status, &answer["id"]), (202, &Value::from("two")));
    assert_eq!(counts(), [1, 1, 0]);
    // The id tells its shard.
    let id = Ids::of_shard(3, 4).next(0, Kind::Incident);
    assert_eq!(post(&format!("incidents/{id}/approve")).await.2["id"], "three");
    assert_eq!(counts(), [1, 1, 1]);
    // So does the name of a job, and its content comes along.
    let job = (0..).map(|number| format!("n{number}")).find(|job| shard_of(job, 4) == 2).unwrap();
    assert_eq!(post(&format!("jobs/{job}/captures")).await.2["id"], "two");
    assert_eq!(counts(), [1, 2, 1]);
    let (line, headers, content) = asked[1].lock().unwrap().pop().unwrap();
    assert_eq!(line, format!("POST /api/v1/jobs/{job}/captures"));
    assert_eq!(
        (&headers["content-type"], &content[..]),
        (&HeaderValue::from_static("application/json"), &b"{\"step\":7}"[..])
    );
    // A body beyond its bound goes to none.
    let large = vec![b'x'; REQUEST_BYTES_MAX + 1];
    let request = http().post(format!("{}/api/v1/jobs/{job}/captures", ports.url(0))).body(large);
    assert_eq!(ask(request).await.0, 413);
    assert_eq!(counts(), [1, 1, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_is_passed_on_part_by_part() {
    let mut ports = Ports::of(2, "http").await;
    ports.coordinator(0, None);
    let (parts, waiting) = mpsc::channel::<Result<Bytes, std::io::Error>>(1);
    let waiting = Arc::new(Mutex::new(Some(waiting)));
    ports.answer_by(Router::new().fallback(async move || {
        let parts = ReceiverStream::new(waiting.lock().unwrap().take().unwrap());
        let headers = [
            (header::CONTENT_LENGTH, "6"),
            (header::CONTENT_TYPE, "application/octet-stream"),
            (header::CONTENT_DISPOSITION, "attachment; filename=\"a.pickle\""),
            (header::SET_COOKIE, "memtape_token=theirs"),
        ];
        (axum::response::AppendHeaders(headers), Body::from_stream(parts))
    }));
    let id = Ids::of_shard(1, 2).next(0, Kind::Capture);
    let url = format!("{}/api/v1/captures/{id}/ranks/0/pickle", ports.url(0));
    let mut answer = http().get(url).send().await.unwrap();
    assert_eq!(answer.headers()["content-disposition"], "attachment; filename=\"a.pickle\"");
    assert!(answer.headers().get("set-cookie").is_none());
    // The second part is sent when the first has come.
    for part in ["abc", "def"] {
        parts.send(Ok(Bytes::from(part))).await.unwrap();
        assert_eq!(answer.chunk().await.unwrap().unwrap(), part);
    }
    drop(parts);
    assert_eq!(answer.chunk().await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_that_of_the_shard_that_is_asked_for() {
    let mut ports = Ports::of(3, "http").await;
    let [first, second] = [0, 1].map(|shard| ports.start(shard, None, None));
    let stores = [first.store.id(), second.store.id()];
    let backup = async |at: usize, query: &str| {
        let url = format!("{}/api/v1/store/backup{query}", ports.url(at));
        let answer = http().get(url).send().await.unwrap();
        let part = answer.headers().get("memtape-shard").map(|part| part.to_str().unwrap());
        let part = part.unwrap_or_default().to_string();
        let (status, content) = (answer.status().as_u16(), answer.bytes().await.unwrap());
        let content = String::from_utf8_lossy(&content).into_owned();
        // The header at its end has the id of the store.
        (status, (stores.iter().position(|id| content.contains(*id)), part), content)
    };
    for at in [0, 1] {
        let said = |shard: usize| (Some(shard), format!("{shard}/3"));
        assert_eq!(backup(at, "?snapshots=false").await.1, said(at));
        for shard in [0, 1] {
            let (status, of, _) = backup(at, &format!("?snapshots=false&shard={shard}")).await;
            assert_eq!((status, of), (200, said(shard)), "asked at {at}");
        }
    }
    ports.set(2, "");
    let (status, _, problem) = backup(0, "?shard=2").await;
    assert!(status == 503 && problem.contains("shard 2 "), "{problem}");
    for (query, expected) in [("?shard=3", 404), ("?shard=x", 400)] {
        let (status, _, problem) = backup(1, query).await;
        assert_eq!(status, expected, "{problem}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_is_the_coordinator_itself_makes_no_loop() {
    let mut ports = Ports::of(2, "http").await;
    ports.coordinator(0, None);
    ports.set(1, &ports.url(0));
    let (status, missing, jobs) = ask(http().get(format!("{}/api/v1/jobs", ports.url(0)))).await;
    assert_eq!((status, missing.as_str()), (200, "1"), "its own list is not taken for another");
    let why = Absent::Elsewhere.to_string();
    assert_eq!(reasons(&jobs), [(1, why)]);
    assert!(!jobs["jobs"].as_array().unwrap().is_empty());
    let (status, ..) = ask(http().get(format!("{}/api/v1/captures/none", ports.url(0)))).await;
    assert_eq!(status, 503);
}

/// The owner gets no request of a caller whom the coordinator itself refuses, nor one in the name
/// of a certificate.
#[tokio::test(flavor = "multi_thread")]
async fn callers_without_a_token_reach_no_other_owner() {
    let mut ports = Ports::of(2, "http").await;
    drop(ports.listeners.remove(0));
    let asked = ports.stand_in(StatusCode::OK, r#"{"jobs":[]}"#);
    let (coordinator, api, queues) = ports.without_server(0, None, Some(ROLES));
    tokio::spawn(follow(coordinator, queues));
    let router = routes::router(api, &[]);
    let [authority, own] = ["authority", "alice"].map(|name| ports.folder.path().join(name));
    make(&authority).unwrap();
    issue(&authority, &own, &Party::User("alice".to_string()), 30).unwrap();
    let certificate = CertificateDer::from_pem_file(own.join("tls.crt")).unwrap();
    let answer = async |path: &str, is_proven: bool| {
        let peer = Peer::new(SocketAddr::from(([127, 0, 0, 1], 1)));
        if is_proven {
            peer.prove(vec![certificate.clone()]);
        }
        let call = Arc::new(Connections::new(8)).open(peer).begin();
        let request = Request::get(path).header("host", "localhost").extension(call);
        let request = request.body(Body::empty()).unwrap();
        let router = hyper_util::service::TowerToHyperService::new(router.clone());
        let answer = hyper::service::Service::call(&router, request).await.unwrap();
        let (status, content) = (answer.status().as_u16(), answer.into_body());
        let content = to_bytes(content, usize::MAX).await.unwrap();
        (status, serde_json::from_slice::<Value>(&content).unwrap())
    };
    let job = (0..).map(|number| format!("n{number}")).find(|job| shard_of(job, 2) == 1).unwrap();
    let ranks = format!("/api/v1/jobs/{job}/ranks");
    for path in ["/api/v1/jobs", &ranks, "/api/v1/captures/none"] {
        assert_eq!(answer(path, false).await.0, 401, "{path}");
    }
    let (status, jobs) = answer("/api/v1/jobs", true).await;
    assert_eq!((status, reasons(&jobs)), (200, vec![(1, Absent::CertificateAlone.to_string())]));
    for path in [&ranks, "/api/v1/captures/none"] {
        let (status, problem) = answer(path, true).await;
        let line = problem["error"].as_str().unwrap();
        assert_eq!(status, 503, "{path}: {line}");
        assert!(line.contains(&Absent::CertificateAlone.to_string()), "{line}");
    }
    assert_eq!(asked.lock().unwrap().len(), 0);
}

/// A token of the first shard is one at each coordinator, until it is revoked there.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_the_first_shard_is_known_at_all() {
    let mut ports = Ports::of(3, "http").await;
    let apis = [0, 1, 2].map(|shard| ports.start(shard, None, Some(ROLES)));
    let tokens = &apis[0].door.tokens;
    let wanted =
        TokenRecord { name: "ci".into(), expires_wall_ns: i64::MAX, ..TokenRecord::default() };
    let (token, record) = tokens.create(wanted, AuditRecord::default()).await.unwrap();
    let get = |shard: usize, token: &str| {
        let request = http().get(format!("{}/api/v1/jobs", ports.url(shard)));
        ask(request.bearer_auth(token.to_string()))
    };
    for shard in [2, 1, 0] {
        let (status, missing, jobs) = get(shard, &token).await;
        assert_eq!((status, missing.as_str()), (200, ""), "{jobs}");
        assert_eq!(jobs["jobs"].as_array().unwrap().len(), JOBS);
        // Another secret is another token.
        for other in [format!("{token}x"), "mtk_0_0".to_string()] {
            assert_eq!(get(shard, &other).await.0, 401, "{other}");
        }
        let of_shard = |path| http().get(format!("{}/api/v1/{path}", ports.url(shard)));
        let (status, _, own) = ask(of_shard("tokens/own").bearer_auth(&token)).await;
        assert_eq!((status, &own["id"]), (200, &Value::from(record.id.clone())));
        // It gives no more rights at one coordinator than at another.
        assert_eq!(ask(of_shard("tokens").bearer_auth(&token)).await.0, 403);
        let session = http().post(format!("{}/api/v1/session", ports.url(shard)));
        let (status, _, who) = ask(session.json(&serde_json::json!({"token": token}))).await;
        assert_eq!((status, &who["name"]), (200, &Value::from("token:ci")));
    }
    // While the first shard has no owner its tokens count where they are known.
    let url = ports.url(0);
    ports.set(0, "");
    let (status, missing, _) = get(1, &token).await;
    assert_eq!((status, missing.as_str()), (200, "0"));
    let (status, _, problem) = get(1, "mtk_1_1").await;
    assert_eq!(status, 503);
    assert!(problem["error"].as_str().unwrap().starts_with("the token cannot be checked: shard 0"));
    // Nor is it asked of a coordinator that owns another shard by now.
    ports.set(0, &ports.url(1));
    assert_eq!((get(1, &token).await.0, get(1, "mtk_1_1").await.0), (200, 503));
    ports.set(0, &url);
    tokens.revoke(&record.id, 1, AuditRecord::default()).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while get(1, &token).await.0 != 401 {
        assert!(Instant::now() < deadline, "a revoked token stays valid");
        sleep(Duration::from_millis(100)).await;
    }
}

/// One shard is a coordinator as it always was.
#[tokio::test(flavor = "multi_thread")]
async fn with_one_shard_nothing_is_gathered() {
    let mut ports = Ports::of(1, "http").await;
    ports.coordinator(0, None);
    let (status, missing, cluster) =
        ask(http().get(format!("{}/api/v1/cluster", ports.url(0)))).await;
    assert_eq!((status, missing.as_str()), (200, ""));
    assert_eq!(field(&cluster["shards"], "shard"), [0]);
    let (_, _, jobs) = ask(http().get(format!("{}/api/v1/jobs", ports.url(0)))).await;
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), JOBS);
}

/// The steps of a job are asked of its owner, whichever coordinator is asked.
#[tokio::test(flavor = "multi_thread")]
async fn the_steps_of_a_job_come_from_its_owner() {
    let mut ports = Ports::of(2, "http").await;
    ports.coordinator(0, None);
    ports.coordinator(1, None);
    for shard in 0..2 {
        let mut jobs = (0..JOBS).map(|number| format!("j{number}"));
        let job = jobs.find(|job| shard_of(job, 2) == shard).unwrap();
        for asked in 0..2 {
            let get = |rest: &str| {
                ask(http().get(format!("{}/api/v1/jobs/{job}/{rest}", ports.url(asked))))
            };
            let (status, _, series) = get("series?rank=0&account=host").await;
            assert_eq!((status, &series["account"]["name"]), (200, &Value::from("host")));
            let (status, _, area) = get("area?account=step_time").await;
            assert_eq!((status, &area["account"]), (200, &Value::from("step_time")));
            assert_eq!(area["job"], format!("{job}@0"));
            assert_eq!(get("area?first_rank=1").await.0, 404);
        }
    }
}
