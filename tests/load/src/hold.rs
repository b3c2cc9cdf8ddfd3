//! A number of ranks held at one record per second and rank for a while.
//!
//! Held means: every record was acknowledged, 99 of 100 reports within the second that belongs to
//! them, and no agent was late with its own. Then the coordinator is killed and started again, and
//! everything that was acknowledged is read back from it. The store may be in the tests' bucket,
//! which the generator's process serves.

use std::sync::Arc;
use std::time::Duration;

use memtape_bucket::{Fault, Rule, Server};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::agent::{INTERVAL, Progress, RAMP_UP_STEPS};
use crate::coordinator::Binary;
use crate::figures::{latencies, percentile};
use crate::fleet::Fleet;
use crate::job::{Node, nodes};
use crate::readback;

/// 99 of 100 reports must be acknowledged within this time.
const ACK_TIME_MAX: Duration = Duration::from_secs(1);

/// Of all reports, at most this part may be late: the generator shares its cores.
const LATE_PART_MAX: f64 = 0.001;

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
}

/// Holds it, and tells what it found.
pub(crate) async fn hold(binary: &Binary, load: Load) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir()?;
    let bucket = match load.bucket_ms {
        Some(ms) => Some(bucket(ms).await),
        None => None,
    };
    let binary = &Binary { bucket: bucket.as_ref().map(|it| it.settings("a")), ..binary.clone() };
    let coordinator = binary.start(folder.path())?;
    let idle = coordinator.usage()?;
    let nodes = nodes(load.ranks, load.jobs);
    let fleet = Fleet::connect(&nodes, &coordinator, None).await?;
    let connected_in = fleet.connected_in;
    fleet.report(INTERVAL)?;
    sleep(Duration::from_secs(RAMP_UP_STEPS)).await;
    let (before, steps_before) = (coordinator.usage()?, steps(&coordinator).await?);
    let own_before = own_cpu_seconds();
    let asked = |of: fn(&Server) -> u64| bucket.as_ref().map(of);
    let asked = || (asked(Server::requests), asked(Server::puts));
    let asked_before = asked();
    let begin = Instant::now();
    sleep(load.time).await;
    let (after, steps_after) = (coordinator.usage()?, steps(&coordinator).await?);
    let held = begin.elapsed();
    let per_second = |before: Option<u64>, after: Option<u64>| {
        Some((after? - before?) as f64 / held.as_secs_f64())
    };
    let asked = asked();
    let bucket_requests_per_s = per_second(asked_before.0, asked.0);
    let bucket_puts_per_s = per_second(asked_before.1, asked.1);
    let own_share = (own_cpu_seconds() - own_before) / held.as_secs_f64();
    let progress = fleet.stop().await?;

    let acked: Vec<(Node, u64)> =
        progress.iter().map(|(node, progress)| (node.clone(), progress.acked_step)).collect();
    let live = readback::records(&Arc::new(coordinator), &acked).await?;
    // The last handle is gone with the one above: the coordinator is killed.
    let restarted = Arc::new(binary.start(folder.path())?);
    let restarted_in = restarted.started_in;
    let again = readback::records(&restarted, &acked).await?;

    let ranks = nodes.len() as u32 * crate::job::RANKS_PER_AGENT;
    let per_thousand = 1e3 / f64::from(ranks);
    let cpu_share = after.cpu_share_since(&before);
    let rss_bytes = after.rss_bytes_max;
    let mut figures = json!({
        "ranks": ranks,
        "jobs": load.jobs,
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
        "rss_idle_bytes": idle.rss_bytes,
        "rss_bytes_per_1000_ranks":
            rss_bytes.saturating_sub(idle.rss_bytes) as f64 * per_thousand,
        "connected_in_s": connected_in.as_secs_f64(),
        "restarted_in_s": restarted_in.as_secs_f64(),
        "read_back": again.whole,
        "lost": live.lost.max(again.lost),
        "lost_before_restart": live.lost,
    });
    judge(&mut figures, &progress);
    Ok(figures)
}

/// The tests' bucket, each of whose requests takes so long.
async fn bucket(ms: u64) -> Server {
    let server = Server::start().await;
    server.add_rule(Rule::of("", Fault::Slow(Duration::from_millis(ms))));
    server
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

async fn steps(coordinator: &crate::coordinator::Coordinator) -> anyhow::Result<f64> {
    Ok(coordinator.metric("memtape_steps_total", "").await?.unwrap_or(0.0))
}

/// CPU time of this process.
pub(crate) fn own_cpu_seconds() -> f64 {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    clock.tv_sec as f64 + clock.tv_nsec as f64 / 1e9
}
