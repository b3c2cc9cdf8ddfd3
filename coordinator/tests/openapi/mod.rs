//! The OpenAPI document against the running server: the same routes, and answers of the shapes it
//! describes, with all fields and no others.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::fake::{Agent, config, start};
use crate::{JOB, train_until_captured};

/// Every operation of the document, and a request for it.
const REQUESTS: [(&str, &str); 27] = [
    ("get /api/v1", "/api/v1"),
    ("get /api/v1/jobs", "/api/v1/jobs"),
    ("get /api/v1/jobs/{job}/ranks", "/api/v1/jobs/train/ranks"),
    ("get /api/v1/jobs/{job}/lines", "/api/v1/jobs/train/lines"),
    ("get /api/v1/jobs/{job}/policy", "/api/v1/jobs/train/policy"),
    ("get /api/v1/jobs/{job}/hints", "/api/v1/jobs/train/hints"),
    ("post /api/v1/incidents/{id}/approve", "/api/v1/incidents/inc-none/approve"),
    ("get /api/v1/jobs/{job}/series", "/api/v1/jobs/train/series?rank=2"),
    ("post /api/v1/jobs/{job}/captures", "/api/v1/jobs/train/captures"),
    ("get /api/v1/captures", "/api/v1/captures"),
    ("get /api/v1/captures/{id}", "/api/v1/captures/{capture}"),
    ("get /api/v1/captures/{id}/collectives", "/api/v1/captures/{capture}/collectives"),
    ("get /api/v1/captures/{id}/ranks/{rank}", "/api/v1/captures/{capture}/ranks/2"),
    ("get /api/v1/captures/{id}/ranks/{rank}/pickle", "/api/v1/captures/{capture}/ranks/2/pickle"),
    ("get /api/v1/incidents", "/api/v1/incidents"),
    ("get /api/v1/incidents/{id}", "/api/v1/incidents/{incident}"),
    ("get /api/v1/actions", "/api/v1/actions"),
    ("get /api/v1/nodes", "/api/v1/nodes"),
    ("get /api/v1/openapi.json", "/api/v1/openapi.json"),
    ("get /api/v1/whoami", "/api/v1/whoami"),
    ("post /api/v1/session", "/api/v1/session"),
    ("post /api/v1/session/end", "/api/v1/session/end"),
    ("get /api/v1/tokens", "/api/v1/tokens"),
    ("post /api/v1/tokens", "/api/v1/tokens"),
    ("post /api/v1/tokens/{id}/revoke", "/api/v1/tokens/0a1b/revoke"),
    ("get /api/v1/audit", "/api/v1/audit"),
    ("get /api/v1/store/backup", "/api/v1/store/backup"),
];

/// Makes a schema strict: an object has all of its fields, and no others.
fn make_strict(schema: &mut Value) {
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        let names: Vec<&String> = properties.keys().collect();
        schema["required"] = json!(names);
        schema["additionalProperties"] = json!(false);
    }
    match schema {
        Value::Object(map) => map.values_mut().for_each(make_strict),
        Value::Array(list) => list.iter_mut().for_each(make_strict),
        _ => {}
    }
}

/// The schema of the answer with this status, with all that it refers to.
fn schema(document: &Value, operation: &Value, status: &str) -> Option<Value> {
    let mut schema =
        operation["responses"][status]["content"]["application/json"]["schema"].clone();
    let mut components = document["components"]["schemas"].clone();
    make_strict(&mut components);
    schema.as_object_mut()?.insert("components".to_string(), json!({ "schemas": components }));
    Some(schema)
}

#[track_caller]
fn assert_valid(schema: &Value, answer: &Value, path: &str) {
    let validator = jsonschema::validator_for(schema).unwrap();
    let mistakes: Vec<String> =
        validator.iter_errors(answer).map(|error| format!("{error}")).collect();
    assert!(mistakes.is_empty(), "{path}: {mistakes:#?} in {answer:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_is_the_running_server() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path())).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.gpus = vec![memtape_proto::v1::GpuReport { uuid: "GPU-0".into(), ..Default::default() }];
    agent.announce(&JOB).await;
    let (_, (request, _)) = train_until_captured(&mut agent, &JOB, 0).await;
    let is_done = |answer: &Value| answer["incidents"][0]["class"] == "leak";
    let answer = running.wait("/api/v1/incidents", is_done).await;
    let incident = answer["incidents"][0]["id"].as_str().unwrap();
    let (status, document) = running.get("/api/v1/openapi.json").await;
    assert_eq!((status, document["openapi"].as_str()), (200, Some("3.1.0")), "{document:#}");
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
            "get" => running.get(&path).await,
            // Refused, each in its own way.
            _ => running.post(&path, "{\"step\":99999,\"token\":\"?\"}").await,
        };
        let status = if operation["responses"][status.to_string()].is_null() {
            "default".to_string()
        } else {
            status.to_string()
        };
        let is_refused = method == "post" && !path.ends_with("/session/end");
        assert_eq!(status == "default", is_refused, "{name} answered {answer}");
        if let Some(schema) = schema(&document, operation, &status) {
            assert_valid(&schema, &answer, &path);
        }
        // Refused by the same words everywhere.
        let problem = schema(&document, operation, "default").unwrap();
        assert_valid(&problem, &running.get("/api/v1/nosuch").await.1, &path);
    }
    let (_, requested) = running.post("/api/v1/jobs/train/captures", "").await;
    let operation = &document["paths"]["/api/v1/jobs/{job}/captures"]["post"];
    assert_valid(&schema(&document, operation, "202").unwrap(), &requested, "a capture");
    running.stop().await;
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
