//! `cargo xtask bench store`: what keeping step records costs Memtape, beside a plain sled with a
//! key for each record, and redb, in the same run on the same disk.
//!
//! The program in tests/store_bench measures, optimized, and prints one object of figures; those of
//! a store have its name in front. Here it is run and shown as a table.

use std::process::Stdio;

use anyhow::{Result, ensure};
use serde_json::{Map, Value, json};

use crate::process::{cargo, json_of, say};
use crate::report::{Found, table};

const STORES: [&str; 3] = ["memtape", "sled", "redb"];

pub(super) fn bench() -> Result<Found> {
    say("the program is built and run: some minutes …\n");
    let mut program =
        cargo(&["run", "--locked", "--release", "--quiet", "--package=memtape-store-bench"]);
    let (is_good, figures) = json_of(&mut program, Stdio::inherit())?;
    ensure!(is_good, "the program failed");
    let text = text(&figures);
    Ok(Found { is_good, text, object: json!({ "figures": figures }) })
}

/// A column for each store.
fn text(figures: &Value) -> String {
    let columns = STORES.map(|store| {
        let named = figures.as_object().into_iter().flatten().filter_map(|(name, value)| {
            let name = name.strip_prefix(store)?.strip_prefix('_')?;
            Some((name.to_string(), value.clone()))
        });
        Value::Object(named.collect::<Map<_, _>>())
    });
    let columns: Vec<_> = STORES.iter().map(|store| store.to_string()).zip(&columns).collect();
    format!("{} records of {} series\n{}", figures["records"], figures["series"], table(&columns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_shown() {
        let figures = json!({
            "records": 8, "series": 2,
            "memtape_reopen_ms": 11.5, "sled_reopen_ms": 22.5, "redb_reopen_ms": 33.5,
            "memtape_window_us": 44.0, "sled_window_us": 55.0,
        });
        let text = text(&figures);
        let rows: Vec<Vec<_>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        let expected: [&[&str]; 4] = [
            &["8", "records", "of", "2", "series"],
            &["memtape", "sled", "redb"],
            &["reopen_ms", "11.50", "22.50", "33.50"],
            &["window_us", "44.00", "55.00", "-"],
        ];
        assert_eq!(rows, expected);
    }
}
