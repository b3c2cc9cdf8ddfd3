//! The target against a real API server: what the server takes and refuses, and the rights of the
//! chart. `cargo xtask kube` starts the server, and the environment variable names the folder with
//! a kubeconfig of each user.
//!
//! The server is Kubernetes 1.20 with no controllers and no kubelet, so the tests end the pods of
//! what is suspended, and say so in its status. It cannot show how JobSet, TrainJob, PyTorchJob and
//! Kueue check their objects: their kinds are defined here, with any content. Its Jobs cannot be
//! suspended yet.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Once;

use kube::config::{KubeConfigOptions, Kubeconfig};

use super::nodes::out;
use super::stand_in::granted;
use super::*;
use crate::restart::kubernetes::nodes::{Taint, tainting};

const CUSTOM: [(&str, &str, &str, &str); 4] = [
    ("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
    ("trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs"),
    ("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs"),
    ("kueue.x-k8s.io", "v1beta1", "Workload", "workloads"),
];

/// A namespace of a test, and the API server as its administrator.
struct Space {
    folder: PathBuf,
    admin: Api,
    namespace: &'static str,
}

impl Space {
    /// A new namespace; none where there is no server.
    async fn new(namespace: &'static str) -> Option<Self> {
        let Some(folder) = std::env::var_os("MEMTAPE_TEST_KUBE").map(PathBuf::from) else {
            static SAID: Once = Once::new();
            // Past the test harness: `cargo xtask test` collects these lines.
            let line = "left out: a real API server of Kubernetes needs `cargo xtask kube`\n";
            SAID.call_once(|| drop(std::io::stderr().write_all(line.as_bytes())));
            return None;
        };
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = config(&folder, "admin").await;
        let admin = Api::connect(Some(&config), Duration::from_secs(10)).await.unwrap();
        let space = Self { folder, admin, namespace };
        let object = json!({ "metadata": { "name": namespace } });
        until("a namespace", async || space.create("/api/v1/namespaces", &object).await.is_ok())
            .await;
        for custom in CUSTOM {
            space.define(custom).await;
        }
        Some(space)
    }

    async fn create(&self, path: &str, object: &Value) -> Result<Value, ApiError> {
        self.admin.create(path, &path, object).await
    }

    async fn define(&self, (group, version, kind, plural): (&str, &str, &str, &str)) {
        let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let definition = json!({
            "metadata": { "name": format!("{plural}.{group}") },
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": { "plural": plural, "kind": kind },
                "versions": [{
                    "name": version, "served": true, "storage": true,
                    "schema": { "openAPIV3Schema": any }, "subresources": { "status": {} },
                }],
            },
        });
        // Another test may have defined it.
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let _ = self.create(path, &definition).await;
        let path = self.path(&format!("{group}/{version}"), plural);
        until(plural, async || self.admin.get(&path, &path).await.is_ok()).await;
    }

    fn path(&self, version: &str, plural: &str) -> String {
        let root = if version.contains('/') { "apis" } else { "api" };
        format!("/{root}/{version}/namespaces/{}/{plural}", self.namespace)
    }

    /// Makes an object of these controllers; returns how it refers to it as a controller.
    async fn add(&self, version: &str, kind: &str, owners: &Value, mut object: Value) -> Value {
        let plural = format!("{}s", kind.to_lowercase());
        object["apiVersion"] = json!(version);
        object["kind"] = json!(kind);
        if object["metadata"]["name"].is_null() {
            object["metadata"]["name"] = json!("llm");
        }
        object["metadata"]["ownerReferences"] = owners.clone();
        let made = self.create(&self.path(version, &plural), &object).await.unwrap();
        let (name, uid) = (&made["metadata"]["name"], &made["metadata"]["uid"]);
        json!([{ "apiVersion": version, "kind": kind, "name": name, "uid": uid,
            "controller": true }])
    }

    /// Makes the rank's pod; returns the order about it.
    async fn pod(&self, owners: &Value) -> Order {
        let containers = json!([{ "name": "train", "image": "train" }]);
        let spec = json!({ "nodeName": "gpu-1", "containers": containers });
        let pod = self.add("v1", "Pod", owners, json!({ "spec": spec })).await;
        let text = |value: &Value| value.as_str().unwrap().to_string();
        Order {
            namespace: self.namespace.to_string(),
            pod: text(&pod[0]["name"]),
            pod_uid: text(&pod[0]["uid"]),
            ..order()
        }
    }

    /// Makes a pod of a Job of a JobSet.
    async fn job_set(&self) -> Order {
        let none = json!([]);
        let spec = json!({ "spec": { "suspend": false } });
        let job_set = self.add("jobset.x-k8s.io/v1alpha2", "JobSet", &none, spec).await;
        self.pod(&self.job(&job_set).await).await
    }

    async fn job(&self, owners: &Value) -> Value {
        let containers = json!([{ "name": "train", "image": "train" }]);
        let pod = json!({ "spec": { "restartPolicy": "Never", "containers": containers } });
        self.add("batch/v1", "Job", owners, json!({ "spec": { "template": pod } })).await
    }

    fn job_set_path(&self) -> String {
        format!("{}/llm", self.path("jobset.x-k8s.io/v1alpha2", "jobsets"))
    }

    fn pod_path(&self) -> String {
        format!("{}/llm", self.path("v1", "pods"))
    }

    async fn read(&self, path: &str) -> Value {
        self.admin.get(path, &path).await.unwrap()
    }

    async fn change(&self, path: &str, change: &Value) -> Value {
        self.admin.patch(path, &path, change).await.unwrap()
    }

    /// Ends the pod at once, as a kubelet does in the end.
    async fn end_pod(&self) {
        let path = self.pod_path();
        self.admin.delete(&path, &path, &json!({ "gracePeriodSeconds": 0 })).await.unwrap();
    }

    /// Gives a user these rights in the namespace, as the chart does, and waits for them.
    async fn grant(&self, user: &str, rights: impl IntoIterator<Item = (String, String)>) {
        let rules: Vec<Value> = (rights.into_iter())
            .map(|(verb, of)| {
                let (plural, group) = of.split_once('.').unwrap_or((&of, ""));
                json!({ "apiGroups": [group], "resources": [plural], "verbs": [verb] })
            })
            .collect();
        let (rbac, name) = ("rbac.authorization.k8s.io", self.namespace);
        let role = json!({ "metadata": { "name": name }, "rules": rules });
        self.create(&format!("/apis/{rbac}/v1/clusterroles"), &role).await.unwrap();
        let binding = json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": name },
            "subjects": [{ "apiGroup": rbac, "kind": "User", "name": user }],
        });
        self.create(&self.path(&format!("{rbac}/v1"), "rolebindings"), &binding).await.unwrap();
        for rule in &rules {
            let [verb, group, plural] =
                [&rule["verbs"][0], &rule["apiGroups"][0], &rule["resources"][0]];
            let attributes = json!({ "verb": verb, "group": group, "resource": plural,
                "namespace": self.namespace });
            self.wait_for_right(user, &json!({ "resourceAttributes": attributes })).await;
        }
        // What the server gives all users, once it has started.
        let discovery =
            json!({ "nonResourceAttributes": { "verb": "get", "path": "/apis/batch" } });
        self.wait_for_right(user, &discovery).await;
    }

    /// Gives a user these rights in the whole cluster.
    async fn grant_everywhere(
        &self,
        user: &str,
        rights: impl IntoIterator<Item = (String, String)>,
    ) {
        let (rbac, name) = ("rbac.authorization.k8s.io", self.namespace);
        self.grant(user, rights).await;
        let binding = json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": name },
            "subjects": [{ "apiGroup": rbac, "kind": "User", "name": user }],
        });
        self.create(&format!("/apis/{rbac}/v1/clusterrolebindings"), &binding).await.unwrap();
        let patch = json!({ "verb": "patch", "group": "", "resource": "nodes" });
        self.wait_for_right(user, &json!({ "resourceAttributes": patch })).await;
    }

    async fn wait_for_right(&self, user: &str, attributes: &Value) {
        let mut review = json!({ "spec": attributes });
        review["spec"]["user"] = json!(user);
        review["spec"]["groups"] = json!(["system:authenticated"]);
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        until(&attributes.to_string(), async || {
            let reviewed = self.create(path, &review).await;
            reviewed.is_ok_and(|review| review["status"]["allowed"] == true)
        })
        .await;
    }

    /// The target as this user.
    async fn target(&self, user: &str) -> Kubernetes {
        Kubernetes {
            config: Some(config(&self.folder, user).await),
            timeout: Duration::from_secs(10),
            suspend_max: Duration::from_secs(30),
            resume_max: Duration::from_secs(5),
            poll: Duration::from_millis(20),
        }
    }

    /// Waits until this object is suspended, ends the pod, and reports the condition, as the
    /// object's controller does.
    async fn control(&self, path: &str, field: &str, suspended: bool, condition: &str) {
        let is_suspended = async || self.read(path).await.pointer(field) == Some(&json!(suspended));
        until("a suspended object", is_suspended).await;
        self.end_pod().await;
        let conditions = json!([{ "type": condition, "status": "True" }]);
        self.change(&format!("{path}/status"), &json!({ "status": { "conditions": conditions } }))
            .await;
    }

    /// Restarts the job of this order with the chart's rights; returns the object afterwards.
    async fn restart(&self, order: &Order, path: &str, field: &str, suspended: bool) -> Value {
        let condition = if suspended { "Suspended" } else { "Evicted" };
        let target = self.target("memtape").await;
        let controlled = self.control(path, field, suspended, condition);
        let (said, ()) = tokio::join!(target.run(order), controlled);
        let said = said.to_string();
        assert!(said.starts_with("suspended and resumed "), "{said}");
        let after = self.read(path).await;
        assert_eq!(after.pointer(field), Some(&json!(!suspended)), "{after}");
        assert_eq!(after["metadata"]["labels"][objects::SUSPENDED_BY], Value::Null);
        assert_eq!(after["metadata"]["annotations"][objects::ACTION], "act-0001");
        self.check_events(&after).await;
        after
    }

    /// Has the object one event, of Memtape?
    async fn check_events(&self, object: &Value) {
        let found = self.events_of(object).await;
        let [event] = &found[..] else { panic!("{found:?}") };
        assert_eq!(event["reason"], "MemtapeRestart");
        assert_eq!(event["message"], "rank 2 leaks (inc-0001)");
    }

    async fn events_of(&self, object: &Value) -> Vec<Value> {
        let uid = object["metadata"]["uid"].as_str().unwrap();
        let events = self.path("v1", "events");
        let list = self.read(&format!("{events}?fieldSelector=involvedObject.uid%3D{uid}")).await;
        list["items"].as_array().unwrap().clone()
    }
}

async fn config(folder: &std::path::Path, user: &str) -> Config {
    let kubeconfig = Kubeconfig::read_from(folder.join(user)).unwrap();
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap()
}

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !is_so().await {
        assert!(Instant::now() < deadline, "no {what} after a minute");
        sleep(Duration::from_millis(20)).await;
    }
}

#[track_caller]
fn check_refusal(outcome: &Outcome, why: &str) {
    assert!(matches!(outcome, Outcome::Refused { .. }), "{outcome:?}");
    assert!(outcome.to_string().contains(why), "{outcome} has no {why:?}");
    assert_eq!(outcome.to_string().lines().count(), 1, "{outcome}");
}

#[tokio::test]
async fn a_job_set_is_suspended_and_resumed_by_the_rights_of_the_chart() {
    let Some(space) = Space::new("job-set").await else { return };
    space.grant("memtape", granted()).await;
    let order = space.job_set().await;
    let path = space.job_set_path();
    let after = space.restart(&order, &path, "/spec/suspend", true).await;
    // The same action again does nothing.
    let job = space.read(&format!("{}/llm", space.path("batch/v1", "jobs"))).await;
    let again = json!([{ "apiVersion": "batch/v1", "kind": "Job", "name": "llm",
        "uid": job["metadata"]["uid"], "controller": true }]);
    let order = space.pod(&again).await;
    let said = space.target("memtape").await.run(&order).await;
    assert_eq!(said, finished("JobSet job-set/llm was restarted by this action before"));
    assert_eq!(space.read(&path).await, after);
}

#[tokio::test]
async fn the_last_controller_or_its_workload_is_suspended() {
    let (none, spec) = (json!([]), json!({ "spec": { "suspend": false } }));
    let Some(space) = Space::new("train-job").await else { return };
    space.grant("memtape", granted()).await;
    let train_job = space.add("trainer.kubeflow.org/v1alpha1", "TrainJob", &none, spec.clone());
    let train_job = train_job.await;
    let job_set = space.add("jobset.x-k8s.io/v1alpha2", "JobSet", &train_job, spec.clone()).await;
    let order = space.pod(&space.job(&job_set).await).await;
    let path = format!("{}/llm", space.path("trainer.kubeflow.org/v1alpha1", "trainjobs"));
    space.restart(&order, &path, "/spec/suspend", true).await;
    assert_eq!(space.read(&space.job_set_path()).await["metadata"]["generation"], 1);

    let space = Space::new("pytorch-job").await.unwrap();
    space.grant("memtape", granted()).await;
    let policy = json!({ "spec": { "runPolicy": { "backoffLimit": 1 } } });
    let order = space.pod(&space.add("kubeflow.org/v1", "PyTorchJob", &none, policy).await).await;
    let path = format!("{}/llm", space.path("kubeflow.org/v1", "pytorchjobs"));
    let after = space.restart(&order, &path, "/spec/runPolicy/suspend", true).await;
    assert_eq!(after["spec"]["runPolicy"], json!({ "backoffLimit": 1, "suspend": false }));

    let space = Space::new("queued").await.unwrap();
    space.grant("memtape", granted()).await;
    let labels = json!({ "kueue.x-k8s.io/queue-name": "gpus" });
    let queued = json!({ "metadata": { "labels": labels }, "spec": { "suspend": false } });
    let job_set = space.add("jobset.x-k8s.io/v1alpha2", "JobSet", &none, queued).await;
    let labels = json!({ "kueue.x-k8s.io/job-uid": job_set[0]["uid"] });
    let workload = json!({ "metadata": { "labels": labels }, "spec": { "active": true } });
    space.add("kueue.x-k8s.io/v1beta1", "Workload", &job_set, workload).await;
    let order = space.pod(&space.job(&job_set).await).await;
    let path = format!("{}/llm", space.path("kueue.x-k8s.io/v1beta1", "workloads"));
    space.restart(&order, &path, "/spec/active", false).await;
}

#[tokio::test]
async fn a_concurrent_change_is_refused() {
    let Some(space) = Space::new("stale").await else { return };
    space.grant("memtape", granted()).await;
    let (order, path) = (space.job_set().await, space.job_set_path());
    let target = space.target("memtape").await;
    let api = target.connect().await.unwrap();
    let read = async || {
        let (_, pod) = target.pod(&api, &order).await.unwrap();
        match controller(&api, &order.namespace, &pod).await.unwrap() {
            Controller::Suspendable(object) => *object,
            other => panic!("{other:?}"),
        }
    };
    // Between reading and suspending, another client changes the object.
    let stale = read().await;
    let changed = space.change(&path, &json!({ "spec": { "replicas": 2 } })).await;
    let refused = target.suspend(&api, &order, stale).await.unwrap_err();
    assert!(matches!(refused, Outcome::Refused { .. }));
    let of = "llm of jobsets.jobset.x-k8s.io in namespace stale";
    assert_eq!(refused.to_string(), format!("{of} has changed meanwhile: nothing was done"));
    assert_eq!(space.read(&path).await, changed);
    // Another object has its name and, by chance, its version.
    let mut other = read().await;
    other.value["metadata"]["uid"] = json!("99999999-0000-4000-8000-000000000000");
    let refused = target.suspend(&api, &order, other).await.unwrap_err();
    assert!(matches!(refused, Outcome::Refused { .. }), "{refused}");
    assert_eq!(space.read(&path).await, changed);
    assert_eq!(space.events_of(&changed).await, Vec::<Value>::new());
}

#[tokio::test]
async fn only_the_pod_of_that_uid_is_deleted() {
    let Some(space) = Space::new("pod").await else { return };
    space.grant("memtape", granted()).await;
    let uid = "99999999-0000-4000-8000-000000000000";
    let owners = json!([{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "llm",
        "uid": uid, "controller": true }]);
    let before = space.pod(&owners).await;
    space.end_pod().await;
    let order = space.pod(&owners).await;
    let (pod, path) = (space.read(&space.pod_path()).await, space.pod_path());
    let target = space.target("memtape").await;
    check_refusal(&target.run(&before).await, "pod pod/llm is another one now: nothing was done");
    // The pod is replaced between reading and deleting.
    let stale = json!({ "preconditions": { "uid": before.pod_uid } });
    let refused = target.connect().await.unwrap().delete(&path, &path, &stale).await.unwrap_err();
    assert!(matches!(refused, ApiError::Conflict { .. }), "{refused}");
    assert_eq!(space.read(&path).await, pod);
    assert_eq!(space.events_of(&pod).await, Vec::<Value>::new());

    let said = target.run(&order).await;
    assert_eq!(said, finished("deleted pod pod/llm, which StatefulSet llm replaces"));
    let ending = space.read(&path).await;
    assert!(ending["metadata"]["deletionTimestamp"].is_string(), "{ending}");
    space.check_events(&ending).await;
    check_refusal(&target.run(&order).await, "has ended or is being deleted: nothing was done");
}

#[tokio::test]
async fn a_missing_right_is_reported_in_one_line() {
    let cases: [(&'static str, &str, &str, &str); 4] = [
        ("no-pods", "get", "pods", "to get llm of pods in namespace no-pods"),
        ("no-jobs", "get", "jobs.batch", "to get llm of jobs.batch in namespace no-jobs"),
        (
            "no-list",
            "list",
            "jobsets.jobset.x-k8s.io",
            "to list jobsets.jobset.x-k8s.io in namespace no-list",
        ),
        (
            "no-patch",
            "patch",
            "jobsets.jobset.x-k8s.io",
            "to patch llm of jobsets.jobset.x-k8s.io in namespace no-patch",
        ),
    ];
    for (namespace, verb, of, why) in cases {
        let Some(space) = Space::new(namespace).await else { return };
        let denied = (verb.to_string(), of.to_string());
        space.grant("memtape", granted().into_iter().filter(|right| *right != denied)).await;
        let order = space.job_set().await;
        let paths = [space.pod_path(), space.job_set_path()];
        let before = [space.read(&paths[0]).await, space.read(&paths[1]).await];
        for (user, why) in [("memtape", why), ("stranger", "to get llm of pods in namespace")] {
            let why = format!("the coordinator has no right {why}");
            check_refusal(&space.target(user).await.run(&order).await, &why);
            assert_eq!([space.read(&paths[0]).await, space.read(&paths[1]).await], before);
        }
        let events = space.read(&space.path("v1", "events")).await;
        assert_eq!(events["items"], json!([]));
    }
}

#[tokio::test]
async fn an_object_left_suspended_by_a_killed_coordinator_is_resumed() {
    let Some(space) = Space::new("killed").await else { return };
    space.grant("memtape", granted()).await;
    let (order, path) = (space.job_set().await, space.job_set_path());
    let target = space.target("memtape").await;
    let is_suspended = async || space.read(&path).await["spec"]["suspend"] == true;
    tokio::select! {
        said = target.run(&order) => panic!("it was not killed: {said}"),
        () = until("a suspended job", is_suspended) => {}
    }
    let other = Order { action: "act-0002".to_string(), ..order.clone() };
    assert_eq!(target.resume(&other).await, None);
    assert!(is_suspended().await);
    let target = space.target("memtape").await;
    let controlled = space.control(&path, "/spec/suspend", true, "Suspended");
    let (said, ()) = tokio::join!(target.resume(&order), controlled);
    assert_eq!(said, Some(finished("suspended and resumed JobSet killed/llm")));
    assert!(!is_suspended().await);
    assert_eq!(target.resume(&order).await, None);
}

/// A server that does not know the field takes the change, and leaves the field out.
#[tokio::test]
async fn an_object_that_cannot_be_suspended_is_left_unchanged() {
    let Some(space) = Space::new("old").await else { return };
    space.grant("memtape", granted()).await;
    let order = space.pod(&space.job(&json!([])).await).await;
    let path = format!("{}/llm", space.path("batch/v1", "jobs"));
    let before = space.read(&path).await;
    let said = space.target("memtape").await.run(&order).await;
    check_refusal(&said, "this version of Kubernetes cannot suspend Job old/llm");
    let after = space.read(&path).await;
    assert_eq!((&after["spec"], &after["status"]), (&before["spec"], &before["status"]));
    let marks = |object: &Value| {
        let meta = &object["metadata"];
        (
            meta["labels"][objects::SUSPENDED_BY].clone(),
            meta["annotations"][objects::ACTION].clone(),
        )
    };
    assert_eq!(marks(&after), (Value::Null, Value::Null));
    assert!(space.read(&space.pod_path()).await["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(space.events_of(&after).await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_node_is_tainted_once_and_within_the_bound() {
    let Some(space) = Space::new("nodes").await else { return };
    space.grant_everywhere("memtape", granted().into_iter().filter(|(_, of)| of == "nodes")).await;
    let other = json!([{ "key": "nvidia.com/gpu", "effect": "NoSchedule" }]);
    for name in ["gpu-1", "gpu-2", "gpu-3"] {
        let node = json!({ "metadata": { "name": name }, "spec": { "taints": other } });
        space.create("/api/v1/nodes", &node).await.unwrap();
    }
    let taint = Taint(space.target("memtape").await);
    let run = async |node: &str, action: &str| taint.run(&out(node, action)).await;
    let path = "/api/v1/nodes/gpu-1";
    let before = space.read(path).await;
    let said = Taint(space.target("stranger").await).run(&out("gpu-1", "out-1")).await;
    let why = "the coordinator has no right to get node gpu-1: nothing was done";
    check_refusal(&said, why);
    // The node is changed between reading and tainting.
    let changed = space.change(path, &json!({ "metadata": { "labels": { "a": "b" } } })).await;
    let api = taint.0.connect().await.unwrap();
    let refused = api.patch(path, &path, &tainting(&before, "out-1")).await.unwrap_err();
    assert!(matches!(refused, ApiError::Conflict { .. }), "{refused}");
    assert_eq!(space.read(path).await, changed);

    let tainted = finished("tainted node gpu-1: memtape.io/suspect:NoSchedule");
    assert_eq!(run("gpu-1", "out-1").await, tainted);
    let after = space.read(path).await;
    let mut taints = changed["spec"]["taints"].as_array().unwrap().clone();
    let ours = json!({ "key": "memtape.io/suspect", "value": "out-1", "effect": "NoSchedule" });
    taints.push(ours);
    assert_eq!(after["spec"]["taints"], json!(taints));
    check_refusal(&run("gpu-1", "out-1").await, "has the taint memtape.io/suspect already");
    assert_eq!(taint.resume(&out("gpu-1", "out-1")).await, Some(tainted));
    let other = taint.resume(&out("gpu-1", "out-2")).await.unwrap();
    check_refusal(&other, "node gpu-1 is not kept out by this decision");
    assert_eq!(space.read(path).await, after);

    assert!(matches!(run("gpu-2", "out-2").await, Outcome::Finished { .. }));
    check_refusal(&run("gpu-3", "out-3").await, "2 nodes are kept out already");
    // A person takes one back in.
    space.change(path, &json!({ "spec": { "taints": null } })).await;
    assert!(matches!(run("gpu-3", "out-3").await, Outcome::Finished { .. }));
}
