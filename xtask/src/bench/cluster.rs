//! `cargo xtask bench cluster`: how many ranks one coordinator holds, and what they cost.
//!
//! tests/load is the generator: agents of eight ranks over gRPC on loopback, one record per second
//! and rank, against the coordinator as it is released. Here it is built, run for each size, and
//! its figures shown. Generator and coordinator share the machine's cores.

use anyhow::Result;
use serde_json::{Value, json};

use super::generator;
use crate::process::{Steps, say};
use crate::report::{Found, table};

/// Sizes, unless one is asked for.
const RANKS: [u64; 4] = [512, 2_048, 8_192, 16_384];

/// Holds each size, or this one; with certificates, too, where that is asked for. A size that was
/// not held is a finding about this machine, and shown.
pub(super) fn bench(steps: &mut Steps, ranks: Option<u64>, tls: bool) -> Result<Found> {
    steps.build(&["memtape", "memtape-load"])?;
    let mut held: Vec<Value> = Vec::new();
    let (mut is_good, mut failure) = (true, String::new());
    let sizes = ranks.map_or(RANKS.to_vec(), |ranks| vec![ranks]).into_iter();
    let runs = sizes.flat_map(|ranks| [(ranks, false), (ranks, true)]);
    for (ranks, has_tls) in runs.filter(|(_, has_tls)| tls || !has_tls) {
        let with = if has_tls { ", with certificates" } else { "" };
        say(&format!("{ranks} ranks{with} …\n"));
        let mut hold = generator(&["hold", "--ranks", &ranks.to_string()]);
        match Found::of_program(hold.args(has_tls.then_some("--tls"))) {
            Ok(found) => {
                is_good &= found.is_good;
                held.push(found.object["figures"].clone());
            }
            Err(why) => {
                (is_good, failure) = (false, format!("{why:#}\n"));
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
    let text = table(&columns) + &failure;
    if held.len() > 1 {
        figures["sizes"] = json!(held);
    }
    Ok(Found { is_good, text, object: json!({ "figures": figures }) })
}
