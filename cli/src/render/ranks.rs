//! The ranks of a job as text: what each is doing, where the bytes of its devices are, and its use
//! of host memory. `?` is unknown, which is not nothing.

use std::fmt::Write;

use memtape_core::detector::RATE_STEPS;
use memtape_proto::api::{Device, Named, Rank, RankHost, Unknown};

use crate::client::unknown::which;
use crate::output::clean;
use crate::render::palette;
use crate::render::table::{Cell, Table};
use crate::render::units::{bytes, counted, plural, signed_bytes};

/// Layers as columns. What stands in a sum for others has them in it.
const LAYERS: [(&str, &str); 7] = [
    ("free", ">free"),
    ("other processes", ">other processes"),
    ("NCCL", ">NCCL"),
    ("other code", ">other code"),
    ("unused by tensors", ">unused"),
    ("pending frees", ">pending"),
    ("in use by tensors", ">in use"),
];

/// Meaning of the columns about hosts.
const HOST_NOTES: &str = "private, files, shared, swapped, pinned: host memory of the process; \
                          worker private: of its workers\n\
                          cgroup, limit: of the group that the kernel counts it in; kills: \
                          processes that the group's OOM killer has ended\n";

/// The ranks of a job.
pub(crate) fn text(ranks: &[Rank], unknown: &[Unknown]) -> String {
    if ranks.is_empty() {
        return "no rank of this job is known yet\n".to_string();
    }
    let mut text = table(ranks).text();
    let _ = writeln!(
        text,
        "growth/step: of the growth found on the rank, of a device or its host; else of the \
         per-step minimum over\nthe last {RATE_STEPS} steps; – once the rank has ended"
    );
    text.push_str(&devices(ranks));
    text.push_str(&hosts(ranks));
    for reason in unknown {
        let (what, of) = (&reason.what, which(&reason.ranks));
        let _ = writeln!(text, "unknown of the {what} of {of}: {}", clean(&reason.why));
    }
    for rank in ranks {
        if rank.lost_events > 0 {
            let _ = writeln!(
                text,
                "rank {}: {} did not fit on its tape",
                rank.rank,
                plural(rank.lost_events, "event")
            );
        }
        for limitation in &rank.limitations {
            let _ = writeln!(text, "rank {}: {}", rank.rank, clean(limitation));
        }
    }
    text
}

/// Table of states and memory of ranks.
pub(crate) fn table<'a>(ranks: impl IntoIterator<Item = &'a Rank>) -> Table<'a, Rank> {
    let sum = |rank: &Rank, of: fn(&Device) -> u64| rank.devices.iter().map(of).sum::<u64>();
    // An older coordinator has no word.
    let end = |rank: &Rank| match rank.ended.as_str() {
        "" => rank.end.as_ref().map_or("?", Named::as_str).to_string(),
        word => word.to_string(),
    };
    Table::of(ranks)
        .column(">rank", |rank| rank.rank)
        .column("state", |rank| Cell::new(rank.state.as_str(), palette::of_rank(&rank.state)))
        .column("role", |rank| rank.role.clone())
        .column("process", |rank| if rank.alive { "alive".to_string() } else { end(rank) })
        .column("node", |rank| rank.node.clone())
        .column(">pid", |rank| if rank.pid == 0 { "–".to_string() } else { rank.pid.to_string() })
        .column(">step", |rank| counted(&rank.clock, &rank.step.to_string()))
        .column(">growth/step", growth)
        .column(">allocated", |rank| bytes(sum(rank, |device| device.allocated_bytes)))
        .column(">reserved", |rank| bytes(sum(rank, |device| device.reserved_bytes)))
        .column(">peak", |rank| bytes(sum(rank, |device| device.peak_allocated_bytes)))
        .column(">blocks", |rank| sum(rank, |device| device.blocks))
        .column(">ooms", |rank| count_of_trouble(sum(rank, |device| device.ooms)))
        .column(">retries", |rank| count_of_trouble(sum(rank, |device| device.malloc_failures)))
        .column(">rss", |rank| rank.rss_bytes.map_or("–".to_string(), bytes))
}

/// What the rank grows by each step; a rank that has ended has nothing.
fn growth(rank: &Rank) -> String {
    rank.growth_bytes_per_step.map_or("–".to_string(), signed_bytes)
}

/// A count that should be 0.
pub(crate) fn count_of_trouble(count: u64) -> Cell {
    let meaning = if count > 0 { palette::Meaning::Bad } else { palette::Meaning::Plain };
    Cell::new(count.to_string(), meaning)
}

/// Layers of each device in bytes: layers and unaccounted bytes add up to the device. A layer that
/// is unknown on all devices has no column; the line below the table names it.
fn devices(ranks: &[Rank]) -> String {
    let of_rank = |rank: &'_ Rank| -> Vec<(u32, Device)> {
        rank.devices.iter().map(|device| (rank.rank, device.clone())).collect()
    };
    let devices: Vec<(u32, Device)> = ranks.iter().flat_map(of_rank).collect();
    let amount = |device: &Device, name: &str| {
        device.ledger.layers.iter().find(|layer| layer.layer == name).and_then(|layer| layer.bytes)
    };
    // A coordinator that knows no ledger says nothing of one.
    if devices.iter().all(|(_, device)| device.ledger.layers.is_empty()) {
        return String::new();
    }
    let is_known = |name: &str| devices.iter().any(|(_, device)| amount(device, name).is_some());
    let (known, unknown): (Vec<_>, Vec<_>) = LAYERS.iter().partition(|(name, _)| is_known(name));
    let rest = |device: &Device| {
        let rest = device.ledger.unaccounted_bytes.map(signed_bytes);
        rest.map_or("?".to_string(), |rest| rest.trim_start_matches('+').to_string())
    };
    let mut table = Table::of(&devices)
        .column(">rank", |(rank, _)| *rank)
        .column(">device", |(_, device)| u32::from(device.device));
    for (name, title) in &known {
        table = table.column(title, |(_, device)| or_unknown(amount(device, name)));
    }
    let table = table
        .column(">unaccounted", |(_, device)| rest(device))
        .column(">size", |(_, device)| or_unknown(device.ledger.device_bytes));
    let mut text = format!("\n{}", table.text());
    let names: Vec<&str> = unknown.iter().map(|(name, _)| *name).collect();
    let names = [names.as_slice(), &["context and kernels"]].concat();
    let _ = writeln!(text, "unaccounted: {}", names.join(", "));
    text
}

/// Use of host memory by each rank.
fn hosts(ranks: &[Rank]) -> String {
    if ranks.iter().all(|rank| rank.host.is_none() && rank.pinned_bytes.is_none()) {
        return String::new();
    }
    let of_host = |of: fn(&RankHost) -> Option<u64>| {
        move |rank: &Rank| or_unknown(rank.host.as_ref().and_then(of))
    };
    let workers = |rank: &Rank| rank.host.as_ref().and_then(|host| host.workers);
    let count = |rank: &Rank| {
        workers(rank).map_or("?".to_string(), |workers| match workers.left_out {
            0 => workers.count.to_string(),
            more => format!("{} of {}", workers.count, workers.count.saturating_add(more)),
        })
    };
    // Without parts, pages that a fork shares count for each.
    let held = |rank: &Rank| {
        workers(rank).map_or("?".to_string(), |workers| match workers.anon_parts_bytes {
            Some(parts) => bytes(parts),
            None => format!("<= {}", bytes(workers.anon_bytes)),
        })
    };
    let cgroup = |rank: &Rank| rank.host.as_ref().and_then(|host| host.cgroup);
    let limit = |rank: &Rank| {
        let limit = cgroup(rank).map(|of| of.limit_bytes.map_or("no limit".to_string(), bytes));
        limit.unwrap_or_else(|| "?".to_string())
    };
    let kills = |rank: &Rank| cgroup(rank).and_then(|of| of.oom_kills);
    let rows = Table::of(ranks)
        .column(">rank", |rank| rank.rank)
        .column(">private", of_host(|host| host.anon_bytes))
        .column(">files", of_host(|host| host.file_bytes))
        .column(">shared", of_host(|host| host.shmem_bytes))
        .column(">swapped", of_host(|host| host.swap_bytes))
        .column(">pinned", |rank| or_unknown(rank.pinned_bytes))
        .column(">workers", count)
        .column(">worker private", held)
        .column(">cgroup", |rank| or_unknown(cgroup(rank).and_then(|of| of.bytes)))
        .column(">limit", limit)
        .column(">kills", |rank| kills(rank).map_or("?".to_string(), |kills| kills.to_string()))
        .text();
    format!("\n{rows}{HOST_NOTES}")
}

fn or_unknown(count: Option<u64>) -> String {
    count.map_or("?".to_string(), bytes)
}

#[cfg(test)]
mod tests {
    use memtape_proto::api::UnknownPart;
    use serde_json::json;

    use super::*;
    use crate::client::parse;

    #[test]
    fn an_empty_list_of_ranks_is_reported() {
        assert!(text(&[], &[]).contains("no rank"));
    }

    #[test]
    fn unknown_is_not_zero() {
        let rank: Rank =
            parse(&json!({ "rank": 3, "alive": false, "end": "oom_killed", "lost_events": 2,
            "limitations": ["no stacks"] }))
            .expect("shape");
        let text = text(&[rank], &[]);
        assert!(text.contains("oom_killed") && text.contains('–'), "{text}");
        assert!(text.contains("rank 3: no stacks") && text.contains("2 events"), "{text}");
    }

    #[test]
    fn a_rank_that_has_ended_does_not_grow() {
        let check = |rank: serde_json::Value, expected: &str| {
            assert_eq!(growth(&parse(&rank).expect("shape")), expected, "{rank}");
        };
        check(json!({ "state": "growing", "growth_bytes_per_step": 2 << 20 }), "+2 MiB");
        check(json!({ "state": "healthy", "growth_bytes_per_step": 0 }), "0 B");
        check(json!({ "state": "failed", "end": "failed", "growth_bytes_per_step": null }), "–");
        let rank = parse(&json!({ "rank": 3 })).expect("shape");
        let number = format!("{RATE_STEPS} steps");
        assert!(text(&[rank], &[]).contains(&number));
        let of_api = include_str!("../../../docs/reference/http-api.md");
        assert!(of_api.contains(&format!("per-step minimum over {number}, negative")));
        let of_panels = include_str!("../../../deploy/grafana/memtape.json");
        assert!(of_panels.contains(&format!("per-step minimum over the last {number}.")));
    }

    #[test]
    fn devices_and_hosts_have_tables_of_their_own() {
        let mib = |count: u64| count << 20;
        let ranks: Vec<Rank> = parse(&json!([
            { "rank": 0, "role": "pp0", "state": "healthy", "alive": true, "node": "a",
              "devices": [{ "device": 0, "ledger": {
                "device_bytes": mib(100), "unaccounted_bytes": mib(70), "layers": [
                  { "layer": "free", "bytes": null }, { "layer": "NCCL", "bytes": mib(10) },
                  { "layer": "in use by tensors", "bytes": mib(20) }] } }],
              "pinned_bytes": mib(3),
              "host": { "anon_bytes": mib(5), "workers": { "count": 2, "anon_bytes": mib(9) },
                "cgroup": { "bytes": mib(40), "oom_kills": 0 } } },
            { "rank": 1, "state": "disconnected", "alive": false, "node": "b", "devices": [] },
        ]))
        .expect("shape");
        let unknown = Unknown {
            what: UnknownPart::Device.into(),
            why: "no NVIDIA driver is found on this node".to_string(),
            ranks: vec![0, 1, 2, 5],
        };
        let found = text(&ranks, &[unknown]);
        let expected = "\
RANK  DEVICE    NCCL  IN USE  UNACCOUNTED     SIZE
   0       0  10 MiB  20 MiB       70 MiB  100 MiB
unaccounted: free, other processes, other code, unused by tensors, pending frees, \
context and kernels

RANK  PRIVATE  FILES  SHARED  SWAPPED  PINNED  WORKERS  WORKER PRIVATE  CGROUP     LIMIT  KILLS
   0    5 MiB      ?       ?        ?   3 MiB        2        <= 9 MiB  40 MiB  no limit      0
   1        ?      ?       ?        ?       ?        ?               ?       ?         ?      ?
private, files, shared, swapped, pinned: host memory of the process; \
worker private: of its workers
cgroup, limit: of the group that the kernel counts it in; \
kills: processes that the group's OOM killer has ended
unknown of the device of ranks 0-2, 5: no NVIDIA driver is found on this node
";
        assert!(found.ends_with(expected), "{found}");
        assert!(found.contains("pp0") && found.contains("disconnected"), "{found}");
    }
}
