//! `/jobs/{job}/ranks`: what each rank of an attempt does, where the bytes of its devices are, and
//! its use of host memory.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use axum::extract::{Path, Query};
use axum::response::Json;
use memtape_core::stacks::nearest_peers;
use memtape_proto::api::{Device, Rank, Ranks, RanksQuery, Unknown, UnknownPart};
use serde::Deserialize;

use crate::http::asking::Asking;
use crate::http::job_routes::count as count_of;
use crate::http::request::{Answer, PathOf, Problem, QueryOf, attempt_of};
use crate::http::route_list::Routes;
use crate::state::jobs::attempt::{self, Attempt, Presence};
use crate::state::jobs::silence::Watch;
use crate::state::visible::Visible;
use memtape_store::records::Totals;

/// No agent reports a rank's host memory before its first sample.
const NOT_SAMPLED: &str = "its agent has not read it yet";

/// Why a death is no incident yet.
const NOT_SETTLED: &str = "an incident is opened after 10 s, or 45 s where the rank was asked to \
                           end, unless the whole job was ended";

/// Memory of one rank in an answer, as a value and as JSON.
const RANK_BYTES: u64 = 4 << 10;

/// Memory of one rank of the attempt, while some of them are chosen.
const RANK_CHOSEN_BYTES: u64 = 64;

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get("/jobs/{job}/ranks", "The ranks of an attempt of a job.", ranks)
}

/// A job in a path.
#[derive(Debug, Deserialize)]
pub(crate) struct JobPath {
    /// Name of the job.
    pub(crate) job: String,
}

/// Number of ranks of an attempt.
///
/// # Errors
/// When there is no such job or attempt.
async fn ranks_of(asking: &Asking, job: &str, attempt: Option<u32>) -> Result<u64, Problem> {
    let job = job.to_string();
    let found = asking
        .ask(move |view| attempt_of(view, &job, attempt).map(|found| found.ranks.len() as u64));
    found.await?
}

async fn ranks(asking: Asking, path: PathOf<JobPath>, query: QueryOf<RanksQuery>) -> Answer<Ranks> {
    let (Path(JobPath { job }), Query(query)) = (path?, query?);
    let count = ranks_of(&asking, &job, query.attempt).await?;
    let most = query.most.map_or(count, |most| count.min(most as u64));
    asking.reserve(count * RANK_CHOSEN_BYTES + most * RANK_BYTES).await?;
    let ranks = asking.ask(move |view| {
        let attempt = attempt_of(view, &job, query.attempt)?;
        let (watch, growth) = (view.watch(attempt), view.growth(attempt));
        let chosen = chosen(attempt, &growth, &query)?;
        let shown = attempt.ranks.values().filter(|of| chosen.contains(&of.record.rank));
        let alive = attempt.ranks.values().filter(|of| watch.is_alive(of)).count();
        Ok(Ranks {
            job: attempt.record.job.clone(),
            attempt: attempt.record.attempt,
            count: count_of(attempt.ranks.len()),
            alive: count_of(alive),
            ranks: shown.map(|of| rank(view, attempt, (&watch, &growth), of)).collect(),
            unknown: unknown(view, attempt, &chosen),
        })
    });
    ranks.await?.map(Json)
}

/// The ranks that are asked for.
fn chosen(
    attempt: &Attempt,
    growth: &BTreeMap<u32, i64>,
    query: &RanksQuery,
) -> Result<BTreeSet<u32>, Problem> {
    let roles: Vec<(u32, &str)> =
        attempt.ranks.values().map(|of| (of.record.rank, of.record.role.as_str())).collect();
    let mut ranks = match query.near {
        Some(rank) => {
            let known = roles.iter().any(|(of, _)| *of == rank);
            let own = known.then_some(rank).ok_or_else(|| Problem::unknown("rank", rank))?;
            [vec![own], nearest_peers(rank, &roles)].concat()
        }
        None => roles.iter().map(|(rank, _)| *rank).collect(),
    };
    if query.near.is_none() {
        ranks.sort_by_key(|rank| (Reverse(growth.get(rank).copied().unwrap_or(0)), *rank));
    }
    ranks.truncate(query.most.unwrap_or(usize::MAX));
    Ok(ranks.into_iter().collect())
}

/// Reasons for missing facts of devices and hosts, with the ranks concerned.
fn unknown(view: &Visible<'_>, attempt: &Attempt, chosen: &BTreeSet<u32>) -> Vec<Unknown> {
    let mut reasons: BTreeMap<(UnknownPart, &str), Vec<u32>> = BTreeMap::new();
    let of_chosen = attempt.ranks.values().filter(|rank| chosen.contains(&rank.record.rank));
    for rank in of_chosen.filter(|rank| rank.presence == Presence::Here) {
        let Some(node) = view.node(&rank.record.node) else { continue };
        for (what, why) in
            [(UnknownPart::Device, device_missing(node)), (UnknownPart::Host, host_missing(rank))]
        {
            if !why.is_empty() {
                reasons.entry((what, why)).or_default().push(rank.record.rank);
            }
        }
    }
    let unsettled = view.unsettled_ranks(attempt.record.serial).into_iter();
    for rank in unsettled.filter(|rank| chosen.contains(rank)) {
        reasons.entry((UnknownPart::End, NOT_SETTLED)).or_default().push(rank);
    }
    let reasons = reasons.into_iter();
    reasons
        .map(|((what, why), ranks)| Unknown { what: what.into(), why: why.to_string(), ranks })
        .collect()
}

/// Why the driver's figures of the devices of a node are not known; empty where they are.
pub(super) fn device_missing(node: &attempt::Node) -> &str {
    &node.host.nvml_missing
}

/// Why the host memory of a rank that is here is not known; empty where it is.
pub(super) fn host_missing(rank: &attempt::Rank) -> &str {
    rank.host.as_ref().map_or(NOT_SAMPLED, |host| &host.missing)
}

fn rank(
    view: &Visible<'_>,
    attempt: &Attempt,
    (watch, growth): (&Watch<'_>, &BTreeMap<u32, i64>),
    rank: &attempt::Rank,
) -> Rank {
    let record = &rank.record;
    Rank {
        rank: record.rank,
        role: record.role.clone(),
        node: record.node.clone(),
        local_rank: record.local_rank,
        pid: record.pid,
        tape_id: record.tape_id.clone(),
        slurm_job: record.workload.slurm_job.clone(),
        pod: record.workload.pod.clone(),
        pod_uid: record.workload.pod_uid.clone(),
        state: watch.state(attempt, rank).into(),
        alive: watch.is_alive(rank),
        step: rank.step,
        clock: rank.clock().into(),
        step_wall_ns: rank.step_wall_ns,
        end: record.end.map(Into::into),
        ended: record.end.map_or("", |end| end.word(record.exit_status)).to_string(),
        end_detail: record.end_detail.clone(),
        devices: rank.totals.iter().map(|totals| device(view, rank, totals)).collect(),
        rss_bytes: rank.rss_bytes,
        pinned_bytes: rank.pinned_bytes(),
        host: rank.host.clone(),
        growth_bytes_per_step: growth.get(&rank.record.rank).copied(),
        lost_events: rank.lost,
        missed_steps: rank.steps_missed,
        limitations: record.limitations.clone(),
    }
}

fn device(view: &Visible<'_>, rank: &attempt::Rank, totals: &Totals) -> Device {
    let uuids = &rank.record.device_uuids;
    let node = view.node(&rank.record.node);
    let is_here = rank.presence == Presence::Here;
    let gpu = node.filter(|_| is_here).and_then(|node| rank.gpu(totals.device, &node.gpus));
    Device {
        device: totals.device,
        uuid: uuids.get(usize::from(totals.device)).cloned().unwrap_or_default(),
        allocated_bytes: totals.allocated,
        reserved_bytes: totals.reserved,
        peak_allocated_bytes: totals.peak_allocated,
        blocks: totals.blocks,
        ooms: totals.ooms,
        malloc_failures: totals.malloc_failures,
        device_bytes: totals.device_bytes,
        process_bytes: totals.process_bytes,
        pending_free_bytes: totals.deferred,
        gpu_processes: gpu.and_then(|gpu| gpu.processes),
        ledger: (&rank.ledger(totals, node)).into(),
    }
}
