//! `cargo xtask bench cluster`: how many ranks one coordinator holds, and what they cost.
//!
//! tests/load is the generator: agents of eight ranks over gRPC on loopback, one record per second
//! and rank, against the coordinator as it is released. Here it is built, run for each size, and
//! its figures shown. Generator and coordinator share the machine's cores.

use anyhow::Result;
use serde_json::{Value, json};

use super::generate;
use crate::process::{Steps, say};
use crate::report::{Found, table};

/// Sizes, unless one is asked for.
const RANKS: [u64; 4] = [512, 2_048, 8_192, 16_384];

/// Ranks of a storm, unless another number is asked for: 2,048 agents, 2 GiB.
const STORM_RANKS: u64 = 16_384;

const PACKAGES: [&str; 2] = ["memtape", "memtape-load"];

/// Holds each size, or this one.
pub(super) fn bench(steps: &mut Steps, ranks: Option<u64>) -> Result<Found> {
    steps.build(&PACKAGES)?;
    let mut held: Vec<Value> = Vec::new();
    let mut failure = None;
    for ranks in ranks.map_or(RANKS.to_vec(), |ranks| vec![ranks]) {
        say(&format!("{ranks} ranks …\n"));
        match generate(&["hold", "--ranks", &ranks.to_string()]) {
            Ok(figures) => held.push(figures),
            Err(why) => {
                failure = Some(why);
                break;
            }
        }
    }
    // The largest one stands for all; the others are beside it.
    let mut figures = held.last().cloned().unwrap_or_else(|| json!({}));
    let columns: Vec<_> = held.iter().map(|size| (size["ranks"].to_string(), size)).collect();
    let mut text = table(&columns);
    if held.len() > 1 {
        figures["sizes"] = json!(held);
    }
    text.extend(failure.iter().map(|why| format!("{why:#}\n")));
    let is_good = failure.is_none() && held.iter().all(is_sound);
    Ok(Found { is_good, text, object: json!({ "figures": figures }) })
}

/// Nothing lost, and held; a size that was not held is a finding about this machine, and said.
fn is_sound(figures: &Value) -> bool {
    figures["lost"] == 0 && figures["streams_broken"] == 0
}

/// Every agent uploads at the same moment.
pub(super) fn storm(steps: &mut Steps, ranks: Option<u64>) -> Result<Found> {
    steps.build(&PACKAGES)?;
    let ranks = ranks.unwrap_or(STORM_RANKS).to_string();
    say(&format!("a storm of {ranks} ranks …\n"));
    let figures = generate(&["storm", "--ranks", &ranks])?;
    let is_bounded = figures["rss_bytes"].as_u64() <= figures["bound_bytes"].as_u64();
    let is_whole = figures["snapshots"].as_u64().is_some_and(|snapshots| snapshots > 0)
        && figures["snapshots"] == figures["agents"];
    Ok(Found::figures(is_bounded && is_whole && figures["lost"] == 0, &figures))
}
