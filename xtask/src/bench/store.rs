//! `cargo xtask bench store`: what keeping step records costs Memtape, beside a plain sled with a
//! key for each record, and redb, in the same run on the same disk.
//!
//! The program in tests/store_bench measures, optimized, and prints one object of figures. Here it
//! is run and shown as a table. Machines differ and so do their disks: it is the columns beside
//! each other that tell.

use std::process::Stdio;

use serde_json::{Map, Value, json};

use crate::report::Outcome;
use crate::step::{cargo, say};

/// Names in the figures' keys, and in the table.
const STORES: [(&str, &str); 3] =
    [("memtape", "memtape"), ("sled", "sled, a key a record"), ("redb", "redb, a key a record")];

/// Figures of each, with what they are.
const FIGURES: [(&str, &str); 4] = [
    ("records_per_s", "records/s"),
    ("bytes_per_record", "bytes/record"),
    ("reopen_ms", "reopen, ms"),
    ("window_us", "600 records, µs"),
];

/// Measures, and says what it found.
pub(crate) fn bench() -> Outcome {
    let measured = measure();
    if let Err(why) = &measured {
        say(&format!("{why}\n"));
    }
    let is_good = measured.is_ok();
    let figures = measured.unwrap_or_default();
    let text = if is_good { text(&figures) } else { "no figures\n".to_string() };
    let object = json!({ "command": "bench store", "ok": is_good, "figures": figures });
    Outcome { is_good, text, json: format!("{object}\n") }
}

fn measure() -> Result<Map<String, Value>, String> {
    say("the program is built and run: some minutes …\n");
    let mut program =
        cargo(&["run", "--locked", "--release", "--quiet", "--package=memtape-store-bench"]);
    let output = program.stderr(Stdio::inherit()).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("the program failed: {}", output.status));
    }
    let figures: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let figures = figures.as_object().cloned().unwrap_or_default();
    let missing = STORES
        .iter()
        .flat_map(|(store, _)| FIGURES.iter().map(move |(figure, _)| format!("{store}_{figure}")));
    match missing.into_iter().find(|key| !figures.get(key).is_some_and(Value::is_f64)) {
        Some(key) => Err(format!("the program measured no {key}")),
        None => Ok(figures),
    }
}

fn text(figures: &Map<String, Value>) -> String {
    let number = |key: &str| figures.get(key).and_then(Value::as_f64).unwrap_or(0.0);
    let mut text = format!(
        "{} records of {} series, durable after every {} of them\n\n{:22}",
        number("records"),
        number("series"),
        20.0 * number("series"),
        ""
    );
    for (_, says) in FIGURES {
        text.push_str(&format!("{says:>18}"));
    }
    for (store, says) in STORES {
        text.push_str(&format!("\n{says:22}"));
        for (figure, _) in FIGURES {
            let value = number(&format!("{store}_{figure}"));
            let digits = if value < 100.0 { 1 } else { 0 };
            text.push_str(&format!("{value:>18.digits$}"));
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_shown() {
        let mut figures = Map::new();
        for (number, (store, _)) in (1..).zip(STORES) {
            for (figure, _) in FIGURES {
                figures.insert(format!("{store}_{figure}"), json!(f64::from(number * 1111)));
            }
        }
        let text = text(&figures);
        assert_eq!(text.lines().count(), 6);
        for value in ["1111", "2222", "3333"] {
            assert_eq!(text.matches(value).count(), FIGURES.len(), "{text}");
        }
    }
}
