//! The target against a stand-in server: what is asked, in which order, and what is not done.

use memtape_core::action::Outcome;

use super::*;
use crate::restart::proving::Prover;

mod nodes;
mod real_kubernetes;
mod stand_in;

use stand_in::StandIn;

const POD: &str = "/api/v1/namespaces/train/pods/llm-0";
const JOB: &str = "/apis/batch/v1/namespaces/train/jobs/llm-workers";
const JOB_SET: &str = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/train/jobsets/llm";
const EVENTS: &str = "/api/v1/namespaces/train/events";

fn owned_by(version: &str, kind: &str, name: &str) -> Value {
    let uid = format!("uid-{name}");
    json!([{ "apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": true }])
}

fn pod(owners: &Value) -> Value {
    json!({
        "metadata": { "ownerReferences": owners },
        "spec": { "nodeName": "gpu-1" },
        "status": { "phase": "Running" },
    })
}

/// A pod of a Job of a JobSet.
fn job_set() -> StandIn {
    let server = StandIn::default();
    server.with(|cluster| {
        cluster.add(POD, pod(&owned_by("batch/v1", "Job", "llm-workers")));
        let owners = owned_by("jobset.x-k8s.io/v1alpha2", "JobSet", "llm");
        cluster.add(JOB, json!({ "metadata": { "ownerReferences": owners }, "spec": {} }));
        cluster.add(JOB_SET, json!({ "metadata": {}, "spec": { "suspend": false } }));
    });
    server
}

async fn target(server: &StandIn) -> Kubernetes {
    // As the coordinator does at its start.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let timeout = Duration::from_secs(5);
    let (suspend_max, resume_max) = (Duration::from_secs(5), Duration::from_secs(2));
    let (config, poll) = (Some(server.serve().await), Duration::from_millis(10));
    Kubernetes { config, timeout, suspend_max, resume_max, poll }
}

fn order() -> Order {
    Order {
        action: "act-0001".to_string(),
        incident: "inc-0001".to_string(),
        node: "gpu-1".to_string(),
        namespace: "train".to_string(),
        pod: "llm-0".to_string(),
        pod_uid: "uid-llm-0".to_string(),
        sentence: "rank 2 leaks".to_string(),
        prover: Prover::Always,
        ..Order::default()
    }
}

fn finished(said: &str) -> Outcome {
    Outcome::Finished { said: said.to_string() }
}

/// Nothing but reads was asked, and one line says why.
#[track_caller]
fn check_refused(server: &StandIn, outcome: &Outcome, why: &str) {
    assert!(matches!(outcome, Outcome::Refused { .. }), "{outcome:?}");
    assert!(outcome.to_string().contains(why), "{outcome} has no {why:?}");
    assert_eq!(outcome.to_string().lines().count(), 1, "{outcome}");
    let is_changed =
        |object: &Value| object["metadata"]["labels"][objects::SUSPENDED_BY] != json!(null);
    server.with(|cluster| {
        assert!(!cluster.objects.values().any(is_changed), "{:?}", cluster.objects);
        assert!(cluster.objects.contains_key(POD));
    });
}

/// The requests without repetitions of reads, which take their time.
fn requests(server: &StandIn) -> Vec<String> {
    let mut lines = server
        .with(|cluster| cluster.requests.iter().map(|(line, _)| line.clone()).collect::<Vec<_>>());
    let wait = format!("GET {JOB_SET}");
    let written = lines.iter().position(|line| line.starts_with("POST")).unwrap();
    let resumed = lines.iter().rposition(|line| line.starts_with("PATCH")).unwrap();
    let waited: Vec<String> = lines.drain(written + 1..resumed).collect();
    assert!(waited.iter().all(|line| *line == wait || *line == format!("GET {POD}")), "{waited:?}");
    assert!(waited.contains(&format!("GET {POD}")), "{waited:?}");
    lines
}

#[tokio::test]
async fn a_job_set_is_suspended_and_resumed() {
    let server = job_set();
    let said = target(&server).await.run(&order()).await;
    assert_eq!(said, finished("suspended and resumed JobSet train/llm"));
    let collection = JOB_SET.trim_end_matches("/llm");
    let expected = [
        format!("GET {POD}"),
        format!("GET {JOB}"),
        format!("GET {JOB_SET}"),
        format!("GET {collection}"),
        format!("PATCH {JOB_SET}"),
        format!("POST {EVENTS}"),
        format!("PATCH {JOB_SET}"),
    ];
    assert_eq!(requests(&server), expected);
    server.with(|cluster| {
        let sent: Vec<&Value> = (cluster.requests.iter())
            .filter(|(line, _)| !line.starts_with("GET"))
            .map(|(_, content)| content)
            .collect();
        let meta = |version: &str| json!({ "resourceVersion": version, "uid": "uid-llm" });
        let mut suspended = json!({ "metadata": meta("3"), "spec": { "suspend": true } });
        suspended["metadata"]["labels"] = json!({ "memtape.io/suspended-by": "act-0001" });
        suspended["metadata"]["annotations"] = json!({ "memtape.io/action": "act-0001" });
        assert_eq!(sent[0], &suspended);
        assert_eq!(sent[1]["reason"], "MemtapeRestart");
        assert_eq!(sent[1]["message"], "rank 2 leaks (inc-0001)");
        assert_eq!(sent[1]["involvedObject"]["kind"], "JobSet");
        assert_eq!(sent[1]["involvedObject"]["uid"], "uid-llm");
        let mut resumed = json!({ "metadata": meta("4"), "spec": { "suspend": false } });
        resumed["metadata"]["labels"] = json!({ "memtape.io/suspended-by": null });
        assert_eq!(sent[2], &resumed);
        // The same action again does nothing.
        cluster.add(POD, pod(&owned_by("batch/v1", "Job", "llm-workers")));
        cluster.requests.clear();
    });
    let said = target(&server).await.run(&order()).await;
    assert_eq!(said, finished("JobSet train/llm was restarted by this action before"));
    assert_eq!(server.with(|cluster| cluster.writes()), Vec::<String>::new());
}

#[tokio::test]
async fn what_is_not_as_it_was_is_not_restarted() {
    type Change = fn(&StandIn, &mut Order);
    let cases: [(Change, &str); 10] = [
        (|_, order| order.pod = String::new(), "in no pod"),
        (|_, order| order.namespace = "../x".to_string(), "in no pod"),
        (|_, order| order.pod_uid = "uid-old".to_string(), "pod train/llm-0 is another one now"),
        (|_, order| order.node = "gpu-2".to_string(), "does not run on node gpu-2"),
        (
            |_, order| order.pod = "llm-9".to_string(),
            "there is no llm-9 of pods in namespace train",
        ),
        (
            |server, _| {
                server.with(|cluster| {
                    let pod = cluster.objects.get_mut(POD).unwrap();
                    pod["status"]["phase"] = json!("Succeeded");
                });
            },
            "has ended",
        ),
        (
            |server, _| {
                server.with(|cluster| {
                    let job_set = cluster.objects.get_mut(JOB_SET).unwrap();
                    job_set["metadata"]["uid"] = json!("uid-new");
                });
            },
            "llm of jobsets.jobset.x-k8s.io in namespace train is another one now",
        ),
        (
            |server, _| {
                server.with(|cluster| {
                    let job_set = cluster.objects.get_mut(JOB_SET).unwrap();
                    job_set["spec"]["suspend"] = json!(true);
                });
            },
            "JobSet train/llm is suspended already",
        ),
        (
            |server, _| server.with(|cluster| cluster.changed_by_other = true),
            "has changed meanwhile",
        ),
        (
            |server, _| server.with(|cluster| cluster.add(POD, pod(&json!([])))),
            "has no controller that would replace it",
        ),
    ];
    for (change, why) in cases {
        let (server, mut order) = (job_set(), order());
        change(&server, &mut order);
        check_refused(&server, &target(&server).await.run(&order).await, why);
    }
}

/// A server that does not know the field takes the change, and leaves the field out.
#[tokio::test]
async fn what_the_server_cannot_suspend_is_not_called_suspended() {
    let server = job_set();
    server.with(|cluster| cluster.prunes_spec = true);
    let said = target(&server).await.run(&order()).await;
    check_refused(&server, &said, "this version of Kubernetes cannot suspend JobSet train/llm");
    server.with(|cluster| {
        assert_eq!(cluster.writes(), [format!("PATCH {JOB_SET}"), format!("PATCH {JOB_SET}")]);
        let annotation = &cluster.objects[JOB_SET]["metadata"]["annotations"][objects::ACTION];
        assert_eq!(*annotation, Value::Null);
    });
}

#[tokio::test]
async fn without_a_right_nothing_is_done() {
    for (verb, plural, why) in [
        ("get", "pods", "has no right to get llm-0 of pods in namespace train: nothing was done"),
        ("get", "jobs", "no right to get llm-workers of jobs.batch in namespace train"),
        ("list", "jobsets", "no right to list jobsets.jobset.x-k8s.io in namespace train"),
        ("patch", "jobsets", "no right to patch llm of jobsets.jobset.x-k8s.io in namespace train"),
    ] {
        let server = job_set();
        server.with(|cluster| cluster.denied.insert((verb, plural)));
        check_refused(&server, &target(&server).await.run(&order()).await, why);
    }
    // An event is no condition.
    let server = job_set();
    server.with(|cluster| cluster.denied.insert(("create", "events")));
    let said = target(&server).await.run(&order()).await;
    assert_eq!(said, finished("suspended and resumed JobSet train/llm"));
}

fn is_suspended(server: &StandIn) -> bool {
    server.with(|cluster| cluster.objects[JOB_SET]["spec"]["suspend"] == true)
}

/// Runs the target until the job is suspended, and kills it.
async fn kill_when_suspended(server: &StandIn) {
    let target = target(server).await;
    let order = order();
    let seen = async {
        while !is_suspended(server) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        said = target.run(&order) => panic!("it was not killed: {said}"),
        () = seen => {}
    }
}

#[tokio::test]
async fn a_job_that_was_left_suspended_is_resumed() {
    let server = job_set();
    kill_when_suspended(&server).await;
    // Another action, and another cluster's, leave it so.
    for other in [
        Order { action: "act-0002".to_string(), ..order() },
        Order { namespace: "other".to_string(), ..order() },
        Order { namespace: String::new(), ..order() },
    ] {
        assert_eq!(target(&server).await.resume(&other).await, None);
    }
    assert!(is_suspended(&server));
    // What a coordinator knows after its start.
    let known = Order { pod: String::new(), pod_uid: String::new(), ..order() };
    let said = target(&server).await.resume(&known).await;
    assert_eq!(said, Some(finished("suspended and resumed JobSet train/llm")));
    assert!(!is_suspended(&server));
    // It starts nothing.
    server.with(|cluster| cluster.requests.clear());
    assert_eq!(target(&server).await.resume(&known).await, None);
    assert_eq!(server.with(|cluster| cluster.writes()), Vec::<String>::new());
}

#[tokio::test]
async fn a_repeated_run_only_resumes() {
    let server = job_set();
    kill_when_suspended(&server).await;
    server.with(|cluster| cluster.requests.clear());
    // The pod may be there for a while.
    server.with(|cluster| cluster.is_stuck = true);
    let target = Kubernetes { suspend_max: Duration::from_millis(50), ..target(&server).await };
    let said = target.run(&order()).await;
    let slow = "JobSet train/llm had not ended 50ms after it was suspended; it was resumed";
    assert_eq!(said, Outcome::Failed { why: slow.to_string() });
    assert!(!is_suspended(&server));
    let mut writes = server.with(|cluster| cluster.writes());
    // The event of the one that was killed can arrive late.
    writes.retain(|line| *line != format!("POST {EVENTS}"));
    assert_eq!(writes, [format!("PATCH {JOB_SET}")]);
}

#[tokio::test]
async fn a_job_is_resumed_although_answers_are_lost_and_others_change_it() {
    let server = job_set();
    server.with(|cluster| cluster.lost.push_back(("PATCH", 504)));
    let said = target(&server).await.run(&order()).await;
    assert_eq!(said, finished("suspended and resumed JobSet train/llm"));

    let server = job_set();
    kill_when_suspended(&server).await;
    server.with(|cluster| cluster.changed_by_other = true);
    let said = target(&server).await.resume(&order()).await;
    assert_eq!(said, Some(finished("suspended and resumed JobSet train/llm")));

    let server = job_set();
    kill_when_suspended(&server).await;
    server.with(|cluster| cluster.denied.insert(("patch", "jobsets")));
    let said = target(&server).await.resume(&order()).await.unwrap();
    assert!(matches!(said, Outcome::Failed { .. }), "{said:?}");
    assert!(said.to_string().contains("JobSet train/llm stays suspended"), "{said}");
}

#[tokio::test]
async fn a_job_whose_suspension_is_seen_late_is_resumed() {
    let lost = [("PATCH", 504), ("GET", 503), ("GET", 503)];
    for (lost, reads_before_change) in [(&lost[..], None), (&[], Some(3))] {
        let server = job_set();
        server.with(|cluster| {
            cluster.lost.extend(lost);
            cluster.reads_before_change = reads_before_change;
        });
        let said = target(&server).await.run(&order()).await;
        assert_eq!(said, finished("suspended and resumed JobSet train/llm"));
        assert!(!is_suspended(&server));
        server.with(|cluster| assert!(cluster.lost.is_empty()));
    }
}

#[tokio::test]
async fn the_suspension_of_a_job_is_polled_until_the_limit() {
    // The change is not made, or the object is gone.
    let gone = [("PATCH", 504), ("GET", 404)];
    for (lost, reads_before_change) in [(&[][..], Some(usize::MAX)), (&gone, None)] {
        let server = job_set();
        server.with(|cluster| {
            cluster.lost.extend(lost);
            cluster.reads_before_change = reads_before_change;
        });
        let said = target(&server).await.run(&order()).await;
        assert!(matches!(said, Outcome::Failed { .. }), "{said:?}");
        assert!(said.to_string().contains("it may have been done"), "{said}");
        server.with(|cluster| {
            assert_eq!(cluster.writes(), [format!("PATCH {JOB_SET}")]);
            let requests = cluster.requests.iter().rev();
            let read = format!("GET {JOB_SET}");
            let reads = requests.take_while(|(line, _)| *line == read).count();
            assert_eq!(reads == 1, lost == gone, "{reads} reads after the change");
        });
    }
}

#[tokio::test]
async fn a_pod_of_another_controller_is_deleted_by_its_uid() {
    let server = StandIn::default();
    let owners = owned_by("ray.io/v1", "RayCluster", "ray");
    server.with(|cluster| cluster.add(POD, pod(&owners)));
    let said = target(&server).await.run(&order()).await;
    assert_eq!(said, finished("deleted pod train/llm-0, which RayCluster ray replaces"));
    server.with(|cluster| {
        assert_eq!(cluster.writes(), [format!("DELETE {POD}"), format!("POST {EVENTS}")]);
        let (_, options) =
            cluster.requests.iter().find(|(line, _)| line.starts_with("DEL")).unwrap();
        assert_eq!(options, &json!({ "preconditions": { "uid": "uid-llm-0" } }));
    });
}

/// It could take the deleted pod for a failed one, and end.
#[tokio::test]
async fn a_pod_of_an_unknown_controller_stays() {
    let server = StandIn::default();
    let owners = owned_by("argoproj.io/v1alpha1", "Workflow", "pipeline");
    server.with(|cluster| cluster.add(POD, pod(&owners)));
    let said = target(&server).await.run(&order()).await;
    assert!(matches!(said, Outcome::Refused { .. }), "{said:?}");
    assert!(said.to_string().contains("no controller that would replace it"), "{said}");
    server.with(|cluster| assert!(cluster.writes().is_empty()));
}

/// The path of the one object that is patched, twice.
async fn patched(server: &StandIn) -> String {
    let said = target(server).await.run(&order()).await;
    assert!(matches!(said, Outcome::Finished { .. }), "{said:?}");
    let writes = server.with(|cluster| cluster.writes());
    let [suspended, event, resumed] = &writes[..] else { panic!("{writes:?}") };
    assert_eq!((suspended, event), (resumed, &format!("POST {EVENTS}")));
    suspended.strip_prefix("PATCH ").unwrap().to_string()
}

/// A pod of this controller, at this path.
fn one_controller(version: &str, kind: &str, path: &str, object: Value) -> StandIn {
    let server = StandIn::default();
    server.with(|cluster| {
        cluster.add(POD, pod(&owned_by(version, kind, "llm")));
        cluster.add(path, object);
    });
    server
}

fn train_job() -> StandIn {
    let server = job_set();
    server.with(|cluster| {
        let job_set = cluster.objects.get_mut(JOB_SET).unwrap();
        let owners = owned_by("trainer.kubeflow.org/v1alpha1", "TrainJob", "llm");
        job_set["metadata"]["ownerReferences"] = owners;
        // Of another controller above it nothing is known.
        let owners = owned_by("example.org/v1", "Pipeline", "all");
        cluster.add(TRAIN_JOB, json!({ "metadata": { "ownerReferences": owners } }));
    });
    server
}

fn queued_job_set() -> StandIn {
    let server = job_set();
    server.with(|cluster| {
        let job_set = cluster.objects.get_mut(JOB_SET).unwrap();
        job_set["metadata"]["labels"] = json!({ "kueue.x-k8s.io/queue-name": "gpus" });
        let owners = owned_by("jobset.x-k8s.io/v1alpha2", "JobSet", "llm");
        let labels = json!({ "kueue.x-k8s.io/job-uid": "uid-llm" });
        let metadata = json!({ "ownerReferences": owners, "labels": labels });
        cluster.add(WORKLOAD, json!({ "metadata": metadata, "spec": {} }));
    });
    server
}

const TRAIN_JOB: &str = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/train/trainjobs/llm";
const PYTORCH_JOB: &str = "/apis/kubeflow.org/v1/namespaces/train/pytorchjobs/llm";
const WORKLOAD: &str = "/apis/kueue.x-k8s.io/v1beta1/namespaces/train/workloads/jobset-llm-1a2b";
const ONE_JOB: &str = "/apis/batch/v1/namespaces/train/jobs/llm";

#[tokio::test]
async fn the_last_known_controller_or_its_workload_is_suspended() {
    assert_eq!(patched(&train_job()).await, TRAIN_JOB);
    let server = one_controller("batch/v1", "Job", ONE_JOB, json!({ "spec": {} }));
    assert_eq!(patched(&server).await, ONE_JOB);

    let object = json!({ "spec": { "runPolicy": { "backoffLimit": 1 } } });
    let server = one_controller("kubeflow.org/v1", "PyTorchJob", PYTORCH_JOB, object);
    assert_eq!(patched(&server).await, PYTORCH_JOB);
    server.with(|cluster| {
        let policy = json!({ "backoffLimit": 1, "suspend": false });
        assert_eq!(cluster.objects[PYTORCH_JOB]["spec"]["runPolicy"], policy);
    });

    let server = queued_job_set();
    assert_eq!(patched(&server).await, WORKLOAD);
    server.with(|cluster| {
        assert_eq!(cluster.objects[WORKLOAD]["spec"]["active"], true);
        // A Workload of another object is none.
        cluster.add(POD, pod(&owned_by("batch/v1", "Job", "llm-workers")));
        let workload = cluster.objects.get_mut(WORKLOAD).unwrap();
        workload["metadata"]["ownerReferences"][0]["uid"] = json!("uid-other");
    });
    let other = Order { action: "act-0002".to_string(), ..order() };
    let said = target(&server).await.run(&other).await;
    check_refused(&server, &said, "is queued by Kueue, which has no Workload for it");
}

#[tokio::test]
async fn the_chart_grants_what_is_used_and_no_more() {
    let pytorch_job = one_controller("kubeflow.org/v1", "PyTorchJob", PYTORCH_JOB, json!({}));
    let ray = one_controller("ray.io/v1", "RayCluster", "/apis/ray.io/none", json!({}));
    let job = one_controller("batch/v1", "Job", ONE_JOB, json!({}));
    let mut used = std::collections::BTreeSet::new();
    for server in [job_set(), train_job(), queued_job_set(), pytorch_job, ray, job] {
        let said = target(&server).await.run(&order()).await;
        assert!(matches!(said, Outcome::Finished { .. }), "{said:?}");
        used.extend(server.with(|cluster| cluster.used.clone()));
    }
    used.extend(nodes::used().await);
    assert_eq!(used, stand_in::granted());
}

#[tokio::test]
async fn no_error_holds_a_credential_and_no_answer_is_unbounded() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let flood = axum::Router::new().fallback(|| async { json!("x".repeat(5 << 20)).to_string() });
    let serving = tokio::spawn(async move { axum::serve(listener, flood).await.unwrap() });
    let mut config = Config::new(url.parse().unwrap());
    config.auth_info.token = Some("hush".to_string().into());
    let server = StandIn::default();
    let target = Kubernetes { config: Some(config), ..target(&server).await };
    let flooded = target.run(&order()).await.to_string();
    assert!(flooded.contains("has an answer that cannot be read: nothing was done"), "{flooded}");
    serving.abort();
    let _ = serving.await;
    let unreachable = target.run(&order()).await.to_string();
    assert!(unreachable.contains("cannot be reached"), "{unreachable}");
    assert!(!format!("{target:?}{flooded}{unreachable}").contains("hush"));
}
