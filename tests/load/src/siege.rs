//! A siege: agents report while others hold connections, uploads and answers open.
//!
//! Three phases of equal length: before, during, after. During the siege all attacks of
//! `attackers.rs` are made at once: by the network, by users, and with the certificates of some
//! nodes. In each phase the acknowledgements of the
//! agents' reports are timed, and a capture is taken. Then the coordinator is killed and started
//! again, and everything that was acknowledged is read back.

mod attacker;
mod attackers;
mod network;
mod stolen;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use tokio::sync::{Barrier, mpsc};
use tokio::time::{Instant, sleep};

use crate::agent::{Progress, RAMP_UP_STEPS, Uploads};
use crate::coordinator::{Binary, Coordinator, Target};
use crate::figures::latencies;
use crate::fleet::Fleet;
use crate::job::{Node, nodes};
use crate::readback;
use crate::siege::attackers::Attackers;
use crate::storm::closed;
use crate::trust::Trust;
use crate::upload::Template;

/// What besieges it, and for how long.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Siege {
    #[arg(long)]
    pub(crate) ranks: u32,
    #[arg(long = "seconds", default_value = "30", value_parser = crate::seconds)]
    pub(crate) phase: Duration,
    /// Seconds of a step: each agent reports as often. Longer on a small machine.
    #[arg(long, default_value = "1", value_parser = crate::seconds)]
    pub(crate) interval: Duration,
    /// Only this part of the attackers, on a small machine.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) divide: u32,
    /// Nodes whose certificates are stolen.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) stolen: u32,
    /// Memory of the coordinator.
    #[arg(long, default_value_t = 2 << 30)]
    pub(crate) memory_bytes_max: u64,
    /// Snapshot of each agent.
    #[arg(long, default_value_t = 4 << 20)]
    pub(crate) snapshot_bytes: usize,
}

/// A part of the siege.
struct Phase {
    name: &'static str,
    from: Instant,
    to: Instant,
    figures: Value,
}

/// Besieges a coordinator, and tells what it found.
pub(crate) async fn siege(binary: &Binary, siege: Siege) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir()?;
    let trust = Arc::new(Trust::new(&attackers::users())?);
    let mut binary = binary.clone();
    binary.trust = Some(trust.clone());
    // As many captures as there are phases, one after the other.
    binary.arguments.extend(["--capture-interval", "1s"].map(String::from));
    let memory = siege.memory_bytes_max.to_string();
    binary.arguments.extend(["--memory-bytes-max".to_string(), memory]);
    let coordinator = Arc::new(binary.start(folder.path())?);
    let nodes = nodes(siege.ranks, 1, 1);
    // The manifest tells which uploads came to an end; when, is read by no one.
    let (sent, _all_sent) = mpsc::unbounded_channel();
    let uploads = Uploads {
        template: Arc::new(Template::new(siege.snapshot_bytes)),
        all_ready: Arc::new(Barrier::new(nodes.len())),
        sent,
    };
    let fleet = Fleet::connect(&nodes, &[Target::of(&coordinator)], Some(&uploads)).await?;
    fleet.report(siege.interval)?;
    sleep(siege.interval * RAMP_UP_STEPS as u32).await;
    let honest = nodes.first().context("there is no node")?;
    let job = &honest.job_id();

    let (before, capture) = phase("before", &coordinator, job, siege.phase).await?;
    let attackers =
        Attackers::start(&Target::of(&coordinator), &trust, &siege, (honest, &capture))?;
    // Until all of them are there.
    let attacked = attackers.all_are_there().await;
    let (during, _) = phase("during", &coordinator, job, siege.phase).await?;
    let held = attackers.stop().await;
    let (after, _) = phase("after", &coordinator, job, siege.phase).await?;
    let usage = coordinator.usage()?;
    let losses = coordinator.metrics("memtape_losses_total").await?;
    let progress = fleet.stop().await?;

    let mut figures = json!({
        "ranks": nodes.len() as u32 * crate::job::RANKS_PER_AGENT,
        "agents": nodes.len(),
        "rss_bytes": usage.rss_bytes_max,
        "memory_bytes_max": siege.memory_bytes_max,
        "certificates_stolen": siege.stolen,
        "all_attackers_there": attacked,
        "attackers": held,
        "losses": losses,
    });
    for phase in [before, during, after] {
        let mut of_phase = phase.figures;
        of_phase["ack"] = acks(&progress, phase.from, phase.to);
        figures[phase.name] = of_phase;
    }
    // To read everything back takes minutes.
    eprintln!("\nbefore the kill: {figures}");

    let acked: Vec<(Node, u64)> =
        progress.iter().map(|(node, progress)| (node.clone(), progress.acked_step)).collect();
    drop(coordinator);
    let restarted = Arc::new(binary.start(folder.path())?);
    let records = readback::records(&restarted, &acked).await?;
    figures["records"] = json!(records.whole);
    figures["lost"] = json!(records.lost);
    let unacked = progress.iter().map(|(_, progress)| progress.sent_step - progress.acked_step);
    figures["steps_unacknowledged"] = json!(unacked.sum::<u64>());
    let broken = progress.iter().filter(|(_, progress)| progress.broke.is_some());
    figures["streams_broken"] = json!(broken.count());
    Ok(figures)
}

/// Lets the agents report for a while, and takes a capture meanwhile.
async fn phase(
    name: &'static str,
    coordinator: &Coordinator,
    job: &str,
    time: Duration,
) -> anyhow::Result<(Phase, String)> {
    let from = Instant::now();
    let usage = coordinator.usage()?;
    let capture = coordinator.capture(job).await?;
    let manifest = closed(coordinator, &capture).await?;
    let captured_in = from.elapsed();
    sleep(time.saturating_sub(from.elapsed())).await;
    let now = coordinator.usage()?;
    let figures = json!({
        "seconds": from.elapsed().as_secs_f64(),
        "capture_s": captured_in.as_secs_f64(),
        "capture": manifest["state"],
        "capture_aligned": manifest["aligned"],
        "cpu_share": now.cpu_share_since(&usage),
        "rss_bytes": now.rss_bytes,
    });
    Ok((Phase { name, from, to: Instant::now(), figures }, capture))
}

fn acks(progress: &[(Node, Progress)], from: Instant, to: Instant) -> Value {
    let all = progress.iter().flat_map(|(_, progress)| &progress.acks);
    let mut micros: Vec<u32> =
        all.filter(|ack| ack.sent >= from && ack.sent < to).map(|ack| ack.micros).collect();
    let mut figures = latencies(&mut micros);
    figures["reports"] = json!(micros.len());
    figures
}
