//! Makes the OpenAPI document: the requests as the server lists them, with the types that
//! `memtape_proto::api` has for what they take and answer.

use memtape_proto::api::*;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

/// What a request takes and answers.
struct Operation {
    /// `get /api/v1/jobs`.
    name: &'static str,
    query: Option<Schema>,
    sent: Option<Sent>,
    status: u16,
    answer: Value,
}

/// What is sent with a request.
struct Sent {
    schema: Schema,
    /// It has a field that must be there.
    is_required: bool,
}

/// The document of the requests that the server lists.
pub(super) fn document(listed: &[IndexedRoute]) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut schemas = settings.into_generator();
    let problem = json_answer::<Problem>(&mut schemas);
    let mut paths: Map<String, Value> = Map::new();
    for of in operations(&mut schemas) {
        let (method, path) = of.name.split_once(' ').expect("a method and a path");
        let is_it =
            |route: &&IndexedRoute| route.path == path && route.method.eq_ignore_ascii_case(method);
        let listed = listed.iter().find(is_it).map(|route| route.about.as_str());
        let about = if path == "/api/v1" { Some("This list of requests.") } else { listed };
        let about = about.unwrap_or_else(|| panic!("the server does not list {}", of.name));
        let mut operation = json!({
            "summary": about,
            "responses": { of.status.to_string(): of.answer, "default": problem.clone() },
        });
        let parameters: Vec<Value> =
            in_path(path).chain(of.query.iter().flat_map(in_query)).collect();
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        if let Some(sent) = of.sent {
            let content = json!({ "application/json": { "schema": sent.schema } });
            operation["requestBody"] = json!({ "content": content, "required": sent.is_required });
        }
        let item = paths.entry(path.to_string()).or_insert_with(|| json!({}));
        item[method] = operation;
    }
    for IndexedRoute { method, path, .. } in listed {
        let operation = &paths[path][method.to_ascii_lowercase()];
        assert!(operation.is_object(), "{method} {path} has no types in tests/openapi/document.rs");
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Memtape coordinator",
            "version": "1",
            "description":
                "Missing fields have their defaults, unknown fields and names come from a newer \
                 version: a client ignores them.",
        },
        "paths": paths,
        "components": { "schemas": schemas.take_definitions(false) },
    });
    bound(&mut document);
    document
}

/// Adds the greatest value of each integer of a known width: clients and checks ignore `format`.
fn bound(value: &mut Value) {
    if let Some(fields) = value.as_object_mut() {
        let maximum = match fields.get("format").and_then(Value::as_str) {
            Some("uint16") => u64::from(u16::MAX),
            Some("uint32") => u64::from(u32::MAX),
            Some("uint" | "uint64") => u64::MAX,
            _ => 0,
        };
        if maximum > 0 {
            fields.insert("maximum".to_string(), maximum.into());
        }
        fields.values_mut().for_each(bound);
    } else {
        value.as_array_mut().into_iter().flatten().for_each(bound);
    }
}

/// Every operation, in the order of the server's list.
fn operations(schemas: &mut SchemaGenerator) -> Vec<Operation> {
    let snapshot = "A `RankSnapshot` of memtape.proto, compressed with zstd.";
    let pickle = "What `torch.cuda.memory._snapshot` returns, as a pickle.";
    let backup = "The file of a backup; one without its end is none.";
    let changes = "Events whose data are `Changes`, with an id: a client that connects again \
                   sends it as `Last-Event-ID`.";
    let file = "application/octet-stream";
    // The data of an event.
    schemas.subschema_for::<Changes>();
    vec![
        answers::<Index>("get /api/v1", schemas),
        answers::<Jobs>("get /api/v1/jobs", schemas),
        sends("get /api/v1/changes", "text/event-stream", changes),
        answers::<Ranks>("get /api/v1/jobs/{job}/ranks", schemas).query::<RanksQuery>(),
        answers::<Lines>("get /api/v1/jobs/{job}/lines", schemas).query::<LinesQuery>(),
        answers::<SourceLines>("get /api/v1/jobs/{job}/source", schemas).query::<SourceQuery>(),
        answers::<Series>("get /api/v1/jobs/{job}/series", schemas).query::<SeriesQuery>(),
        answers::<Area>("get /api/v1/jobs/{job}/area", schemas).query::<AreaQuery>(),
        answers::<Differences>("get /api/v1/jobs/{job}/differences", schemas)
            .query::<DifferencesQuery>(),
        answers::<Captures>("get /api/v1/captures", schemas).query::<JobQuery>(),
        answers::<Capture>("get /api/v1/captures/{id}", schemas),
        sends("get /api/v1/captures/{id}/ranks/{rank}", "application/zstd", snapshot),
        sends("get /api/v1/captures/{id}/ranks/{rank}/pickle", file, pickle),
        answers::<Collectives>("get /api/v1/captures/{id}/collectives", schemas),
        answers::<Kept>("get /api/v1/captures/{id}/kept", schemas).query::<KeptQuery>(),
        answers::<Segments>("get /api/v1/captures/{id}/segments", schemas).query::<SegmentsQuery>(),
        accepts::<RequestedCapture>("post /api/v1/jobs/{job}/captures", schemas)
            .sending::<CaptureRequest>(schemas),
        answers::<Incidents>("get /api/v1/incidents", schemas).query::<JobQuery>(),
        answers::<Incident>("get /api/v1/incidents/{id}", schemas),
        answers::<Incident>("post /api/v1/incidents/{id}/thread", schemas)
            .sending::<ThreadRequest>(schemas),
        answers::<Actions>("get /api/v1/actions", schemas),
        answers::<ExplainedPolicy>("get /api/v1/jobs/{job}/policy", schemas),
        answers::<Approved>("post /api/v1/incidents/{id}/approve", schemas),
        answers::<Hints>("get /api/v1/jobs/{job}/hints", schemas),
        answers::<Nodes>("get /api/v1/nodes", schemas),
        answers::<Cluster>("get /api/v1/cluster", schemas),
        answers::<WhoAmI>("get /api/v1/whoami", schemas),
        answers::<WhoAmI>("post /api/v1/session", schemas).sending::<SignIn>(schemas),
        answers::<WhoAmI>("post /api/v1/session/end", schemas),
        answers::<Tokens>("get /api/v1/tokens", schemas),
        accepts::<CreatedToken>("post /api/v1/tokens", schemas).sending::<TokenRequest>(schemas),
        answers::<Token>("get /api/v1/tokens/own", schemas),
        answers::<Token>("post /api/v1/tokens/{id}/revoke", schemas),
        answers::<Audit>("get /api/v1/audit", schemas).query::<AuditQuery>(),
        sends("get /api/v1/store/backup", "application/x-tar", backup).query::<BackupQuery>(),
        answers::<Value>("get /api/v1/openapi.json", schemas),
    ]
}

/// A request with a JSON answer.
fn answers<T: JsonSchema>(name: &'static str, schemas: &mut SchemaGenerator) -> Operation {
    let answer = json_answer::<T>(schemas);
    Operation { name, query: None, sent: None, status: 200, answer }
}

/// A request that is accepted and goes on.
fn accepts<T: JsonSchema>(name: &'static str, schemas: &mut SchemaGenerator) -> Operation {
    Operation { status: 202, ..answers::<T>(name, schemas) }
}

/// A request for a file.
fn sends(name: &'static str, kind: &'static str, about: &str) -> Operation {
    let answer = json!({ "description": about, "content": { kind: {} } });
    Operation { name, query: None, sent: None, status: 200, answer }
}

fn json_answer<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    let schema = schemas.subschema_for::<T>();
    json!({ "description": "", "content": { "application/json": { "schema": schema } } })
}

impl Operation {
    /// What stands behind its question mark.
    fn query<T: JsonSchema>(self) -> Self {
        let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>();
        Self { query: Some(schema), ..self }
    }

    fn sending<T: JsonSchema>(self, schemas: &mut SchemaGenerator) -> Self {
        let root = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>();
        let is_required = root.get("required").is_some();
        Self { sent: Some(Sent { schema: schemas.subschema_for::<T>(), is_required }), ..self }
    }
}

/// The parts of a path that vary.
fn in_path(path: &str) -> impl Iterator<Item = Value> {
    let names = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    names.map(|name| {
        let (kind, about) = match name {
            "job" => (json!({ "type": "string" }), "Name of the job."),
            "rank" => (json!({ "type": "integer", "format": "uint32", "minimum": 0 }), "The rank."),
            _ => (json!({ "type": "string" }), "The id."),
        };
        json!({
            "in": "path",
            "name": name,
            "description": about,
            "required": true,
            "schema": kind,
        })
    })
}

fn in_query(schema: &Schema) -> impl Iterator<Item = Value> {
    let schema = schema.as_value().clone();
    let required: Vec<Value> = schema["required"].as_array().cloned().unwrap_or_default();
    let fields = schema["properties"].as_object().cloned().unwrap_or_default();
    fields.into_iter().map(move |(name, mut field)| {
        // What is not in a query is left out there: it has no null.
        if let Some([kind, _]) = field["type"].as_array().map(Vec::as_slice) {
            field["type"] = kind.clone();
        }
        json!({
            "in": "query",
            "name": name,
            "description": field["description"],
            "required": required.contains(&json!(name)),
            "schema": field,
        })
    })
}
