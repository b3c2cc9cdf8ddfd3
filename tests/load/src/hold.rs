//! A number of ranks held at one record per second and rank for a while.
//!
//! Held means: every record was acknowledged, 99 of 100 reports within the second that belongs to
//! them, and no agent was late with its own. Then the coordinators are killed and started again,
//! and everything that was acknowledged is read back from them. The store may be in the tests'
//! bucket, with a coordinator for each shard.

use std::num::{NonZeroU16, NonZeroUsize};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::agent::{INTERVAL, Progress, RAMP_UP_STEPS};
use crate::coordinator::Binary;
use crate::figures::{latencies, percentile};
use crate::fleet::Fleet;
use crate::job::{Node, RANKS_PER_AGENT, nodes};
use crate::shards::Shards;

/// 99 of 100 reports must be acknowledged within this time.
const ACK_TIME_MAX: Duration = Duration::from_secs(1);

/// Of all reports, at most this part may be late: the generator shares its cores.
const LATE_PART_MAX: f64 = 0.001;

/// Counts the steps that a coordinator stored.
const STEPS: &str = "memtape_steps_total";

/// What to hold.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Load {
    #[arg(long)]
    pub(crate) ranks: u32,
    #[arg(long, default_value_t = 1)]
    pub(crate) jobs: u32,
    #[arg(long = "seconds", default_value = "70", value_parser = crate::seconds)]
    pub(crate) time: Duration,
    /// Keep the store in the tests' bucket, whose requests take this many milliseconds.
    #[arg(long)]
    pub(crate) bucket_ms: Option<u64>,
    /// Coordinators in a bucket, each with a shard of its own.
    #[arg(long, default_value = "1", requires = "bucket_ms")]
    pub(crate) coordinators: NonZeroU16,
    /// Read back the records of every Nth node.
    #[arg(long, default_value = "1")]
    pub(crate) read_back_every: NonZeroUsize,
}

/// What coordinators and generator used while the load was held.
#[derive(Debug)]
struct Used {
    time: Duration,
    records: f64,
    /// Shares of a core, of each coordinator, and of the generator.
    cpu_shares: Vec<f64>,
    own_share: f64,
    rss_bytes: u64,
    /// Requests to the bucket, and those that were a PUT.
    requests: Option<(u64, u64)>,
}

/// Holds it, and tells what it found.
pub(crate) async fn hold(binary: &Binary, load: Load) -> anyhow::Result<Value> {
    let count = load.coordinators.get();
    let mut shards = Shards::start(binary, load.bucket_ms, count).await?;
    let rss_idle_bytes: u64 = shards.usages()?.iter().map(|usage| usage.rss_bytes).sum();
    let nodes = nodes(load.ranks, load.jobs, count);
    eprintln!("{} agents connect", nodes.len());
    let fleet = Fleet::connect(&nodes, &shards.targets(), None).await?;
    let connected_in = fleet.connected_in;
    eprintln!("connected in {connected_in:.1?}; they report");
    fleet.report(INTERVAL)?;
    sleep(Duration::from_secs(RAMP_UP_STEPS)).await;
    let used = measure(&shards, load.time).await?;
    let progress = fleet.stop().await?;

    let mut acked: Vec<(Node, u64)> =
        progress.iter().map(|(node, progress)| (node.clone(), progress.acked_step)).collect();
    acked.sort_by_key(|(node, _)| node.index);
    let acked: Vec<_> = acked.into_iter().step_by(load.read_back_every.get()).collect();
    eprintln!("the records of {} nodes are read back", acked.len());
    let live = shards.read_back(&acked).await?;
    let restarted_in = shards.restart().await?;
    eprintln!("killed and started again in {restarted_in:.1?}; they are read back again");
    let again = shards.read_back(&acked).await?;

    let ranks = nodes.len() as u32 * RANKS_PER_AGENT;
    let per_thousand = 1e3 / f64::from(ranks);
    let per_second = |count: f64| count / used.time.as_secs_f64();
    let cpu_share: f64 = used.cpu_shares.iter().sum();
    let mut figures = json!({
        "ranks": ranks,
        "jobs": load.jobs,
        "coordinators": count,
        "tls": binary.trust.is_some(),
        "bucket_ms": load.bucket_ms,
        "bucket_requests_per_s": used.requests.map(|(all, _)| per_second(all as f64)),
        "bucket_puts_per_s": used.requests.map(|(_, puts)| per_second(puts as f64)),
        "agents": nodes.len(),
        "seconds": used.time.as_secs_f64(),
        "records_per_s": per_second(used.records),
        "cpu_share": cpu_share,
        "cpu_share_per_1000_ranks": cpu_share * per_thousand,
        "cpu_shares": used.cpu_shares,
        "generator_cpu_share": used.own_share,
        "rss_bytes": used.rss_bytes,
        "rss_idle_bytes": rss_idle_bytes,
        "rss_bytes_per_1000_ranks":
            used.rss_bytes.saturating_sub(rss_idle_bytes) as f64 * per_thousand,
        "connected_in_s": connected_in.as_secs_f64(),
        "restarted_in_s": restarted_in.as_secs_f64(),
        "read_back": again.whole,
        "lost": live.lost.max(again.lost),
        "lost_before_restart": live.lost,
    });
    judge(&mut figures, &progress);
    Ok(figures)
}

/// What is used within this time from now on.
async fn measure(shards: &Shards, time: Duration) -> anyhow::Result<Used> {
    let (before, records_before) = (shards.usages()?, shards.metric(STEPS).await?);
    let (own_before, requests_before) = (own_cpu_seconds(), shards.requests());
    let begin = Instant::now();
    sleep(time).await;
    let (after, records) = (shards.usages()?, shards.metric(STEPS).await? - records_before);
    let time = begin.elapsed();
    let shares = after.iter().zip(&before).map(|(after, before)| after.cpu_share_since(before));
    let requests = shards.requests().zip(requests_before);
    Ok(Used {
        time,
        records,
        cpu_shares: shares.collect(),
        own_share: (own_cpu_seconds() - own_before) / time.as_secs_f64(),
        rss_bytes: after.iter().map(|usage| usage.rss_bytes_max).sum(),
        requests: requests.map(|(after, before)| (after.0 - before.0, after.1 - before.1)),
    })
}

/// Whether it was held.
fn judge(figures: &mut Value, progress: &[(Node, Progress)]) {
    let mut micros: Vec<u32> =
        progress.iter().flat_map(|(_, progress)| &progress.acks).map(|ack| ack.micros).collect();
    let reports: u64 = progress.iter().map(|(_, progress)| progress.sent_step).sum();
    let late: u64 = progress.iter().map(|(_, progress)| progress.late).sum();
    let unacked: u64 =
        progress.iter().map(|(_, progress)| progress.sent_step - progress.acked_step).sum();
    let broke: Vec<&String> =
        progress.iter().filter_map(|(_, progress)| progress.broke.as_ref()).collect();
    let p99 = Duration::from_micros(u64::from(percentile(&mut micros, 0.99)));
    let is_held = unacked == 0
        && broke.is_empty()
        && p99 <= ACK_TIME_MAX
        && late as f64 <= reports as f64 * LATE_PART_MAX;
    figures["held"] = json!(is_held);
    figures["ack"] = latencies(&mut micros);
    figures["reports"] = json!(reports);
    figures["reports_late"] = json!(late);
    figures["steps_unacknowledged"] = json!(unacked);
    figures["streams_broken"] = json!(broke.len());
    if let Some(why) = broke.first() {
        figures["broke"] = json!(why);
    }
}

/// CPU time of this process.
pub(crate) fn own_cpu_seconds() -> f64 {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    clock.tv_sec as f64 + clock.tv_nsec as f64 / 1e9
}
