//! The ranks of an attempt: what each is doing, where the bytes of its devices are, and what it
//! takes of its host. What is not known is `null`.

use std::collections::BTreeMap;

use memtape_core::ledger::{Amount, Ledger};
use serde::Serialize;
use serde_json::{Value, json};

use crate::records::RankHost;
use crate::records::{End, Totals};
use crate::state::jobs::{Attempt, Cluster, Presence, Rank};
use crate::state::silence::Watch;

/// An agent of protocol 1.1 does not say what ranks take of their hosts, and no agent does before
/// it has looked.
const OLD_AGENT: &str = "its agent does not say: it has not looked yet, or is an older one";

/// All ranks of an attempt.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RanksView {
    job: String,
    attempt: u32,
    ranks: Vec<RankView>,
    unknown: Vec<UnknownView>,
}

/// Why something is not known of some ranks: said once.
#[derive(Clone, Debug, Serialize)]
struct UnknownView {
    /// `device` or `host`.
    what: &'static str,
    why: String,
    ranks: Vec<u32>,
}

#[derive(Clone, Debug, Serialize)]
struct RankView {
    rank: u32,
    role: String,
    node: String,
    local_rank: u32,
    pid: u32,
    tape_id: String,
    state: &'static str,
    alive: bool,
    step: u64,
    step_wall_ns: i64,
    end: Option<&'static str>,
    end_detail: String,
    devices: Vec<DeviceView>,
    rss_bytes: Option<u64>,
    pinned_bytes: Option<u64>,
    host: Option<RankHost>,
    growth_bytes_per_step: i64,
    lost: u64,
    steps_missed: u64,
    limitations: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
struct DeviceView {
    device: u8,
    uuid: String,
    allocated: u64,
    reserved: u64,
    peak_allocated: u64,
    blocks: u64,
    ooms: u64,
    malloc_failures: u64,
    device_bytes: u64,
    process_bytes: Option<u64>,
    deferred: Option<u64>,
    gpu_processes: Option<u32>,
    ledger: Value,
}

/// The ranks of an attempt.
pub(crate) fn ranks(cluster: &Cluster, attempt: &Attempt, watch: &Watch<'_>) -> RanksView {
    RanksView {
        job: attempt.record.job.clone(),
        attempt: attempt.record.attempt,
        ranks: attempt.ranks.values().map(|rank| view(cluster, attempt, watch, rank)).collect(),
        unknown: unknown(cluster, attempt),
    }
}

/// Why the driver's word is missing, and what is not known of the host.
fn unknown(cluster: &Cluster, attempt: &Attempt) -> Vec<UnknownView> {
    let mut reasons: BTreeMap<(&'static str, &str), Vec<u32>> = BTreeMap::new();
    for rank in attempt.ranks.values().filter(|rank| rank.presence == Presence::Here) {
        let Some(node) = cluster.nodes.get(&rank.record.node) else { continue };
        let host = rank.host.as_ref().map_or(OLD_AGENT, |host| &host.missing);
        for (what, why) in [("device", node.host.nvml_missing.as_str()), ("host", host)] {
            if !why.is_empty() {
                reasons.entry((what, why)).or_default().push(rank.record.rank);
            }
        }
    }
    let view = |((what, why), ranks): ((&'static str, &str), _)| UnknownView {
        what,
        why: why.to_string(),
        ranks,
    };
    reasons.into_iter().map(view).collect()
}

fn view(cluster: &Cluster, attempt: &Attempt, watch: &Watch<'_>, rank: &Rank) -> RankView {
    let record = &rank.record;
    let growth = attempt.detector.state(record.rank).growth_bytes_per_step;
    RankView {
        rank: record.rank,
        role: record.role.clone(),
        node: record.node.clone(),
        local_rank: record.local_rank,
        pid: record.pid,
        tape_id: record.tape_id.clone(),
        state: watch.state(attempt, rank),
        alive: watch.is_alive(rank),
        step: rank.step,
        step_wall_ns: rank.step_wall_ns,
        end: record.end.map(End::as_str),
        end_detail: record.end_detail.clone(),
        devices: rank.totals.iter().map(|totals| device(cluster, rank, totals)).collect(),
        rss_bytes: rank.rss_bytes,
        pinned_bytes: rank.pinned_bytes(),
        host: rank.host.clone(),
        growth_bytes_per_step: growth,
        lost: rank.lost,
        steps_missed: rank.steps_missed,
        limitations: record.limitations.clone(),
    }
}

fn device(cluster: &Cluster, rank: &Rank, totals: &Totals) -> DeviceView {
    let uuids = &rank.record.device_uuids;
    let node = cluster.nodes.get(&rank.record.node);
    let is_here = rank.presence == Presence::Here;
    let gpu = node.filter(|_| is_here).and_then(|node| rank.gpu(totals.device, &node.gpus));
    DeviceView {
        device: totals.device,
        uuid: uuids.get(usize::from(totals.device)).cloned().unwrap_or_default(),
        allocated: totals.allocated,
        reserved: totals.reserved,
        peak_allocated: totals.peak_allocated,
        blocks: totals.blocks,
        ooms: totals.ooms,
        malloc_failures: totals.malloc_failures,
        device_bytes: totals.device_bytes,
        process_bytes: totals.process_bytes,
        deferred: totals.deferred,
        gpu_processes: gpu.and_then(|gpu| gpu.processes),
        ledger: ledger(&rank.ledger(totals, node)),
    }
}

/// As `memtape tape --json` shows it: the layers and the rest add up to the device.
fn ledger(ledger: &Ledger) -> Value {
    let layer = |layer: &memtape_core::ledger::Layer| {
        let bytes = match layer.amount {
            Amount::Known(bytes) => Some(bytes),
            Amount::Unknown => None,
        };
        json!({ "layer": layer.name.text(), "bytes": bytes })
    };
    let rest = ledger.rest_bytes.and_then(|rest| i64::try_from(rest).ok());
    json!({
        "device_bytes": ledger.device_bytes,
        "layers": ledger.layers.iter().map(layer).collect::<Vec<_>>(),
        "rest_bytes": rest,
    })
}
