//! The chart with several coordinators, against a real API server (`cargo xtask kube`): its objects
//! are taken, its rights suffice, and its coordinators hand a shard over by their Lease.
//!
//! There is no kubelet: the coordinators run here, with the arguments of the rendered chart.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use memtape_bucket::Server;
use memtape_tests::cluster::free_port;
use memtape_tests::processes::{Process, signal, wait_for};
use memtape_tests::{left_out, memtape, root};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::on_bucket::PATIENCE;

const NAMESPACE: &str = "charted";
const PODS: &str = "/api/v1/namespaces/charted/pods";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/charted/leases/memtape-0";
const CLUSTER: &str = r#"{"tls":{"insecure":true},"coordinator":{"cluster":{"url":"s3://b/c"}}}"#;
const ALONE: &str = r#"{"tls":{"insecure":true}}"#;

/// Paths of the kinds that the chart has and Kubernetes 1.20 knows.
fn collection(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "ServiceAccount" => "/api/v1/namespaces/charted/serviceaccounts",
        "Service" => "/api/v1/namespaces/charted/services",
        "Role" => "/apis/rbac.authorization.k8s.io/v1/namespaces/charted/roles",
        "RoleBinding" => "/apis/rbac.authorization.k8s.io/v1/namespaces/charted/rolebindings",
        "StatefulSet" => "/apis/apps/v1/namespaces/charted/statefulsets",
        "DaemonSet" => "/apis/apps/v1/namespaces/charted/daemonsets",
        "NetworkPolicy" => "/apis/networking.k8s.io/v1/namespaces/charted/networkpolicies",
        _ => return None,
    })
}

/// The API server, as its administrator.
struct Api {
    folder: PathBuf,
    url: String,
}

impl Api {
    fn find() -> Option<Self> {
        let folder = PathBuf::from(std::env::var_os("MEMTAPE_TEST_KUBE")?);
        let config = std::fs::read_to_string(folder.join("admin")).expect("a kubeconfig");
        let server = config.lines().find_map(|line| line.trim().strip_prefix("server: "));
        let url = server.expect("a server").to_string();
        Some(Self { folder, url })
    }

    fn ask(&self, method: &str, path: &str, content: Option<&Value>) -> Value {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--request", method, "--data-binary", "@-"]);
        command.args(["--header", "Authorization: Bearer admin"]);
        command.args(["--header", "Content-Type: application/json"]);
        command.arg("--cacert").arg(self.folder.join("apiserver.crt"));
        command.arg(format!("{}{path}", self.url)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("curl runs");
        let content = content.map(Value::to_string).unwrap_or_default();
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(content.as_bytes()).expect("curl reads");
        drop(stdin);
        let output = child.wait_with_output().expect("curl ends");
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn create(&self, path: &str, object: &Value) -> Value {
        let made = self.ask("POST", path, Some(object));
        assert_eq!(made["metadata"]["name"], object["metadata"]["name"], "{path}: {made:#}");
        made
    }
}

/// The objects of the chart with these values.
fn rendered(values: &str) -> Vec<Value> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), values).expect("values");
    let mut command = Command::new(root().join("target/chart/render"));
    command.arg(root().join("deploy/helm/memtape")).arg(NAMESPACE).arg(file.path());
    let output = command.output().expect("the renderer runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("a list")
}

fn stateful_set(objects: &[Value]) -> &Value {
    objects.iter().find(|object| object["kind"] == "StatefulSet").expect("a StatefulSet")
}

/// The arguments of the chart's coordinator, but for what the cluster would give: addresses.
fn arguments(set: &Value, pod: &str, port: u16) -> Vec<String> {
    let container = &set["spec"]["template"]["spec"]["containers"][0];
    let here = BTreeMap::from([
        ("--listen", format!("127.0.0.1:{port}")),
        ("--health-listen", "127.0.0.1:0".to_string()),
        ("--cluster", "s3://bucket/cluster".to_string()),
        ("--cluster-address", format!("http://127.0.0.1:{port}")),
        ("--cluster-pod", pod.to_string()),
    ]);
    let mut replaced = 0;
    let arguments = container["args"].as_array().expect("arguments").iter().map(|argument| {
        let argument = argument.as_str().expect("text");
        let name = argument.split('=').next().unwrap_or_default();
        match here.get(name) {
            Some(value) => {
                replaced += 1;
                format!("{name}={value}")
            }
            None => argument.to_string(),
        }
    });
    let arguments: Vec<String> = arguments.collect();
    assert_eq!(replaced, here.len(), "{arguments:?}");
    arguments
}

/// The chart's coordinators by the names of their pods, in the rights of the chart.
struct Charted {
    api: Api,
    running: BTreeMap<String, Process>,
    bucket: Server,
    _runtime: Runtime,
}

impl Charted {
    fn start(api: Api, objects: &[Value]) -> Self {
        let kubeconfig = Self::user(&api, objects);
        let runtime = Runtime::new().expect("a runtime");
        let bucket = runtime.block_on(Server::start());
        let mut charted = Self { api, running: BTreeMap::new(), bucket, _runtime: runtime };
        let set = stateful_set(objects);
        for at in 0..set["spec"]["replicas"].as_u64().expect("a number") {
            let pod = format!("{}-{at}", set["metadata"]["name"].as_str().expect("a name"));
            charted.run(pod, set, &kubeconfig);
        }
        charted
    }

    /// Gives a user the rights of the chart's account; the kubeconfig of this user.
    fn user(api: &Api, objects: &[Value]) -> PathBuf {
        const RBAC: &str = "rbac.authorization.k8s.io";
        let role = objects.iter().find(|object| object["kind"] == "Role").expect("a Role");
        api.create(collection("Role").expect("known"), role);
        let name = &role["metadata"]["name"];
        let binding = json!({
            "metadata": { "name": "memtape" },
            "subjects": [{ "kind": "User", "name": "memtape", "apiGroup": RBAC }],
            "roleRef": { "apiGroup": RBAC, "kind": "Role", "name": name },
        });
        api.create(collection("RoleBinding").expect("known"), &binding);
        let user = std::fs::read_to_string(api.folder.join("memtape")).expect("a kubeconfig");
        let spaced = user.replace("user: memtape}", "user: memtape, namespace: charted}");
        assert_ne!(spaced, user);
        let kubeconfig = api.folder.join(NAMESPACE);
        std::fs::write(&kubeconfig, spaced).expect("a kubeconfig");
        kubeconfig
    }

    fn run(&mut self, pod: String, set: &Value, kubeconfig: &Path) {
        let image = &set["spec"]["template"]["spec"]["containers"][0]["image"];
        let spec = json!({ "containers": [{ "name": "coordinator", "image": image }] });
        self.api.create(PODS, &json!({ "metadata": { "name": pod }, "spec": spec }));
        let mut command = Command::new(memtape());
        command.args(arguments(set, &pod, free_port())).env("KUBECONFIG", kubeconfig);
        command.envs(self.bucket.settings("a"));
        self.running.insert(pod, Process::start(&mut command));
    }

    /// Pods with the label of an owner.
    fn labelled(&self) -> Vec<String> {
        let path = format!("{PODS}?labelSelector=memtape.io/serves=true");
        let found = self.api.ask("GET", &path, None);
        let pods = found["items"].as_array().cloned().unwrap_or_default();
        pods.iter().filter_map(|pod| Some(pod["metadata"]["name"].as_str()?.into())).collect()
    }

    /// The only owner, once it is another one than this.
    fn owner_after(&mut self, before: &str) -> (String, Process) {
        let pod = wait_for("one labelled pod", PATIENCE, || {
            let [pod] = <[String; 1]>::try_from(self.labelled()).ok()?;
            (pod != before).then_some(pod)
        });
        let mut owner = self.running.remove(&pod).expect("it was started");
        owner.line_with("listening", PATIENCE);
        (pod, owner)
    }

    /// The process in the Lease.
    fn holder(&self) -> String {
        let lease = self.api.ask("GET", LEASE, None);
        lease["spec"]["holderIdentity"].as_str().expect("a holder").to_string()
    }
}

#[test]
fn real_kubernetes_takes_the_chart_whose_coordinators_hand_their_shard_over() {
    let Some(api) = Api::find() else {
        return left_out("the chart with several coordinators", "`cargo xtask kube`");
    };
    api.create("/api/v1/namespaces", &json!({ "metadata": { "name": NAMESPACE } }));
    let (alone, objects) = (rendered(ALONE), rendered(CLUSTER));
    assert_eq!(stateful_set(&alone)["spec"]["replicas"], 1);
    for object in alone.iter().chain(&objects) {
        let kind = object["kind"].as_str().expect("a kind");
        if let Some(path) = collection(kind) {
            api.create(&format!("{path}?dryRun=All"), object);
        }
    }
    let mut charted = Charted::start(api, &objects);
    let (first, owner) = charted.owner_after("");
    let holder = charted.holder();
    // In order: the label goes with the coordinator.
    signal(owner.id(), libc::SIGTERM);
    assert_eq!(owner.end(PATIENCE).0, Some(0));
    let (_, mut owner) = charted.owner_after(&first);
    // Killed: the pod keeps its label, until the kubelet starts the container again.
    owner.kill();
    let (third, mut last) = charted.running.pop_last().expect("a third one");
    last.line_with("listening", PATIENCE);
    wait_for("its label", PATIENCE, || charted.labelled().contains(&third).then_some(()));
    assert_ne!(charted.holder(), holder);
}
