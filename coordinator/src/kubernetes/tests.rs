//! Leases: a stand-in for the API server that keeps one `resourceVersion` for each object and
//! refuses writes on another one, and the same against a real server (`cargo xtask kube`).

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use kube::Config;
use memtape_bucket::{Fault, Rule, Server};
use memtape_core::placement::Owner;
use memtape_store::Kind;
use memtape_store::bucket::Bucket;
use memtape_store::cluster::hint::{Hint, Placement as _};
use memtape_store::cluster::shard::ShardId;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::api::Api;
use super::lease::{Lease, Leases};
use crate::cluster::Member;

/// The chart's objects of a coordinator.
const CHART: &str = include_str!("../../../deploy/helm/memtape/templates/coordinator.yaml");

/// Path of the pods.
const PODS: &str = "/api/v1/namespaces/default/pods/";

/// Far more than anything takes here.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the stand-in has: the Leases by path, and the verbs that were used.
#[derive(Default)]
struct Kept {
    leases: BTreeMap<String, Value>,
    verbs: BTreeSet<&'static str>,
    /// Pods with the label.
    serving: Vec<String>,
    version: u64,
}

type Shared = Arc<Mutex<Kept>>;

async fn answer(State(kept): State<Shared>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let mut content: Value = serde_json::from_slice(&body).unwrap_or_default();
    let mut path = parts.uri.path().to_string();
    let mut kept = kept.lock().unwrap();
    if let Some(pod) = path.strip_prefix(PODS) {
        assert_eq!(parts.method, "PATCH");
        let label = content["metadata"]["labels"]["memtape.io/serves"].as_str();
        kept.serving.retain(|known| known != pod);
        kept.serving.extend(label.map(|_| pod.to_string()));
        return content.to_string().into_response();
    }
    let verb = match parts.method.as_str() {
        "GET" => "get",
        "POST" => "create",
        _ => "patch",
    };
    kept.verbs.insert(verb);
    if verb == "create" {
        path = format!("{path}/{}", content["metadata"]["name"].as_str().unwrap());
    }
    let known = kept.leases.get(&path).cloned();
    let status = |status: StatusCode| (status, json!({ "kind": "Status" }).to_string());
    match (verb, known) {
        ("get", Some(lease)) => return lease.to_string().into_response(),
        ("create", None) => {}
        ("create", Some(_)) => return status(StatusCode::CONFLICT).into_response(),
        (_, None) => return status(StatusCode::NOT_FOUND).into_response(),
        (_, Some(lease)) => {
            let of = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
            if of(&lease) != of(&content) {
                return status(StatusCode::CONFLICT).into_response();
            }
        }
    }
    kept.version += 1;
    content["metadata"]["resourceVersion"] = json!(kept.version.to_string());
    kept.leases.insert(path, content.clone());
    content.to_string().into_response()
}

/// The API server and the bucket of one cluster.
struct Rig {
    config: Config,
    kept: Shared,
    bucket: Server,
}

impl Rig {
    async fn new() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let kept = Shared::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(answer).with_state(kept.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { config: Config::new(url.parse().unwrap()), kept, bucket: Server::start().await }
    }

    fn bucket(&self, client: &str) -> Bucket {
        let settings = self.bucket.settings(client);
        Bucket::with_few_retries("s3://bucket/some/cluster", settings).unwrap()
    }

    async fn leases(&self) -> Leases {
        Leases::connect(Some(&self.config), "memtape").await.unwrap()
    }

    /// The Lease of shard 3, for a coordinator whose access key of the bucket is this one.
    async fn lease(&self, client: &str) -> Lease {
        let note = Hint::new(&self.bucket(client), ShardId(3));
        self.leases().await.shard(ShardId(3), note)
    }

    async fn member(&self, process: &'static str) -> Member {
        let bucket = self.bucket(process);
        let member = Member::new(bucket, 1, process.to_string(), format!("http://{process}:7771"));
        member.with(self.leases().await, Some(format!("pod-{process}")))
    }
}

fn owner(process: &str, renewals: u64) -> Owner {
    let address = format!("http://{process}:7771");
    Owner { process: process.to_string(), address, epoch: 2, renewals, ..Owner::default() }
}

/// Eight claim a Lease at once, and one of them gets it; a version is used once.
async fn one_claim_is_taken(leases: Vec<Lease>) {
    let claims: Vec<_> = (0_u64..)
        .zip(leases)
        .map(|(number, lease)| {
            tokio::spawn(async move {
                let owner = owner(&format!("c{number}"), 0);
                let version = lease.write(None, &owner).await.unwrap()?;
                Some((lease, owner, version))
            })
        })
        .collect();
    let mut taken = Vec::new();
    for claim in claims {
        taken.extend(claim.await.unwrap());
    }
    let [(lease, first, version)] = taken.as_slice() else { panic!("{} claims", taken.len()) };
    assert_eq!(lease.read().await.unwrap(), Some((first.clone(), version.clone())));
    let renewed = Owner { renewals: 1, ..first.clone() };
    let next = lease.write(Some(version.clone()), &renewed).await.unwrap().expect("it is newest");
    assert_ne!(next, *version);
    // Another coordinator saw the version before, and this one has the newest all the same.
    assert_eq!(lease.put(Some(version), &owner("late", 0)).await.unwrap(), None);
    let left = Owner { has_left: true, renewals: 2, ..first.clone() };
    assert!(lease.write(Some(version.clone()), &left).await.unwrap().is_some());
    assert_eq!(lease.read().await.unwrap().expect("one").0, left);
    assert_eq!(lease.write(Some(next), &owner("late", 0)).await.unwrap(), None);
}

#[tokio::test]
async fn one_of_many_claims_of_a_lease_is_taken() {
    let rig = Rig::new().await;
    let mut leases = Vec::new();
    for _ in 0..8 {
        leases.push(rig.lease("a").await);
    }
    one_claim_is_taken(leases).await;
}

#[tokio::test]
async fn real_kubernetes_takes_one_claim_of_a_lease_and_refuses_old_versions() {
    let Some(config) = real("admin").await else {
        // Past the test harness: `cargo xtask test` collects these lines.
        let line = b"left out: Leases of a real API server need `cargo xtask kube`\n";
        return drop(std::io::stderr().write_all(line));
    };
    let rig = Rig { config, ..Rig::new().await };
    let admin = Api::connect(Some(&rig.config), PATIENCE).await.unwrap();
    let namespace = json!({ "metadata": { "name": "leases" } });
    admin.create("/api/v1/namespaces", &"namespace", &namespace).await.unwrap();
    let mut leases = Vec::new();
    for _ in 0..8 {
        leases.push(rig.lease("a").await);
    }
    one_claim_is_taken(leases).await;
    let stranger = Rig { config: real("stranger").await.expect("a user"), ..rig };
    let refused = stranger.lease("a").await.read().await.unwrap_err().to_string();
    assert!(refused.contains("has no right to get Lease leases/memtape-3"), "{refused}");
}

async fn until(is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, waiting).await.expect("it does not happen");
}

/// The verbs that the Role of the chart grants for these objects.
fn granted(resource: &str) -> BTreeSet<&'static str> {
    let (_, role) = CHART.split_once("\nkind: Role\n").expect("a Role");
    let (role, _) = role.split_once("\n---").expect("an end");
    let rules = role.split("\n  - ").filter(|rule| rule.contains(&format!("[{resource}]")));
    let verbs = rules.flat_map(|rule| {
        let (_, verbs) = rule.split_once("verbs: [").expect("verbs");
        verbs.split(']').next().unwrap_or_default().split(", ")
    });
    verbs.collect()
}

/// The settings of a user of the real server; none where there is no server.
async fn real(user: &str) -> Option<Config> {
    let folder = std::env::var_os("MEMTAPE_TEST_KUBE").map(std::path::PathBuf::from)?;
    let file = kube::config::Kubeconfig::read_from(folder.join(user)).unwrap();
    let mut config = Config::from_custom_kubeconfig(file, &Default::default()).await.unwrap();
    config.default_namespace = "leases".to_string();
    Some(config)
}

#[tokio::test]
async fn renewals_of_a_lease_write_nothing_to_the_bucket() {
    let rig = Rig::new().await;
    let lease = rig.lease("a").await;
    let mut version = lease.write(None, &owner("a", 0)).await.unwrap();
    let puts = rig.bucket.puts();
    for renewal in 1..=20 {
        version = lease.write(version, &owner("a", renewal)).await.unwrap();
    }
    assert_eq!(rig.bucket.puts(), puts, "renewals only read it");
    let note = Hint::new(&rig.bucket("b"), ShardId(3));
    assert_eq!(note.read().await.unwrap().expect("noted").0, owner("a", 0));
    // Who left is noted, too, and so is another epoch.
    let left = Owner { has_left: true, ..owner("a", 21) };
    lease.write(version, &left).await.unwrap().expect("written");
    assert_eq!(note.read().await.unwrap().expect("noted").0, left);
}

#[tokio::test]
async fn a_coordinator_without_its_bucket_renews_and_claims_no_lease() {
    let rig = Rig::new().await;
    let (cut, well) = (rig.lease("cut").await, rig.lease("well").await);
    let version = cut.write(None, &owner("cut", 0)).await.unwrap();
    rig.bucket.add_rule(Rule::of("cut", Fault::Unavailable));
    let refused = cut.write(version.clone(), &owner("cut", 1)).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Io);
    assert_eq!(well.read().await.unwrap().expect("one").0, owner("cut", 0), "nothing is written");
    assert!(well.write(version, &owner("well", 0)).await.unwrap().is_some());
}

#[tokio::test]
async fn a_lease_that_is_no_hint_is_named() {
    let rig = Rig::new().await;
    let lease = rig.lease("a").await;
    lease.write(None, &owner("a", 0)).await.unwrap();
    for object in rig.kept.lock().unwrap().leases.values_mut() {
        object["metadata"]["annotations"] = json!({ "memtape.io/owner": "no hint" });
    }
    let error = lease.read().await.unwrap_err().to_string();
    assert_eq!(error, "Lease default/memtape-3 is no hint: delete it");
    let bad = Leases::connect(Some(&rig.config), "No/Name").await.unwrap_err().to_string();
    assert!(bad.contains("Leases \"No/Name\""), "{bad}");
}

#[tokio::test]
async fn a_shard_is_handed_over_by_its_lease_and_the_chart_grants_what_that_takes() {
    let rig = Rig::new().await;
    let first = timeout(PATIENCE, rig.member("first").await.own()).await.unwrap().unwrap();
    let second = tokio::spawn(rig.member("second").await.own());
    sleep(Duration::from_secs(2)).await;
    assert!(!second.is_finished(), "it waits");
    let serving = || rig.kept.lock().unwrap().serving.clone();
    assert_eq!(serving(), ["pod-first"]);
    first.close().await.unwrap();
    let mut second = timeout(PATIENCE, second).await.unwrap().unwrap().unwrap();
    until(|| serving() == ["pod-second"]).await;
    // One that does not come to renew is replaced, and hears of it.
    rig.bucket.add_rule(Rule::of("second", Fault::Unavailable));
    let third = timeout(PATIENCE, rig.member("third").await.own()).await.unwrap().unwrap();
    rig.bucket.clear_faults();
    timeout(PATIENCE, second.lost()).await.expect("its Lease has another owner");
    third.close().await.unwrap();

    assert_eq!(rig.kept.lock().unwrap().verbs, granted("leases"));
    assert_eq!(granted("pods"), BTreeSet::from(["patch"]));
}
