//! Who may do what: with real certificates and tokens, over the real network.
//!
//! The clients' TLS is that of other libraries than the coordinator's own.

mod names;
mod sources;
mod streams;
mod threads;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memtape_coordinator::Config;
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as FromAgent;
use memtape_tls::authority::{Party, issue, make};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use tonic::Code;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::fake::{Agent, Job, PATIENCE, Running, config, start};

const ROLES: &str = r#"
[[grant]]
role = "agent"
names = ["spiffe://memtape/agent/{node}"]
[[grant]]
role = "admin"
names = ["spiffe://memtape/user/admin"]
[[grant]]
role = "viewer"
names = ["spiffe://memtape/user/alice"]
uids = [1000]
[[grant]]
role = "operator"
names = ["spiffe://memtape/user/olga"]
uids = [1000]
"#;

const JOB: Job = Job::new("alices-job", 2);
const OTHER: Job = Job { run: 2, ..Job::new("bobs-secret", 2) };

/// A cluster with certificates.
struct Cluster {
    folder: TempDir,
    running: Running,
}

fn authority(folder: &Path) -> PathBuf {
    let authority = folder.join("authority");
    make(&authority).unwrap();
    authority
}

impl Cluster {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = authority(folder.path());
        let hosts = vec!["localhost".to_string(), "127.0.0.1".to_string()];
        let certificates = folder.path().join("coordinator");
        issue(&authority, &certificates, &Party::Coordinator(hosts), 30).unwrap();
        std::fs::write(folder.path().join("access.toml"), ROLES).unwrap();
        Self::start_in(folder).await
    }

    /// Starts a coordinator with what is in the folder.
    async fn start_in(folder: TempDir) -> Self {
        let running = start(Config {
            tls_dir: Some(folder.path().join("coordinator")),
            access_file: Some(folder.path().join("access.toml")),
            source_dirs: vec![folder.path().to_path_buf()],
            ..config(&folder.path().join("data"))
        });
        Self { running: running.await, folder }
    }

    /// The folder of a party's certificate, made when it is first asked for.
    fn of(&self, party: &Party) -> PathBuf {
        let folder = self.folder.path().join(party.name());
        if !folder.exists() {
            issue(&self.folder.path().join("authority"), &folder, party, 30).unwrap();
        }
        folder
    }

    fn user(&self, name: &str) -> Client {
        Client::new(self.running.address, &self.of(&Party::User(name.to_string())), None)
    }

    fn bearer(&self, token: &str) -> Client {
        let folder = self.of(&Party::User("admin".to_string()));
        let authority = folder.join("ca.crt");
        Client::without_certificate(self.running.address, &authority, Some(token))
    }

    async fn agent(&self, certificate_of: &str, node: &str) -> Result<Agent, tonic::Status> {
        let folder = self.of(&Party::Agent(certificate_of.to_string()));
        attach(self.running.address, &folder, node).await
    }
}

fn read(folder: &Path, name: &str) -> Vec<u8> {
    std::fs::read(folder.join(name)).unwrap()
}

/// A stream of a node's agent with the certificate in this folder; without one where there is no
/// `tls.key`.
async fn attach(address: SocketAddr, folder: &Path, node: &str) -> Result<Agent, tonic::Status> {
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(folder, "ca.crt")));
    let tls = match folder.join("tls.key").exists() {
        true => tls.identity(Identity::from_pem(read(folder, "tls.crt"), read(folder, "tls.key"))),
        false => tls,
    };
    let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
    let channel: Channel = endpoint.tls_config(tls).unwrap().connect_lazy();
    Agent::attach_on(channel, node, "boot-1").await
}

/// A client of the API.
struct Client {
    http: reqwest::Client,
    base: String,
}

impl Client {
    fn new(address: SocketAddr, folder: &Path, token: Option<&str>) -> Self {
        let tls = memtape_tls::client::ClientTls::open(folder).unwrap();
        let headers = token.map(|token| {
            let value = format!("Bearer {token}").parse().unwrap();
            reqwest::header::HeaderMap::from_iter([(reqwest::header::AUTHORIZATION, value)])
        });
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls.config())
            .default_headers(headers.unwrap_or_default())
            .pool_max_idle_per_host(0)
            .build()
            .unwrap();
        Self { http, base: format!("https://{address}/api/v1") }
    }

    fn without_certificate(address: SocketAddr, authority: &Path, token: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(authority, folder.path().join("ca.crt")).unwrap();
        Self::new(address, folder.path(), token)
    }

    async fn ask(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let request = self.http.request(method, format!("{}{path}", self.base)).json(body);
        let mut answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let kind = answer.headers().get("content-type").cloned();
        let text = if kind.is_some_and(|kind| kind == "text/event-stream") {
            // Its first event: a stream goes on.
            let event = answer.chunk().await.unwrap().unwrap_or_default();
            String::from_utf8(event.to_vec()).unwrap()
        } else {
            answer.text().await.unwrap()
        };
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.ask(Method::GET, path, &Value::Null).await
    }

    /// End of the coordinator's certificate, as the metrics have it.
    async fn certificate_end(&self) -> f64 {
        let (_, text) = self.get("/../../metrics").await;
        let name = "\nmemtape_certificate_end_timestamp_seconds ";
        let (_, end) = text.as_str().unwrap().split_once(name).expect("it is exported");
        end.lines().next().unwrap().parse().unwrap()
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.ask(Method::POST, path, body).await
    }
}

/// Announces a job of this user, and trains a little.
async fn train(agent: &mut Agent, job: &Job, uid: u32) {
    for rank in 0..job.ranks {
        let owner = Some(v1::Owner { uid, ..v1::Owner::default() });
        agent.say(FromAgent::RankUp(v1::RankUp { owner, ..job.rank_up(rank) })).await;
    }
    agent.train(job, 1..=8).await;
}

#[tokio::test]
async fn an_agent_is_bound_to_its_node() {
    let cluster = Cluster::start().await;
    let mut agent = cluster.agent("n1", "n1").await.unwrap();
    train(&mut agent, &JOB, 1000).await;
    // Another node's certificate, a user's, none, and one of another authority.
    let address = cluster.running.address;
    let refused = |result: Result<Agent, tonic::Status>| result.err().map(|status| status.code());
    assert_eq!(refused(cluster.agent("n2", "n1").await), Some(Code::PermissionDenied));
    let user = cluster.of(&Party::User("admin".to_string()));
    assert_eq!(refused(attach(address, &user, "n1").await), Some(Code::PermissionDenied));
    let unproven = cluster.folder.path().join("unproven");
    std::fs::create_dir(&unproven).unwrap();
    std::fs::copy(user.join("ca.crt"), unproven.join("ca.crt")).unwrap();
    assert_eq!(refused(attach(address, &unproven, "n1").await), Some(Code::PermissionDenied));
    let elsewhere = tempfile::tempdir().unwrap();
    let forged = elsewhere.path().join("n1");
    issue(&authority(elsewhere.path()), &forged, &Party::Agent("n1".to_string()), 30).unwrap();
    std::fs::copy(user.join("ca.crt"), forged.join("ca.crt")).unwrap();
    assert!(attach(address, &forged, "n1").await.is_err());
    // The refusal of a proven agent is in the audit.
    let (_, audit) = cluster.user("admin").get("/audit").await;
    let is_of_n2 = |entry: &&Value| entry["who"] == "spiffe://memtape/agent/n2";
    let entry = audit["entries"].as_array().unwrap().iter().find(is_of_n2).expect("an entry");
    assert!(entry["subject"].as_str().unwrap().ends_with("of node \"n1\""), "{entry}");
    // Nothing of that touched the node or its job.
    agent.train(&JOB, 9..=16).await;
    let (_, jobs) = cluster.user("admin").get("/jobs").await;
    assert_eq!(
        (&jobs["jobs"][0]["ranks_alive"], &jobs["jobs"][0]["step_max"]),
        (&json!(2), &json!(16))
    );
    cluster.running.stop().await;
}

#[tokio::test]
async fn an_agent_uploads_for_its_own_node_alone() {
    let cluster = Cluster::start().await;
    let mut agent = cluster.agent("n1", "n1").await.unwrap();
    train(&mut agent, &JOB, 1000).await;
    let mut thief = cluster.agent("n2", "n2").await.unwrap();
    let (status, asked) = cluster.user("olga").post("/jobs/alices-job/captures", &json!({})).await;
    assert_eq!(status, 202, "{asked}");
    let request = agent.asked().await;
    let chunk = v1::UploadChunk {
        capture_id: request.capture_id.clone(),
        tape_id: JOB.tape(0),
        data: b"forged".to_vec().into(),
        ..v1::UploadChunk::default()
    };
    let upload = thief.client.upload(tokio_stream::iter([chunk])).await;
    assert_eq!(upload.unwrap_err().code(), Code::FailedPrecondition);
    agent.serve(&JOB, &request).await;
    let alice = cluster.user("alice");
    let begin = Instant::now();
    loop {
        let (_, capture) = alice.get(&format!("/captures/{}", request.capture_id)).await;
        if capture["state"] == "complete" {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{capture:#}");
        sleep(Duration::from_millis(50)).await;
    }
    cluster.running.stop().await;
}

/// What a path needs behind the question mark.
fn query_of(path: &str) -> &'static str {
    match path.rsplit('/').next() {
        Some("series" | "kept" | "segments") => "?rank=0",
        Some("source") => "?file=/a.py&line=1",
        _ => "",
    }
}

/// Every request of the API, as one who may see one of two jobs: the other is nowhere.
#[tokio::test]
async fn callers_see_the_jobs_of_their_owners_alone() {
    let cluster = Cluster::start().await;
    let mut agent = cluster.agent("n1", "n1").await.unwrap();
    train(&mut agent, &JOB, 1000).await;
    let mut other = cluster.agent("bobs-node", "bobs-node").await.unwrap();
    train(&mut other, &OTHER, 1001).await;
    let admin = cluster.user("admin");
    let (_, asked) = admin.post("/jobs/bobs-secret/captures", &json!({})).await;
    let request = other.asked().await;
    other.serve(&OTHER, &request).await;
    let capture = asked["id"].as_str().unwrap();
    let (alice, olga) = (cluster.user("alice"), cluster.user("olga"));
    let (_, index) = alice.get("").await;
    let routes = index["routes"].as_array().unwrap();
    assert!(routes.len() > 15, "{index}");
    for route in routes {
        let path = route["path"].as_str().unwrap().trim_start_matches("/api/v1");
        let path = path.replace("{job}", "bobs-secret").replace("{id}", capture);
        let path = path.replace("{rank}", "0") + query_of(&path);
        let method = route["method"].as_str().unwrap().parse::<Method>().unwrap();
        let (status, said) = alice.ask(method.clone(), &path, &json!({})).await;
        let is_of_job = path.contains("bobs-secret") || path.contains(capture);
        let expected: &[u16] = match &path {
            // Alice has a certificate, and no token.
            path if path == "/tokens/own" => &[404],
            path if path.starts_with("/tokens") => &[403],
            path if path == "/audit" || path == "/store/backup" => &[403],
            path if path == "/session" => &[400],
            _ if is_of_job => &[404],
            _ => &[200],
        };
        assert!(expected.contains(&status), "{method} {path}: {status} {said}");
        // What was asked for may be repeated in the refusal, nothing more.
        let known = said.to_string().matches("bobs-secret").count();
        assert!(known <= usize::from(is_of_job), "{method} {path}: {said}");
        assert!(!said.to_string().contains("bobs-node"), "{method} {path}: {said}");
    }
    let (_, jobs) = alice.get("/jobs").await;
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 1, "{jobs}");
    assert_eq!(alice.get("/jobs/alices-job/ranks").await.0, 200);
    assert_eq!(alice.get("/jobs/alices-job/series?rank=0").await.0, 200);
    streams::check(&cluster, &mut other).await;
    // A viewer asks for no capture; an operator does, of the same jobs.
    assert_eq!(alice.post("/jobs/alices-job/captures", &json!({})).await.0, 403);
    assert_eq!(olga.post("/jobs/alices-job/captures", &json!({})).await.0, 202);
    assert_eq!(olga.post("/jobs/bobs-secret/captures", &json!({})).await.0, 404);
    assert_eq!(admin.get(&format!("/captures/{capture}/ranks/0")).await.0, 200);
    // Neither without a certificate, nor with one that has no role.
    assert_eq!(cluster.bearer("mtk_00_wrong").get("/jobs").await.0, 401);
    let folder = cluster.of(&Party::User("admin".to_string()));
    let address = cluster.running.address;
    let unproven = Client::without_certificate(address, &folder.join("ca.crt"), None);
    assert_eq!(unproven.get("/jobs").await.0, 401);
    assert_eq!(unproven.ask(Method::GET, "/../../metrics", &Value::Null).await.0, 401);
    assert_eq!(unproven.ask(Method::GET, "/../../healthz", &Value::Null).await.0, 200);
    assert_eq!(alice.ask(Method::GET, "/../../metrics", &Value::Null).await.0, 403);
    assert_eq!(admin.ask(Method::GET, "/../../metrics", &Value::Null).await.0, 200);
    assert_eq!(cluster.user("stranger").get("/jobs").await.0, 403);
    for of in 0..6 {
        assert_eq!(admin.get(&format!("/captures/{capture}/ranks/{}", of % 2)).await.0, 200);
    }
    check_audit(&admin.get("/audit").await.1, capture);
    cluster.running.stop().await;
}

/// The name of a port with TLS, as an `Origin` without TLS, is another site's.
#[tokio::test]
async fn a_page_without_tls_asks_nothing_of_a_port_with_it() {
    let cluster = Cluster::start().await;
    let admin = cluster.user("admin");
    for (scheme, expected) in [("https", 200), ("http", 403)] {
        let origin = format!("{scheme}://{}", cluster.running.address);
        let request = admin.http.get(format!("{}/jobs", admin.base)).header("origin", origin);
        assert_eq!(request.send().await.unwrap().status(), expected, "{scheme}");
    }
    cluster.running.stop().await;
}

/// Other GPUs, and the use of the host, are not shown to who sees one owner's jobs.
#[tokio::test]
async fn an_owner_sees_the_gpus_of_its_own_ranks_alone() {
    let cluster = Cluster::start().await;
    let mut agent = cluster.agent("n1", "n1").await.unwrap();
    let gpu = |number| v1::Gpu { uuid: format!("gpu-{number}"), ..v1::Gpu::default() };
    agent.gpus = (0..4).map(gpu).collect();
    train(&mut agent, &JOB, 1000).await;
    let seen = async |user: &str| {
        let (_, answer) = cluster.user(user).get("/nodes").await;
        let node = answer["nodes"][0].clone();
        (node["gpus"].as_array().unwrap().len(), node["host"]["memory_available_bytes"].as_u64())
    };
    assert_eq!(seen("admin").await, (4, Some(48 << 30)));
    assert_eq!(seen("alice").await, (2, None));
    // Nor are those of ranks that have ended.
    for rank in 0..JOB.ranks {
        let (tape_id, end) = (JOB.tape(rank), v1::RankEnd::Exited.into());
        let down = v1::RankDown { tape_id, end, step: 8, ..v1::RankDown::default() };
        agent.say(FromAgent::RankDown(down)).await;
    }
    agent.report(Vec::new()).await;
    agent.settle().await;
    assert_eq!((seen("admin").await.0, seen("alice").await.0), (4, 0));
    cluster.running.stop().await;
}

/// Reads name the rank, once a minute; a refusal is an entry with its path or the role that lacks.
fn check_audit(audit: &Value, capture: &str) {
    let subjects = |action: &str, who: &str| -> Vec<String> {
        let all = audit["entries"].as_array().unwrap().iter();
        let wanted = all.filter(|entry| entry["action"] == action && entry["who"] == who);
        wanted.map(|entry| entry["subject"].as_str().unwrap().to_string()).collect()
    };
    let ranks = [0, 1].map(|rank| format!("{capture}, rank {rank}"));
    assert_eq!(subjects("read snapshot", "spiffe://memtape/user/admin"), ranks);
    let refused = subjects("refuse request", "unknown");
    assert!(refused[0].starts_with("GET /api/v1/jobs: the token is not valid"), "{refused:?}");
    let refused = subjects("refuse request", "spiffe://memtape/user/alice").concat();
    assert!(refused.contains("lacks the role admin"), "{refused:?}");
}

#[tokio::test]
async fn health_has_a_port_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let health = free.local_addr().unwrap();
    drop(free);
    let running = start(Config { health_listen: Some(health), ..config(folder.path()) }).await;
    let ask = async |path: &str| {
        let answer = reqwest::get(format!("http://{health}{path}")).await.unwrap();
        answer.status().as_u16()
    };
    assert_eq!((ask("/healthz").await, ask("/readyz").await), (200, 200));
    assert_eq!((ask("/api/v1/jobs").await, ask("/metrics").await), (404, 404));
    // What it shares with the main port is given back at the end.
    running.stop().await;
    start(config(folder.path())).await.stop().await;
}

/// A page is signed in with a token and out again.
async fn check_session(cluster: &Cluster, grafana: &Client, secret: &str) {
    let answer = grafana.http.post(format!("{}/session", grafana.base));
    let answer = answer.json(&json!({ "token": secret })).send().await.unwrap();
    let cookie = answer.headers()["set-cookie"].to_str().unwrap().to_string();
    assert!(cookie.starts_with("__Host-memtape_token=mtk_"), "{cookie}");
    assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict; Secure"), "{cookie}");
    let folder = cluster.of(&Party::User("admin".to_string()));
    let address = cluster.running.address;
    let unproven = Client::without_certificate(address, &folder.join("ca.crt"), None);
    // It is taken from then on, under this name alone, until the page signs out.
    let pair = cookie.split(';').next().unwrap();
    for (pair, expected) in [(pair, 200), (&pair["__Host-".len()..], 401)] {
        let url = format!("{}/whoami", unproven.base);
        let answer = unproven.http.get(url).header("cookie", pair).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), expected, "{pair}");
        if expected == 200 {
            let who: Value = answer.json().await.unwrap();
            assert_eq!((&who["name"], &who["signed_in"]), (&json!("token:grafana"), &json!(true)));
        }
    }
    let answer = unproven.http.post(format!("{}/session/end", unproven.base)).send().await;
    let answer = answer.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    let gone = answer.headers()["set-cookie"].to_str().unwrap();
    assert!(gone.starts_with("__Host-memtape_token=; Max-Age=0; Path=/; "), "{gone}");
}

#[tokio::test]
async fn a_token_does_what_its_role_says_until_it_is_revoked() {
    let cluster = Cluster::start().await;
    let mut agent = cluster.agent("n1", "n1").await.unwrap();
    train(&mut agent, &JOB, 1000).await;
    let admin = cluster.user("admin");
    let wish = json!({ "name": "grafana", "role": "viewer", "uids": [1000], "days": 7 });
    let (status, made) = admin.post("/tokens", &wish).await;
    assert_eq!(status, 202, "{made}");
    let secret = made["token"].as_str().unwrap().to_string();
    let grafana = cluster.bearer(&secret);
    assert_eq!(grafana.get("/whoami").await.1["name"], "token:grafana");
    assert_eq!(grafana.get("/jobs").await.1["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(grafana.get("/tokens").await.0, 403);
    assert_eq!(grafana.post("/tokens", &wish).await.0, 403);
    let changed = format!("{}x", &secret[..secret.len() - 1]);
    assert_eq!(cluster.bearer(&changed).get("/jobs").await.0, 401);
    for wrong in [
        json!({ "name": "a", "role": "owner", "days": 7 }),
        json!({ "name": "a", "role": "agent", "days": 7 }),
        json!({ "name": "", "role": "viewer", "days": 7 }),
        json!({ "name": "a\nb", "role": "viewer", "days": 7 }),
        json!({ "name": "a", "role": "viewer", "days": 0 }),
        json!({ "name": "a", "role": "viewer", "days": 9999 }),
        json!({ "name": "a", "role": "admin", "uids": [1], "days": 7 }),
    ] {
        assert_eq!(admin.post("/tokens", &wrong).await.0, 400, "{wrong}");
    }
    check_session(&cluster, &grafana, &secret).await;
    // Nothing of the secret is in the list, in the store or in the audit.
    let (_, list) = admin.get("/tokens").await;
    assert_eq!(
        (list["tokens"][0]["name"].as_str(), &list["tokens"][0]["valid"]),
        (Some("grafana"), &json!(true))
    );
    let (_, audit) = admin.get("/audit").await;
    assert_eq!(actions(&audit), ["use roles", "create token", "read audit"], "{audit}");
    assert_eq!(audit["entries"][1]["who"], "spiffe://memtape/user/admin");
    assert!(!format!("{list}{audit}").contains(&secret));
    let id = made["id"].as_str().unwrap();
    assert_eq!(grafana.post(&format!("/tokens/{id}/revoke"), &json!({})).await.0, 403);
    assert_eq!(admin.post(&format!("/tokens/{id}/revoke"), &json!({})).await.0, 200);
    assert_eq!(grafana.get("/jobs").await.0, 401);
    // After a restart it is still revoked, and the audit goes on.
    let Cluster { folder, running } = cluster;
    running.stop().await;
    let bytes = files(&folder.path().join("data"));
    assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()));
    let cluster = Cluster::start_in(folder).await;
    assert_eq!(cluster.bearer(&secret).get("/jobs").await.0, 401);
    let (_, audit) = cluster.user("admin").get("/audit?after=3").await;
    assert_eq!(audit["entries"][0]["number"], 4, "{audit}");
    assert_eq!(audit["broken_at"], Value::Null);
    cluster.running.stop().await;
}

/// A revocation takes rights away: that its caller did much before is no reason to refuse it.
#[tokio::test]
async fn a_token_is_revoked_and_audited_beyond_the_callers_rate() {
    let cluster = Cluster::start().await;
    let admin = cluster.user("admin");
    let wish = |name: &str| json!({ "name": name, "role": "admin", "days": 7 });
    let (_, second) = admin.post("/tokens", &wish("second")).await;
    let second = cluster.bearer(second["token"].as_str().unwrap());
    let mut made = Vec::new();
    let refused = loop {
        let (status, answer) = admin.post("/tokens", &wish("more")).await;
        match status {
            202 => made.push(answer["id"].as_str().unwrap().to_string()),
            other => break other,
        }
        // Refilled once a second.
        assert!(made.len() < 900, "the audit's rate has no end");
    };
    assert_eq!(refused, 429);
    let path = format!("/tokens/{}/revoke", made[0]);
    let (status, revoked) = admin.post(&path, &json!({})).await;
    assert_eq!((status, &revoked["valid"]), (200, &json!(false)), "{revoked}");
    let (_, audit) = second.get(&format!("/audit?after={}", made.len())).await;
    let entries = audit["entries"].as_array().unwrap();
    let is_meant =
        |entry: &&Value| entry["action"] == "revoke token" && entry["subject"] == json!(made[0]);
    let entry = entries.iter().find(is_meant).expect("the revocation is in the audit");
    assert_eq!(entry["who"], "spiffe://memtape/user/admin");
    cluster.running.stop().await;
}

/// The file of roles is changed while no coordinator runs.
#[tokio::test]
async fn the_audit_shows_which_roles_count() {
    let cluster = Cluster::start().await;
    let Cluster { folder, running } = cluster;
    running.stop().await;
    let file = folder.path().join("access.toml");
    let changed = format!("{ROLES}\n# changed\n");
    std::fs::write(&file, &changed).unwrap();
    let cluster = Cluster::start_in(folder).await;
    let (_, audit) = cluster.user("admin").get("/audit").await;
    assert_eq!(actions(&audit), ["use roles", "use roles", "read audit"], "{audit}");
    for (number, roles) in [ROLES, &changed].into_iter().enumerate() {
        let hash = blake3::hash(roles.as_bytes()).to_hex();
        let subject = audit["entries"][number]["subject"].as_str().unwrap();
        assert!(subject.ends_with(&format!("access.toml, blake3 {hash}")), "{audit}");
    }
    cluster.running.stop().await;
}

fn actions(audit: &Value) -> Vec<&str> {
    let entries = audit["entries"].as_array().unwrap().iter();
    let allowed = entries.filter(|entry| entry["action"] != "refuse request");
    allowed.filter_map(|entry| entry["action"].as_str()).collect()
}

/// All bytes of all files below a folder.
fn files(folder: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        match entry.path() {
            path if path.is_dir() => all.extend(files(&path)),
            path => all.extend(std::fs::read(path).unwrap_or_default()),
        }
    }
    all
}

#[tokio::test]
async fn what_is_replaced_or_taken_away_counts_at_once_for_open_streams() {
    let cluster = Cluster::start().await;
    let mut denied = cluster.agent("n1", "n1").await.unwrap();
    let mut kept = cluster.agent("n2", "n2").await.unwrap();
    let roles = format!("deny = [\"spiffe://memtape/agent/n1\"]\n{ROLES}");
    // A file that is wrong changes nothing; one that is right does.
    let file = cluster.folder.path().join("access.toml");
    std::fs::write(&file, "nonsense").unwrap();
    sleep(Duration::from_secs(6)).await;
    assert_eq!(cluster.user("admin").get("/jobs").await.0, 200);
    std::fs::write(&file, roles).unwrap();
    denied.ended().await;
    let refused = cluster.agent("n1", "n1").await.err().unwrap();
    assert!(refused.message().starts_with("spiffe://memtape/agent/n1 is denied"), "{refused}");
    train(&mut kept, &JOB, 1000).await;
    let end = cluster.user("admin").certificate_end().await;
    // A new authority: the old one's certificates end, those of the new one are taken.
    let new = cluster.folder.path().join("new");
    let authority = authority(&new);
    let hosts = vec!["127.0.0.1".to_string()];
    issue(&authority, &new.join("coordinator"), &Party::Coordinator(hosts), 30).unwrap();
    for name in ["ca.crt", "tls.crt", "tls.key"] {
        let to = cluster.folder.path().join("coordinator").join(name);
        std::fs::rename(new.join("coordinator").join(name), to).unwrap();
    }
    kept.ended().await;
    assert!(cluster.agent("n2", "n2").await.is_err());
    issue(&authority, &new.join("n2"), &Party::Agent("n2".to_string()), 30).unwrap();
    let mut agent = attach(cluster.running.address, &new.join("n2"), "n2").await.unwrap();
    train(&mut agent, &Job { run: 3, ..JOB }, 1000).await;
    let admin = Party::User("admin".to_string());
    issue(&authority, &new.join("admin"), &admin, 30).unwrap();
    let admin = Client::new(cluster.running.address, &new.join("admin"), None);
    assert!(admin.certificate_end().await > end, "the metric follows the files");
    let (_, audit) = admin.get("/audit").await;
    let expected = ["use roles", "replace roles", "replace certificates", "read audit"];
    assert_eq!(actions(&audit), expected, "{audit}");
    cluster.running.stop().await;
}

#[tokio::test]
async fn a_client_whose_certificate_has_ended_is_counted() {
    let cluster = Cluster::start().await;
    let folder = cluster.folder.path().join("ended");
    let party = Party::Agent("n1".to_string());
    issue(&cluster.folder.path().join("authority"), &folder, &party, 0).unwrap();
    // Times in certificates are whole seconds.
    sleep(Duration::from_secs(1)).await;
    assert!(attach(cluster.running.address, &folder, "n1").await.is_err());
    let (_, metrics) = cluster.user("admin").get("/../../metrics").await;
    let metrics = metrics.as_str().unwrap();
    let counted = "memtape_losses_total{reason=\"connection_distrusted\"}";
    let line = metrics.lines().find(|line| line.starts_with(counted)).expect(metrics);
    assert!(!line.ends_with(" 0"), "{line}");
    cluster.running.stop().await;
}
