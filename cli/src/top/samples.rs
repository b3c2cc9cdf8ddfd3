//! Answers of a coordinator for the tests of `memtape top`.

use crossterm::event::KeyCode;
use memtape_proto::api::{Job, Lines};
use serde_json::{Value, json};

use super::model::{Answer, Event, Level, Model, Wanted};
use crate::client::parse;

/// Unix time of the answer.
pub(super) const NOW_NS: i64 = 1_795_244_404_000_000_000;

const MIB: u64 = 1 << 20;

fn rank(number: u64, state: &str, growth: u64) -> Value {
    let allocated = 40_960 * MIB + growth * 300;
    json!({
        "rank": number, "state": state, "alive": true, "node": format!("node-{}", number / 2),
        "pid": 4100 + number, "step": 1200, "growth_bytes_per_step": growth,
        "rss_bytes": 3_072 * MIB,
        "devices": [{ "device": 0, "allocated_bytes": allocated, "reserved_bytes": 48_000 * MIB,
            "peak_allocated_bytes": 52_000 * MIB, "blocks": 4_211, "ooms": 0,
            "malloc_failures": 0, "device_bytes": 81_920 * MIB }],
    })
}

fn line(file: &str, number: u32, bytes: u64, growth: u64) -> Value {
    let (since, steps) = match growth {
        0 => (Value::Null, Value::Null),
        _ => (json!(960), json!([1072, 1184])),
    };
    let holders: Vec<Value> = (0..4)
        .map(|rank| {
            json!({ "rank": rank, "step": 1200, "bytes": bytes, "blocks": 240,
                "survivor_bytes": bytes / 2, "oldest_step": 96,
                "growing_since_step": since, "growth_bytes_per_step": growth,
                "growth_steps": steps })
        })
        .collect();
    json!({
        "frames": [{ "file": file, "line": number, "function": "forward" },
            { "file": "/app/train.py", "line": 157, "function": "main" }],
        "ranks": 4, "median_bytes": bytes, "holders": holders,
    })
}

/// Two jobs; the second has four ranks, of which rank 2 leaks.
pub(super) fn answer() -> Answer {
    let jobs: Vec<Job> = parse(&json!([
        { "job": "train-7b", "attempt": 1, "state": "incident", "class": "leak", "ranks_alive": 4,
          "world_size": 4, "ranks": 4, "step_min": 1198, "step_max": 1200, "incidents_open": 1,
          "started_wall_ns": NOW_NS - 900_000_000_000, "nodes": ["node-0", "node-1"] },
        { "job": "eval", "attempt": 0, "state": "ended", "ranks_alive": 0, "world_size": 2,
          "ranks": 2, "step_min": 400, "step_max": 400, "incidents_open": 0,
          "started_wall_ns": NOW_NS - 90_000_000_000_000, "nodes": ["node-0"] },
    ]))
    .expect("jobs");
    let incidents = json!([{
        "id": "inc-0v5ja3z", "job": "train-7b", "rank": 2, "state": "open", "class": "leak",
        "urgency": "page", "steps_to_oom": 20_000, "seconds_to_oom": 5_400, "sentence":
            "rank 2 keeps 2 MiB more each step, allocated at train.py:123 in train; its 3 peers \
             are flat; out of memory in about 20,000 steps",
    }]);
    let ranks = json!([
        rank(0, "healthy", 0),
        rank(1, "healthy", 0),
        rank(2, "growing", 2 * MIB),
        rank(3, "watching", 0),
    ]);
    let steps: Vec<u64> = (1..=64).collect();
    let held: Vec<u64> = steps.iter().map(|step| (40_960 + 10 * step + step % 7) * MIB).collect();
    let lines = json!({ "job": "train-7b", "attempt": 1, "ranks": 4, "lines": [
        line("/app/train.py", 123, 600 * MIB, 2 * MIB),
        line("/app/model.py", 36, 30_000 * MIB, 0),
        line("/app/data.py", 12, 64 * MIB, 0),
    ] });
    Answer {
        of: Wanted { job: Some("train-7b".to_string()), rank: Some(0), lines: true },
        jobs,
        incidents: parse(&incidents).expect("incidents"),
        ranks: parse(&ranks).expect("ranks"),
        series: parse(&json!({ "steps": steps, "step_min_bytes": held })).expect("series"),
        lines: parse::<Lines>(&lines).expect("lines"),
        wall_ns: NOW_NS,
    }
}

/// A model that has an answer and shows this level of `train-7b`.
pub(super) fn at(level: Level) -> Model {
    let mut model = Model::default();
    model.update(Event::Answer(Box::new(answer())));
    let downs = match level {
        Level::Jobs => 0,
        Level::Ranks => 1,
        Level::Lines => 2,
    };
    model.update(Event::Key(KeyCode::Down));
    for _ in 0..downs {
        model.update(Event::Key(KeyCode::Enter));
        // The first one has the ranks, the second one what is wanted of the first of them.
        for _ in 0..2 {
            let of = model.wanted();
            model.update(Event::Answer(Box::new(Answer { of, ..answer() })));
        }
    }
    model
}
