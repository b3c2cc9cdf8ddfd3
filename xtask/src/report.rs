//! What a command found: its steps and its figures, as text or as one JSON object.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Result;
use comfy_table::presets::NOTHING;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};
use memtape_core::diagnosis::bytes;
use serde_json::{Value, json};

use crate::process::{Counts, Step, Steps, json_of};

/// What a command prints, and whether all is well.
#[derive(Debug)]
pub(crate) struct Found {
    /// The exit code is 0.
    pub(crate) is_good: bool,
    /// For a person.
    pub(crate) text: String,
    /// For a program: `figures`, and what else the command has.
    pub(crate) object: Value,
}

impl Found {
    /// Figures, and a row for each of them.
    pub(crate) fn figures(is_good: bool, figures: &Value) -> Self {
        let text = table(&[(String::new(), figures)]);
        Self { is_good, text, object: json!({ "figures": figures }) }
    }

    /// What a program found, which prints one object on stdout and its progress on stderr: its
    /// `figures`, and where it has one, its own `text` for a person. Good is an exit code of 0 and
    /// no `ok` that is false.
    pub(crate) fn of_program(program: &mut Command) -> Result<Self> {
        let (is_good, mut object) = json_of(program, Stdio::inherit())?;
        let text = object["text"].as_str().map(String::from);
        let text = text.unwrap_or_else(|| table(&[(String::new(), &object["figures"])]));
        if let Some(object) = object.as_object_mut() {
            object.remove("text");
        }
        let why = object["failed"].as_str().map(|why| format!("{why} failed\n"));
        let is_good = is_good && object["ok"] != false;
        Ok(Self { is_good, text: why.unwrap_or(text), object })
    }

    /// Why there are no figures.
    pub(crate) fn failure(error: &anyhow::Error) -> Self {
        let why = format!("{error:#}");
        let object = json!({ "figures": {}, "error": why });
        Self { is_good: false, text: why + "\n", object }
    }

    /// What the tests of all steps left out on this machine, then one line of counts.
    pub(crate) fn tests(steps: &Steps, took: Duration) -> Self {
        let Counts { passed, failed, ignored } = steps.counts();
        let left_out: Vec<_> = steps.0.iter().flat_map(|step| &step.left_out).collect();
        let lines: String = left_out.iter().map(|line| format!("left out: {line}\n")).collect();
        let figures = json!({
            "passed": passed,
            "failed": failed,
            "ignored": ignored,
            "left_out": left_out.len(),
            "seconds": seconds(took),
        });
        Self {
            is_good: steps.0.iter().all(|step| step.is_good),
            text: format!("{lines}{passed} passed, {failed} failed\n"),
            object: json!({ "figures": figures, "left_out": left_out }),
        }
    }

    /// One object, on one line.
    pub(crate) fn json(&self, command: &str, steps: &Steps) -> String {
        let mut object = self.object.clone();
        object["command"] = json!(command);
        object["ok"] = json!(self.is_good);
        let step = |step: &Step| {
            let seconds = seconds(step.took);
            json!({ "name": step.name, "ok": step.is_good, "seconds": seconds })
        };
        object["steps"] = steps.0.iter().map(step).collect();
        format!("{object}\n")
    }
}

/// A row for each figure, a column for each object, whose name stands above it. A nested figure is
/// named by its path; lists are left to the JSON.
pub(crate) fn table(columns: &[(String, &Value)]) -> String {
    let mut rows = BTreeMap::new();
    for (column, (_, object)) in columns.iter().enumerate() {
        flatten("", object, &mut |name, value| {
            let row = rows.entry(name).or_insert_with(|| vec!["-".to_string(); columns.len()]);
            row[column] = value;
        });
    }
    let titles = columns.iter().map(|(title, _)| title.clone()).collect();
    aligned(std::iter::once((String::new(), titles)).chain(rows))
}

/// Rows of a name and its cells, all columns as wide as they need.
pub(crate) fn aligned(rows: impl IntoIterator<Item = (String, Vec<String>)>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    for (name, cells) in rows {
        let cells =
            cells.into_iter().map(|cell| Cell::new(cell).set_alignment(CellAlignment::Right));
        table.add_row(std::iter::once(Cell::new(name)).chain(cells));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines = table.lines().map(|line| line.trim_end().to_string());
    lines.filter(|line| !line.is_empty()).map(|line| line + "\n").collect()
}

fn flatten(path: &str, value: &Value, add: &mut impl FnMut(String, String)) {
    match value {
        Value::Object(figures) => {
            for (name, value) in figures {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(&path, value, add);
            }
        }
        Value::Array(_) | Value::Null => {}
        Value::String(text) => add(path.to_string(), text.clone()),
        Value::Number(_) | Value::Bool(_) => add(path.to_string(), shown(path, value)),
    }
}

fn shown(name: &str, value: &Value) -> String {
    match value.as_f64() {
        Some(number) if name.ends_with("bytes") => bytes(number as u64),
        Some(number) if value.is_f64() => {
            let digits = match number.abs() {
                0.0..1.0 => 4,
                1.0..100.0 => 2,
                _ => 0,
            };
            format!("{number:.digits$}")
        }
        _ => value.to_string(),
    }
}

/// The middle of the values, or of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.get(middle), values.len() % 2) {
        (Some(upper), 0) => upper.midpoint(values[middle - 1]),
        (Some(only), _) => *only,
        (None, _) => f64::NAN,
    }
}

/// To this many decimals.
pub(crate) fn rounded(value: f64, decimals: i32) -> f64 {
    let unit = 10f64.powi(decimals);
    (value * unit).round() / unit
}

/// To a tenth of a second.
pub(crate) fn seconds(time: Duration) -> f64 {
    rounded(time.as_secs_f64(), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(is_good: bool, passed: u64, failed: u64) -> Step {
        let tests = Counts { passed, failed, ignored: 1 };
        let took = Duration::from_millis(1250);
        Step { name: "step", is_good, took, tests, left_out: Vec::new() }
    }

    fn check(steps: Vec<Step>, is_good: bool, text: &str) {
        let count = steps.len();
        let steps = Steps(steps);
        let found = Found::tests(&steps, Duration::from_secs(2));
        assert_eq!((found.is_good, found.text.as_str()), (is_good, text), "{steps:?}");
        let value: Value = serde_json::from_str(&found.json("test", &steps)).expect("own JSON");
        assert_eq!((&value["command"], &value["ok"]), (&json!("test"), &json!(is_good)));
        assert_eq!(value["steps"].as_array().map(Vec::len), Some(count));
        assert_eq!(value["figures"]["seconds"], 2.0);
        assert_eq!(value["figures"]["ignored"], count);
        let failed = value["figures"]["failed"].as_u64().expect("a number");
        assert_eq!(failed == 0, is_good, "a failure counts as something");
    }

    #[test]
    fn failures_are_counted_once() {
        check(vec![], true, "0 passed, 0 failed\n");
        check(vec![step(true, 0, 0), step(true, 7, 0)], true, "7 passed, 0 failed\n");
        check(vec![step(true, 1, 0), step(false, 7, 2)], false, "8 passed, 2 failed\n");
        check(vec![step(false, 0, 0), step(true, 7, 0)], false, "7 passed, 1 failed\n");
    }

    #[test]
    fn omissions_are_named_before_the_counts() {
        let left_out = vec!["the wheel needs maturin".to_string()];
        let steps = vec![Step { left_out, ..step(true, 7, 0) }];
        check(steps, true, "left out: the wheel needs maturin\n7 passed, 0 failed\n");
    }

    #[test]
    fn every_figure_has_a_row() {
        let one = json!({ "ranks": 512, "ack": { "p50_ms": 1.25 }, "rss_bytes": 3 << 20 });
        let two = json!({ "ranks": 2048, "held": true, "each": [1, 2] });
        let text = table(&[("512".into(), &one), ("2048".into(), &two)]);
        let rows: Vec<Vec<_>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        let expected: [&[&str]; 5] = [
            &["512", "2048"],
            &["ack.p50_ms", "1.25", "-"],
            &["held", "-", "true"],
            &["ranks", "512", "2048"],
            &["rss_bytes", "3", "MiB", "-"],
        ];
        assert_eq!(rows, expected);
        assert_eq!(table(&[(String::new(), &json!({ "ranks": 8 }))]).trim(), "ranks  8");
    }

    #[test]
    fn medians() {
        for (values, expected) in
            [(vec![3.0], 3.0), (vec![1.0, 9.0], 5.0), (vec![9.0, 1.0, 2.0], 2.0)]
        {
            assert_eq!(median(values), expected);
        }
        assert!(median(Vec::new()).is_nan());
    }
}
