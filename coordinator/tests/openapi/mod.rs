//! The OpenAPI document against the running server: the same routes, and answers of the shapes it
//! describes, with all fields and no others.

mod document;

use std::collections::BTreeSet;

use memtape_proto::api::IndexedRoute;
use serde_json::Value;

use crate::fake::{Running, attached};
use crate::{JOB, train_until_captured};

/// Every operation of the document, and a request for it.
const REQUESTS: [(&str, &str); 36] = [
    ("get /api/v1", "/api/v1"),
    ("get /api/v1/jobs", "/api/v1/jobs"),
    ("get /api/v1/changes", "/api/v1/changes"),
    ("get /api/v1/jobs/{job}/ranks", "/api/v1/jobs/train/ranks"),
    ("get /api/v1/jobs/{job}/lines", "/api/v1/jobs/train/lines"),
    ("get /api/v1/jobs/{job}/source", "/api/v1/jobs/train/source?file=/gone/train.py&line=1"),
    ("get /api/v1/jobs/{job}/policy", "/api/v1/jobs/train/policy"),
    ("get /api/v1/jobs/{job}/hints", "/api/v1/jobs/train/hints"),
    ("post /api/v1/incidents/{id}/approve", "/api/v1/incidents/inc-none/approve"),
    ("get /api/v1/jobs/{job}/series", "/api/v1/jobs/train/series?rank=2&account=step_time"),
    ("get /api/v1/jobs/{job}/area", "/api/v1/jobs/train/area?account=peak"),
    (
        "get /api/v1/jobs/{job}/differences",
        "/api/v1/jobs/train/differences?first_rank=2&last_rank=2",
    ),
    ("post /api/v1/jobs/{job}/captures", "/api/v1/jobs/train/captures"),
    ("get /api/v1/captures", "/api/v1/captures"),
    ("get /api/v1/captures/{id}", "/api/v1/captures/{capture}"),
    ("get /api/v1/captures/{id}/collectives", "/api/v1/captures/{capture}/collectives"),
    ("get /api/v1/captures/{id}/kept", "/api/v1/captures/{capture}/kept?rank=2&from=9&to=200"),
    ("get /api/v1/captures/{id}/segments", "/api/v1/captures/{capture}/segments?rank=2"),
    ("get /api/v1/captures/{id}/ranks/{rank}", "/api/v1/captures/{capture}/ranks/2"),
    ("get /api/v1/captures/{id}/ranks/{rank}/pickle", "/api/v1/captures/{capture}/ranks/2/pickle"),
    ("get /api/v1/incidents", "/api/v1/incidents"),
    ("get /api/v1/incidents/{id}", "/api/v1/incidents/{incident}"),
    ("post /api/v1/incidents/{id}/thread", "/api/v1/incidents/{incident}/thread"),
    ("get /api/v1/actions", "/api/v1/actions"),
    ("get /api/v1/nodes", "/api/v1/nodes"),
    ("get /api/v1/cluster", "/api/v1/cluster"),
    ("get /api/v1/openapi.json", "/api/v1/openapi.json"),
    ("get /api/v1/whoami", "/api/v1/whoami"),
    ("post /api/v1/session", "/api/v1/session"),
    ("post /api/v1/session/end", "/api/v1/session/end"),
    ("get /api/v1/tokens", "/api/v1/tokens"),
    ("post /api/v1/tokens", "/api/v1/tokens"),
    ("get /api/v1/tokens/own", "/api/v1/tokens/own"),
    ("post /api/v1/tokens/{id}/revoke", "/api/v1/tokens/0a1b/revoke"),
    ("get /api/v1/audit", "/api/v1/audit"),
    ("get /api/v1/store/backup", "/api/v1/store/backup"),
];

/// The schema of the answer of an operation with this status.
fn schema<'a>(operation: &'a Value, status: &str) -> Option<&'a Value> {
    operation["responses"][status]["content"]["application/json"].get("schema")
}

/// Holds answers against the schemas of a document. An object must have all fields that are
/// described, and no others.
struct Schemas<'a>(&'a Value);

impl Schemas<'_> {
    #[track_caller]
    fn assert_valid(&self, schema: &Value, answer: &Value, path: &str) {
        let wrong = self.wrong(schema, answer);
        assert!(wrong.is_none(), "{path}: {} in {answer:#}", wrong.unwrap_or_default());
    }

    /// What is wrong with an answer; none where it is as described.
    fn wrong(&self, schema: &Value, answer: &Value) -> Option<String> {
        let rules = schema.as_object().cloned().unwrap_or_default();
        rules.iter().find_map(|(keyword, rule)| self.breaks(keyword, rule, schema, answer))
    }

    fn breaks(&self, keyword: &str, rule: &Value, of: &Value, answer: &Value) -> Option<String> {
        let all = || rule.as_array().expect("a list of schemas");
        let is_good = match keyword {
            "$ref" => {
                let pointer = rule.as_str().and_then(|it| it.strip_prefix('#')).expect("a pointer");
                return self.wrong(self.0.pointer(pointer).expect(pointer), answer);
            }
            "allOf" => return all().iter().find_map(|schema| self.wrong(schema, answer)),
            "anyOf" | "oneOf" => all().iter().any(|schema| self.wrong(schema, answer).is_none()),
            "type" => {
                let one = std::slice::from_ref(rule);
                rule.as_array().map_or(one, Vec::as_slice).iter().any(|name| is_of(name, answer))
            }
            "enum" => all().contains(answer),
            "const" => rule == answer,
            "minimum" => answer.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap()),
            "maximum" => answer.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap()),
            "items" => {
                let items = answer.as_array().map_or(&[][..], Vec::as_slice);
                return items.iter().find_map(|item| self.wrong(rule, item));
            }
            "properties" => return self.wrong_fields(rule, answer),
            "additionalProperties" if of.get("properties").is_none() => {
                let fields = answer.as_object().into_iter().flatten();
                return fields.into_iter().find_map(|(_, field)| self.wrong(rule, field));
            }
            // All fields must be there as it is; the rest is for readers.
            "required"
            | "additionalProperties"
            | "description"
            | "title"
            | "default"
            | "format" => true,
            other => panic!("the keyword {other} is not checked"),
        };
        (!is_good).then(|| format!("{answer} breaks {keyword} {rule}"))
    }

    fn wrong_fields(&self, described: &Value, answer: &Value) -> Option<String> {
        let (described, fields) = (described.as_object()?, answer.as_object()?);
        let names: [BTreeSet<&String>; 2] = [described.keys().collect(), fields.keys().collect()];
        if names[0] != names[1] {
            return Some(format!("fields {:?} are described as {:?}", names[1], names[0]));
        }
        let wrong =
            |(name, field)| Some(format!("{name}: {}", self.wrong(&described[name], field)?));
        fields.iter().find_map(wrong)
    }
}

/// Is a value of this type?
fn is_of(name: &Value, value: &Value) -> bool {
    match name.as_str().expect("the name of a type") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("the type {other} is not checked"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_is_the_running_server() {
    let (_dir, running, mut agent) = attached().await;
    agent.gpus = vec![memtape_proto::v1::Gpu { uuid: "GPU-0".into(), ..Default::default() }];
    agent.announce(&JOB).await;
    let (_, (request, _)) = train_until_captured(&mut agent, &JOB, 0).await;
    let is_done = |answer: &Value| answer["incidents"][0]["class"] == "leak";
    let answer = running.wait("/api/v1/incidents", is_done).await;
    let incident = answer["incidents"][0]["id"].as_str().unwrap();
    let document = made(&running).await;
    let schemas = Schemas(&document);
    let mut described: BTreeSet<String> = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            described.insert(format!("{method} {path}"));
        }
    }
    let requested: BTreeSet<String> = REQUESTS.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(described, requested);

    for (name, path) in REQUESTS {
        let (method, route) = name.split_once(' ').unwrap();
        let operation = &document["paths"][route][method];
        assert!(operation["summary"].as_str().is_some_and(|line| line.ends_with('.')), "{name}");
        let path = path.replace("{capture}", &request.capture_id).replace("{incident}", incident);
        let (status, answer) = match method {
            "get" if path.ends_with("/changes") => {
                let (_, event) = running.changes(None).await.next().await;
                let changes = &document["components"]["schemas"]["Changes"];
                schemas.assert_valid(changes, &event, &path);
                (200, event)
            }
            "get" => running.get(&path).await,
            // Refused, each in its own way.
            _ => running.post(&path, "{\"step\":99999,\"token\":\"?\"}").await,
        };
        let status = if operation["responses"][status.to_string()].is_null() {
            "default".to_string()
        } else {
            status.to_string()
        };
        // Without a token there is none of its own.
        let is_refused =
            path.ends_with("/own") || method == "post" && !path.ends_with("/session/end");
        assert_eq!(status == "default", is_refused, "{name} answered {answer}");
        if let Some(schema) = schema(operation, &status) {
            schemas.assert_valid(schema, &answer, &path);
        }
        // Refused by the same words everywhere.
        let problem = schema(operation, "default").unwrap();
        schemas.assert_valid(problem, &running.get("/api/v1/nosuch").await.1, &path);
    }
    let (_, requested) = running.post("/api/v1/jobs/train/captures", "").await;
    let operation = &document["paths"]["/api/v1/jobs/{job}/captures"]["post"];
    schemas.assert_valid(schema(operation, "202").unwrap(), &requested, "a capture");
    running.stop().await;
}

/// The document, made of what a coordinator lists.
pub(crate) async fn made(running: &Running) -> Value {
    let (_, index) = running.get("/api/v1").await;
    let listed: Vec<IndexedRoute> = serde_json::from_value(index["routes"].clone()).unwrap();
    document::document(&listed)
}

/// A route that is added past [`Routes`] would not be described.
#[test]
fn no_route_of_the_api_is_added_past_the_document() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/http");
    let mut added = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.path().extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(entry.path()).unwrap();
            let paths = text.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next());
            added.extend(paths.map(str::to_string));
        }
    }
    // The files of the page are added from their table.
    let beside = ["/healthz", "/readyz", "/metrics", "/api/v1/", "/api/v1/{*path}"];
    assert_eq!(added, beside.map(str::to_string).into());
}
