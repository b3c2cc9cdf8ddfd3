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

/// Holds each size, or this one; with certificates, too, where that is asked for.
pub(super) fn bench(steps: &mut Steps, ranks: Option<u64>, tls: bool) -> Result<Found> {
    steps.build(&PACKAGES)?;
    let mut held: Vec<Value> = Vec::new();
    let mut failure = None;
    let sizes = ranks.map_or(RANKS.to_vec(), |ranks| vec![ranks]).into_iter();
    let runs = sizes.flat_map(|ranks| [(ranks, "0"), (ranks, "1")]);
    for (ranks, has_tls) in runs.filter(|(_, has_tls)| tls || *has_tls == "0") {
        let with = if has_tls == "1" { ", with certificates" } else { "" };
        say(&format!("{ranks} ranks{with} …\n"));
        match generate(&["hold", "--ranks", &ranks.to_string(), "--tls", has_tls]) {
            Ok(figures) => held.push(figures),
            Err(why) => {
                failure = Some(why);
                break;
            }
        }
    }
    // The largest one stands for all; the others are beside it.
    let mut figures = held.last().cloned().unwrap_or_else(|| json!({}));
    let title = |size: &Value| match size["tls"] == true {
        true => format!("{} TLS", size["ranks"]),
        false => size["ranks"].to_string(),
    };
    let columns: Vec<_> = held.iter().map(|size| (title(size), size)).collect();
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

/// Agents report while others hold connections, uploads and answers open.
pub(super) fn siege(steps: &mut Steps, ranks: u64, seconds: u64) -> Result<Found> {
    steps.build(&PACKAGES)?;
    say(&format!("a siege of {ranks} ranks …\n"));
    let (ranks, seconds) = (ranks.to_string(), seconds.to_string());
    let figures = generate(&["siege", "--ranks", &ranks, "--seconds", &seconds])?;
    // One rank of each agent has a snapshot.
    let is_whole = ["before", "during", "after"]
        .iter()
        .all(|phase| figures[phase]["capture_aligned"] == figures["agents"]);
    let is_good = is_whole && figures["all_attackers_there"] == true && is_sound(&figures);
    Ok(Found::figures(is_good, &figures))
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
