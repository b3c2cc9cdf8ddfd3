//! The ranks of a job as text: what each is doing, where the bytes of its devices are, and what it
//! takes of its host. `?` is unknown, which is not nothing.

use std::fmt::Write;

use memtape_proto::api::{Device, Named, Rank, Unknown};

use crate::output::clean;
use crate::render::palette;
use crate::render::table::{Cell, table};
use crate::render::units::{bytes, counted, plural, signed_bytes};

/// Layers as columns. What stands in a sum for others has them in it.
const LAYERS: [(&str, &str); 7] = [
    ("free", ">free"),
    ("other processes", ">other processes"),
    ("nccl", ">nccl"),
    ("other code", ">other code"),
    ("unused by tensors", ">unused"),
    ("deferred frees", ">deferred"),
    ("in use by tensors", ">in use"),
];

/// What a column means.
const NOTES: &str = "growth/step: change of the per-step minimum; – once the rank has ended\n";

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
    let titles = [
        ">rank",
        "state",
        "role",
        "process",
        "node",
        ">pid",
        ">step",
        ">growth/step",
        ">allocated",
        ">reserved",
        ">peak",
        ">blocks",
        ">ooms",
        ">retries",
        ">rss",
    ];
    let mut text = table(&titles, ranks.iter().map(row).collect());
    text.push_str(NOTES);
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

/// What a rank is doing and holds.
fn row(rank: &Rank) -> Vec<Cell> {
    let sum = |of: fn(&Device) -> u64| rank.devices.iter().map(of).sum::<u64>();
    let end = rank.end.as_ref().map_or("gone", Named::as_str);
    vec![
        Cell::from(rank.rank.to_string()),
        Cell::new(rank.state.to_string(), palette::of_rank(&rank.state)),
        rank.role.clone().into(),
        if rank.alive { "alive" } else { end }.to_string().into(),
        rank.node.clone().into(),
        if rank.pid == 0 { "–".to_string() } else { rank.pid.to_string() }.into(),
        counted(&rank.clock, &rank.step.to_string()).into(),
        growth(rank).into(),
        bytes(sum(|device| device.allocated_bytes)).into(),
        bytes(sum(|device| device.reserved_bytes)).into(),
        bytes(sum(|device| device.peak_allocated_bytes)).into(),
        sum(|device| device.blocks).to_string().into(),
        count_of_trouble(sum(|device| device.ooms)),
        count_of_trouble(sum(|device| device.malloc_failures)),
        rank.rss_bytes.map_or("–".to_string(), bytes).into(),
    ]
}

/// The change of the per-step minimum; a rank that has ended has none.
pub(crate) fn growth(rank: &Rank) -> String {
    rank.growth_bytes_per_step.map_or("–".to_string(), signed_bytes)
}

/// A count that should be 0.
fn count_of_trouble(count: u64) -> Cell {
    let meaning = if count > 0 { palette::Meaning::Bad } else { palette::Meaning::Plain };
    Cell::new(count.to_string(), meaning)
}

/// Where the bytes of each device are: layers and unaccounted bytes add up to the device. A layer
/// that is unknown on all devices has no column; the line below the table names it.
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
    let row = |(rank, device): &(u32, Device)| {
        let mut row = vec![rank.to_string(), device.device.to_string()];
        row.extend(known.iter().map(|(name, _)| or_unknown(amount(device, name))));
        let rest = device.ledger.unaccounted_bytes.map(signed_bytes);
        row.push(rest.map_or("?".to_string(), |rest| rest.trim_start_matches('+').to_string()));
        row.push(or_unknown(device.ledger.device_bytes));
        row
    };
    let mut titles = vec![">rank", ">device"];
    titles.extend(known.iter().map(|(_, title)| title));
    titles.extend([">unaccounted", ">size"]);
    let mut text = format!("\n{}", table(&titles, devices.iter().map(row).collect()));
    let names: Vec<&str> = unknown.iter().map(|(name, _)| *name).collect();
    let names = [names.as_slice(), &["context and kernels"]].concat();
    let _ = writeln!(text, "unaccounted: {}", names.join(", "));
    text
}

/// What each rank takes of its host.
fn hosts(ranks: &[Rank]) -> String {
    if ranks.iter().all(|rank| rank.host.is_none() && rank.pinned_bytes.is_none()) {
        return String::new();
    }
    let row = |rank: &Rank| {
        let host = rank.host.clone().unwrap_or_default();
        let workers = host.workers.map_or("?".to_string(), |workers| match workers.left_out {
            0 => workers.count.to_string(),
            more => format!("{} of {}", workers.count, workers.count.saturating_add(more)),
        });
        // Without parts, pages that a fork shares count for each.
        let held = host.workers.map_or("?".to_string(), |workers| match workers.anon_parts_bytes {
            Some(parts) => bytes(parts),
            None => format!("<= {}", bytes(workers.anon_bytes)),
        });
        let cgroup = host.cgroup.unwrap_or_default();
        let limit = cgroup.limit_bytes.map_or("no limit".to_string(), bytes);
        vec![
            rank.rank.to_string(),
            or_unknown(host.anon_bytes),
            or_unknown(host.file_bytes),
            or_unknown(host.shmem_bytes),
            or_unknown(host.swap_bytes),
            or_unknown(rank.pinned_bytes),
            workers,
            held,
            or_unknown(cgroup.bytes),
            if host.cgroup.is_some() { limit } else { "?".to_string() },
            cgroup.oom_kills.map_or("?".to_string(), |kills| kills.to_string()),
        ]
    };
    let titles = [
        ">rank",
        ">private",
        ">files",
        ">shared",
        ">swapped",
        ">pinned",
        ">workers",
        ">worker private",
        ">cgroup",
        ">limit",
        ">kills",
    ];
    let rows = table(&titles, ranks.iter().map(row).collect());
    format!("\n{rows}{HOST_NOTES}")
}

/// `rank 3`, `ranks 0-2, 5`.
pub(crate) fn which(ranks: &[u32]) -> String {
    let runs = ranks.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let run = |run: &[u32]| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run.iter().map(u32::to_string).collect(),
    };
    let runs: Vec<String> = runs.map(run).collect();
    format!("rank{} {}", if ranks.len() > 1 { "s" } else { "" }, runs.join(", "))
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
    fn no_rank_is_said() {
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
    }

    #[test]
    fn devices_and_hosts_have_tables_of_their_own() {
        let mib = |count: u64| count << 20;
        let ranks: Vec<Rank> = parse(&json!([
            { "rank": 0, "role": "pp0", "state": "healthy", "alive": true, "node": "a",
              "devices": [{ "device": 0, "ledger": {
                "device_bytes": mib(100), "unaccounted_bytes": mib(70), "layers": [
                  { "layer": "free", "bytes": null }, { "layer": "nccl", "bytes": mib(10) },
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
unaccounted: free, other processes, other code, unused by tensors, deferred frees, \
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
