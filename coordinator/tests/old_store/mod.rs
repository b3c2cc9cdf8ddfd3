//! A store of commit b715533, served by this coordinator: it answers what that commit's answered.

use std::path::Path;
use std::time::Duration;

use memtape_coordinator::Config;
use serde_json::Value;

use crate::fake::{Running, config, start};

/// Largest file of the test data.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Nothing in the data is too old, whatever the date.
const AGE_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Lists, and what has to be the same in each of their entries.
const LISTS: [(&str, &[&str]); 4] = [
    (
        "incidents",
        &[
            "id",
            "job",
            "attempt",
            "rank",
            "device",
            "scope",
            "layer",
            "class",
            "culprit",
            "stack",
            "onset_step",
            "detected_step",
            "explained_ratio",
            "allocation_steps",
            "evidence",
            "against",
            "advice",
            "suspects",
            "age_buckets",
            "age_profile",
            "remedy",
            "restart",
            "alternatives",
            "confidence",
            "pages",
            "explained_bytes",
            "unexplained_bytes",
            "capture_id",
            "opened_wall_ns",
            "closed_wall_ns",
            "closed_reason",
            "state",
        ],
    ),
    (
        "captures",
        &[
            "id",
            "job",
            "attempt",
            "trigger",
            "trigger_rank",
            "step",
            "before_step",
            "state",
            "aligned",
            "ranks",
            "requested_wall_ns",
            "parts",
            "missing",
        ],
    ),
    (
        "actions",
        &[
            "id",
            "incident_id",
            "job",
            "attempt",
            "kind",
            "decision",
            "dry_run",
            "why",
            "wall_ns",
            "outcome",
        ],
    ),
    ("jobs", &["job", "attempt", "attempts", "world_size", "started_wall_ns", "step_max"]),
];

fn data() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/b715533")
}

/// Decompresses a folder of the test data.
fn unpack(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            unpack(&entry, &to.join(entry.file_name().unwrap()));
        } else {
            let bytes = zstd::bulk::decompress(&std::fs::read(&entry).unwrap(), FILE_BYTES_MAX);
            std::fs::write(to.join(entry.file_stem().unwrap()), bytes.unwrap()).unwrap();
        }
    }
}

/// What commit b715533 answered, with today's names of fields.
fn expected(name: &str) -> Value {
    let text = std::fs::read(data().join(format!("expected/{name}.json"))).unwrap();
    renamed(serde_json::from_slice(&text).unwrap())
}

/// Names of fields as b715533 had them, and as they are now.
const RENAMED: [(&str, &str); 8] = [
    ("explained", "explained_ratio"),
    ("generations", "allocation_steps"),
    ("births", "age_buckets"),
    ("course", "age_profile"),
    ("closed_why", "closed_reason"),
    ("reason", "trigger"),
    ("reason_rank", "trigger_rank"),
    ("gives_back_bytes", "freed_bytes"),
];

fn renamed(value: Value) -> Value {
    let name = |old: String| {
        let known = RENAMED.iter().find(|(name, _)| *name == old);
        known.map_or(old.clone(), |(_, new)| (*new).to_string())
    };
    match value {
        Value::Array(all) => all.into_iter().map(renamed).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(field, value)| (name(field), renamed(value))).collect()
        }
        other => other,
    }
}

/// What is said today where it is not what b715533 said.
fn in_words_of_today(said: &Value) -> Value {
    let known = "not run: the coordinator was restarted before its capture was closed";
    let now = "not run: the coordinator was restarted before its target was asked";
    if said == known { now.into() } else { said.clone() }
}

async fn check_list(running: &Running, name: &str, fields: &[&str]) {
    let expected = expected(name);
    // A capture that was cut short is closed soon after the start.
    let is_open = |one: &Value| one["state"] == "collecting";
    let is_settled = |said: &Value| !said[name].as_array().unwrap().iter().any(is_open);
    let said = running.wait(&format!("/api/v1/{name}"), is_settled).await;
    let said = said[name].as_array().unwrap();
    for old in expected[name].as_array().unwrap() {
        let key = if name == "jobs" { "job" } else { "id" };
        let new = said.iter().find(|new| new[key] == old[key]);
        let new = new.unwrap_or_else(|| panic!("{name}: {} is gone", old[key]));
        for field in fields {
            let (new, said) = (without_saves(&new[field]), without_saves(&old[field]));
            assert_eq!(new, in_words_of_today(&said), "{name}: {field} of {}", old[key]);
        }
        // A leak saves at least what has grown since.
        let saves = |of: &Value| of["remedy"]["saves_bytes"].as_u64();
        assert!(saves(new) >= saves(old), "{name}: {new:#}");
    }
}

fn without_saves(field: &Value) -> Value {
    let mut field = field.clone();
    if let Some(fields) = field.as_object_mut() {
        fields.remove("saves_bytes");
    }
    field
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_b715533_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("store");
    unpack(&data().join("store"), &folder);
    let config = Config { captures_age_max: AGE_MAX, steps_age_max: AGE_MAX, ..config(&folder) };
    let running = start(config).await;
    for (name, fields) in LISTS {
        check_list(&running, name, fields).await;
    }
    for job in ["open", "over"] {
        let (_, said) = running.get(&format!("/api/v1/jobs/{job}/ranks")).await;
        let expected = expected(&format!("jobs-{job}-ranks"));
        for (new, old) in
            said["ranks"].as_array().unwrap().iter().zip(expected["ranks"].as_array().unwrap())
        {
            for field in ["rank", "node", "pid", "tape_id", "step", "end", "end_detail", "alive"] {
                assert_eq!(new.get(field), old.get(field), "{field} of {job}");
            }
        }
    }
    let (_, series) = running.get("/api/v1/jobs/open/series?rank=1&points=50000").await;
    assert_eq!(series["steps"].as_array().unwrap().len(), 572);
    assert_eq!(series["steps"], expected("series")["steps"]);
    let path = "/api/v1/captures/cap-0v6r7jb/ranks/1";
    let snapshot = reqwest::get(running.url(path)).await.unwrap();
    assert_eq!(snapshot.status(), 200);
    assert!(!snapshot.bytes().await.unwrap().is_empty());
    running.stop().await;
}
