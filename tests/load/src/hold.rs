//! A number of ranks held at one record per second and rank for a while.
//!
//! Held means: every record was acknowledged, 99 of 100 reports within the second that belongs to
//! them, and no agent was late with its own. Then the coordinators are killed and started again,
//! and everything that was acknowledged is read back from them. The store may be in the tests'
//! bucket, with a coordinator for each shard.

use std::num::{NonZeroU16, NonZeroUsize};
use std::time::Duration;

use memtape_bucket::Server;
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
    /// Read back the records of every such node.
    #[arg(long, default_value = "1")]
    pub(crate) read_back_every: NonZeroUsize,
}

/// Holds it, and tells what it found.
pub(crate) async fn hold(binary: &Binary, load: Load) -> anyhow::Result<Value> {
    let count = load.coordinators.get();
    let mut shards = Shards::start(binary, load.bucket_ms, count).await?;
    let idle = shards.usages()?;
    let nodes = nodes(load.ranks, load.jobs, count);
    eprintln!("{} agents connect", nodes.len());
    let fleet = Fleet::connect(&nodes, &shards.targets(), None).await?;
    let connected_in = fleet.connected_in;
    eprintln!("connected in {connected_in:.1?}; they report");
    fleet.report(INTERVAL)?;
    sleep(Duration::from_secs(RAMP_UP_STEPS)).await;
    let (before, steps_before) = (shards.usages()?, shards.metric(STEPS).await?);
    let own_before = own_cpu_seconds();
    let requests = |of: fn(&Server) -> u64| shards.bucket.as_ref().map(of);
    let requests = || (requests(Server::requests), requests(Server::puts));
    let requests_before = requests();
    let begin = Instant::now();
    sleep(load.time).await;
    let (after, steps_after) = (shards.usages()?, shards.metric(STEPS).await?);
    let held = begin.elapsed();
    let per_second = |before: Option<u64>, after: Option<u64>| {
        Some((after? - before?) as f64 / held.as_secs_f64())
    };
    let requests = requests();
    let bucket_requests_per_s = per_second(requests_before.0, requests.0);
    let bucket_puts_per_s = per_second(requests_before.1, requests.1);
    let own_share = (own_cpu_seconds() - own_before) / held.as_secs_f64();
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
    let cpu_shares: Vec<f64> =
        after.iter().zip(&before).map(|(after, before)| after.cpu_share_since(before)).collect();
    let cpu_share: f64 = cpu_shares.iter().sum();
    let rss_bytes: u64 = after.iter().map(|usage| usage.rss_bytes_max).sum();
    let rss_idle_bytes: u64 = idle.iter().map(|usage| usage.rss_bytes).sum();
    let mut figures = json!({
        "ranks": ranks,
        "jobs": load.jobs,
        "coordinators": count,
        "tls": binary.trust.is_some(),
        "bucket_ms": load.bucket_ms,
        "bucket_requests_per_s": bucket_requests_per_s,
        "bucket_puts_per_s": bucket_puts_per_s,
        "agents": nodes.len(),
        "seconds": held.as_secs_f64(),
        "records_per_s": (steps_after - steps_before) / held.as_secs_f64(),
        "cpu_share": cpu_share,
        "cpu_share_per_1000_ranks": cpu_share * per_thousand,
        "generator_cpu_share": own_share,
        "rss_bytes": rss_bytes,
        "rss_idle_bytes": rss_idle_bytes,
        "rss_bytes_per_1000_ranks":
            rss_bytes.saturating_sub(rss_idle_bytes) as f64 * per_thousand,
        "connected_in_s": connected_in.as_secs_f64(),
        "restarted_in_s": restarted_in.as_secs_f64(),
        "read_back": again.whole,
        "lost": live.lost.max(again.lost),
        "lost_before_restart": live.lost,
    });
    if count > 1 {
        figures["cpu_shares"] = json!(cpu_shares);
    }
    judge(&mut figures, &progress);
    Ok(figures)
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
