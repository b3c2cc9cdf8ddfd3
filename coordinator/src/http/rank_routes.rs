//! `/jobs/{job}/ranks`: what each rank of an attempt does, where the bytes of its devices are, and
//! its use of host memory.

use std::collections::BTreeMap;

use axum::extract::{Path, Query};
use axum::response::Json;
use memtape_proto::api::{AttemptQuery, Device, Rank, Ranks, Unknown, UnknownPart};
use serde::Deserialize;

use crate::http::asking::Asking;
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

async fn ranks(
    asking: Asking,
    path: PathOf<JobPath>,
    query: QueryOf<AttemptQuery>,
) -> Answer<Ranks> {
    let (Path(JobPath { job }), Query(AttemptQuery { attempt })) = (path?, query?);
    asking.reserve(ranks_of(&asking, &job, attempt).await? * RANK_BYTES).await?;
    let ranks = asking.ask(move |view| {
        let attempt = attempt_of(view, &job, attempt)?;
        let (watch, growth) = (view.watch(attempt), view.growth(attempt));
        let shown = attempt.ranks.values().map(|of| rank(view, attempt, (&watch, &growth), of));
        Ok(Ranks {
            job: attempt.record.job.clone(),
            attempt: attempt.record.attempt,
            ranks: shown.collect(),
            unknown: unknown(view, attempt),
        })
    });
    ranks.await?.map(Json)
}

/// Reasons for missing facts of devices and hosts, with the ranks concerned.
fn unknown(view: &Visible<'_>, attempt: &Attempt) -> Vec<Unknown> {
    let mut reasons: BTreeMap<(UnknownPart, &str), Vec<u32>> = BTreeMap::new();
    for rank in attempt.ranks.values().filter(|rank| rank.presence == Presence::Here) {
        let Some(node) = view.node(&rank.record.node) else { continue };
        let host = rank.host.as_ref().map_or(NOT_SAMPLED, |host| &host.missing);
        let device = node.host.nvml_missing.as_str();
        for (what, why) in [(UnknownPart::Device, device), (UnknownPart::Host, host)] {
            if !why.is_empty() {
                reasons.entry((what, why)).or_default().push(rank.record.rank);
            }
        }
    }
    for rank in view.unsettled_ranks(attempt.record.serial) {
        reasons.entry((UnknownPart::End, NOT_SETTLED)).or_default().push(rank);
    }
    let reasons = reasons.into_iter();
    reasons
        .map(|((what, why), ranks)| Unknown { what: what.into(), why: why.to_string(), ranks })
        .collect()
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
