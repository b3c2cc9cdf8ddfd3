//! Live bytes by stack as a file for speedscope.app: one sample for each stack, in bytes.
//!
//! The schema is at <https://www.speedscope.app/file-format-schema.json>. speedscope shows no
//! negative weights, so a comparison has one profile for stacks that hold more and one for stacks
//! that hold less.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::export::stacks::{LiveBytes, Node};

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

/// The content of the file; `base` is the state that the rank is compared with.
/// Fails when it cannot be serialized.
pub(crate) fn document(
    live: &LiveBytes<'_>,
    base: Option<&LiveBytes<'_>>,
    title: &str,
) -> anyhow::Result<Vec<u8>> {
    let mut frames = Frames::default();
    let all = live.iter().map(|(stack, bytes)| (stack.to_vec(), bytes)).collect();
    let mut profiles = vec![frames.profile("live bytes", all)];
    if let Some(base) = base {
        let held = live.against(base);
        let part = |of: fn(u64, u64) -> u64| {
            let differing =
                held.iter().map(|held| (held.stack.clone(), of(held.bytes, held.base_bytes)));
            differing.filter(|(_, bytes)| *bytes > 0).collect()
        };
        profiles.push(frames.profile("held more", part(u64::saturating_sub)));
        let less = part(|bytes, base_bytes| base_bytes.saturating_sub(bytes));
        profiles.push(frames.profile("held less", less));
    }
    let file = json!({
        "$schema": SCHEMA,
        "exporter": concat!("memtape ", env!("CARGO_PKG_VERSION")),
        "name": title,
        "activeProfileIndex": 0,
        "shared": { "frames": frames.list },
        "profiles": profiles,
    });
    Ok(serde_json::to_vec(&file)?)
}

/// The frames of all profiles, each there once.
#[derive(Default)]
struct Frames<'a> {
    indexes: BTreeMap<Node<'a>, usize>,
    list: Vec<Value>,
}

impl<'a> Frames<'a> {
    fn profile(&mut self, name: &str, stacks: Vec<(Vec<Node<'a>>, u64)>) -> Value {
        let mut samples: Vec<Vec<usize>> = Vec::new();
        let mut weights: Vec<u64> = Vec::new();
        for (stack, bytes) in stacks {
            samples.push(stack.into_iter().map(|node| self.index(node)).collect());
            weights.push(bytes);
        }
        let sum = weights.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        json!({
            "type": "sampled",
            "name": name,
            "unit": "bytes",
            "startValue": 0,
            "endValue": sum,
            "samples": samples,
            "weights": weights,
        })
    }

    fn index(&mut self, node: Node<'a>) -> usize {
        let list = &mut self.list;
        *self.indexes.entry(node).or_insert_with(|| {
            list.push(frame(node));
            list.len() - 1
        })
    }
}

fn frame(node: Node<'_>) -> Value {
    let mut known = json!({ "name": node.name() });
    if let Node::Code(frame) = node {
        if !frame.file.is_empty() {
            known["file"] = json!(frame.file);
        }
        if frame.line > 0 {
            known["line"] = json!(frame.line);
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::stacks::tests::sample;

    fn read(base: bool) -> Value {
        let snapshot = sample();
        let live = LiveBytes::of_snapshot(&snapshot);
        let before = LiveBytes::before(&snapshot).filter(|_| base);
        let file = document(&live, before.as_ref(), "rank 2").expect("a file");
        serde_json::from_slice(&file).expect("JSON")
    }

    /// Checks the requirements of the published schema for files with sampled profiles.
    fn check_schema(file: &Value) {
        assert_eq!(file["$schema"], SCHEMA);
        let frames = file["shared"]["frames"].as_array().expect("frames");
        for frame in frames {
            assert!(frame["name"].is_string(), "{frame}");
            assert!(frame.get("file").is_none_or(Value::is_string), "{frame}");
            assert!(frame.get("line").is_none_or(Value::is_u64), "{frame}");
        }
        for profile in file["profiles"].as_array().expect("profiles") {
            assert_eq!((&profile["type"], &profile["unit"]), (&json!("sampled"), &json!("bytes")));
            assert!(profile["name"].is_string());
            let samples = profile["samples"].as_array().expect("samples");
            let weights = profile["weights"].as_array().expect("weights");
            assert_eq!(samples.len(), weights.len());
            let sum: u64 = weights.iter().filter_map(Value::as_u64).sum();
            assert_eq!((&profile["startValue"], &profile["endValue"]), (&json!(0), &json!(sum)));
            for index in samples.iter().filter_map(Value::as_array).flatten() {
                assert!(index.as_u64().is_some_and(|at| (at as usize) < frames.len()), "{index}");
            }
        }
    }

    #[test]
    fn the_file_has_what_the_schema_requires() {
        check_schema(&read(false));
        check_schema(&read(true));
    }

    #[test]
    fn the_weights_are_the_live_bytes() {
        let file = read(true);
        assert_eq!(file["profiles"][0]["endValue"], sample().devices[0].allocated);
        let [more, less] = [1, 2].map(|at| file["profiles"][at]["endValue"].as_u64().unwrap_or(0));
        assert_eq!((more, less), (57, 100));
        // The outermost frame comes first.
        let stack = &file["profiles"][0]["samples"][1];
        let name = |at: usize| {
            let index = stack[at].as_u64().expect("an index") as usize;
            file["shared"]["frames"][index]["name"].clone()
        };
        assert_eq!((name(0), name(1)), (json!("main"), json!("keep<T> & \"go\"")));
        assert_eq!(read(true), file);
    }
}
