//! A stand-in for the API server of Kubernetes: the answers that the target depends on, in the
//! words of the real one, and controllers that end the pods of a suspended job after a while.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use kube::Config;
use serde_json::{Value, json};

/// The chart's rules: the server grants what they do.
const CHART: &str = include_str!("../../../../../deploy/helm/memtape/templates/restart.yaml");

/// Verb, and plural with group, of every right in the chart.
pub(super) fn granted() -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for line in CHART.lines().filter(|line| line.contains("apiGroups: [")) {
        let list = |name: &str| {
            let (_, after) = line.split_once(&format!("{name}: [")).expect(name);
            let (inner, _) = after.split_once(']').expect("a list");
            inner.split(", ").map(|word| word.trim_matches('"').to_string()).collect::<Vec<_>>()
        };
        for (verb, plural) in list("verbs")
            .iter()
            .flat_map(|verb| list("resources").into_iter().map(move |of| (verb, of)))
        {
            let qualified = format!("{plural}.{}", list("apiGroups")[0]);
            found.insert((verb.clone(), qualified.trim_end_matches('.').to_string()));
        }
    }
    found
}

/// Time from suspending a job until its pods are gone.
const ENDING: Duration = Duration::from_millis(60);

/// What the server has, and what was asked.
#[derive(Default)]
pub(super) struct Cluster {
    /// By path.
    pub(super) objects: BTreeMap<String, Value>,
    /// Verb and plural that the client may not.
    pub(super) denied: BTreeSet<(&'static str, &'static str)>,
    /// Rights that were needed.
    pub(super) used: BTreeSet<(String, String)>,
    /// Method and path of each request, and what it sent.
    pub(super) requests: Vec<(String, Value)>,
    /// Requests that are answered with this status after they were done: each the first of this
    /// method after the one before.
    pub(super) lost: VecDeque<(&'static str, u16)>,
    /// Reads that are answered before the next change is made; its answer is status 504.
    pub(super) reads_before_change: Option<usize>,
    /// Path and content of the change that is not made yet.
    late: Option<(String, Value)>,
    /// Changes an object before the next write, as another client would.
    pub(super) changed_by_other: bool,
    /// Changes of the field `spec` are left out, as an unknown field of it would be.
    pub(super) prunes_spec: bool,
    /// Suspended jobs never end.
    pub(super) is_stuck: bool,
    /// Path of the suspended object, and since when.
    suspended: Option<(String, Instant)>,
    version: u64,
}

impl Cluster {
    /// Adds an object. Its uid is `uid-NAME`.
    pub(super) fn add(&mut self, path: &str, mut object: Value) {
        self.version += 1;
        let name = path.rsplit('/').next().unwrap();
        object["metadata"]["name"] = json!(name);
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{name}"));
        }
        self.objects.insert(path.to_string(), object);
    }

    /// Method and path of all requests that change something.
    pub(super) fn writes(&self) -> Vec<String> {
        let writes = self.requests.iter().filter(|(line, _)| !line.starts_with("GET "));
        writes.map(|(line, _)| line.clone()).collect()
    }

    /// What the controllers do in the meantime.
    fn turn(&mut self) {
        let Some((path, since)) = &self.suspended else { return };
        if since.elapsed() < ENDING || self.is_stuck {
            return;
        }
        let object = self.objects.get_mut(path).unwrap();
        let condition = if path.contains("kueue") { "Evicted" } else { "Suspended" };
        object["status"]["conditions"] = json!([{ "type": condition, "status": "True" }]);
        self.objects.retain(|path, _| !path.contains("/pods/"));
    }

    fn answer(&mut self, verb: &str, path: &str, selector: &str, content: &Value) -> Response {
        self.turn();
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let (group, rest) = match parts[..] {
            ["api", _, "namespaces", _, ref rest @ ..] => ("", rest.to_vec()),
            ["apis", group, _, "namespaces", _, ref rest @ ..] => (group, rest.to_vec()),
            ["api", _, "nodes", ..] => ("", parts[2..].to_vec()),
            ["apis", group] => return self.group(group),
            _ => return status(404, "NotFound", "the server could not find the resource"),
        };
        let (plural, name) = (rest[0], rest.get(1).copied().unwrap_or_default());
        let verb = if verb == "get" && name.is_empty() { "list" } else { verb };
        let qualified = [plural, group].join(".");
        let qualified = qualified.trim_end_matches('.');
        let right = (verb.to_string(), qualified.to_string());
        let is_granted = granted().contains(&right);
        self.used.insert(right);
        if self.denied.contains(&(verb, plural)) || !is_granted {
            let message = format!(
                "{qualified} \"{name}\" is forbidden: User \
                 \"system:serviceaccount:memtape:memtape\" cannot {verb} resource \"{plural}\" in \
                 API group \"{group}\" in the namespace \"train\""
            );
            return status(403, "Forbidden", &message);
        }
        if verb == "list" {
            return self.list(path, selector);
        }
        if verb == "create" {
            return (StatusCode::CREATED, content.to_string()).into_response();
        }
        let Some(object) = self.objects.get_mut(path) else {
            return status(404, "NotFound", &format!("{qualified} \"{name}\" not found"));
        };
        if self.changed_by_other && verb != "get" {
            self.version += 1;
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            self.changed_by_other = false;
        }
        match verb {
            "get" => object.to_string().into_response(),
            "delete" => self.delete(path, qualified, content),
            "patch" => self.patch(path, qualified, content),
            _ => panic!("{verb} {path}"),
        }
    }

    /// Counts a read, and makes the change that was to come after it.
    fn change_late(&mut self) {
        let (Some(reads), Some((path, content))) = (&mut self.reads_before_change, &self.late)
        else {
            return;
        };
        *reads -= 1;
        if *reads == 0 {
            let (path, content) = (path.clone(), content.clone());
            (self.reads_before_change, self.late) = (None, None);
            self.answer("patch", &path, "", &content);
        }
    }

    fn group(&self, group: &str) -> Response {
        let prefix = format!("/apis/{group}/");
        let found = self.objects.keys().find_map(|path| path.strip_prefix(&prefix));
        let Some(version) = found.and_then(|rest| rest.split('/').next()) else {
            return status(404, "NotFound", "the server could not find the requested resource");
        };
        let version = json!({ "groupVersion": format!("{group}/{version}"), "version": version });
        json!({ "kind": "APIGroup", "name": group, "preferredVersion": version })
            .to_string()
            .into_response()
    }

    fn list(&self, path: &str, selector: &str) -> Response {
        // Without a value, any.
        let (label, value) = selector.split_once('=').unwrap_or((selector, ""));
        let mut items: Vec<&Value> = Vec::new();
        for (of, object) in &self.objects {
            let is_there = of.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
            let found = &object["metadata"]["labels"][label];
            if is_there && (found == value || value.is_empty() && found.is_string()) {
                items.push(object);
            }
        }
        json!({ "kind": "List", "items": items }).to_string().into_response()
    }

    fn delete(&mut self, path: &str, qualified: &str, options: &Value) -> Response {
        let found = self.objects[path]["metadata"]["uid"].clone();
        let expected = &options["preconditions"]["uid"];
        if !expected.is_null() && *expected != found {
            let message = format!(
                "Operation cannot be fulfilled on {qualified}: Precondition failed: UID in \
                 precondition: {expected}, UID in object meta: {found}"
            );
            return status(409, "Conflict", &message);
        }
        self.objects.remove(path);
        json!({ "kind": "Status", "status": "Success" }).to_string().into_response()
    }

    fn patch(&mut self, path: &str, qualified: &str, change: &Value) -> Response {
        let object = self.objects.get_mut(path).unwrap();
        for field in ["resourceVersion", "uid"] {
            let expected = &change["metadata"][field];
            if !expected.is_null() && *expected != object["metadata"][field] {
                let message = format!(
                    "Operation cannot be fulfilled on {qualified}: the object has been modified; \
                     please apply your changes to the latest version and try again"
                );
                return status(409, "Conflict", &message);
            }
        }
        let mut change = change.clone();
        if self.prunes_spec {
            change.as_object_mut().unwrap().remove("spec");
        }
        merge(object, &change);
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let spec = &object["spec"];
        let is_suspended = spec["suspend"] == true
            || spec["active"] == false
            || spec["runPolicy"]["suspend"] == true;
        self.suspended = is_suspended.then(|| (path.to_string(), Instant::now()));
        object.to_string().into_response()
    }
}

/// A merge patch, as RFC 7386 has it.
fn merge(into: &mut Value, change: &Value) {
    let Value::Object(fields) = change else { return *into = change.clone() };
    if !into.is_object() {
        *into = json!({});
    }
    for (name, value) in fields {
        match value {
            Value::Null => drop(into.as_object_mut().unwrap().remove(name)),
            value => merge(&mut into[name], value),
        }
    }
}

fn status(code: u16, reason: &str, message: &str) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    (StatusCode::from_u16(code).unwrap(), status.to_string()).into_response()
}

/// A running stand-in.
#[derive(Clone, Default)]
pub(super) struct StandIn(Arc<Mutex<Cluster>>);

impl StandIn {
    /// Reads or changes what the server has.
    pub(super) fn with<T>(&self, use_it: impl FnOnce(&mut Cluster) -> T) -> T {
        use_it(&mut self.0.lock().unwrap())
    }

    /// Serves on the loopback until the test ends.
    pub(super) async fn serve(&self) -> Config {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Config::new(url.parse().unwrap())
    }
}

async fn answer(State(server): State<StandIn>, request: Request) -> Response {
    let (head, content) = request.into_parts();
    let content: Bytes = axum::body::to_bytes(content, 1 << 20).await.unwrap();
    let content: Value = serde_json::from_slice(&content).unwrap_or_default();
    let (method, path) = (head.method.as_str(), head.uri.path().to_string());
    let query = head.uri.query().unwrap_or_default().replace("%3D", "=");
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let mut selector = pairs.filter(|(name, _)| *name == "labelSelector").map(|(_, value)| value);
    let verb = match method {
        "GET" => "get",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "create",
    };
    if verb == "patch" {
        assert_eq!(head.headers["content-type"], "application/merge-patch+json");
    }
    server.with(|cluster| {
        cluster.requests.push((format!("{method} {path}"), content.clone()));
        let late = |code| status(code, "Timeout", "the request did not complete in time");
        if verb == "patch" && cluster.reads_before_change.is_some() {
            cluster.late = Some((path, content));
            return late(504);
        }
        let answer =
            cluster.answer(verb, &path, selector.next_back().unwrap_or_default(), &content);
        cluster.change_late();
        match cluster.lost.front() {
            Some((of, code)) if *of == method => {
                let answer = late(*code);
                cluster.lost.pop_front();
                answer
            }
            _ => answer,
        }
    })
}
