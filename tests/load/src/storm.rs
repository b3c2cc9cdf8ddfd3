//! A storm: every agent uploads its part of one capture at the same moment.
//!
//! The agents go on reporting meanwhile. Memory of the coordinator is watched; afterwards it is
//! killed and started again, and every snapshot that has a receipt, and every record that was
//! acknowledged, is read back.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokio::sync::{Barrier, mpsc};
use tokio::time::{Instant, sleep, timeout};

use crate::agent::{INTERVAL, Uploads};
use crate::coordinator::{Binary, Coordinator, Target};
use crate::figures::latencies;
use crate::fleet::Fleet;
use crate::job::{Node, nodes};
use crate::readback;
use crate::upload::{Sent, Template};

/// Reports before the capture: every rank has finished a few steps.
const WARM_UP: Duration = Duration::from_secs(5);

/// Longer than any upload may take.
const STORM_TIME_MAX: Duration = Duration::from_secs(300);

/// The capture may take as long as this disk takes; what is tested is memory.
const CAPTURE_DEADLINE: &str = "240s";

/// What to send.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Storm {
    #[arg(long)]
    pub(crate) ranks: u32,
    /// Snapshot of each agent.
    #[arg(long, default_value_t = 1 << 20)]
    pub(crate) snapshot_bytes: usize,
}

/// Sends it, and tells what it found.
pub(crate) async fn storm(binary: &Binary, storm: Storm) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir()?;
    let mut binary = binary.clone();
    binary.arguments.extend(["--capture-deadline", CAPTURE_DEADLINE].map(String::from));
    let coordinator = Arc::new(binary.start(folder.path())?);
    let nodes = nodes(storm.ranks, 1, 1);
    let (sent, mut all_sent) = mpsc::unbounded_channel();
    let uploads = Uploads {
        template: Arc::new(Template::new(storm.snapshot_bytes)),
        all_ready: Arc::new(Barrier::new(nodes.len())),
        sent,
    };
    let fleet = Fleet::connect(&nodes, &[Target::of(&coordinator)], Some(&uploads)).await?;
    fleet.report(INTERVAL)?;
    sleep(WARM_UP).await;
    let before = coordinator.usage()?;
    let job = &nodes.first().context("there is no node")?.job;
    let capture = coordinator.capture(job).await?;
    let mut snapshots = Vec::new();
    while snapshots.len() < nodes.len() {
        match timeout(STORM_TIME_MAX, all_sent.recv()).await {
            Ok(Some(snapshot)) => snapshots.push(snapshot),
            _ => bail!("{} of {} uploads came to an end", snapshots.len(), nodes.len()),
        }
    }
    let manifest = closed(&coordinator, &capture).await?;
    let after = coordinator.usage()?;
    let bound = coordinator.metric("memtape_upload_bytes_max", "").await?;
    let progress = fleet.stop().await?;
    let acked: Vec<(Node, u64)> =
        progress.iter().map(|(node, progress)| (node.clone(), progress.acked_step)).collect();
    let broken = progress.iter().filter(|(_, progress)| progress.broke.is_some()).count();
    let mut acks: Vec<u32> =
        progress.iter().flat_map(|(_, progress)| &progress.acks).map(|ack| ack.micros).collect();
    drop(coordinator);

    let restarted = Arc::new(binary.start(folder.path())?);
    let kept = readback::snapshots(&restarted, &capture, &snapshots).await?;
    let records = readback::records(&restarted, &acked).await?;
    let seconds = span(&snapshots);
    let failed = snapshots.iter().filter_map(|snapshot| snapshot.failure.as_ref());
    let bytes: u64 = snapshots.iter().map(|snapshot| snapshot.bytes).sum();
    Ok(json!({
        "ranks": nodes.len() as u32 * crate::job::RANKS_PER_AGENT,
        "agents": nodes.len(),
        "snapshots": kept.whole,
        "snapshot_bytes": bytes,
        "snapshots_failed": failed.clone().count(),
        "failure": failed.clone().next(),
        "tries": snapshots.iter().map(|snapshot| snapshot.tries).sum::<u32>(),
        "seconds": seconds.as_secs_f64(),
        "upload": latencies(&mut waits(&snapshots)),
        "ack": latencies(&mut acks),
        "streams_broken": broken,
        "aligned": manifest["aligned"],
        "state": manifest["state"],
        "rss_before_bytes": before.rss_bytes,
        "rss_bytes": after.rss_bytes_max,
        "bound_bytes": bound.map(|bytes| before.rss_bytes + bytes as u64),
        "records": records.whole,
        "lost": kept.lost + records.lost,
    }))
}

/// The capture's manifest, when it is closed.
pub(crate) async fn closed(coordinator: &Coordinator, capture: &str) -> anyhow::Result<Value> {
    let begin = Instant::now();
    loop {
        let manifest: Value = coordinator.get(&format!("/captures/{capture}")).await?;
        if !manifest["closed_wall_ns"].is_null() {
            return Ok(manifest);
        }
        if begin.elapsed() > STORM_TIME_MAX {
            bail!("capture {capture} did not close");
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// From the first byte to the last receipt.
fn span(snapshots: &[Sent]) -> Duration {
    let first = snapshots.iter().map(|snapshot| snapshot.begin).min();
    let last = snapshots.iter().map(|snapshot| snapshot.end).max();
    first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first)
}

fn waits(snapshots: &[Sent]) -> Vec<u32> {
    let wait = |snapshot: &Sent| (snapshot.end - snapshot.begin).as_micros();
    snapshots.iter().map(|snapshot| u32::try_from(wait(snapshot)).unwrap_or(u32::MAX)).collect()
}
